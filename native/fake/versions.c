/*
 * A driver for tests of cuGetProcAddress alone. It gives the newest meaning of a name that both the asked version and its
 * own know; with FAKE_INNER=1 at addresses that it exports under no name.
 */
#include "../src/hooks.h"
#include <stdlib.h>
#include <string.h>

#define STUB(name, base, since, per_thread, library)                                                     \
    int stub_##name(void) __asm__(#name);                                                                \
    static int inner_##name(void) { return 1000 + __COUNTER__; }
HOOKS(STUB)
#define ROW(name, base, since, per_thread, library) {base, since, per_thread, (void *)stub_##name, (void *)inner_##name},
static const struct { const char *base; int since, per_thread; void *exported, *inner; } rows[] = {HOOKS(ROW)};

CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status)
{
    const char *own = getenv("FAKE_VERSION"), *inner = getenv("FAKE_INNER");
    int best = -1, newest = own ? atoi(own) : 99999, per_thread = (flags & CU_PROC_PER_THREAD_STREAM) != 0;
    (void)status;
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        if (strcmp(rows[i].base, symbol) != 0 || rows[i].since > version || rows[i].since > newest) continue;
        if (rows[i].per_thread > per_thread) continue;
        if (best < 0 || rows[i].per_thread > rows[best].per_thread ||
            (rows[i].per_thread == rows[best].per_thread && rows[i].since > rows[best].since))
            best = i;
    }
    *address = best < 0 ? NULL : inner ? rows[best].inner : rows[best].exported;
    return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
