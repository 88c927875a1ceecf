#include "orca/net/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "net/expect_error.h"

namespace orca::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Frame = std::vector<std::byte>;

Frame Payload(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class SealedChannelTest : public ::testing::Test {
 protected:
  SealedChannelTest() {
    keys_.client_to_server.fill(1);
    keys_.server_to_client.fill(2);
  }

  SealedChannel Client() { return SealedChannel(keys_, SealedChannel::Side::kClient); }
  SealedChannel Server() { return SealedChannel(keys_, SealedChannel::Side::kServer); }

  // Feeds `frame` to `channel` and expects it to be refused.
  static void ExpectRefused(SealedChannel channel, const Frame& frame) {
    channel.Feed(frame);
    EXPECT_EQ(ErrorOf([&] { channel.Next(); }).code(), Code::kUnauthenticated);
    EXPECT_EQ(ErrorOf([&] { channel.Next(); }).code(), Code::kUnauthenticated) << "it stays broken";
  }

  SessionKeys keys_;
};

TEST_F(SealedChannelTest, CarriesMessagesBothWays) {
  SealedChannel client = Client();
  SealedChannel server = Server();
  for (const std::string_view text : {"", "hello", "again"}) {
    server.Feed(client.Seal(Payload(text)));
    EXPECT_EQ(server.Next(), Payload(text));
    client.Feed(server.Seal(Payload(text)));
    EXPECT_EQ(client.Next(), Payload(text));
  }
  EXPECT_EQ(server.Next(), std::nullopt);
}

TEST_F(SealedChannelTest, PutsMessagesOfAnySizeTogetherFromAnyPieces) {
  SealedChannel client = Client();
  SealedChannel server = Server();
  std::mt19937 random(1);
  std::vector<Frame> sent;
  Frame wire;
  for (int i = 0; i < 200; ++i) {
    Frame payload(random() % 3000);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
    const Frame frame = client.Seal(payload);
    EXPECT_EQ(frame.size(), payload.size() + SealedChannel::kOverhead);
    wire.insert(wire.end(), frame.begin(), frame.end());
    sent.push_back(payload);
  }
  std::vector<Frame> received;
  for (std::size_t at = 0; at < wire.size();) {
    const std::size_t piece = std::min<std::size_t>(1 + random() % 5000, wire.size() - at);
    server.Feed(std::span(wire).subspan(at, piece));
    at += piece;
    while (auto message = server.Next()) received.push_back(*message);
  }
  EXPECT_EQ(received, sent);
}

TEST_F(SealedChannelTest, TakesBytesOneByOne) {
  SealedChannel client = Client();
  SealedChannel server = Server();
  const Frame frame = client.Seal(Payload("slow"));
  for (std::size_t i = 0; i + 1 < frame.size(); ++i) {
    server.Feed(std::span(frame).subspan(i, 1));
    ASSERT_EQ(server.Next(), std::nullopt);
  }
  server.Feed(std::span(frame).last(1));
  EXPECT_EQ(server.Next(), Payload("slow"));
}

TEST_F(SealedChannelTest, NoticesEveryFlippedBit) {
  const Frame frame = Client().Seal(Payload("some payload"));
  for (std::size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    Frame changed = frame;
    changed[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    SealedChannel server = Server();
    server.Feed(changed);
    // A longer length only waits for more, which then fails.
    server.Feed(Frame(SealedChannel::kDefaultLimit));
    ASSERT_EQ(ErrorOf([&] { server.Next(); }).code(), Code::kUnauthenticated) << "bit " << bit;
  }
}

TEST_F(SealedChannelTest, RefusesARepeatedFrame) {
  SealedChannel client = Client();
  SealedChannel server = Server();
  const Frame frame = client.Seal(Payload("pay 5"));
  server.Feed(frame);
  EXPECT_EQ(server.Next(), Payload("pay 5"));
  server.Feed(frame);
  EXPECT_THAT(ErrorOf([&] { server.Next(); }),
              IsError(Code::kUnauthenticated, HasSubstr("repeated")));
}

TEST_F(SealedChannelTest, RefusesFramesOutOfOrder) {
  SealedChannel client = Client();
  const Frame first = client.Seal(Payload("first"));
  const Frame second = client.Seal(Payload("second"));
  ExpectRefused(Server(), second);
}

TEST_F(SealedChannelTest, RefusesAFrameSentBackToItsSender) {
  SealedChannel client = Client();
  const Frame frame = client.Seal(Payload("mirror"));
  ExpectRefused(std::move(client), frame);
}

TEST_F(SealedChannelTest, RefusesFramesOfAnotherConnection) {
  const Frame frame = Client().Seal(Payload("hello"));
  keys_.client_to_server.fill(9);
  ExpectRefused(Server(), frame);
}

TEST_F(SealedChannelTest, WaitsForTheRestOfATruncatedFrame) {
  Frame frame = Client().Seal(Payload("cut"));
  frame.pop_back();
  SealedChannel server = Server();
  server.Feed(frame);
  EXPECT_EQ(server.Next(), std::nullopt);
}

TEST_F(SealedChannelTest, RefusesAHugeLengthBeforeItsPayloadArrives) {
  for (const auto& length :
       {Frame(4, std::byte{0xff}), Payload(std::string_view("\x01\x00\x01\x00", 4))}) {
    SealedChannel server = Server();
    server.Feed(length);
    EXPECT_THAT(ErrorOf([&] { server.Next(); }),
                IsError(Code::kUnauthenticated, AllOf(HasSubstr("announces"), HasSubstr("65536"))));
  }
}

TEST_F(SealedChannelTest, TakesAPayloadAsLongAsTheLimitAndNotOneByteMore) {
  constexpr std::size_t kLimit = 1024 * 1024;
  SealedChannel client(keys_, SealedChannel::Side::kClient, kLimit);
  SealedChannel server(keys_, SealedChannel::Side::kServer, kLimit);
  server.Feed(client.Seal(Frame(kLimit)));
  EXPECT_EQ(server.Next(), Frame(kLimit));
  EXPECT_THAT(ErrorOf([&] { client.Seal(Frame(kLimit + 1)); }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("1048577"), HasSubstr("1048576"))));
}

}  // namespace
}  // namespace orca::net
