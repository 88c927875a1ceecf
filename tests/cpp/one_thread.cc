// Linked into the tests that the thread sanitizer is not asked about: they must not start a thread.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* /*thread*/, const pthread_attr_t* /*attributes*/, void* (* /*start*/)(void*),
    void* /*argument*/) noexcept {
  std::fputs("a thread is started: take this test out of ORCA_ONE_THREAD_TESTS\n", stderr);
  std::abort();
}
