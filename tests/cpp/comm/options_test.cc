// Options given as text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "net/expect_error.h"
#include "orca/comm/communicator.h"

namespace orca::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

CommOptions With(const std::string& name, const std::string& value) {
  CommOptions options;
  SetOption(options, name, value);
  return options;
}

TEST(OptionsTest, TakeTheirTextForms) {
  EXPECT_EQ(With("timeout", "1.5").timeout, milliseconds(1500));
  EXPECT_EQ(With("connect_timeout", "2").connect_timeout, milliseconds(2000));
  EXPECT_EQ(With("peer_timeout", "0.25").peer_timeout, milliseconds(250));
  EXPECT_EQ(With("warn_after", "60").warn_after, milliseconds(60'000));
  EXPECT_EQ(With("transport", "tcp").transport, "tcp");
  EXPECT_EQ(With("host", "a").host, "a");
  EXPECT_EQ(With("address", "10.0.0.1").address, "10.0.0.1");
  EXPECT_EQ(With("streams", "4").streams, 4);
  EXPECT_TRUE(With("wire_bf16", "true").wire_bf16);
  EXPECT_FALSE(With("wire_bf16", "0").wire_bf16);
}

TEST(OptionsTest, AnUnknownNameListsTheKnownOnes) {
  EXPECT_THAT(ErrorOf([] { With("tiemout", "1"); }),
              IsError(Code::kInvalidArgument,
                      AllOf(HasSubstr("tiemout"),
                            HasSubstr("timeout, connect_timeout, peer_timeout, warn_after, "
                                      "transport, host, address, streams, wire_bf16"))));
}

TEST(OptionsTest, ABadValueIsNamedWithWhatIsWanted) {
  const auto refused = [](const char* name, const char* value, const char* wanted) {
    EXPECT_THAT(ErrorOf([&] { With(name, value); }),
                IsError(Code::kInvalidArgument,
                        AllOf(HasSubstr(name), HasSubstr(value), HasSubstr(wanted))));
  };
  for (const char* value : {"-1", "0", "", "1s", "nan", "inf", "1e12", "0x10"}) {
    refused("timeout", value, "positive number of seconds");
  }
  for (const char* value : {"-1", "17", "1.5", "two"})
    refused("streams", value, "0 (chosen by the engine) to 16");
  refused("transport", "rdma", "auto or tcp");
  refused("wire_bf16", "yes", "true or false");
}

TEST(OptionsTest, ComeFromTheEnvironment) {
  ::setenv("ORCA_PEER_TIMEOUT", "3.5", 1);
  ::setenv("ORCA_STREAMS", "3", 1);
  const CommOptions options = OptionsFromEnvironment();
  EXPECT_EQ(options.peer_timeout, milliseconds(3500));
  EXPECT_EQ(options.streams, 3);
  EXPECT_EQ(options.timeout, CommOptions().timeout);
  ::setenv("ORCA_STREAMS", "many", 1);
  EXPECT_THAT(ErrorOf([] { OptionsFromEnvironment(); }),
              IsError(Code::kInvalidArgument, AllOf(HasSubstr("ORCA_STREAMS"), HasSubstr("many"))));
  ::unsetenv("ORCA_PEER_TIMEOUT");
  ::unsetenv("ORCA_STREAMS");
}

}  // namespace
}  // namespace orca::comm
