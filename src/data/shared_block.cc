#include "orca/data/shared_block.h"

#include <cstring>
#include <utility>

namespace orca::data {

std::shared_ptr<SharedBlock> SharedBlock::Create(const std::shared_ptr<ShardHome>& home,
                                                 std::size_t bytes) {
  ShardMemory memory = home->New(bytes, Backing::kMemory);
  auto hold = ShardHold::Adopt(home, memory.id);
  std::shared_ptr<SharedBlock> block(new SharedBlock(std::move(hold), std::move(memory)));
  // Memory that is used again has anything in it.
  std::memset(block->bytes().data(), 0, block->bytes().size());
  return block;
}

std::shared_ptr<SharedBlock> SharedBlock::Open(std::shared_ptr<const ShardHold> hold) {
  ShardMemory memory = hold->home()->OpenToWrite(hold->id());
  return std::shared_ptr<SharedBlock>(new SharedBlock(std::move(hold), std::move(memory)));
}

SharedBlock::SharedBlock(std::shared_ptr<const ShardHold> hold, ShardMemory memory)
    : hold_(std::move(hold)), memory_(SharedMemory::Map(std::move(memory.fd), memory.size)) {}

}  // namespace orca::data
