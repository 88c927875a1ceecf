#include "orca/io/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "io/folder.h"
#include "io/torch_parser.h"
#include "io/zip_file.h"
#include "net/expect_error.h"
#include "testing/crash_files.h"
#include "testing/main.h"
#include "testing/seed.h"

namespace orca::io {
namespace {

using orca::testing::CrashFiles;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::string_literals;
using Kind = TorchValue::Kind;

bool Same(const TorchValue& a, const TorchValue& b) {
  return a.kind == b.kind && a.flag == b.flag && a.whole == b.whole &&
         std::bit_cast<std::uint64_t>(a.number) == std::bit_cast<std::uint64_t>(b.number) &&
         a.text == b.text && a.tensor.spec == b.tensor.spec &&
         std::ranges::equal(a.tensor.data, b.tensor.data) &&
         std::ranges::equal(a.items, b.items, Same);
}

TorchFile Parse(const std::string& file) {
  auto owner = std::make_shared<std::string>(file);
  const auto bytes = std::as_bytes(std::span(*owner));
  return ParseTorchFile("test.pt", {bytes, owner});
}

/// An archive of any records, in memory.
std::string ZipOf(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string file;
  ZipWriter zip([&](std::span<const std::byte> bytes) { file += TextOf(bytes); });
  for (const auto& [name, bytes] : records) zip.Add(name, bytes);
  zip.Finish();
  return file;
}

std::string Text(const std::string& text) {
  return std::string("\x8c") + static_cast<char>(text.size()) + text;
}
std::string Long(std::int64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return "\x8a\x08" + bytes;
}
std::string Longs(const std::vector<std::int64_t>& values) {
  std::string tuple = "(";
  for (const std::int64_t value : values) tuple += Long(value);
  return tuple + "t";
}
/// The instructions that make a tensor of the storage "0".
std::string TensorOf(std::int64_t count, std::int64_t begin, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& strides,
                     const std::string& storage = "ctorch\nShortStorage\n") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + Text("storage") + storage + Text("0") +
         Text("cuda:3") + Long(count) + "tQ" + Long(begin) + Longs(shape) + Longs(strides) +
         "\x89}tR";
}
/// A file of a pickle and of a storage of six numbers, 0 to 5.
std::string FileOf(const std::string& pickle, const std::string& protocol = "\x80\x02") {
  std::string numbers(12, '\0');
  for (std::size_t i = 0; i < 6; ++i) numbers[2 * i] = static_cast<char>(i);
  return ZipOf({{"x/data.pkl", protocol + pickle + "."}, {"x/data/0", numbers}});
}

class TorchFileTest : public ::testing::Test {
 protected:
  /// A dict with a bit of everything; views of `halves_` and `numbers_`.
  TorchValue Everything() const {
    TorchValue inner = TorchValue::Dict();
    inner.items = {TorchValue::Int(7), TorchValue::List({TorchValue::Float(-0.0), TorchValue()}),
                   TorchValue::Tuple({TorchValue::Int(1), TorchValue::Text("k")}),
                   TorchValue::Bool(true)};
    TorchValue value = TorchValue::Dict();
    value.Add("gewicht\xc3\xa4\xe2\x82\xac",
              TorchValue::Of(MakeTensor("", TensorType::kFloat64, {2, 1, 2}, numbers_)));
    value.Add("", TorchValue::Of(MakeTensor("", TensorType::kFloat64, {4}, numbers_)));
    value.Add("halves", TorchValue::Of(MakeTensor("", TensorType::kFloat16, {3}, halves_)));
    value.Add("none", TorchValue::Of(MakeTensor("", TensorType::kInt64, {3, 0, 2}, empty_)));
    value.Add("byte", TorchValue::Of(MakeTensor("", TensorType::kFloat8E4M3, {}, byte_)));
    value.Add("nested", TorchValue::Tuple({inner, TorchValue::Dict(), TorchValue::List()}));
    for (const std::int64_t whole :
         {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31U, -(std::int64_t{1} << 31U),
          std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()})
      value.Add("int" + std::to_string(whole), TorchValue::Int(whole));
    return value;
  }
  std::string Written(const TorchValue& value) {
    WriteTorchFile("/t.pt", value, disk_);
    return TextOf(disk_.Map("/t.pt").bytes);
  }

  const std::vector<double> numbers_{1.5, -2.25, 1e300, 0};
  const std::vector<std::uint16_t> halves_{1, 2, 0x3c00};
  const std::vector<std::uint8_t> byte_{0x38};
  const std::vector<std::int64_t> empty_;
  CrashFiles disk_;
};

TEST_F(TorchFileTest, ValuesComeBackAsTheyWereWritten) {
  const TorchValue value = Everything();
  const TestFolder folder;
  const Path path = folder.path() / "t.pt";
  WriteTorchFile(path, value);
  const TorchFile file = ReadTorchFile(path);
  EXPECT_TRUE(Same(file.value, value));
  EXPECT_EQ(file.value.Find("nested")->items[0].Find("7"), nullptr);
  EXPECT_EQ(file.value.Find("nope"), nullptr);
  EXPECT_EQ(file.value.Find("int-1")->Find("x"), nullptr);
  for (const TorchValue& item : file.value.items) {
    if (item.tensor.data.empty()) continue;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(item.tensor.data.data()) % 64, 0U);
  }
  for (const TorchValue& root : {TorchValue(), TorchValue::Text("x"), TorchValue::List()})
    EXPECT_TRUE(Same(Parse(Written(root)).value, root));
}

TEST_F(TorchFileTest, BytesAreThoseOfTheFile) {
  EXPECT_EQ(TorchFileBytes(Everything()), Written(Everything()));
  TorchValue twice = TorchValue::Dict();
  twice.Add("k", TorchValue());
  twice.Add("k", TorchValue());
  EXPECT_THAT(ErrorOf([&] { TorchFileBytes(twice); }),
              IsError(Code::kInvalidArgument, HasSubstr("keys must differ")));
}

TEST_F(TorchFileTest, RandomTensorsOfAllTypesComeBack) {
  std::mt19937_64 random(orca::testing::TestSeed());
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<std::byte>> memory;
    TorchValue value = TorchValue::List();
    for (std::size_t i = random() % 12; i > 0; --i) {
      TensorSpec spec{
          .name = {}, .type = static_cast<TensorType>(random() % kTensorTypeCount), .shape = {}};
      for (std::size_t d = random() % 4; d > 0; --d)
        spec.shape.push_back(static_cast<std::int64_t>(random() % 6));
      auto& bytes = memory.emplace_back(ByteSize(spec.type, spec.shape).value());
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      value.items.push_back(TorchValue::Of({spec, bytes}));
    }
    EXPECT_TRUE(Same(Parse(Written(value)).value, value));
  }
}

// Whatever byte is wrong: the file is refused, or the byte says nothing about the values.
TEST_F(TorchFileTest, DamageIsFoundAtEveryByte) {
  const TorchValue value = Everything();
  const std::string whole = Written(value);
  std::size_t refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char flip : {'\x01', '\x80'}) {
      std::string file = whole;
      file[at] = static_cast<char>(file[at] ^ flip);
      try {
        EXPECT_TRUE(Same(Parse(file).value, value)) << at;
      } catch (const Error& error) {
        EXPECT_THAT(error,
                    IsError(Code::kUnavailable, AllOf(HasSubstr("test.pt"), HasSubstr("offset"))));
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, whole.size() / 2);
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(ErrorOf([&] { (void)Parse(whole.substr(0, size)); }),
                IsError(Code::kUnavailable, HasSubstr("offset")));
}

TEST_F(TorchFileTest, ACheckOfAllRecordsFindsDamageToo) {
  Written(Everything());
  CheckZipFile("/t.pt", disk_);
  auto& bytes = disk_.Content("/t.pt");
  const auto whole = bytes;
  const auto damaged = [&](std::size_t at, unsigned char flip) {
    bytes = whole;
    bytes[at] ^= static_cast<std::byte>(flip);
    return ErrorOf([&] { CheckZipFile("/t.pt", disk_); });
  };
  const std::string text = TextOf(bytes);
  const std::size_t directory = text.find("PK\x01\x02");
  EXPECT_THAT(damaged(text.find("little"), 4),
              IsError(Code::kUnavailable, AllOf(HasSubstr("/t.pt"), HasSubstr("checksum"))));
  EXPECT_THAT(damaged(directory + 38, 0x10),
              IsError(Code::kUnavailable, AllOf(HasSubstr("folder"), HasSubstr("another copy"))));
  EXPECT_THAT(damaged(directory + 10, 8), IsError(Code::kUnavailable, HasSubstr("begin there")));
}

TEST_F(TorchFileTest, ReadsViewsAndCopiesWhatIsInAnotherOrder) {
  const auto shorts = [](const TorchFile& file) { return ViewAs<std::int16_t>(file.value.tensor); };
  EXPECT_THAT(shorts(Parse(FileOf(TensorOf(6, 0, {2, 3}, {3, 1})))), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(shorts(Parse(FileOf(TensorOf(6, 0, {3, 2}, {1, 3})))), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(shorts(Parse(FileOf(TensorOf(6, 1, {2, 1, 2}, {2, 99, 1})))),
              ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(shorts(Parse(FileOf(TensorOf(6, 1, {2}, {3})))), ElementsAre(1, 4));
  EXPECT_THAT(shorts(Parse(FileOf(TensorOf(6, 5, {2, 2}, {0, 0})))), ElementsAre(5, 5, 5, 5));
  EXPECT_THAT(shorts(Parse(FileOf(TensorOf(6, 5, {}, {})))), ElementsAre(5));
  EXPECT_TRUE(shorts(Parse(FileOf(TensorOf(6, 6, {0, 4}, {1, 1})))).empty());
  // A file in memory that begins at an odd address.
  auto owner = std::make_shared<std::string>("!" + FileOf(TensorOf(6, 1, {2}, {1})));
  EXPECT_THAT(shorts(ParseTorchFile("odd", {std::as_bytes(std::span(*owner)).subspan(1), owner})),
              ElementsAre(1, 2));
}

TEST_F(TorchFileTest, ReadsWhatAllProtocolsWrite) {
  const std::string big = "X" + std::string("\x02\0\0\0ab", 6);
  EXPECT_EQ(Parse(FileOf(big)).value.text, "ab");
  EXPECT_EQ(Parse(FileOf("\x8d" + std::string("\x01\0\0\0\0\0\0\0z", 9), "\x80\x05")).value.text,
            "z");
  EXPECT_EQ(Parse(FileOf("\x95" + std::string(8, '\0') + "K\xff", "\x80\x04")).value.whole, 255);
  EXPECT_EQ(Parse(FileOf("M\x01\x02")).value.whole, 513);
  EXPECT_EQ(Parse(FileOf("\x8a\x02\x00\xff"s)).value.whole, -256);
  EXPECT_EQ(Parse(FileOf("\x8a\x00"s)).value.whole, 0);
  EXPECT_EQ(Parse(FileOf("\x8b\x01\x00\x00\x00\x80"s)).value.whole, -128);
  // Kept values, by all three ways, and a state dict with versions.
  const TorchValue list =
      Parse(FileOf("](" + Text("a") + "\x94" + "K\x07q\x05h\x00j\x05\0\0\0e"s, "\x80\x04")).value;
  ASSERT_EQ(list.items.size(), 4U);
  EXPECT_EQ(list.items[2].text, "a");
  EXPECT_EQ(list.items[3].whole, 7);
  const TorchValue dict = Parse(FileOf("ccollections\nOrderedDict\n)R" + Text("a") + "Ns}" +
                                       Text("_metadata") + "c__main__\nAnything\nsb"))
                              .value;
  EXPECT_EQ(dict.kind, Kind::kDict);
  EXPECT_EQ(dict.Find("a")->kind, Kind::kNone);
  const TorchValue size = Parse(FileOf("ctorch\nSize\n" + Longs({3, 4}) + "\x85R")).value;
  EXPECT_EQ(size.kind, Kind::kTuple);
  EXPECT_EQ(size.items[1].whole, 4);
}

TEST_F(TorchFileTest, RefusesWhatOnlyPythonCanMake) {
  const std::vector<std::pair<std::string, std::string>> foreign = {
      {"c__main__\nNet\n)\x81}b", "holds a __main__.Net, which only Python can make; save a state"},
      {"cposix\nsystem\n" + Text("true") + "\x85R", "posix.system"},
      {Text("os") + Text("system") + "\x93" + Text("true") + "\x85R", "os.system"},
      {"}" + Text("net") + "cbuiltins\neval\ns",
       "builtins.eval, which only Python can make at 'net'"},
      {"ctorch\nfloat32\n", "torch.float32"},
      {"C\x01x", "bytes"},
      {"\x8f", "set"},
      {Long(1) + "0\x8a\x09" + std::string(9, '\x01'), "integer beyond 64 bits"},
      {"ccollections\ndefaultdict\n)R", "collections.defaultdict"},
      {"ctorch._utils\n_rebuild_sparse_tensor\n)R", "_rebuild_sparse_tensor"},
      {TensorOf(6, 0, {6}, {1}, "ctorch\nComplexDoubleStorage\n"), "torch.ComplexDoubleStorage"},
      {"i", "0x69"},
      {"]q\0h\0a"s, "holds itself"},
      // A tensor of 2 bytes that would be a terabyte.
      {TensorOf(6, 0, {std::int64_t{1} << 40U}, {0}), "shares elements"},
  };
  for (const auto& [pickle, message] : foreign)
    EXPECT_THAT(ErrorOf([&] { (void)Parse(FileOf(pickle)); }),
                IsError(Code::kInvalidArgument, AllOf(HasSubstr("test.pt"), HasSubstr(message))));
  std::string negated = TensorOf(6, 0, {6}, {1});
  negated.insert(negated.size() - 2, "}" + Text("neg") + "\x88s");
  EXPECT_THAT(ErrorOf([&] { (void)Parse(FileOf(negated)); }),
              IsError(Code::kInvalidArgument, HasSubstr("resolve_neg")));
  EXPECT_THAT(ErrorOf([&] { (void)Parse(FileOf("N", "\x80\x06")); }),
              IsError(Code::kInvalidArgument, HasSubstr("protocol 6")));
  EXPECT_THAT(ErrorOf([&] {
                (void)Parse(ZipOf({{"x/data.pkl", "\x80\x02N."}, {"x/byteorder", "big"}}));
              }),
              IsError(Code::kInvalidArgument, HasSubstr("byte order 'big'")));
  EXPECT_THAT(ErrorOf([&] {
                (void)Parse("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.");
              }),
              IsError(Code::kInvalidArgument, HasSubstr("before 1.6")));
}

// A list of two of a list of two of ...: a few bytes that would fill any memory.
TEST_F(TorchFileTest, RefusesFewBytesThatStandForMuch) {
  std::string laughs = Text(std::string(200, 'x')) + "q\x00"s + "0";
  for (char level = 0; level < 60; ++level)
    laughs += "](h"s + level + "h" + level + "eq" + static_cast<char>(level + 1) + "0";
  EXPECT_THAT(ErrorOf([&] { (void)Parse(FileOf(laughs + "h\x3c")); }),
              IsError(Code::kInvalidArgument, HasSubstr("the same")));
}

TEST_F(TorchFileTest, RefusesPicklesThatSayWhatCannotBe) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "value is missing"},
      {"0", "value is missing"},
      {"(0", "value is missing"},
      {"K\x01(\x85", "value is missing"},
      {"t", "mark is missing"},
      {"K", "bytes should follow"},
      {"X\xff\xff\xff\xff", "bytes should follow"},
      {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "bytes should follow"},
      {"ctorch", "no name"},
      {"NN\x93", "no name"},
      {"h\x07", "value 7"},
      {"NNa", "holds none"},
      {"}(Nu", "key has no value"},
      {"}]Ns", "looked up"},
      {"}]\x85Ns", "looked up"},
      {"}" + Text("a") + "Ns" + Text("a") + "Ns", "twice"},
      {Text("\xff"), "UTF-8"},
      {"ctorch._utils\n_rebuild_tensor_v2\n)R", "no argument 0"},
      {"ctorch._utils\n_rebuild_tensor_v2\nN\x85R", "another type"},
      {"ctorch._utils\n_rebuild_tensor_v2\nNR", "no argument 0"},
      {TensorOf(5, 0, {5}, {1}), "has 12 bytes"},
      {TensorOf(-6, 0, {5}, {1}), "has 12 bytes"},
      {TensorOf(kMost, 0, {5}, {1}), "has 12 bytes"},
      {TensorOf(6, 0, {7}, {1}), "does not fit"},
      {TensorOf(6, 1, {6}, {1}), "does not fit"},
      {TensorOf(6, 6, {}, {}), "does not fit"},
      {TensorOf(6, kMost, {}, {}), "does not fit"},
      {TensorOf(6, 0, {2}, {6}), "does not fit"},
      {TensorOf(6, 1, {2, 2}, {kMost, kMost}), "does not fit"},
      {TensorOf(6, 0, {3, 3}, {kMost, 1}), "does not fit"},
      {TensorOf(6, -1, {2}, {1}), "begins at -1"},
      {TensorOf(6, 0, {2}, {}), "0 strides"},
      {TensorOf(6, 0, {-2}, {1}), "from 0 on"},
      {TensorOf(6, 5, {2}, {-1}), "from 0 on"},
      {TensorOf(6, 0, {std::int64_t{1} << 62U, 4}, {0, 0}), "shape"},
      {TensorOf(6, 0, {0, kMost, 9}, {1, 1, 1}), "shape"},
      {TensorOf(12, 0, {2}, {1}, "ctorch.storage\nUntypedStorage\n"), "different types"},
  };
  for (const auto& [pickle, message] : bad)
    EXPECT_THAT(ErrorOf([&] { (void)Parse(FileOf(pickle)); }),
                IsError(Code::kUnavailable, AllOf(HasSubstr("offset"), HasSubstr(message))))
        << pickle;
  std::string cut = ZipOf({{"x/data.pkl", "\x80\x02" + TensorOf(6, 0, {6}, {1}) + "."}});
  EXPECT_THAT(ErrorOf([&] { (void)Parse(cut); }),
              IsError(Code::kUnavailable, HasSubstr("no record 'x/data/0'")));
  EXPECT_THAT(ErrorOf([&] {
                (void)Parse(ZipOf({{"x/data.pkl", "N."}}));
              }),
              IsError(Code::kUnavailable, HasSubstr("protocol")));
  EXPECT_THAT(ErrorOf([&] { (void)Parse(ZipOf({})); }),
              IsError(Code::kUnavailable, HasSubstr("data.pkl")));
  EXPECT_THAT(ErrorOf([&] {
                (void)Parse(ZipOf({{"x/data.pkl", "\x80\x02N."}, {"x/data.pkl", "\x80\x02N."}}));
              }),
              IsError(Code::kUnavailable, HasSubstr("twice")));
}

TEST_F(TorchFileTest, RefusesToWriteWhatTorchCannotLoad) {
  const auto error = [&](const TorchValue& value) {
    return ErrorOf([&] { WriteTorchFile("/bad.pt", value, disk_); });
  };
  TorchValue twice = TorchValue::Dict();
  twice.Add("a", {});
  twice.Add("a", {});
  EXPECT_THAT(error(twice), IsError(Code::kInvalidArgument, HasSubstr("at 'a': two entries")));
  TorchValue odd = TorchValue::Dict();
  odd.items = {TorchValue::Int(1)};
  EXPECT_THAT(error(odd), IsError(Code::kInvalidArgument, HasSubstr("1 items")));
  for (const TorchValue& key : {TorchValue::List(), TorchValue::Tuple({TorchValue::Dict()})}) {
    odd.items = {key, TorchValue()};
    EXPECT_THAT(error(odd), IsError(Code::kInvalidArgument, HasSubstr("is a key")));
  }
  EXPECT_THAT(error(TorchValue::Text("\xff")), IsError(Code::kInvalidArgument, HasSubstr("UTF-8")));
  TorchValue wrong = TorchValue::Dict();
  wrong.Add("w", TorchValue::Of(MakeTensor("", TensorType::kFloat32, {3}, byte_)));
  EXPECT_THAT(error(wrong), IsError(Code::kInvalidArgument, HasSubstr("tensor 'w'")));
  TorchValue deep;
  for (int i = 0; i <= kMaxTorchDepth; ++i) deep = TorchValue::List({deep});
  EXPECT_THAT(error(deep), IsError(Code::kInvalidArgument, HasSubstr("100 deep")));
  EXPECT_TRUE(Same(Parse(Written(deep.items[0])).value, deep.items[0]));
  EXPECT_THAT(disk_.List("/"), ElementsAre("t.pt"));
}

TEST_F(TorchFileTest, AFullDiskLeavesTheOldFile) {
  WriteTorchFile("/t.pt", TorchValue::Int(1), disk_);
  disk_.SetRoom(1000);
  EXPECT_THAT(ErrorOf([&] { WriteTorchFile("/t.pt", Everything(), disk_); }).code(),
              Code::kResourceExhausted);
  EXPECT_EQ(ReadTorchFile("/t.pt", disk_).value.whole, 1);
  EXPECT_THAT(disk_.List("/"), ElementsAre("t.pt"));
}

// For tests of Python: reads the file IN and writes it to OUT.
const orca::testing::Command kRewrite("rewrite", [](std::span<char* const> arguments) {
  try {
    WriteTorchFile(arguments[1], ReadTorchFile(arguments[0]).value);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", CodeName(error.code()), error.what());
    return 1;
  }
});

}  // namespace
}  // namespace orca::io
