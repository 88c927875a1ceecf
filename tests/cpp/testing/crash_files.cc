#include "testing/crash_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace orca::testing {

using io::Path;
using io::ThrowFileError;

namespace {

constexpr std::size_t kSector = 512;

// Each sector that is not synced is there, or is not: then it has other bytes.
void Tear(std::vector<std::byte>& data, std::size_t durable, std::mt19937_64& random) {
  const std::size_t length =
      durable + std::uniform_int_distribution<std::size_t>(0, data.size() - durable)(random);
  for (std::size_t at = durable / kSector * kSector; at < data.size(); at += kSector) {
    const auto fate = random() % 3;
    if (fate == 0) continue;
    const std::size_t end = std::min(at + kSector, data.size());
    for (std::size_t i = std::max(at, durable); i < end; ++i)
      data[i] = fate == 1 ? std::byte{0} : static_cast<std::byte>(random());
  }
  data.resize(length);
}

}  // namespace

class CrashFiles::Lock final : public io::FolderLock {
 public:
  explicit Lock(NodePtr node) : node_(std::move(node)) { node_->is_locked = true; }
  ~Lock() override { node_->is_locked = false; }

 private:
  NodePtr node_;
};

class CrashFiles::File final : public io::WritableFile {
 public:
  File(CrashFiles& disk, NodePtr node, Path path, bool has_name)
      : disk_(disk), node_(std::move(node)), path_(std::move(path)), has_name_(has_name) {}

  io::Written Write(std::span<const std::byte> data) override {
    if (disk_.longest_write_ > 0) {
      disk_.was_interrupted_ = !disk_.was_interrupted_;
      if (disk_.was_interrupted_) return {0, EINTR};
      data = data.first(std::min(data.size(), disk_.longest_write_));
    }
    if (const int error = disk_.Step(Change::kWrite); error != 0) return {0, error};
    if (disk_.room_) {
      const std::uint64_t used = disk_.Used(*disk_.root_) + (has_name_ ? 0 : node_->data.size());
      const std::uint64_t left = *disk_.room_ - std::min(*disk_.room_, used);
      if (left == 0 && !data.empty()) return {0, ENOSPC};
      data = data.first(std::min<std::uint64_t>(data.size(), left));
    }
    node_->data.insert(node_->data.end(), data.begin(), data.end());
    disk_.CheckCrash();
    return {data.size(), 0};
  }

  void Sync() override {
    disk_.Step(Change::kSync, "write", path_);
    // The machine may stop before or after the bytes are there; this is before.
    disk_.CheckCrash();
    node_->durable_data = node_->data;
  }

  void Close() override {
    disk_.Step(Change::kClose, "write", path_);
    disk_.CheckCrash();
  }

  void Name(const Path& path) override {
    disk_.Step(Change::kName, "create", path);
    const NodePtr folder = disk_.FindFolder(path.parent_path(), "create");
    if (folder->names.contains(path.filename().string())) ThrowFileError("create", path, EEXIST);
    has_name_ = true;
    disk_.Do(folder, {.removed = "", .added = path.filename().string(), .node = node_});
  }

 private:
  CrashFiles& disk_;
  NodePtr node_;
  Path path_;
  bool has_name_;
};

CrashFiles::CrashFiles() : root_(std::make_shared<Node>()) { root_->is_folder = true; }

void CrashFiles::FailAt(std::uint64_t step, int error, std::uint64_t count) {
  fail_from_ = steps_ + step;
  fail_until_ = fail_from_ + count;
  fail_error_ = error;
}

// 0, or the error of this step.
int CrashFiles::Step(Change change) {
  if (crashed_) throw Crash();
  ++steps_;
  ++counts_[change];
  return steps_ >= fail_from_ && steps_ < fail_until_ ? fail_error_ : 0;
}

void CrashFiles::Step(Change change, const char* doing, const Path& path) {
  if (const int error = Step(change); error != 0) ThrowFileError(doing, path, error);
}

void CrashFiles::CheckCrash() {
  if (crash_at_ == 0 || steps_ < crash_at_) return;
  crashed_ = true;
  throw Crash();
}

void CrashFiles::Apply(const Naming& change, Names& names) {
  if (!change.removed.empty()) names.erase(change.removed);
  if (!change.added.empty()) names[change.added] = change.node;
}

void CrashFiles::Do(const NodePtr& folder, const Naming& change) {
  Apply(change, folder->names);
  folder->changes.push_back(change);
  CheckCrash();
}

CrashFiles::NodePtr CrashFiles::Find(const Path& path) const {
  NodePtr node = root_;
  for (const Path& part : path.relative_path()) {
    if (part.empty() || part == ".") continue;
    const auto found = node->names.find(part.string());
    if (found == node->names.end()) return nullptr;
    node = found->second;
  }
  return node;
}

CrashFiles::NodePtr CrashFiles::FindFolder(const Path& path, const char* doing) const {
  NodePtr node = Find(path);
  if (!node) ThrowFileError(doing, path, ENOENT);
  if (!node->is_folder) ThrowFileError(doing, path, ENOTDIR);
  return node;
}

std::vector<std::byte>& CrashFiles::Content(const Path& path) {
  const NodePtr node = Find(path);
  if (!node || node->is_folder) throw std::runtime_error("no file " + path.string());
  return node->data;
}

std::unique_ptr<io::WritableFile> CrashFiles::Create(const Path& path, io::Access /*access*/) {
  Step(Change::kCreate, "create", path);
  const NodePtr folder = FindFolder(path.parent_path(), "create");
  if (folder->names.contains(path.filename().string())) ThrowFileError("create", path, EEXIST);
  auto node = std::make_shared<Node>();
  Do(folder, {.removed = "", .added = path.filename().string(), .node = node});
  return std::make_unique<File>(*this, node, path, true);
}

// No name leads to it: a crash takes it.
std::unique_ptr<io::WritableFile> CrashFiles::CreateUnnamed(const Path& folder,
                                                            io::Access /*access*/) {
  if (!has_unnamed_) return nullptr;
  Step(Change::kCreate, "create", folder);
  (void)FindFolder(folder, "create");
  CheckCrash();
  return std::make_unique<File>(*this, std::make_shared<Node>(), folder, false);
}

io::FileView CrashFiles::Map(const Path& path) {
  if (crashed_) throw Crash();
  const NodePtr node = Find(path);
  if (!node) ThrowFileError("read", path, ENOENT);
  if (node->is_folder) ThrowFileError("read", path, EISDIR);
  auto copy = std::make_shared<std::vector<std::byte>>(node->data);
  const std::span<const std::byte> bytes(*copy);
  return {bytes, std::move(copy)};
}

void CrashFiles::Rename(const Path& from, const Path& to) {
  Step(Change::kRename, "rename to", to);
  if (from.parent_path() != to.parent_path()) throw std::logic_error("only within a folder");
  const NodePtr folder = FindFolder(from.parent_path(), "rename to");
  const NodePtr node = Find(from);
  if (!node) ThrowFileError("rename to", to, ENOENT);
  const NodePtr there = Find(to);
  if (there && there->is_folder && !there->names.empty())
    ThrowFileError("rename to", to, ENOTEMPTY);
  Do(folder, {.removed = from.filename().string(), .added = to.filename().string(), .node = node});
}

bool CrashFiles::Remove(const Path& path) {
  if (crashed_) throw Crash();
  const NodePtr node = Find(path);
  if (!node) return false;
  Step(Change::kRemove, "remove", path);
  if (node->is_folder && !node->names.empty()) ThrowFileError("remove", path, ENOTEMPTY);
  Do(Find(path.parent_path()), {.removed = path.filename().string(), .added = "", .node = nullptr});
  return true;
}

bool CrashFiles::MakeFolder(const Path& path) {
  if (crashed_) throw Crash();
  if (const NodePtr there = Find(path)) {
    if (!there->is_folder) ThrowFileError("make", path, EEXIST);
    return false;
  }
  Step(Change::kMakeFolder, "make", path);
  auto node = std::make_shared<Node>();
  node->is_folder = true;
  Do(FindFolder(path.parent_path(), "make"),
     {.removed = "", .added = path.filename().string(), .node = node});
  return true;
}

std::vector<std::string> CrashFiles::List(const Path& folder) {
  if (crashed_) throw Crash();
  const NodePtr node = Find(folder);
  std::vector<std::string> names;
  if (!node) return names;
  if (!node->is_folder) ThrowFileError("read", folder, ENOTDIR);
  for (const auto& [name, child] : node->names) names.push_back(name);
  return names;
}

void CrashFiles::SyncFolder(const Path& folder) {
  Step(Change::kSyncFolder, "write", folder);
  CheckCrash();
  const NodePtr node = FindFolder(folder, "write");
  for (const Naming& change : node->changes) Apply(change, node->durable_names);
  node->changes.clear();
}

std::unique_ptr<io::FolderLock> CrashFiles::TryLock(const Path& folder) {
  if (crashed_) throw Crash();
  const NodePtr node = Find(folder);
  if (!node || node->is_locked) return nullptr;
  return std::make_unique<Lock>(node);
}

std::string CrashFiles::UniqueWord() { return fmt::format("{:04d}", ++words_); }

std::uint64_t CrashFiles::Used(const Node& node) const {
  std::uint64_t bytes = node.data.size();
  for (const auto& [name, child] : node.names) bytes += Used(*child);
  return bytes;
}

CrashFiles::NodePtr CrashFiles::AfterCrash(const Node& node, CrashMode mode,
                                           std::mt19937_64& random) {
  auto after = std::make_shared<Node>();
  after->is_folder = node.is_folder;
  // Files are written from beginning to end only: what was synced stays.
  after->data = mode == CrashMode::kLost ? node.durable_data : node.data;
  if (mode == CrashMode::kTorn || mode == CrashMode::kRandom)
    Tear(after->data, node.durable_data.size(), random);
  Names names = node.durable_names;
  for (const Naming& change : node.changes) {
    const bool is_kept = mode == CrashMode::kRandom ? random() % 2 == 0 : mode != CrashMode::kLost;
    if (!is_kept) continue;
    // A folder took the place of one that had to be moved away first, and was not: no file system
    // says what is there then.
    const auto there = names.find(change.added);
    const bool is_clash =
        there != names.end() && there->second->is_folder && !there->second->durable_names.empty();
    Apply(change, names);
    if (is_clash) names[change.added] = std::make_shared<Node>(Node{.is_folder = true});
  }
  for (const auto& [name, child] : names) after->names[name] = AfterCrash(*child, mode, random);
  after->durable_data = after->data;
  after->durable_names = after->names;
  return after;
}

std::unique_ptr<CrashFiles> CrashFiles::Reboot(CrashMode mode, std::uint64_t seed) const {
  std::mt19937_64 random(seed);
  auto disk = std::make_unique<CrashFiles>();
  disk->root_ = AfterCrash(*root_, mode, random);
  disk->words_ = words_ + 1000;
  return disk;
}

}  // namespace orca::testing
