#include "orca/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "io/folder.h"
#include "io/safetensors_layout.h"
#include "net/expect_error.h"
#include "testing/crash_files.h"
#include "testing/seed.h"

namespace orca::io {
namespace {

using orca::testing::CrashFiles;
using orca::testing::kSanitized;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file as the format's description has it, made by hand.
std::string FileOf(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

SafetensorsFile Parse(const std::string& file) {
  auto owner = std::make_shared<std::string>(file);
  const auto bytes = std::as_bytes(std::span(*owner));
  return SafetensorsFile::Parse("test.safetensors", {bytes, owner});
}

TEST(SafetensorsTest, ReadsAFileMadeByHand) {
  const SafetensorsFile file = Parse(FileOf(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("none":{"dtype":"F64","shape":[3,0],"data_offsets":[6,6]}}  )",
      std::string("\0\0\x80\x3f\x07\x08", 6)));
  EXPECT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  float value = 0;
  std::memcpy(&value, file.Find("a").data.data(), 4);
  EXPECT_EQ(value, 1.0F);
  EXPECT_THAT(ViewAs<std::uint8_t>(file.Find("b")), ElementsAre(7, 8));
  EXPECT_TRUE(file.Find("none").data.empty());
  EXPECT_THAT(ErrorOf([&] { (void)file.Find("c"); }),
              IsError(Code::kInvalidArgument, HasSubstr("'c'")));
}

TEST(SafetensorsTest, RefusesFilesThatSayWhatCannotBe) {
  const std::string four(4, 'x');
  const auto one = [&](const std::string& entry) { return FileOf("{\"a\":" + entry + "}", four); };
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "0 bytes"},
      {"1234567", "7 bytes"},
      {FileOf("", ""), "header"},
      {FileOf("[]", ""), "header"},
      {FileOf("{", ""), "header"},
      {FileOf(" {}", ""), "header"},
      {std::string(8, '\xff') + "{}", "announces"},
      {FileOf("{}", "x"), "1 bytes"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"), "'a'"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})"), "'a'"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "ends at 8"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), "'a'"},
      {one(R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})"), "end at 0"},
      {one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), "lacks"},
      {one(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"), "lacks"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"), "lacks"},
      {one(R"({"dtype":"Q4","shape":[1],"data_offsets":[0,4]})"), "Q4"},
      {one(R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})"), "'a'"},
      {one(R"({"shape":[1],"data_offsets":[0,4]})"), "'a'"},
      {one("7"), "'a'"},
      {one("[[[[[[]]]]]]"), "header"},
      // Products that wrap around 64 bits.
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), "'a'"},
      {one(R"({"dtype":"F32","shape":[9223372036854775808,2],"data_offsets":[0,4]})"), "dimension"},
      {one(R"({"dtype":"F32","shape":[0,9223372036854775807,9],"data_offsets":[0,0]})"), "'a'"},
      {FileOf(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
              R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
              four),
       "twice"},
      // Two tensors over the same bytes, and a hole.
      {FileOf(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
              R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
              four),
       "'b' begins at 2"},
      {FileOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
              R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
              four),
       "'b' begins at 2"},
      {FileOf(R"({"__metadata__":{"a":1}})", ""), "metadata"},
      {FileOf(R"({"__metadata__":[]})", ""), "metadata"},
  };
  for (const auto& [file, message] : bad)
    EXPECT_THAT(ErrorOf([&] { (void)Parse(file); }),
                IsError(Code::kUnavailable, HasSubstr(message)))
        << file;
}

TEST(SafetensorsTest, RandomTensorsComeBackAsTheyWere) {
  std::mt19937_64 random(orca::testing::TestSeed());
  const TestFolder folder;
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<Tensor> tensors;
    const std::size_t count = random() % 12;
    memory.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      TensorSpec spec{.name = "t\xc3\xa9\"\n" + std::to_string(i),
                      .type = static_cast<TensorType>(random() % kTensorTypeCount),
                      .shape = {}};
      for (std::size_t d = random() % 4; d > 0; --d)
        spec.shape.push_back(static_cast<std::int64_t>(random() % 6));
      auto& bytes = memory.emplace_back(ByteSize(spec.type, spec.shape).value());
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      tensors.push_back({spec, bytes});
    }
    const Metadata metadata = {{"round", std::to_string(round)}, {"quo\"te", "\\\n"}};
    const Path path = folder.path() / "t.safetensors";
    WriteSafetensors(path, tensors, metadata);
    const SafetensorsFile file = SafetensorsFile::Open(path);
    EXPECT_EQ(file.metadata(), metadata);
    ASSERT_EQ(file.tensors().size(), tensors.size());
    for (const Tensor& tensor : tensors) {
      const Tensor& found = file.Find(tensor.spec.name);
      EXPECT_EQ(found.spec, tensor.spec);
      EXPECT_TRUE(std::ranges::equal(found.data, tensor.data));
      if (found.data.empty()) continue;
      const auto address = reinterpret_cast<std::uintptr_t>(found.data.data());
      EXPECT_EQ(address % SizeOf(found.spec.type), 0U);
    }
  }
}

TEST(SafetensorsTest, RefusesNamesThatNoFileCanHold) {
  const std::vector<std::uint8_t> byte{1};
  CrashFiles disk;
  const auto write = [&](const std::vector<std::string>& names) {
    std::vector<Tensor> tensors;
    for (const auto& name : names)
      tensors.push_back(MakeTensor(name, TensorType::kUInt8, {1}, byte));
    WriteSafetensors("/t", tensors, {}, disk);
  };
  EXPECT_THAT(ErrorOf([&] {
                write({"a", "a"});
              }),
              IsError(Code::kInvalidArgument, HasSubstr("two tensors are named 'a'")));
  EXPECT_THAT(ErrorOf([&] { write({"__metadata__"}); }),
              IsError(Code::kInvalidArgument, HasSubstr("__metadata__")));
  EXPECT_THAT(ErrorOf([&] { write({"\xff\xfe"}); }),
              IsError(Code::kInvalidArgument, HasSubstr("UTF-8")));
  const Tensor wrong = MakeTensor("w", TensorType::kFloat32, {1}, byte);
  EXPECT_THAT(ErrorOf([&] { WriteSafetensors("/t", std::span(&wrong, 1), {}, disk); }),
              IsError(Code::kInvalidArgument, HasSubstr("4 bytes")));
  EXPECT_TRUE(disk.List("/").empty());
}

TEST(SafetensorsTest, ATypedViewChecksTheType) {
  const std::vector<float> values{1.5F, -2.0F};
  const Tensor tensor = MakeTensor("f", TensorType::kFloat32, {2}, values);
  EXPECT_THAT(ViewAs<float>(tensor), ElementsAre(1.5F, -2.0F));
  EXPECT_THAT(ErrorOf([&] { (void)ViewAs<std::int32_t>(tensor); }),
              IsError(Code::kInvalidArgument, HasSubstr("float32, not of int32")));
  Tensor crooked = tensor;
  crooked.data = std::span(crooked.data.data() + 1, 4);
  EXPECT_THROW((void)ViewAs<float>(crooked), Error);
}

// F41: offsets beyond 32 bits. A file with a hole: only what is read takes memory.
TEST(SafetensorsTest, F41ReadsATensorOfMoreThanFourGigabytes) {
  if (kSanitized) GTEST_SKIP() << "the address space is the sanitizer's";
  constexpr std::int64_t kElements = (std::int64_t{5} << 30) / 2;
  const TestFolder folder;
  const Path path = folder.path() / "big.safetensors";
  // Laid out by the writer, over memory that is never touched.
  const std::size_t bytes = static_cast<std::size_t>(kElements) * 2;
  void* const holes =
      ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(holes, MAP_FAILED);
  const std::vector<std::uint8_t> last{1, 2, 3};
  const std::vector<Tensor> tensors{
      MakeTensor("last", TensorType::kUInt8, {3}, last),
      {.spec = {.name = "big", .type = TensorType::kBFloat16, .shape = {kElements}},
       .data = {static_cast<const std::byte*>(holes), bytes}}};
  const std::string head = LayOutSafetensors(tensors, {}).head;
  ::munmap(holes, bytes);
  WriteAllTo(path, head);
  std::filesystem::resize_file(path, head.size() + bytes);
  std::ofstream(path, std::ios::binary | std::ios::app).write("\x01\x02\x03", 3);
  const SafetensorsFile file = SafetensorsFile::Open(path);
  EXPECT_EQ(file.Find("big").data.size(), bytes);
  EXPECT_EQ(file.Find("big").data[bytes - 1], std::byte{0});
  EXPECT_THAT(ViewAs<std::uint8_t>(file.Find("last")), ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace orca::io
