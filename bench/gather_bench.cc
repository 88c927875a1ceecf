// Shuffled batches of uint8 images as float32, gathered by one thread, against memcpy of as many
// bytes: what one side reads and writes together is what the other reads and writes.
//   gather_bench [ROWS [BATCH]]
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "harness.h"
#include "orca/data/array_store.h"

namespace {

using orca::bench::Now;
using orca::data::ArrayStore;
using orca::data::Batch;

constexpr std::size_t kPixels = 28 * 28;
constexpr std::uint64_t kEpochs = 9;

[[noreturn]] void Fail(const char* what, double got, double wanted) {
  std::fprintf(stderr, "%s: the values add up to %f, not to %f\n", what, got, wanted);
  std::exit(1);
}

std::uint8_t Pixel(std::size_t i) { return static_cast<std::uint8_t>((i * 2654435761U) >> 13); }

/// Seconds of one epoch of batches; the check of what they hold is not counted.
double GatherEpoch(const ArrayStore& store, std::uint64_t batch_size, std::uint64_t epoch,
                   double wanted) {
  const auto loader = store.Batches({.batch_size = batch_size,
                                     .seed = 1,
                                     .epoch = epoch,
                                     .ahead = 0,
                                     .conversions = {orca::data::ToFloat32{.scale = 2.0F}}});
  double seconds = 0;
  double sum = 0;
  while (true) {
    const double start = Now();
    const std::shared_ptr<const Batch> batch = loader->Next();
    seconds += Now() - start;
    if (!batch) break;
    const std::span bytes = batch->columns[0].values;
    const std::span floats(reinterpret_cast<const float*>(bytes.data()),
                           bytes.size() / sizeof(float));
    sum += std::accumulate(floats.begin(), floats.end(), 0.0);
  }
  if (sum != 2 * wanted) Fail("gather", sum, 2 * wanted);
  return seconds;
}

/// Seconds to copy `source` in pieces to the same place; the check of the copies is not counted.
double CopyEpoch(const std::vector<std::byte>& source, std::vector<std::byte>& target,
                 double wanted) {
  double seconds = 0;
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < source.size(); at += target.size()) {
    const std::size_t bytes = std::min(target.size(), source.size() - at);
    const double start = Now();
    std::memcpy(target.data(), source.data() + at, bytes);
    seconds += Now() - start;
    for (std::size_t i = 0; i < bytes; ++i) sum += static_cast<std::uint64_t>(target[i]);
  }
  if (static_cast<double>(sum) != wanted) Fail("memcpy", static_cast<double>(sum), wanted);
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t rows = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 60000;
  const std::size_t batch_size = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64;
  const auto store = ArrayStore::Create({{"image", orca::DType::kUInt8, {28, 28}}});
  double images_sum = 0;
  {
    std::vector<std::uint8_t> images(rows * kPixels);
    for (std::size_t i = 0; i < images.size(); ++i) images[i] = Pixel(i);
    for (const std::uint8_t pixel : images) images_sum += pixel;
    const orca::data::Column columns[] = {{std::as_bytes(std::span(images))}};
    store->Put(rows, columns);
  }
  // A row is read as bytes and written as floats; a copy reads and writes the same number.
  constexpr std::size_t kRowTraffic = kPixels * (sizeof(std::uint8_t) + sizeof(float));
  std::vector<std::byte> source(rows * kRowTraffic / 2);
  std::vector<std::byte> target(batch_size * kRowTraffic / 2);
  double source_sum = 0;
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::byte{Pixel(i)};
  for (const std::byte value : source) source_sum += static_cast<double>(value);

  const std::size_t steps = (rows + batch_size - 1) / batch_size;
  std::vector<double> ours;
  std::vector<double> peer;
  for (std::uint64_t epoch = 0; epoch <= kEpochs; ++epoch) {
    const double gathered = GatherEpoch(*store, batch_size, epoch, images_sum);
    const double copied = CopyEpoch(source, target, source_sum);
    if (epoch == 0) continue;  // the first one warms up
    ours.push_back(gathered / static_cast<double>(steps));
    peer.push_back(copied / static_cast<double>(steps));
  }
  orca::bench::Report("data-memcpy/" + std::to_string(batch_size), ours, peer);
  return 0;
}
