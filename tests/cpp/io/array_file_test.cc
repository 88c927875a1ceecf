#include "orca/io/array_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>

#include "io/folder.h"
#include "net/expect_error.h"

namespace orca::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

class ArrayFileTest : public ::testing::Test {
 protected:
  Path Write(const std::string& bytes) {
    Path path = folder_.path() / ("file" + std::to_string(++count_));
    WriteAllTo(path, bytes);
    return path;
  }
  TestFolder folder_;
  int count_ = 0;
};

TEST_F(ArrayFileTest, ReadsIdxOfBytesAndOfWiderElements) {
  const FileTensor images =
      ReadIdx(Write(Bytes({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255})));
  EXPECT_THAT(images.tensor.spec.shape, ElementsAre(2, 3));
  EXPECT_THAT(ViewAs<std::uint8_t>(images.tensor), ElementsAre(1, 2, 3, 4, 5, 255));
  const FileTensor numbers =
      ReadIdx(Write(Bytes({0, 0, 12, 1, 0, 0, 0, 2, 0, 0, 1, 2, 255, 255, 255, 254})));
  EXPECT_THAT(ViewAs<std::int32_t>(numbers.tensor), ElementsAre(258, -2));
  const FileTensor shorts = ReadIdx(Write(Bytes({0, 0, 11, 1, 0, 0, 0, 1, 1, 0})));
  EXPECT_THAT(ViewAs<std::int16_t>(shorts.tensor), ElementsAre(256));
  const FileTensor floats = ReadIdx(Write(Bytes({0, 0, 13, 1, 0, 0, 0, 1, 0x3f, 0x80, 0, 0})));
  EXPECT_THAT(ViewAs<float>(floats.tensor), ElementsAre(1.0F));
  const FileTensor one = ReadIdx(Write(Bytes({0, 0, 9, 0, 0xff})));
  EXPECT_THAT(ViewAs<std::int8_t>(one.tensor), ElementsAre(-1));
}

TEST_F(ArrayFileTest, RefusesIdxThatIsDamaged) {
  const std::string whole = Bytes({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6});
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(ErrorOf([&] { (void)ReadIdx(Write(whole.substr(0, size))); }),
                IsError(Code::kUnavailable, HasSubstr("damaged")));
  EXPECT_THROW((void)ReadIdx(Write(whole + "x")), Error);
  EXPECT_THAT(ErrorOf([&] {
                (void)ReadIdx(Write(Bytes({0, 0, 7, 1, 0, 0, 0, 0})));
              }),
              IsError(Code::kUnavailable, HasSubstr("0x07")));
  // 2^32 - 1 in each of five dimensions: more than 64 bits can count.
  std::string huge = Bytes({0, 0, 8, 5});
  huge.append(20, '\xff');
  EXPECT_THAT(ErrorOf([&] { (void)ReadIdx(Write(huge)); }),
              IsError(Code::kUnavailable, HasSubstr("damaged")));
}

std::string Zipped(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(::deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(text.size() + 1000, '\0');
  std::string input = text;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

TEST_F(ArrayFileTest, ReadsIdxThatIsZipped) {
  // One that grows a thousandfold, and one that does not shrink.
  std::string zeros = Bytes({0, 0, 8, 1, 0, 0x10, 0, 0});
  zeros.append(1 << 20, '\0');
  const std::string zipped = Zipped(zeros);
  EXPECT_LT(zipped.size(), 5000U);
  EXPECT_EQ(ReadIdx(Write(zipped)).tensor.data.size(), 1U << 20);
  const std::string small = Bytes({0, 0, 8, 1, 0, 0, 0, 3, 9, 8, 7});
  EXPECT_THAT(ViewAs<std::uint8_t>(ReadIdx(Write(Zipped(small))).tensor), ElementsAre(9, 8, 7));
  // Two behind each other are one, as gzip has it.
  const FileTensor parts = ReadIdx(Write(Zipped(small.substr(0, 9)) + Zipped(small.substr(9))));
  EXPECT_THAT(ViewAs<std::uint8_t>(parts.tensor), ElementsAre(9, 8, 7));
  const std::string whole = Zipped(small);
  for (std::size_t size = 2; size < whole.size(); ++size)
    EXPECT_THAT(ErrorOf([&] { (void)ReadIdx(Write(whole.substr(0, size))); }),
                IsError(Code::kUnavailable, HasSubstr("unpacked")));
  EXPECT_THROW((void)ReadIdx(Write(whole + "tail")), Error);
}

TEST_F(ArrayFileTest, IdxComesBackAsItWasWritten) {
  const std::vector<double> values{1.5, -2.25, 1e300};
  WriteIdx(folder_.path() / "d", MakeTensor("d", TensorType::kFloat64, {3, 1}, values));
  const FileTensor read = ReadIdx(folder_.path() / "d");
  EXPECT_THAT(ViewAs<double>(read.tensor), ElementsAre(1.5, -2.25, 1e300));
  EXPECT_EQ(ReadAll(folder_.path() / "d").substr(12, 2), Bytes({0x3f, 0xf8}));
  EXPECT_THAT(ErrorOf([&] {
                WriteIdx(folder_.path() / "u", MakeTensor("u", TensorType::kInt64, {3}, values));
              }),
              IsError(Code::kInvalidArgument, HasSubstr("IDX cannot hold")));
}

std::string NpyOf(const std::string& header, const std::string& data, char version = 1) {
  std::string text = "\x93NUMPY";
  text += {version, '\0', static_cast<char>(header.size()), static_cast<char>(header.size() >> 8U)};
  if (version > 1) text += std::string(2, '\0');
  return text + header + data;
}

TEST_F(ArrayFileTest, ReadsNpyOfAllVersionsAndOrders) {
  for (const char version : {'\x01', '\x02', '\x03'}) {
    const FileTensor read =
        ReadNpy(Write(NpyOf("{'descr': '<i2', 'fortran_order': False, 'shape': (2, 1), }  \n",
                            Bytes({1, 0, 0, 1}), version)));
    EXPECT_THAT(read.tensor.spec.shape, ElementsAre(2, 1));
    std::int16_t second = 0;
    std::memcpy(&second, read.tensor.data.data() + 2, 2);
    EXPECT_EQ(second, 256);
  }
  const FileTensor turned = ReadNpy(
      Write(NpyOf("{\"shape\":(2L,),'fortran_order':True,'descr':'>i2'}", Bytes({0, 1, 1, 0}))));
  EXPECT_THAT(ViewAs<std::int16_t>(turned.tensor), ElementsAre(1, 256));
  const FileTensor scalar =
      ReadNpy(Write(NpyOf("{'descr':'|u1','fortran_order':False,'shape':()}", "\x07")));
  EXPECT_THAT(ViewAs<std::uint8_t>(scalar.tensor), ElementsAre(7));
}

TEST_F(ArrayFileTest, RefusesNpyThatNoTensorCanHold) {
  const auto error = [&](const std::string& header, const std::string& data) {
    return ErrorOf([&] { (void)ReadNpy(Write(NpyOf(header, data))); });
  };
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
  EXPECT_THAT(error(good, "xxx"), IsError(Code::kUnavailable, HasSubstr("3 bytes")));
  EXPECT_THAT(
      error("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", std::string(16, 'x')),
      IsError(Code::kInvalidArgument, HasSubstr("ascontiguousarray")));
  EXPECT_THAT(error("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "x"),
              IsError(Code::kInvalidArgument, HasSubstr("'|O'")));
  EXPECT_THAT(error("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "xxxx"),
              IsError(Code::kInvalidArgument, HasSubstr("records")));
  for (const char* header :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '', 'fortran_order': False, 'shape': (1,)}"})
    EXPECT_THAT(error(header, "xxxx").code(), Code::kInvalidArgument) << header;
  const std::string whole = NpyOf(good, "xxxx");
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW((void)ReadNpy(Write(whole.substr(0, size))), Error);
  EXPECT_THROW((void)ReadNpy(Write(NpyOf(good, "xxxx", 4))), Error);
}

TEST_F(ArrayFileTest, NpyComesBackAlignedAsItWasWritten) {
  const std::vector<std::uint64_t> values{1, 2, 1ULL << 63};
  const Path path = folder_.path() / "u.npy";
  WriteNpy(path, MakeTensor("u", TensorType::kUInt64, {3}, values));
  EXPECT_THAT(ViewAs<std::uint64_t>(ReadNpy(path).tensor), ElementsAre(1, 2, 1ULL << 63));
  EXPECT_EQ(ReadAll(path).size() % 64, 24U);
  EXPECT_THAT(
      ErrorOf([&] { WriteNpy(path, MakeTensor("b", TensorType::kBFloat16, {12}, values)); }),
      IsError(Code::kInvalidArgument, HasSubstr("bfloat16")));
}

}  // namespace
}  // namespace orca::io
