#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "orca/core/unique_fd.h"
#include "orca/io/file_system.h"
#include "orca/tune/trial_folder.h"

namespace orca::tune {
namespace {

using Fields = nlohmann::ordered_json;
using Path = std::filesystem::path;

constexpr std::string_view kBegin = "train_func_";

std::string ToText(const Fields& value) {
  return value.dump(-1, ' ', false, Fields::error_handler_t::replace);
}

// Opens a file, adds what `text` makes of its size, and closes it.
template <class Text>
void Write(const Path& path, int how, Text text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0600));
  struct ::stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) io::ThrowFileError("write", path, errno);
  const std::string bytes = text(status.st_size);
  std::string_view left = bytes;
  while (!left.empty()) {
    const ssize_t written = ::write(file.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) io::ThrowFileError("write", path, written == 0 ? ENOSPC : errno);
    left.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted.append(letter == '"' ? 2 : 1, letter);
  return quoted + "\"";
}

// The keys of a row, or its values.
std::string CsvLine(const Fields& row, bool keys) {
  std::string line;
  for (const auto& [key, value] : row.items()) {
    if (!line.empty()) line += ',';
    line += CsvField(keys ? key : value.is_string() ? value.get<std::string>() : ToText(value));
  }
  return line + "\r\n";
}

}  // namespace

TrialFolder::TrialFolder(Path folder, std::string metric, double began)
    : folder_(std::move(folder)), metric_(std::move(metric)), began_(began) {}

void TrialFolder::Begin(std::string_view config, Hparams hparams) {
  if (::mkdir(folder_.c_str(), 0777) != 0 && errno != EEXIST)
    io::ThrowFileError("make the folder", folder_, errno);
  const Path beside = folder_ / ".params.json.tmp";
  Write(beside, O_TRUNC, [config](off_t) { return std::string(config); });
  if (::rename(beside.c_str(), (folder_ / "params.json").c_str()) != 0)
    io::ThrowFileError("write", folder_ / "params.json", errno);
  hparams_ = std::move(hparams);
  events_ = std::make_unique<io::EventWriter>(folder_);
}

void TrialFolder::Add(const Report& report) {
  std::string id = folder_.filename().string();
  if (id.starts_with(kBegin)) id.erase(0, kBegin.size());
  Fields row;
  row["training_iteration"] = report.step;
  row[metric_] = report.value;
  row["best_" + metric_] = report.best;
  row["checkpoint"] = "best.ckpt";
  row["time_total_s"] = report.seconds;
  row["trial_id"] = id;
  Write(folder_ / "result.json", O_APPEND, [&](off_t) { return ToText(row) + "\n"; });
  Write(folder_ / "progress.csv", O_APPEND,
        [&](off_t size) { return (size == 0 ? CsvLine(row, true) : "") + CsvLine(row, false); });
  if (!events_) return;
  std::vector<std::pair<std::string, double>> numbers;
  for (const auto& [key, value] : row.items()) {
    if (value.is_number() && std::isfinite(value.get<double>()))
      numbers.emplace_back("ray/tune/" + key, value.get<double>());
  }
  events_->AddScalars(numbers, report.step);
}

void TrialFolder::End(bool has_failed) {
  if (const auto events = std::exchange(events_, nullptr)) {
    events->AddHparams({.hparams = std::move(hparams_), .has_failed = has_failed, .began = began_});
  }
}

}  // namespace orca::tune
