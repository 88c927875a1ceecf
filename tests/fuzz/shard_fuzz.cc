// Takes any bytes for the memory of a shard. What is accepted lies inside of it, and every row can
// be asked for.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "data/shard_head.h"
#include "input.h"
#include "orca/core/error.h"
#include "orca/core/memory_file.h"
#include "orca/data/shard.h"

namespace orca::data {
namespace {

void Read(const Shard& shard) {
  for (std::size_t c = 0; c < shard.specs().size(); ++c) {
    const Column& column = shard.columns()[c];
    unsigned sum = 0;
    for (const std::byte value : column.values) sum += std::to_integer<unsigned>(value);
    for (std::uint64_t row = 0; row < shard.rows() && row < 1000; ++row) {
      sum += column.IsMissing(row) ? 1U : 0U;
      if (shard.specs()[c].kind != ColumnKind::kFixed)
        sum += static_cast<unsigned>(column.Bytes(row).size());
    }
    Require(sum < 0xffffffffU);
  }
}

void Open(std::span<const std::byte> bytes) {
  UniqueFd file = MakeMemoryFile("fuzz", bytes.size());
  const FilePiece all{bytes, 0};
  WriteMemoryFile(file.get(), std::span(&all, 1));
  const auto shelf = ShardShelf::Create();
  shelf->Adopt(1, std::move(file));
  try {
    Read(*Shard::Open(ShardHold::Adopt(shelf, 1)));
  } catch (const Error& error) {
    Require(error.code() == Code::kPeerLost || error.code() == Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace orca::data

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  if (size > 0) orca::data::Open({bytes, bytes + size});
  return 0;
}
