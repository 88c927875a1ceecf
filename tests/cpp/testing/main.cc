// The main function of every test program.
//
//   <room>_tests [gtest's options]           all tests of the room, long ones included
//   <room>_tests --file=NAME                 those of NAME_test.cc, except the long ones
//   <room>_tests --long --file=NAME          the long ones: suites whose name begins with "Long"
//   <room>_tests --one-thread --file=NAME    a test that starts a thread ends the program
#include "testing/main.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "orca/runtime/program.h"

namespace orca::testing {
namespace {

std::map<std::string, Command::Function>& Commands() {
  static std::map<std::string, Command::Function> commands;
  return commands;
}

// Also those that a test process forks or starts anew: they are the test's own.
bool one_thread = false;

/// "Long..." or "Layouts/Long...".
bool IsLong(std::string suite) {
  const std::size_t slash = suite.find('/');
  if (slash != std::string::npos && suite.compare(0, 4, "Long") != 0) suite.erase(0, slash + 1);
  return suite.starts_with("Long");
}

/// The filter that selects the long or the other tests of one file; empty where there are none.
std::string FilterOf(const std::string& name, bool is_long) {
  const std::string file = "/" + name + "_test.cc";
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  std::string filter;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    if (IsLong(suite.name()) != is_long) continue;
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(k);
      if (std::string(test.file()).ends_with(file))
        filter += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return filter;
}

int Main(int argc, char** argv) {
  if (argc > 1) {
    const auto command = Commands().find(argv[1]);
    if (command != Commands().end()) {
      return command->second(std::span<char* const>(argv + 2, static_cast<std::size_t>(argc - 2)));
    }
  }
  ::testing::InitGoogleMock(&argc, argv);
  std::string file;
  bool is_long = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--one-thread") == 0) {
      one_thread = true;
    } else if (std::strcmp(argv[i], "--long") == 0) {
      is_long = true;
    } else if (std::strncmp(argv[i], "--file=", 7) == 0) {
      file = argv[i] + 7;
    } else {
      std::fprintf(stderr,
                   "unknown argument %s; use --file=NAME, --long, --one-thread, or gtest's\n",
                   argv[i]);
      return 1;
    }
  }
  if (!file.empty()) {
    const std::string filter = FilterOf(file, is_long);
    if (filter.empty()) {
      std::fprintf(stderr, "this program has no %stest of %s_test.cc\n", is_long ? "long " : "",
                   file.c_str());
      return 1;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}

}  // namespace

Command::Command(const char* name, Function function) { Commands().emplace(name, function); }

}  // namespace orca::testing

#if !defined(ORCA_SANITIZED)
// In place of the C library's, so that --one-thread sees every thread.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
    void* argument) noexcept {
  if (orca::testing::one_thread) {
    std::fputs("a thread is started: take this test out of ORCA_ONE_THREAD_TESTS\n", stderr);
    std::abort();
  }
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, start, argument);
}
#endif

int main(int argc, char** argv) {
  orca::Init(argc, argv);  // Does not return in a worker.
  return orca::testing::Main(argc, argv);
}
