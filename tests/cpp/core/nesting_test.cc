#include "orca/core/nesting.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "testing/seed.h"

namespace orca {
namespace {

using Json = nlohmann::json;

std::span<const std::byte> Bytes(const std::vector<std::uint8_t>& bytes) {
  return std::as_bytes(std::span(bytes));
}

// Lists and maps in turns, `depth` of them.
Json Nested(std::size_t depth) {
  Json value = 1;
  for (std::size_t i = 0; i < depth; ++i)
    value = i % 2 == 0 ? Json::array({value, "a]\"\\"}) : Json{{"{[\"", value}, {"b", 2}};
  return value;
}

TEST(NestingTest, CountsListsAndMapsButNotTexts) {
  for (const std::size_t depth : {0U, 1U, 2U, 7U, 100U}) {
    const Json value = Nested(depth);
    const std::string text = value.dump();
    const auto packed = Json::to_msgpack(value);
    EXPECT_TRUE(IsShallowJson(text, depth));
    EXPECT_TRUE(IsShallowMessagePack(Bytes(packed), depth));
    if (depth == 0) continue;
    EXPECT_FALSE(IsShallowJson(text, depth - 1));
    EXPECT_FALSE(IsShallowMessagePack(Bytes(packed), depth - 1));
  }
}

TEST(NestingTest, WidthIsNotDepth) {
  Json wide = Json::array();
  for (int i = 0; i < 70000; ++i) wide.push_back(Json::array({i}));
  EXPECT_TRUE(IsShallowJson(wide.dump(), 2));
  EXPECT_TRUE(IsShallowMessagePack(Bytes(Json::to_msgpack(wide)), 2));
  EXPECT_FALSE(IsShallowMessagePack(Bytes(Json::to_msgpack(wide)), 1));
}

TEST(NestingTest, EveryKindOfValueIsPassedOver) {
  std::vector<std::uint8_t> blob(300, 0x91);
  const Json values = {nullptr,
                       true,
                       -1,
                       -200,
                       -70000,
                       -5000000000,
                       200,
                       70000,
                       5000000000,
                       0.5,
                       std::string(20, '['),
                       std::string(40, '['),
                       std::string(300, '['),
                       std::string(70000, '['),
                       Json::binary(blob),
                       Json::binary(blob, 7),
                       Json::binary({0x91, 0x91}, 7),
                       Json::array(),
                       Json::object(),
                       Json::array({Json::array({1})})};
  const auto packed = Json::to_msgpack(values);
  EXPECT_TRUE(IsShallowMessagePack(Bytes(packed), 3));
  EXPECT_FALSE(IsShallowMessagePack(Bytes(packed), 2));
}

TEST(NestingTest, AMillionListsAreRefusedWithoutAStackOfThem) {
  const std::vector<std::uint8_t> packed(1'000'000, 0x91);
  EXPECT_FALSE(IsShallowMessagePack(Bytes(packed)));
  EXPECT_FALSE(IsShallowJson(std::string(1'000'000, '[')));
  EXPECT_FALSE(IsShallowJson(std::string(1'000'000, ']') + std::string(1000, '{')));
}

TEST(NestingTest, AnyBytesGetAnAnswer) {
  std::mt19937_64 random(testing::TestSeed());
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::uint8_t> bytes(random() % 100);
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    EXPECT_TRUE(IsShallowMessagePack(Bytes(bytes), 100));
    // Cut off words are words, too.
    auto packed = Json::to_msgpack(Nested(20));
    packed.resize(random() % packed.size());
    EXPECT_TRUE(IsShallowMessagePack(Bytes(packed), 20));
  }
}

}  // namespace
}  // namespace orca
