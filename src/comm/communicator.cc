#include "orca/comm/communicator.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "comm/call_queue.h"
#include "comm/collective_checks.h"
#include "comm/group.h"
#include "comm/messenger.h"
#include "comm/monitor.h"
#include "comm/options.h"
#include "comm/rendezvous.h"
#include "comm/segment_arena.h"
#include "comm/work.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/net/socket.h"

namespace orca::comm {
namespace {

constexpr int kMaxWorld = 1024;
constexpr int kDefaultStreams = 2;
constexpr std::chrono::microseconds kSpin(50);
// Inputs and outputs of a call that takes less time than handing it to another thread.
constexpr std::size_t kShortCall = std::size_t{512} << 10;
constexpr std::uint32_t kControlSegment =
    0xffffffff;  // the group's own memory, as opposed to a rank's arena
constexpr std::chrono::seconds kDialPatience(10);
constexpr std::chrono::milliseconds kFirstReach(250);
constexpr std::chrono::milliseconds kDialPause(200);  // between two tries
constexpr std::chrono::seconds kSegmentPatience(2);

void CheckMembership(const Membership& membership) {
  if (membership.world < 1 || membership.world > kMaxWorld) {
    throw Error(Code::kInvalidArgument,
                fmt::format("a group of {} ranks is not possible; 1 to {} are", membership.world,
                            kMaxWorld));
  }
  if (membership.rank < 0 || membership.rank >= membership.world) {
    throw Error(Code::kInvalidArgument,
                fmt::format("rank {} is not in a group of {}; ranks are 0 to {}", membership.rank,
                            membership.world, membership.world - 1));
  }
  if (membership.world > 1 && !membership.store) {
    throw Error(Code::kInvalidArgument,
                "a group of several ranks needs a store to meet in; set Membership::store");
  }
}

// The engine's one implementation.
class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(const Membership& membership, const CommOptions& options)
      : options_(options),
        generation_(membership.generation),
        job_(net::HashName(membership.group)),
        forks_(ForkCount()),
        arena_(options.arena ? options.arena : Arena::Create()),
        segments_(dynamic_cast<SegmentArena&>(*arena_)) {
    CheckMembership(membership);
    CheckOptions(options);
    Join(membership);
    queue_ = std::make_unique<CallQueue>([this](const Collective& call) { Execute(call); },
                                         [this](const Collective& call) { return IsReady(call); });
  }

  ~GroupCommunicator() override {
    if (Forked()) {
      // The threads exist in the parent only, and the connections are the parent's.
      (void)queue_.release();
      (void)messenger_.release();
      (void)monitor_.release();
      (void)mesh_.release();
      (void)local_.release();
      return;
    }
    if (!queue_->idle()) Abort("the group was closed while a collective was under way");
    // A failure that another rank of this host noted may not have reached the other hosts yet; rank
    // 0 would leave without having passed it on.
    if (const auto failure = local_->failure()) monitor_->Fail(*failure);
    queue_.reset();
    local_->Leave();
    monitor_->Leave();  // its thread uses the messenger until here
    messenger_.reset();
  }

  int rank() const override { return topology_.rank(); }
  int world() const override { return topology_.world(); }
  const std::shared_ptr<Arena>& arena() const override { return arena_; }
  std::uint64_t sequence() const override { return posted_.load(std::memory_order_relaxed); }
  void NotePeerReturned(int peer, std::uint64_t calls) override {
    if (Forked() || peer == rank()) return;
    messenger_->NotePeerReturned(peer);
    std::optional<Failure> failure;
    {
      const std::lock_guard lock(running_mutex_);
      if (!returned_ || calls < returned_->calls) returned_ = {.peer = peer, .calls = calls};
      failure = WaitsInVain();
    }
    if (failure) monitor_->Fail(*failure);
  }
  void ForgetReturned() override {
    messenger_->ForgetReturned();
    const std::lock_guard lock(running_mutex_);
    returned_.reset();
  }
  std::chrono::nanoseconds waited() const override {
    return local_->slept() + (mesh_ ? mesh_->slept() : std::chrono::nanoseconds(0));
  }

  std::string Describe() const override {
    const char* how = topology_.hosts() == 1                   ? "shared memory"
                      : topology_.hosts() == topology_.world() ? "TCP"
                                                               : "shared memory and TCP";
    return fmt::format("{} rank{} on {} host{}, {}", world(), world() == 1 ? "" : "s",
                       topology_.hosts(), topology_.hosts() == 1 ? "" : "s",
                       world() == 1 ? "alone" : how);
  }

  void Run(const Collective& call) override {
    CheckUsable();
    CheckCall(call, rank(), world());
    posted_.fetch_add(1, std::memory_order_relaxed);
    queue_->Run(call);
  }

  Work Start(Collective call, DoneCallback done) override {
    CheckUsable();
    CheckCall(call, rank(), world());
    posted_.fetch_add(1, std::memory_order_relaxed);
    return Work(queue_->Start(std::move(call), std::move(done)));
  }

  void Send(ConstBytes data, int peer, std::uint64_t tag) override {
    const auto state = messenger().StartSend(data, CheckPeer(peer), tag,
                                             Deadline::After(options_.timeout), nullptr);
    messenger_->Drive(*state);
    Work(state).Wait();
  }

  int Recv(Bytes data, int peer, std::uint64_t tag) override {
    const auto state = messenger().StartRecv(data, peer == kAnySource ? peer : CheckPeer(peer), tag,
                                             Deadline::After(options_.timeout), nullptr);
    messenger_->Drive(*state);
    const Work work(state);
    work.Wait();
    return work.source();
  }

  Work StartSend(ConstBytes data, int peer, std::uint64_t tag, DoneCallback done) override {
    messenger().EnsureThread();  // once the message is posted, nothing may fail any more
    auto state = messenger_->StartSend(data, CheckPeer(peer), tag,
                                       Deadline::After(options_.timeout), std::move(done));
    messenger_->DriveInBackground();
    return Work(std::move(state));
  }

  Work StartRecv(Bytes data, int peer, std::uint64_t tag, DoneCallback done) override {
    messenger().EnsureThread();
    auto state = messenger_->StartRecv(data, peer == kAnySource ? peer : CheckPeer(peer), tag,
                                       Deadline::After(options_.timeout), std::move(done));
    messenger_->DriveInBackground();
    return Work(std::move(state));
  }

  void Abort(const std::string& reason) override {
    if (Forked()) return;
    monitor_->Fail(
        {.code = Code::kAborted,
         .text = fmt::format("{} aborted the group: {}", topology_.Name(rank()), reason)});
  }

 private:
  // ---- joining
  // -------------------------------------------------------------------------------------------------

  void Join(const Membership& membership) {
    const Deadline deadline = Deadline::After(options_.connect_timeout);
    Rendezvous rendezvous(membership, deadline);
    const bool alone = membership.world == 1;  // Then nobody comes, and nobody is watched.
    std::string unix_name;
    UniqueFd unix_listener = alone ? UniqueFd() : net::ListenUnix(&unix_name);
    std::vector<Card> cards;
    for (const std::string& text :
         rendezvous.Meet("card", MakeCard(membership.rank, unix_name).Encode())) {
      cards.push_back(Card::Decode(text));
    }
    CheckCards(cards);
    topology_ = Topology(membership.rank, std::move(cards));
    secret_ = rendezvous.AgreeOnSecret();
    UniqueFd tcp_listener;
    if (topology_.hosts() > 1) {
      std::string bound;
      tcp_listener = net::ListenTcp(ListenAddress(), &bound);
      addresses_ = rendezvous.Meet("address", Reachable(bound));
    }
    SharedMemory memory;
    if (topology_.local_index() == 0) {
      const std::size_t bytes =
          LocalGroup::SegmentBytes(static_cast<int>(topology_.local_ranks().size()));
      CheckMemoryFor(bytes, "the group's shared memory");
      memory = SharedMemory::Create("orca-group", bytes);
      LocalGroup::Format(memory, static_cast<int>(topology_.local_ranks().size()));
      control_ = {.fd = memory.fd(), .bytes = bytes};
    } else {
      memory = FetchSegment(topology_.leader(topology_.host()), kControlSegment, deadline);
    }
    MakeParts(std::move(memory));
    if (!alone) monitor_->Listen(std::move(unix_listener), true);
    if (tcp_listener) monitor_->Listen(std::move(tcp_listener), false);
    monitor_->Start();
    if (rank() != 0) {
      net::SessionKeys keys;
      UniqueFd socket = Dial(0, Role::kControl, 0, deadline, &keys);
      monitor_->ConnectHub(std::move(socket), keys);
    }
    monitor_->WaitUntilReady(deadline, options_.cancelled);
    Log(LogLevel::kDebug, fmt::format("{} joined: {}", topology_.Name(rank()), Describe()));
  }

  Card MakeCard(int my_rank, const std::string& unix_name) const {
    Card card;
    card.version = ORCA_VERSION;
    card.options = fmt::format("transport={} streams={} wire_bf16={}", options_.transport,
                               options_.streams, options_.wire_bf16);
    card.host = options_.host.empty() ? HostIdentity() : options_.host;
    if (options_.transport == "tcp") card.host += fmt::format("/rank {}", my_rank);
    card.host_name = options_.host.empty() ? HostName() : options_.host;
    card.pid = ::getpid();
    card.unix_name = unix_name;
    card.cpus = AllowedCpus();
    return card;
  }

  // Ranks that only pretend to be on several hosts need no more than the loopback.
  std::string ListenAddress() const {
    if (!options_.address.empty()) return options_.address + ":0";
    const std::string identity = HostIdentity();
    for (int r = 0; r < world(); ++r) {
      if (!topology_.card(r).host.starts_with(identity)) return "0.0.0.0:0";
    }
    return "127.0.0.1:0";
  }

  std::string Reachable(const std::string& bound) const {
    if (!bound.starts_with("0.0.0.0:")) return bound;
    const std::string port = bound.substr(bound.rfind(':'));
    std::string all;
    for (const std::string& address : net::LocalAddresses()) {
      if (address.find(':') != std::string::npos) continue;  // listening on IPv4
      all += (all.empty() ? "" : " ") + address + port;
    }
    return all;
  }

  void MakeParts(SharedMemory memory) {
    const auto& local_ranks = topology_.local_ranks();
    std::vector<std::string> local_names;
    CpuSet cpus;
    for (const int r : local_ranks) {
      local_names.push_back(topology_.Name(r));
      cpus |= topology_.card(r).cpus;
    }
    const int cores = std::min(static_cast<int>(cpus.count()), CgroupCpuLimit());
    const bool roomy = static_cast<int>(local_ranks.size()) <= cores;
    const std::chrono::nanoseconds spin = roomy ? kSpin : std::chrono::microseconds(0);
    const LongWaitReport report =
        options_.on_long_wait ? options_.on_long_wait : [](const std::string& text, auto) {
          Log(LogLevel::kWarning, text);
        };
    local_ = std::make_unique<LocalGroup>(
        std::move(memory),
        LocalGroupOptions{.index = topology_.local_index(),
                          .size = static_cast<int>(local_ranks.size()),
                          .names = std::move(local_names),
                          .spin = spin,
                          .peer_timeout = options_.peer_timeout,
                          .warn_after = options_.warn_after,
                          .on_long_wait = report,
                          .map_segment = [this](int peer, std::uint32_t segment) {
                            const int owner =
                                topology_.local_ranks()[static_cast<std::size_t>(peer)];
                            return AskMember([&](const Deadline& deadline) {
                              return FetchSegment(owner, segment, deadline);
                            });
                          }});
    const auto failure = [this] { return local_->failure(); };
    mesh_ = std::make_unique<Mesh>(
        MeshOptions{.rank = rank(),
                    .names = topology_.Names(),
                    .streams = options_.streams > 0 ? options_.streams : kDefaultStreams,
                    .spin = spin,
                    .warn_after = options_.warn_after,
                    .on_long_wait = report,
                    .grace = NewsGrace(options_.peer_timeout),
                    .connect =
                        [this](int peer, int stream, const Deadline&) {
                          return DialMember(peer, Role::kData, static_cast<std::uint32_t>(stream));
                        },
                    .failure = failure,
                    .left = [this](int peer) { return monitor_->HasLeft(peer); }});
    messenger_ = std::make_unique<Messenger>(MessengerOptions{
        .rank = rank(),
        .names = topology_.Names(),
        .spin = spin,
        .grace = NewsGrace(options_.peer_timeout),
        .connect = [this](int peer,
                          const Deadline&) { return DialMember(peer, Role::kMessages, 0); },
        .failure = failure,
        .on_failure = [this](const Failure& f) { monitor_->Fail(f); }});
    monitor_ = std::make_unique<Monitor>(MonitorOptions{
        .rank = rank(),
        .world = world(),
        .names = topology_.Names(),
        .secret = secret_,
        .job = job_,
        .generation = generation_,
        .peer_timeout = options_.peer_timeout,
        .heartbeat = [this] { local_->Heartbeat(); },
        .on_left = [this] { mesh_->Wake(); },
        .on_failure = [this](const Failure& f) { Spread(f); },
        .on_connection =
            [this](net::Acceptor::Connection connection) { Serve(std::move(connection)); }});
  }

  // Connects to another rank: over a Unix socket on the same host, else over TCP.
  UniqueFd Dial(int peer, Role role, std::uint32_t index, const Deadline& deadline,
                net::SessionKeys* keys = nullptr) {
    UniqueFd socket;
    try {
      if (topology_.is_local(peer)) {
        socket = net::ConnectUnix(topology_.card(peer).unix_name, deadline);
      } else {
        std::vector<std::string> addresses;
        std::string rest = addresses_[static_cast<std::size_t>(peer)];
        while (!rest.empty()) {
          const auto space = rest.find(' ');
          addresses.push_back(rest.substr(0, space));
          rest = space == std::string::npos ? "" : rest.substr(space + 1);
        }
        socket = Reach(peer, addresses, deadline);
        net::TuneDataSocket(socket.get(), options_.peer_timeout);
      }
      const net::Hello hello{.job = job_,
                             .generation = generation_,
                             .role = static_cast<std::uint32_t>(role),
                             .rank = static_cast<std::uint32_t>(rank()),
                             .index = index};
      const net::SessionKeys agreed = net::ConnectHandshake(socket.get(), secret_, hello, deadline);
      if (keys != nullptr) *keys = agreed;
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{} cannot connect to {}: {}", topology_.Name(rank()),
                                            topology_.Name(peer), error.what()));
    }
    return socket;
  }

  // Whoever does not answer for so long is lost anyway.
  Deadline DialDeadline() const {
    return Deadline::After(
        std::min<CommOptions::Milliseconds>(kDialPatience, options_.peer_timeout));
  }

  // A rank of the running group that cannot be reached has died or fallen silent; the group may
  // know more about it.
  template <typename Body>
  std::invoke_result_t<Body, Deadline> AskMember(Body body) {
    try {
      return body(DialDeadline());
    } catch (const Error& error) {
      if (error.code() == Code::kResourceExhausted) throw;
      const Failure first = FirstCause(
          {.code = Code::kPeerLost, .text = error.what() + WhoLeft()},
          [this] { return local_->failure(); }, NewsGrace(options_.peer_timeout));
      throw Error(first.code, first.text);
    }
  }

  // Whoever cannot be reached may have given up because another had gone before.
  std::string WhoLeft() const {
    std::string gone;
    for (int r = 0; r < world(); ++r) {
      if (monitor_->HasLeft(r))
        gone += (gone.empty() ? "; before that, " : ", ") + topology_.Name(r);
    }
    return gone.empty() ? gone : gone + " left the group";
  }

  UniqueFd DialMember(int peer, Role role, std::uint32_t index) {
    return AskMember([&](const Deadline& deadline) { return Dial(peer, role, index, deadline); });
  }

  // Connects; while nobody answers, looks now and then whether the group has ended.
  UniqueFd Reach(int peer, const std::vector<std::string>& addresses, const Deadline& deadline) {
    // Where there are several, the first may be silent: ConnectTcp gives each a second.
    CommOptions::Milliseconds slice =
        addresses.size() == 1 ? kFirstReach : std::chrono::seconds(addresses.size());
    for (;; slice *= 2) {
      try {
        return net::ConnectTcp(addresses, Deadline::After(std::min(slice, deadline.Left())));
      } catch (const Error& error) {
        if (error.code() != Code::kUnavailable || deadline.Passed() || monitor_->HasLeft(peer))
          throw;
        const Failure unknown{.code = error.code(), .text = error.what()};
        const Failure first = FirstCause(
            unknown, [this] { return local_->failure(); }, kDialPause);
        if (first.text != unknown.text) throw Error(first.code, first.text);
      }
    }
  }

  SharedMemory FetchSegment(int owner, std::uint32_t segment, const Deadline& deadline) {
    const UniqueFd socket = Dial(owner, Role::kSegment, segment, deadline);
    std::uint64_t bytes = 0;
    net::RecvAll(socket.get(), std::as_writable_bytes(std::span(&bytes, 1)), deadline);
    return SharedMemory::Map(net::RecvFd(socket.get(), deadline), bytes);
  }

  // ---- on the monitor's thread
  // ---------------------------------------------------------------------------------

  void Serve(net::Acceptor::Connection connection) {
    const int peer = static_cast<int>(connection.hello.rank);
    switch (static_cast<Role>(connection.hello.role)) {
      case Role::kData:
        if (!connection.local) net::TuneDataSocket(connection.socket.get(), options_.peer_timeout);
        mesh_->AddStream(peer, std::move(connection.socket));
        return;
      case Role::kMessages:
        if (!connection.local) net::TuneDataSocket(connection.socket.get(), options_.peer_timeout);
        messenger_->AddLink(peer, std::move(connection.socket));
        return;
      case Role::kSegment:
        if (connection.local) ServeSegment(connection.socket.get(), connection.hello.index);
        return;
      case Role::kControl:
        return;
    }
  }

  void ServeSegment(int socket, std::uint32_t index) {
    try {
      const auto descriptor = index == kControlSegment ? control_ : segments_.segment(index);
      const Deadline deadline = Deadline::After(kSegmentPatience);
      net::SendAll(socket, std::as_bytes(std::span(&descriptor.bytes, 1)), deadline);
      net::SendFd(socket, descriptor.fd, deadline);
    } catch (const Error& error) {
      Log(LogLevel::kWarning, fmt::format("cannot hand over shared memory: {}", error.what()));
    }
  }

  void Spread(const Failure& failure) {
    local_->Abort(failure);
    mesh_->Wake();
    messenger_->Wake();
  }

  // ---- running collectives
  // -------------------------------------------------------------------------------------

  bool Forked() const { return ForkCount() != forks_; }

  void CheckUsable() const {
    if (Forked()) {
      throw Error(Code::kFailedPrecondition,
                  fmt::format("this process was forked from {}, whose group it cannot use; form a "
                              "group of its own, or "
                              "start it by spawn instead of fork",
                              topology_.Name(rank())));
    }
    if (const auto failure = local_->failure()) throw Error(failure->code, failure->text);
  }

  int CheckPeer(int peer) const {
    if (peer >= 0 && peer < world() && peer != rank()) return peer;
    throw Error(Code::kInvalidArgument,
                fmt::format("rank {} cannot exchange messages with rank {} in a group of {}",
                            rank(), peer, world()));
  }

  Messenger& messenger() {
    CheckUsable();
    return *messenger_;
  }

  void Execute(const Collective& call) {
    const std::uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
    sequence_.store(sequence, std::memory_order_relaxed);
    const Running running(*this, call.op, sequence);
    try {
      if (const auto failure = running.WaitsInVain()) throw Error(failure->code, failure->text);
      if (const auto failure = local_->failure()) throw Error(failure->code, failure->text);
      const auto timeout = call.timeout.count() > 0 ? call.timeout : options_.timeout;
      const CallRecord record = RecordOf(call, segments_, topology_.hosts() == 1);
      MoveIntoPlace(call, rank());
      if (topology_.hosts() > 1) mesh_->Begin(sequence, record, Deadline::After(timeout));
      local_->Arrive(sequence, record, ArrivalPayload(call, record, rank()), timeout);
      Group group{
          .topology = topology_, .local = *local_, .mesh = *mesh_, .wire_bf16 = options_.wire_bf16};
      Dispatch(group, call);
    } catch (const Error& error) {
      monitor_->Fail({.code = error.code(), .text = error.what()});
      throw;
    } catch (const std::exception& error) {
      const Failure failure{.code = Code::kResourceExhausted,
                            .text = fmt::format("{} failed in {} #{}: {}", topology_.Name(rank()),
                                                Name(call.op), sequence, error.what())};
      monitor_->Fail(failure);
      throw Error(failure.code, failure.text);
    }
  }

  /// The collective under way, for who learns meanwhile that a rank has returned.
  class Running {
   public:
    Running(GroupCommunicator& group, Op op, std::uint64_t sequence) : group_(group) {
      const std::lock_guard lock(group_.running_mutex_);
      group_.running_ = {op, sequence};
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running() {
      const std::lock_guard lock(group_.running_mutex_);
      group_.running_.reset();
    }
    std::optional<Failure> WaitsInVain() const {
      const std::lock_guard lock(group_.running_mutex_);
      return group_.WaitsInVain();
    }

   private:
    GroupCommunicator& group_;
  };

  // Why the collective under way cannot end, if a rank has returned that did not come; the caller
  // holds running_mutex_.
  std::optional<Failure> WaitsInVain() const {
    if (!returned_ || !running_ || running_->second <= returned_->calls) return std::nullopt;
    return Failure{
        .code = Code::kMismatch,
        .text = fmt::format("{} has returned, while {} waits in {} #{} for it; all ranks "
                            "must make the same collective calls",
                            topology_.Name(returned_->peer), topology_.Name(rank()),
                            Name(running_->first), running_->second)};
  }

  // Whether the call is short and everybody else is in it already.
  bool IsReady(const Collective& call) const {
    if (topology_.hosts() > 1) return false;
    std::size_t bytes = 0;
    for (const ConstBytes& input : call.inputs) bytes += input.size();
    for (const Bytes& output : call.outputs) bytes += output.size();
    return bytes <= kShortCall &&
           local_->PeersArrived(sequence_.load(std::memory_order_relaxed) + 1);
  }

  static void Dispatch(Group& group, const Collective& call) {
    switch (call.op) {
      case Op::kBarrier:
        return RunBarrier(group);
      case Op::kAllReduce:
        return RunAllReduce(group, call);
      case Op::kReduce:
        return RunReduce(group, call);
      case Op::kBroadcast:
        return RunBroadcast(group, call);
      case Op::kAllGather:
        return RunAllGather(group, call);
      case Op::kReduceScatter:
        return RunReduceScatter(group, call);
      case Op::kAllToAll:
        return RunAllToAll(group, call);
      case Op::kGather:
        return RunGather(group, call);
      case Op::kScatter:
        return RunScatter(group, call);
    }
  }

  CommOptions options_;
  std::uint64_t generation_;
  std::array<std::uint8_t, 16> job_;
  std::uint64_t forks_;
  std::shared_ptr<Arena> arena_;
  SegmentArena& segments_;
  net::Secret secret_;
  Topology topology_;
  std::vector<std::string> addresses_;  // "host:port host:port", one entry a rank
  SegmentArena::Descriptor control_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> posted_{0};  // calls; those that were started may not run yet

  struct Returned {
    int peer = 0;
    std::uint64_t calls = 0;
  };
  std::mutex running_mutex_;  // guards the next two
  std::optional<std::pair<Op, std::uint64_t>> running_;
  std::optional<Returned> returned_;  // the peer that made the fewest calls

  std::unique_ptr<LocalGroup> local_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Messenger> messenger_;
  std::unique_ptr<Monitor> monitor_;  // its thread uses those above
  std::unique_ptr<CallQueue> queue_;
};

}  // namespace

std::unique_ptr<Communicator> Communicator::Connect(const Membership& membership,
                                                    const CommOptions& options) {
  return std::make_unique<GroupCommunicator>(membership, options);
}

}  // namespace orca::comm
