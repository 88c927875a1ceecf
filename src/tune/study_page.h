// The page of StudyPage().
#pragma once

#include <string_view>

namespace orca::tune {

/// HTML with "@DATA@" where the study's JSON goes.
extern const std::string_view kStudyPage;

}  // namespace orca::tune
