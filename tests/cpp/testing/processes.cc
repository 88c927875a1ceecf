#include "testing/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>

#include "orca/core/deadline.h"

namespace orca::testing {
namespace {

constexpr const char* kEnd = "end";

std::string EncodeOutcome(const std::exception_ptr& error) {
  int code = 0;
  std::string text;
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& e) {
    code = static_cast<int>(e.code());
    text = e.what();
  } catch (const std::exception& e) {
    code = static_cast<int>(Code::kInternal);
    text = e.what();
  }
  return fmt::format("{} {} {} {}", kEnd, code, Clock::now().time_since_epoch().count(), text);
}

Outcome DecodeOutcome(const std::string& line) {
  std::istringstream words(line);
  std::string end;
  int code = 0;
  Clock::rep at = 0;
  Outcome outcome;
  words >> end >> code >> at;
  words.get();
  std::getline(words, outcome.text);
  if (code != 0) outcome.code = static_cast<Code>(code);
  outcome.at = Clock::time_point(Clock::duration(at));
  return outcome;
}

}  // namespace

void Voice::Tell(std::string line) const {
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  [[maybe_unused]] const auto written = ::write(fd_, line.data(), line.size());
}

Child::Child(const std::function<void(const Voice&)>& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  pipe_.Reset(ends[0]);
  UniqueFd write_end(ends[1]);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  owned_.value = ::fork();
  if (owned_.value == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves nobody behind
    if (::getppid() != parent) ::_exit(1);
    pipe_.Reset();
    try {
      body(Voice(write_end.get()));
    } catch (const std::exception& error) {
      Voice(write_end.get()).Tell(std::string("died: ") + error.what());
    }
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  pid_ = owned_.value;
}

Child::~Child() {
  if (owned_.value < 0) return;
  ::kill(owned_.value, SIGKILL);
  ::waitpid(owned_.value, nullptr, 0);
}

void Child::Signal(int signal) const { ::kill(pid_, signal); }

std::optional<std::string> Child::Listen(std::chrono::milliseconds limit) {
  const Deadline deadline = Deadline::After(limit);
  for (;;) {
    if (const auto end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    pollfd wait{.fd = pipe_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, static_cast<int>(deadline.Left().count())) == 0) {
      ADD_FAILURE() << "process " << pid_ << " said nothing for " << limit.count() << " ms";
      return std::nullopt;
    }
    std::array<char, 4096> text{};
    const auto got = ::read(pipe_.get(), text.data(), text.size());
    if (got <= 0) return std::nullopt;
    unread_.append(text.data(), static_cast<std::size_t>(got));
  }
}

int Child::Wait(std::chrono::milliseconds limit) {
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, owned_.value, 0)));
  pollfd wait{.fd = handle.get(), .events = POLLIN, .revents = 0};
  if (::poll(&wait, 1, static_cast<int>(limit.count())) == 0) {
    ADD_FAILURE() << "process " << pid_ << " has not ended after " << limit.count() << " ms";
    ::kill(owned_.value, SIGKILL);
  }
  int status = 0;
  ::waitpid(std::exchange(owned_.value, -1), &status, 0);
  return status;
}

RankProcesses::RankProcesses(int world, Layout layout,
                             std::function<void(comm::CommOptions&)> adjust, const Body& body) {
  Start(world, [=](std::shared_ptr<comm::Store> store, int rank, const Voice& voice) {
    const auto comm = Join({.rank = rank,
                            .world = world,
                            .layout = layout,
                            .store = std::move(store),
                            .adjust = adjust});
    body(*comm, voice);
  });
}

RankProcesses::RankProcesses(int world, const FreeBody& body) { Start(world, body); }

void RankProcesses::Start(int world, const FreeBody& body) {
  directory_ = ::testing::TempDir() + "orca-ranks-XXXXXX";
  if (::mkdtemp(directory_.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  for (int rank = 0; rank < world; ++rank) {
    children_.emplace_back([&, rank](const Voice& voice) {
      std::exception_ptr error;
      try {
        body(comm::NewFileStore(directory_), rank, voice);
      } catch (...) {
        error = std::current_exception();
      }
      voice.Tell(EncodeOutcome(error));
    });
  }
}

RankProcesses::~RankProcesses() {
  children_.clear();
  std::filesystem::remove_all(directory_);
}

void RankProcesses::AwaitLine(int rank, const std::string& line) {
  while (const auto heard = child(rank).Listen()) {
    if (*heard == line) return;
    if (heard->starts_with(kEnd)) {
      ADD_FAILURE() << "rank " << rank << " ended before '" << line << "': " << *heard;
      return;
    }
  }
  ADD_FAILURE() << "rank " << rank << " did not say '" << line << "'";
}

Outcome RankProcesses::End(int rank) {
  while (const auto heard = child(rank).Listen()) {
    if (heard->starts_with(kEnd)) return DecodeOutcome(*heard);
  }
  return {.code = Code::kInternal,
          .text = fmt::format("rank {} did not say how it ended", rank),
          .at = {}};
}

std::string Elapsed(Clock::time_point from, Clock::time_point to) {
  return fmt::format("{:.3f} s", std::chrono::duration<double>(to - from).count());
}

}  // namespace orca::testing
