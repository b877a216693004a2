/* Every function that the library replaces, without effect: a driver for tests of the lookup alone. */
#include "../src/hooks.h"

#define STUB(name, base, since, per_thread, library)                                                     \
    __attribute__((weak)) int stub_##name(void) __asm__(#name);                                          \
    int stub_##name(void) { return __COUNTER__; }
HOOKS(STUB)
