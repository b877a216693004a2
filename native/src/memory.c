/* Plain, pitched and managed allocations, and the memory that is visible under the cap. */
#include "memory.h"
#include "cards.h"
#include "contexts.h"
#include "driver.h"
#include "graphs.h"
#include "launch.h"
#include "ledger.h"
#include "physical.h"
#include "pools.h"
#include <stdatomic.h>

static bool take(struct card *card, uint64_t bytes)
{
    struct container *all = container_get();
    return memory_take(all->account, all->place, card->index, bytes, &card->now->memory, &all->self, clock_now());
}

bool memory_room(struct card *card, uint64_t bytes)
{
    struct container *all = container_get();
    return all && all->place && take(card, bytes);
}

bool memory_reserve(struct card *card, uint64_t bytes)
{
    struct container *all = container_get();
    if (!all || !all->place) return false;
    for (int attempt = 0; attempt < 3; attempt++) {
        if (take(card, bytes)) return true;
        pools_refresh(card, attempt > 0); /* memory that pools no longer hold is free again */
    }
    bool possible = !card_cap(card) || bytes <= card_cap(card);
    return possible && pools_await_freed(card) && take(card, bytes);
}

void memory_count_refusal(struct card *card)
{
    atomic_fetch_add(&container_get()->account->books[card->index].refused, 1);
}

static _Atomic uint64_t *counter(struct card *card)
{
    return &container_get()->place->cards[card->index].counted;
}

void memory_return(struct card *card, uint64_t bytes) { memory_give(counter(card), bytes); }

void memory_force(struct card *card, uint64_t bytes) { atomic_fetch_add(counter(card), bytes); }

/*
 * The driver places plain allocations into blocks of a granule. The rest of an allocation's last block is used for
 * small ones that fit, and a block is returned with its last allocation. So a block counts from its first allocation to
 * its last, by the driver's addresses: the sum of sizes is too small.
 */
struct lie {
    uint64_t whole;     /* bytes of blocks of its own */
    uint64_t blocks[2]; /* others may lie in these */
    uint32_t count;
};

static struct lie lie_of(uint64_t from, uint64_t bytes)
{
    uint64_t to = from + (bytes + 511) / 512 * 512, first = from / GRANULE, last = (to - 1) / GRANULE;
    bool begins = from % GRANULE == 0, ends = to % GRANULE == 0;
    struct lie lie = {0};
    if (!begins) lie.blocks[lie.count++] = first;
    if (!ends && (begins || last != first)) lie.blocks[lie.count++] = last;
    lie.whole = (last - first + 1 - lie.count) * GRANULE;
    return lie;
}

/* By context: the driver may give another one a block's address before the call that freed it returns. */
static uint64_t block_key(uint64_t block, uint64_t context)
{
    uint64_t words[] = {block, context};
    return handle_hash(words, sizeof words);
}

/* Adds an allocation to a block, which counts by these alone: its entry outlives the context. The lock is held. */
static bool join_block(struct card *card, uint64_t key)
{
    struct entry entry = {.key = key, .bytes = GRANULE, .card = card->index, .kind = KIND_BLOCK};
    bool known = ledger_find(KIND_BLOCK, key, &entry);
    entry.other++;
    bool good = ledger_put(entry);
    card->blocks += good && !known;
    return good;
}

static void leave_block(struct card *card, uint64_t key)
{
    struct entry entry;
    if (!ledger_find(KIND_BLOCK, key, &entry)) return;
    if (--entry.other) {
        ledger_put(entry);
        return;
    }
    ledger_take(KIND_BLOCK, key, &entry);
    card->blocks--;
    memory_return(card, GRANULE);
}

static void leave(struct card *card, const struct entry *entry)
{
    struct lie lie = lie_of(entry->key, entry->other);
    memory_return(card, entry->bytes);
    if (lie.count == 0) return;
    lock_take(&card->blocks_lock, LOCK_BLOCKS);
    for (uint32_t i = 0; i < lie.count; i++) leave_block(card, block_key(lie.blocks[i], entry->context));
    lock_give(&card->blocks_lock, LOCK_BLOCKS);
}

/*
 * Records an allocation for which `held` is counted. False: it took more than that, which is past the cap, or
 * there is no memory for the record; then nothing of it counts.
 */
static bool keep(struct card *card, CUdeviceptr pointer, uint64_t bytes, uint64_t held)
{
    struct lie lie = lie_of(pointer, bytes);
    struct entry entry = {.key = pointer, .bytes = lie.whole, .other = bytes, .context = contexts_now(),
                          .card = card->index, .kind = KIND_POINTER};
    struct entry known;
    uint64_t taken = lie.whole, more;
    bool good;
    lock_take(&card->blocks_lock, LOCK_BLOCKS);
    for (uint32_t i = 0; i < lie.count; i++) {
        lie.blocks[i] = block_key(lie.blocks[i], entry.context);
        if (!ledger_find(KIND_BLOCK, lie.blocks[i], &known)) taken += GRANULE;
    }
    more = taken > held ? taken - held : 0;
    good = more == 0 || take(card, more); /* before another can join a refused block */
    held += good ? more : 0;
    if (good) good = ledger_put(entry);
    for (uint32_t i = 0; good && i < lie.count; i++)
        if (!join_block(card, lie.blocks[i])) taken -= GRANULE; /* the agent measures uncounted memory */
    lock_give(&card->blocks_lock, LOCK_BLOCKS);
    memory_return(card, good ? held - taken : held);
    return good;
}

/* Is there another context on the card? A primary one that was reset is none until it is retained. */
static bool has_context(uint32_t card)
{
    struct entry entry;
    for (uint32_t i = 0; ledger_nth(KIND_CONTEXT, i, &entry); i++)
        if (entry.card == card && entry.context) return true;
    return false;
}

/* Releases one context's part of the measurement of all, by the estimates; the last context releases all of it. */
static void give_context(struct holding *holding, uint64_t bytes, bool last)
{
    uint64_t all = atomic_load(&holding->allowance), seen = atomic_load(&holding->overhead);
    memory_give(&holding->allowance, bytes);
    while ((bytes || last) && seen &&
           !atomic_compare_exchange_weak(&holding->overhead, &seen,
                                         all > bytes && !last ? seen - (uint64_t)((double)seen * (double)bytes / (double)all) : 0)) {
    }
}

/* Releases a module: the measurement of contexts beside it stays while there may be any. */
static void give_module(struct card *card, struct holding *holding, uint64_t bytes)
{
    uint64_t seen = atomic_load(&holding->overhead);
    memory_give(&holding->allowance, bytes);
    bool last = card->limits->context && atomic_load(&holding->allowance) == 0;
    while (seen && !atomic_compare_exchange_weak(&holding->overhead, &seen, last || seen <= bytes ? 0 : seen - bytes)) {
    }
}

void memory_release(const struct entry *entry)
{
    struct container *all = container_get();
    if (!all || !all->place || entry->card >= CARDS || entry->kind == 0) return;
    struct card *card = &all->cards[entry->card];
    if (entry->kind == KIND_SWAP) {
        memory_give(&all->place->cards[entry->card].swapped, entry->bytes);
    } else if (entry->kind == KIND_CONTEXT) {
        give_context(&all->place->cards[entry->card], entry->bytes, !has_context(entry->card));
    } else if (entry->kind == KIND_MODULE || entry->kind == KIND_LIBRARY) {
        give_module(card, &all->place->cards[entry->card], entry->bytes);
    } else if (entry->kind == KIND_TILE) {
        physical_give_up(entry->other);
    } else if (entry->kind == KIND_EXEC) {
        graphs_ended(entry);
    } else if (entry->kind == KIND_CAPTURE) {
        launch_capture_ended(entry);
    } else if (entry->kind == KIND_IMPORT) {
        physical_import_ended(entry);
    } else if (entry->kind == KIND_POINTER) {
        physical_unexport(entry->key);
        leave(card, entry);
    } else if (entry->kind == KIND_FREED) {
        pools_freed((struct entry *)(uintptr_t)entry->bytes);
    } else {
        memory_return(card, entry->bytes);
    }
}

/* Beyond the cap, if the limits allow it: memory that the driver may keep on the host. */
static CUresult swap_in(struct card *card, CUdeviceptr *pointer, size_t bytes)
{
    struct container *all = container_get();
    _Atomic uint64_t *swapped = &all->place->cards[card->index].swapped;
    uint64_t size = whole_granules(bytes), total = atomic_fetch_add(swapped, size) + size;
    for (uint32_t i = 0; i < PLACES && i < atomic_load(&all->account->used_places); i++) {
        struct place *place = &all->account->places[i];
        if (place != all->place && place_is_alive(place, &all->self, clock_now()))
            total += atomic_load(&place->cards[card->index].swapped);
    }
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (total <= card->limits->swap)
        result = CALL(cuMemAllocManaged, pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS) {
        struct entry entry = {.key = *pointer, .bytes = size, .context = contexts_now(), .card = card->index,
                              .kind = KIND_SWAP};
        if (ledger_put(entry)) return CUDA_SUCCESS;
        CALL(cuMemFree_v2, *pointer);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory_give(swapped, size);
    return result;
}

/*
 * Counts the most that `size` may take, or nothing at the cap if a small one may fit into a block that is already
 * counted. Runs `make`, a statement that sets `result`, to allocate; and counts the bytes taken, by `size` after that.
 * If it did not fit, pools release unused memory, and it is tried once more.
 */
#define COUNTED(card, size, pointer, make)                                                               \
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                                                          \
    bool tight_;                                                                                         \
    for (bool share_ = may_share(card, size);; share_ = false) {                                         \
        uint64_t held_ = whole_granules(size);                                                           \
        tight_ = !(share_ ? take(card, held_) : memory_reserve(card, held_));                            \
        if (tight_) held_ = 0;                                                                           \
        if (!tight_ || share_) {                                                                         \
            make;                                                                                        \
            if (result == CUDA_SUCCESS && keep(card, *(pointer), size, held_)) return result;            \
            if (result != CUDA_SUCCESS) memory_return(card, held_);                                      \
            else CALL(cuMemFree_v2, *(pointer)), result = CUDA_ERROR_OUT_OF_MEMORY;                      \
        }                                                                                                \
        if (!share_ || !tight_ || result != CUDA_ERROR_OUT_OF_MEMORY) break;                             \
    }                                                                                                    \
    tight_ &= result == CUDA_ERROR_OUT_OF_MEMORY;                                                        \
    if (tight_ && card->limits->swap) result = swap_in(card, pointer, size);                             \
    if (tight_ && result != CUDA_SUCCESS) memory_count_refusal(card);                                    \
    return result

static bool may_share(struct card *card, uint64_t bytes)
{
    if (bytes > GRANULE / 2) return false;
    lock_take(&card->blocks_lock, LOCK_BLOCKS);
    bool any = card->blocks > 0;
    lock_give(&card->blocks_lock, LOCK_BLOCKS);
    return any;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    struct card *card = card_current();
    if (!card || !pointer || bytes == 0) return CALL(cuMemAlloc_v2, pointer, bytes);
    COUNTED(card, bytes, pointer, result = CALL(cuMemAlloc_v2, pointer, bytes));
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    struct card *card = card_current();
    if (!card || !pointer || !pitch || width == 0 || height == 0 || width > SIZE_MAX / 4)
        return CALL(cuMemAllocPitch_v2, pointer, pitch, width, height, element);
    /* Rows are padded to at most 512 bytes, until the driver reports the real size. */
    size_t row = (width + 511) / 512 * 512;
    size_t bytes = height > SIZE_MAX / 4 / row ? SIZE_MAX / 4 : row * height;
    *pitch = row; /* this stays if it is served beyond the cap */
    COUNTED(card, bytes, pointer, result = CALL(cuMemAllocPitch_v2, pointer, pitch, width, height, element);
            if (result == CUDA_SUCCESS) bytes = *pitch * height);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    struct card *card = card_current();
    if (!card || !pointer || bytes == 0) return CALL(cuMemAllocManaged, pointer, bytes, flags);
    COUNTED(card, bytes, pointer, result = CALL(cuMemAllocManaged, pointer, bytes, flags));
}

bool memory_at(CUdeviceptr pointer, struct entry *entry)
{
    return ledger_take_any(1u << KIND_POINTER | 1u << KIND_SWAP, pointer, entry) || physical_close(pointer, entry);
}

void memory_restore(const struct entry *entry)
{
    if (entry->kind) ledger_put(*entry);
    else physical_reopen(entry->key);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    struct entry entry;
    bool known = memory_at(pointer, &entry);
    if (!known) physical_unexport(pointer); /* of a pool */
    CUresult result = CALL(cuMemFree_v2, pointer);
    if (known && result == CUDA_SUCCESS) memory_release(&entry);
    else if (known) memory_restore(&entry);
    return result;
}

/* The entry points from before CUDA 3.2 address 4 GiB; they are not counted, so they are not allowed. */
#define REFUSED(name, args, ...)                                                                         \
    EXPORT CUresult name args { return card_current() ? CUDA_ERROR_NOT_SUPPORTED : CALL(name, __VA_ARGS__); }

REFUSED(cuMemAlloc, (unsigned *pointer, unsigned bytes), pointer, bytes)
REFUSED(cuMemAllocPitch, (unsigned *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element),
        pointer, pitch, width, height, element)
REFUSED(cuMemFree, (unsigned pointer), pointer)
REFUSED(cuMemGetInfo, (unsigned *free, unsigned *total), free, total)
REFUSED(cuArrayCreate, (CUarray *array, const void *shape), array, shape)
REFUSED(cuArray3DCreate, (CUarray *array, const void *shape), array, shape)

bool memory_view(struct card *card, uint64_t *used, uint64_t *most)
{
    struct container *all = container_get();
    if (!all || card_cap(card) == 0) return false;
    if (all->place) pools_refresh(card, false);
    *most = card_cap(card);
    *used = memory_used(all->account, card->index, &all->self, clock_now());
    if (*used > *most) *used = *most;
    return true;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    uint64_t used, most;
    CUresult result = CALL(cuMemGetInfo_v2, free, total);
    struct card *card = result == CUDA_SUCCESS && free && total ? card_current() : NULL;
    if (!card || !memory_view(card, &used, &most) || most >= *total) return result;
    *total = most;
    if (most - used < *free) *free = most - used;
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = CALL(cuDeviceTotalMem_v2, bytes, device);
    struct card *card = result == CUDA_SUCCESS && bytes ? card_of(device) : NULL;
    if (card && card_cap(card) && card_cap(card) < *bytes) *bytes = card_cap(card);
    return result;
}

bool memory_bring(struct card *card, enum kind kind, uint64_t key, uint64_t bytes, bool force)
{
    struct container *all = container_get();
    struct entry entry = {.key = key, .card = card->index, .kind = (uint32_t)kind};
    ledger_find(kind, key, &entry);
    if (bytes > entry.bytes) {
        uint64_t more = bytes - entry.bytes;
        if (force) memory_force(card, more);
        else if (!memory_take(all->account, all->place, card->index, more, &card->now->memory, &all->self, clock_now()))
            return false;
    } else {
        memory_return(card, entry.bytes - bytes);
    }
    entry.bytes = bytes;
    ledger_put(entry);
    return true;
}

static struct holding *holding(struct card *card) { return &container_get()->place->cards[card->index]; }

/* Adds an estimate; if the process was measured already, on top of that until the next measurement. */
static void add_estimate(struct card *card, uint64_t bytes)
{
    uint64_t seen = atomic_load(&holding(card)->overhead);
    atomic_fetch_add(&holding(card)->allowance, bytes);
    while (seen && !atomic_compare_exchange_weak(&holding(card)->overhead, &seen, seen + bytes)) {
    }
}

void memory_unestimate(struct card *card, uint64_t bytes)
{
    uint64_t seen = atomic_load(&holding(card)->overhead);
    memory_give(&holding(card)->allowance, bytes);
    while (seen > bytes && !atomic_compare_exchange_weak(&holding(card)->overhead, &seen, seen - bytes)) {
    }
}

bool memory_estimate(struct card *card, uint64_t bytes)
{
    struct container *all = container_get();
    for (int attempt = 0; attempt < 3; attempt++) {
        add_estimate(card, bytes);
        uint64_t most = card_cap(card); /* after it, as memory_take does */
        if (most == 0 || memory_used(all->account, card->index, &all->self, clock_now()) <= most) return true;
        memory_unestimate(card, bytes);
        pools_refresh(card, attempt > 0); /* memory that pools no longer hold is free again */
    }
    return false;
}

uint64_t memory_free(struct card *card)
{
    size_t free = 0, total;
    int mode = card ? driver_step_aside() : -1;
    if (card) CALL(cuMemGetInfo_v2, &free, &total);
    driver_step_back(mode);
    return free;
}
