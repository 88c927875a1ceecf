#include "comm/options.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

#include "orca/comm/communicator.h"

namespace orca::comm {
namespace {

[[noreturn]] void Refuse(std::string_view name, const std::string& value, std::string_view wanted) {
  throw Error(Code::kInvalidArgument, fmt::format("option {}={} is not {}", name, value, wanted));
}

double ParseNumber(std::string_view name, const std::string& value, std::string_view wanted) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || !std::isfinite(number))
    Refuse(name, value, wanted);
  return number;
}

void SetSeconds(std::chrono::milliseconds& target, std::string_view name,
                const std::string& value) {
  constexpr std::string_view kWanted = "a positive number of seconds (at most 1e9)";
  const double seconds = ParseNumber(name, value, kWanted);
  if (seconds < 0.001 || seconds > 1e9) Refuse(name, value, kWanted);
  target = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

constexpr std::string_view kTransports = "auto or tcp";
constexpr std::string_view kStreams = "a whole number from 0 (chosen by the engine) to 16";
constexpr int kMaxStreams = 16;

bool IsTransport(const std::string& name) { return name == "auto" || name == "tcp"; }

struct Option {
  std::string_view name;
  std::string_view variable;
  void (*set)(CommOptions&, std::string_view name, const std::string& value);
};

// The one list of options that can be given as text.
constexpr std::array kOptions{
    Option{"timeout", "ORCA_TIMEOUT",
           [](CommOptions& o, std::string_view n, const std::string& v) {
             SetSeconds(o.timeout, n, v);
           }},
    Option{"connect_timeout", "ORCA_CONNECT_TIMEOUT",
           [](CommOptions& o, std::string_view n, const std::string& v) {
             SetSeconds(o.connect_timeout, n, v);
           }},
    Option{"peer_timeout", "ORCA_PEER_TIMEOUT",
           [](CommOptions& o, std::string_view n, const std::string& v) {
             SetSeconds(o.peer_timeout, n, v);
           }},
    Option{"warn_after", "ORCA_WARN_AFTER",
           [](CommOptions& o, std::string_view n, const std::string& v) {
             SetSeconds(o.warn_after, n, v);
           }},
    Option{"transport", "ORCA_TRANSPORT",
           [](CommOptions& o, std::string_view n, const std::string& v) {
             if (!IsTransport(v)) Refuse(n, v, kTransports);
             o.transport = v;
           }},
    Option{"host", "ORCA_HOST",
           [](CommOptions& o, std::string_view, const std::string& v) { o.host = v; }},
    Option{"address", "ORCA_ADDRESS",
           [](CommOptions& o, std::string_view, const std::string& v) { o.address = v; }},
    Option{"streams", "ORCA_STREAMS",
           [](CommOptions& o, std::string_view n, const std::string& v) {
             const double streams = ParseNumber(n, v, kStreams);
             if (streams < 0 || streams > kMaxStreams || streams != std::floor(streams))
               Refuse(n, v, kStreams);
             o.streams = static_cast<int>(streams);
           }},
    Option{"wire_bf16", "ORCA_WIRE_BF16",
           [](CommOptions& o, std::string_view n, const std::string& v) {
             if (v != "0" && v != "1" && v != "true" && v != "false")
               Refuse(n, v, "1, 0, true or false");
             o.wire_bf16 = v == "1" || v == "true";
           }},
};

}  // namespace

void CheckOptions(const CommOptions& options) {
  const auto check_time = [](const char* name, std::chrono::milliseconds value) {
    if (value.count() <= 0) Refuse(name, fmt::format("{} ms", value.count()), "a positive time");
  };
  check_time("timeout", options.timeout);
  check_time("connect_timeout", options.connect_timeout);
  check_time("peer_timeout", options.peer_timeout);
  check_time("warn_after", options.warn_after);
  if (!IsTransport(options.transport)) Refuse("transport", options.transport, kTransports);
  if (options.streams < 0 || options.streams > kMaxStreams) {
    Refuse("streams", std::to_string(options.streams), kStreams);
  }
}

CommOptions OptionsFromEnvironment() {
  CommOptions options;
  for (const Option& option : kOptions) {
    if (const char* value = std::getenv(std::string(option.variable).c_str())) {
      option.set(options, option.variable, value);
    }
  }
  return options;
}

void SetOption(CommOptions& options, const std::string& name, const std::string& value) {
  std::string known;
  for (const Option& option : kOptions) {
    if (option.name == name) {
      option.set(options, name, value);
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(option.name);
  }
  throw Error(Code::kInvalidArgument,
              fmt::format("there is no option {}; there are {}", name, known));
}

}  // namespace orca::comm
