/* The driver's start, contexts and modules: what they cost in memory, and what ends with them. */
#include "memory.h"
#include "driver.h"
#include <stdatomic.h>
#include <stdlib.h>

#define HEAP_INCLUDED (8ull << 20)  /* device heap that a context has anyway */
#define MODULE_MUCH (256ull << 20)  /* a load that took more than this is measured again: it may be a neighbour's */
#define MODULE_LOADS 3              /* so often at most */

static void at_end(void)
{
    struct container *all = container_get();
    watch_stop();
    for (uint32_t i = 0; all && i < all->limits.count; i++) gate_shut(&all->cards[i].gate);
    if (all && all->place) place_leave(all->place, &all->self);
}

/* Every device that the driver shows must have limits; one without would be free of any. */
static bool all_are_limited(void)
{
    int count = 0;
    ASK((int *), cuDeviceGetCount, &count);
    for (int i = 0; i < count; i++)
        if (!card_of(i)) return false;
    return true;
}

EXPORT CUresult cuInit(unsigned flags)
{
    static _Atomic bool registered;
    if (!container_get()) return CUDA_ERROR_NOT_PERMITTED;
    CUresult result = CALL(cuInit, flags);
    if (result != CUDA_SUCCESS) return result;
    if (!container_join()) return CUDA_ERROR_NOT_PERMITTED;
    if (!all_are_limited()) {
        container_complain("limits", "a device that the driver shows is not named", 0);
        atomic_store(&container_get()->place->state, PLACE_FAULT);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    /* Registered after the driver's own, so it runs before them. */
    if (!atomic_exchange(&registered, true)) atexit(at_end);
    return result;
}

static _Atomic uint64_t *allowance(struct card *card)
{
    return &container_get()->place->cards[card->index].allowance;
}

/* Counts a context until the agent has measured what it really costs. */
static bool admit(struct card *card)
{
    struct container *all = container_get();
    uint64_t most = card->limits->memory;
    atomic_fetch_add(allowance(card), card->limits->context);
    if (most == 0 || memory_used(all->account, card->index, &all->self, clock_now()) <= most) return true;
    memory_give(allowance(card), card->limits->context);
    memory_count_refusal(card);
    return false;
}

static CUresult made(struct card *card, CUcontext *context, CUresult result)
{
    if (!card) return result;
    struct entry entry = {.key = result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*context : 0,
                          .bytes = card->limits->context, .card = card->index, .kind = KIND_CONTEXT};
    entry.context = entry.key;
    if (result != CUDA_SUCCESS || !ledger_put(entry)) memory_give(allowance(card), card->limits->context);
    return result;
}

#define CREATES(name, args, ...)                                                                         \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct card *card = context ? card_of(device) : NULL;                                            \
        if (card && !admit(card)) return CUDA_ERROR_OUT_OF_MEMORY;                                       \
        return made(card, context, CALL(name, __VA_ARGS__));                                             \
    }

CREATES(cuCtxCreate, (CUcontext *context, unsigned flags, CUdevice device), context, flags, device)
CREATES(cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device), context, flags, device)
CREATES(cuCtxCreate_v3, (CUcontext *context, void *params, int count, unsigned flags, CUdevice device), context,
        params, count, flags, device)
CREATES(cuCtxCreate_v4, (CUcontext *context, void *params, unsigned flags, CUdevice device), context, params, flags,
        device)

/* What was allocated in a context goes with it. */
static void ended(CUcontext context)
{
    struct entry entry;
    while (ledger_take_of((uint64_t)(uintptr_t)context, &entry)) memory_release(&entry);
}

static void forget_gates(CUcontext context)
{
    struct container *all = container_get();
    for (uint32_t i = 0; all && i < all->limits.count; i++) gate_forget(&all->cards[i].gate, context, NULL, true);
}

#define DESTROYS(name)                                                                                   \
    EXPORT CUresult name(CUcontext context)                                                              \
    {                                                                                                    \
        forget_gates(context);                                                                           \
        CUresult result = CALL(name, context);                                                           \
        if (result == CUDA_SUCCESS) ended(context);                                                      \
        return result;                                                                                   \
    }

DESTROYS(cuCtxDestroy)
DESTROYS(cuCtxDestroy_v2)

/* The primary context of a device is one, however often it is retained. */
static struct lock primary;

void contexts_forget(void) { primary = (struct lock){0}; }

static CUresult retain(CUcontext *context, CUdevice device)
{
    struct entry entry;
    struct card *card = context ? card_of(device) : NULL;
    uint64_t key = (uint64_t)(unsigned)device | 1ull << 63; /* by device: its address is known only after */
    if (!card) return CALL(cuDevicePrimaryCtxRetain, context, device);
    bool known = ledger_find(KIND_CONTEXT, key, &entry);
    if (!known && !admit(card)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL(cuDevicePrimaryCtxRetain, context, device);
    if (known && result == CUDA_SUCCESS) entry.other++;
    else if (!known && result == CUDA_SUCCESS)
        entry = (struct entry){.key = key, .bytes = card->limits->context, .other = 1, .card = card->index,
                               .context = (uint64_t)(uintptr_t)*context, .kind = KIND_CONTEXT};
    if (result == CUDA_SUCCESS) ledger_put(entry);
    else if (!known) memory_give(allowance(card), card->limits->context);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    lock_take(&primary);
    CUresult result = retain(context, device);
    lock_give(&primary);
    return result;
}

/* After one release, or a reset that ends all. */
static void let_go(CUdevice device, bool reset)
{
    struct entry entry;
    uint64_t key = (uint64_t)(unsigned)device | 1ull << 63;
    if (!ledger_find(KIND_CONTEXT, key, &entry)) return;
    if (!reset && --entry.other > 0) {
        ledger_put(entry);
        return;
    }
    ended((CUcontext)(uintptr_t)entry.context);
}

/* Its events must be let go while the context still stands. */
static void before_end(CUdevice device, bool reset)
{
    struct entry entry;
    if (!ledger_find(KIND_CONTEXT, (uint64_t)(unsigned)device | 1ull << 63, &entry)) return;
    if (reset || entry.other == 1) forget_gates((CUcontext)(uintptr_t)entry.context);
}

#define ENDS_PRIMARY(name, reset)                                                                        \
    EXPORT CUresult name(CUdevice device)                                                                \
    {                                                                                                    \
        lock_take(&primary);                                                                             \
        before_end(device, reset);                                                                       \
        CUresult result = CALL(name, device);                                                            \
        if (result == CUDA_SUCCESS) let_go(device, reset);                                               \
        lock_give(&primary);                                                                             \
        return result;                                                                                   \
    }

ENDS_PRIMARY(cuDevicePrimaryCtxRelease, false)
ENDS_PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
ENDS_PRIMARY(cuDevicePrimaryCtxReset, true)
ENDS_PRIMARY(cuDevicePrimaryCtxReset_v2, true)

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    struct card *card = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? card_current() : NULL;
    struct entry old = {.bytes = 0};
    if (!card) return CALL(cuCtxSetLimit, limit, value);
    uint64_t key = context_now(), bytes = value > HEAP_INCLUDED ? whole_granules(value - HEAP_INCLUDED) : 0;
    ledger_find(KIND_HEAP, key, &old);
    if (bytes > old.bytes && !memory_reserve(card, bytes - old.bytes)) {
        memory_count_refusal(card);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CALL(cuCtxSetLimit, limit, value);
    if (result == CUDA_SUCCESS) {
        if (bytes < old.bytes) memory_return(card, old.bytes - bytes);
        ledger_put((struct entry){.key = key, .bytes = bytes, .context = key, .card = card->index, .kind = KIND_HEAP});
    } else if (bytes > old.bytes) {
        memory_return(card, bytes - old.bytes);
    }
    return result;
}

static void end_primary(CUdevice device)
{
    lock_take(&primary);
    before_end(device, false);
    if (CALL(cuDevicePrimaryCtxRelease_v2, device) == CUDA_SUCCESS) let_go(device, false);
    lock_give(&primary);
}

/*
 * A green context is a part of the primary one, which it keeps alive: that is what is counted. What is allocated in it
 * is the primary's as well, and outlives it.
 */
EXPORT CUresult cuGreenCtxCreate(CUgreen *green, void *resources, CUdevice device, unsigned flags)
{
    CUcontext context;
    if (!green || !card_of(device)) return CALL(cuGreenCtxCreate, green, resources, device, flags);
    lock_take(&primary);
    CUresult result = retain(&context, device);
    lock_give(&primary);
    if (result != CUDA_SUCCESS) return result;
    result = CALL(cuGreenCtxCreate, green, resources, device, flags);
    struct entry entry = {.other = (uint64_t)(unsigned)device, .kind = KIND_GREEN};
    if (result == CUDA_SUCCESS) {
        entry.key = (uint64_t)(uintptr_t)*green;
        if (ledger_put(entry)) return result;
        CALL(cuGreenCtxDestroy, *green);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    end_primary(device);
    return result;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreen green)
{
    struct entry entry;
    CUcontext context = NULL;
    bool known = ledger_take(KIND_GREEN, (uint64_t)(uintptr_t)green, &entry);
    /* Its events must be let go while it still stands. */
    if (known && ASK((CUcontext *, CUgreen), cuCtxFromGreenCtx, &context, green) == CUDA_SUCCESS) forget_gates(context);
    CUresult result = CALL(cuGreenCtxDestroy, green);
    if (known && result == CUDA_SUCCESS) end_primary((CUdevice)entry.other);
    else if (known) ledger_put(entry);
    return result;
}

/* Device memory that a load took: the fall of free memory while it ran. */
static uint64_t free_memory(struct card *card)
{
    size_t free = 0, total;
    if (card) CALL(cuMemGetInfo_v2, &free, &total);
    return free;
}

static uint64_t fall_since(struct card *card, uint64_t before)
{
    uint64_t after = free_memory(card);
    return card && after < before ? before - after : 0;
}

/* Counts what a load took; false: past the cap. */
static bool charge_load(struct card *card, enum kind kind, void *key, uint64_t bytes)
{
    struct entry entry = {.key = (uint64_t)(uintptr_t)key, .bytes = bytes, .context = context_now(),
                          .card = card ? card->index : 0, .kind = (uint32_t)kind};
    if (bytes == 0) return true;
    if (!memory_reserve(card, bytes)) return false;
    if (ledger_put(entry)) return true;
    memory_return(card, bytes);
    return false;
}

/*
 * What neighbours take meanwhile falls into the same figure. So before a load is refused, or much is counted for it, it
 * is made again, and the least of the falls counts: no load takes less than it needs.
 */
#define LOADS(name, kind, type, unload, args, ...)                                                       \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct card *card = loaded ? card_current() : NULL;                                              \
        uint64_t least = UINT64_MAX;                                                                     \
        for (int i = 1;; i++) {                                                                          \
            uint64_t before = free_memory(card);                                                         \
            CUresult result = CALL(name, __VA_ARGS__);                                                   \
            if (result != CUDA_SUCCESS) return result;                                                   \
            uint64_t fall = fall_since(card, before);                                                    \
            least = fall < least ? fall : least;                                                         \
            if ((least <= MODULE_MUCH || i == MODULE_LOADS) && charge_load(card, kind, *loaded, least))  \
                return result;                                                                           \
            CALL(unload, *loaded);                                                                       \
            *loaded = (type)NULL;                                                                        \
            if (i == MODULE_LOADS) break;                                                                \
        }                                                                                                \
        memory_count_refusal(card);                                                                      \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                 \
    }

LOADS(cuModuleLoad, KIND_MODULE, CUmodule, cuModuleUnload, (CUmodule *loaded, const char *path), loaded, path)
LOADS(cuModuleLoadData, KIND_MODULE, CUmodule, cuModuleUnload, (CUmodule *loaded, const void *image), loaded, image)
LOADS(cuModuleLoadFatBinary, KIND_MODULE, CUmodule, cuModuleUnload, (CUmodule *loaded, const void *image), loaded,
      image)
LOADS(cuModuleLoadDataEx, KIND_MODULE, CUmodule, cuModuleUnload,
      (CUmodule *loaded, const void *image, unsigned count, void *options, void **values), loaded, image, count,
      options, values)
LOADS(cuLibraryLoadData, KIND_LIBRARY, CUlibrary, cuLibraryUnload,
      (CUlibrary *loaded, const void *code, void *jit, void **jit_values, unsigned jit_count, void *options,
       void **values, unsigned count),
      loaded, code, jit, jit_values, jit_count, options, values, count)
LOADS(cuLibraryLoadFromFile, KIND_LIBRARY, CUlibrary, cuLibraryUnload,
      (CUlibrary *loaded, const char *path, void *jit, void **jit_values, unsigned jit_count, void *options,
       void **values, unsigned count),
      loaded, path, jit, jit_values, jit_count, options, values, count)

EXPORT CUresult cuModuleUnload(CUmodule module) { ENDED(cuModuleUnload, KIND_MODULE, module); }

EXPORT CUresult cuLibraryUnload(CUlibrary library) { ENDED(cuLibraryUnload, KIND_LIBRARY, library); }
