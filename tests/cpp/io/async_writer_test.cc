#include "orca/io/async_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <mutex>

#include "io/folder.h"
#include "io/sample.h"
#include "net/expect_error.h"

namespace orca::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr seconds kLong(60);

/// The real file system, whose files cannot be made while a test says so, or have to wait.
class FaultyFiles final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> Create(const Path& path, Access access) override {
    ++attempts;
    if (const auto wait = Gate()) wait->wait_for(kLong);
    if (const int code = error; code != 0) ThrowFileError("create", path, code);
    return RealFiles().Create(path, access);
  }
  std::unique_ptr<WritableFile> CreateUnnamed(const Path& /*folder*/, Access /*access*/) override {
    return nullptr;
  }
  FileView Map(const Path& path) override { return RealFiles().Map(path); }
  void Rename(const Path& from, const Path& to) override { RealFiles().Rename(from, to); }
  bool Remove(const Path& path) override { return RealFiles().Remove(path); }
  bool MakeFolder(const Path& path) override { return RealFiles().MakeFolder(path); }
  std::vector<std::string> List(const Path& folder) override { return RealFiles().List(folder); }
  void SyncFolder(const Path& folder) override { RealFiles().SyncFolder(folder); }
  std::unique_ptr<FolderLock> TryLock(const Path& folder) override {
    return RealFiles().TryLock(folder);
  }
  std::string UniqueWord() override { return RealFiles().UniqueWord(); }

  void SetGate(std::shared_future<void> gate) {
    const std::lock_guard lock(mutex_);
    gate_ = std::move(gate);
  }

  std::atomic<int> error = 0;
  std::atomic<int> attempts = 0;

 private:
  std::optional<std::shared_future<void>> Gate() {
    const std::lock_guard lock(mutex_);
    return gate_;
  }

  std::mutex mutex_;
  std::optional<std::shared_future<void>> gate_;  // guarded by mutex_
};

class AsyncWriterTest : public ::testing::Test {
 protected:
  CheckpointStore Store(std::size_t keep_last = 0) {
    return CheckpointStore(folder_.path(), {.keep_last = keep_last}, files_);
  }
  AsyncWriterOptions Noting(milliseconds retry_after = milliseconds(3'600'000)) {
    return {.on_error =
                [this](const Error& error) {
                  const std::lock_guard lock(mutex_);
                  errors_.emplace_back(error.what());
                },
            .on_saved = {},
            .retry_after = retry_after};
  }
  std::vector<std::string> errors() {
    const std::lock_guard lock(mutex_);
    return errors_;
  }

  TestFolder folder_;
  FaultyFiles files_;
  std::mutex mutex_;
  std::vector<std::string> errors_;  // guarded by mutex_
};

TEST_F(AsyncWriterTest, WritesWhatItIsGivenAndLetsGoOfIt) {
  AsyncWriter writer(Store());
  std::weak_ptr<const void> memory;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const Sample sample(i);
    memory = sample.content().owner;
    writer.Submit(sample.content());
    writer.Flush(kLong);
  }
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(writer.saved(), 3U);
  EXPECT_THAT(Store().List(), ElementsAre(1, 2, 3));
  Sample(3).ExpectEqual(*Store().Latest());
}

TEST_F(AsyncWriterTest, OfThoseThatWaitOnlyTheNewestIsWritten) {
  std::promise<void> open;
  files_.SetGate(open.get_future().share());
  AsyncWriter writer(Store());
  writer.Submit(Sample(1).content());
  while (files_.attempts == 0) std::this_thread::yield();
  for (std::uint64_t i = 2; i <= 5; ++i) writer.Submit(Sample(i).content());
  EXPECT_THAT(ErrorOf([&] { writer.Flush(milliseconds(1)); }),
              IsError(Code::kTimeout, HasSubstr("not written")));
  open.set_value();
  writer.Flush(kLong);
  EXPECT_EQ(writer.replaced(), 3U);
  EXPECT_THAT(Store().List(), ElementsAre(1, 5));
}

// F21: the trainer is not disturbed, one error is reported, and later checkpoints are written.
TEST_F(AsyncWriterTest, F21AFullDiskIsReportedOnceAndLaterAttemptsAreMade) {
  AsyncWriter writer(Store(), Noting());
  writer.Submit(Sample(1).content());
  writer.Flush(kLong);
  files_.error = ENOSPC;
  for (std::uint64_t i = 2; i <= 4; ++i) {
    writer.Submit(Sample(i).content());
    EXPECT_THAT(ErrorOf([&] { writer.Flush(kLong); }),
                IsError(Code::kResourceExhausted, HasSubstr("make room")));
  }
  EXPECT_THAT(errors(), ElementsAre(HasSubstr("No space")));
  Sample(1).ExpectEqual(*Store().Latest());
  files_.error = 0;
  writer.Submit(Sample(5).content());
  writer.Flush(kLong);
  EXPECT_THAT(Store().List(), ElementsAre(1, 5));
  // The next failure is news again.
  files_.error = EROFS;
  writer.Submit(Sample(6).content());
  EXPECT_THROW(writer.Flush(kLong), Error);
  EXPECT_THAT(errors(), SizeIs(2));
}

// F22: the last checkpoint of a run is not lost to an error that passes.
TEST_F(AsyncWriterTest, F22AFailedCheckpointIsTriedAgainByItself) {
  files_.error = EIO;
  std::promise<std::uint64_t> saved;
  AsyncWriterOptions options = Noting(milliseconds(1));
  options.on_saved = [&](std::uint64_t iteration) { saved.set_value(iteration); };
  AsyncWriter writer(Store(), options);
  writer.Submit(Sample(7).content());
  while (files_.attempts < 3) std::this_thread::yield();
  files_.error = 0;
  auto done = saved.get_future();
  ASSERT_EQ(done.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(done.get(), 7U);
  EXPECT_THAT(errors(), SizeIs(1));
  Sample(7).ExpectEqual(*Store().Latest());
}

TEST_F(AsyncWriterTest, TheDestructorWritesWhatWaits) {
  {
    AsyncWriter writer(Store(), Noting());
    writer.Submit(Sample(1).content());
  }
  Sample(1).ExpectEqual(*Store().Latest());
  files_.error = EIO;
  {
    AsyncWriter writer(Store(), Noting());
    writer.Submit(Sample(2).content());
  }
  EXPECT_THAT(errors(), SizeIs(1));
  EXPECT_THAT(Store().List(), ElementsAre(1));
}

TEST_F(AsyncWriterTest, SeveralThreadsMaySubmit) {
  AsyncWriter writer(Store(2), Noting());
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&writer, t] {
        for (std::uint64_t i = 0; i < 10; ++i) {
          writer.Submit(Sample(t * 100 + i).content());
          writer.Flush(kLong);
        }
      });
    }
  }
  EXPECT_EQ(writer.saved() + writer.replaced(), 30U);
  EXPECT_THAT(Store().List(), SizeIs(2));
  EXPECT_TRUE(errors().empty());
}

}  // namespace
}  // namespace orca::io
