// An all-reduce between processes, in two forms.
//
// On this host; the program starts itself N times and the ranks meet in a directory:
//     allreduce --ranks 4
//
// On two hosts; rank 0 serves the store, and all ranks have a copy of one secret file (64 hex
// digits, mode 0600):
//     head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > key; chmod 600 key
//     a$ allreduce --store tcp://10.0.0.1:29500 --rank 0 --world 2 --secret-file key
//     b$ allreduce --store tcp://10.0.0.1:29500 --rank 1 --world 2 --secret-file key
//
// --transport tcp sends between ranks of one host over TCP, too; --count sets the number of floats.

#include <orca/comm/communicator.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using orca::comm::CommOptions;
using orca::comm::Communicator;
using orca::comm::Membership;
using orca::comm::Store;
using Options = std::map<std::string, std::string>;

Options ParseOptions(int argc, char** argv) {
  Options options = {{"ranks", "2"},      {"store", ""},         {"rank", "0"},
                     {"world", "1"},      {"transport", "auto"}, {"address", ""},
                     {"secret-file", ""}, {"count", "1048576"}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const auto option = name.starts_with("--") ? options.find(name.substr(2)) : options.end();
    if (option == options.end() || i + 1 == argc) {
      throw std::invalid_argument(
          "cannot read " + name +
          "; options, each with a value: --ranks, or --store --rank --world; "
          "--transport --address --secret-file --count");
    }
    option->second = argv[i + 1];
  }
  return options;
}

// Rank 0 serves a tcp:// store, the others are its clients; a file:// store is a directory that all
// see.
std::shared_ptr<Store> OpenStore(const Options& options) {
  const std::string& url = options.at("store");
  if (url.starts_with("file://")) return orca::comm::NewFileStore(url.substr(7));
  if (!url.starts_with("tcp://"))
    throw std::invalid_argument("--store " + url + " is neither tcp:// nor file://");
  if (options.at("secret-file").empty()) {
    throw std::invalid_argument(
        "a tcp:// store wants --secret-file, the same 64 hex digits on every host");
  }
  const auto secret = orca::net::Secret::FromFile(options.at("secret-file"));
  const std::string address = url.substr(6);
  std::string bound;
  return options.at("rank") == "0"
             ? orca::comm::ServeTcpStore(address, secret, &bound)
             : orca::comm::ConnectTcpStore(address, secret, std::chrono::minutes(1));
}

// What each process does: join, reduce, check.
void RunRank(const Options& options) {
  Membership membership;
  membership.rank = std::stoi(options.at("rank"));
  membership.world = std::stoi(options.at("world"));
  membership.store = OpenStore(options);
  CommOptions comm_options;
  comm_options.transport = options.at("transport");
  comm_options.address = options.at("address");
  if (!options.at("secret-file").empty()) {
    membership.secret = orca::net::Secret::FromFile(options.at("secret-file"));
  }
  const auto comm = Communicator::Connect(membership, comm_options);

  std::vector<float> data(std::stoul(options.at("count")), static_cast<float>(comm->rank() + 1));
  const auto start = std::chrono::steady_clock::now();
  comm->AllReduce(orca::comm::AsBytes(data), orca::comm::DType::kFloat32);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;

  const auto expected = static_cast<float>(comm->world() * (comm->world() + 1) / 2);
  for (const float value : data) {
    if (value != expected) throw std::runtime_error("got " + std::to_string(value));
  }
  std::printf("rank %d: %s; the sum of %zu floats is %g everywhere; %.2f ms\n", comm->rank(),
              comm->Describe().c_str(), data.size(), static_cast<double>(expected), took.count());
  // Nobody leaves, and rank 0 does not take the store away, before all are done.
  comm->Barrier();
}

// Starts this program once a rank and waits for all. Returns how many failed.
int RunRanks(const Options& options) {
  std::string directory =
      (std::filesystem::temp_directory_path() / "orca-allreduce-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) throw std::runtime_error("cannot make " + directory);
  const std::string& world = options.at("ranks");
  std::vector<pid_t> children;
  for (int rank = 0; rank < std::stoi(world); ++rank) {
    std::vector<std::string> words = {"allreduce",
                                      "--store",
                                      "file://" + directory,
                                      "--rank",
                                      std::to_string(rank),
                                      "--world",
                                      world,
                                      "--transport",
                                      options.at("transport"),
                                      "--count",
                                      options.at("count")};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t child = 0;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0) {
      throw std::runtime_error("cannot start rank " + std::to_string(rank));
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0;
  }
  std::filesystem::remove_all(directory);
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = ParseOptions(argc, argv);
    if (options.at("store").empty()) return RunRanks(options) == 0 ? 0 : 1;
    RunRank(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "allreduce: %s\n", error.what());
    return 1;
  }
}
