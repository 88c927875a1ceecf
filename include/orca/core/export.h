#pragma once

// liborca.so hides everything that is not marked.
#define ORCA_API __attribute__((visibility("default")))
