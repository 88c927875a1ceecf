// Shards of two files: joined, scaled by the workers of this machine, and read in batches.
#include <orca/orca.h>

#include <cstdio>
#include <vector>

namespace {

using orca::data::Arrays;
using orca::data::Shard;
using orca::data::ViewAs;
using orca::data::XShards;

// Runs on a worker, which reads the shard where it is.
Arrays Scaled(const Shard& shard) {
  const auto pixels = ViewAs<std::uint8_t>(shard, "image");
  const auto labels = ViewAs<std::uint8_t>(shard, "label");
  std::vector<float> scaled;
  for (const std::uint8_t pixel : pixels) scaled.push_back(static_cast<float>(pixel) / 255.0F);
  return Arrays()
      .Add("image", std::move(scaled), shard.specs()[0].row_shape)
      .Add("label", std::vector<std::int64_t>(labels.begin(), labels.end()));
}

// A small file, as those of MNIST are: row i holds i.
void WriteFile(const char* path, std::int64_t rows, std::int64_t row_bytes) {
  std::vector<std::uint8_t> bytes;
  for (std::int64_t i = 0; i < rows * row_bytes; ++i)
    bytes.push_back(static_cast<std::uint8_t>(i / row_bytes));
  const auto type = orca::io::TensorType::kUInt8;
  orca::io::WriteIdx(path, {{"", type, {rows, row_bytes}}, std::as_bytes(std::span(bytes))});
}

}  // namespace

int main(int argc, char** argv) {
  orca::Init(argc, argv);  // In a worker it does not return.
  WriteFile("images.idx", 1000, 16);
  WriteFile("labels.idx", 1000, 1);
  const auto context = orca::Context::Start({});
  const auto read =
      XShards::ReadIdx({{"image", "images.idx"}, {"label", "labels.idx"}}, 4, context->shards());
  const auto scaled = orca::Transform(*context, read, Scaled);
  double sum = 0;
  std::uint64_t rows = 0;
  const auto batches = scaled.Batches({.batch_size = 64, .seed = 1});
  while (const auto batch = batches->Next()) {
    const auto* pixels = reinterpret_cast<const float*>(batch->columns[0].values.data());
    for (std::uint64_t i = 0; i < batch->rows * 16; ++i) sum += pixels[i];
    rows += batch->rows;
  }
  std::printf("%llu rows in %zu shards, mean %.4f\n", static_cast<unsigned long long>(rows),
              scaled.shards().size(), sum / (16.0 * static_cast<double>(rows)));
}
