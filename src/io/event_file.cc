#include "orca/io/event_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <system_error>

#include "io/event_record.h"
#include "io/file_tools.h"
#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"

namespace orca::io {
namespace {

constexpr std::string_view kMark = ".tfevents.";
// How much waits for room on a full disk; more is lost.
constexpr std::size_t kMostUnwritten = std::size_t{1} << 20;

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

EventWriter::EventWriter(const Path& folder, FileSystem& files) {
  const double now = Now();
  // TensorBoard reads a folder's files in the order of their names: the time comes first.
  path_ = folder / fmt::format("events.out.tfevents.{:010d}.{}.{}", static_cast<std::int64_t>(now),
                               HostName(), files.UniqueWord());
  try {
    file_ = files.Create(path_, Access::kUser);
  } catch (const Error& error) {  // To look first at every folder above would take longer.
    if (error.code() != Code::kUnavailable) throw;
    MakeFolders(files, folder);
    file_ = files.Create(path_, Access::kUser);
  }
  unwritten_ = EncodeFileVersion(now);  // With what comes first.
}

void EventWriter::AddScalar(const std::string& tag, double value, std::int64_t step,
                            double wall_time) {
  Append(EncodeScalar(
      tag, {.step = step, .value = value, .wall_time = wall_time == 0 ? Now() : wall_time}));
}

void EventWriter::AddScalars(const std::vector<std::pair<std::string, double>>& values,
                             std::int64_t step) {
  const double now = Now();
  std::vector<std::byte> records;
  for (const auto& [tag, value] : values) {
    const auto record = EncodeScalar(tag, {.step = step, .value = value, .wall_time = now});
    records.insert(records.end(), record.begin(), record.end());
  }
  if (!records.empty()) Append(records);
}

void EventWriter::AddCurves(const std::map<std::string, std::vector<double>>& curves) {
  const double now = Now();
  std::vector<std::byte> records;
  for (const auto& [tag, values] : curves) {
    for (std::size_t step = 0; step < values.size(); ++step) {
      if (!std::isfinite(values[step])) continue;
      const auto record = EncodeScalar(
          tag, {.step = static_cast<std::int64_t>(step), .value = values[step], .wall_time = now});
      records.insert(records.end(), record.begin(), record.end());
    }
  }
  if (!records.empty()) Append(records);
}

void EventWriter::AddHparams(const HparamSession& session) {
  std::vector<std::byte> records;
  for (const std::vector<std::byte>& record : EncodeHparams(session, Now()))
    records.insert(records.end(), record.begin(), record.end());
  Append(records);
}

void EventWriter::Append(const std::vector<std::byte>& records) {
  const std::lock_guard lock(mutex_);
  if (unwritten_.size() + records.size() > kMostUnwritten) (void)WriteUnwritten();
  // Whole records are lost, never parts of one.
  if (unwritten_.size() + records.size() > kMostUnwritten) return;
  unwritten_.insert(unwritten_.end(), records.begin(), records.end());
  const int error = WriteUnwritten();
  if (error != 0 && !is_reported_) {
    Log(LogLevel::kWarning,
        fmt::format("events are not written to {}: {}; the run goes on, and up to {} wait for "
                    "room (further failures are not reported)",
                    path_.string(), std::generic_category().message(error),
                    HumanBytes(kMostUnwritten)));
  }
  is_reported_ = error != 0;
}

int EventWriter::WriteUnwritten() {
  std::size_t done = 0;
  int error = 0;
  while (done < unwritten_.size() && error == 0) {
    const Written written = file_->Write(std::span(unwritten_).subspan(done));
    done += written.bytes;
    if (written.error == EINTR) continue;
    error = written.error == 0 && written.bytes == 0 ? ENOSPC : written.error;
  }
  unwritten_.erase(unwritten_.begin(), unwritten_.begin() + static_cast<std::ptrdiff_t>(done));
  return error;
}

void EventWriter::Sync() {
  const std::lock_guard lock(mutex_);
  if (const int error = WriteUnwritten(); error != 0) ThrowFileError("write", path_, error);
  file_->Sync();
}

std::vector<Scalar> ReadScalars(const Path& folder, const std::string& tag, FileSystem& files) {
  std::vector<Scalar> scalars;
  const auto keep = [&](std::string_view found, const Scalar& scalar) {
    if (found == tag) scalars.push_back(scalar);
  };
  for (const std::string& name : files.List(folder)) {
    if (name.find(kMark) == std::string::npos) continue;
    const FileView view = files.Map(folder / name);
    RecordReader reader(view.bytes);
    bool is_readable = true;
    while (const auto event = reader.Next()) is_readable &= VisitScalars(*event, keep);
    if (reader.damaged() || !is_readable) {
      Log(LogLevel::kWarning,
          fmt::format("{} is damaged{}; what can be read is used", (folder / name).string(),
                      reader.damaged() ? fmt::format(" from offset {} on", reader.offset())
                                       : " in some events"));
    }
  }
  return scalars;
}

}  // namespace orca::io
