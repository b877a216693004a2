/* Stream-ordered allocation: a pool is counted by its real memory, by the driver's figure. */
#include "pools.h"
#include "batch.h"
#include "cards.h"
#include "contexts.h"
#include "driver.h"
#include "graphs.h"
#include "kernel.h"
#include "ledger.h"
#include "memory.h"
#include "physical.h"
#include "watch.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define DOOMED 1 /* entry.other of a pool that the program destroyed; above it: time since which none of it is in use */
#define UNUSED_NS 3000000000ull /* a pool without use may keep memory this long */

#define NOWHERE CARDS /* entry.card of a pool of the host's memory */

#define FREED_FEW 64
#define FREED_LOOK_NS 100000000ull /* the watch looks so often while there are any: other processes see their count */
#define FREED_NS 10000000000ull /* an allocation at the cap waits this long for frees that streams have not reached */
#define CALLS_NS 1000000000ull  /* and one from a pool this long for other calls, to use what the pool has left */

static struct lock pools;
static uint64_t held[CARDS];  /* counted for calls in progress that may grow a pool */
static uint32_t calls[CARDS]; /* those calls */
static _Atomic uint32_t freed; /* frees that are not known to be over */
static _Atomic uint32_t looked = FREED_FEW; /* so many of them bring a look */

void pools_forget(void)
{
    pools = (struct lock){0};
    memset(held, 0, sizeof held);
    memset(calls, 0, sizeof calls);
    atomic_store(&freed, 0);
}

/*
 * The count of a pool that has `reserved` now. While calls are in progress, it may not fall below what was counted for
 * them: both sums are more than the pool can have after the calls. The lock is held.
 */
static uint64_t pool_bound(const struct card *card, uint64_t key, uint64_t reserved)
{
    struct entry entry = {.bytes = 0};
    ledger_find(KIND_POOL, key, &entry);
    uint64_t later = reserved + held[card->index], before = entry.bytes > reserved ? entry.bytes : reserved;
    return later < before ? later : before;
}

static bool ask_pool(CUpool pool, int attribute, uint64_t *value)
{
    int mode = atomic_load(&captures) ? driver_step_aside() : -1;
    *value = 0;
    bool good = ASK((CUpool, int, void *), cuMemPoolGetAttribute, pool, attribute, value) == CUDA_SUCCESS;
    driver_step_back(mode);
    return good;
}

/*
 * A pool that its program destroyed keeps its memory until the last allocation of it is freed, and the driver does not
 * report this amount for a destroyed pool. So the library destroys it in the driver when it is empty. Unused memory
 * in it is of frees that are pending or unprocessed. Other memory that the driver may keep for a pool
 * ends with it, so after a time it is destroyed nevertheless. The lock is held.
 */
static bool bury(const struct entry *entry)
{
    CUpool pool = (CUpool)(uintptr_t)entry->key;
    struct entry gone;
    uint64_t bytes, used, now = clock_now();
    CALL(cuMemPoolTrimTo, pool, 0);
    if (!ask_pool(pool, CU_POOL_RESERVED_CURRENT, &bytes) || !ask_pool(pool, CU_POOL_USED_CURRENT, &used)) return false;
    if (used > 0) return false;
    if (bytes > 0 && entry->other == DOOMED) {
        struct entry idle = *entry;
        idle.other = now;
        ledger_put(idle);
        return false;
    }
    if (bytes > 0 && now - entry->other < UNUSED_NS) return false;
    if (!ledger_take(KIND_POOL, entry->key, &gone)) return false;
    bool good = CALL(cuMemPoolDestroy, pool) == CUDA_SUCCESS;
    if (good) memory_release(&gone);
    else ledger_put(gone);
    return good;
}

/*
 * Other memory freed in stream order is in use until its stream reaches the free, so it counts until then. An event
 * shows it: entry.key. entry.bytes is the address of the entry that the memory had before.
 */
static bool end_freed(struct entry *entry, bool *all)
{
    CUcontext popped;
    CUevent event = (CUevent)(uintptr_t)entry->key;
    bool within = ASK((CUcontext), cuCtxPushCurrent_v2, (CUcontext)(uintptr_t)entry->context) == CUDA_SUCCESS;
    bool over = !within || ASK((CUevent), cuEventQuery, event) != CUDA_ERROR_NOT_READY;
    bool taken = over && ledger_take(KIND_FREED, entry->key, entry);
    /* After its entry: the driver may give the handle to another free before this call returns. */
    if (taken && within) ASK((CUevent), cuEventDestroy_v2, event);
    if (within) ASK((CUcontext *), cuCtxPopCurrent_v2, &popped);
    if (taken) memory_release(entry);
    *all = *all && over;
    return taken;
}

/* The lock is held. False: frees of the card are left that their streams have not reached. */
static bool release_freed(struct card *card)
{
    struct entry entry;
    bool all = true;
    for (uint32_t i = 0; ledger_nth(KIND_FREED, i, &entry); i++)
        if (entry.card == card->index && end_freed(&entry, &all)) i--; /* the next one is in its place */
    return all;
}

static void look_at_freed(void)
{
    struct container *all = container_get();
    int mode = driver_step_aside();
    lock_take(&pools, LOCK_POOLS);
    for (uint32_t i = 0; all && i < all->limits.count; i++) release_freed(&all->cards[i]);
    uint32_t left = atomic_load(&freed);
    atomic_store(&looked, left > FREED_FEW / 2 ? 2 * left : FREED_FEW);
    lock_give(&pools, LOCK_POOLS);
    driver_step_back(mode);
}

uint64_t pools_watch(void)
{
    if (atomic_load(&freed)) look_at_freed();
    return atomic_load(&freed) ? FREED_LOOK_NS : 0;
}

void pools_freed(struct entry *was)
{
    memory_release(was);
    free(was);
    atomic_fetch_sub(&freed, 1);
}

bool pools_await_freed(struct card *card)
{
    struct timespec pause = {0, 200000};
    struct entry entry;
    bool any = false, all = false;
    for (uint32_t i = 0; !any && ledger_nth(KIND_FREED, i, &entry); i++) any = entry.card == card->index;
    int mode = any ? driver_step_aside() : -1;
    for (uint64_t begun = clock_now(); any && !all && clock_now() - begun < FREED_NS;) {
        lock_take(&pools, LOCK_POOLS);
        all = release_freed(card);
        lock_give(&pools, LOCK_POOLS);
        if (!all) kernel_sleep(&pause);
    }
    driver_step_back(mode);
    return any;
}

uint32_t pools_take_of(uint64_t context, struct entry **found)
{
    lock_take(&pools, LOCK_POOLS); /* no event of the context is in use then */
    uint32_t count = ledger_take_of(context, found);
    lock_give(&pools, LOCK_POOLS);
    return count;
}

void pools_refresh(struct card *card, bool trim)
{
    struct entry entry;
    uint64_t bytes;
    int mode = driver_step_aside();
    lock_take(&pools, LOCK_POOLS);
    for (uint32_t i = 0; ledger_nth(KIND_POOL, i, &entry); i++) {
        CUpool pool = (CUpool)(uintptr_t)entry.key;
        if (entry.card != card->index) continue;
        if (entry.other && bury(&entry)) {
            i--; /* the next one is in its place */
            continue;
        }
        if (trim) CALL(cuMemPoolTrimTo, pool, 0);
        if (ask_pool(pool, CU_POOL_RESERVED_CURRENT, &bytes))
            memory_bring(card, KIND_POOL, entry.key, pool_bound(card, entry.key, bytes), true);
    }
    release_freed(card);
    lock_give(&pools, LOCK_POOLS);
    driver_step_back(mode);
    graphs_refresh(card, trim);
}

static bool is_captured(CUstream stream)
{
    int status = 0;
    if (atomic_load(&captures) == 0) return false;
    return ASK((CUstream, int *), cuStreamIsCapturing, stream, &status) == CUDA_SUCCESS && status == 1;
}

/* From here on the pool is counted, on this card. */
static void note(CUpool pool, uint32_t card)
{
    struct entry entry = {.key = (uint64_t)(uintptr_t)pool, .card = card, .kind = KIND_POOL};
    if (ledger_find(KIND_POOL, entry.key, &entry)) return;
    lock_take(&pools, LOCK_POOLS); /* another thread may have recorded it meanwhile, and counted its memory */
    if (!ledger_find(KIND_POOL, entry.key, &entry)) ledger_put(entry);
    lock_give(&pools, LOCK_POOLS);
}

/* Opens a call that may grow the pool by `grown`, which is counted. The lock is held. */
static void open_call(struct card *card, CUpool pool, uint64_t grown)
{
    struct entry entry;
    calls[card->index]++;
    if (!grown) return;
    held[card->index] += grown;
    if (ledger_find(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry)) {
        entry.bytes += grown;
        ledger_put(entry);
    } else {
        memory_return(card, grown); /* another thread destroyed it */
    }
}

/*
 * At the cap: only memory that the pool has left can serve the allocation. While no other call is in progress, no other
 * takes that memory. If the driver grows the pool nevertheless (that memory is in pieces, or of a free that another
 * stream has not reached), close_call releases the allocation before it returns. False: there is no room.
 */
static bool open_narrow(struct card *card, CUpool pool, uint64_t bytes, uint64_t *grown)
{
    struct timespec pause = {0, 50000};
    uint64_t reserved, used;
    for (uint64_t begun = clock_now();; kernel_sleep(&pause)) {
        lock_take(&pools, LOCK_POOLS);
        bool good = false, ready = calls[card->index] == 0 || clock_now() - begun > CALLS_NS;
        if (ready && ask_pool(pool, CU_POOL_RESERVED_CURRENT, &reserved) && ask_pool(pool, CU_POOL_USED_CURRENT, &used)) {
            uint64_t spare = reserved > used ? reserved - used : 0;
            *grown = bytes > spare ? whole_granules(bytes - spare) : 0;
            good = *grown == 0 || memory_room(card, *grown);
            if (good) open_call(card, pool, *grown);
        }
        lock_give(&pools, LOCK_POOLS);
        if (ready) return good;
    }
}

/*
 * Counts the most that the pool grows by, before the driver grows it. A driver that does not answer has an error to return
 * (a kernel's fault); if it allocates after all, close_call releases that.
 */
static bool prepare(struct card *card, CUpool pool, uint64_t bytes, uint64_t *grown)
{
    uint64_t reserved;
    *grown = 0;
    if (ask_pool(pool, CU_POOL_RESERVED_CURRENT, &reserved)) {
        note(pool, card->index);
        *grown = whole_granules(bytes);
        if (!memory_room(card, *grown)) {
            pools_refresh(card, false);
            if (open_narrow(card, pool, bytes, grown)) return true;
            *grown = whole_granules(bytes);
            if (!memory_reserve(card, *grown)) return false; /* trims pools, and waits for what was freed */
        }
    }
    lock_take(&pools, LOCK_POOLS);
    open_call(card, pool, *grown);
    lock_give(&pools, LOCK_POOLS);
    return true;
}

static CUresult close_call(struct card *card, CUpool pool, uint64_t grown, CUdeviceptr *pointer, CUstream stream,
                           CUresult result)
{
    uint64_t reserved, key = (uint64_t)(uintptr_t)pool;
    lock_take(&pools, LOCK_POOLS);
    held[card->index] -= grown;
    calls[card->index]--;
    bool good = ask_pool(pool, CU_POOL_RESERVED_CURRENT, &reserved) &&
                memory_bring(card, KIND_POOL, key, pool_bound(card, key, reserved), false);
    lock_give(&pools, LOCK_POOLS);
    if (good || result != CUDA_SUCCESS) return result;
    /* The pool grew by more than requested, and past the cap: release, then return the driver's error. */
    int mode = driver_step_aside();
    CALL(cuMemFreeAsync, *pointer, stream);
    CALL(cuStreamSynchronize, stream);
    driver_step_back(mode);
    pools_refresh(card, true);
    *pointer = 0;
    memory_count_refusal(card);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Opens an allocation from `pool`; false: refused. `captured`: it becomes part of a graph. */
static bool admit_allocation(struct card *card, CUpool pool, uint64_t bytes, bool captured, uint64_t *grown)
{
    *grown = 0;
    if (captured) return graphs_may_add(card, bytes);
    if (prepare(card, pool, bytes, grown)) return true;
    memory_count_refusal(card);
    return false;
}

/* The card of a stream, and the pool for allocations on it. */
static struct card *card_and_pool(CUpool *pool, CUstream stream)
{
    struct card *card = card_of_stream(stream);
    if (card && ASK((CUpool *, CUdevice), cuDeviceGetMemPool, pool, card->device) != CUDA_SUCCESS) return NULL;
    return card;
}

/* The card of a pool that the program did not create: a device's own or current one, or by a query of newer drivers. */
static struct card *find_pool(CUpool pool)
{
    CUlocation location;
    CUpool own = NULL, now = NULL;
    int devices = 0;
    int mode = driver_step_aside();
    bool told = ASK((CUpool, int, void *), cuMemPoolGetAttribute, pool, CU_POOL_LOCATION_TYPE, &location.type) == CUDA_SUCCESS &&
                ASK((CUpool, int, void *), cuMemPoolGetAttribute, pool, CU_POOL_LOCATION_ID, &location.id) == CUDA_SUCCESS;
    driver_step_back(mode);
    if (told) return location.type == CU_LOCATION_NONE ? card_current() : card_at(&location);
    ASK((int *), cuDeviceGetCount, &devices);
    for (CUdevice i = 0; i < devices; i++) {
        ASK((CUpool *, CUdevice), cuDeviceGetDefaultMemPool, &own, i);
        ASK((CUpool *, CUdevice), cuDeviceGetMemPool, &now, i);
        if (pool == own || pool == now) return card_of(i);
    }
    return card_current();
}

static struct card *card_of_pool(CUpool pool)
{
    struct container *all = container_get();
    struct entry entry;
    if (!all || !container_join()) return NULL;
    if (ledger_find(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry))
        return entry.card == NOWHERE ? NULL : &all->cards[entry.card];
    return find_pool(pool);
}

/* `own`: the meaning of the null stream in these functions, for the library's own calls. */
#define STREAM_ORDERED(name, own)                                                                        \
    EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUstream stream)                            \
    {                                                                                                    \
        CUpool pool = NULL;                                                                              \
        CUstream used = stream ? stream : own;                                                           \
        struct card *card = pointer && bytes ? card_and_pool(&pool, used) : NULL;                        \
        bool captured = card && is_captured(used);                                                       \
        uint64_t grown;                                                                                  \
        if (!card) return CALL(name, pointer, bytes, stream);                                            \
        if (!admit_allocation(card, pool, bytes, captured, &grown)) return CUDA_ERROR_OUT_OF_MEMORY;     \
        CUresult result = CALL(name, pointer, bytes, stream);                                            \
        return captured ? result : close_call(card, pool, grown, pointer, used, result);                 \
    }
#define FROM_POOL(name, own)                                                                             \
    EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUpool pool, CUstream stream)               \
    {                                                                                                    \
        CUstream used = stream ? stream : own;                                                           \
        struct card *card = pointer && bytes && pool ? card_of_pool(pool) : NULL;                        \
        bool captured = card && is_captured(used);                                                       \
        uint64_t grown;                                                                                  \
        if (!card) return CALL(name, pointer, bytes, pool, stream);                                      \
        if (!admit_allocation(card, pool, bytes, captured, &grown)) return CUDA_ERROR_OUT_OF_MEMORY;     \
        CUresult result = CALL(name, pointer, bytes, pool, stream);                                      \
        return captured ? result : close_call(card, pool, grown, pointer, used, result);                 \
    }

STREAM_ORDERED(cuMemAllocAsync, NULL)
STREAM_ORDERED(cuMemAllocAsync_ptsz, CU_STREAM_PER_THREAD)
FROM_POOL(cuMemAllocFromPoolAsync, NULL)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, CU_STREAM_PER_THREAD)

EXPORT CUresult cuMemPoolCreate(CUpool *pool, const CUpoolProps *props)
{
    CUresult result = CALL(cuMemPoolCreate, pool, props);
    if (result != CUDA_SUCCESS || !container_get()) return result;
    struct card *card = card_at(&props->location);
    /* Managed memory moves to its place of use. */
    if (!card && props->allocType == CU_ALLOCATION_MANAGED) card = card_current();
    note(*pool, card ? card->index : NOWHERE);
    return result;
}

/* The other immediate effects of a pool's end: it serves no allocation, and freed memory is not kept. */
static void retire(CUpool pool, CUdevice device)
{
    CUpool now, own;
    uint64_t none = 0;
    ASK((CUpool, int, void *), cuMemPoolSetAttribute, pool, CU_POOL_RELEASE_THRESHOLD, &none);
    if (ASK((CUpool *, CUdevice), cuDeviceGetMemPool, &now, device) != CUDA_SUCCESS || now != pool) return;
    if (ASK((CUpool *, CUdevice), cuDeviceGetDefaultMemPool, &own, device) == CUDA_SUCCESS)
        ASK((CUdevice, CUpool), cuDeviceSetMemPool, device, own);
}

static CUresult destroy_uncounted(CUpool pool) { ENDED(cuMemPoolDestroy, KIND_POOL, pool); }

EXPORT CUresult cuMemPoolDestroy(CUpool pool)
{
    struct entry entry;
    CUpool own = NULL;
    if (!ledger_find(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry)) return CALL(cuMemPoolDestroy, pool);
    if (entry.card == NOWHERE) return destroy_uncounted(pool);
    struct card *card = &container_get()->cards[entry.card];
    ASK((CUpool *, CUdevice), cuDeviceGetDefaultMemPool, &own, card->device);
    if (own == pool) return CALL(cuMemPoolDestroy, pool); /* the driver refuses it */
    lock_take(&pools, LOCK_POOLS);
    bool known = ledger_find(KIND_POOL, entry.key, &entry) && !entry.other;
    entry.other = DOOMED;
    if (known) {
        retire(pool, card->device);
        ledger_put(entry);
    }
    lock_give(&pools, LOCK_POOLS);
    if (!known) return CUDA_ERROR_INVALID_VALUE;
    pools_refresh(card, false);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUpool pool, size_t keep)
{
    CUresult result = CALL(cuMemPoolTrimTo, pool, keep);
    struct card *card = result == CUDA_SUCCESS ? card_of_pool(pool) : NULL;
    if (card) pools_refresh(card, false);
    return result;
}

/* Memory of a pool of another process. Memory that this container exported to itself is already counted. */
EXPORT CUresult cuMemPoolExportPointer(CUpoolPointer *shared, CUdeviceptr pointer)
{
    CUresult result = CALL(cuMemPoolExportPointer, shared, pointer);
    if (result == CUDA_SUCCESS && shared) physical_export(pointer, handle_hash(shared, sizeof *shared));
    return result;
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUpool pool, CUpoolPointer *shared)
{
    uint64_t handle = shared ? handle_hash(shared, sizeof *shared) : 0; /* before the driver could change it */
    CUresult result = CALL(cuMemPoolImportPointer, pointer, pool, shared);
    /* It belongs to no context, as all memory of a pool. */
    if (result != CUDA_SUCCESS) return result;
    result = physical_import(*pointer, handle, 0);
    if (result == CUDA_SUCCESS) return result;
    CALL(cuMemFree_v2, *pointer);
    *pointer = 0;
    return result;
}

/* An event after the free; NULL: there is none, as for a stream of another context. */
static CUevent mark_free(CUstream stream)
{
    CUcontext now = NULL, of = NULL;
    CUevent event = NULL;
    if (ASK((CUcontext *), cuCtxGetCurrent, &now) != CUDA_SUCCESS) return NULL;
    if ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD &&
        (ASK((CUstream, CUcontext *), cuStreamGetCtx, stream, &of) != CUDA_SUCCESS || of != now))
        return NULL;
    if (ASK((CUevent *, unsigned), cuEventCreate, &event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return NULL;
    if (ASK((CUevent, CUstream), cuEventRecord, event, stream) == CUDA_SUCCESS) return event;
    ASK((CUevent), cuEventDestroy_v2, event);
    return NULL;
}

/* After a free in stream order of other memory than a pool's. Without an event the call waits for the stream, as cuMemFree may. */
static void free_later(const struct entry *entry, CUstream stream)
{
    if (entry->kind == 0) return;
    uint64_t context = contexts_now();
    int mode = driver_step_aside();
    struct entry *was = entry->context == context || !entry->context ? malloc(sizeof *was) : NULL;
    CUevent event = was ? mark_free(stream) : NULL;
    struct entry left = {.key = (uint64_t)(uintptr_t)event, .bytes = (uint64_t)(uintptr_t)was, .context = context,
                         .card = entry->card, .kind = KIND_FREED};
    bool first = event && atomic_fetch_add(&freed, 1) == 0; /* before others can see that it is over */
    if (was) *was = *entry;
    if (!event || !ledger_put(left)) {
        CALL(cuStreamSynchronize, stream);
        if (event) ASK((CUevent), cuEventDestroy_v2, event);
        if (event) atomic_fetch_sub(&freed, 1);
        memory_release(entry);
        free(was);
    } else if (first) {
        watch_wake();
    }
    driver_step_back(mode);
    if (atomic_load(&freed) >= atomic_load(&looked)) look_at_freed();
}

/* Other memory may be freed in stream order as well. A free into a capture is of a graph's memory, which is not here. */
#define FREES(name, own)                                                                                 \
    EXPORT CUresult name(CUdeviceptr pointer, CUstream stream)                                           \
    {                                                                                                    \
        struct entry entry;                                                                              \
        bool known = memory_at(pointer, &entry);                                                         \
        if (!known) physical_unexport(pointer); /* of a pool */                                          \
        CUresult result = CALL(name, pointer, stream);                                                   \
        if (known && result == CUDA_SUCCESS) free_later(&entry, stream ? stream : own);                  \
        else if (known) memory_restore(&entry);                                                          \
        return result;                                                                                   \
    }

FREES(cuMemFreeAsync, NULL)
FREES(cuMemFreeAsync_ptsz, CU_STREAM_PER_THREAD)
