// The program "orca": what runs outside of a user's own program.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "orca/core/deadline.h"
#include "orca/core/error.h"
#include "orca/core/unique_fd.h"
#include "orca/net/socket.h"
#include "orca/runtime/agent.h"
#include "orca/runtime/event_log.h"
#include "orca/tune/study_view.h"
#include "tune.h"

namespace {

using orca::Code;
using orca::Error;
using Arguments = std::span<const std::string>;

constexpr std::string_view kUsage =
    "orca ps                list the runs in $ORCA_HOME (default ~/.orca), newest last\n"
    "orca logs RUN [-f]     print what a run's workers said and what happened; -f: follow it\n"
    "orca stacks RUN        print where the functions of a running run are, Python and native\n"
    "orca tune show PATH [--study ID] [--csv | --json | --html FILE]\n"
    "                       print a study (PATH: its file, or the folder that has it); --html: "
    "draw it\n"
    "orca tune salvage FILE put what can be read of a damaged file of studies in its place\n"
    "orca version           print the version\n"
    "orca agent --join HOST:PORT --secret-file FILE\n"
    "                       serve a driver on another machine\n";

std::string LocalTime(double seconds, const char* format) {
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm local{};
  ::localtime_r(&whole, &local);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), format, &local);
  return text.data();
}

int Agent(Arguments arguments) {
  std::map<std::string, std::string> given;
  for (std::size_t i = 0; i + 1 < arguments.size(); i += 2) given[arguments[i]] = arguments[i + 1];
  if (given.size() == 1 && given.contains("--fd")) {
    orca::runtime::RunAgent(orca::UniqueFd(std::atoi(given["--fd"].c_str())));
  } else if (given.size() == 2 && given.contains("--join") && given.contains("--secret-file")) {
    orca::runtime::JoinAsAgent(given["--join"], given["--secret-file"]);
  } else {
    throw Error(Code::kInvalidArgument, "orca agent --join HOST:PORT --secret-file FILE");
  }
  return 0;
}

int Ps(Arguments /*arguments*/) {
  std::puts("RUN                     BEGAN                STATE    DRIVER   CORES  CALLS  FAILED");
  for (const auto& run : orca::runtime::ListRuns()) {
    try {
      const auto state = orca::runtime::Summarize(run);
      std::puts(fmt::format("{:<23} {:<20} {:<8} {:<8} {:<6} {:<6} {}", state.id,
                            LocalTime(state.began, "%Y-%m-%d %H:%M:%S"), state.state, state.driver,
                            state.cores, state.calls, state.failed)
                    .c_str());
    } catch (const Error&) {  // removed meanwhile
    }
  }
  return 0;
}

// What workers write must not control the terminal.
void PrintLines(const std::string& text, const std::string& before = "") {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::puts((before + orca::tune::OneLine(text.substr(at, end - at), text.size())).c_str());
    at = end + 1;
  }
  std::fflush(stdout);
}

void Print(const orca::runtime::Record& record) {
  const std::string who = record.rank < 0 ? "" : fmt::format("[rank {}] ", record.rank);
  const std::string time = LocalTime(record.time, "%H:%M:%S");
  std::string text = record.text;
  if (record.what != "output" && record.what != "log") {
    text = fmt::format("{}{}{}", record.what, text.empty() ? "" : ": ", text);
    for (const auto& [name, value] : record.numbers)
      text += fmt::format(" {}={:.15g}", name, value);
  }
  PrintLines(text, fmt::format("{} {}", time, who));
}

int Logs(Arguments arguments) {
  if (arguments.empty() || (arguments.size() == 2 && arguments[1] != "-f") || arguments.size() > 2)
    throw Error(Code::kInvalidArgument, "orca logs RUN [-f]; \"orca ps\" lists the runs");
  const auto run = orca::runtime::FindRun(arguments[0]);
  orca::runtime::EventReader reader(run.path / "events.log");
  for (;;) {
    while (const auto record = reader.Next()) Print(*record);
    if (arguments.size() < 2 || reader.damaged()) return 0;
    if (orca::runtime::Summarize(run).state != "running") return 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// The driver passes it on, sends what the workers answer, and closes.
int Stacks(Arguments arguments) {
  if (arguments.size() != 1)
    throw Error(Code::kInvalidArgument, "orca stacks RUN; \"orca ps\" lists the runs");
  const auto run = orca::runtime::FindRun(arguments[0]);
  const auto state = orca::runtime::Summarize(run);
  if (state.state != "running")
    throw Error(Code::kFailedPrecondition,
                fmt::format("run {} is {}; only a running one has stacks", run.id, state.state));
  const auto deadline = orca::Deadline::After(std::chrono::seconds(10));
  const auto door = orca::net::ConnectUnix(state.door, deadline);
  std::string stacks;
  std::array<char, 4096> text{};
  for (pollfd ready{.fd = door.get(), .events = POLLIN, .revents = 0};;) {
    if (::poll(&ready, 1, static_cast<int>(deadline.Left().count())) == 0)
      throw Error(Code::kTimeout, fmt::format("run {} gave no answer within 10 s", run.id));
    const ssize_t got = ::read(door.get(), text.data(), text.size());
    if (got == 0) break;
    if (got > 0) stacks.append(text.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR && errno != EAGAIN) break;
  }
  PrintLines(stacks);
  if (stacks.empty()) std::puts(fmt::format("run {} runs no function now", run.id).c_str());
  return 0;
}

int Run(Arguments arguments) {
  const std::string command = arguments.empty() ? "help" : arguments[0];
  const Arguments rest = arguments.empty() ? arguments : arguments.subspan(1);
  if (command == "agent") return Agent(rest);
  if (command == "ps") return Ps(rest);
  if (command == "logs") return Logs(rest);
  if (command == "stacks") return Stacks(rest);
  if (command == "tune") return orca::cli::Tune(rest);
  if (command == "version") {
    std::puts(ORCA_VERSION);
    return 0;
  }
  if (command != "help" && command != "--help" && command != "-h")
    throw Error(Code::kInvalidArgument,
                fmt::format("orca: there is no command \"{}\"\n{}", command, kUsage));
  std::fputs(kUsage.data(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    return Run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
