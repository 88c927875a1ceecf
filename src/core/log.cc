#include "orca/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

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

}  // namespace

void Log(LogLevel level, std::string_view message) {
  // Never destroyed: threads may log while the process ends.
  static spdlog::logger* const logger = MakeLogger().release();
  logger->log(ToSpdlog(level), message);
}

}  // namespace orca
