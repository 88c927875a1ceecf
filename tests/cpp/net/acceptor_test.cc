#include "orca/net/acceptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "net/expect_error.h"
#include "orca/net/socket.h"

namespace orca::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// Gives this process another soft limit of descriptors for a while.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit now = before_;
    now.rlim_cur = std::min(limit, before_.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class AcceptorTest : public ::testing::Test {
 protected:
  Acceptor MakeAcceptor(std::function<void(const Hello&)> admit = nullptr) {
    Acceptor acceptor(secret_, std::move(admit), [this](Acceptor::Connection connection) {
      delivered_.push_back(std::move(connection));
    });
    acceptor.Listen(ListenTcp("127.0.0.1:0", &address_), false);
    acceptor.Listen(ListenUnix(&name_), true);
    return acceptor;
  }

  // Polls as an event loop would, until `enough`; no longer than the acceptor asks for.
  void Loop(Acceptor& acceptor, const std::function<bool()>& enough) {
    while (!enough()) {
      ASSERT_FALSE(deadline_.Passed());
      std::vector<pollfd> fds;
      acceptor.AppendPollFds(fds);
      const auto wake_at = acceptor.wake_at();
      const auto left = wake_at ? wake_at->Left() + milliseconds(1) : milliseconds(10);
      ::poll(fds.data(), fds.size(), static_cast<int>(std::min(left, milliseconds(10)).count()));
      acceptor.Handle();
    }
  }

  UniqueFd Stranger() { return ConnectTcp(std::array{address_}, deadline_); }

  auto ShakeHands(const UniqueFd& fd, const Secret& secret) {
    return std::async(std::launch::async, [this, socket = fd.get(), secret] {
      return ConnectHandshake(socket, secret, hello_, deadline_);
    });
  }

  // Whether the other end has closed the connection.
  static bool Closed(const UniqueFd& fd) {
    char byte = 0;
    const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  const Deadline deadline_ = Deadline::After(seconds(30));
  const Secret secret_ = Secret::Random();
  const Hello hello_{.job = HashName("job"), .generation = 1, .role = 2, .rank = 3, .index = 4};
  std::string address_;
  std::string name_;
  std::vector<Acceptor::Connection> delivered_;
};

TEST_F(AcceptorTest, DeliversWhoKnowsTheSecretWithTheSameKeys) {
  Acceptor acceptor = MakeAcceptor();
  for (const bool local : {false, true}) {
    delivered_.clear();
    const UniqueFd fd = local ? ConnectUnix(name_, deadline_) : Stranger();
    auto keys = ShakeHands(fd, secret_);
    Loop(acceptor, [&] { return !delivered_.empty(); });
    EXPECT_EQ(delivered_.front().local, local);
    EXPECT_EQ(delivered_.front().hello, hello_);
    EXPECT_EQ(delivered_.front().keys.client_to_server, keys.get().client_to_server);
  }
  EXPECT_EQ(acceptor.refused(), 0u);
}

TEST_F(AcceptorTest, RefusesWhomAdmitRefuses) {
  Acceptor acceptor = MakeAcceptor(
      [](const Hello&) { throw Error(Code::kUnauthenticated, "generation 1 is stale"); });
  const UniqueFd fd = Stranger();
  auto keys = ShakeHands(fd, secret_);
  Loop(acceptor, [&] { return keys.wait_for(seconds(0)) == std::future_status::ready; });
  EXPECT_THAT(ErrorOf([&] { keys.get(); }),
              IsError(Code::kUnauthenticated, HasSubstr("does not admit")));
  EXPECT_TRUE(delivered_.empty());
  EXPECT_EQ(acceptor.refused(), 1u);
}

TEST_F(AcceptorTest, AWrongProofHoldsItsConnectionForAWhile) {
  Acceptor acceptor = MakeAcceptor();
  const UniqueFd fd = Stranger();
  auto keys = ShakeHands(fd, Secret::Random());
  Loop(acceptor, [&] { return acceptor.refused() == 1; });
  const auto start = Deadline::Clock::now();
  EXPECT_FALSE(Closed(fd));
  Loop(acceptor, [&] { return keys.wait_for(seconds(0)) == std::future_status::ready; });
  EXPECT_GE(Deadline::Clock::now() - start, Acceptor::kPenalty - milliseconds(20));
  EXPECT_EQ(ErrorOf([&] { keys.get(); }).code(), Code::kUnauthenticated);
  EXPECT_FALSE(acceptor.wake_at()) << "nothing is left of it";
}

TEST_F(AcceptorTest, TheOldestStrangerGoesWhenTooManyCome) {
  const DescriptorLimit limit(400);  // A quarter of them, 100, may be strangers'.
  Acceptor acceptor = MakeAcceptor();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 150; ++i) strangers.push_back(Stranger());
  Loop(acceptor, [&] { return Closed(strangers[49]); });
  EXPECT_TRUE(Closed(strangers[0]));
  EXPECT_FALSE(Closed(strangers[50]));
  EXPECT_FALSE(Closed(strangers[149]));
  const UniqueFd fd = Stranger();
  auto keys = ShakeHands(fd, secret_);
  Loop(acceptor, [&] { return !delivered_.empty(); });
  EXPECT_NO_THROW(keys.get());
}

TEST_F(AcceptorTest, DropsAStrangerWhenDescriptorsRunOut) {
  Acceptor acceptor = MakeAcceptor();
  const UniqueFd silent = Stranger();
  acceptor.Handle();
  const UniqueFd fd = Stranger();
  const int next = ::dup(0);
  ::close(next);
  const DescriptorLimit none(static_cast<rlim_t>(next));
  acceptor.Handle();
  EXPECT_TRUE(Closed(silent));
  EXPECT_FALSE(Closed(fd));
}

TEST_F(AcceptorTest, PausesInsteadOfSpinningWhenDescriptorsRunOut) {
  Acceptor acceptor = MakeAcceptor();
  const UniqueFd fd = Stranger();
  {
    const int next = ::dup(0);
    ::close(next);
    const DescriptorLimit none(static_cast<rlim_t>(next));
    acceptor.Handle();
  }
  std::vector<pollfd> fds;
  acceptor.AppendPollFds(fds);
  EXPECT_TRUE(fds.empty());
  ASSERT_TRUE(acceptor.wake_at());
  auto keys = ShakeHands(fd, secret_);
  Loop(acceptor, [&] { return !delivered_.empty(); });
  EXPECT_NO_THROW(keys.get());
}

TEST_F(AcceptorTest, DropsAConnectionThatCloses) {
  Acceptor acceptor = MakeAcceptor();
  Stranger().Reset();
  Loop(acceptor, [&] { return acceptor.refused() == 1; });
  EXPECT_FALSE(acceptor.wake_at());
}

}  // namespace
}  // namespace orca::net
