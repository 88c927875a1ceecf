#include "runtime/link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "orca/core/error.h"

namespace orca::runtime {
namespace {

Parcel Bytes(std::size_t size) {
  const std::vector<std::byte> bytes(size, std::byte{5});
  const std::span<const std::byte> part(bytes);
  return Parcel::Pack(std::span(&part, 1));
}

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() : LinkTest(UnixLink::Pair()) {}
  explicit LinkTest(std::pair<UniqueFd, UniqueFd> ends)
      : a_(std::move(ends.first)), b_(std::move(ends.second)) {}
  UnixLink a_;
  UnixLink b_;
};

TEST_F(LinkTest, MessagesArriveWholeAndInOrder) {
  for (int i = 0; i < 100; ++i) a_.Send({.head = {{"number", i}}, .parcel = Bytes(i * 300)});
  for (int i = 0; i < 100; ++i) {
    a_.Flush();
    const auto message = b_.Receive();
    ASSERT_TRUE(message);
    EXPECT_EQ(message->head.at("number"), i);
    EXPECT_EQ(message->parcel.Parts()[0].size(), static_cast<std::size_t>(i * 300));
  }
  EXPECT_FALSE(b_.Receive());
}

TEST_F(LinkTest, ALongParcelAndDescriptorsTravelTogether) {
  Message message{.head = {{"op", "x"}}, .parcel = Bytes(3 << 20)};
  auto [read_end, write_end] = UnixLink::Pair();
  message.fds.push_back(std::move(write_end));
  a_.Send(std::move(message));
  auto received = b_.Receive();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->head, Json({{"op", "x"}}));
  EXPECT_EQ(received->parcel.Parts()[0].size(), std::size_t{3} << 20);
  ASSERT_EQ(received->fds.size(), 1U);
  UnixLink(std::move(received->fds[0])).Send({.head = {{"op", "through"}}});
  EXPECT_EQ(UnixLink(std::move(read_end)).Receive()->head.at("op"), "through");
}

TEST_F(LinkTest, WhatDoesNotFitWaitsAndNothingIsLost) {
  const int count = 2000;
  for (int i = 0; i < count; ++i) a_.Send({.head = {{"number", i}}, .parcel = Bytes(8000)});
  EXPECT_TRUE(a_.wants_write());
  EXPECT_GT(a_.queued(), 0U);
  for (int i = 0; i < count; ++i) {
    std::optional<Message> message;
    while (!(message = b_.Receive())) a_.Flush();
    ASSERT_EQ(message->head.at("number"), i);
  }
  EXPECT_EQ(a_.queued(), 0U);
}

TEST_F(LinkTest, AClosedEndIsSaidAndSendingToItHarmsNobody) {
  a_.Send({.head = {{"op", "last"}}});
  { UnixLink gone(std::move(a_)); }
  EXPECT_EQ(b_.Receive()->head.at("op"), "last");
  EXPECT_THROW(b_.Receive(), Error);
  b_.Send({.head = {{"op", "into the void"}}});
  EXPECT_FALSE(b_.wants_write());
}

TEST_F(LinkTest, WhatIsNoMessageIsRefused) {
  for (const std::string& junk : {std::string("x"), std::string("\xff\xff\xff\xff junk"),
                                  std::string("\4\0\0\0abcd", 8), std::string("\1\0\0\0\x93", 5)}) {
    ASSERT_EQ(::send(a_.fd(), junk.data(), junk.size(), 0), static_cast<ssize_t>(junk.size()));
    EXPECT_THROW(b_.Receive(), Error) << junk;
  }
}

TEST(ShortenedTest, KeepsBothEndsOfALongText) {
  EXPECT_EQ(Shortened("short"), "short");
  const std::string text = "begin" + std::string(1 << 20, '.') + "end";
  const std::string cut = Shortened(text, 1000);
  EXPECT_LT(cut.size(), 1100U);
  EXPECT_TRUE(cut.starts_with("begin"));
  EXPECT_TRUE(cut.ends_with("end"));
}

}  // namespace
}  // namespace orca::runtime
