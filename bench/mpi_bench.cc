// All-reduce in C++: Orca against the MPI library that this file is compiled with, in the same
// processes, in turns; and, where the caches do not hold the data, against what the memory gives.
//   mpirun -n 2 mpi_bench NAME STORE_DIRECTORY
#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "harness.h"
#include "orca/comm/communicator.h"

namespace {

using orca::bench::Now;
using orca::comm::Communicator;
using orca::comm::DType;

double Slowest(double seconds) {
  double slowest = 0;
  MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

void Compare(Communicator& comm, const std::string& name, std::size_t bytes) {
  const std::size_t count = bytes / sizeof(float);
  auto* registered = static_cast<float*>(comm.arena()->Allocate(bytes));
  const std::span<float> ours(registered, count);
  std::vector<float> theirs(count);
  std::vector<double> our_times;
  std::vector<double> their_times;
  std::vector<double> limit_times;
  const bool in_memory = bytes >= (std::size_t{64} << 20);
  const int rounds = orca::bench::Rounds(bytes);
  for (int round = -2; round < rounds; ++round) {  // two for warming up, both sides
    const int pattern = round + 2;
    for (int side = 0; side < 2; ++side) {
      const bool is_ours = (side + pattern) % 2 == 0;
      const std::span<float> data = is_ours ? ours : std::span<float>(theirs);
      orca::bench::Dirty(data, comm.rank(), pattern);
      comm.Barrier();
      const double start = Now();
      if (is_ours) {
        comm.AllReduce(orca::comm::AsBytes(data), DType::kFloat32);
      } else {
        MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
      }
      const double seconds = Slowest(Now() - start);
      orca::bench::CheckSum(data, comm.world(), pattern, is_ours ? "orca" : name.c_str());
      if (round >= 0) (is_ours ? our_times : their_times).push_back(seconds);
    }
    if (!in_memory) continue;
    // The same bytes of the same pages, without an exchange: every rank loads and stores its own.
    orca::bench::Dirty(ours, comm.rank(), pattern);
    comm.Barrier();
    const double start = Now();
    for (float& element : ours) element += 1.0F;
    const double seconds = Slowest(Now() - start);
    if (round >= 0) limit_times.push_back(seconds);
  }
  comm.arena()->Free(registered);
  if (comm.rank() != 0) return;
  orca::bench::Report(name + "/" + std::to_string(bytes), our_times, their_times);
  if (in_memory) {
    orca::bench::Report(name + "-limit/" + std::to_string(bytes), our_times, limit_times);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc < 3) return 2;
  int rank = 0;
  int world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  {
    orca::comm::Membership membership;
    membership.rank = rank;
    membership.world = world;
    membership.store = orca::comm::NewFileStore(argv[2]);
    const auto comm = Communicator::Connect(membership);
    std::vector<std::size_t> sizes;
    for (int i = 3; i < argc; ++i) sizes.push_back(std::stoull(argv[i]));
    if (sizes.empty()) sizes = {1 << 10, 64 << 10, 1 << 20, 256 << 20};
    for (const std::size_t bytes : sizes) Compare(*comm, argv[1], bytes);
  }
  MPI_Finalize();
  return 0;
}
