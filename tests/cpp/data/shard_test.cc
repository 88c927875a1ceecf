// Shards against plain vectors, and what happens to their memory.
#include "orca/data/shard.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <random>
#include <string>

#include "data/shard_head.h"
#include "orca/core/error.h"
#include "orca/data/array_store.h"
#include "orca/data/arrow.h"
#include "testing/seed.h"

namespace orca::data {
namespace {

using ::testing::HasSubstr;

/// A column as plain values: what a shard has to give back.
struct Reference {
  ColumnSpec spec;
  std::vector<std::string> rows;  // bytes of each row
  std::vector<bool> missing;

  bool any_missing() const { return std::ranges::find(missing, true) != missing.end(); }
};

/// A table of references as the memory that Put takes.
class Source {
 public:
  explicit Source(const std::vector<Reference>& table) {
    for (const Reference& column : table) {
      Memory& memory = *memory_.emplace_back(std::make_unique<Memory>());
      memory.offsets.push_back(0);
      memory.validity.assign((column.rows.size() + 7) / 8, std::byte{0});
      for (std::size_t row = 0; row < column.rows.size(); ++row) {
        memory.values += column.rows[row];
        memory.offsets.push_back(static_cast<std::int64_t>(memory.values.size()));
        if (!column.missing[row]) memory.validity[row / 8] |= std::byte{1} << (row % 8);
      }
      Column made{.values = std::as_bytes(std::span(memory.values))};
      if (column.spec.kind != ColumnKind::kFixed) made.offsets = memory.offsets;
      if (column.any_missing()) made.validity = memory.validity;
      specs.push_back(column.spec);
      columns.push_back(made);
    }
  }

  std::vector<ColumnSpec> specs;
  std::vector<Column> columns;

 private:
  struct Memory {
    std::string values;
    std::vector<std::int64_t> offsets;
    std::vector<std::byte> validity;
  };
  std::vector<std::unique_ptr<Memory>> memory_;
};

std::vector<Reference> RandomTable(std::mt19937_64& random, std::size_t rows) {
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  std::vector<Reference> table;
  const std::size_t count = 1 + below(5);
  for (std::size_t c = 0; c < count; ++c) {
    Reference column;
    column.spec.name = "column " + std::to_string(c);
    column.spec.kind = static_cast<ColumnKind>(below(3));
    if (column.spec.kind == ColumnKind::kFixed) {
      column.spec.dtype = static_cast<DType>(below(kDTypeCount));
      for (std::uint64_t d = below(4); d > 0; --d)
        column.spec.row_shape.push_back(static_cast<std::int64_t>(below(4)));
    }
    const bool may_miss = below(2) == 0;
    for (std::size_t row = 0; row < rows; ++row) {
      const bool is_fixed = column.spec.kind == ColumnKind::kFixed;
      std::string value(is_fixed ? column.spec.row_bytes() : below(20), '\0');
      const bool bits = column.spec.dtype == DType::kBool && is_fixed;
      for (char& byte : value) byte = static_cast<char>(bits ? below(2) : 'a' + below(26));
      column.rows.push_back(value);
      column.missing.push_back(may_miss && below(3) == 0);
    }
    table.push_back(column);
  }
  return table;
}

std::string RowOf(const ColumnSpec& spec, const Column& column, std::uint64_t row) {
  if (spec.kind != ColumnKind::kFixed) return std::string(column.Text(row));
  const auto bytes = column.values.subspan(row * spec.row_bytes(), spec.row_bytes());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void ExpectHolds(const std::vector<ColumnSpec>& specs, const std::vector<Column>& columns,
                 const std::vector<Reference>& table) {
  ASSERT_EQ(columns.size(), table.size());
  for (std::size_t c = 0; c < table.size(); ++c) {
    EXPECT_EQ(specs[c], table[c].spec);
    EXPECT_EQ(!columns[c].validity.empty(), table[c].any_missing());
    for (std::size_t row = 0; row < table[c].rows.size(); ++row) {
      EXPECT_EQ(columns[c].IsMissing(row), table[c].missing[row]);
      EXPECT_EQ(RowOf(specs[c], columns[c], row), table[c].rows[row]);
    }
  }
}

std::shared_ptr<const Shard> PutText(const std::shared_ptr<ShardHome>& home,
                                     const std::string& text) {
  const std::vector<ColumnSpec> specs{{.name = "text", .dtype = DType::kUInt8}};
  const Column column{.values = std::as_bytes(std::span(text))};
  return Shard::Put(home, specs, text.size(), std::span(&column, 1));
}

std::string TextOf(const Shard& shard) {
  const auto bytes = shard.columns()[0].values;
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ShardTest, HoldsWhatWasPutAndShowsItToWhoeverOpensIt) {
  std::mt19937_64 random(testing::TestSeed());
  const auto shelf = ShardShelf::Create();
  for (int round = 0; round < (testing::kSanitized ? 30 : 300); ++round) {
    const auto table = RandomTable(random, random() % 40);
    const Source source(table);
    const auto shard = Shard::Put(shelf, source.specs, table[0].rows.size(), source.columns);
    const auto again = Shard::Open(ShardHold::Take(shelf, shard->hold()->id()));
    for (const auto& seen : {shard, again}) {
      EXPECT_EQ(seen->rows(), table[0].rows.size());
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(seen->specs(), seen->columns(), table));
      for (const Column& column : seen->columns()) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(column.values.data()) % 64, 0U);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(column.offsets.data()) % 64, 0U);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(column.validity.data()) % 64, 0U);
      }
    }
  }
}

TEST(ShardTest, GoesToArrowAndBack) {
  std::mt19937_64 random(testing::TestSeed());
  const auto shelf = ShardShelf::Create();
  for (int round = 0; round < (testing::kSanitized ? 30 : 300); ++round) {
    auto table = RandomTable(random, random() % 40);
    for (Reference& column : table) {
      // Arrow has none, and no shape without elements.
      const bool is_fixed = column.spec.kind == ColumnKind::kFixed;
      if (is_fixed && (column.spec.dtype == DType::kBFloat16 || column.spec.row_bytes() == 0)) {
        column.spec = {.name = column.spec.name, .dtype = DType::kInt16};
        for (std::string& row : column.rows) row = "xy";
      }
    }
    const Source source(table);
    ArrowSchema schema{};
    ArrowArray array{};
    {
      const auto shard = Shard::Put(shelf, source.specs, table[0].rows.size(), source.columns);
      ExportArrow(shard, &schema, &array);
      const auto& first = shard->columns()[0];
      const ArrowArray& child = *array.children[0];
      if (source.specs[0].kind != ColumnKind::kFixed) {
        EXPECT_EQ(child.buffers[2], first.values.data());
      }
    }
    const auto shard = PutArrow(shelf, schema, array);
    schema.release(&schema);
    array.release(&array);
    ASSERT_NO_FATAL_FAILURE(ExpectHolds(shard->specs(), shard->columns(), table));
  }
  EXPECT_EQ(shelf->usage().shards, 0U);
}

TEST(ShardTest, ASliceOfArrowBeginsAnywhere) {
  const auto shelf = ShardShelf::Create();
  std::vector<Reference> table(3);
  table[0].spec = {.name = "n", .dtype = DType::kInt8, .row_shape = {2}};
  table[1].spec = {.name = "b", .dtype = DType::kBool};
  table[2].spec = {.name = "t", .kind = ColumnKind::kString};
  for (int row = 0; row < 30; ++row) {
    const std::string digit(1, static_cast<char>('a' + row));
    table[0].rows.push_back(digit + "z");
    table[1].rows.emplace_back(1, static_cast<char>(row % 3 == 0));
    table[2].rows.emplace_back(static_cast<std::size_t>(row % 5), digit[0]);
    for (Reference& column : table) column.missing.push_back(row % 7 == 2);
  }
  const Source source(table);
  const auto whole = Shard::Put(shelf, source.specs, 30, source.columns);
  for (std::int64_t first = 0; first < 30; ++first) {
    ArrowSchema schema{};
    ArrowArray array{};
    ExportArrow(whole, &schema, &array);
    array.offset = first;  // a slice of the record batch
    array.length -= first;
    const auto shard = PutArrow(shelf, schema, array);
    for (std::size_t c = 0; c < table.size(); ++c) {
      ASSERT_EQ(shard->rows(), static_cast<std::uint64_t>(30 - first));
      for (std::uint64_t row = 0; row < shard->rows(); ++row) {
        const auto of = static_cast<std::size_t>(first) + row;
        EXPECT_EQ(RowOf(shard->specs()[c], shard->columns()[c], row), table[c].rows[of]);
        EXPECT_EQ(shard->columns()[c].IsMissing(row), table[c].missing[of]);
      }
    }
    schema.release(&schema);
    array.release(&array);
  }
}

TEST(ShardTest, BatchesHoldTextsAndSayWhatIsMissing) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < (testing::kSanitized ? 20 : 100); ++round) {
    auto table = RandomTable(random, 1 + random() % 40);
    table.push_back({.spec = {.name = "row", .dtype = DType::kInt64}, .rows = {}, .missing = {}});
    const std::size_t rows = table[0].rows.size();
    for (std::uint64_t row = 0; row < rows; ++row) {
      std::string number(sizeof row, '\0');
      std::memcpy(number.data(), &row, sizeof row);
      table.back().rows.push_back(number);
      table.back().missing.push_back(false);
    }
    const Source source(table);
    const auto store = ArrayStore::Create(source.specs);
    store->Put(rows, source.columns);
    store->Put(rows, source.columns);
    const auto loader = store->Batches({.batch_size = 1 + random() % 9, .seed = random()});
    std::size_t seen = 0;
    while (const auto batch = loader->Next()) {
      for (std::uint64_t i = 0; i < batch->rows; ++i) {
        std::uint64_t row = 0;
        std::memcpy(&row, batch->columns.back().values.data() + i * sizeof row, sizeof row);
        for (std::size_t c = 0; c < table.size(); ++c) {
          ASSERT_EQ(RowOf(source.specs[c], batch->columns[c], i), table[c].rows[row]);
          ASSERT_EQ(batch->columns[c].IsMissing(i), table[c].missing[row]);
        }
      }
      seen += batch->rows;
    }
    EXPECT_EQ(seen, 2 * rows);
  }
}

// Offsets and rows beyond 4 GiB, in memory that is mostly holes.
TEST(ShardTest, IsLargerThanFourGigabytes) {
  constexpr std::uint64_t kRows = (std::uint64_t{5} << 30) + 17;
  const std::vector<ColumnSpec> specs{{.name = "x", .dtype = DType::kUInt8},
                                      {.name = "y", .dtype = DType::kInt16}};
  void* const holes =
      ::mmap(nullptr, 2 * kRows, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(holes, MAP_FAILED);
  const auto* const nothing = static_cast<const std::byte*>(holes);
  const Column columns[] = {{.values = {nothing, kRows}}, {.values = {nothing, 2 * kRows}}};
  const ShardHead head = LayOut(specs, kRows, columns);
  ::munmap(holes, 2 * kRows);
  UniqueFd file = MakeMemoryFile("sparse", head.size);
  const std::vector<std::byte> first = EncodeHead(head);
  const std::byte seven{7};
  const std::int16_t number = -1234;
  const FilePiece pieces[] = {
      {first, 0},
      {std::span(&seven, 1), head.places[0].values.at + kRows - 1},
      {std::as_bytes(std::span(&number, 1)), head.places[1].values.at + 2 * (kRows - 3)}};
  WriteMemoryFile(file.get(), pieces);
  const auto shelf = ShardShelf::Create();
  shelf->Adopt(99, std::move(file));
  const auto shard = Shard::Open(ShardHold::Adopt(shelf, 99));
  EXPECT_EQ(shard->rows(), kRows);
  EXPECT_EQ(shard->columns()[0].values[kRows - 1], seven);
  EXPECT_EQ(shard->columns()[0].values[kRows - 2], std::byte{0});
  const auto store = ArrayStore::Create(specs);
  store->Add(shard);
  const auto loader =
      store->Batches({.batch_size = 3, .shuffle = false, .start = kRows - 3, .ahead = 0});
  const auto batch = loader->Next();
  std::int16_t got = 0;
  std::memcpy(&got, batch->columns[1].values.data(), sizeof got);
  EXPECT_EQ(got, number);
  EXPECT_EQ(batch->columns[0].values[2], seven);
}

TEST(ShardTest, WhoeverOpensItCanReadAndNothingElse) {
  const auto shelf = ShardShelf::Create();
  const auto shard = PutText(shelf, "hello");
  const ShardMemory memory = shelf->Open(shard->hold()->id());
  EXPECT_EQ(::pwrite(memory.fd.get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(memory.fd.get(), 0), -1);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, memory.fd.get(), 0), MAP_FAILED);
  // What a process writes to its view stays there.
  const_cast<std::byte*>(shard->columns()[0].values.data())[0] = std::byte{'X'};
  EXPECT_EQ(TextOf(*shard), "Xello");
  EXPECT_EQ(TextOf(*Shard::Open(ShardHold::Take(shelf, shard->hold()->id()))), "hello");
}

TEST(ShardShelfTest, UsesMemoryAgainWhenNobodyHoldsIt) {
  const auto shelf = ShardShelf::Create();
  auto first = PutText(shelf, std::string(100'000, 'a'));
  const auto held = Shard::Open(ShardHold::Take(shelf, first->hold()->id()));
  first.reset();
  const auto second = PutText(shelf, std::string(100'000, 'b'));
  EXPECT_EQ(TextOf(*held), std::string(100'000, 'a'));
  EXPECT_EQ(shelf->usage().shards, 2U);
  const std::size_t in_use = shelf->usage().held;
  EXPECT_EQ(shelf->usage().free, 0U);
  for (int i = 0; i < 20; ++i) (void)PutText(shelf, std::string(95'000, 'c'));
  EXPECT_EQ(shelf->usage().held, in_use);
  EXPECT_GT(shelf->usage().free, 95'000U);
  EXPECT_LT(shelf->usage().free, 2 * 95'000U);  // one piece, for all of them
  EXPECT_EQ(TextOf(*second), std::string(100'000, 'b'));
  shelf->GiveBack(std::chrono::milliseconds(0));
  EXPECT_EQ(shelf->usage().free, 0U);
}

TEST(ShardShelfTest, AShortTextAfterALongOneIsNotTheLongOne) {
  const auto shelf = ShardShelf::Create();
  (void)PutText(shelf, std::string(5000, 'a'));
  EXPECT_EQ(TextOf(*PutText(shelf, std::string(4200, 'b'))), std::string(4200, 'b'));
}

TEST(ShardShelfTest, WhatFitsNeitherIntoMemoryNorIntoAFileIsRefusedByName) {
  const auto shelf = ShardShelf::Create({.limit = 1 << 20, .spill = "/dev/shm"});
  const auto held = PutText(shelf, std::string(600'000, 'a'));
  try {
    PutText(shelf, std::string(600'000, 'b'));
    FAIL() << "there was room";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("1.0 MiB"));
    EXPECT_THAT(error.what(), HasSubstr("/dev/shm"));
    EXPECT_THAT(error.what(), HasSubstr("ORCA_SPILL"));
  }
  EXPECT_EQ(shelf->usage().shards, 1U);
  EXPECT_THROW(shelf->Open(77), Error);
}

// F29: every shard is an open file.
TEST(ShardShelfTest, F29RefusesMoreShardsThanFilesMayBeOpen) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 200, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto shelf = ShardShelf::Create();
  std::vector<std::shared_ptr<const Shard>> held;
  try {
    for (int i = 0; i < 300; ++i) held.push_back(PutText(shelf, "text"));
    ADD_FAILURE() << "300 shards had room";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("RLIMIT_NOFILE allows 200, and 128 are kept"));
    EXPECT_THAT(error.what(), HasSubstr("ulimit -n"));
  }
  EXPECT_GT(held.size(), 50U);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

// F25: what was promised and is not written yet counts.
TEST(ShardShelfTest, F25PromisesNoMoreThanTheMachineHas) {
  const auto shelf = ShardShelf::Create();
  std::vector<ShardMemory> taken;
  const auto take_all = [&] {
    for (int i = 0; i < 1000; ++i)
      taken.push_back(shelf->New(std::size_t{1} << 30, Backing::kMemory));
  };
  try {
    take_all();
    FAIL() << "a terabyte was promised";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kResourceExhausted);
  }
  for (const ShardMemory& memory : taken) shelf->Drop(memory.id);
}

// F27
TEST(ShardShelfTest, F27AForkedChildReadsButTakesNothing) {
  const auto shelf = ShardShelf::Create();
  auto shard = PutText(shelf, std::string(50'000, 'p'));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    int result = TextOf(*shard) == std::string(50'000, 'p') ? 1 : 2;
    shard.reset();
    try {
      PutText(shelf, std::string(50'000, 'c'));
    } catch (const Error& error) {
      result -= error.code() == Code::kFailedPrecondition ? 1 : 0;
    }
    ::_exit(result);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(TextOf(*shard), std::string(50'000, 'p'));
}

// Every byte of a head, wrong in several ways: it is refused, or what it says lies inside.
TEST(ShardHeadTest, ADamagedHeadIsRefusedOrHarmless) {
  std::mt19937_64 random(1);
  const auto table = RandomTable(random, 13);
  const Source source(table);
  const auto shelf = ShardShelf::Create();
  const ShardHead head = LayOut(source.specs, 13, source.columns);
  std::vector<std::byte> memory = EncodeHead(head);
  const std::size_t length = memory.size();
  memory.resize(head.size);
  for (std::size_t at = 0; at < length; ++at) {
    for (const unsigned change : {0x01U, 0x80U, 0xffU}) {
      auto damaged = memory;
      damaged[at] ^= static_cast<std::byte>(change);
      try {
        const ShardHead read = DecodeHead(damaged);
        for (const auto& place : read.places)
          for (const auto& part : {place.values, place.offsets, place.validity})
            ASSERT_LE(part.at + part.bytes, damaged.size());
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Code::kPeerLost);
      }
    }
  }
  EXPECT_THROW(DecodeHead(std::span(memory).first(length - 1)), Error);
  EXPECT_THROW(DecodeHead({}), Error);
}

TEST(ShardTest, RefusesColumnsThatDoNotFit) {
  const auto shelf = ShardShelf::Create();
  const std::vector<ColumnSpec> specs{{.name = "t", .kind = ColumnKind::kString}};
  const std::string text = "abc";
  const std::int64_t good[] = {0, 1, 3};
  const std::int64_t backwards[] = {0, 3, 1};
  const std::int64_t beyond[] = {0, 1, 4};
  const std::byte bits{3};
  const auto put = [&](std::uint64_t rows, const Column& column) {
    return Shard::Put(shelf, specs, rows, std::span(&column, 1));
  };
  const auto values = std::as_bytes(std::span(text));
  EXPECT_EQ(put(2, {values, good, std::span(&bits, 1)})->columns()[0].Text(1), "bc");
  EXPECT_THROW(put(2, {values, backwards}), Error);
  EXPECT_THROW(put(2, {values, beyond}), Error);
  EXPECT_THROW(put(3, {values, good}), Error);
  EXPECT_THROW(put(2, {values, {}}), Error);
  EXPECT_THROW(put(2, {values, good, values}), Error);
  EXPECT_THROW(Shard::Put(shelf, {}, 2, std::vector<Column>{{values}}), Error);
  EXPECT_EQ(shelf->usage().shards, 0U);
}

}  // namespace
}  // namespace orca::data
