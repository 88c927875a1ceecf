#include "orca/learn/update.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "learn/update_table.h"
#include "orca/comm/kernels.h"
#include "orca/core/error.h"

namespace orca::learn {
namespace {

// The slowest first.
#if defined(__x86_64__)
constexpr std::array kAllUpdates = {&baseline::kUpdates, &avx2::kUpdates, &avx512::kUpdates};
#else
constexpr std::array kAllUpdates = {&baseline::kUpdates};
#endif

constexpr std::uintptr_t kLine = 64;
// Results of so many bytes will not be in a cache when they are read.
constexpr std::size_t kManyBytes = std::size_t{8} << 20;

/// Whether stores past the caches are faster: a quarter for large staging areas, which would
/// otherwise be loaded before they are written. What was just read is in the caches anyway.
bool Streams(std::size_t states, std::size_t bytes, const UpdateSpan& from, const UpdateSpan& to) {
#if defined(__x86_64__)
  const auto fits = [](const void* read, const void* written) {
    return read != written && reinterpret_cast<std::uintptr_t>(written) % kLine == 0;
  };
  bool all = bytes >= kManyBytes && fits(from.weights, to.weights);
  for (std::size_t i = 0; i < states; ++i) all = all && fits(from.states[i], to.states[i]);
  return all;
#else
  return false;
#endif
}

// Not std::pow, whose last bit may depend on the processor.
double Power(double base, double exponent) {
  double result = 1;
  for (auto left = static_cast<std::uint64_t>(exponent); left != 0; left >>= 1) {
    if ((left & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

void CheckPointers(const UpdateSpan& span, std::size_t states, const char* which) {
  if (span.weights == nullptr)
    throw Error(Code::kInvalidArgument,
                fmt::format("'{}' has no weights; give a pointer to them", which));
  for (std::size_t i = 0; i < states; ++i)
    if (span.states[i] == nullptr)
      throw Error(
          Code::kInvalidArgument,
          fmt::format("'{}' has no state {} of {}; give a pointer to each", which, i + 1, states));
}

void Check(const UpdateRule& rule, DType dtype, std::span<const void* const> gradients,
           std::span<const double> factors, const UpdateSpan& from, const UpdateSpan& to) {
  if (!Supports(rule.kind, dtype))
    throw Error(Code::kInvalidArgument,
                fmt::format("kind {} is not updated in {}; use float32 or float64, or torch.optim",
                            static_cast<int>(rule.kind), Name(dtype)));
  if (gradients.empty())
    throw Error(Code::kInvalidArgument, "an update needs a gradient; give at least one");
  if (factors.size() != gradients.size())
    throw Error(Code::kInvalidArgument,
                fmt::format("{} factors for {} gradients; give one a gradient", factors.size(),
                            gradients.size()));
  if (std::ranges::find(gradients, nullptr) != gradients.end())
    throw Error(Code::kInvalidArgument, "a gradient is null; leave out sources that have none");
  // 2^53: above it, not every whole number is a double.
  const bool counts = rule.step >= 1 && rule.step <= 9007199254740992.0;
  if (rule.kind != UpdateKind::kSgd && !(counts && rule.step == std::floor(rule.step)))
    throw Error(Code::kInvalidArgument,
                fmt::format("step {} is not a whole number from 1; give the number of this step",
                            rule.step));
  const std::size_t states = StateCount(rule);
  CheckPointers(from, rule.kind == UpdateKind::kSgd && rule.first ? 0 : states, "from");
  CheckPointers(to, states, "to");
}

}  // namespace

bool Supports(UpdateKind kind, DType dtype) {
  return kind <= UpdateKind::kAdamW && (dtype == DType::kFloat32 || dtype == DType::kFloat64);
}

std::size_t StateCount(const UpdateRule& rule) {
  if (rule.kind == UpdateKind::kSgd) return rule.momentum != 0 ? 1 : 0;
  return rule.amsgrad ? 3 : 2;
}

std::span<const UpdateTable* const> RunnableUpdates() {
  // What runs one of the sets runs those before it.
  static const std::size_t count = [] {
    const auto best = std::ranges::find(kAllUpdates, std::string_view(comm::KernelIsa()),
                                        [](const UpdateTable* table) { return table->isa; });
    return static_cast<std::size_t>(best - kAllUpdates.begin()) + 1;
  }();
  return std::span(kAllUpdates).first(std::min(count, kAllUpdates.size()));
}

void UpdateWith(const UpdateTable& table, const UpdateRule& rule, DType dtype,
                std::span<const void* const> gradients, std::span<const double> factors,
                const UpdateSpan& from, const UpdateSpan& to, std::size_t count) {
  if (count == 0) return;
  Check(rule, dtype, gradients, factors, from, to);
  const std::size_t states = StateCount(rule);
  const bool is_sgd = rule.kind == UpdateKind::kSgd;
  const bool decouples = rule.kind == UpdateKind::kAdamW;
  const UpdateCall call = {
      .gradients = gradients.data(),
      .factors = factors.data(),
      .sources = gradients.size(),
      .from = {from.weights, from.states[0], from.states[1], from.states[2]},
      .to = {to.weights, to.states[0], to.states[1], to.states[2]},
      .written = 1 + states,
      .count = count,
      .streams = Streams(states, count * SizeOf(dtype), from, to),
      .clips = rule.clips,
      .scales = rule.scale != 1,
      .negates = rule.maximize,
      .clip_low = rule.clip_low,
      .clip_high = rule.clip_high,
      .scale = rule.scale,
      .decay = decouples ? 0 : rule.weight_decay,
      .has_momentum = rule.momentum != 0,
      .nesterov = rule.nesterov,
      .first = rule.first,
      .lr = rule.lr,
      .momentum = rule.momentum,
      .undamped = 1 - rule.dampening,
      .amsgrad = rule.amsgrad,
      .shrink = decouples ? 1 - rule.lr * rule.weight_decay : 1,
      .beta1 = rule.beta1,
      .beta2 = rule.beta2,
      .eps = rule.eps,
      .step_size = is_sgd ? 0 : rule.lr / (1 - Power(rule.beta1, rule.step)),
      .root_correction = is_sgd ? 0 : std::sqrt(1 - Power(rule.beta2, rule.step)),
  };
  if (dtype == DType::kFloat32) {
    (is_sgd ? table.sgd32 : table.adam32)(call);
  } else {
    (is_sgd ? table.sgd64 : table.adam64)(call);
  }
}

void Update(const UpdateRule& rule, DType dtype, std::span<const void* const> gradients,
            std::span<const double> factors, const UpdateSpan& from, const UpdateSpan& to,
            std::size_t count) {
  UpdateWith(*RunnableUpdates().back(), rule, dtype, gradients, factors, from, to, count);
}

}  // namespace orca::learn
