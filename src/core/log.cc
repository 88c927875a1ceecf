#include "orca/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace orca {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

std::unique_ptr<spdlog::logger> MakeLogger() {
  auto logger =
      std::make_unique<spdlog::logger>("orca", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%n: %v");
  const char* wanted = std::getenv("ORCA_LOG");
  const std::string level = wanted == nullptr ? "info" : wanted;
  logger->set_level(spdlog::level::from_str(level));
  if (level != "off" && logger->level() == spdlog::level::off) {
    logger->set_level(spdlog::level::info);
    logger->warn("ORCA_LOG={} is not a level; use debug, info, warning, error or off", level);
  }
  return logger;
}

struct Output {
  std::mutex mutex;
  std::unique_ptr<spdlog::logger> logger = MakeLogger();
  std::vector<LogFooter*> footers;
};

Output& TheOutput() {
  // Never destroyed: threads may log while the process ends.
  static Output* const output = new Output;
  return *output;
}

}  // namespace

void Log(LogLevel level, std::string_view message) {
  Output& output = TheOutput();
  if (!output.logger->should_log(ToSpdlog(level))) return;
  const std::lock_guard lock(output.mutex);
  for (LogFooter* footer : output.footers) footer->Erase();
  output.logger->log(ToSpdlog(level), message);
}

LogFooter::LogFooter() {
  Output& output = TheOutput();
  const std::lock_guard lock(output.mutex);
  output.footers.push_back(this);
}

LogFooter::~LogFooter() {
  Output& output = TheOutput();
  const std::lock_guard lock(output.mutex);
  Erase();
  std::erase(output.footers, this);
}

void LogFooter::Show(std::string_view lines) {
  const std::lock_guard lock(TheOutput().mutex);
  Erase();
  std::fwrite(lines.data(), 1, lines.size(), stderr);
  std::fflush(stderr);
  drawn_ = static_cast<std::size_t>(std::count(lines.begin(), lines.end(), '\n'));
}

void LogFooter::Clear() {
  const std::lock_guard lock(TheOutput().mutex);
  Erase();
}

void LogFooter::Erase() {
  if (drawn_ == 0) return;
  // To the first column, that many lines up, and nothing from there on.
  std::fprintf(stderr, "\r\x1b[%zuA\x1b[J", std::exchange(drawn_, 0));
  std::fflush(stderr);
}

}  // namespace orca
