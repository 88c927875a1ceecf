// Forks while a group exists (F27), and what is left when everybody is killed (F26, O5).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "testing/cases.h"
#include "testing/processes.h"
#include "testing/seed.h"

namespace orca::comm {
namespace {

using ::testing::AllOf;
using testing::BytesOf;
using testing::Child;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Layout;
using testing::RankProcesses;
using testing::Voice;

// What each way of using the group gives in a forked child.
void UseTheGroup(Communicator& comm, const Voice& voice) {
  int value = 0;
  const std::vector<std::function<void()>> uses{
      [&] { comm.Barrier(); },
      [&] { comm.Start(Collective::Barrier()).Wait(); },
      [&] { comm.Send(BytesOf(value), 1 - comm.rank()); },
      [&] { comm.StartRecv(BytesOf(value), 1 - comm.rank()).Wait(); },
  };
  for (const auto& use : uses) {
    try {
      use();
      voice.Tell("worked");
    } catch (...) {
      voice.Tell(testing::DescribeError(std::current_exception()));
    }
  }
  comm.Abort("a child must not end its parent's group");
}

class ForkTest : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (testing::kThreadSanitizer)
      GTEST_SKIP() << "the thread sanitizer does not follow forks of threads";
  }
};

TEST_P(ForkTest, F27AChildIsToldThatTheGroupIsItsParentsAndTheParentGoesOn) {
  RankProcesses ranks(
      2, GetParam(), [](CommOptions&) {},
      [](Communicator& comm, const Voice& voice) {
        comm.Barrier();
        for (int i = 0; i < 3; ++i) {
          Child child([&](const Voice& to_parent) { UseTheGroup(comm, to_parent); });
          int value = 1;
          comm.AllReduce(BytesOf(value), DType::kInt32);  // while the child lives
          EXPECT_EQ(value, 2);
          for (int use = 0; use < 4; ++use) voice.Tell(child.Listen().value_or("nothing"));
          EXPECT_EQ(child.Wait(), 0);
          comm.Barrier();  // its end did not end the group
        }
        voice.Tell(::testing::Test::HasFailure() ? "failed" : "went on");
      });
  for (int rank = 0; rank < 2; ++rank) {
    for (int line = 0; line < 12; ++line) {
      EXPECT_THAT(
          ranks.child(rank).Listen().value_or(""),
          AllOf(HasSubstr("failed precondition"),
                HasSubstr("was forked from rank " + std::to_string(rank)), HasSubstr("spawn")));
    }
    ranks.AwaitLine(rank, "went on");
    EXPECT_EQ(ranks.End(rank).code, std::nullopt);
  }
}

TEST_P(ForkTest, F27AChildThatDestroysTheGroupLeavesTheParentsAlone) {
  RankProcesses ranks(2, [&](std::shared_ptr<Store> store, int rank, const Voice& voice) {
    auto comm = Join(
        testing::Seat{.rank = rank, .world = 2, .layout = GetParam(), .store = std::move(store)});
    int value = 1;
    const Work work =
        comm->Start(Collective::AllReduce(BytesOf(value), DType::kInt32));  // all threads exist
    work.Wait();
    Child child([&](const Voice&) { comm.reset(); });
    EXPECT_EQ(child.Wait(), 0);
    comm->Barrier();
    voice.Tell(::testing::Test::HasFailure() ? "failed" : "went on");
  });
  for (int rank = 0; rank < 2; ++rank) {
    ranks.AwaitLine(rank, "went on");
    EXPECT_EQ(ranks.End(rank).code, std::nullopt);
  }
}

TEST_P(ForkTest, F27AChildFormsAGroupOfItsOwn) {
  RankProcesses ranks(
      2, GetParam(), [](CommOptions&) {},
      [](Communicator& comm, const Voice& voice) {
        comm.Barrier();
        Child child([&](const Voice& to_parent) {
          const auto own = Communicator::Connect({});
          int value = 5;
          own->AllReduce(BytesOf(value), DType::kInt32);
          to_parent.Tell(std::to_string(value));
        });
        voice.Tell(child.Listen().value_or("nothing"));
        comm.Barrier();
      });
  for (int rank = 0; rank < 2; ++rank) {
    ranks.AwaitLine(rank, "5");
    EXPECT_EQ(ranks.End(rank).code, std::nullopt);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ForkTest,
                         ::testing::Values(testing::SharedMemoryLayout(), testing::TcpLayout()),
                         [](const auto& layout) { return layout.param.name; });

// ---- residue
// -------------------------------------------------------------------------------------------------

std::set<std::string> FilesIn(const std::string& directory) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    names.insert(entry.path().filename());
  }
  return names;
}

// The inodes of the sockets that a process holds.
std::set<std::string> SocketInodes(pid_t pid) {
  std::set<std::string> inodes;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error);
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// Those of `inodes` that the kernel still lists, of any kind.
std::set<std::string> StillThere(const std::set<std::string>& inodes) {
  std::set<std::string> found;
  for (const char* table : {"/proc/net/unix", "/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string word;
      while (words >> word) {
        if (inodes.contains(word)) found.insert(word);
      }
    }
  }
  return found;
}

class ResidueTest : public ::testing::TestWithParam<Layout> {};

TEST_P(ResidueTest, F26NothingIsLeftWhenEveryRankIsKilled) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not follow forks";
  const auto shared_before = FilesIn("/dev/shm");
  std::set<std::string> inodes;
  std::string directory;
  {
    RankProcesses ranks(
        4, GetParam(), [](CommOptions&) {},
        [](Communicator& comm, const Voice& voice) {
          auto* data = static_cast<float*>(comm.arena()->Allocate(4'000'000));
          const Bytes bytes(reinterpret_cast<std::byte*>(data), 4'000'000);
          for (int step = 0;; ++step) {
            comm.AllReduce(bytes, DType::kFloat32);
            if (step == 3) voice.Tell("busy");
          }
        });
    for (int rank = 0; rank < 4; ++rank) ranks.AwaitLine(rank, "busy");
    directory = ranks.directory();
    for (int rank = 0; rank < 4; ++rank) inodes.merge(SocketInodes(ranks.child(rank).pid()));
    for (int rank = 0; rank < 4; ++rank)
      ranks.child(rank).Signal(SIGSTOP);  // so that all die in mid-collective
    for (int rank = 0; rank < 4; ++rank) ranks.child(rank).Signal(SIGKILL);
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(WTERMSIG(ranks.child(rank).Wait()), SIGKILL);
    EXPECT_FALSE(inodes.empty());
    EXPECT_THAT(StillThere(inodes), ::testing::IsEmpty());
    EXPECT_EQ(FilesIn("/dev/shm"), shared_before);
    for (const std::string& name : FilesIn(directory))
      EXPECT_THAT(name, ::testing::Not(HasSubstr("tmp")));
  }
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST_P(ResidueTest, O5AHundredGroupsLeaveNoDescriptorsAndNoMemory) {
  const int cycles = testing::kSanitized ? 10 : 100;
  const auto resident_pages = [] {
    std::ifstream file("/proc/self/statm");
    std::size_t size = 0;
    std::size_t resident = 0;
    file >> size >> resident;
    return resident;
  };
  std::size_t before = 0;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    testing::RunRanks(3, GetParam(), [](Communicator& comm) {  // compares the descriptors itself
      std::vector<int> data(10'000, 1);
      comm.Start(Collective::AllReduce(AsBytes(data), DType::kInt32)).Wait();
      auto* memory = comm.arena()->Allocate(100'000);
      comm.Barrier();
      comm.arena()->Free(memory);
    });
    if (cycle == cycles / 10) before = resident_pages();
  }
  if (testing::kSanitized) return;  // their bookkeeping grows
  EXPECT_LT(resident_pages(), before + 4096) << "16 MiB more than after the first groups";
}

INSTANTIATE_TEST_SUITE_P(Layouts, ResidueTest, ::testing::ValuesIn(testing::Layouts()),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace orca::comm
