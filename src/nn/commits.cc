#include "nn/commits.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "nn/tensors.h"
#include "nn/trained_weights.h"
#include "orca/core/error.h"
#include "orca/core/log.h"
#include "orca/learn/gradient_exchange.h"
#include "orca/learn/redo_log.h"
#include "orca/runtime/program.h"

namespace orca::nn {
namespace {

using learn::FlatLayout;

constexpr std::size_t kCount = sizeof(std::uint64_t);  // of rows, in a note

SharedBlockPointer OpenBlock(std::uint64_t id) {
  return data::SharedBlock::Open(data::ShardHold::Take(Shards(), id));
}

std::uint64_t IdOf(const SharedBlockPointer& block) { return block->hold()->id(); }

Json ReadRecord(const learn::Commit& commit) {
  const auto block = OpenBlock(commit.record);
  const auto* const words = reinterpret_cast<const std::uint8_t*>(block->bytes().data());
  return Json::from_msgpack(words, words + commit.record_bytes);
}

std::vector<std::uint64_t> BlocksOf(const Json& record) {
  std::vector<std::uint64_t> ids;
  for (const char* name : {"weights", "gradients", "undo", "redo"})
    if (!record.at(name).is_null()) ids.push_back(record.at(name).get<std::uint64_t>());
  for (const auto& [key, id] : record.at("banks").items()) ids.push_back(id.get<std::uint64_t>());
  return ids;
}

learn::UndoLog::Shape ShapeOf(const Json& record) {
  const Json& shape = record.at("undo_shape");
  return {.world = record.at("world").get<int>(),
          .pieces = shape.at("pieces").get<std::uint64_t>(),
          .note = shape.at("note").get<std::uint64_t>(),
          .regions = shape.at("regions").get<std::vector<std::uint64_t>>()};
}

FlatLayout LayoutOf(const Json& record) {
  std::vector<learn::FlatTensor> tensors;
  for (const Json& tensor : record.at("tensors"))
    tensors.push_back({.name = tensor.at(0).get<std::string>(),
                       .dtype = static_cast<DType>(tensor.at(1).get<int>()),
                       .count = tensor.at(2).get<std::uint64_t>(),
                       .group = tensor.at(3).get<int>()});
  return FlatLayout(std::move(tensors));
}

using Blocks = std::map<std::uint64_t, SharedBlockPointer>;

std::vector<std::span<std::byte>> RegionsOf(const Json& record, const Blocks& blocks) {
  std::vector<std::span<std::byte>> regions{
      blocks.at(record.at("weights").get<std::uint64_t>())->bytes()};
  for (const auto& [key, id] : record.at("banks").items())
    regions.push_back(blocks.at(id.get<std::uint64_t>())->bytes());
  return regions;
}

learn::UndoLog UndoLogOf(const Json& record, const Blocks& blocks) {
  learn::UndoLog::Shape shape = ShapeOf(record);
  auto regions = RegionsOf(record, blocks);
  regions.resize(shape.regions.size());
  return {blocks.at(record.at("undo").get<std::uint64_t>())->bytes(), std::move(shape),
          std::move(regions)};
}

// Finishes the step in which workers died, or takes back what they did.
void Settle(learn::CommitLog log, learn::Commit commit, const Json& record, const Blocks& blocks) {
  if (record.at("redo").is_null()) {
    UndoLogOf(record, blocks).PutBack(commit.number);
    return;
  }
  const int world = record.at("world").get<int>();
  const FlatLayout layout = LayoutOf(record);
  learn::RedoLog redo(blocks.at(record.at("redo").get<std::uint64_t>())->bytes(),
                      {.world = world, .parts = layout.tensors().size()},
                      RegionsOf(record, blocks));
  const auto gradients = blocks.at(record.at("gradients").get<std::uint64_t>());
  const auto kind = static_cast<learn::LossKind>(record.at("training").at("kind").get<int>());
  const auto step = redo.Finish(commit.number + 1, learn::GradientExchange::JoinedIn(
                                                       layout, gradients->bytes(), world, kind));
  if (!step) return;
  ++commit.number;
  ++commit.step;
  ++commit.index;
  ++commit.updates;
  commit.loss_sum += step->loss * static_cast<double>(step->rows);
  commit.loss_rows += step->rows;
  commit.last_loss = step->loss;
  commit.is_pending = 1;
  log.Write(commit);
}

// The last ledger that this process has seen.
std::uint64_t known_ledger = 0;

}  // namespace

SharedBlockPointer NewSharedBlock(std::size_t bytes) {
  SharedBlockPointer block;
  std::uint64_t id = 0;
  if (Rank() == 0) {
    block = data::SharedBlock::Create(Shards(), bytes);
    id = IdOf(block);
  }
  Group().Broadcast(comm::AsBytes(std::span(&id, 1)), DType::kUInt8, 0);
  if (!block) block = OpenBlock(id);
  Group().Barrier();  // Until then only rank 0 keeps it.
  return block;
}

// --- the ledger

SharedBlockPointer Ledger::Make(const std::shared_ptr<data::ShardHome>& home, int workers) {
  return data::SharedBlock::Create(
      home, learn::CommitLog::kBlockSize + learn::Places::BlockSize(workers));
}

Ledger::Ledger(std::uint64_t block, std::uint64_t basket)
    : block_(OpenBlock(block)), basket_(basket) {}

learn::Places Ledger::places() const {
  return {block_->bytes().subspan(learn::CommitLog::kBlockSize), WorldSize()};
}

void Ledger::Check() const {
  const std::uint8_t is_new = std::exchange(known_ledger, IdOf(block_)) != IdOf(block_) ? 1 : 0;
  if (Attempt() == 0) return;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(WorldSize()));
  Group().AllGather(comm::AsBytes(std::span(&is_new, 1)), comm::AsBytes(all), DType::kUInt8);
  learn::Places found = places();
  const auto death = found.Find({all.begin(), all.end()});
  Group().Barrier();  // Everybody has looked.
  if (Rank() == 0) found.Settle(death);
  Group().Barrier();
  if (death && death->IsCertain())
    throw Error(Code::kFailedPrecondition,
                "rank " + std::to_string(death->rank) +
                    " died three times in a row while it made step " +
                    std::to_string(death->place) +
                    ", so another would die of it, too; look at the rows of that step, and at the "
                    "memory that it takes, or set max_restarts to 0 to see the first death as it "
                    "is");
}

// --- what was interrupted

std::optional<Interrupted> Interrupted::Find(const Ledger& ledger) {
  ledger.Check();
  if (Attempt() == 0) return std::nullopt;
  const learn::CommitLog log = ledger.log();
  const auto open = [](const Json& record) {
    Blocks blocks;
    for (const std::uint64_t id : BlocksOf(record)) blocks.emplace(id, OpenBlock(id));
    return blocks;
  };
  if (Rank() == 0) {
    if (const auto commit = log.Read()) {
      const Json record = ReadRecord(*commit);
      Settle(log, *commit, record, open(record));
    }
  }
  Group().Barrier();
  const auto commit = log.Read();
  if (!commit) return std::nullopt;
  Interrupted left{.commit = *commit, .record = ReadRecord(*commit)};
  left.blocks = open(left.record);
  left.blocks.emplace(commit->record, OpenBlock(commit->record));
  // Workers that are no more have no successors.
  const auto undo = UndoLogOf(left.record, left.blocks);
  const std::span<const std::byte> note = undo.NoteOf(Rank(), commit->number);
  std::memcpy(&left.rows, note.data(), kCount);
  left.buffers.assign(note.begin() + kCount, note.end());
  if (Rank() == 0)
    Log(LogLevel::kWarning, "a worker was lost; training goes on behind step " +
                                std::to_string(commit->index) + " of epoch " +
                                std::to_string(commit->epoch + 1));
  return left;
}

torch::Tensor Interrupted::Weight(const FlatLayout& layout, std::size_t parameter,
                                  at::IntArrayRef shape) const {
  const auto& block = blocks.at(record.at("weights").get<std::uint64_t>());
  return View(block->bytes().subspan(layout.offset(parameter), layout.bytes(parameter)),
              io::ToTensorType(layout.tensors()[parameter].dtype), shape, block);
}

OptimizerState Interrupted::optimizer() const {
  const FlatLayout layout = LayoutOf(record);
  OptimizerState state;
  for (const Json& group : record.at("groups"))
    state.groups.push_back({.settings = group.at("settings"),
                            .parameters = group.at("parameters").get<std::vector<std::size_t>>()});
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    Moments& moments = state.moments.emplace_back();
    const Json& known = record.at("moments").at(i);
    const auto shape = known.at("shape").get<std::vector<std::int64_t>>();
    for (const auto& [key, count] : known.at("counters").items())
      moments.emplace(
          key, torch::scalar_tensor(count.get<double>() + static_cast<double>(commit.updates),
                                    torch::kFloat32));
    for (const Json& key : known.at("keys")) {
      const auto name = key.get<std::string>();
      const auto& bank = blocks.at(record.at("banks").at(name).get<std::uint64_t>());
      moments.emplace(name, View(bank->bytes().subspan(layout.offset(i), layout.bytes(i)),
                                 io::ToTensorType(layout.tensors()[i].dtype), shape, bank));
    }
  }
  return state;
}

void Interrupted::LoadBuffers(torch::nn::Module& module) const {
  const torch::NoGradGuard no_grad;
  std::size_t at = 0;
  for (torch::Tensor& buffer : module.buffers()) {
    torch::Tensor found = torch::empty_like(buffer, {}, torch::MemoryFormat::Contiguous);
    if (found.nbytes() > 0) std::memcpy(found.data_ptr(), buffers.data() + at, found.nbytes());
    at += found.nbytes();
    buffer.copy_(found);
  }
}

// --- commits

Commits::Commits(const Ledger& ledger, TrainedWeights& weights, torch::nn::Module& module,
                 const Interrupted* left)
    : ledger_(ledger), places_(ledger.places()), weights_(weights), buffers_(module.buffers()) {
  if (left == nullptr) return;
  last_ = left->commit;
  for (const auto& [id, block] : left->blocks) kept_.push_back(block);
}

void Commits::MarkStep(std::uint64_t step) { places_.Enter(Rank(), step); }

void Commits::Note() {
  if (!undo_) return;
  std::vector<torch::Tensor> kept;
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(&rows, 1))};
  for (const torch::Tensor& buffer : buffers_) {
    kept.push_back(buffer.detach().contiguous());
    parts.push_back(BytesOf(kept.back()));
  }
  undo_->Note(Rank(), last_.number + 1, parts);
}

void Commits::Save() {
  ++updates_;
  if (undo_) undo_->Save(Rank(), last_.number + 1, weights_.Pieces());
}

std::uint64_t Commits::BeginUpdate() {
  ++updates_;
  return last_.number + 1;
}

void Commits::Switch() {
  if (!undo_) return;
  const auto found = undo_->NoteOf(Rank(), last_.number);
  const std::vector<std::byte> note(found.begin(), found.end());
  Renew();
  const std::span<const std::byte> part = note;
  undo_->Note(Rank(), last_.number + 1, {&part, 1});
  Group().Barrier();
  ++last_.number;
  if (Rank() == 0) {
    WriteRecord();
    ledger_.log().Write(last_);
  }
  Note();
  Group().Barrier();
}

bool Commits::Prepare() {
  if (!weights_.CanCommit()) return false;
  // What the engine changes it can finish.
  const std::size_t regions = weights_.is_fused() ? 0 : weights_.Regions().size();
  if (undo_ && regions == regions_) return true;
  Renew();
  Note();
  Group().Barrier();  // Nobody commits before all have noted.
  return true;
}

void Commits::Renew() {
  const auto blocks = weights_.is_fused() ? std::vector<SharedBlockPointer>() : weights_.Regions();
  learn::UndoLog::Shape shape{
      .world = WorldSize(), .pieces = weights_.names().size() * blocks.size(), .note = kCount};
  for (const torch::Tensor& buffer : buffers_) shape.note += buffer.nbytes();
  std::vector<std::span<std::byte>> regions;
  for (const SharedBlockPointer& block : blocks) {
    shape.regions.push_back(block->bytes().size());
    regions.push_back(block->bytes());
  }
  undo_shape_ = {{"pieces", shape.pieces}, {"note", shape.note}, {"regions", shape.regions}};
  undo_block_ = NewSharedBlock(learn::UndoLog::BlockSize(shape));
  undo_.emplace(undo_block_->bytes(), std::move(shape), std::move(regions));
  regions_ = blocks.size();
  has_record_ = false;
}

void Commits::Commit(learn::Commit at, std::vector<double> settings, const Training& training) {
  at.number = last_.number + 1;
  at.record = last_.record;
  at.record_bytes = last_.record_bytes;
  last_ = at;
  if (Rank() != 0) return;
  if (!has_record_ || settings != settings_ || weights_.has_idle() ||
      weights_.changes() != changes_) {
    training_ = training();
    settings_ = std::move(settings);
    WriteRecord();
  }
  last_.updates = updates_;
  ledger_.log().Write(last_);
}

void Commits::WriteRecord() {
  Json record = weights_.Record();
  record["world"] = WorldSize();
  record["undo"] = IdOf(undo_block_);
  record["undo_shape"] = undo_shape_;
  record["training"] = training_;
  const std::vector<std::uint8_t> words = Json::to_msgpack(record);
  // Not over the one that the last commit names.
  SharedBlockPointer page;
  if (pages_.size() > 1) {
    page = std::move(pages_.front());
    pages_.erase(pages_.begin());
  }
  if (!page || page->bytes().size() < words.size())
    page = data::SharedBlock::Create(Shards(), 2 * words.size());
  std::memcpy(page->bytes().data(), words.data(), words.size());
  pages_.push_back(page);
  last_.record = IdOf(page);
  last_.record_bytes = words.size();
  last_.updates = updates_ = 0;
  has_record_ = true;
  changes_ = weights_.changes();
  std::vector<SharedBlockPointer> blocks = weights_.Blocks();
  blocks.push_back(undo_block_);
  blocks.push_back(page);
  std::vector<std::uint64_t> wanted;
  for (const auto& list : {blocks, kept_})
    for (const SharedBlockPointer& block : list) wanted.push_back(IdOf(block));
  std::ranges::sort(wanted);
  wanted.erase(std::ranges::unique(wanted).begin(), wanted.end());
  Leave(ledger_.basket(), wanted);
  kept_ = std::move(blocks);
}

}  // namespace orca::nn
