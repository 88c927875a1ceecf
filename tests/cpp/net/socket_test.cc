#include "orca/net/socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <future>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "net/expect_error.h"

namespace orca::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Pair = std::pair<UniqueFd, UniqueFd>;

Deadline Soon() { return Deadline::After(milliseconds(50)); }
Deadline Later() { return Deadline::After(seconds(20)); }

UniqueFd ConnectTcp(const std::string& address, const Deadline& deadline) {
  return net::ConnectTcp(std::array{address}, deadline);
}

UniqueFd AcceptOne(const UniqueFd& listener) {
  pollfd entry{.fd = listener.get(), .events = POLLIN, .revents = 0};
  ::poll(&entry, 1, 20'000);
  return Accept(listener.get());
}

Pair ConnectedTcp(const std::string& host = "127.0.0.1") {
  std::string address;
  const UniqueFd listener = ListenTcp(host + ":0", &address);
  UniqueFd client = ConnectTcp(address, Later());
  return {std::move(client), AcceptOne(listener)};
}

Pair ConnectedUnix() {
  std::string name;
  const UniqueFd listener = ListenUnix(&name);
  UniqueFd client = ConnectUnix(name, Later());
  return {std::move(client), AcceptOne(listener)};
}

int Option(const UniqueFd& fd, int level, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(fd.get(), level, name, &value, &size), 0);
  return value;
}

std::vector<std::byte> Numbers(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

// Runs `body` in a child process; returns what it returned.
template <typename Body>
int InChild(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Lets this process open not one descriptor more.
void ForbidDescriptors() {
  const int next = ::dup(0);
  ::close(next);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(next);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool NamesTheLimit(const Error& error) {
  return error.code() == Code::kResourceExhausted &&
         std::string(error.what()).find("RLIMIT_NOFILE") != std::string::npos &&
         std::string(error.what()).find("ulimit -n") != std::string::npos;
}

TEST(ListenTcpTest, TakesAFreePortAndTellsWhich) {
  std::string address;
  const UniqueFd listener = ListenTcp("127.0.0.1:0", &address);
  EXPECT_THAT(address, AllOf(StartsWith("127.0.0.1:"), Not(HasSubstr(":0"))));
  EXPECT_TRUE(ConnectTcp(address, Later()));
}

TEST(ListenTcpTest, GivesDescriptorsThatDoNotBlockAndCloseOnExec) {
  const auto [client, server] = ConnectedTcp();
  for (const int fd : {client.get(), server.get()}) {
    EXPECT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(ListenTcpTest, NamesTheProcessThatHoldsThePort) {
  std::array<int, 2> channel{};
  ASSERT_EQ(::pipe2(channel.data(), O_CLOEXEC), 0);
  UniqueFd read_end(channel[0]);
  UniqueFd write_end(channel[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string address;
    const UniqueFd listener = ListenTcp("127.0.0.1:0", &address);
    const ssize_t wrote = ::write(write_end.get(), address.data(), address.size());
    ::pause();
    ::_exit(wrote > 0 ? 0 : 1);
  }
  std::array<char, 64> text{};
  ASSERT_GT(::read(read_end.get(), text.data(), text.size() - 1), 0);
  EXPECT_THAT(
      ErrorOf([&] { ListenTcp(text.data(), nullptr); }),
      IsError(Code::kUnavailable, AllOf(HasSubstr(text.data()), HasSubstr("in use"),
                                        HasSubstr("process " + std::to_string(child) + " ("))));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(ListenTcpTest, SaysWhenThisProcessItselfHoldsThePort) {
  std::string address;
  const UniqueFd listener = ListenTcp("127.0.0.1:0", &address);
  EXPECT_THAT(
      ErrorOf([&] { ListenTcp(address, nullptr); }),
      IsError(Code::kUnavailable, HasSubstr("this process, " + std::to_string(::getpid()))));
}

TEST(ListenTcpTest, ListsTheHostsAddressesWhenItHasNoSuchOne) {
  EXPECT_THAT(ErrorOf([] { ListenTcp("192.0.2.1:0", nullptr); }),
              IsError(Code::kUnavailable,
                      AllOf(HasSubstr("192.0.2.1"), HasSubstr(LocalAddresses().front()))));
}

TEST(ListenTcpTest, RefusesWhatIsNoAddress) {
  for (const char* address :
       {"", "host", "host:", ":80", "host:http", "host:70000", "host:-1", "::1:80", "[]:80"}) {
    EXPECT_THAT(ErrorOf([&] { ListenTcp(address, nullptr); }),
                IsError(Code::kInvalidArgument, HasSubstr("host:port")))
        << address;
  }
}

TEST(ListenTcpTest, NamesTheLimitWhenDescriptorsRunOut) {
  EXPECT_EQ(InChild([] {
              ForbidDescriptors();
              return NamesTheLimit(ErrorOf([] { ListenTcp("127.0.0.1:0", nullptr); })) ? 0 : 1;
            }),
            0);
}

TEST(ListenTcpTest, WorksOverIpv6) {
  const UniqueFd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (!probe || ::bind(probe.get(), reinterpret_cast<sockaddr*>(&loopback), sizeof loopback) != 0) {
    GTEST_SKIP() << "this host has no IPv6";
  }
  const auto [client, server] = ConnectedTcp("[::1]");
  const auto sent = Numbers(100);
  std::vector<std::byte> received(100);
  SendAll(client.get(), sent, Later());
  RecvAll(server.get(), received, Later());
  EXPECT_EQ(received, sent);
}

TEST(AcceptTest, IsEmptyWhenNobodyWaits) {
  const UniqueFd listener = ListenTcp("127.0.0.1:0", nullptr);
  EXPECT_FALSE(Accept(listener.get()));
}

TEST(AcceptTest, NamesTheLimitWhenDescriptorsRunOut) {
  EXPECT_EQ(InChild([] {
              std::string address;
              const UniqueFd listener = ListenTcp("127.0.0.1:0", &address);
              const UniqueFd client = ConnectTcp(address, Later());
              const UniqueFd unused = ListenTcp("127.0.0.1:0", nullptr);
              ForbidDescriptors();
              if (Accept(unused.get())) return 1;
              return NamesTheLimit(ErrorOf([&] { Accept(listener.get()); })) ? 0 : 1;
            }),
            0);
}

TEST(ConnectTcpTest, ListsEveryAddressAndWhyItFailed) {
  std::string closed;
  ListenTcp("127.0.0.1:0", &closed).Reset();
  const std::array addresses = {closed, std::string("no-such-host.invalid:80")};
  EXPECT_THAT(ErrorOf([&] { net::ConnectTcp(addresses, Soon()); }),
              IsError(Code::kUnavailable,
                      AllOf(HasSubstr(closed), HasSubstr("refused"),
                            HasSubstr("no-such-host.invalid"), HasSubstr("cannot resolve"))));
}

TEST(ConnectTcpTest, TakesTheFirstAddressThatAnswers) {
  std::string closed;
  ListenTcp("127.0.0.1:0", &closed).Reset();
  std::string open;
  const UniqueFd listener = ListenTcp("127.0.0.1:0", &open);
  EXPECT_TRUE(net::ConnectTcp(std::array{closed, open}, Later()));
}

TEST(ConnectTcpTest, TriesAgainUntilSomebodyListens) {
  // A port that is taken but not listened on refuses connections.
  const UniqueFd holder(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in local{};
  local.sin_family = AF_INET;
  local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof local;
  ASSERT_EQ(::bind(holder.get(), reinterpret_cast<sockaddr*>(&local), size), 0);
  ASSERT_EQ(::getsockname(holder.get(), reinterpret_cast<sockaddr*>(&local), &size), 0);
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(local.sin_port));
  EXPECT_THROW(ConnectTcp(address, Soon()), Error);
  auto connected = std::async(std::launch::async, [&] { return ConnectTcp(address, Later()); });
  ASSERT_EQ(::listen(holder.get(), 1), 0);
  EXPECT_TRUE(connected.get());
}

TEST(ConnectTcpTest, ResolvesNames) {
  std::string address;
  const UniqueFd listener = ListenTcp("127.0.0.1:0", &address);
  EXPECT_TRUE(ConnectTcp("localhost" + address.substr(address.rfind(':')), Later()));
}

TEST(ConnectTcpTest, WantsAnAddress) {
  EXPECT_THAT(ErrorOf([] { net::ConnectTcp({}, Later()); }),
              IsError(Code::kInvalidArgument, HasSubstr("no address")));
}

TEST(SendAllTest, MovesMoreThanTheBuffersHold) {
  const auto [client, server] = ConnectedTcp();
  const int small = 4096;
  ::setsockopt(client.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  const auto sent = Numbers(1 << 20);
  auto sending =
      std::async(std::launch::async, [&, fd = client.get()] { SendAll(fd, sent, Later()); });
  std::vector<std::byte> received(sent.size());
  RecvAll(server.get(), received, Later());
  sending.get();
  EXPECT_EQ(received, sent);
}

TEST(SendAllTest, EndsAtTheDeadlineWhenNobodyReads) {
  const auto [client, server] = ConnectedUnix();
  EXPECT_THAT(ErrorOf([fd = client.get()] { SendAll(fd, Numbers(64 << 20), Soon()); }),
              IsError(Code::kTimeout, HasSubstr("of 67108864 bytes")));
}

TEST(SendAllTest, SaysThatThePeerIsGoneInsteadOfASignal) {
  auto [client, server] = ConnectedTcp();
  server.Reset();
  EXPECT_THAT(ErrorOf([fd = client.get()] { SendAll(fd, Numbers(64 << 20), Later()); }),
              IsError(Code::kPeerLost, HasSubstr("ended after")));
}

TEST(RecvAllTest, SaysHowMuchCameBeforeThePeerClosed) {
  auto [client, server] = ConnectedTcp();
  SendAll(client.get(), Numbers(10), Later());
  client.Reset();
  std::vector<std::byte> data(64);
  EXPECT_THAT(ErrorOf([&, fd = server.get()] { RecvAll(fd, data, Later()); }),
              IsError(Code::kPeerLost, AllOf(HasSubstr("10 of 64 bytes"), HasSubstr("closed"))));
}

TEST(RecvAllTest, EndsAtTheDeadlineNamingThePeer) {
  const auto [client, server] = ConnectedTcp();
  std::vector<std::byte> data(64);
  EXPECT_THAT(ErrorOf([&, fd = server.get()] { RecvAll(fd, data, Soon()); }),
              IsError(Code::kTimeout, AllOf(HasSubstr("0 of 64 bytes"), HasSubstr("127.0.0.1:"))));
}

TEST(RecvSomeTest, ReturnsWhatThereIs) {
  const auto [client, server] = ConnectedUnix();
  SendAll(client.get(), Numbers(10), Later());
  std::vector<std::byte> data(64);
  EXPECT_EQ(RecvSome(server.get(), data, Later()), 10u);
}

TEST(SendFdTest, HandsMemoryToTheOtherEnd) {
  const auto [client, server] = ConnectedUnix();
  const UniqueFd memory(::memfd_create("orca_test", MFD_CLOEXEC));
  ASSERT_EQ(::write(memory.get(), "shared", 6), 6);
  SendFd(client.get(), memory.get(), Later());
  const UniqueFd received = RecvFd(server.get(), Later());
  EXPECT_NE(::fcntl(received.get(), F_GETFD) & FD_CLOEXEC, 0);
  std::array<char, 7> text{};
  EXPECT_EQ(::pread(received.get(), text.data(), 6, 0), 6);
  EXPECT_STREQ(text.data(), "shared");
}

TEST(SendFdTest, KeepsTheOrderOfSeveral) {
  const auto [client, server] = ConnectedUnix();
  for (const char* name : {"a", "b", "c"}) {
    const UniqueFd memory(::memfd_create(name, MFD_CLOEXEC));
    ASSERT_EQ(::write(memory.get(), name, 1), 1);
    SendFd(client.get(), memory.get(), Later());
  }
  for (const char name : {'a', 'b', 'c'}) {
    const UniqueFd received = RecvFd(server.get(), Later());
    char text = 0;
    EXPECT_EQ(::pread(received.get(), &text, 1, 0), 1);
    EXPECT_EQ(text, name);
  }
}

TEST(RecvFdTest, RefusesBytesWithoutADescriptor) {
  const auto [client, server] = ConnectedUnix();
  SendAll(client.get(), Numbers(1), Later());
  EXPECT_THAT(ErrorOf([fd = server.get()] { RecvFd(fd, Later()); }),
              IsError(Code::kPeerLost, HasSubstr("0 descriptors")));
}

TEST(RecvFdTest, EndsAtTheDeadlineAndWhenThePeerCloses) {
  auto [client, server] = ConnectedUnix();
  EXPECT_EQ(ErrorOf([fd = server.get()] { RecvFd(fd, Soon()); }).code(), Code::kTimeout);
  client.Reset();
  EXPECT_EQ(ErrorOf([fd = server.get()] { RecvFd(fd, Later()); }).code(), Code::kPeerLost);
}

TEST(RecvFdTest, NamesTheLimitWhenDescriptorsRunOut) {
  EXPECT_EQ(InChild([] {
              const auto [client, server] = ConnectedUnix();
              SendFd(client.get(), client.get(), Later());
              ForbidDescriptors();
              return NamesTheLimit(ErrorOf([fd = server.get()] { RecvFd(fd, Later()); })) ? 0 : 1;
            }),
            0);
}

TEST(ConnectUnixTest, SaysThatNobodyListens) {
  std::string name;
  ListenUnix(&name).Reset();
  EXPECT_THAT(ErrorOf([&] { ConnectUnix(name, Later()); }),
              IsError(Code::kUnavailable, HasSubstr("nobody listens")));
}

TEST(ConnectUnixTest, RefusesNamesThatCannotBe) {
  for (const std::string& name : {std::string(), std::string(200, 'x')}) {
    EXPECT_EQ(ErrorOf([&] { ConnectUnix(name, Later()); }).code(), Code::kInvalidArgument);
  }
}

TEST(CheckPeerUserTest, TakesProcessesOfThisUser) {
  const auto [client, server] = ConnectedUnix();
  EXPECT_NO_THROW(CheckPeerUser(server.get()));
}

TEST(CheckPeerUserTest, RefusesAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::string name;
  const UniqueFd listener = ListenUnix(&name);
  ASSERT_EQ(InChild([&] { return ::seteuid(65534) == 0 && ConnectUnix(name, Later()) ? 0 : 1; }),
            0);
  const UniqueFd server = AcceptOne(listener);
  EXPECT_THAT(ErrorOf([&] { CheckPeerUser(server.get()); }),
              IsError(Code::kUnauthenticated, AllOf(HasSubstr("user 65534"), HasSubstr("user 0"))));
}

TEST(TuneDataSocketTest, SetsWhatBulkDataNeeds) {
  const auto [client, server] = ConnectedTcp();
  TuneDataSocket(client.get(), milliseconds(7'000));
  EXPECT_EQ(Option(client, IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(Option(client, IPPROTO_TCP, TCP_USER_TIMEOUT), 7'000);
  std::array<char, 16> algorithm{};
  socklen_t size = algorithm.size();
  ASSERT_EQ(::getsockopt(client.get(), IPPROTO_TCP, TCP_CONGESTION, algorithm.data(), &size), 0);
  EXPECT_STREQ(algorithm.data(), "cubic");
  if (::geteuid() == 0) {
    EXPECT_GE(Option(client, SOL_SOCKET, SO_SNDBUF), 4 << 20);
    EXPECT_GE(Option(client, SOL_SOCKET, SO_RCVBUF), 4 << 20);
  }
}

TEST(LocalAddressesTest, EndWithLoopbackAndCanBeListenedOn) {
  const std::vector<std::string> addresses = LocalAddresses();
  EXPECT_THAT(addresses, Contains("127.0.0.1"));
  for (const std::string& address : addresses) {
    std::string bound;
    const UniqueFd listener = ListenTcp(address + ":0", &bound);
    EXPECT_TRUE(ConnectTcp(bound, Later())) << bound;
  }
}

}  // namespace
}  // namespace orca::net
