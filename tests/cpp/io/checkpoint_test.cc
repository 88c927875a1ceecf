#include "orca/io/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/folder.h"
#include "io/manifest.h"
#include "io/sample.h"
#include "net/expect_error.h"
#include "orca/core/crc32c.h"
#include "orca/io/checkpoint_store.h"
#include "testing/crash_files.h"

namespace orca::io {
namespace {

using orca::testing::CrashFiles;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(CheckpointTest, ComesBackAsItWas) {
  const TestFolder folder;
  CheckpointStore store(folder.path() / "new/folder");
  EXPECT_FALSE(store.Latest());
  const Sample sample(70);
  store.Save(sample.content());
  const auto found = store.Latest();
  ASSERT_TRUE(found);
  sample.ExpectEqual(*found);
  EXPECT_EQ(found->folder(), folder.path() / "new/folder/model.70");
  EXPECT_THAT(found->parts(), ElementsAre("model", "optimizer"));
  EXPECT_THAT(ErrorOf([&] { (void)found->part("other"); }),
              IsError(Code::kInvalidArgument, HasSubstr("model, optimizer")));
}

TEST(CheckpointTest, IsForItsUserAlone) {
  const TestFolder folder;
  CheckpointStore store(folder.path());
  store.Save(Sample(1).content());
  struct stat info {};
  ASSERT_EQ(::stat(store.PathOf(1).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0700U);
  ASSERT_EQ(::stat((store.PathOf(1) / "manifest.json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

// Several workers leave empty tensors behind, which share one place in the file; and JSON orders
// "10" before "8".
TEST(CheckpointTest, ComesBackWithAnyNumberOfTensorsAndOfEmptyOnesAmongThem) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  for (std::size_t count = 1; count <= 120; ++count) {
    for (std::size_t workers = 1; workers <= 6; ++workers) {
      CrashFiles disk;
      CheckpointStore store("/c", {}, disk);
      CheckpointContent content;
      std::vector<Tensor>& tensors = content.parts["state"];
      for (std::size_t i = 0; i < count; ++i) {
        // One worker has all elements of a tensor, the others none.
        const std::size_t elements = i % workers == 0 ? 1 + i % values.size() : 0;
        tensors.push_back(
            {.spec = {.name = std::to_string(i),
                      .type = TensorType::kFloat32,
                      .shape = {static_cast<std::int64_t>(elements)}},
             .data = std::as_bytes(std::span(values)).first(elements * sizeof(float))});
      }
      content.fields = "{}";
      ASSERT_NO_THROW(store.Save(content)) << count << " tensors, " << workers << " workers";
      const Checkpoint found = store.Open(0);
      for (const Tensor& tensor : tensors) {
        const Tensor& got = found.part("state").Find(tensor.spec.name);
        ASSERT_EQ(got.spec, tensor.spec);
        ASSERT_TRUE(std::ranges::equal(got.data, tensor.data)) << tensor.spec.name;
      }
    }
  }
}

TEST(CheckpointTest, TheNewestIsTheOneWithTheHighestNumber) {
  CrashFiles disk;
  CheckpointStore store("/c", {}, disk);
  for (const std::uint64_t iteration : {9U, 100U, 20U}) store.Save(Sample(iteration).content());
  disk.MakeFolder("/c/model.007");
  disk.MakeFolder("/c/model.x");
  disk.MakeFolder("/c/model.");
  EXPECT_THAT(store.List(), ElementsAre(9, 20, 100));
  EXPECT_EQ(store.Latest()->progress().iteration, 100U);
  Sample(20).ExpectEqual(store.Open(20));
  EXPECT_THAT(ErrorOf([&] { (void)store.Open(21); }),
              IsError(Code::kUnavailable, HasSubstr("model.21")));
}

TEST(CheckpointTest, KeepsTheLastOnes) {
  CrashFiles disk;
  CheckpointStore store("/c", {.keep_last = 2}, disk);
  for (std::uint64_t i = 1; i <= 5; ++i) store.Save(Sample(i).content());
  EXPECT_THAT(disk.List("/c"), ElementsAre("model.4", "model.5"));
  // Training went back: what was just written is kept.
  store.Save(Sample(2).content());
  EXPECT_THAT(store.List(), ElementsAre(2, 5));
}

TEST(CheckpointTest, AnIterationThatIsSavedAgainIsReplaced) {
  CrashFiles disk;
  CheckpointStore store("/c", {}, disk);
  store.Save(Sample(5, 1).content());
  store.Save(Sample(5, 2).content());
  EXPECT_THAT(disk.List("/c"), ElementsAre("model.5"));
  Sample(5, 2).ExpectEqual(*store.Latest());
}

TEST(CheckpointTest, TensorsOutliveTheirCheckpoint) {
  const TestFolder folder;
  CheckpointStore store(folder.path(), {.keep_last = 1});
  const Sample sample(1);
  store.Save(sample.content());
  const Checkpoint first = *store.Latest();
  store.Save(Sample(2).content());
  EXPECT_THAT(store.List(), ElementsAre(2));
  sample.ExpectEqual(first);
}

TEST(CheckpointTest, RefusesWhatItCouldNotReadAgain) {
  CrashFiles disk;
  CheckpointStore store("/c", {}, disk);
  for (const char* fields : {"", "[]", "{", "{\"a\": NaN}", "{} {}", "{\"a\":1,\"a\":2}"}) {
    Sample sample(1);
    CheckpointContent content = sample.content();
    content.fields = fields;
    EXPECT_THAT(ErrorOf([&] { store.Save(content); }),
                IsError(Code::kInvalidArgument, HasSubstr("JSON")))
        << fields;
  }
  for (const char* part : {"", ".hidden", "a/b", "..", "a b", "\xc3\xa9"}) {
    Sample sample(1);
    CheckpointContent content = sample.content();
    content.parts[part] = {};
    EXPECT_THAT(ErrorOf([&] { store.Save(content); }),
                IsError(Code::kInvalidArgument, HasSubstr("part")))
        << part;
  }
  EXPECT_THAT(disk.List("/c"), IsEmpty());
}

TEST(CheckpointTest, ACheckpointOfAnotherModelIsToldByItsFirstDifference) {
  CrashFiles disk;
  CheckpointStore store("/c", {}, disk);
  store.Save(Sample(1).content());
  const Checkpoint checkpoint = *store.Latest();
  const TensorSpec flags{"flags", TensorType::kBool, {3}};
  const TensorSpec weight{"weight", TensorType::kFloat32, {300}};
  const auto compare = [&](const std::vector<TensorSpec>& expected) {
    return ErrorOf([&] { checkpoint.CheckMatches("model", expected); });
  };
  checkpoint.CheckMatches("model", std::vector{weight, flags});
  EXPECT_THAT(compare({flags, {"weight", TensorType::kFloat32, {30, 10}}}),
              IsError(Code::kInvalidArgument,
                      AllOf(HasSubstr("'weight'"), HasSubstr("float32 (300)"),
                            HasSubstr("float32 (30, 10)"), HasSubstr("/c/model.1"))));
  EXPECT_THAT(compare({flags, {"weight", TensorType::kFloat16, {300}}}),
              IsError(Code::kInvalidArgument, HasSubstr("float16 (300)")));
  EXPECT_THAT(compare({flags, weight, {"bias", TensorType::kFloat32, {3}}}),
              IsError(Code::kInvalidArgument, HasSubstr("no tensor 'bias'")));
  EXPECT_THAT(compare({flags}), IsError(Code::kInvalidArgument, HasSubstr("'weight'")));
}

/// A folder with checkpoints 1 and 2, the newer of which a test damages.
class DamagedTest : public ::testing::Test {
 protected:
  DamagedTest() {
    store_.Save(Sample(1).content());
    store_.Save(Sample(2).content());
  }

  // The newest is refused, and the one before is taken.
  void ExpectFallback(const std::string& what) {
    warnings_.clear();
    const Error error = ErrorOf([&] { (void)store_.Open(2); });
    ASSERT_EQ(error.code(), Code::kUnavailable) << what;
    const auto found = store_.Latest();
    ASSERT_TRUE(found) << what;
    Sample(1).ExpectEqual(*found);
    ASSERT_THAT(warnings_, SizeIs(1)) << what;
    EXPECT_THAT(warnings_[0], AllOf(HasSubstr("model.2"), HasSubstr(error.what())));
  }

  std::vector<std::byte>& File(const std::string& name) {
    return disk_.Content("/c/model.2/" + name);
  }

  CrashFiles disk_;
  std::vector<std::string> warnings_;
  CheckpointStore store_{
      "/c", {.warn = [this](const std::string& line) { warnings_.push_back(line); }}, disk_};
};

// F24: every byte of every file.
TEST_F(DamagedTest, F24AnyFlippedByteIsNoticed) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    auto& bytes = File(name);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      const std::byte before = bytes[at];
      bytes[at] ^= static_cast<std::byte>(1U << (at % 8));
      ExpectFallback(name + std::string(" at ") + std::to_string(at));
      bytes[at] = before;
    }
  }
  Sample(2).ExpectEqual(*store_.Latest());
}

TEST_F(DamagedTest, F24AnyTruncationIsNoticed) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    auto& bytes = File(name);
    const auto whole = bytes;
    for (std::size_t size = 0; size < whole.size(); size += 1 + size / 16) {
      bytes.resize(size);
      ExpectFallback(name + std::string(" cut to ") + std::to_string(size));
      bytes = whole;
    }
    bytes.push_back(std::byte{0});
    ExpectFallback(name + std::string(" longer"));
    bytes = whole;
  }
}

TEST_F(DamagedTest, F24TheMessageNamesTensorAndOffset) {
  auto& bytes = File("model.safetensors");
  // The smallest elements come last.
  const std::string flags_at = std::to_string(bytes.size() - 3);
  bytes[bytes.size() - 1] ^= std::byte{1};
  EXPECT_THAT(
      ErrorOf([&] { (void)store_.Open(2); }),
      IsError(Code::kUnavailable, AllOf(HasSubstr("/c/model.2/model.safetensors"),
                                        HasSubstr("'flags'"), HasSubstr("offset " + flags_at))));
  bytes[bytes.size() - 1] ^= std::byte{1};
  bytes[bytes.size() - 100] ^= std::byte{1};
  EXPECT_THAT(ErrorOf([&] { (void)store_.Open(2); }),
              IsError(Code::kUnavailable, HasSubstr("'weight'")));
  bytes.resize(bytes.size() - 1);
  EXPECT_THAT(ErrorOf([&] { (void)store_.Open(2); }),
              IsError(Code::kUnavailable, AllOf(HasSubstr("'flags'"), HasSubstr("not whole"))));
}

TEST_F(DamagedTest, F24FilesOfAnotherCheckpointAreNoticed) {
  for (const char* name : {"model.safetensors", "manifest.json"}) {
    const auto whole = File(name);
    File(name) = disk_.Content(std::string("/c/model.1/") + name);
    ExpectFallback(name);
    File(name) = whole;
  }
  disk_.Remove("/c/model.2/manifest.json");
  ExpectFallback("no manifest");
  // All of them: then it is another checkpoint under a wrong name.
  disk_.Rename("/c/model.2", "/c/model.3");
  disk_.Rename("/c/model.1", "/c/model.2");
  EXPECT_THAT(ErrorOf([&] { (void)store_.Open(2); }),
              IsError(Code::kUnavailable, HasSubstr("holds iteration 1")));
}

// A manifest with a right checksum over `body`.
std::vector<std::byte> Signed(const std::string& body) {
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08x", Crc32c(body.data(), body.size()));
  const std::string text =
      "{\"crc32c\":\"" + std::string(crc) + "\",\"checkpoint\":" + body + "}\n";
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// F50
TEST_F(DamagedTest, F50ANewerFormatIsRefusedWithBothNumbers) {
  File("manifest.json") = Signed(R"({"format":"orca-checkpoint","version":12,"else":[]})");
  const auto newer =
      IsError(Code::kFailedPrecondition, AllOf(HasSubstr("format 12"), HasSubstr("up to 1")));
  EXPECT_THAT(ErrorOf([&] { (void)store_.Open(2); }), newer);
  // Nor is an older one taken silently.
  EXPECT_THAT(ErrorOf([&] { (void)store_.Latest(); }), newer);
}

TEST_F(DamagedTest, AManifestThatSaysWhatCannotBeIsRefused) {
  for (const char* body :
       {"{}", "[]", "7", R"({"format":"other","version":1})",
        R"({"format":"orca-checkpoint","version":"1"})",
        R"({"format":"orca-checkpoint","version":1,"iteration":2})",
        R"({"format":"orca-checkpoint","version":1,"iteration":2,"epoch":0,"cursor":0,)"
        R"("files":[{"part":"../../etc/x","bytes":1,"crc32c":"00000000",)"
        R"("header_crc32c":"00000000","tensors":[]}],"fields_bytes":2,"fields":{}})",
        R"({"format":"orca-checkpoint","version":1,"iteration":2,"epoch":0,"cursor":0,)"
        R"("files":[],"fields_bytes":18446744073709551615,"fields":{}})",
        R"({"format":"orca-checkpoint","version":1,"iteration":2,"epoch":0,"cursor":0,)"
        R"("files":[],"fields_bytes":40,"fields":{}})"}) {
    File("manifest.json") = Signed(body);
    ExpectFallback(body);
  }
}

}  // namespace
}  // namespace orca::io
