// A step of Adam by one thread, in place and to a staging area, against a pass that loads and
// stores the same bytes and computes next to nothing, in turns.
//   update_bench [PARAMETERS]
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>
#include <cmath>
#include <new>
#include <string>
#include <vector>

#include "harness.h"
#include "orca/learn/update.h"

namespace {

using orca::bench::Now;
using orca::learn::UpdateSpan;

#define ORCA_BENCH_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))

constexpr int kRounds = 15;
constexpr float kGradient = 0.5F;
constexpr double kRate = 0.25;

/// Floats that begin at a page, which the system may make a large one.
class Floats {
 public:
  explicit Floats(std::size_t count)
      : data_(static_cast<float*>(::operator new(count * sizeof(float), kAlign))), count_(count) {}
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { ::operator delete(data_, kAlign); }

  float* data() const { return data_; }
  void Fill(float value) const { std::fill_n(data_, count_, value); }

 private:
  static constexpr std::align_val_t kAlign{4096};
  float* data_;
  std::size_t count_;
};

/// Weights and states.
struct Model {
  explicit Model(std::size_t count) : weights(count), averages(count), squares(count) {}

  void Fill() const {
    weights.Fill(1);
    averages.Fill(0);
    squares.Fill(0);
  }
  std::array<const Floats*, 3> All() const { return {&weights, &averages, &squares}; }
  UpdateSpan span() const {
    return {.weights = weights.data(), .states = {averages.data(), squares.data()}};
  }

  Floats weights;
  Floats averages;
  Floats squares;
};

// The limit: which way is the fastest depends on the machine, so that all are tried: all four
// streams at once, or strips of one after the other; stores through the caches or past them.
struct Way {
  std::size_t strip = 0;  ///< Floats of one stream at a time; 0: all streams at once.
  bool streams = false;   ///< Stores go past the caches.

  std::string Name() const {
    return (strip == 0 ? "all at once"
                       : "strips of " + std::to_string(strip * sizeof(float)) + " bytes") +
           (streams ? ", streaming stores" : ", plain stores");
  }
};

ORCA_BENCH_EVERY_CPU void AddToAll(const float* gradient, const std::array<const float*, 3>& from,
                                   const std::array<float*, 3>& to, std::size_t count) {
  const auto [a, b, c] = from;
  const auto [x, y, z] = to;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const float value = gradient[i];
    x[i] = a[i] + value;
    y[i] = b[i] + value;
    z[i] = c[i] + value;
  }
}

ORCA_BENCH_EVERY_CPU void Add(float* to, const float* a, const float* b, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

// Whole vectors of 16 bytes, which the write-combining buffers join.
void AddPastCaches(float* to, const float* a, const float* b, std::size_t count) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < count; i += 4)
    _mm_stream_ps(to + i, _mm_add_ps(_mm_load_ps(a + i), _mm_load_ps(b + i)));
#else
  Add(to, a, b, count);
#endif
}

void Move(const Way& way, const Floats& gradient, const Model& from, const Model& to,
          std::size_t count) {
  if (way.strip == 0) {
    AddToAll(gradient.data(), {from.weights.data(), from.averages.data(), from.squares.data()},
             {to.weights.data(), to.averages.data(), to.squares.data()}, count);
    return;
  }
  for (std::size_t begin = 0; begin < count; begin += way.strip) {
    const std::size_t size = std::min(way.strip, count - begin);
    for (std::size_t i = 0; i < 3; ++i)
      (way.streams ? AddPastCaches : Add)(to.All()[i]->data() + begin,
                                          from.All()[i]->data() + begin, gradient.data() + begin,
                                          size);
  }
}

void Check(const Floats& floats, std::size_t count, double wanted, const char* what) {
  for (std::size_t i = 0; i < count; i += 997) {
    const double got = floats.data()[i];
    if (std::fabs(got - wanted) > 1e-6) {
      std::fprintf(stderr, "%s: element %zu is %f, not %f\n", what, i, got, wanted);
      std::exit(1);
    }
  }
}

/// In turns, each with fresh values.
void Compare(const std::string& name, const Floats& gradient, const Model& from, const Model& to,
             std::size_t count) {
  std::vector<Way> ways = {{}};
  for (const std::size_t strip : {128, 256, 1024, 4096})
    for (const bool streams : {false, true}) ways.push_back({.strip = strip, .streams = streams});
  const orca::learn::UpdateRule rule{.kind = orca::learn::UpdateKind::kAdam, .lr = kRate};
  const void* const gradients[] = {gradient.data()};
  const double factors[] = {1.0};
  std::vector<double> ours;
  std::vector<std::vector<double>> limits(ways.size());
  const auto measure = [&](auto call, double wanted, std::vector<double>* times) {
    from.Fill();
    if (&to != &from) to.Fill();
    gradient.Fill(kGradient);
    const double start = Now();
    call();
    const double seconds = Now() - start;
    Check(to.weights, count, wanted, name.c_str());
    if (times != nullptr) times->push_back(seconds);
  };
  for (int round = -1; round < kRounds; ++round) {
    // The first step of Adam is the rate, whatever the gradient.
    measure(
        [&] {
          Update(rule, orca::DType::kFloat32, gradients, factors, from.span(), to.span(), count);
        },
        1 - kRate, round < 0 ? nullptr : &ours);
    for (std::size_t w = 0; w < ways.size(); ++w)
      measure([&] { Move(ways[w], gradient, from, to, count); }, 1 + double{kGradient},
              round < 0 ? nullptr : &limits[w]);
  }
  std::size_t best = 0;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const double median = orca::bench::Median(limits[w]);
    if (median < orca::bench::Median(limits[best])) best = w;
    std::fprintf(stderr, "%s: %s %.1f us\n", name.c_str(), ways[w].Name().c_str(), median * 1e6);
  }
  orca::bench::Report(name, ours, limits[best]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) / 16 * 16 : 25'000'000;
  const Floats gradient(count);
  const Model model(count);
  const Model staged(count);
  Compare("update-limit", gradient, model, model, count);
  Compare("update-staged-limit", gradient, model, staged, count);
  return 0;
}
