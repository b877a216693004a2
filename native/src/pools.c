/* Stream-ordered allocation: a pool is counted by its real memory, by the driver's figure. */
#include "pools.h"
#include "batch.h"
#include "cards.h"
#include "driver.h"
#include "graphs.h"
#include "ledger.h"
#include "memory.h"
#include "physical.h"
#include <stdatomic.h>

#define DOOMED 1 /* entry.other of a pool that the program destroyed; above it: time since which none of it is in use */
#define UNUSED_NS 3000000000ull /* a pool without use may keep memory this long */

#define NOWHERE CARDS /* entry.card of a pool of the host's memory */

static struct lock pools;

void pools_forget(void) { pools = (struct lock){0}; }

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
        if (ask_pool(pool, CU_POOL_RESERVED_CURRENT, &bytes)) memory_bring(card, KIND_POOL, entry.key, bytes, true);
    }
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

/*
 * Finds room in the pool, or below the cap: counted before the driver grows the pool. A driver that does not answer has
 * an error to return (a kernel's fault); if it allocates after all, count_pool releases that.
 */
static bool prepare(struct card *card, CUpool pool, uint64_t bytes, uint64_t *grown)
{
    uint64_t reserved, used;
    *grown = 0;
    if (!ask_pool(pool, CU_POOL_RESERVED_CURRENT, &reserved) || !ask_pool(pool, CU_POOL_USED_CURRENT, &used))
        return true;
    note(pool, card->index);
    uint64_t spare = reserved > used ? reserved - used : 0;
    if (bytes > spare) *grown = whole_granules(bytes - spare);
    return *grown == 0 || memory_reserve(card, *grown);
}

static CUresult count_pool(struct card *card, CUpool pool, CUdeviceptr *pointer, CUstream stream, CUresult result)
{
    uint64_t reserved, key = (uint64_t)(uintptr_t)pool;
    lock_take(&pools, LOCK_POOLS);
    bool good = ask_pool(pool, CU_POOL_RESERVED_CURRENT, &reserved) && memory_bring(card, KIND_POOL, key, reserved, false);
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

/* Opens an allocation from `pool`; false: refused. */
static bool admit_allocation(struct card *card, CUpool pool, uint64_t bytes, CUstream stream)
{
    uint64_t grown;
    if (is_captured(stream)) return graphs_may_add(card, bytes);
    if (!prepare(card, pool, bytes, &grown)) {
        memory_count_refusal(card);
        return false;
    }
    memory_return(card, grown); /* settle counts the pool's real growth */
    return true;
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
        if (!card) return CALL(name, pointer, bytes, stream);                                            \
        if (!admit_allocation(card, pool, bytes, used)) return CUDA_ERROR_OUT_OF_MEMORY;                            \
        CUresult result = CALL(name, pointer, bytes, stream);                                            \
        return is_captured(used) ? result : count_pool(card, pool, pointer, used, result);                   \
    }
#define FROM_POOL(name, own)                                                                             \
    EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUpool pool, CUstream stream)               \
    {                                                                                                    \
        CUstream used = stream ? stream : own;                                                           \
        struct card *card = pointer && bytes && pool ? card_of_pool(pool) : NULL;                        \
        if (!card) return CALL(name, pointer, bytes, pool, stream);                                      \
        if (!admit_allocation(card, pool, bytes, used)) return CUDA_ERROR_OUT_OF_MEMORY;                            \
        CUresult result = CALL(name, pointer, bytes, pool, stream);                                      \
        return is_captured(used) ? result : count_pool(card, pool, pointer, used, result);                   \
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
    struct container *all = result == CUDA_SUCCESS && shared ? container_get() : NULL;
    if (all) export_note(all->account, handle_hash(shared, sizeof *shared), &all->self);
    return result;
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUpool pool, CUpoolPointer *shared)
{
    uint64_t handle = shared ? handle_hash(shared, sizeof *shared) : 0; /* before the driver could change it */
    CUresult result = CALL(cuMemPoolImportPointer, pointer, pool, shared);
    /* It belongs to no context, as all memory of a pool. */
    if (result != CUDA_SUCCESS || physical_import(pointer, handle, 0)) return result;
    CALL(cuMemFree_v2, *pointer);
    *pointer = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Other memory may be freed in stream order as well. */
#define FREES(name)                                                                                      \
    EXPORT CUresult name(CUdeviceptr pointer, CUstream stream)                                           \
    {                                                                                                    \
        struct entry entry;                                                                              \
        bool known = memory_at(pointer, &entry);                                                         \
        CUresult result = CALL(name, pointer, stream);                                                   \
        if (known && result == CUDA_SUCCESS) memory_release(&entry);                                     \
        else if (known) ledger_put(entry);                                                               \
        return result;                                                                                   \
    }

FREES(cuMemFreeAsync)
FREES(cuMemFreeAsync_ptsz)
