# Settings and small functions that every target of the project shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")

find_program(ORCA_CCACHE ccache)
if(ORCA_CCACHE)
  # Without these it does not cache what uses precompiled headers. No source has __TIME__ and its like.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${ORCA_CCACHE})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

set(ORCA_SANITIZE "" CACHE STRING "Sanitizers for everything, as -fsanitize takes them")
if(ORCA_SANITIZE)
  add_compile_options(-fsanitize=${ORCA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ORCA_SANITIZE})
endif()

# Warnings are errors in the project's own code.
function(orca_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
    -Wno-missing-field-initializers -Werror
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)  # GCC 12 raises it for std::string's own operator+
endfunction()

# A compiler may link its own C++ library into ours. Then those symbols stay inside: a process with two such libraries
# that see each other mixes their halves.
function(orca_hide_static_libraries target)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)
endfunction()
