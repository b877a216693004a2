#include "driver.h"
#include "symbols.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

struct row {
    const char *name, *base;
    int since, per_thread;
    const char *soname;
    void *ours;
};

#define SONAME_CUDA CUDA_SONAME
#define SONAME_NVML NVML_SONAME
#define HOOK_ROW(name, base, since, per_thread, library)                                                 \
    {#name, base, since, per_thread, SONAME_##library, (void *)name},
static const struct row rows[HOOK_COUNT] = {HOOKS(HOOK_ROW)};

static void *_Atomic found_rows[HOOK_COUNT];
static char absent; /* marks a function that the driver does not have */

/*
 * Found functions are kept, and the watch calls them at any time. So a driver stays loaded, even if the program closes
 * it: opened again it would be at another address.
 */
static void stay(const char *soname)
{
    static _Atomic bool stays[2];
    _Atomic bool *known = &stays[strcmp(soname, CUDA_SONAME) == 0];
    if (atomic_load(known)) return;
    __typeof__(&dlopen) open = (__typeof__(open))symbols_of_libc("dlopen");
    if (open && open(soname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE)) atomic_store(known, true);
}

static void *function_of(void *_Atomic *slot, const char *soname, const char *name)
{
    void *found = atomic_load_explicit(slot, memory_order_acquire);
    if (!found) {
        found = symbols_of(soname, name);
        if (found) stay(soname);
        if (found || symbols_of(soname, "cuInit") || symbols_of(soname, "nvmlDeviceGetUUID"))
            atomic_store_explicit(slot, found ? found : &absent, memory_order_release);
    }
    return found == &absent ? NULL : found;
}

static _Atomic bool left;

void driver_leave(void) { atomic_store(&left, true); }

void *driver_function(void *_Atomic *slot, const char *soname, const char *name)
{
    return atomic_load_explicit(&left, memory_order_relaxed) ? NULL : function_of(slot, soname, name);
}

void *driver_hooked(enum hook hook)
{
    return function_of(&found_rows[hook], rows[hook].soname, rows[hook].name);
}

int driver_step_aside(void)
{
    int mode = CU_CAPTURE_RELAXED;
    return ASK((int *), cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : -1;
}

void driver_step_back(int mode)
{
    if (mode >= 0) ASK((int *), cuThreadExchangeStreamCaptureMode, &mode);
}

void *driver_standin(const char *name, void *found)
{
    for (int i = 0; i < HOOK_COUNT; i++)
        if (strcmp(rows[i].name, name) == 0)
            return symbols_is_from(rows[i].soname, found) ? rows[i].ours : found;
    return found;
}

/* Is `found` a variant of `base` that the table does not know? Its signature may differ, so it passes unhooked. */
static bool is_unknown_variant(const char *base, const void *found)
{
    static const char *const endings[] = {"", "_ptsz", "_ptds"};
    char name[96];
    size_t length = strlen(base);
    if (length + 10 > sizeof name) return true;
    memcpy(name, base, length);
    for (char version = '2'; version <= '9'; version++) {
        for (int i = 0; i < 3; i++) {
            name[length] = '_', name[length + 1] = 'v', name[length + 2] = version;
            strcpy(name + length + 3, endings[i]);
            if (symbols_of(CUDA_SONAME, name) == found) return true;
        }
    }
    return false;
}

void *driver_standin_versioned(const char *base, int version, int per_thread, void *found)
{
    int best = -1;
    /* The driver's answer counts, under any name: with cuda.h of CUDA 12 cuGraphInstantiate is another function. */
    for (int i = 0; i < HOOK_COUNT; i++)
        if (*rows[i].base && driver_hooked((enum hook)i) == found) return rows[i].ours;
    for (int i = 0; i < HOOK_COUNT; i++) {
        if (strcmp(rows[i].base, base) != 0) continue;
        /* Without a per-thread row, the plain one serves both; an older driver returns the newest that it has. */
        if (rows[i].per_thread > per_thread || rows[i].since > version || !driver_hooked((enum hook)i)) continue;
        if (best < 0 || rows[i].per_thread > rows[best].per_thread ||
            (rows[i].per_thread == rows[best].per_thread && rows[i].since > rows[best].since))
            best = i;
    }
    if (best < 0 || is_unknown_variant(base, found)) return found;
    return rows[best].ours;
}
