// All-reduce against physical limits, measured in the same processes, in turns: memory traffic for
// shared memory, a raw stream for TCP.
//   limits_bench memory|tcp RANKS [BYTES ...]
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "harness.h"
#include "orca/comm/communicator.h"
#include "orca/core/crc32c.h"
#include "orca/net/socket.h"

namespace {

using orca::Deadline;
using orca::UniqueFd;
using orca::bench::Now;
using orca::comm::AsBytes;
using orca::comm::CommOptions;
using orca::comm::Communicator;
using orca::comm::DType;
using orca::comm::ReduceOp;

constexpr int kMaxRanks = 64;

/// One side of a comparison, the first is ours: `call` gets the rank's buffer, freshly written.
struct Side {
  std::string name;
  std::function<void(std::span<float>)> call;
  std::span<float> data;
  bool sums = true;  ///< Whether the result is the sum over ranks, and is checked.
};

double Slowest(Communicator& comm, double seconds) {
  comm.AllReduce(AsBytes(std::span(&seconds, 1)), DType::kFloat64, ReduceOp::kMax);
  return seconds;
}

// Reports the fastest of the limits; the times of the others go to standard error.
void Compare(Communicator& control, const std::string& name, std::vector<Side> sides) {
  std::vector<std::vector<double>> times(sides.size());
  const int rounds = orca::bench::Rounds(sides[0].data.size_bytes());
  for (int round = -2; round < rounds; ++round) {
    const int pattern = round + 2;
    for (std::size_t turn = 0; turn < sides.size(); ++turn) {
      const std::size_t which = (turn + static_cast<std::size_t>(pattern)) % sides.size();
      Side& side = sides[which];
      orca::bench::Dirty(side.data, control.rank(), pattern);
      control.Barrier();
      const double start = Now();
      side.call(side.data);
      const double seconds = Slowest(control, Now() - start);
      if (side.sums) orca::bench::CheckSum(side.data, control.world(), pattern, name.c_str());
      if (round >= 0) times[which].push_back(seconds);
    }
  }
  if (control.rank() != 0) return;
  std::size_t best = 1;
  for (std::size_t i = 1; i < sides.size(); ++i) {
    const double median = orca::bench::Median(times[i]);
    if (median < orca::bench::Median(times[best])) best = i;
    std::fprintf(stderr, "%s: %s %.1f us\n", name.c_str(), sides[i].name.c_str(), median * 1e6);
  }
  orca::bench::Report(name, times[0], times[best]);
}

std::unique_ptr<Communicator> Join(const std::string& directory, int rank, int world,
                                   const std::string& group, const std::string& transport) {
  orca::comm::Membership membership;
  membership.group = group;
  membership.rank = rank;
  membership.world = world;
  membership.store = orca::comm::NewFileStore(directory);
  CommOptions options = orca::comm::OptionsFromEnvironment();
  options.transport = transport;
  return Communicator::Connect(membership, options);
}

// The limit: every byte of all buffers is loaded and stored once, and nothing else. Which way is
// the fastest depends on the machine and on the number of buffers, so that all are tried: how much
// of one buffer is taken at a time, stores through the caches or past them, a slice for each rank
// or blocks for whoever is free.
struct Way {
  std::size_t strip = 0;  ///< Floats of one buffer at a time.
  bool streams = false;   ///< Stores go past the caches.
  bool deals = false;     ///< Blocks for whoever is free.

  std::string Name() const {
    return "strips of " + std::to_string(strip * sizeof(float)) + " bytes, " +
           (streams ? "streaming stores, " : "plain stores, ") + (deals ? "dealt out" : "slices");
  }
};

constexpr std::size_t kStripMax = 4096;

#define ORCA_BENCH_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))

ORCA_BENCH_EVERY_CPU void AddTo(float* sum, const float* from, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) sum[i] += from[i];
}

ORCA_BENCH_EVERY_CPU void CopyTo(float* to, const float* from, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

// Whole cache lines; 16 bytes are what every x86-64 has, and the write-combining buffers do the
// rest.
void StreamTo(float* to, const float* from, std::size_t count) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < count; i += 4) _mm_stream_ps(to + i, _mm_load_ps(from + i));
#else
  CopyTo(to, from, count);
#endif
}

void MoveAll(const Way& way, std::span<float* const> buffers, std::size_t begin, std::size_t end) {
  alignas(64) std::array<float, kStripMax> sum;
  for (; begin < end; begin += way.strip) {
    const std::size_t count = std::min(way.strip, end - begin);
    CopyTo(sum.data(), buffers[0] + begin, count);
    for (std::size_t b = 1; b < buffers.size(); ++b) AddTo(sum.data(), buffers[b] + begin, count);
    for (float* buffer : buffers)
      (way.streams ? StreamTo : CopyTo)(buffer + begin, sum.data(), count);
  }
}

// All buffers in one mapping that was made before the fork, each a little further from its page's
// begin.
struct SharedBuffers {
  std::byte* data = nullptr;
  std::size_t stride = 0;
  std::atomic<int>* arrived = nullptr;
  std::atomic<std::size_t>* ticket = nullptr;  ///< The next block to deal out.

  float* Buffer(int rank) const {
    return reinterpret_cast<float*>(data + static_cast<std::size_t>(rank) * stride);
  }
};

void CompareMemory(Communicator& comm, const SharedBuffers& shared, std::size_t bytes) {
  const std::size_t count = bytes / sizeof(float);
  auto* registered = static_cast<float*>(comm.arena()->Allocate(bytes));
  const auto world = static_cast<std::size_t>(comm.world());
  std::vector<float*> buffers;
  for (int rank = 0; rank < comm.world(); ++rank) buffers.push_back(shared.Buffer(rank));
  const std::size_t begin = count * static_cast<std::size_t>(comm.rank()) / world;
  const std::size_t end = count * static_cast<std::size_t>(comm.rank() + 1) / world;
  int turn = 0;
  std::vector<Side> sides;
  sides.push_back(
      {.name = "orca",
       .call = [&](std::span<float> data) { comm.AllReduce(AsBytes(data), DType::kFloat32); },
       .data = {registered, count}});
  for (const std::size_t strip : {64, 256, 1024, 4096}) {
    for (const bool streams : {false, true}) {
      for (const bool deals : {false, true}) {
        const Way way{.strip = strip, .streams = streams, .deals = deals};
        const auto call = [&, way](std::span<float>) {
          if (way.deals) {
            constexpr std::size_t kBlock = 64 << 10;
            for (auto at = shared.ticket->fetch_add(kBlock); at < count;
                 at = shared.ticket->fetch_add(kBlock))
              MoveAll(way, buffers, at, std::min(at + kBlock, count));
          } else {
            MoveAll(way, buffers, begin, end);
          }
          // All must be done; one counter, spun on, is the least that this can cost.
          ++turn;
          if (shared.arrived->fetch_add(1) + 1 == turn * comm.world()) shared.ticket->store(0);
          while (shared.arrived->load() < turn * comm.world()) {
          }
        };
        sides.push_back(
            {.name = way.Name(), .call = call, .data = {shared.Buffer(comm.rank()), count}});
      }
    }
  }
  Compare(comm, "memory" + std::to_string(comm.world()) + "/" + std::to_string(bytes), sides);
  comm.Barrier();
  if (comm.rank() == 0) shared.arrived->store(0);
  comm.Barrier();
  comm.arena()->Free(registered);
}

// The transfers of an all-reduce of two ranks and nothing else: half of the data goes each way and
// is looked at once where it arrives, then the other half goes each way, to its place in the data.
class RawStream {
 public:
  RawStream(UniqueFd out, UniqueFd in)
      : out_(std::move(out)), in_(std::move(in)), sink_(kChunk), sum_(kChunk / sizeof(float)) {}

  void Exchange(std::span<float> data) {
    const auto bytes = std::as_writable_bytes(data);
    std::size_t sent = 0;
    std::size_t received = 0;
    while (sent < bytes.size() || received < bytes.size()) {
      bool moved = false;
      if (sent < bytes.size()) {
        const auto n = ::send(out_.get(), bytes.data() + sent,
                              std::min(bytes.size() - sent, kChunk), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) sent += static_cast<std::size_t>(n), moved = true;
      }
      if (const auto to = Target(bytes, sent, received); !to.empty()) {
        const auto n = ::recv(in_.get(), to.data(), to.size(), MSG_DONTWAIT);
        if (n > 0) received += static_cast<std::size_t>(n), moved = true;
      }
      if (moved) continue;
      std::array<pollfd, 2> fds{pollfd{in_.get(), POLLIN, 0}, pollfd{out_.get(), POLLOUT, 0}};
      const bool sending = sent < bytes.size();
      ::poll(fds.data(), sending ? 2 : 1, 100);
    }
  }

  /// What an all-reduce of `bytes` has to compute, on data that never leaves the cache: the
  /// checksum of all that is sent and of all that is received, and the sums of one half.
  void Compute(std::size_t bytes) {
    for (std::size_t done = 0; done < 2 * bytes; done += kChunk)
      checksum_ ^= orca::Crc32c(sink_.data(), kChunk);
    for (std::size_t done = 0; done < bytes / 2; done += kChunk)
      AddTo(sum_.data(), reinterpret_cast<const float*>(sink_.data()), sum_.size());
  }

 private:
  static constexpr std::size_t kChunk = 256 << 10;

  // The second half overwrites the first, as far as that has been sent.
  std::span<std::byte> Target(std::span<std::byte> bytes, std::size_t sent, std::size_t received) {
    const std::size_t half = bytes.size() / 2;
    if (received < half) return std::span(sink_).first(std::min(kChunk, half - received));
    const std::size_t place = received - half;
    return bytes.subspan(place, std::min({kChunk, bytes.size() - received, sent - place}));
  }

  UniqueFd out_;
  UniqueFd in_;
  std::vector<std::byte> sink_;
  std::vector<float> sum_;
  std::uint32_t checksum_ = 0;
};

RawStream ConnectRaw(Communicator& control) {
  std::string bound;
  const UniqueFd listener = orca::net::ListenTcp("127.0.0.1:0", &bound);
  std::array<char, 64> mine{};
  std::memcpy(mine.data(), bound.data(), bound.size());
  std::array<char, 128> both{};
  control.AllGather(AsBytes(mine), AsBytes(both), DType::kUInt8);
  const std::string peer(both.data() + (1 - control.rank()) * 64);
  UniqueFd out =
      orca::net::ConnectTcp(std::span(&peer, 1), Deadline::After(std::chrono::seconds(10)));
  UniqueFd in;
  while (!in) in = orca::net::Accept(listener.get());
  orca::net::TuneDataSocket(out.get(), std::chrono::seconds(30));
  orca::net::TuneDataSocket(in.get(), std::chrono::seconds(30));
  return {std::move(out), std::move(in)};
}

void CompareTcp(Communicator& control, Communicator& tcp, std::size_t bytes) {
  RawStream raw = ConnectRaw(control);
  std::vector<float> our_data(bytes / sizeof(float));
  std::vector<float> raw_data(bytes / sizeof(float));
  const Side ours{
      .name = "orca",
      .call = [&](std::span<float> data) { tcp.AllReduce(AsBytes(data), DType::kFloat32); },
      .data = our_data};
  for (const bool computes : {false, true}) {
    Side limit{.name = "raw stream",
               .call =
                   [&](std::span<float> data) {
                     raw.Exchange(data);
                     if (computes) raw.Compute(bytes);
                   },
               .data = raw_data,
               .sums = false};
    Compare(control, (computes ? "tcp-limit/" : "tcp/") + std::to_string(bytes), {ours, limit});
  }
}

void RunRank(int rank, int world, const std::string& directory, const SharedBuffers& shared,
             const std::string& what, const std::vector<std::size_t>& sizes) {
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET(static_cast<std::size_t>(rank), &cpu);
  if (std::getenv("BENCH_UNPINNED") == nullptr) ::sched_setaffinity(0, sizeof(cpu), &cpu);
  const auto control = Join(directory, rank, world, "control", "auto");
  const auto tcp = what == "tcp" ? Join(directory, rank, world, "tcp", "tcp") : nullptr;
  for (const std::size_t bytes : sizes) {
    if (what == "tcp") {
      CompareTcp(*control, *tcp, bytes);
    } else {
      CompareMemory(*control, shared, bytes);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "memory";
  const int world = what == "tcp" || argc < 3 ? 2 : std::atoi(argv[2]);
  if (world < 1 || world > kMaxRanks) {
    std::fprintf(stderr, "%d ranks: give 1 to %d\n", world, kMaxRanks);
    return 2;
  }
  std::vector<std::size_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::stoull(argv[i]));
  if (sizes.empty())
    sizes =
        what == "tcp" ? std::vector<std::size_t>{64 << 20} : std::vector<std::size_t>{256 << 20};
  const std::size_t stride = *std::max_element(sizes.begin(), sizes.end()) + 4096 + 1344;
  const std::size_t total = static_cast<std::size_t>(world) * stride;
  void* memory =
      ::mmap(nullptr, total + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* bytes = static_cast<std::byte*>(memory);
  const SharedBuffers shared{
      .data = bytes,
      .stride = stride,
      .arrived = new (bytes + (total + 63) / 64 * 64) std::atomic<int>(0),
      .ticket = new (bytes + (total + 63) / 64 * 64 + 64) std::atomic<std::size_t>(0)};
  std::string directory = std::filesystem::temp_directory_path() / "orca-bench-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) return 1;
  int failures = 0;
  for (int rank = 0; rank < world; ++rank) {
    if (::fork() == 0) {
      RunRank(rank, world, directory, shared, what, sizes);
      std::fflush(stdout);
      ::_exit(0);
    }
  }
  for (int rank = 0; rank < world; ++rank) {
    int status = 0;
    ::wait(&status);
    failures += status != 0;
  }
  std::filesystem::remove_all(directory);
  return failures == 0 ? 0 : 1;
}
