#include "comm/local_group.h"

#include <fmt/format.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "orca/core/futex.h"
#include "orca/core/log.h"

namespace orca::comm {
namespace {

constexpr std::uint64_t kMagic = 0x32'6d'6d'6f'63'72'6f'31;  // changes with the layout
constexpr std::size_t kLine = 64;
// Words that peers spin on keep this distance from what their owner writes: the hardware fetches
// neighbouring lines, too, and would take them away from the writer.
constexpr std::size_t kSpace = 512;
constexpr std::size_t kStagingTarget = std::size_t{48} << 20;  // for all ranks of a host together
constexpr std::size_t kStagingMin = std::size_t{64} << 10;
constexpr std::size_t kStagingMax = std::size_t{512} << 10;
// Polls before the first pause, which lasts as long as a flag takes to come from another core.
constexpr unsigned kEagerSpins = 100;
constexpr std::chrono::milliseconds kShortestNap(1);
constexpr std::chrono::milliseconds kLongestNap(100);  // how often a sleeper looks after its peers

using Clock = Deadline::Clock;
using Seconds = std::chrono::duration<double>;

void Relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Keeps stores before it from being seen after loads behind it. The thread sanitizer does not know
// fences, only operations; one on a word of our own has the same effect.
void FullFence() {
#if defined(__SANITIZE_THREAD__)
  thread_local std::atomic<int> own{0};
  own.exchange(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

std::size_t StagingBytes(int size) {
  const std::size_t share =
      kStagingTarget / static_cast<std::size_t>(size) / LocalGroup::kStagingBuffers;
  return std::clamp(share / kStagingMin * kStagingMin, kStagingMin, kStagingMax);
}

// An arrival in two words. A peer is at most one call behind, so a few bits of the number tell
// calls apart.
constexpr int kSequenceBits = 16;
constexpr std::uint64_t kSequenceMask = (std::uint64_t{1} << kSequenceBits) - 1;
constexpr int kOffsetBits = 47;
constexpr std::uint64_t kRegistered = std::uint64_t{1} << 63;

std::uint64_t Fingerprint(const CallRecord& record, std::uint64_t sequence) {
  // Odd factors and shifts, so that every field reaches the upper bits.
  std::uint64_t hash =
      record.count * 0x9e3779b97f4a7c15 + std::uint64_t{record.cut} * 0x2545f4914f6cdd1d;
  hash ^= hash >> 29;
  hash += (static_cast<std::uint64_t>(record.op) << 48) ^
          (static_cast<std::uint64_t>(record.dtype) << 40) ^
          (static_cast<std::uint64_t>(record.reduce) << 32) ^
          static_cast<std::uint32_t>(record.root);
  hash *= 0xbf58476d1ce4e5b9;
  hash ^= hash >> 32;
  hash *= 0x94d049bb133111eb;
  return (hash & ~kSequenceMask) | (sequence & kSequenceMask);
}

std::uint64_t PackPlace(const CallRecord& record) {
  if (!record.registered) return 0;
  return kRegistered | (std::uint64_t{record.segment} << kOffsetBits) | record.offset;
}

// Stores two neighbouring words so that whoever sees the first sees the second, and all that was
// written before. On x86-64 it is one store: aligned 16-byte stores are atomic on every processor
// with AVX.
void StoreBoth(std::atomic<std::uint64_t>& first, std::uint64_t first_value,
               std::atomic<std::uint64_t>& second, std::uint64_t second_value) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  std::atomic_signal_fence(std::memory_order_release);  // stores are not reordered by the processor
  _mm_store_si128(
      reinterpret_cast<__m128i*>(&first),
      _mm_set_epi64x(static_cast<long long>(second_value), static_cast<long long>(first_value)));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  (void)second;
#else
  second.store(second_value, std::memory_order_relaxed);
  first.store(first_value, std::memory_order_release);
#endif
}

enum AbortState : std::uint32_t { kNone, kWriting, kSet };

}  // namespace

/// At the front of the segment. Words that different ranks write sit on lines of their own.
struct alignas(kSpace) LocalGroup::Header {
  std::uint64_t magic = 0;
  std::int32_t size = 0;
  alignas(kLine) std::atomic<std::uint32_t> doorbell{0};
  alignas(kLine) std::atomic<std::uint32_t> sleepers{0};
  alignas(kLine) std::atomic<std::uint64_t> tickets{0};
  alignas(kLine) std::atomic<std::uint32_t> abort_state{kNone};
  Code abort_code = Code::kAborted;
  std::array<char, 1900> abort_text{};
};

/// One rank's place. Arrivals alternate between two entries: a rank can be at most one call ahead
/// of its slowest peer.
///
/// A line that peers spin on is taken away from its writer between any two stores, so an arrival is
/// one store of 16 bytes; what few calls need is kept on another line, which stays with its writer.
struct LocalGroup::Slot {
  struct alignas(kSpace) Arrival {
    std::atomic<std::uint64_t> flag{
        0};  // kSequenceBits of the call's number, the rest of its fingerprint
    std::atomic<std::uint64_t> place{0};  // of the registered buffer; see PackPlace
  };
  struct alignas(kLine) Details {
    std::atomic<std::uint64_t> sequence{0};
    CallRecord record;
  };
  struct alignas(kSpace) Payload {
    std::array<std::byte, kInlineBytes> bytes;
  };
  alignas(kSpace) std::atomic<std::uint64_t> phase{0};
  alignas(kSpace) std::atomic<std::int64_t> heartbeat{
      0};  // nanoseconds of the monotonic clock, the same for all
  std::atomic<bool> left{false};
  std::array<Arrival, 2> arrivals;
  std::array<Details, 2> details;
  std::array<Payload, 2> payloads;
};

std::size_t LocalGroup::SegmentBytes(int size) {
  const auto ranks = static_cast<std::size_t>(size);
  return sizeof(Header) + ranks * sizeof(Slot) + ranks * kStagingBuffers * StagingBytes(size);
}

void LocalGroup::Format(SharedMemory& memory, int size) {
  auto* header = new (memory.data()) Header;
  header->size = size;
  for (int peer = 0; peer < size; ++peer) {
    new (memory.data() + sizeof(Header) + static_cast<std::size_t>(peer) * sizeof(Slot)) Slot;
  }
  header->magic = kMagic;
}

LocalGroup::LocalGroup(SharedMemory memory, LocalGroupOptions options)
    : memory_(std::move(memory)),
      options_(std::move(options)),
      header_(reinterpret_cast<Header*>(memory_.data())),
      staging_bytes_(StagingBytes(options_.size)),
      segments_(static_cast<std::size_t>(options_.size)),
      buffers_(static_cast<std::size_t>(options_.size)) {
  if (header_->magic != kMagic || header_->size != options_.size) {
    throw Error(Code::kPeerLost,
                "the group's shared memory was made by another version of orca; use one version");
  }
  Heartbeat();
}

LocalGroup::~LocalGroup() = default;

LocalGroup::Slot& LocalGroup::slot(int peer) const {
  return *reinterpret_cast<Slot*>(memory_.data() + sizeof(Header) +
                                  static_cast<std::size_t>(peer) * sizeof(Slot));
}

std::byte* LocalGroup::staging(int peer, std::size_t buffer) const {
  const auto size = static_cast<std::size_t>(options_.size);
  const std::size_t index =
      static_cast<std::size_t>(peer) * kStagingBuffers + buffer % kStagingBuffers;
  return memory_.data() + sizeof(Header) + size * sizeof(Slot) + index * staging_bytes_;
}

const CallRecord& LocalGroup::record(int peer) const {
  return slot(peer).details[sequence_ & 1].record;
}

bool LocalGroup::registered(int peer) const {
  return (slot(peer).arrivals[sequence_ & 1].place.load(std::memory_order_relaxed) & kRegistered) !=
         0;
}

const std::byte* LocalGroup::payload(int peer) const {
  return slot(peer).payloads[sequence_ & 1].bytes.data();
}

bool LocalGroup::Arrived(int peer, std::uint64_t sequence) const {
  const std::uint64_t flag = slot(peer).arrivals[sequence & 1].flag.load(std::memory_order_acquire);
  return (flag & kSequenceMask) == (sequence & kSequenceMask);
}

bool LocalGroup::PeersArrived(std::uint64_t sequence) const {
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer != options_.index && !Arrived(peer, sequence)) return false;
  }
  return true;
}

bool LocalGroup::Synced(int peer) const {
  return slot(peer).phase.load(std::memory_order_acquire) >= phase_;
}

void LocalGroup::Arrive(std::uint64_t sequence, const CallRecord& record,
                        std::span<const ConstBytes> payload, std::chrono::milliseconds timeout) {
  sequence_ = sequence;
  timeout_ = timeout;
  deadline_.reset();
  Slot& own = slot(options_.index);
  Slot::Details& details = own.details[sequence & 1];
  details.record = record;
  details.sequence.store(sequence, std::memory_order_relaxed);
  std::byte* const room = own.payloads[sequence & 1].bytes.data();
  std::size_t filled = 0;
  for (const ConstBytes part : payload) {
    if (!part.empty()) std::memcpy(room + filled, part.data(), part.size());
    filled += part.size();
  }
  Slot::Arrival& arrival = own.arrivals[sequence & 1];
  const std::uint64_t fingerprint = Fingerprint(record, sequence);
  StoreBoth(arrival.flag, fingerprint, arrival.place, PackPlace(record));
  Wait([this](int peer) { return Arrived(peer, sequence_); });
  CheckRecords(fingerprint);
}

void LocalGroup::Sync() {
  ++phase_;
  slot(options_.index).phase.store(phase_, std::memory_order_release);
  Wait([this](int peer) { return Synced(peer); });
}

std::uint64_t LocalGroup::TakeTicket() {
  return header_->tickets.fetch_add(1, std::memory_order_relaxed);
}

void LocalGroup::ResetTickets() {
  // The next ticket is taken behind an arrival, which everybody waits for.
  if (options_.index == 0) header_->tickets.store(0, std::memory_order_relaxed);
}

// Whoever finds that all have arrived wakes those who sleep. For a sleeper never to be missed, our
// flag must be visible before we look for sleepers, and that takes a fence, which costs as much as
// the whole exchange. Where ranks have cores of their own and spin first, we do without: a peer
// would have to fall asleep in just that moment, and its first naps are short. Where ranks share
// cores, sleeping is the rule, and the fence is worth it.
template <typename Reached>
void LocalGroup::Wait(Reached reached) {
  if (!Spin(reached)) {
    WaitAsleep(reached);
    return;
  }
  if (options_.spin.count() == 0) FullFence();
  if (header_->sleepers.load(std::memory_order_acquire) != 0) Ring();
}

template <typename Reached>
bool LocalGroup::Spin(Reached reached) const {
  Clock::time_point limit{};
  for (int peer = 0; peer < options_.size; ++peer) {
    for (unsigned spins = 1; !reached(peer); ++spins) {
      if (options_.spin.count() == 0) return false;
      if (spins < kEagerSpins) continue;
      Relax();
      if (spins % 64 != 0) continue;
      const auto now = Clock::now();
      if (limit == Clock::time_point{}) {
        limit = now + options_.spin;
      } else if (now > limit) {
        return false;
      }
    }
  }
  return true;
}

void LocalGroup::WaitAsleep(const std::function<bool(int)>& reached) {
  const auto since = Clock::now();
  if (!deadline_) deadline_ = Deadline::After(timeout_);
  int warnings = 0;
  const auto all_reached = [&] {
    for (int peer = 0; peer < options_.size; ++peer) {
      if (!reached(peer)) return false;
    }
    return true;
  };
  struct Sleeper {
    explicit Sleeper(LocalGroup& group) : group_(group) { group_.header_->sleepers.fetch_add(1); }
    ~Sleeper() {
      group_.header_->sleepers.fetch_sub(1);
      group_.slept_ += Clock::now() - since_;
    }
    LocalGroup& group_;
    const Clock::time_point since_ = Clock::now();
  } sleeper(*this);
  FullFence();
  const std::uint32_t bell_before = header_->doorbell.load();
  // A missed bell is possible only where ranks spin; see Wait.
  std::chrono::milliseconds nap = options_.spin.count() == 0 ? kLongestNap : kShortestNap;
  for (;; nap = std::min(2 * nap, kLongestNap)) {
    const std::uint32_t bell = header_->doorbell.load();
    if (all_reached()) {
      // Nobody rang: this rank was the last, without having seen it while it spun.
      if (bell == bell_before && header_->sleepers.load() > 1) Ring();
      return;
    }
    CheckForTrouble(reached, since, &warnings);
    FutexWait(header_->doorbell, bell,
              std::clamp(deadline_->Left(), std::chrono::milliseconds(1), nap));
  }
}

void LocalGroup::CheckForTrouble(const std::function<bool(int)>& reached, Clock::time_point since,
                                 int* warnings) {
  if (const auto ended = failure()) throw Error(ended->code, ended->text);
  const auto now = Clock::now();
  int first_missing = -1;
  for (int peer = 0; peer < options_.size; ++peer) {
    if (reached(peer)) continue;
    if (first_missing < 0) first_missing = peer;
    const Slot& other = slot(peer);
    if (other.left.load(std::memory_order_acquire) && !reached(peer)) {
      throw Error(Code::kPeerLost,
                  fmt::format("{}; it has left the group", DescribeWait(peer, since)));
    }
    const auto silence = now.time_since_epoch() - std::chrono::nanoseconds(other.heartbeat.load());
    if (silence > options_.peer_timeout) {
      throw Error(
          Code::kPeerLost,
          fmt::format(
              "{}; it has been silent for {:.1f} s (limit {:.1f} s): stopped, frozen or starved",
              DescribeWait(peer, since), Seconds(silence).count(),
              Seconds(options_.peer_timeout).count()));
    }
  }
  if (first_missing < 0) return;
  if (deadline_->Passed()) {
    std::string missing;
    for (int peer = 0; peer < options_.size; ++peer) {
      if (!reached(peer))
        missing += (missing.empty() ? "" : ", ") + options_.names[static_cast<std::size_t>(peer)];
    }
    throw Error(Code::kTimeout, fmt::format("{}; the deadline has passed; missing: {}",
                                            DescribeWait(first_missing, since), missing));
  }
  // One waiting rank speaks for all: the first that is not itself missing.
  const bool speaks = options_.index == (first_missing == 0 ? 1 : 0);
  if (speaks && now - since > NextWarning(options_.warn_after, *warnings)) {
    ++*warnings;
    options_.on_long_wait(DescribeWait(first_missing, since),
                          std::chrono::duration_cast<std::chrono::milliseconds>(now - since));
  }
}

std::string LocalGroup::DescribeWait(int peer, Clock::time_point since) const {
  const auto name = [this](int who) { return options_.names[static_cast<std::size_t>(who)]; };
  const Slot& other = slot(peer);
  const std::uint64_t at =
      std::max(other.details[0].sequence.load(), other.details[1].sequence.load());
  const auto now = Clock::now();
  const auto beat = now.time_since_epoch() - std::chrono::nanoseconds(other.heartbeat.load());
  const CallRecord& mine = record(options_.index);
  const std::string where = at < sequence_
                                ? fmt::format("which has not entered it (it is at #{})", at)
                                : std::string("which has entered it but not finished");
  return fmt::format("{} waits in {} for {}, {}; waited {:.1f} s, last sign of life {:.1f} s ago",
                     name(options_.index), Describe(mine, sequence_), name(peer), where,
                     Seconds(now - since).count(), Seconds(beat).count());
}

void LocalGroup::CheckRecords(std::uint64_t mine) const {
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer == options_.index) continue;
    const Slot::Arrival& arrival = slot(peer).arrivals[sequence_ & 1];
    if (arrival.flag.load(std::memory_order_relaxed) == mine) continue;
    if (record(options_.index).Matches(record(peer))) {
      throw Error(
          Code::kMismatch,
          fmt::format("{} and {} cut {} into different parts; give every rank the same sizes",
                      options_.names[static_cast<std::size_t>(options_.index)],
                      options_.names[static_cast<std::size_t>(peer)],
                      Describe(record(options_.index), sequence_)));
    }
    throw Error(
        Code::kMismatch,
        DescribeMismatch(options_.names[static_cast<std::size_t>(options_.index)],
                         record(options_.index), options_.names[static_cast<std::size_t>(peer)],
                         record(peer), sequence_));
  }
}

std::byte* LocalGroup::PeerBuffer(int peer) {
  const std::uint64_t place =
      slot(peer).arrivals[sequence_ & 1].place.load(std::memory_order_relaxed);
  const auto index = static_cast<std::size_t>((place & ~kRegistered) >> kOffsetBits);
  const std::uint64_t offset = place & ((std::uint64_t{1} << kOffsetBits) - 1);
  auto& mapped = segments_[static_cast<std::size_t>(peer)];
  if (index >= mapped.size()) mapped.resize(index + 1);
  auto& segment = mapped[index];
  if (!segment) {
    segment = std::make_shared<SharedMemory>(
        options_.map_segment(peer, static_cast<std::uint32_t>(index)));
  }
  if (offset > segment->size()) {
    throw Error(Code::kPeerLost, fmt::format("{} named memory outside its segment",
                                             options_.names[static_cast<std::size_t>(peer)]));
  }
  return segment->data() + offset;
}

std::span<std::byte* const> LocalGroup::PeerBuffers(std::byte* own, std::size_t offset) {
  for (int peer = 0; peer < options_.size; ++peer) {
    buffers_[static_cast<std::size_t>(peer)] =
        (peer == options_.index ? own : PeerBuffer(peer)) + offset;
  }
  return buffers_;
}

bool LocalGroup::AllRegistered() const {
  for (int peer = 0; peer < options_.size; ++peer) {
    if (!registered(peer)) return false;
  }
  return true;
}

void LocalGroup::Heartbeat() {
  const auto now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch());
  slot(options_.index).heartbeat.store(now.count());
}

void LocalGroup::Abort(const Failure& failure) {
  std::uint32_t none = kNone;
  if (!header_->abort_state.compare_exchange_strong(none, kWriting)) return;
  header_->abort_code = failure.code;
  const std::size_t length = std::min(failure.text.size(), header_->abort_text.size() - 1);
  std::memcpy(header_->abort_text.data(), failure.text.data(), length);
  header_->abort_text[length] = 0;
  header_->abort_state.store(kSet, std::memory_order_release);
  Ring();
}

std::optional<Failure> LocalGroup::failure() const {
  if (header_->abort_state.load(std::memory_order_acquire) != kSet) return std::nullopt;
  return Failure{header_->abort_code, std::string(header_->abort_text.data())};
}

void LocalGroup::Leave() {
  slot(options_.index).left.store(true, std::memory_order_release);
  Ring();
}

void LocalGroup::Ring() {
  header_->doorbell.fetch_add(1);
  FutexWakeAll(header_->doorbell);
}

}  // namespace orca::comm
