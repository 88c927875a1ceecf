#include "orca/net/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "net/expect_error.h"
#include "orca/core/unique_fd.h"
#include "orca/net/socket.h"

namespace orca::net {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Message = std::vector<std::byte>;

constexpr std::size_t kMessages = 4;  // Hello, nonce, proof of the client, proof of the server.

Hello SomeHello() {
  return {.job = HashName("job"), .generation = 7, .role = 2, .rank = 3, .index = 1};
}

void AdmitAll(const Hello&) {}

/// What a run of both machines came to.
struct Outcome {
  bool client_done = false;
  bool server_done = false;
  std::optional<Error> client_error;
  std::optional<Error> server_error;
  std::vector<Message> messages;  // In the order they were sent, as they were received.
};

// Feeds `to` in pieces of at most `piece` bytes.
std::optional<Error> FeedPieces(Handshake& to, const Message& message, std::size_t piece) {
  try {
    for (std::size_t at = 0; at < message.size(); at += piece) {
      to.Feed(std::span(message).subspan(at, std::min(piece, message.size() - at)));
    }
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Carries messages back and forth until nobody says anything; `change` may change each on the way.
Outcome Converse(Handshake client, Handshake server, std::size_t piece = 128,
                 const std::function<void(std::size_t, Message&)>& change = nullptr) {
  Outcome outcome;
  bool from_client = true;
  while (!outcome.client_error && !outcome.server_error) {
    Message message = (from_client ? client : server).TakeOutput();
    if (message.empty()) break;
    if (change) change(outcome.messages.size(), message);
    outcome.messages.push_back(message);
    (from_client ? outcome.server_error : outcome.client_error) =
        FeedPieces(from_client ? server : client, message, piece);
    from_client = !from_client;
  }
  outcome.client_done = client.done();
  outcome.server_done = server.done();
  // An error must leave nothing to send.
  EXPECT_TRUE(!outcome.server_error || server.TakeOutput().empty());
  EXPECT_TRUE(!outcome.client_error || client.TakeOutput().empty());
  return outcome;
}

TEST(HandshakeTest, GivesBothEndsTheSameKeysAndTheServerTheHello) {
  const Secret secret = Secret::Random();
  Hello admitted;
  Handshake client = Handshake::Client(secret, SomeHello());
  Handshake server = Handshake::Server(secret, [&](const Hello& hello) { admitted = hello; });
  server.Feed(client.TakeOutput());
  client.Feed(server.TakeOutput());
  server.Feed(client.TakeOutput());
  client.Feed(server.TakeOutput());
  ASSERT_TRUE(client.done());
  ASSERT_TRUE(server.done());
  EXPECT_EQ(admitted, SomeHello());
  EXPECT_EQ(server.hello(), SomeHello());
  EXPECT_EQ(client.keys().client_to_server, server.keys().client_to_server);
  EXPECT_EQ(client.keys().server_to_client, server.keys().server_to_client);
  EXPECT_NE(client.keys().client_to_server, client.keys().server_to_client);
  EXPECT_EQ(client.wanted(), 0u);
}

TEST(HandshakeTest, GivesEveryConnectionOtherKeys) {
  const Secret secret = Secret::Random();
  std::vector<SessionKeys> keys;
  for (int i = 0; i < 2; ++i) {
    Handshake client = Handshake::Client(secret, SomeHello());
    Handshake server = Handshake::Server(secret, AdmitAll);
    server.Feed(client.TakeOutput());
    client.Feed(server.TakeOutput());
    server.Feed(client.TakeOutput());
    keys.push_back(server.keys());
  }
  EXPECT_NE(keys[0].client_to_server, keys[1].client_to_server);
  EXPECT_NE(keys[0].server_to_client, keys[1].server_to_client);
}

TEST(HandshakeTest, WorksWhenBytesArriveOneByOne) {
  const Secret secret = Secret::Random();
  const Outcome outcome =
      Converse(Handshake::Client(secret, SomeHello()), Handshake::Server(secret, AdmitAll), 1);
  EXPECT_TRUE(outcome.client_done);
  EXPECT_TRUE(outcome.server_done);
}

TEST(HandshakeTest, ServerRefusesAClientWithAnotherSecretAndStaysSilent) {
  const Outcome outcome = Converse(Handshake::Client(Secret::Random(), SomeHello()),
                                   Handshake::Server(Secret::Random(), AdmitAll));
  ASSERT_TRUE(outcome.server_error);
  EXPECT_THAT(*outcome.server_error, IsError(Code::kUnauthenticated, HasSubstr("secret")));
  EXPECT_FALSE(outcome.client_done);
  EXPECT_EQ(outcome.messages.size(), 3u);
}

TEST(HandshakeTest, ClientRefusesAServerWithAnotherSecret) {
  // A server that lets everybody in still cannot prove itself.
  Handshake client = Handshake::Client(Secret::Random(), SomeHello());
  client.Feed(Message(16));
  EXPECT_THAT(ErrorOf([&] { client.Feed(Message(32)); }),
              IsError(Code::kUnauthenticated, HasSubstr("server")));
  EXPECT_FALSE(client.done());
}

TEST(HandshakeTest, DoesNotAskAdmitBeforeTheProof) {
  bool asked = false;
  Converse(Handshake::Client(Secret::Random(), SomeHello()),
           Handshake::Server(Secret::Random(), [&](const Hello&) { asked = true; }));
  EXPECT_FALSE(asked);
}

TEST(HandshakeTest, RefusesAClientThatAdmitRefuses) {
  const Secret secret = Secret::Random();
  const auto admit = [](const Hello& hello) {
    if (hello.generation < 8)
      throw Error(Code::kUnauthenticated, "generation 7 is stale, this is 8");
  };
  const Outcome outcome =
      Converse(Handshake::Client(secret, SomeHello()), Handshake::Server(secret, admit));
  ASSERT_TRUE(outcome.server_error);
  EXPECT_THAT(*outcome.server_error, IsError(Code::kUnauthenticated, HasSubstr("stale")));
  EXPECT_FALSE(outcome.client_done);
}

TEST(HandshakeTest, NoticesEveryFlippedBit) {
  const Secret secret = Secret::Random();
  const std::size_t sizes[kMessages] = {64, 16, 32, 32};
  for (std::size_t message = 0; message < kMessages; ++message) {
    for (std::size_t bit = 0; bit < 8 * sizes[message]; ++bit) {
      const auto flip = [&](std::size_t index, Message& bytes) {
        if (index != message) return;
        ASSERT_EQ(bytes.size(), sizes[message]);
        bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      };
      const Outcome outcome = Converse(Handshake::Client(secret, SomeHello()),
                                       Handshake::Server(secret, AdmitAll), 128, flip);
      const auto& error = message == kMessages - 1 ? outcome.client_error : outcome.server_error;
      ASSERT_TRUE(error) << "message " << message << ", bit " << bit;
      ASSERT_EQ(error->code(), Code::kUnauthenticated);
      ASSERT_FALSE(outcome.client_done);
    }
  }
}

TEST(HandshakeTest, IsNotDoneWhenAnyMessageIsTruncated) {
  const Secret secret = Secret::Random();
  for (std::size_t message = 0; message < kMessages; ++message) {
    const auto truncate = [&](std::size_t index, Message& bytes) {
      if (index == message) bytes.pop_back();
    };
    const Outcome outcome = Converse(Handshake::Client(secret, SomeHello()),
                                     Handshake::Server(secret, AdmitAll), 128, truncate);
    EXPECT_FALSE(outcome.client_done);
    EXPECT_FALSE(outcome.client_error || outcome.server_error)
        << "a part of a message is no error yet";
  }
}

TEST(HandshakeTest, RefusesARecordedClient) {
  const Secret secret = Secret::Random();
  const Outcome recorded =
      Converse(Handshake::Client(secret, SomeHello()), Handshake::Server(secret, AdmitAll));
  ASSERT_TRUE(recorded.server_done);
  Handshake server = Handshake::Server(secret, AdmitAll);
  server.Feed(recorded.messages[0]);
  EXPECT_THAT(ErrorOf([&] { server.Feed(recorded.messages[2]); }),
              IsError(Code::kUnauthenticated, HasSubstr("secret")));
}

TEST(HandshakeTest, RefusesARecordedServer) {
  const Secret secret = Secret::Random();
  const Outcome recorded =
      Converse(Handshake::Client(secret, SomeHello()), Handshake::Server(secret, AdmitAll));
  ASSERT_TRUE(recorded.client_done);
  Handshake client = Handshake::Client(secret, SomeHello());
  client.Feed(recorded.messages[1]);
  EXPECT_THAT(ErrorOf([&] { client.Feed(recorded.messages[3]); }),
              IsError(Code::kUnauthenticated, HasSubstr("secret")));
}

TEST(HandshakeTest, RefusesItsOwnProofSentBack) {
  Handshake client = Handshake::Client(Secret::Random(), SomeHello());
  client.TakeOutput();
  client.Feed(Message(16));
  const Message proof = client.TakeOutput();
  EXPECT_THAT(ErrorOf([&] { client.Feed(proof); }),
              IsError(Code::kUnauthenticated, HasSubstr("server")));
}

TEST(HandshakeTest, NamesBothVersionsWhenTheyDiffer) {
  Handshake server = Handshake::Server(Secret::Random(), AdmitAll);
  Message hello = Handshake::Client(Secret::Random(), SomeHello()).TakeOutput();
  hello[8] = std::byte{7};
  EXPECT_THAT(ErrorOf([&] { server.Feed(hello); }),
              IsError(Code::kUnauthenticated, HasSubstr("speaks protocol 7, this build speaks 1")));
  EXPECT_TRUE(server.TakeOutput().empty());
}

TEST(HandshakeTest, SaysWhenTheOtherEndIsNoOrca) {
  Handshake server = Handshake::Server(Secret::Random(), AdmitAll);
  const std::string request =
      "GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: something long\r\n\r\n";
  EXPECT_THAT(ErrorOf([&] { server.Feed(std::as_bytes(std::span(request)).first(64)); }),
              IsError(Code::kUnauthenticated, HasSubstr("does not speak Orca's protocol")));
}

TEST(HandshakeTest, TakesNothingAfterAnError) {
  Handshake server = Handshake::Server(Secret::Random(), AdmitAll);
  EXPECT_THROW(server.Feed(Message(64)), Error);
  EXPECT_EQ(server.wanted(), 0u);
  EXPECT_THAT(ErrorOf([&] { server.Feed(Message(1)); }),
              IsError(Code::kUnauthenticated, HasSubstr("failed")));
}

TEST(HandshakeTest, RefusesMoreBytesThanItWants) {
  Handshake server = Handshake::Server(Secret::Random(), AdmitAll);
  EXPECT_THAT(ErrorOf([&] { server.Feed(Message(65)); }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("65"), HasSubstr("64"))));
}

TEST(HandshakeTest, RefusesASecretThatNobodyFilledIn) {
  EXPECT_THAT(ErrorOf([] { Handshake::Client(Secret(), SomeHello()); }),
              IsError(Code::kInvalidArgument, HasSubstr("empty")));
}

TEST(HandshakeTest, HasNoKeysBeforeItIsDone) {
  EXPECT_THAT(ErrorOf([] { Handshake::Client(Secret::Random(), SomeHello()).keys(); }),
              IsError(Code::kFailedPrecondition, HasSubstr("done")));
}

/// A server on a real socket that ends the connection when the handshake fails.
class ConnectHandshakeTest : public ::testing::Test {
 protected:
  ConnectHandshakeTest() { listener_ = ListenUnix(&name_); }

  UniqueFd Connect() { return ConnectUnix(name_, deadline_); }

  // Serves one connection; returns the keys.
  SessionKeys Serve(const Secret& secret, const std::function<void(const Hello&)>& admit) {
    const UniqueFd fd = Accept(listener_.get());
    Handshake server = Handshake::Server(secret, admit);
    while (!server.done()) {
      Message message(server.wanted());
      RecvAll(fd.get(), message, deadline_);
      server.Feed(message);
      SendAll(fd.get(), server.TakeOutput(), deadline_);
    }
    return server.keys();
  }

  const Deadline deadline_ = Deadline::After(seconds(20));
  UniqueFd listener_;
  std::string name_;
};

TEST_F(ConnectHandshakeTest, AgreesOnKeysOverASocket) {
  const Secret secret = Secret::Random();
  const UniqueFd fd = Connect();
  auto served = std::async(std::launch::async, [&] { return Serve(secret, AdmitAll); });
  const SessionKeys keys = ConnectHandshake(fd.get(), secret, SomeHello(), deadline_);
  EXPECT_EQ(keys.client_to_server, served.get().client_to_server);
}

TEST_F(ConnectHandshakeTest, SaysThatTheServerWasNotConvinced) {
  const UniqueFd fd = Connect();
  auto served = std::async(std::launch::async,
                           [&] { return ErrorOf([&] { Serve(Secret::Random(), AdmitAll); }); });
  EXPECT_THAT(
      ErrorOf([&] { ConnectHandshake(fd.get(), Secret::Random(), SomeHello(), deadline_); }),
      IsError(Code::kUnauthenticated, AllOf(HasSubstr("secret"), HasSubstr("rank 3"))));
  EXPECT_EQ(served.get().code(), Code::kUnauthenticated);
}

TEST_F(ConnectHandshakeTest, SaysThatTheServerClosedBeforeItsPart) {
  const UniqueFd fd = Connect();
  Accept(listener_.get()).Reset();
  EXPECT_THAT(
      ErrorOf([&] { ConnectHandshake(fd.get(), Secret::Random(), SomeHello(), deadline_); }),
      IsError(Code::kPeerLost, HasSubstr("protocol 1")));
}

TEST_F(ConnectHandshakeTest, EndsAtTheDeadlineWhenTheServerIsSilent) {
  const UniqueFd fd = Connect();
  const Deadline soon = Deadline::After(std::chrono::milliseconds(50));
  EXPECT_THAT(ErrorOf([&] { ConnectHandshake(fd.get(), Secret::Random(), SomeHello(), soon); }),
              IsError(Code::kTimeout, HasSubstr("0 of 16 bytes")));
}

}  // namespace
}  // namespace orca::net
