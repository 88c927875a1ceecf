#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "orca/core/crc32c.h"
#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/nesting.h"
#include "orca/runtime/event_log.h"
#include "runtime/process.h"

namespace orca::runtime {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kHead = 8;
constexpr std::size_t kLongestRecord = std::size_t{1} << 20;
constexpr const char* kLogName = "events.log";

[[noreturn]] void ThrowErrno(const std::string& doing, const fs::path& path) {
  throw Error(Code::kUnavailable,
              fmt::format("cannot {} {}: {}", doing, path.string(), std::strerror(errno)));
}

std::optional<Record> Decode(const std::byte* data, std::size_t size) {
  if (!IsShallowMessagePack({data, size})) return std::nullopt;
  const auto* text = reinterpret_cast<const std::uint8_t*>(data);
  const Json words = Json::from_msgpack(text, text + size, true, false);
  if (!words.is_array() || words.size() != 5 || !words[0].is_number() || !words[1].is_string() ||
      !words[2].is_number_integer() || !words[3].is_string() || !words[4].is_object()) {
    return std::nullopt;
  }
  Record record{.time = words[0].get<double>(),
                .what = words[1].get<std::string>(),
                .rank = words[2].get<int>(),
                .text = words[3].get<std::string>()};
  for (const auto& [name, value] : words[4].items()) {
    if (!value.is_number()) return std::nullopt;
    record.numbers[name] = value.get<double>();
  }
  return record;
}

}  // namespace

std::vector<std::byte> Encode(const Record& record) {
  const Json words =
      Json::array({record.time, record.what, record.rank, record.text, record.numbers});
  std::vector<std::uint8_t> body;
  Json::to_msgpack(words, body);
  std::vector<std::byte> bytes(kHead + body.size());
  const auto length = static_cast<std::uint32_t>(body.size());
  const std::uint32_t crc = Crc32c(body.data(), body.size());
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, &crc, sizeof crc);
  std::memcpy(bytes.data() + kHead, body.data(), body.size());
  return bytes;
}

EventLog EventLog::Create(const fs::path& path) {
  UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) ThrowErrno("create", path);
  return EventLog(std::move(file));
}

// One write a record: a reader sees all of it or a torn tail. A full disk costs the log, not the
// run.
void EventLog::Append(const Record& record) {
  const std::vector<std::byte> bytes = Encode(record);
  if (bytes.size() > kLongestRecord) return;
  [[maybe_unused]] const auto written = ::write(file_.get(), bytes.data(), bytes.size());
}

EventReader::EventReader(const fs::path& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!file_) ThrowErrno("read", path);
}

std::optional<Record> EventReader::Next() {
  for (;;) {
    const std::size_t left = buffer_.size() - used_;
    std::uint32_t length = 0;
    if (left >= kHead) std::memcpy(&length, buffer_.data() + used_, sizeof length);
    if (length > kLongestRecord) damaged_ = true;
    if (damaged_) return std::nullopt;
    if (left >= kHead && left - kHead >= length) {
      const std::byte* const body = buffer_.data() + used_ + kHead;
      std::uint32_t crc = 0;
      std::memcpy(&crc, buffer_.data() + used_ + sizeof length, sizeof crc);
      auto record = crc == Crc32c(body, length) ? Decode(body, length) : std::nullopt;
      damaged_ = !record;
      used_ += kHead + length;
      return record;
    }
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(used_));
    used_ = 0;
    std::array<std::byte, 65536> more;
    const ssize_t got = ::read(file_.get(), more.data(), more.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    buffer_.insert(buffer_.end(), more.begin(), more.begin() + got);
  }
}

namespace {

std::string GivenHome() {
  const char* const home = std::getenv("ORCA_HOME");
  return home == nullptr ? "" : home;
}

// The same as home() of python/orca/files.py.
fs::path DefaultHome() {
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fs::path(home) / ".orca";
  std::array<char, 16384> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  ::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr && *found->pw_dir != '\0') return fs::path(found->pw_dir) / ".orca";
  return fmt::format("/tmp/orca-{}", ::geteuid());  // NewRunFolder sees whose it is
}

// What other users could have laid there beforehand is not used.
void RequireOwn(const fs::path& folder) {
  struct ::stat info {};
  if (::lstat(folder.c_str(), &info) != 0) ThrowErrno("read", folder);
  const bool is_own = info.st_uid == ::geteuid() || info.st_uid == 0;
  if (is_own && (S_ISDIR(info.st_mode) || S_ISLNK(info.st_mode))) return;
  throw Error(Code::kUnavailable,
              fmt::format("{} belongs to another user (uid {}); set ORCA_HOME to a folder of your "
                          "own",
                          folder.string(), info.st_uid));
}

}  // namespace

fs::path RunsFolder() {
  const std::string given = GivenHome();
  if (!given.empty()) return fs::absolute(given) / "runs";  // others read it from elsewhere
  return DefaultHome() / "runs";
}

namespace {

// Its processes need what is in the folder.
bool IsRunning(const RunFolder& run) {
  try {
    return Summarize(run).state == "running";
  } catch (const Error&) {
    return false;  // without a log
  }
}

}  // namespace

RunFolder NewRunFolder(const std::string& id, std::size_t keep) {
  const fs::path runs = RunsFolder();
  std::error_code error;
  fs::create_directories(runs, error);
  if (error)
    throw Error(Code::kUnavailable,
                fmt::format("cannot make {}: {}; set ORCA_HOME to a folder that can be written",
                            runs.string(), error.message()));
  if (GivenHome().empty()) RequireOwn(runs.parent_path());
  RequireOwn(runs);
  ::chmod(runs.c_str(), 0700);
  const fs::path path = runs / id;
  if (::mkdir(path.c_str(), 0700) != 0) ThrowErrno("make", path);
  auto all = ListRuns();
  for (std::size_t i = 0; i + keep < all.size(); ++i)
    if (!IsRunning(all[i])) fs::remove_all(all[i].path, error);
  return {.id = id, .path = path};
}

std::vector<RunFolder> ListRuns() {
  std::vector<std::pair<fs::file_time_type, RunFolder>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(RunsFolder(), error)) {
    if (entry.is_directory(error))
      found.emplace_back(entry.last_write_time(error),
                         RunFolder{.id = entry.path().filename().string(), .path = entry.path()});
  }
  std::ranges::sort(found, {}, [](const auto& run) { return std::pair(run.first, run.second.id); });
  std::vector<RunFolder> runs;
  for (auto& [time, run] : found) runs.push_back(std::move(run));
  return runs;
}

RunFolder FindRun(const std::string& prefix) {
  std::vector<RunFolder> matching;
  for (const RunFolder& run : ListRuns())
    if (run.id.starts_with(prefix)) matching.push_back(run);
  if (matching.size() == 1) return matching[0];
  throw Error(
      Code::kInvalidArgument,
      fmt::format("{} runs begin with \"{}\"; \"orca ps\" lists them", matching.size(), prefix));
}

RunState Summarize(const RunFolder& run) {
  RunState summary{.id = run.id, .state = "lost"};
  EventReader reader(run.path / kLogName);
  double started = 0;
  while (const auto record = reader.Next()) {
    const auto number = [&](const char* name) {
      const auto found = record->numbers.find(name);
      return found == record->numbers.end() ? 0.0 : found->second;
    };
    if (record->what == "context") {
      summary.began = record->time;
      summary.door = record->text;
      summary.driver = static_cast<int>(number("pid"));
      summary.cores = static_cast<int>(number("cores"));
      started = number("started");
    } else if (record->what == "call") {
      summary.calls = std::max(summary.calls, static_cast<int>(number("call")));
    } else if (record->what == "failed") {
      ++summary.failed;
    } else if (record->what == "stopped") {
      summary.state = "stopped";
    }
  }
  if (summary.state == "lost" && summary.driver > 0 && StartTime(summary.driver) == started)
    summary.state = "running";
  return summary;
}

}  // namespace orca::runtime
