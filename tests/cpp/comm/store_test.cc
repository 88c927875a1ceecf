// The contract of all stores.
#include "orca/comm/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "net/expect_error.h"

namespace orca::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr seconds kLong{60};

/// Makes the stores of one group: what one rank sets, the others must see.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::shared_ptr<Store> Join() = 0;
};

class MemoryBackend final : public Backend {
 public:
  std::shared_ptr<Store> Join() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = NewMemoryStore();
};

class FileBackend final : public Backend {
 public:
  FileBackend() {
    std::string pattern = ::testing::TempDir() + "orca_store_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~FileBackend() override { std::filesystem::remove_all(directory_); }
  std::shared_ptr<Store> Join() override { return NewFileStore(directory_); }

 private:
  std::filesystem::path directory_;
};

class TcpBackend final : public Backend {
 public:
  TcpBackend() { server_ = ServeTcpStore("127.0.0.1:0", secret_, &address_); }
  std::shared_ptr<Store> Join() override { return ConnectTcpStore(address_, secret_, kLong); }

 private:
  const net::Secret secret_ = net::Secret::Random();
  std::string address_;
  std::shared_ptr<Store> server_;
};

/// The first rank is the server itself.
class TcpServerBackend final : public Backend {
 public:
  std::shared_ptr<Store> Join() override {
    if (!server_) return server_ = ServeTcpStore("127.0.0.1:0", secret_, &address_);
    return ConnectTcpStore(address_, secret_, kLong);
  }

 private:
  const net::Secret secret_ = net::Secret::Random();
  std::string address_;
  std::shared_ptr<Store> server_;
};

struct BackendCase {
  const char* name;
  std::function<std::unique_ptr<Backend>()> make;
};

class StoreTest : public ::testing::TestWithParam<BackendCase> {
 protected:
  static void SetUpTestSuite() {
    // Two hundred threads of one process need a connection each, and both its ends.
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, std::max<rlim_t>(limit.rlim_cur, 4096));
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }

  std::unique_ptr<Backend> backend_ = GetParam().make();
  std::shared_ptr<Store> one_ = backend_->Join();
  std::shared_ptr<Store> other_ = backend_->Join();
};

TEST_P(StoreTest, ReturnsWhatAnotherRankHasSet) {
  one_->Set("address/0", "10.0.0.1:4000");
  EXPECT_EQ(other_->Get("address/0", kLong), "10.0.0.1:4000");
  other_->Set("address/1", "10.0.0.2:4000");
  EXPECT_EQ(one_->Get("address/1", kLong), "10.0.0.2:4000");
}

TEST_P(StoreTest, ReturnsTheSameValueAgainAndAgain) {
  one_->Set("key", "value");
  for (int i = 0; i < 100; ++i) ASSERT_EQ(other_->Get("key", kLong), "value");
}

TEST_P(StoreTest, ReplacesAValue) {
  one_->Set("key", "old, and longer");
  other_->Set("key", "new");
  EXPECT_EQ(one_->Get("key", kLong), "new");
  EXPECT_EQ(other_->Get("key", kLong), "new");
}

TEST_P(StoreTest, GetWaitsUntilTheKeyIsSet) {
  auto waiting = std::async(std::launch::async, [&] { return other_->Get("late", kLong); });
  EXPECT_EQ(waiting.wait_for(milliseconds(50)), std::future_status::timeout);
  one_->Set("late", "here");
  EXPECT_EQ(waiting.get(), "here");
}

TEST_P(StoreTest, AWaitingGetDoesNotHoldUpASetOfTheSameObject) {
  auto waiting = std::async(std::launch::async, [&] { return one_->Get("late", kLong); });
  EXPECT_EQ(waiting.wait_for(milliseconds(50)), std::future_status::timeout);
  one_->Set("late", "here");
  EXPECT_EQ(waiting.get(), "here");
}

TEST_P(StoreTest, SettingAnotherKeyDoesNotEndTheWait) {
  auto waiting = std::async(std::launch::async, [&] { return other_->Get("wanted", kLong); });
  one_->Set("unwanted", "");
  EXPECT_EQ(waiting.wait_for(milliseconds(50)), std::future_status::timeout);
  one_->Set("wanted", "here");
  EXPECT_EQ(waiting.get(), "here");
}

TEST_P(StoreTest, TimeoutNamesTheKeyAndHowLongItWaited) {
  for (Store* store : {one_.get(), other_.get()}) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(ErrorOf([&] { store->Get("rank/3", milliseconds(60)); }),
                IsError(Code::kTimeout, AllOf(HasSubstr("\"rank/3\""), HasSubstr("60 ms"))));
    EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(60));
  }
}

TEST_P(StoreTest, WorksOnAfterATimeout) {
  EXPECT_EQ(ErrorOf([&] { other_->Get("key", milliseconds(1)); }).code(), Code::kTimeout);
  one_->Set("key", "value");
  EXPECT_EQ(other_->Get("key", kLong), "value");
}

TEST_P(StoreTest, AZeroTimeoutLooksOnce) {
  EXPECT_EQ(ErrorOf([&] { other_->Get("key", milliseconds(0)); }).code(), Code::kTimeout);
  EXPECT_EQ(ErrorOf([&] { other_->Get("key", milliseconds(-5)); }).code(), Code::kTimeout);
  one_->Set("key", "value");
  EXPECT_EQ(other_->Get("key", milliseconds(0)), "value");
}

TEST_P(StoreTest, TakesAnEndlessTimeout) {
  one_->Set("key", "value");
  EXPECT_EQ(other_->Get("key", milliseconds::max()), "value");
}

TEST_P(StoreTest, KeepsBinaryKeysAndValues) {
  std::string every_byte(256, '\0');
  for (std::size_t i = 0; i < every_byte.size(); ++i) every_byte[i] = static_cast<char>(i);
  one_->Set(every_byte, every_byte + every_byte);
  one_->Set("../../etc/passwd", "no path");
  one_->Set("empty", "");
  EXPECT_EQ(other_->Get(every_byte, kLong), every_byte + every_byte);
  EXPECT_EQ(other_->Get("../../etc/passwd", kLong), "no path");
  EXPECT_EQ(other_->Get("empty", kLong), "");
}

TEST_P(StoreTest, KeepsApartKeysThatLookAlike) {
  const std::vector<std::string> keys = {"a/b", "a_b",  "a%2fb",
                                         "A/B", "a/b ", std::string("a/b\0", 4)};
  for (const std::string& key : keys) one_->Set(key, "value of " + key);
  for (const std::string& key : keys) EXPECT_EQ(other_->Get(key, kLong), "value of " + key);
}

TEST_P(StoreTest, TakesValuesUpToAMebibyteAndNamesTheLimitAboveIt) {
  const std::string largest(1 << 20, 'x');
  one_->Set("large", largest);
  EXPECT_EQ(other_->Get("large", kLong), largest);
  EXPECT_THAT(ErrorOf([&] { one_->Set("large", largest + "x"); }),
              IsError(Code::kInvalidArgument,
                      AllOf(HasSubstr("1048577"), HasSubstr("1048576"), HasSubstr("large"))));
}

TEST_P(StoreTest, RefusesAKeyThatIsEmptyOrTooLong) {
  for (const std::string& key : {std::string(), std::string(1025, 'k')}) {
    EXPECT_THAT(ErrorOf([&] { one_->Set(key, ""); }),
                IsError(Code::kInvalidArgument, HasSubstr("1024")));
    EXPECT_THAT(ErrorOf([&] { other_->Get(key, kLong); }),
                IsError(Code::kInvalidArgument, HasSubstr("1024")));
  }
}

TEST_P(StoreTest, ServesTwoHundredThreadsThatWaitForEachOther) {
  constexpr int kThreads = 200;
  std::vector<std::shared_ptr<Store>> stores = {one_, other_, backend_->Join(), backend_->Join()};
  std::vector<std::string> values(kThreads);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kThreads; ++rank) {
      threads.emplace_back([&, rank] {
        Store& store = *stores[static_cast<std::size_t>(rank) % stores.size()];
        // Chains of ten: everybody sets a key when the one before has.
        if (rank % 10 != 0) {
          values[static_cast<std::size_t>(rank)] =
              store.Get("chain/" + std::to_string(rank - 1), kLong);
        }
        store.Set("chain/" + std::to_string(rank), "from " + std::to_string(rank));
      });
    }
  }
  for (int rank = 0; rank < kThreads; ++rank) {
    if (rank % 10 == 0) continue;
    EXPECT_EQ(values[static_cast<std::size_t>(rank)], "from " + std::to_string(rank - 1));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, StoreTest,
    ::testing::Values(BackendCase{"Memory", [] { return std::make_unique<MemoryBackend>(); }},
                      BackendCase{"File", [] { return std::make_unique<FileBackend>(); }},
                      BackendCase{"Tcp", [] { return std::make_unique<TcpBackend>(); }},
                      BackendCase{"TcpServer",
                                  [] { return std::make_unique<TcpServerBackend>(); }}),
    [](const auto& backend) { return std::string(backend.param.name); });

class FileStoreTest : public ::testing::Test {
 protected:
  FileStoreTest() {
    std::string pattern = ::testing::TempDir() + "orca_store_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~FileStoreTest() override { std::filesystem::remove_all(directory_); }

  std::vector<std::filesystem::path> Files() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory_))
      files.push_back(entry.path());
    return files;
  }

  std::filesystem::path directory_;
};

TEST_F(FileStoreTest, WritesFilesThatNobodyElseCanReadAndLeavesNoOthers) {
  for (const mode_t mask : {0000, 0777}) {
    const mode_t before = ::umask(mask);
    NewFileStore(directory_)->Set("secret", "value");
    ::umask(before);
    ASSERT_EQ(Files().size(), 1u);
    struct stat status {};
    ASSERT_EQ(::stat(Files().front().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
  }
}

TEST_F(FileStoreTest, MakesAMissingDirectoryForThisUserOnly) {
  const auto path = directory_ / "new";
  NewFileStore(path)->Set("key", "value");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0077, 0u);
}

TEST_F(FileStoreTest, DoesNotFollowALinkThatSomebodyPutThere) {
  const auto store = NewFileStore(directory_);
  store->Set("key", "value");
  const auto file = Files().front();
  std::filesystem::remove(file);
  std::filesystem::create_symlink("/etc/passwd", file);
  EXPECT_THAT(ErrorOf([&] { store->Get("key", kLong); }),
              IsError(Code::kUnavailable, HasSubstr(file.string())));
}

TEST_F(FileStoreTest, RefusesAFileOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const auto store = NewFileStore(directory_);
  store->Set("key", "value");
  ASSERT_EQ(::chown(Files().front().c_str(), 65534, 65534), 0);
  EXPECT_THAT(ErrorOf([&] { store->Get("key", kLong); }),
              IsError(Code::kUnauthenticated, HasSubstr("user 65534")));
}

TEST_F(FileStoreTest, NamesADirectoryThatCannotBeUsed) {
  EXPECT_THAT(ErrorOf([] { NewFileStore("/proc/no/such/place"); }),
              IsError(Code::kUnavailable, HasSubstr("/proc/no/such/place")));
}

}  // namespace
}  // namespace orca::comm
