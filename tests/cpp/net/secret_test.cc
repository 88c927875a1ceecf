#include "orca/net/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "net/expect_error.h"

namespace orca::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SecretFileTest : public ::testing::Test {
 protected:
  SecretFileTest() {
    std::string pattern = ::testing::TempDir() + "orca_secret_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    path_ = directory_ / "secret";
  }
  ~SecretFileTest() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    ::chmod(path_.c_str(), mode);
  }

  std::filesystem::path directory_;
  std::filesystem::path path_;
};

TEST(SecretTest, IsDifferentEveryTime) {
  EXPECT_NE(Secret::Random().bytes(), Secret::Random().bytes());
}

TEST(SecretTest, SurvivesTheWayThroughHex) {
  const Secret secret = Secret::Random();
  EXPECT_EQ(secret.ToHex().size(), 64u);
  EXPECT_EQ(Secret::FromHex(secret.ToHex()).bytes(), secret.bytes());
}

TEST(SecretTest, TakesCapitalDigits) {
  std::string hex = Secret::Random().ToHex();
  const Secret secret = Secret::FromHex(hex);
  std::transform(hex.begin(), hex.end(), hex.begin(), ::toupper);
  EXPECT_EQ(Secret::FromHex(hex).bytes(), secret.bytes());
}

TEST(SecretTest, RefusesTextOfTheWrongLengthWithoutShowingIt) {
  EXPECT_THAT(ErrorOf([] { Secret::FromHex("c0ffee"); }),
              IsError(Code::kInvalidArgument,
                      AllOf(HasSubstr("6 characters"), HasSubstr("64"), Not(HasSubstr("c0ffee")))));
}

TEST(SecretTest, RefusesWhatIsNotAHexDigitAndSaysWhere) {
  std::string hex(64, 'a');
  hex[9] = 'x';
  EXPECT_THAT(
      ErrorOf([&] { Secret::FromHex(hex); }),
      IsError(Code::kInvalidArgument, AllOf(HasSubstr("character 10"), Not(HasSubstr("aa")))));
}

TEST_F(SecretFileTest, IsReadWithOrWithoutALineEnd) {
  const Secret secret = Secret::Random();
  for (const char* end : {"", "\n", "\r\n"}) {
    Write(secret.ToHex() + end);
    EXPECT_EQ(Secret::FromFile(path_).bytes(), secret.bytes());
  }
}

TEST_F(SecretFileTest, ThatOthersCanReadIsRefusedNamingModeAndRemedy) {
  for (const mode_t mode : {0644, 0640, 0604, 0620, 0602}) {
    Write(Secret::Random().ToHex(), mode);
    EXPECT_THAT(
        ErrorOf([&] { Secret::FromFile(path_); }),
        IsError(Code::kFailedPrecondition, AllOf(HasSubstr(path_.string()), HasSubstr("mode 06"),
                                                 HasSubstr("chmod 600 " + path_.string()))));
  }
}

TEST_F(SecretFileTest, OfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  Write(Secret::Random().ToHex());
  ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(
      ErrorOf([&] { Secret::FromFile(path_); }),
      IsError(Code::kFailedPrecondition, AllOf(HasSubstr(path_.string()), HasSubstr("65534"))));
}

TEST_F(SecretFileTest, BehindASymbolicLinkIsRefused) {
  Write(Secret::Random().ToHex());
  const auto link = directory_ / "link";
  std::filesystem::create_symlink(path_, link);
  EXPECT_THAT(ErrorOf([&] { Secret::FromFile(link); }),
              IsError(Code::kFailedPrecondition, HasSubstr("symbolic link")));
}

TEST_F(SecretFileTest, ThatIsAPipeIsRefusedWithoutWaiting) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf([&] { Secret::FromFile(path_); }),
              IsError(Code::kFailedPrecondition, HasSubstr("not a regular file")));
}

TEST_F(SecretFileTest, ThatIsMissingIsNamed) {
  EXPECT_THAT(
      ErrorOf([&] { Secret::FromFile(path_); }),
      IsError(Code::kInvalidArgument, AllOf(HasSubstr(path_.string()), HasSubstr("No such file"))));
}

TEST_F(SecretFileTest, ThatIsTooLongIsRefused) {
  Write(std::string(4096, 'a'));
  EXPECT_THAT(
      ErrorOf([&] { Secret::FromFile(path_); }),
      IsError(Code::kInvalidArgument, AllOf(HasSubstr(path_.string()), Not(HasSubstr("aa")))));
}

}  // namespace
}  // namespace orca::net
