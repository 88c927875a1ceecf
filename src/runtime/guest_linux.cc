#include <fmt/format.h>
#include <poll.h>

#include <mutex>
#include <optional>
#include <utility>

#include "orca/core/error.h"
#include "orca/net/handshake.h"
#include "orca/net/socket.h"
#include "orca/runtime/guest.h"
#include "runtime/agent_home.h"
#include "runtime/guests.h"
#include "runtime/loop.h"
#include "runtime/node_shards.h"

namespace orca::runtime {
namespace {

// The driver may have to finish something long before: it is its end that ends the wait.
constexpr std::chrono::hours kPatience(24 * 7);

}  // namespace

struct Guest::State {
  explicit State(UniqueFd socket)
      : link(std::move(socket)),
        home(std::make_shared<AgentHome>([this](Message message) { Tell(std::move(message)); },
                                         [] { return false; })),
        shards(home) {
    loop.Watch(
        link.fd(),
        [this] {
          const std::lock_guard lock(mutex);
          return static_cast<short>(link.wants_write() ? POLLIN | POLLOUT : POLLIN);
        },
        [this](short) {
          while (auto message = Receive()) home->Hear(std::move(*message));
        });
    thread.emplace(loop, "orca-guest", [this](const std::exception&) {
      home->Fail("the Orca context that this data belongs to has ended");
    });
  }
  ~State() {
    home->Close("this guest has left");
    loop.Stop();
    thread.reset();
  }

  std::optional<Message> Receive() {
    const std::lock_guard lock(mutex);
    link.Flush();
    return link.Receive();
  }

  void Tell(Message message) {
    const std::lock_guard lock(mutex);
    link.Send(std::move(message));
    if (link.wants_write()) loop.Post([] {});  // the loop sends the rest
  }

  std::mutex mutex;  // guards link
  UnixLink link;
  Loop loop;
  const std::shared_ptr<AgentHome> home;
  const std::shared_ptr<data::ShardHome> shards;  // the same
  std::optional<LoopThread> thread;               // the last: it uses all of the above
};

Guest::Guest(std::unique_ptr<State> state) : state_(std::move(state)) {}
Guest::~Guest() = default;

std::unique_ptr<Guest> Guest::Join(const Door& door, std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::After(timeout);
  try {
    const auto secret = net::Secret::FromFile(door.secret_file);
    const UniqueFd socket = net::ConnectUnix(door.name, deadline);
    net::ConnectHandshake(socket.get(), secret, {.role = kGuestRole}, deadline);
    return std::unique_ptr<Guest>(
        new Guest(std::make_unique<State>(net::RecvFd(socket.get(), deadline))));
  } catch (const Error& error) {
    throw Error(
        Code::kUnavailable,
        fmt::format("the Orca context that this data belongs to has ended, or is on another "
                    "machine ({}); use the data before stop_orca_context()",
                    error.what()));
  }
}

const std::shared_ptr<data::ShardHome>& Guest::shards() const { return state_->shards; }

void Guest::Leave(std::uint64_t basket, std::span<const std::uint64_t> shards) {
  state_->home->AskForWords({{"op", "deposit"}, {"basket", basket}}, PackNumbers(shards));
}

Reply Guest::Ask(Parcel question) {
  Message answer =
      state_->home->Ask({.head = {{"op", "question"}}, .parcel = std::move(question)}, kPatience);
  Reply reply{.parcel = std::move(answer.parcel)};
  for (const Json& shard : answer.head.at("shards"))
    reply.shards.push_back(data::ShardHold::Adopt(state_->shards, shard.get<std::uint64_t>()));
  return reply;
}

}  // namespace orca::runtime
