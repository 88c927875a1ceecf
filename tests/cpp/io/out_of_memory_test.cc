// F08: no allocation of a reader or a writer that fails does harm. What holds JSON (safetensors,
// checkpoints) is not here: nlohmann's destructor allocates, and a destructor cannot report that it
// failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "io/folder.h"
#include "orca/io/array_file.h"
#include "orca/io/atomic_file.h"
#include "orca/io/event_file.h"
#include "orca/io/torch_file.h"
#include "testing/failing_new.h"

namespace orca::io {
namespace {

using orca::testing::FailEachNew;
using ::testing::ElementsAre;
using ::testing::Gt;

class OutOfMemoryTest : public ::testing::Test {
 protected:
  Path In(const char* name) const { return folder_.path() / name; }

  TestFolder folder_;
  const std::vector<float> values_{1, 2, 3, 4};
  const Tensor tensor_ = MakeTensor("weight", TensorType::kFloat32, {2, 2}, values_);
};

TEST_F(OutOfMemoryTest, F08ReadersEndWithAnError) {
  TorchValue value = TorchValue::Dict();
  value.Add("weight", TorchValue::Of(tensor_));
  value.Add("list", TorchValue::List({TorchValue::Text("a"), TorchValue::Float(0.5)}));
  WriteTorchFile(In("weights.pt"), value);
  WriteNpy(In("array.npy"), tensor_);
  {
    EventWriter events(In("events"));
    events.AddScalar("loss", 0.5, 1);
    events.Sync();
  }
  const std::vector<std::pair<const char*, std::function<void()>>> readers{
      {"torch file", [&] { (void)ReadTorchFile(In("weights.pt")); }},
      {"zip file", [&] { CheckZipFile(In("weights.pt")); }},
      {"npy", [&] { (void)ReadNpy(In("array.npy")); }},
      {"events", [&] { (void)ReadScalars(In("events"), "loss"); }}};
  for (const auto& [name, read] : readers) EXPECT_THAT(FailEachNew(read), Gt(1)) << name;
}

TEST_F(OutOfMemoryTest, F08AFileIsTheOldOneOrTheNewOne) {
  const Path path = In("file");
  WriteAllTo(path, "old");
  const auto write = [&] {
    AtomicFile file(path);
    file.Write("new");
    file.Commit();
  };
  const std::int64_t count = FailEachNew(write, [&] {
    const std::string found = ReadAll(path);
    EXPECT_TRUE(found == "old" || found == "new") << found;
    WriteAllTo(path, "old");
    EXPECT_THAT(folder_.names(), ElementsAre("file"));
  });
  EXPECT_THAT(count, Gt(1));
}

}  // namespace
}  // namespace orca::io
