// What the C++ benchmarks share: the dirty protocol, alternation, medians, and the line that is
// printed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace orca::bench {

inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Writes the whole buffer, as a program that computes would have done, so that no call finds it in
/// the caches of the call before. The values depend on rank and round; their sum over ranks is
/// exact.
inline void Dirty(std::span<float> data, int rank, int round) {
  const float base = static_cast<float>(rank + 1 + round % 7);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = base + static_cast<float>(i % 16);
}

/// Ends the program when an element is not the sum over `world` ranks.
inline void CheckSum(std::span<const float> data, int world, int round, const char* who) {
  float base = 0;
  for (int rank = 0; rank < world; ++rank) base += static_cast<float>(rank + 1 + round % 7);
  for (std::size_t i = 0; i < data.size(); ++i) {
    const float expected = base + static_cast<float>(world) * static_cast<float>(i % 16);
    if (data[i] != expected) {
      std::fprintf(stderr, "%s: element %zu is %f, not %f\n", who, i, static_cast<double>(data[i]),
                   static_cast<double>(expected));
      std::exit(1);
    }
  }
}

/// How often to repeat a call that moves `bytes`.
inline int Rounds(std::size_t bytes) {
  if (bytes >= (std::size_t{64} << 20)) return 15;
  if (bytes >= (std::size_t{16} << 20)) return 25;
  if (bytes >= (std::size_t{1} << 20)) return 101;
  return 1001;
}

/// One result: "NAME ours_us=… peer_us=… ratio=…"; bench/run.py reads it.
inline void Report(const std::string& name, const std::vector<double>& ours,
                   const std::vector<double>& peer) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(peer[i] / ours[i]);
  std::printf("RESULT %s ours_us=%.2f peer_us=%.2f ratio=%.3f\n", name.c_str(), Median(ours) * 1e6,
              Median(peer) * 1e6, Median(ratios));
  std::fflush(stdout);
}

}  // namespace orca::bench
