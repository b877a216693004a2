/*
 * The memory that cuCtxSetLimit takes: the device's heap for malloc, its buffer for printf, its threads' stacks.
 *
 * The driver's values before the first setting are part of any context. Beyond that a heap and a buffer take at most
 * the requested size, and stacks that size for every thread that the card can have at a time. The driver does not
 * report the memory of the other settings, so it is measured.
 */
#include "settings.h"
#include "cards.h"
#include "contexts.h"
#include "driver.h"
#include "ledger.h"
#include "memory.h"

#define TRIES 3 /* a setting is measured at most so often */

static struct lock settings;

void settings_forget(void) { settings = (struct lock){0}; }

static uint64_t setting(int limit)
{
    size_t value = 0;
    ASK((size_t *, int), cuCtxGetLimit, &value, limit);
    return value;
}

static uint64_t threads_of(const struct card *card)
{
    int processors = 0, each = 0;
    ASK((int *, int, CUdevice), cuDeviceGetAttribute, &processors, CU_DEVICE_PROCESSORS, card->device);
    ASK((int *, int, CUdevice), cuDeviceGetAttribute, &each, CU_DEVICE_THREADS_EACH, card->device);
    return (uint64_t)processors * (uint64_t)each;
}

/* The memory of a setting beyond that of any context. */
static uint64_t cost(const struct card *card, int limit, uint64_t value, uint64_t included)
{
    uint64_t beyond = value > included ? value - included : 0, bytes;
    if (__builtin_mul_overflow(beyond, limit == CU_LIMIT_STACK_SIZE ? threads_of(card) : 1, &bytes)) return UINT64_MAX / 4;
    return whole_granules(bytes);
}

/* The entry of a setting, with the part that its context has anyway. The lock is held. */
static struct entry entry_of(const struct card *card, int limit)
{
    uint64_t context = contexts_now();
    struct entry entry = {.key = context ^ (uint64_t)limit << 56, .context = context, .card = card->index,
                          .kind = KIND_SETTING};
    if (ledger_find(KIND_SETTING, entry.key, &entry)) return entry;
    entry.other = setting(limit);
    ledger_put(entry);
    return entry;
}

/*
 * An increase is counted before the driver's call, a decrease after it. The driver may wait for the device, and so
 * for other threads: it is called without the lock, and their settings meanwhile are settled after it.
 */
static CUresult set_known(struct card *card, int limit, size_t value)
{
    lock_take(&settings, LOCK_SETTINGS);
    struct entry entry = entry_of(card, limit);
    uint64_t bytes = cost(card, limit, value, entry.other), more = bytes > entry.bytes ? bytes - entry.bytes : 0;
    bool good = more == 0 || memory_reserve(card, more);
    lock_give(&settings, LOCK_SETTINGS);
    if (!good) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL(cuCtxSetLimit, limit, value);
    lock_take(&settings, LOCK_SETTINGS);
    entry = entry_of(card, limit);
    /* The driver may have made it larger or smaller than requested. */
    bytes = result == CUDA_SUCCESS ? cost(card, limit, setting(limit), entry.other) : entry.bytes;
    if (bytes > entry.bytes + more) memory_force(card, bytes - entry.bytes - more);
    else memory_return(card, entry.bytes + more - bytes);
    entry.bytes = bytes;
    ledger_put(entry);
    lock_give(&settings, LOCK_SETTINGS);
    return result;
}

/* Counts a measurement; without one, releases the setting's bytes. False: past the cap. */
static bool charge(struct card *card, int limit, size_t value, uint64_t bytes, bool force)
{
    lock_take(&settings, LOCK_SETTINGS);
    struct entry entry = entry_of(card, limit);
    bool less = value <= entry.other, good = less || memory_reserve(card, bytes);
    if (!good && force) memory_force(card, bytes);
    if (less) memory_return(card, entry.bytes);
    if (good || force) entry.bytes = less ? 0 : entry.bytes + bytes;
    ledger_put(entry);
    lock_give(&settings, LOCK_SETTINGS);
    return good || force;
}

/* The least of several falls of free memory counts, as neighbours may take some meanwhile. */
static CUresult set_measured(struct card *card, int limit, size_t value)
{
    uint64_t least = UINT64_MAX;
    lock_take(&settings, LOCK_SETTINGS);
    entry_of(card, limit);
    lock_give(&settings, LOCK_SETTINGS);
    for (int i = 1;; i++) {
        uint64_t old = setting(limit), before = memory_free(card);
        CUresult result = CALL(cuCtxSetLimit, limit, value);
        if (result != CUDA_SUCCESS) return result;
        uint64_t after = memory_free(card), fall = after < before ? before - after : 0;
        least = fall < least ? fall : least;
        bool sure = least <= MEASURED_MUCH || i == TRIES;
        if (sure && charge(card, limit, value, least, false)) return result;
        bool undone = CALL(cuCtxSetLimit, limit, old) == CUDA_SUCCESS;
        if (!undone && charge(card, limit, value, least, true)) return result;
        if (i == TRIES) return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    bool known = limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE;
    bool measured = limit == CU_LIMIT_SYNC_DEPTH || limit == CU_LIMIT_PENDING_LAUNCHES || limit == CU_LIMIT_BLOCK_MEMORY;
    struct card *card = known || measured ? card_current() : NULL;
    if (!card) return CALL(cuCtxSetLimit, limit, value);
    CUresult result = known ? set_known(card, limit, value) : set_measured(card, limit, value);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) memory_count_refusal(card);
    return result;
}
