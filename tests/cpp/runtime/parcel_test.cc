#include "orca/runtime/parcel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

#include "orca/core/error.h"

namespace orca::runtime {
namespace {

using Bytes = std::vector<std::byte>;

Bytes SomeBytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Parcel PackAll(const std::vector<Bytes>& parts) {
  const std::vector<std::span<const std::byte>> views(parts.begin(), parts.end());
  return Parcel::Pack(views);
}

void ExpectParts(const Parcel& parcel, const std::vector<Bytes>& expected) {
  const auto parts = parcel.Parts();
  ASSERT_EQ(parts.size(), expected.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(
        std::equal(parts[i].begin(), parts[i].end(), expected[i].begin(), expected[i].end()))
        << "part " << i;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(parts[i].data()) % 8, 0U);
  }
}

// What a receiver makes of it: its own copy of the bytes, or of the descriptor.
Parcel Received(const Parcel& parcel) {
  if (parcel.fd() < 0) return Parcel::FromBytes({parcel.bytes().begin(), parcel.bytes().end()});
  return Parcel::FromFd(UniqueFd(::fcntl(parcel.fd(), F_DUPFD_CLOEXEC, 0)), parcel.size());
}

TEST(ParcelTest, GivesBackWhatWasPacked) {
  const std::vector<std::vector<std::size_t>> cases = {
      {}, {0}, {1}, {0, 0, 0}, {63, 64, 65}, {Parcel::kInlineBytes}, {1 << 20, 3, 0, 5 << 20}};
  for (const auto& sizes : cases) {
    std::vector<Bytes> parts;
    for (const std::size_t size : sizes)
      parts.push_back(SomeBytes(size, static_cast<unsigned>(parts.size())));
    const Parcel parcel = PackAll(parts);
    EXPECT_EQ(parcel.fd() >= 0, parcel.size() > Parcel::kInlineBytes);
    ExpectParts(parcel, parts);
    ExpectParts(Received(parcel), parts);
  }
}

TEST(ParcelTest, WritesOfAReceiverStayItsOwn) {
  const std::vector<Bytes> parts = {SomeBytes(1 << 20, 1)};
  const Parcel parcel = PackAll(parts);
  const Parcel received = Received(parcel);
  std::memset(received.Parts()[0].data(), 7, 1 << 20);
  ExpectParts(parcel, parts);
  ExpectParts(Received(parcel), parts);
}

TEST(ParcelTest, AReceiverCannotWriteToTheMemoryItself) {
  const Parcel received = Received(PackAll({SomeBytes(1 << 20, 1)}));
  const char byte = 1;
  EXPECT_EQ(::pwrite(received.fd(), &byte, 1, 0), -1);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, received.fd(), 0),
            MAP_FAILED);
}

TEST(ParcelTest, MemoryThatCouldShrinkIsRefused) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), 1 << 20), 0);
  EXPECT_THROW(Parcel::FromFd(std::move(fd), 1 << 20), Error);
}

TEST(ParcelTest, DamagedBytesAreRefusedAndNeverReadOutside) {
  const Parcel parcel = PackAll({SomeBytes(10, 1), SomeBytes(100, 2)});
  const Bytes good(parcel.bytes().begin(), parcel.bytes().end());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(
        Parcel::FromBytes({good.begin(), good.begin() + static_cast<ssize_t>(size)}).Parts(), Error)
        << size;
  }
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    Bytes damaged = good;
    damaged[random() % 32] = static_cast<std::byte>(random());  // the head
    const Parcel parcel_again = Parcel::FromBytes(damaged);
    try {
      for (const auto part : parcel_again.Parts()) {
        ASSERT_GE(part.data(), parcel_again.bytes().data());
        ASSERT_LE(part.data() + part.size(),
                  parcel_again.bytes().data() + parcel_again.bytes().size());
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kPeerLost);
    }
  }
}

}  // namespace
}  // namespace orca::runtime
