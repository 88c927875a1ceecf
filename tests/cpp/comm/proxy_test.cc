// A damaged or cut connection between two ranks that do all else right (F13, F10).
#include "testing/proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <random>

#include "testing/cases.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::ChaosProxy;
using testing::Clock;
using ::testing::Each;
using ::testing::HasSubstr;

// Publishes a proxy's address instead of the one that a rank listens on.
class DetourStore final : public Store {
 public:
  DetourStore(std::shared_ptr<Store> store, ChaosProxy::Chaos chaos, std::size_t at)
      : store_(std::move(store)), chaos_(chaos), at_(at) {}

  void Set(const std::string& key, const std::string& value) override {
    if (key.find("/address/") == std::string::npos) return store_->Set(key, value);
    proxy_ = std::make_unique<ChaosProxy>(value, chaos_, at_);
    store_->Set(key, proxy_->address());
  }
  std::string Get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->Get(key, timeout);
  }
  std::size_t passed() const { return proxy_ ? proxy_->passed() : 0; }

 private:
  std::shared_ptr<Store> store_;
  ChaosProxy::Chaos chaos_;
  std::size_t at_;
  std::unique_ptr<ChaosProxy> proxy_;
};

class ProxyTest : public ::testing::Test {
 protected:
  // Two ranks over TCP; what rank 0 sends to rank 1 takes the detour. Returns their errors.
  std::vector<std::string> Run(ChaosProxy::Chaos chaos, std::size_t at, int calls,
                               std::size_t count) {
    const auto store = NewMemoryStore();
    return testing::RunThreads(2, [&](int rank) {
      const auto detour = std::make_shared<DetourStore>(store, chaos, at);
      const auto seen = rank == 0 ? store : std::static_pointer_cast<Store>(detour);
      const auto comm = Join(
          testing::Seat{.rank = rank, .world = 2, .layout = testing::TcpLayout(), .store = seen});
      for (int call = 0; call < calls; ++call) {
        std::vector<float> data(count, static_cast<float>(rank + 1));
        comm->AllReduce(AsBytes(data), DType::kFloat32);
        EXPECT_EQ(std::count(data.begin(), data.end(), 3.0f), static_cast<std::ptrdiff_t>(count));
      }
      comm->Barrier();
      if (rank == 1) passed_ = detour->passed();
    });
  }

  std::size_t passed_ = 0;
};

TEST_F(ProxyTest, AHealthyDetourChangesNothing) {
  EXPECT_THAT(Run(ChaosProxy::Chaos::kNone, 0, 5, 100'000), Each(""));
  EXPECT_GT(passed_, 5u * 400'000u / 2);
}

TEST_F(ProxyTest, F13ADamagedByteEndsTheGroupNamingTheLinkAndNoWrongResultComesOut) {
  // The handshakes of the two streams pass first, in less than a kilobyte.
  for (const std::size_t at : {std::size_t{2000}, std::size_t{150'001}, std::size_t{700'777}}) {
    const auto begin = Clock::now();
    const auto errors = Run(ChaosProxy::Chaos::kFlipBit, at, 20, 100'000);
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("peer lost"), HasSubstr("rank 0 ("),
                                   AnyOf(HasSubstr("damaged"), HasSubstr("corrupt")))))
        << "at byte " << at;
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  }
}

TEST_F(ProxyTest, F10ACloseAtARandomByteEndsTheGroupOnBothSides) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < 5; ++round) {
    const std::size_t at = 1000 + random() % 1'000'000;
    const auto begin = Clock::now();
    const auto errors = Run(ChaosProxy::Chaos::kClose, at, 20, 100'000);
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("peer lost"),
                                   AnyOf(HasSubstr("rank 0 ("), HasSubstr("rank 1 (")))))
        << "at byte " << at;
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  }
}

TEST_F(ProxyTest, F10ACloseInTheHandshakeEndsTheGroupOnBothSides) {
  const auto errors = Run(ChaosProxy::Chaos::kClose, 40, 1, 100);
  EXPECT_THAT(errors, Each(HasSubstr("peer lost")));
}

}  // namespace
}  // namespace orca::comm
