// F41: sizes and offsets beyond 32 bits in files of torch.save.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/folder.h"
#include "io/torch_parser.h"
#include "orca/core/unique_fd.h"
#include "testing/main.h"
#include "testing/seed.h"

namespace orca::io {
namespace {

using orca::testing::kSanitized;
using ::testing::ElementsAre;

constexpr std::int64_t kElements = ((std::int64_t{1} << 32U) + 4096) / 2;
constexpr std::size_t kBytes = static_cast<std::size_t>(kElements) * 2;

/// A tensor of more than 4 GiB of zeros, and a small one behind it. Zeros become a hole of the
/// file.
void WriteHuge(const Path& path) {
  void* const zeros =
      ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(zeros, MAP_FAILED);
  const std::vector<std::uint8_t> last{1, 2, 3};
  TorchValue value = TorchValue::Dict();
  value.Add("big", TorchValue::Of(
                       {.spec = {.name = {}, .type = TensorType::kBFloat16, .shape = {kElements}},
                        .data = {static_cast<const std::byte*>(zeros), kBytes}}));
  value.Add("last", TorchValue::Of(MakeTensor("", TensorType::kUInt8, {3}, last)));
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  ASSERT_TRUE(fd);
  EncodeTorchFile(value, [&](std::span<const std::byte> bytes) {
    if (bytes.size() == kBytes) {
      ASSERT_GT(::lseek(fd.get(), static_cast<off_t>(kBytes), SEEK_CUR), 0);
    } else {
      ASSERT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    }
  });
  ::munmap(zeros, kBytes);
}

TEST(LongTorchFileHugeTest, F41ATensorOfMoreThanFourGigabytesComesBack) {
  if (kSanitized) GTEST_SKIP() << "the address space is the sanitizer's";
  const TestFolder folder;
  WriteHuge(folder.path() / "big.pt");
  const TorchFile file = ReadTorchFile(folder.path() / "big.pt");
  const Tensor& big = file.value.Find("big")->tensor;
  EXPECT_EQ(big.data.size(), kBytes);
  EXPECT_EQ(big.data[kBytes - 1], std::byte{0});
  EXPECT_THAT(ViewAs<std::uint8_t>(file.value.Find("last")->tensor), ElementsAre(1, 2, 3));
}

// For tests of Python: leaves the file OUT.
const orca::testing::Command kWriteHuge("write-huge", [](std::span<char* const> arguments) {
  WriteHuge(arguments[0]);
  return ::testing::Test::HasFailure() ? 1 : 0;
});

}  // namespace
}  // namespace orca::io
