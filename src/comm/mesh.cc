#include "comm/mesh.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "orca/core/log.h"
#include "orca/core/mutant.h"

namespace orca::comm {
namespace {

using Clock = Deadline::Clock;
using Seconds = std::chrono::duration<double>;

constexpr std::size_t kPieceBytes = std::size_t{512} << 10;
constexpr std::chrono::milliseconds kNap(100);

net::FrameHeader HeaderFor(const CallRecord& record, std::uint64_t sequence) {
  net::FrameHeader header;
  header.sequence = sequence;
  header.op = static_cast<std::uint8_t>(record.op);
  header.dtype = static_cast<std::uint8_t>(record.dtype);
  header.reduce = static_cast<std::uint8_t>(record.reduce);
  header.root = record.root;
  header.count = record.count;
  return header;
}

CallRecord RecordOf(const net::FrameHeader& header) {
  CallRecord record;
  record.op = static_cast<Op>(header.op);
  record.dtype = static_cast<DType>(header.dtype);
  record.reduce = static_cast<ReduceOp>(header.reduce);
  record.root = header.root;
  record.count = header.count;
  return record;
}

}  // namespace

/// One other rank: the messages that go there and come from there, and the streams that carry them.
class Mesh::Peer final : public FrameSink {
 public:
  Peer(Mesh& mesh, int rank)
      : mesh_(mesh), rank_(rank), name_(mesh.options_.names[static_cast<std::size_t>(rank)]) {}

  void Connect() {
    while (writers_.size() < static_cast<std::size_t>(mesh_.options_.streams)) {
      writers_.emplace_back(
          mesh_.options_.connect(rank_, static_cast<int>(writers_.size()), mesh_.deadline_), name_);
    }
  }
  void AddReader(UniqueFd socket) {
    readers_.emplace_back(std::move(socket), name_);
    patience_.reset();
  }

  void Post(ConstBytes data) { sends_.push_back({.data = data}); }
  std::uint64_t Post(Bytes data) {
    recvs_.push_back({.data = data, .sequence = mesh_.sequence_});
    return first_recv_ + recvs_.size() - 1;
  }
  bool Received(std::uint64_t number) const { return number < first_recv_; }
  bool SendsDone() const {
    return sends_.empty() &&
           std::all_of(writers_.begin(), writers_.end(), [](const auto& w) { return w.idle(); });
  }
  bool RecvsDone() const { return recvs_.empty(); }
  // Whether the streams that have come do not carry what is expected.
  bool WaitsForAStream() const {
    return !recvs_.empty() && std::all_of(readers_.begin(), readers_.end(),
                                          [](const auto& reader) { return reader.closed(); });
  }
  // Of a rank that has left: for `grace` no stream has come that it opened before.
  bool IsGone(std::chrono::milliseconds grace) {
    if (!patience_) patience_ = Deadline::After(grace);
    return patience_->Passed();
  }
  const std::string& name() const { return name_; }

  bool Progress() {
    // One piece, then the other direction: what fills the socket's buffers meanwhile has left the
    // caches when it is read.
    bool moved = SendPiece();
    if (!recvs_.empty()) {
      for (FrameReader& reader : readers_) moved |= reader.TryRecv(*this);
      // While some streams are on their way, others may have done their part and be closed.
      const bool all_came = readers_.size() >= static_cast<std::size_t>(mesh_.options_.streams);
      if (all_came && WaitsForAStream()) {
        throw Error(Code::kPeerLost,
                    fmt::format("{} closed its connections: it left, exited or was killed", name_));
      }
    }
    return moved;
  }

  void AppendPollFds(std::vector<pollfd>& fds) const {
    for (const FrameWriter& writer : writers_) {
      if (!writer.idle()) fds.push_back({.fd = writer.fd(), .events = POLLOUT, .revents = 0});
    }
    if (recvs_.empty()) return;
    for (const FrameReader& reader : readers_) {
      if (!reader.held() && !reader.closed())
        fds.push_back({.fd = reader.fd(), .events = POLLIN, .revents = 0});
    }
  }

  std::optional<Bytes> Place(const net::FrameHeader& header) override {
    if (header.message >= first_recv_ + recvs_.size())
      return std::nullopt;  // the peer is ahead of us
    if (header.message < first_recv_) {
      throw Error(Code::kPeerLost, fmt::format("{} repeated message {}", name_, header.message));
    }
    const Incoming& incoming = recvs_[header.message - first_recv_];
    CheckCall(header, incoming);
    return incoming.data.subspan(header.offset, header.length);
  }

  void Finish(const net::FrameHeader& header) override {
    Incoming& incoming = recvs_[header.message - first_recv_];
    incoming.received += header.length;
    incoming.begun = true;
    while (!recvs_.empty() && recvs_.front().begun &&
           recvs_.front().received == recvs_.front().data.size()) {
      recvs_.pop_front();
      ++first_recv_;
    }
  }

 private:
  struct Outgoing {
    ConstBytes data;
    std::size_t begun = 0;  // bytes handed to streams
  };
  struct Incoming {
    Bytes data;
    std::uint64_t sequence = 0;
    std::size_t received = 0;
    bool begun = false;  // tells an empty message that has arrived from one that has not
  };

  // The streams take turns; one that is full leaves its turn to the next.
  bool SendPiece() {
    for (std::size_t tried = 0; tried < writers_.size(); ++tried) {
      FrameWriter& writer = writers_[turn_++ % writers_.size()];
      if (writer.idle() && !BeginPiece(writer)) continue;
      if (writer.TrySend()) return true;
    }
    return false;
  }

  bool BeginPiece(FrameWriter& writer) {
    if (sends_.empty()) return false;
    Outgoing& outgoing = sends_.front();
    const std::size_t length = std::min(kPieceBytes, outgoing.data.size() - outgoing.begun);
    net::FrameHeader header = HeaderFor(mesh_.record_, mesh_.sequence_);
    header.message = first_send_;
    header.offset = outgoing.begun;
    header.total = outgoing.data.size();
    writer.Begin(header, outgoing.data.subspan(outgoing.begun, length));
    outgoing.begun += length;
    if (outgoing.begun == outgoing.data.size()) {
      sends_.pop_front();
      ++first_send_;
    }
    return true;
  }

  void CheckCall(const net::FrameHeader& header, const Incoming& incoming) const {
    const auto mine = mesh_.options_.names[static_cast<std::size_t>(mesh_.options_.rank)];
    const CallRecord theirs = RecordOf(header);
    if ((header.sequence != incoming.sequence || !theirs.Matches(mesh_.record_)) &&
        !IsMutant("same-call")) {
      throw Error(Code::kMismatch,
                  DescribeMismatch(mine, mesh_.record_, name_, theirs, header.sequence));
    }
    if (header.total != incoming.data.size()) {
      throw Error(Code::kMismatch,
                  fmt::format("{}: {} sends {} bytes, but {} expects {}; give both the same size",
                              Describe(mesh_.record_, mesh_.sequence_), name_, header.total, mine,
                              incoming.data.size()));
    }
    if (header.offset > incoming.data.size() ||
        header.length > incoming.data.size() - header.offset) {
      throw Error(Code::kPeerLost,
                  fmt::format("{} sent a piece that lies outside its message", name_));
    }
  }

  Mesh& mesh_;
  int rank_;
  std::string name_;
  std::deque<FrameWriter> writers_;
  std::size_t turn_ = 0;  // of writers_
  std::deque<FrameReader> readers_;
  std::optional<Deadline> patience_;  // See IsGone().
  std::deque<Outgoing> sends_;
  std::deque<Incoming> recvs_;
  std::uint64_t first_send_ = 0;  // number of sends_.front()
  std::uint64_t first_recv_ = 0;
};

Mesh::Mesh(MeshOptions options)
    : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error(Code::kResourceExhausted, DescribeLimitError(errno));
}

Mesh::~Mesh() = default;

void Mesh::AddStream(int peer, UniqueFd socket) {
  {
    const std::lock_guard lock(mutex_);
    arrived_.emplace_back(peer, std::move(socket));
    any_arrived_.store(true);
  }
  Wake();
}

void Mesh::Wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

void Mesh::Begin(std::uint64_t sequence, const CallRecord& record, const Deadline& deadline) {
  sequence_ = sequence;
  record_ = record;
  deadline_ = deadline;
}

Mesh::Peer& Mesh::peer(int rank) {
  auto& entry = peers_[rank];
  if (!entry) entry = std::make_unique<Peer>(*this, rank);
  return *entry;
}

void Mesh::Send(int rank, ConstBytes data) {
  Peer& to = peer(rank);
  to.Connect();
  to.Post(data);
}

std::uint64_t Mesh::Recv(int rank, Bytes data) { return peer(rank).Post(data); }

void Mesh::Wait(int rank, std::uint64_t number) {
  const Peer& from = peer(rank);
  ProgressUntil([&] { return from.Received(number); });
}

void Mesh::Flush() {
  ProgressUntil([this] {
    return std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
      return entry.second->SendsDone() && entry.second->RecvsDone();
    });
  });
}

void Mesh::AdoptStreams() {
  if (!any_arrived_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  for (auto& [rank, socket] : arrived_) peer(rank).AddReader(std::move(socket));
  arrived_.clear();
  any_arrived_.store(false);
}

bool Mesh::Progress() {
  AdoptStreams();
  bool moved = false;
  for (const auto& [rank, entry] : peers_) moved |= entry->Progress();
  return moved;
}

template <typename Done>
void Mesh::ProgressUntil(Done done) {
  const auto since = Clock::now();
  auto spin_until = since + options_.spin;
  int warnings = 0;
  while (!done()) {
    try {
      if (Progress()) {
        spin_until = Clock::now() + options_.spin;
        continue;
      }
    } catch (const Error& error) {
      if (error.code() != Code::kPeerLost) throw;
      const Failure echo{.code = error.code(),
                         .text = fmt::format("{}; {}", error.what(), DescribeWait(since))};
      Failure first = FirstCause(echo, options_.failure, options_.grace);
      // Not before: that somebody left is news, too, and may come later than what others made of
      // it.
      const bool is_echo = first.text == echo.text;
      for (std::size_t rank = 0; is_echo && rank < options_.names.size(); ++rank) {
        if (options_.left(static_cast<int>(rank)))
          first.text += fmt::format("; {} had left", options_.names[rank]);
      }
      throw Error(first.code, first.text);
    }
    if (Clock::now() < spin_until) continue;
    CheckForTrouble(since, &warnings);
    Sleep(std::clamp(deadline_.Left(), std::chrono::milliseconds(1), kNap));
  }
}

void Mesh::Sleep(std::chrono::milliseconds limit) {
  std::vector<pollfd> fds{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& [rank, entry] : peers_) entry->AppendPollFds(fds);
  const auto since = Clock::now();
  ::poll(fds.data(), fds.size(), static_cast<int>(limit.count()));
  slept_ += Clock::now() - since;
  if (fds.front().revents != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof(count));
  }
}

void Mesh::CheckForTrouble(Clock::time_point since, int* warnings) {
  if (const auto failure = options_.failure()) throw Error(failure->code, failure->text);
  for (const auto& [rank, entry] : peers_) {
    if (!entry->WaitsForAStream() || !options_.left(rank)) continue;
    AdoptStreams();  // It may have connected, sent all and gone; the news may have been quicker.
    if (!entry->WaitsForAStream() || !entry->IsGone(options_.grace)) continue;
    throw Error(Code::kPeerLost,
                fmt::format("{}; {} has left the group", DescribeWait(since), entry->name()));
  }
  if (deadline_.Passed()) {
    // The rank that this one waits for may itself wait for another, and know better who is missing.
    const Failure echo{.code = Code::kTimeout,
                       .text = fmt::format("{}; the deadline has passed", DescribeWait(since))};
    const Failure first = FirstCause(echo, options_.failure, options_.grace);
    throw Error(first.code, first.text);
  }
  if (const auto waited = Clock::now() - since;
      waited > NextWarning(options_.warn_after, *warnings)) {
    ++*warnings;
    options_.on_long_wait(DescribeWait(since),
                          std::chrono::duration_cast<std::chrono::milliseconds>(waited));
  }
}

std::string Mesh::DescribeWait(Clock::time_point since) const {
  std::string whom;
  for (const auto& [rank, entry] : peers_) {
    if (entry->RecvsDone() && entry->SendsDone()) continue;
    whom += (whom.empty() ? "" : ", ") + entry->name() +
            (entry->RecvsDone() ? " to take its data" : "");
  }
  return fmt::format("{} waits in {} for {}; waited {:.1f} s",
                     options_.names[static_cast<std::size_t>(options_.rank)],
                     Describe(record_, sequence_), whom, Seconds(Clock::now() - since).count());
}

}  // namespace orca::comm
