#include "testing/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <filesystem>
#include <thread>

#include "orca/core/unique_fd.h"

namespace orca::testing {
namespace {

using comm::CommOptions;
using comm::Communicator;
using comm::Membership;

void Nothing(CommOptions&) {}

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

}  // namespace

std::string DescribeError(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& e) {
    return fmt::format("{}: {}", CodeName(e.code()), e.what());
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

std::unique_ptr<Communicator> Join(const Seat& seat) {
  Membership membership;
  membership.group = seat.group;
  membership.generation = seat.generation;
  membership.rank = seat.rank;
  membership.world = seat.world;
  membership.store = seat.store;
  CommOptions options = TestOptions(seat.layout, seat.rank);
  if (seat.adjust) seat.adjust(options);
  return Communicator::Connect(membership, options);
}

Layout SharedMemoryLayout() {
  return {.name = "SharedMemory", .host = [](int) { return std::string("one"); }};
}

Layout TcpLayout() {
  return {.name = "Tcp", .host = [](int rank) { return fmt::format("host{}", rank); }};
}

Layout HostsLayout(int per_host) {
  return {.name = fmt::format("HostsOf{}", per_host),
          .host = [per_host](int rank) { return fmt::format("host{}", rank / per_host); }};
}

CommOptions TestOptions(const Layout& layout, int rank) {
  CommOptions options;
  options.timeout = std::chrono::seconds(300);
  options.connect_timeout = std::chrono::seconds(120);
  options.peer_timeout = std::chrono::seconds(60);  // sanitizers on a busy machine are slow
  options.warn_after = std::chrono::seconds(60);
  options.host = layout.host(rank);
  options.address = "127.0.0.1";
  return options;
}

std::vector<std::string> RunThreads(int count, const std::function<void(int rank)>& body) {
  const std::size_t descriptors = OpenDescriptors();
  std::vector<std::string> errors(static_cast<std::size_t>(count));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = DescribeError(std::current_exception());
        }
      });
    }
  }
  EXPECT_EQ(OpenDescriptors(), descriptors) << "a rank left descriptors behind (O5)";
  return errors;
}

std::vector<std::string> RunRanksAndCatch(int world, const Layout& layout,
                                          const std::function<void(CommOptions&)>& adjust,
                                          const std::function<void(Communicator&)>& body) {
  const auto store = comm::NewMemoryStore();
  return RunThreads(world, [&](int rank) {
    const auto communicator =
        Join({.rank = rank, .world = world, .layout = layout, .store = store, .adjust = adjust});
    body(*communicator);
  });
}

void RunRanks(int world, const Layout& layout, const std::function<void(CommOptions&)>& adjust,
              const std::function<void(Communicator&)>& body) {
  for (const std::string& error : RunRanksAndCatch(world, layout, adjust, body)) {
    if (!error.empty()) {
      ADD_FAILURE() << error;
      return;
    }
  }
}

void RunRanks(int world, const Layout& layout, const std::function<void(Communicator&)>& body) {
  RunRanks(world, layout, Nothing, body);
}

std::vector<std::string> RunProcesses(int world, const Layout& layout,
                                      const std::function<void(CommOptions&)>& adjust,
                                      const std::function<void(Communicator&)>& body) {
  const std::size_t descriptors = OpenDescriptors();
  std::string directory = ::testing::TempDir() + "orca-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  {
    std::vector<pid_t> children;
    std::vector<UniqueFd> pipes;
    for (int rank = 0; rank < world; ++rank) {
      std::array<int, 2> ends{};
      if (::pipe(ends.data()) != 0) throw std::runtime_error("pipe failed");
      UniqueFd read_end(ends[0]);
      UniqueFd write_end(ends[1]);
      const pid_t child = ::fork();
      if (child == 0) {
        read_end.Reset();
        std::string error;
        try {
          const auto communicator = Join({.rank = rank,
                                          .world = world,
                                          .layout = layout,
                                          .store = comm::NewFileStore(directory),
                                          .adjust = adjust});
          body(*communicator);
        } catch (...) {
          error = DescribeError(std::current_exception());
        }
        if (::testing::Test::HasFailure() && error.empty())
          error = "an expectation failed in a rank";
        [[maybe_unused]] const auto written = ::write(write_end.get(), error.data(), error.size());
        ::_exit(0);
      }
      children.push_back(child);
      pipes.push_back(std::move(read_end));
    }
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      std::array<char, 4096> text{};
      ssize_t got = 0;
      while ((got = ::read(pipes[rank].get(), text.data(), text.size())) > 0) {
        errors[rank].append(text.data(), static_cast<std::size_t>(got));
      }
      int status = 0;
      ::waitpid(children[rank], &status, 0);
      if (WIFSIGNALED(status)) errors[rank] = fmt::format("signal {}", WTERMSIG(status));
    }
  }
  std::filesystem::remove_all(directory);
  EXPECT_EQ(OpenDescriptors(), descriptors) << "a rank left descriptors behind (O5)";
  return errors;
}

std::vector<std::string> RunProcesses(int world, const Layout& layout,
                                      const std::function<void(Communicator&)>& body) {
  return RunProcesses(world, layout, Nothing, body);
}

}  // namespace orca::testing
