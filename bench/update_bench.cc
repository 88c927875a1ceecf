// A step of Adam by one thread, in place and to a staging area, and one by two threads with a
// gradient of each of two workers, against a pass that loads and stores the same bytes and
// computes next to nothing, in turns.
//   update_bench [PARAMETERS] [one | pair]
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>
#include <cmath>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "harness.h"
#include "orca/learn/redo_log.h"
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

ORCA_BENCH_EVERY_CPU void AddToAll(const float* gradient, const float* other,
                                   const std::array<const float*, 3>& from,
                                   const std::array<float*, 3>& to, std::size_t count) {
  const auto [a, b, c] = from;
  const auto [x, y, z] = to;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const float value = other == nullptr ? gradient[i] : gradient[i] + other[i];
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

using Gradients = std::vector<const Floats*>;

/// Elements [begin, end) of all streams.
void Move(const Way& way, const Gradients& gradients, const Model& from, const Model& to,
          std::size_t begin, std::size_t end) {
  const float* const first = gradients[0]->data();
  const float* const second = gradients.size() > 1 ? gradients[1]->data() : nullptr;
  if (way.strip == 0) {
    std::array<const float*, 3> sources{};
    std::array<float*, 3> targets{};
    for (std::size_t i = 0; i < 3; ++i) {
      sources[i] = from.All()[i]->data() + begin;
      targets[i] = to.All()[i]->data() + begin;
    }
    AddToAll(first + begin, second == nullptr ? nullptr : second + begin, sources, targets,
             end - begin);
    return;
  }
  alignas(64) std::array<float, 4096> sum;
  for (; begin < end; begin += way.strip) {
    const std::size_t size = std::min(way.strip, end - begin);
    const float* gradient = first + begin;
    if (second != nullptr) {
      Add(sum.data(), gradient, second + begin, size);
      gradient = sum.data();
    }
    for (std::size_t i = 0; i < 3; ++i)
      (way.streams ? AddPastCaches : Add)(to.All()[i]->data() + begin,
                                          from.All()[i]->data() + begin, gradient, size);
  }
}

/// One thread a gradient, each with its share of the elements.
template <typename Work>
void OneThreadEach(std::size_t threads, std::size_t count, const Work& work) {
  const std::size_t part = (count / threads + 15) / 16 * 16;
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < threads; ++i)
    others.emplace_back([&, i] { work(i * part, std::min(count, (i + 1) * part)); });
  work(0, std::min(count, part));
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

using Step = std::function<void(const orca::learn::UpdateRule&)>;

/// In turns, each with fresh values: a step against moving the same bytes.
void Compare(const std::string& name, const Gradients& gradients, const Model& from,
             const Model& to, std::size_t count, const Step& step) {
  std::vector<Way> ways = {{}};
  for (const std::size_t strip : {128, 256, 1024, 4096})
    for (const bool streams : {false, true}) ways.push_back({.strip = strip, .streams = streams});
  const orca::learn::UpdateRule rule{.kind = orca::learn::UpdateKind::kAdam, .lr = kRate};
  std::vector<double> ours;
  std::vector<std::vector<double>> limits(ways.size());
  const auto measure = [&](auto call, double wanted, std::vector<double>* times) {
    from.Fill();
    if (&to != &from) to.Fill();
    for (const Floats* gradient : gradients) gradient->Fill(kGradient);
    const double start = Now();
    call();
    const double seconds = Now() - start;
    Check(to.weights, count, wanted, name.c_str());
    if (times != nullptr) times->push_back(seconds);
  };
  for (int round = -1; round < kRounds; ++round) {
    // The first step of Adam is the rate, whatever the gradient.
    measure([&] { step(rule); }, 1 - kRate, round < 0 ? nullptr : &ours);
    for (std::size_t w = 0; w < ways.size(); ++w)
      measure(
          [&] {
            OneThreadEach(gradients.size(), count, [&](std::size_t begin, std::size_t end) {
              Move(ways[w], gradients, from, to, begin, end);
            });
          },
          1 + kGradient * static_cast<double>(gradients.size()), round < 0 ? nullptr : &limits[w]);
  }
  std::size_t best = 0;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const double median = orca::bench::Median(limits[w]);
    if (median < orca::bench::Median(limits[best])) best = w;
    std::fprintf(stderr, "%s: %s %.1f us\n", name.c_str(), ways[w].Name().c_str(), median * 1e6);
  }
  orca::bench::Report(name, ours, limits[best]);
}

void CompareUpdate(const std::string& name, const Floats& gradient, const Model& from,
                   const Model& to, std::size_t count) {
  Compare(name, {&gradient}, from, to, count, [&](const orca::learn::UpdateRule& rule) {
    const void* const gradients[] = {gradient.data()};
    const double factors[] = {1.0};
    Update(rule, orca::DType::kFloat32, gradients, factors, from.span(), to.span(), count);
  });
}

/// The step of two workers as it is committed.
void CompareCommit(const Gradients& gradients, const Model& model, std::size_t count) {
  using orca::learn::RedoLog;
  const RedoLog::Shape shape{.world = static_cast<int>(gradients.size()), .parts = 1};
  const Floats block(RedoLog::BlockSize(shape) / sizeof(float) + 1);
  block.Fill(0);
  const auto bytes = [count](const Floats* floats) {
    return std::as_writable_bytes(std::span(floats->data(), count));
  };
  RedoLog log(std::as_writable_bytes(std::span(block.data(), RedoLog::BlockSize(shape) / 4)), shape,
              {bytes(&model.weights), bytes(&model.averages), bytes(&model.squares)});
  orca::learn::JoinedGradient joined;
  for (const Floats* gradient : gradients) {
    joined.banks.push_back(bytes(gradient).data());
    joined.factors.push_back(1.0 / static_cast<double>(gradients.size()));
  }
  std::uint64_t number = 0;
  Compare("update-commit-limit", gradients, model, model, count,
          [&](const orca::learn::UpdateRule& rule) {
            const orca::learn::UpdatePart part{
                .run = {.range = {.begin = 0, .end = count * sizeof(float)}},
                .rule = rule,
                .regions = {1, 2}};
            ++number;
            OneThreadEach(gradients.size(), count, [&](std::size_t begin, std::size_t) {
              log.Update(begin == 0 ? 0 : 1, number, {}, std::span(&part, 1), joined);
            });
          });
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) / 16 * 16 : 25'000'000;
  const std::string which = argc > 2 ? argv[2] : "";
  const Floats gradient(count);
  const Model model(count);
  if (which != "pair") {
    const Model staged(count);
    CompareUpdate("update-limit", gradient, model, model, count);
    CompareUpdate("update-staged-limit", gradient, model, staged, count);
  }
  if (which != "one") {
    const Floats other(count);
    CompareCommit({&gradient, &other}, model, count);
  }
  return 0;
}
