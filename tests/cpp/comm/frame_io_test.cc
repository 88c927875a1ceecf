// Frames over sockets that break, lie or crawl (F10, F13, F14).
#include "comm/frame_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <numeric>
#include <random>

#include "net/expect_error.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Pair {
  Pair() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0)
      std::abort();
    a.Reset(ends[0]);
    b.Reset(ends[1]);
  }
  UniqueFd a;
  UniqueFd b;
};

// Keeps what arrives, in order.
class Collector final : public FrameSink {
 public:
  std::optional<Bytes> Place(const net::FrameHeader& header) override {
    if (!open) return std::nullopt;
    messages.emplace_back(header.length);
    return messages.back();
  }
  void Finish(const net::FrameHeader& header) override { finished.push_back(header.message); }

  bool open = true;
  std::vector<std::vector<std::byte>> messages;
  std::vector<std::uint64_t> finished;
};

std::vector<std::byte> Payload(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> payload(size);
  for (auto& byte : payload) byte = static_cast<std::byte>(random());
  return payload;
}

// The bytes of frames with these payloads on the wire.
std::vector<std::byte> OnTheWire(const std::vector<std::vector<std::byte>>& payloads) {
  Pair pair;
  FrameWriter writer(std::move(pair.a), "rank 0");
  std::vector<std::byte> wire;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    net::FrameHeader header;
    header.message = i;
    header.total = payloads[i].size();
    writer.Begin(header, payloads[i]);
    while (true) {
      writer.TrySend();
      std::array<std::byte, 4096> piece;
      const auto got = ::read(pair.b.get(), piece.data(), piece.size());
      if (got > 0) wire.insert(wire.end(), piece.begin(), piece.begin() + got);
      if (writer.idle() && got < static_cast<ssize_t>(piece.size())) break;
    }
  }
  return wire;
}

void Put(int fd, std::span<const std::byte> bytes) {
  ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

TEST(FrameIoTest, F14FramesOfAnySizeComeThroughTinyBuffers) {
  const std::vector<std::size_t> sizes{0, 1, 63, 64, 2047, 2048, 2049, 70'000, 1'048'576, 0, 5};
  Pair pair;
  const int tiny = 1;  // the kernel makes it a few KiB
  ::setsockopt(pair.a.get(), SOL_SOCKET, SO_SNDBUF, &tiny, sizeof(tiny));
  FrameWriter writer(std::move(pair.a), "rank 0");
  FrameReader reader(std::move(pair.b), "rank 1");
  Collector sink;
  std::vector<std::vector<std::byte>> payloads;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    payloads.push_back(Payload(sizes[i], i));
    net::FrameHeader header;
    header.message = i;
    writer.Begin(header, payloads[i]);
    do {
      writer.TrySend();
      reader.TryRecv(sink);
    } while (!writer.idle());
  }
  while (sink.finished.size() < sizes.size()) reader.TryRecv(sink);
  EXPECT_EQ(sink.messages, payloads);
}

TEST(FrameIoTest, F14FramesArriveByteByByte) {
  const std::vector<std::vector<std::byte>> payloads{Payload(0, 1), Payload(1, 2), Payload(300, 3),
                                                     Payload(0, 4)};
  const auto wire = OnTheWire(payloads);
  Pair pair;
  FrameReader reader(std::move(pair.b), "rank 0");
  Collector sink;
  for (const std::byte byte : wire) {
    Put(pair.a.get(), std::span(&byte, 1));
    EXPECT_TRUE(reader.TryRecv(sink));
  }
  EXPECT_EQ(sink.messages, payloads);
  EXPECT_FALSE(reader.TryRecv(sink));
}

TEST(FrameIoTest, F14FramesArriveInRandomPieces) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<std::byte>> payloads;
    for (int i = 0; i < 10; ++i) payloads.push_back(Payload(random() % 5000, random()));
    const auto wire = OnTheWire(payloads);
    Pair pair;
    FrameReader reader(std::move(pair.b), "rank 0");
    Collector sink;
    for (std::size_t begin = 0; begin < wire.size();) {
      const std::size_t length = std::min<std::size_t>(1 + random() % 3000, wire.size() - begin);
      Put(pair.a.get(), std::span(wire).subspan(begin, length));
      sink.open = random() % 4 != 0;  // sometimes nobody waits for what comes
      reader.TryRecv(sink);
      begin += length;
    }
    sink.open = true;
    reader.TryRecv(sink);
    EXPECT_EQ(sink.messages, payloads);
  }
}

TEST(FrameIoTest, F10AnEndAtEveryByteIsAFarewellOrALoss) {
  const auto wire = OnTheWire({Payload(10, 1), Payload(0, 2), Payload(20, 3)});
  const std::vector<std::size_t> borders{0, 74, 138, wire.size()};
  for (std::size_t cut = 0; cut <= wire.size(); ++cut) {
    Pair pair;
    FrameReader reader(std::move(pair.b), "rank 7");
    Collector sink;
    Put(pair.a.get(), std::span(wire).first(cut));
    pair.a.Reset();
    const auto read_all = [&] {
      while (!reader.closed()) reader.TryRecv(sink);
    };
    if (std::find(borders.begin(), borders.end(), cut) != borders.end()) {
      EXPECT_NO_THROW(read_all()) << "cut at " << cut;
    } else {
      EXPECT_THAT(ErrorOf(read_all),
                  IsError(Code::kPeerLost, AllOf(HasSubstr("rank 7"), HasSubstr("middle"))))
          << "cut at " << cut;
    }
  }
}

TEST(FrameIoTest, F13EveryFlippedBitIsNoticed) {
  const auto payload = Payload(40, 9);
  const auto wire = OnTheWire({payload});
  for (std::size_t bit = 0; bit < wire.size() * 8; ++bit) {
    auto damaged = wire;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    Pair pair;
    FrameReader reader(std::move(pair.b), "rank 7");
    Collector sink;
    Put(pair.a.get(), damaged);
    pair.a.Reset();
    const Error error = ErrorOf([&] {
      while (!reader.closed()) reader.TryRecv(sink);
    });
    EXPECT_EQ(error.code(), Code::kPeerLost) << "bit " << bit << ": " << error.what();
    EXPECT_TRUE(sink.finished.empty()) << "bit " << bit;
  }
}

TEST(FrameIoTest, F13DamagedBytesNameTheLinkAndBothChecksums) {
  auto wire = OnTheWire({Payload(1000, 1)});
  wire.back() ^= std::byte{1};
  Pair pair;
  FrameReader reader(std::move(pair.b), "rank 7 (host a, pid 12)");
  Collector sink;
  Put(pair.a.get(), wire);
  EXPECT_THAT(ErrorOf([&] { reader.TryRecv(sink); }),
              IsError(Code::kPeerLost, AllOf(HasSubstr("from rank 7 (host a, pid 12)"),
                                             HasSubstr("1000 damaged bytes"), HasSubstr("CRC32C"),
                                             HasSubstr("faulty"))));
}

TEST(FrameIoTest, F10AWriterSaysThatThePeerIsGone) {
  Pair pair;
  FrameWriter writer(std::move(pair.a), "rank 7");
  pair.b.Reset();
  const auto payload = Payload(100, 1);
  writer.Begin({}, payload);
  EXPECT_THAT(ErrorOf([&] { writer.TrySend(); }),
              IsError(Code::kPeerLost, HasSubstr("connection to rank 7 broke")));
}

TEST(FrameIoTest, AFrameThatNobodyWantsWaitsWithAllBehindIt) {
  const auto wire = OnTheWire({Payload(100, 1), Payload(200, 2)});
  Pair pair;
  FrameReader reader(std::move(pair.b), "rank 0");
  Collector sink;
  sink.open = false;
  Put(pair.a.get(), wire);
  reader.TryRecv(sink);
  EXPECT_TRUE(reader.held());
  EXPECT_FALSE(reader.TryRecv(sink));
  sink.open = true;
  EXPECT_TRUE(reader.TryRecv(sink));
  EXPECT_FALSE(reader.held());
  EXPECT_EQ(sink.finished, (std::vector<std::uint64_t>{0, 1}));
}

}  // namespace
}  // namespace orca::comm
