// Checks of what a call throws.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "orca/core/error.h"

namespace orca {

/// Runs `call`, which must throw an Error, and returns it.
template <typename Call>
Error ErrorOf(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    return error;
  }
  return Error(Code::kInternal, "(nothing was thrown)");
}

/// EXPECT_THAT(ErrorOf([&] { ... }), IsError(Code::kTimeout, HasSubstr("key")));
MATCHER_P2(IsError, code, message, "") {
  *result_listener << CodeName(arg.code()) << ": " << arg.what();
  return arg.code() == code && ::testing::Matches(message)(std::string(arg.what()));
}

}  // namespace orca
