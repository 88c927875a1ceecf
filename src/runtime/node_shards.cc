#include "runtime/node_shards.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/memory_file.h"

namespace orca::runtime {
namespace {

constexpr std::chrono::seconds kFreeAge(10);

}  // namespace

Parcel PackNumbers(std::span<const std::uint64_t> shards) {
  const std::vector<std::span<const std::byte>> parts = {std::as_bytes(shards)};
  return Parcel::Pack(parts);
}

std::vector<std::uint64_t> UnpackNumbers(const Parcel& parcel) {
  const auto bytes = parcel.Parts().at(0);
  std::vector<std::uint64_t> numbers(bytes.size() / sizeof(std::uint64_t));
  if (!numbers.empty())
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(std::uint64_t));
  return numbers;
}

NodeShards::NodeShards(std::function<void(Holder, Message)> send)
    : send_(std::move(send)), shelf_(data::ShardShelf::Create()) {}

void NodeShards::Settle(int node, std::size_t limit) {
  node_ = node;
  const auto tell = [this](const std::string& text) {
    send_(kDriver, {.head = {{"op", "notice"}, {"text", HostName() + ": " + text}}});
  };
  shelf_ = data::ShardShelf::Create({.first_id = FirstId(node), .limit = limit, .tell = tell});
}

bool NodeShards::Handle(Holder from, Message& message) {
  const Json& head = message.head;
  const std::string op = head.value("op", "");
  if (op == "new") {
    New(from, head);
  } else if (op == "open") {
    Open(from, head);
  } else if (op == "hold") {
    const auto id = head.at("id").get<std::uint64_t>();
    ++holds_[from][id];
    shelf_->Hold(id);
  } else if (op == "drop") {
    DropFor(from, head.at("id").get<std::uint64_t>(),
            head.value("reuse", true) ? data::Reuse::kYes : data::Reuse::kNo);
  } else if (op == "basket" && from == kDriver) {
    OpenBasket(head);
  } else if (op == "collect" && from == kDriver) {
    Collect(message);
  } else if (op == "deposit") {
    Deposit(from, message);
  } else if (op == "fetch") {
    Fetch(head);
  } else if (op == "bytes") {
    TakeBytes(message);
  } else if (op == "forget") {
    const auto id = head.at("id").get<std::uint64_t>();
    if (on_their_way_.contains(id)) {
      forgotten_.insert(id);
    } else {
      shelf_->Drop(id);
    }
  } else {
    return false;
  }
  return true;
}

void NodeShards::New(Holder from, const Json& head) {
  const auto ticket = head.at("ticket").get<std::uint64_t>();
  try {
    const auto backing =
        head.value("in_memory", false) ? data::Backing::kMemory : data::Backing::kAny;
    data::ShardMemory memory = shelf_->New(head.at("bytes").get<std::size_t>(), backing);
    ++holds_[from][memory.id];
    Answer(from, ticket, std::move(memory), true);
  } catch (const Error& error) {
    Refuse(from, ticket, static_cast<int>(error.code()), error.what());
  }
}

void NodeShards::Open(Holder from, const Json& head) {
  const auto ticket = head.at("ticket").get<std::uint64_t>();
  const auto id = head.at("id").get<std::uint64_t>();
  try {
    if (head.value("write", false)) {
      Answer(from, ticket, shelf_->OpenToWrite(id), false);
      return;
    }
    if (IsMine(id) || shelf_->Has(id)) {
      Answer(from, ticket, shelf_->Open(id), false);
      return;
    }
  } catch (const Error& error) {
    Refuse(from, ticket, static_cast<int>(error.code()), error.what());
    return;
  }
  auto& waiting = on_their_way_[id];
  waiting.push_back({from, ticket});
  if (waiting.size() == 1) send_(kDriver, {.head = {{"op", "fetch"}, {"id", id}}});
}

void NodeShards::Answer(Holder to, std::uint64_t ticket, data::ShardMemory memory, bool is_new) {
  Message answer{.head = {{"op", "granted"},
                          {"ticket", ticket},
                          {"id", memory.id},
                          {"size", memory.size},
                          {"new", is_new}}};
  answer.fds.push_back(std::move(memory.fd));
  send_(to, std::move(answer));
}

void NodeShards::Refuse(Holder to, std::uint64_t ticket, int code, const std::string& why) {
  send_(to, {.head = {{"op", "granted"}, {"ticket", ticket}, {"code", code}, {"error", why}}});
}

// Guests leave shards in it until the driver collects those that it wants: the others are of tasks
// that failed or ran twice.
void NodeShards::OpenBasket(const Json& head) {
  const Holder basket = ++last_basket_;
  baskets_.insert(basket);
  send_(kDriver, {.head = {{"op", "granted"}, {"ticket", head.at("ticket")}, {"basket", basket}}});
}

void NodeShards::Deposit(Holder from, const Message& message) {
  const Json& head = message.head;
  const auto ticket = head.at("ticket").get<std::uint64_t>();
  const auto basket = head.at("basket").get<Holder>();
  const auto ids = UnpackNumbers(message.parcel);
  if (!baskets_.contains(basket)) {
    Refuse(from, ticket, static_cast<int>(Code::kFailedPrecondition),
           "nobody waits for these shards any more: the operation that wanted them is over");
    return;
  }
  for (const std::uint64_t id : ids) {
    if (holds_[from].contains(id) || holds_[basket].contains(id)) continue;
    Refuse(from, ticket, static_cast<int>(Code::kInvalidArgument),
           fmt::format("shard {} cannot be left here: whoever leaves it must hold it", id));
    return;
  }
  // What is in both is held all the time.
  const auto before = holds_[basket];
  HoldFor(basket, ids);
  if (head.value("instead", false)) {
    for (const auto& [id, count] : before)
      for (int i = 0; i < count; ++i) DropFor(basket, id, data::Reuse::kYes);
  }
  send_(from, {.head = {{"op", "granted"}, {"ticket", ticket}}});
}

void NodeShards::Collect(const Message& message) {
  const Json& head = message.head;
  const auto ticket = head.at("ticket").get<std::uint64_t>();
  const auto basket = head.at("basket").get<Holder>();
  const auto ids = UnpackNumbers(message.parcel);
  const auto& left = holds_[basket];
  std::string missing;
  for (const std::uint64_t id : ids)
    if (!left.contains(id)) missing = fmt::format("shard {} was not left in the basket", id);
  if (missing.empty()) HoldFor(kDriver, ids);
  baskets_.erase(basket);
  HolderGone(basket);
  if (missing.empty()) {
    send_(kDriver, {.head = {{"op", "granted"}, {"ticket", ticket}}});
  } else {
    Refuse(kDriver, ticket, static_cast<int>(Code::kInternal), missing);
  }
}

// The driver wants a shard of this node, for itself or for another one.
void NodeShards::Fetch(const Json& head) {
  const auto id = head.at("id").get<std::uint64_t>();
  Message answer{.head = {{"op", "bytes"}, {"id", id}, {"for", head.at("for")}}};
  try {
    data::ShardMemory memory = shelf_->Open(id);
    answer.parcel = Parcel::FromFd(std::move(memory.fd), memory.size);
    // Nobody may fill the memory anew while it is on its way.
    shelf_->Hold(id);
    answer.keep = std::shared_ptr<void>(nullptr, [shelf = shelf_, id](void*) { shelf->Drop(id); });
  } catch (const Error& error) {
    answer.head["code"] = static_cast<int>(error.code());
    answer.head["error"] = error.what();
  }
  send_(kDriver, std::move(answer));
}

void NodeShards::TakeBytes(Message& message) {
  const auto id = message.head.at("id").get<std::uint64_t>();
  const auto waiting = std::exchange(on_their_way_[id], {});
  on_their_way_.erase(id);
  int code = message.head.value("code", static_cast<int>(Code::kInternal));
  std::string why = message.head.value("error", "");
  if (why.empty()) {
    try {
      shelf_->Adopt(id, message.parcel.ToFile());
      // Those that hold it already were counted here only.
      for (const auto& [holder, shards] : holds_)
        if (const auto found = shards.find(id); found != shards.end())
          for (int i = 0; i < found->second; ++i) shelf_->Hold(id);
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
      why = error.what();
    }
  }
  for (const Opening& opening : waiting) {
    if (why.empty()) {
      Open(opening.holder, {{"ticket", opening.ticket}, {"id", id}});
    } else {
      Refuse(opening.holder, opening.ticket, code, why);
    }
  }
  if (forgotten_.erase(id) > 0 && why.empty()) shelf_->Drop(id);
}

void NodeShards::HoldResults(const Message& message) {
  const auto shards = message.head.find("shards");
  if (shards == message.head.end()) return;
  for (const Json& shard : *shards) {
    const auto id = shard.get<std::uint64_t>();
    if (!IsMine(id)) continue;
    ++holds_[kDriver][id];
    shelf_->Hold(id);
  }
}

void NodeShards::HoldFor(Holder holder, const std::vector<std::uint64_t>& shards) {
  for (const std::uint64_t id : shards) {
    ++holds_[holder][id];
    shelf_->Hold(id);
  }
}

void NodeShards::DropFor(Holder holder, std::uint64_t id, data::Reuse reuse) {
  auto& shards = holds_[holder];
  const auto found = shards.find(id);
  if (found == shards.end()) return;
  if (--found->second == 0) shards.erase(found);
  shelf_->Drop(id, reuse);
}

void NodeShards::HolderGone(Holder holder) {
  const auto found = holds_.find(holder);
  if (found == holds_.end()) return;
  for (const auto& [id, count] : found->second)
    for (int i = 0; i < count; ++i) shelf_->Drop(id);
  holds_.erase(found);
}

void NodeShards::GiveBack() { shelf_->GiveBack(kFreeAge); }

}  // namespace orca::runtime
