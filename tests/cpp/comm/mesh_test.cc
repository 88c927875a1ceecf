// Streams of a mesh that come late, or never.
#include "comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "orca/core/error.h"

namespace orca::comm {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::size_t kBytes = 100;

// Rank 0 of two; rank 1 has sent two messages, one over each of its streams, and is gone.
class LateStreamsTest : public ::testing::Test {
 protected:
  LateStreamsTest() : mesh_(Options(0)) {
    MeshOptions options = Options(1);
    options.connect = [this](int, int stream, const Deadline&) {
      std::array<int, 2> ends{};
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
      streams_[stream] = UniqueFd(ends[0]);
      return UniqueFd(ends[1]);
    };
    const std::vector<std::byte> data(kBytes, std::byte{7});
    Mesh other(std::move(options));
    other.Begin(1, Call(), Deadline::After(10s));
    other.Send(0, data);
    other.Send(0, data);
    other.Flush();
  }

  MeshOptions Options(int rank) {
    return {.rank = rank,
            .names = {"rank 0", "rank 1"},
            .streams = 2,
            .warn_after = 60s,
            .on_long_wait = [](const std::string&, std::chrono::milliseconds) {},
            .grace = grace_,
            .failure = [] { return std::optional<Failure>(); },
            .left = [this](int) { return left_.load(); }};
  }
  static CallRecord Call() { return {}; }

  void Receive() {
    mesh_.Begin(1, Call(), Deadline::After(10s));
    mesh_.Recv(1, first_);
    mesh_.Recv(1, second_);
    mesh_.Flush();
  }

  std::chrono::milliseconds grace_ = 5s;
  std::atomic<bool> left_{false};
  std::map<int, UniqueFd> streams_;
  Mesh mesh_;
  std::vector<std::byte> first_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> second_ = std::vector<std::byte>(kBytes);
};

TEST_F(LateStreamsTest, OneThatComesAfterAnotherHasClosedIsWaitedFor) {
  mesh_.AddStream(1, std::move(streams_[0]));
  std::jthread late([this] {
    std::this_thread::sleep_for(100ms);
    mesh_.AddStream(1, std::move(streams_[1]));
  });
  Receive();
  EXPECT_THAT(first_, Each(std::byte{7}));
  EXPECT_THAT(second_, Each(std::byte{7}));
}

TEST_F(LateStreamsTest, TheNewsThatARankHasLeftMayBeQuickerThanItsStreams) {
  left_ = true;
  std::jthread late([this] {
    for (int stream : {0, 1}) {
      std::this_thread::sleep_for(100ms);
      mesh_.AddStream(1, std::move(streams_[stream]));
    }
  });
  Receive();
  EXPECT_THAT(second_, Each(std::byte{7}));
}

TEST_F(LateStreamsTest, ARankThatHasLeftWithoutThemIsLost) {
  MeshOptions options = Options(0);
  options.grace = 50ms;
  Mesh mesh(std::move(options));
  left_ = true;
  mesh.AddStream(1, std::move(streams_[0]));
  mesh.Begin(1, Call(), Deadline::After(10s));
  mesh.Recv(1, first_);
  mesh.Recv(1, second_);
  try {
    mesh.Flush();
    FAIL() << "it came";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kPeerLost);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has left the group"));
  }
}

// Another rank has seen it and given up; its closed connections are here before the news.
TEST_F(LateStreamsTest, WhoLeftIsNamedAlsoWhenTheNewsComesLast) {
  std::atomic<int> asked = 0;
  MeshOptions options = Options(0);
  options.names = {"rank 0", "rank 1", "rank 2"};
  options.left = [this](int rank) { return rank == 2 && left_; };
  // Meanwhile the grace goes by, and in it the news comes.
  options.failure = [&]() -> std::optional<Failure> {
    if (++asked == 3) left_ = true;
    return std::nullopt;
  };
  options.grace = 100ms;
  Mesh mesh(std::move(options));
  for (int stream : {0, 1}) mesh.AddStream(1, std::move(streams_[stream]));
  std::vector<std::byte> third(kBytes);
  mesh.Begin(1, Call(), Deadline::After(10s));
  for (auto* data : {&first_, &second_, &third}) mesh.Recv(1, *data);
  try {
    mesh.Flush();
    FAIL() << "it came";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kPeerLost);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 closed its connections"));
    EXPECT_THAT(error.what(), HasSubstr("rank 2 had left"));
  }
}

}  // namespace
}  // namespace orca::comm
