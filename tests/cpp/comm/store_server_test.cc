// What strangers and broken clients can do to a TCP store.
#include "comm/store_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "comm/store_protocol.h"
#include "net/expect_error.h"
#include "orca/comm/store.h"
#include "orca/net/channel.h"
#include "orca/net/handshake.h"
#include "orca/net/socket.h"

namespace orca::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr seconds kLong{60};

class StoreServerTest : public ::testing::Test {
 protected:
  UniqueFd ConnectRaw() { return net::ConnectTcp(std::array{server_.address()}, deadline_); }
  std::shared_ptr<Store> ConnectClient() {
    return ConnectTcpStore(server_.address(), secret_, kLong);
  }

  // Returns once the server has closed the connection.
  void AwaitClose(const UniqueFd& fd) {
    std::array<std::byte, 256> buffer;
    const Error error = ErrorOf([&] {
      while (true) net::RecvSome(fd.get(), buffer, deadline_);
    });
    EXPECT_EQ(error.code(), Code::kPeerLost);
  }

  net::SealedChannel Authenticate(const UniqueFd& fd) {
    const net::SessionKeys keys = net::ConnectHandshake(fd.get(), secret_, StoreHello(), deadline_);
    return net::SealedChannel(keys, net::SealedChannel::Side::kClient, kMaxStoreMessage);
  }

  StoreReply Receive(const UniqueFd& fd, net::SealedChannel& channel) {
    std::array<std::byte, 4096> buffer;
    while (true) {
      if (const auto message = channel.Next()) return DecodeStoreReply(*message);
      channel.Feed(std::span(buffer).first(net::RecvSome(fd.get(), buffer, deadline_)));
    }
  }

  static StoreRequest SetRequest(const std::string& key, const std::string& value) {
    return {.kind = StoreRequest::Kind::kSet, .timeout = {}, .key = key, .value = value};
  }

  const Deadline deadline_ = Deadline::After(kLong);
  const net::Secret secret_ = net::Secret::Random();
  StoreServer server_{"127.0.0.1:0", secret_};
};

TEST_F(StoreServerTest, RefusesAndCountsAClientWithAnotherSecret) {
  EXPECT_THAT(ErrorOf([&] { ConnectTcpStore(server_.address(), net::Secret::Random(), kLong); }),
              IsError(Code::kUnauthenticated, HasSubstr("secret")));
  EXPECT_EQ(server_.refused(), 1u);
  ConnectClient()->Set("key", "value");
  EXPECT_EQ(server_.Get("key", kLong), "value");
}

TEST_F(StoreServerTest, RefusesAConnectionThatIsForSomethingElse) {
  const UniqueFd fd = ConnectRaw();
  net::Hello hello = StoreHello();
  hello.role = 1;
  EXPECT_THAT(ErrorOf([&] { net::ConnectHandshake(fd.get(), secret_, hello, deadline_); }),
              IsError(Code::kUnauthenticated, HasSubstr("does not admit")));
  EXPECT_EQ(server_.refused(), 1u);
}

TEST_F(StoreServerTest, AnswersStrangersWithSilence) {
  const UniqueFd fd = ConnectRaw();
  const std::string request =
      "GET /v2/keys HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nConnection: close\r\n\r\n";
  net::SendAll(fd.get(), std::as_bytes(std::span(request)), deadline_);
  std::array<std::byte, 1> byte;
  EXPECT_EQ(ErrorOf([&] { net::RecvSome(fd.get(), byte, deadline_); }).code(), Code::kPeerLost);
  EXPECT_EQ(server_.refused(), 1u);
}

TEST_F(StoreServerTest, ClosesAConnectionWithAForgedFrame) {
  const UniqueFd fd = ConnectRaw();
  net::SealedChannel channel = Authenticate(fd);
  std::vector<std::byte> frame = channel.Seal(Encode(SetRequest("key", "forged")));
  frame.back() ^= std::byte{1};
  net::SendAll(fd.get(), frame, deadline_);
  AwaitClose(fd);
  EXPECT_EQ(server_.refused(), 1u);
  EXPECT_EQ(ErrorOf([&] { server_.Get("key", milliseconds(0)); }).code(), Code::kTimeout);
}

TEST_F(StoreServerTest, ClosesAConnectionThatRepeatsAFrame) {
  const UniqueFd fd = ConnectRaw();
  net::SealedChannel channel = Authenticate(fd);
  const std::vector<std::byte> frame = channel.Seal(Encode(SetRequest("key", "value")));
  net::SendAll(fd.get(), frame, deadline_);
  EXPECT_EQ(Receive(fd, channel).status, StoreReply::Status::kOk);
  net::SendAll(fd.get(), frame, deadline_);
  AwaitClose(fd);
  EXPECT_EQ(server_.refused(), 1u);
}

TEST_F(StoreServerTest, ClosesAConnectionThatAnnouncesAHugeFrame) {
  const UniqueFd fd = ConnectRaw();
  Authenticate(fd);
  net::SendAll(fd.get(), std::vector<std::byte>(4, std::byte{0xff}), deadline_);
  AwaitClose(fd);
  EXPECT_EQ(server_.refused(), 1u);
}

TEST_F(StoreServerTest, ClosesAConnectionWithARequestThatIsNone) {
  for (const std::size_t size : {0, 1, 13, 100}) {
    const UniqueFd fd = ConnectRaw();
    net::SealedChannel channel = Authenticate(fd);
    net::SendAll(fd.get(), channel.Seal(std::vector<std::byte>(size, std::byte{0xff})), deadline_);
    AwaitClose(fd);
  }
}

TEST_F(StoreServerTest, TakesARequestByteByByte) {
  const UniqueFd fd = ConnectRaw();
  net::SealedChannel channel = Authenticate(fd);
  for (const std::byte byte : channel.Seal(Encode(SetRequest("slow", "value")))) {
    net::SendAll(fd.get(), std::span(&byte, 1), deadline_);
  }
  EXPECT_EQ(Receive(fd, channel).status, StoreReply::Status::kOk);
  EXPECT_EQ(server_.Get("slow", milliseconds(0)), "value");
}

TEST_F(StoreServerTest, AnswersRequestsThatCameTogetherInTheirOrder) {
  const UniqueFd fd = ConnectRaw();
  net::SealedChannel channel = Authenticate(fd);
  std::vector<std::byte> both =
      channel.Seal(Encode(StoreRequest{.timeout = kLong, .key = "late", .value = {}}));
  const std::vector<std::byte> second = channel.Seal(Encode(SetRequest("other", "value")));
  both.insert(both.end(), second.begin(), second.end());
  net::SendAll(fd.get(), both, deadline_);
  server_.Set("late", "here");
  EXPECT_EQ(Receive(fd, channel).value, "here");
  EXPECT_EQ(Receive(fd, channel).value, "");
  EXPECT_EQ(server_.Get("other", kLong), "value");
}

TEST_F(StoreServerTest, ForgetsAClientThatDiesWhileItWaits) {
  {
    const UniqueFd fd = ConnectRaw();
    net::SealedChannel channel = Authenticate(fd);
    net::SendAll(fd.get(),
                 channel.Seal(Encode(StoreRequest{.timeout = kLong, .key = "never", .value = {}})),
                 deadline_);
  }
  const auto client = ConnectClient();
  client->Set("key", "value");
  EXPECT_EQ(client->Get("key", kLong), "value");
}

TEST_F(StoreServerTest, TellsTheClientsOfAServerThatEnds) {
  auto server = std::make_unique<StoreServer>("127.0.0.1:0", secret_);
  const auto client = ConnectTcpStore(server->address(), secret_, kLong);
  auto waiting =
      std::async(std::launch::async, [&] { return ErrorOf([&] { client->Get("never", kLong); }); });
  EXPECT_EQ(waiting.wait_for(milliseconds(50)), std::future_status::timeout);
  const std::string address = server->address();
  server.reset();
  EXPECT_THAT(waiting.get(), IsError(Code::kPeerLost, HasSubstr("lost the store at " + address)));
}

TEST_F(StoreServerTest, GivesClientsAnAddressThatTheyCanReach) {
  for (const char* any : {"0.0.0.0:0", "[::]:0"}) {
    std::string bound;
    std::shared_ptr<Store> server;
    try {
      server = ServeTcpStore(any, secret_, &bound);
    } catch (const Error&) {
      continue;  // No IPv6 here.
    }
    EXPECT_THAT(bound, AllOf(Not(HasSubstr("0.0.0.0")), Not(HasSubstr("[::]"))));
    ConnectTcpStore(bound, secret_, kLong)->Set("key", "value");
    EXPECT_EQ(server->Get("key", kLong), "value");
  }
}

TEST_F(StoreServerTest, SaysWhatWasTriedWhenThereIsNoServer) {
  std::string address;
  ServeTcpStore("127.0.0.1:0", secret_, &address).reset();
  EXPECT_THAT(ErrorOf([&] { ConnectTcpStore(address, secret_, milliseconds(50)); }),
              IsError(Code::kUnavailable, HasSubstr(address)));
}

TEST_F(StoreServerTest, ServesClientsDuringAFloodOfSilentConnections) {
  constexpr std::size_t kStrangers = 2000;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 2 * kStrangers + 200)
    GTEST_SKIP() << "this process may not open enough descriptors";
  StoreServer server("127.0.0.1:0", secret_);
  const auto early = ConnectTcpStore(server.address(), secret_, kLong);
  std::vector<UniqueFd> strangers;
  for (std::size_t i = 0; i < kStrangers; ++i) {
    strangers.push_back(net::ConnectTcp(std::array{server.address()}, deadline_));
    // Half of them say something that is not enough.
    if (i % 2 == 0) net::SendAll(strangers.back().get(), std::vector<std::byte>(10), deadline_);
  }
  const auto start = std::chrono::steady_clock::now();
  const auto late = ConnectTcpStore(server.address(), secret_, kLong);
  late->Set("late", "served");
  EXPECT_EQ(early->Get("late", kLong), "served");
  // Well before the strangers' time is up.
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(4));
}

}  // namespace
}  // namespace orca::comm
