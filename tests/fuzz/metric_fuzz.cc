// Takes any bytes for the state of any metric. What is accepted has a value, and its own state is
// accepted again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "input.h"
#include "orca/core/error.h"
#include "orca/learn/metric.h"

namespace orca::learn {
namespace {

// 0: the known names in their order; the last is AUC with thresholds.
std::unique_ptr<Metric> Choose(std::size_t number) {
  const std::vector<std::string> names = Metric::Names();
  number %= names.size() + 1;
  if (number == names.size()) return Metric::Make("AUC", {.threshold_num = 5});
  return Metric::Make(names[number]);
}

void Merge(std::uint8_t number, std::span<const std::byte> bytes) {
  const auto metric = Choose(number);
  try {
    metric->Merge(bytes);
  } catch (const Error& error) {
    Require(error.code() == Code::kInvalidArgument);
    return;
  }
  const auto again = Choose(number);
  again->Merge(metric->State());
  Require(again->State() == metric->State());
  try {
    Require(!metric->Value().empty());
    metric->Merge(bytes);
  } catch (const Error& error) {
    Require(error.code() == Code::kInvalidArgument);  // NaNs on a curve, or counts run over
  }
}

}  // namespace
}  // namespace orca::learn

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  orca::FuzzInput input(data, size);
  const std::uint8_t number = input.TakeByte();
  orca::learn::Merge(number, input.TakeRest());
  return 0;
}
