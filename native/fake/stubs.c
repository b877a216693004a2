/* Every function that the library stands in for, doing nothing: for a driver of which only the lookup is looked at. */
#include "../src/hooks.h"

#define STUB(name, base, since, per_thread, library)                                                     \
    __attribute__((weak)) int stub_##name(void) __asm__(#name);                                          \
    int stub_##name(void) { return __COUNTER__; }
HOOKS(STUB)
