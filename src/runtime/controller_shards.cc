// The driver's shards: those of the agent beside it, or its own and those of other machines.
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "orca/core/error.h"
#include "orca/io/atomic_file.h"
#include "orca/net/secret.h"
#include "runtime/controller.h"

namespace orca::runtime {
namespace {

// The driver's own process, among those that hold its shards.
constexpr NodeShards::Holder kSelf = 1;

}  // namespace

void Controller::OpenShards() {
  // Posted: holds end wherever their last owner ends, also where the state is locked.
  const auto send = [this](const Message& message) {
    loop_.Post([this, head = message.head, parcel = message.parcel] {
      const std::lock_guard lock(state_mutex_);
      SendAboutShards({.head = head, .parcel = parcel});
    });
    if (thread_ && message.head.contains("ticket")) thread_->Serve();
  };
  home_ = std::make_shared<AgentHome>(send, [] { return false; });
  shards_ = home_;
  if (options_.nodes == 0) return;
  own_shards_ = std::make_unique<NodeShards>([this](NodeShards::Holder to, Message message) {
    if (to == kSelf) {
      if (message.head.value("new", false))
        CountHold(message.head.at("id").get<std::uint64_t>(), 1);
      home_->Hear(std::move(message));
    } else if (message.head.at("op") == "fetch") {
      RouteFetch(message.head.at("id").get<std::uint64_t>(), kDriverNode);
    } else if (message.head.at("op") == "notice") {
      Tell({.level = 30, .text = message.head.at("text").get<std::string>()});
    } else {
      RouteBytes(std::move(message));
    }
  });
  own_shards_->Settle(kDriverNode, options_.memory);
}

void Controller::CheckLocal() const {
  if (own_shards_)
    throw Error(
        Code::kFailedPrecondition,
        "guests and baskets of a context whose agents joined from elsewhere are not in this "
        "release; use init_orca_context(\"local\")");
}

Door Controller::OpenDoor() {
  CheckLocal();
  const std::lock_guard lock(door_mutex_);
  if (!door_.name.empty()) return door_;
  if (folder_.empty())
    throw Error(
        Code::kFailedPrecondition,
        "there is no folder for the run (see the warning above), and guests need a secret in "
        "it; set ORCA_HOME to a folder that can be written");
  const std::string file = (folder_ / "door").string();
  // Not the job's: whoever knows it can do nothing but use shards.
  const std::string secret = net::Secret::Random().ToHex();
  io::AtomicFile written(file);
  written.Write(secret);
  written.Commit();
  const Json answer = home_->AskForWords({{"op", "door"}, {"secret", secret}});
  door_ = {.name = answer.at("name").get<std::string>(), .secret_file = file};
  return door_;
}

std::uint64_t Controller::NewBasket() {
  CheckLocal();
  return home_->AskForWords({{"op", "basket"}}).at("basket").get<std::uint64_t>();
}

std::vector<std::shared_ptr<const data::ShardHold>> Controller::EmptyBasket(
    std::uint64_t basket, const std::vector<std::uint64_t>& shards) {
  home_->AskForWords({{"op", "collect"}, {"basket", basket}}, PackNumbers(shards));
  std::vector<std::shared_ptr<const data::ShardHold>> holds;
  for (const std::uint64_t id : shards) holds.push_back(data::ShardHold::Adopt(shards_, id));
  return holds;
}

std::optional<Question> Controller::NextQuestion(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return !questions_.empty() || stopped_; });
  if (questions_.empty() || stopped_) return std::nullopt;
  Question question = std::move(questions_.front());
  questions_.pop_front();
  return question;
}

void Controller::Answer(const Question& question, const Reply& reply) {
  Message answer{.head = {{"op", "answer"},
                          {"guest", question.guest},
                          {"ticket", question.ticket},
                          {"shards", Json::array()}},
                 .parcel = reply.parcel};
  for (const auto& shard : reply.shards) answer.head["shards"].push_back(shard->id());
  const std::lock_guard lock(state_mutex_);
  if (nodes_.empty() || nodes_[0]->lost) return;
  nodes_[0]->link->Send(std::move(answer));
  WakeToSend();
}

void Controller::SendAboutShards(const Message& message) {
  if (!own_shards_) {
    if (!nodes_.empty() && !nodes_[0]->lost)
      nodes_[0]->link->Send({.head = message.head, .parcel = message.parcel});
    return;
  }
  Message own{.head = message.head};
  const std::string op = message.head.value("op", "");
  if (op == "hold" || op == "drop") {
    const auto id = message.head.at("id").get<std::uint64_t>();
    const auto node = static_cast<std::size_t>(NodeOf(id));
    if (node < nodes_.size() && !nodes_[node]->lost) nodes_[node]->link->Send({.head = own.head});
    own_shards_->Handle(kSelf, own);
    CountHold(id, op == "hold" ? 1 : -1);
    return;
  }
  own_shards_->Handle(kSelf, own);
}

// What nobody can ask for any more need not be kept by those who once did.
void Controller::CountHold(std::uint64_t shard, int change) {
  if (!own_shards_) return;
  int& holds = shard_holds_[shard];
  holds += change;
  if (holds > 0) return;
  shard_holds_.erase(shard);
  const Json forget = {{"op", "forget"}, {"id", shard}};
  for (const auto& node : nodes_)
    if (!node->lost && node->index != NodeOf(shard)) node->link->Send({.head = forget});
  Message own{.head = forget};
  if (NodeOf(shard) != kDriverNode) own_shards_->Handle(NodeShards::kDriver, own);
}

// The agent has counted those of its own node already.
std::vector<std::shared_ptr<const data::ShardHold>> Controller::ResultShards(const Node& node,
                                                                             const Json& head) {
  std::vector<std::shared_ptr<const data::ShardHold>> holds;
  const auto shards = head.find("shards");
  if (shards == head.end()) return holds;
  for (const Json& shard : *shards) {
    const auto id = shard.get<std::uint64_t>();
    if (NodeOf(id) == node.index) {
      CountHold(id, 1);
      holds.push_back(data::ShardHold::Adopt(shards_, id));
    } else {
      holds.push_back(data::ShardHold::Take(shards_, id));
    }
  }
  return holds;
}

bool Controller::HearAboutShards(Node& node, Message& message) {
  const std::string op = message.head.value("op", "");
  if (op == "granted") {
    home_->Hear(std::move(message));
  } else if (op == "fetch") {
    RouteFetch(message.head.at("id").get<std::uint64_t>(), node.index);
  } else if (op == "bytes") {
    RouteBytes(std::move(message));
  } else {
    return false;
  }
  return true;
}

void Controller::RouteFetch(std::uint64_t shard, int wanted_by) {
  fetching_.emplace(shard, wanted_by);
  Message fetch{.head = {{"op", "fetch"}, {"id", shard}, {"for", wanted_by}}};
  const auto owner = static_cast<std::size_t>(NodeOf(shard));
  if (own_shards_ && NodeOf(shard) == kDriverNode) {
    own_shards_->Handle(NodeShards::kDriver, fetch);
  } else if (owner < nodes_.size() && !nodes_[owner]->lost) {
    nodes_[owner]->link->Send(std::move(fetch));
  } else {
    FailFetches(NodeOf(shard), fmt::format("shard {} was on node {}, which is lost", shard, owner));
  }
}

void Controller::RouteBytes(Message message) {
  const auto shard = message.head.at("id").get<std::uint64_t>();
  const int wanted_by = message.head.at("for").get<int>();
  for (auto [entry, end] = fetching_.equal_range(shard); entry != end; ++entry) {
    if (entry->second != wanted_by) continue;
    fetching_.erase(entry);
    break;
  }
  const auto node = static_cast<std::size_t>(wanted_by);
  if (own_shards_ && wanted_by == kDriverNode) {
    own_shards_->Handle(NodeShards::kDriver, message);
  } else if (node < nodes_.size() && !nodes_[node]->lost) {
    nodes_[node]->link->Send(std::move(message));
  }
}

void Controller::FailFetches(int lost_node, const std::string& why) {
  std::vector<std::pair<std::uint64_t, int>> failed;
  for (const auto& [shard, wanted_by] : fetching_)
    if (NodeOf(shard) == lost_node) failed.emplace_back(shard, wanted_by);
  for (const auto& [shard, wanted_by] : failed) {
    RouteBytes({.head = {{"op", "bytes"},
                         {"id", shard},
                         {"for", wanted_by},
                         {"code", static_cast<int>(Code::kPeerLost)},
                         {"error", why}}});
  }
}

}  // namespace orca::runtime
