/* Physical memory by handle: created, imported, mapped. It is free when it has no handle and no mapping left. */
#include "physical.h"
#include "cards.h"
#include "contexts.h"
#include "driver.h"
#include "ledger.h"
#include "memory.h"
#include "watch.h"

#define MAPPED (1ull << 32) /* entry.other of a handle: references below, mappings above */
#define IMPORTED (1ull << 63) /* and whether its size is known only when it is mapped */

#define PAID (1ull << 63)          /* entry.other of a source: addresses of it here, and whether it counts here */
#define LENDER_NS 1000000000ull    /* the watch asks so often whether the lender of memory still has it */

static struct lock physical;
static struct lock opens;   /* of handles of other processes */
static struct lock sources; /* the memory behind them */
static _Atomic bool exported;     /* some memory of this process */
static _Atomic uint32_t borrowed; /* sources that another process of the container pays for */

void physical_forget(void)
{
    physical = opens = sources = (struct lock){0};
    atomic_store(&borrowed, 0);
    atomic_store(&exported, false);
}

/* Adds to a handle's references or mappings; releases its bytes when none is left. */
static void change(CUmemHandle handle, uint64_t plus, uint64_t minus)
{
    struct entry entry;
    if (!ledger_take(KIND_HANDLE, handle, &entry)) return;
    entry.other += plus - (minus <= entry.other ? minus : entry.other);
    if ((entry.other & ~IMPORTED) == 0) memory_release(&entry);
    else ledger_put(entry);
}

static CUresult hold(CUmemHandle handle, struct card *card, uint64_t bytes, uint64_t imported)
{
    struct entry entry = {.key = handle, .bytes = bytes, .other = 1 | imported, .card = card->index, .kind = KIND_HANDLE};
    lock_take(&physical, LOCK_PHYSICAL);
    /* Imported memory may have the name that it already has here. */
    bool again = imported && ledger_find(KIND_HANDLE, handle, &entry);
    entry.other += again;
    bool good = ledger_put(entry);
    lock_give(&physical, LOCK_PHYSICAL);
    if (good) return CUDA_SUCCESS;
    CALL(cuMemRelease, handle);
    memory_return(card, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags)
{
    struct card *card = NULL;
    if (prop && handle) card = card_at(&prop->location);
    if (!card) return CALL(cuMemCreate, handle, bytes, prop, flags);
    if (!memory_reserve(card, bytes)) {
        memory_count_refusal(card);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CALL(cuMemCreate, handle, bytes, prop, flags);
    if (result == CUDA_SUCCESS) return hold(*handle, card, bytes, 0);
    memory_return(card, bytes);
    return result;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemHandle *handle, void *shared, int type)
{
    CUresult result = CALL(cuMemImportFromShareableHandle, handle, shared, type);
    CUallocationProp prop;
    if (result != CUDA_SUCCESS || !handle) return result;
    bool told = ASK((CUallocationProp *, CUmemHandle), cuMemGetAllocationPropertiesFromHandle, &prop, *handle) == CUDA_SUCCESS;
    struct card *card = told ? card_at(&prop.location) : card_current();
    /* Its size is known when it is mapped; it is counted then. */
    return card ? hold(*handle, card, 0, IMPORTED) : result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address)
{
    lock_take(&physical, LOCK_PHYSICAL);
    CUresult result = CALL(cuMemRetainAllocationHandle, handle, address);
    if (result == CUDA_SUCCESS && handle) change(*handle, 1, 0);
    lock_give(&physical, LOCK_PHYSICAL);
    return result;
}

EXPORT CUresult cuMemRelease(CUmemHandle handle)
{
    lock_take(&physical, LOCK_PHYSICAL);
    CUresult result = CALL(cuMemRelease, handle);
    if (result == CUDA_SUCCESS) change(handle, 0, 1);
    lock_give(&physical, LOCK_PHYSICAL);
    return result;
}

/*
 * A call that waits for other threads runs without the lock: a bind or map to a multicast object blocks until every
 * device was added to it, by another thread. The handle is held meanwhile, as if the call had already succeeded.
 */
bool physical_borrow(CUmemHandle handle, struct entry *entry)
{
    lock_take(&physical, LOCK_PHYSICAL);
    bool known = ledger_find(KIND_HANDLE, handle, entry);
    if (known) change(handle, MAPPED, 0);
    lock_give(&physical, LOCK_PHYSICAL);
    return known;
}

void physical_give_up(CUmemHandle handle)
{
    lock_take(&physical, LOCK_PHYSICAL);
    change(handle, 0, MAPPED);
    lock_give(&physical, LOCK_PHYSICAL);
}

static void mapped(CUdeviceptr pointer, size_t bytes, CUmemHandle handle, uint32_t card)
{
    struct entry mapping = {.key = pointer, .bytes = bytes, .other = handle, .card = card, .kind = KIND_MAPPING};
    lock_take(&physical, LOCK_PHYSICAL);
    ledger_put(mapping);
    lock_give(&physical, LOCK_PHYSICAL);
}

/* Counts the found size of a borrowed imported handle, once until it is gone; false: past the cap. */
static bool found_to_hold(CUmemHandle handle, struct card *card, uint64_t bytes)
{
    struct entry entry = {.bytes = bytes};
    lock_take(&physical, LOCK_PHYSICAL);
    ledger_find(KIND_HANDLE, handle, &entry);
    lock_give(&physical, LOCK_PHYSICAL);
    uint64_t more = bytes > entry.bytes ? bytes - entry.bytes : 0;
    if (more == 0) return true;
    if (!memory_reserve(card, more)) return false;
    lock_take(&physical, LOCK_PHYSICAL);
    if (ledger_find(KIND_HANDLE, handle, &entry) && bytes > entry.bytes) {
        more -= bytes - entry.bytes;
        entry.bytes = bytes;
        ledger_put(entry);
    }
    lock_give(&physical, LOCK_PHYSICAL);
    memory_return(card, more); /* of another thread's mapping */
    return true;
}

/* Ends the use of a borrowed handle whose memory does not fit. */
static bool fits(CUmemHandle handle, const struct entry *entry, uint64_t bytes)
{
    struct card *card = &container_get()->cards[entry->card];
    if (!(entry->other & IMPORTED) || found_to_hold(handle, card, bytes)) return true;
    physical_give_up(handle);
    memory_count_refusal(card);
    return false;
}

bool physical_has_size(const struct entry *entry) { return !(entry->other & IMPORTED) || entry->bytes > 0; }

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long flags)
{
    struct entry entry;
    if (!physical_borrow(handle, &entry)) {
        CUresult result = CALL(cuMemMap, pointer, bytes, offset, handle, flags);
        /* Of no counted handle, but it may be unmapped together with counted memory. */
        if (result == CUDA_SUCCESS && container_get()) mapped(pointer, bytes, 0, 0);
        return result;
    }
    if (!fits(handle, &entry, offset + bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL(cuMemMap, pointer, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS) {
        mapped(pointer, bytes, handle, entry.card);
        return result;
    }
    physical_give_up(handle);
    return result;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    struct entry mapping;
    lock_take(&physical, LOCK_PHYSICAL);
    CUresult result = CALL(cuMemUnmap, pointer, bytes);
    for (CUdeviceptr at = pointer; result == CUDA_SUCCESS && at < pointer + bytes; at += mapping.bytes) {
        if (!ledger_take(KIND_MAPPING, at, &mapping) || mapping.bytes == 0) break;
        change(mapping.other, 0, MAPPED);
    }
    lock_give(&physical, LOCK_PHYSICAL);
    return result;
}

/*
 * Memory bound to a multicast object stays as long as it is bound, with or without its handle. It ends with the exact
 * unbinding; if the object is destroyed with bound memory, that stays counted.
 */
static uint64_t binding_key(CUmemHandle many, size_t offset, CUdevice device)
{
    uint64_t words[] = {many, offset, (uint64_t)(unsigned)device};
    return handle_hash(words, sizeof words);
}

/* After a bind of a borrowed handle. */
static CUresult bound(CUmemHandle many, size_t offset, CUmemHandle handle, const struct entry *entry, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        physical_give_up(handle);
        return result;
    }
    CUdevice device = container_get()->cards[entry->card].device;
    ledger_put((struct entry){.key = binding_key(many, offset, device), .other = handle, .card = entry->card,
                              .kind = KIND_BINDING});
    return result;
}

#define BINDS(name, args, ...)                                                                           \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct entry entry;                                                                              \
        bool known = physical_borrow(handle, &entry);                                                    \
        if (known && !fits(handle, &entry, offset + bytes)) return CUDA_ERROR_OUT_OF_MEMORY;             \
        CUresult result = CALL(name, __VA_ARGS__);                                                       \
        return known ? bound(many, many_offset, handle, &entry, result) : result;                        \
    }
/* The driver reports which memory lies at an address, and adds a reference. */
#define BINDS_ADDRESS(name, args, ...)                                                                   \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct entry entry;                                                                              \
        CUmemHandle handle;                                                                              \
        if (CALL(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)pointer) != CUDA_SUCCESS)      \
            return CALL(name, __VA_ARGS__);                                                              \
        bool known = physical_borrow(handle, &entry);                                                             \
        CUresult result = CALL(name, __VA_ARGS__);                                                       \
        CALL(cuMemRelease, handle);                                                                      \
        return known ? bound(many, many_offset, handle, &entry, result) : result;                        \
    }

BINDS(cuMulticastBindMem,
      (CUmemHandle many, size_t many_offset, CUmemHandle handle, size_t offset, size_t bytes, unsigned long long flags),
      many, many_offset, handle, offset, bytes, flags)
BINDS_ADDRESS(cuMulticastBindAddr,
              (CUmemHandle many, size_t many_offset, CUdeviceptr pointer, size_t bytes, unsigned long long flags), many,
              many_offset, pointer, bytes, flags)

BINDS(cuMulticastBindMem_v2,
      (CUmemHandle many, CUdevice device, size_t many_offset, CUmemHandle handle, size_t offset, size_t bytes,
       unsigned long long flags),
      many, device, many_offset, handle, offset, bytes, flags)
BINDS_ADDRESS(cuMulticastBindAddr_v2,
              (CUmemHandle many, CUdevice device, size_t many_offset, CUdeviceptr pointer, size_t bytes,
               unsigned long long flags),
              many, device, many_offset, pointer, bytes, flags)

EXPORT CUresult cuMulticastUnbind(CUmemHandle many, CUdevice device, size_t many_offset, size_t bytes)
{
    struct entry entry;
    bool known = ledger_take(KIND_BINDING, binding_key(many, many_offset, device), &entry);
    CUresult result = CALL(cuMulticastUnbind, many, device, many_offset, bytes);
    if (known && result == CUDA_SUCCESS) physical_give_up(entry.other);
    else if (known) ledger_put(entry);
    return result;
}

/*
 * Memory of another process by handle. Of memory that its own container exported, the exporter pays as long as it has it;
 * from then on each process that still has it open. For memory of another container a process pays from the start: that
 * container pays too, but this one cannot see whether it still has the memory. A process pays once for a handle.
 */
EXPORT CUresult cuIpcGetMemHandle(CUipcMem *handle, CUdeviceptr pointer)
{
    CUresult result = CALL(cuIpcGetMemHandle, handle, pointer);
    if (result == CUDA_SUCCESS && handle) physical_export(pointer, handle_hash(handle, sizeof *handle));
    return result;
}

void physical_export(CUdeviceptr pointer, uint64_t name)
{
    struct container *all = container_get();
    CUdeviceptr base = pointer; /* of the whole allocation: that one is freed, wherever in it the pointer lies */
    size_t bytes;
    if (!all) return;
    if (ASK((CUdeviceptr *, size_t *, CUdeviceptr), cuMemGetAddressRange_v2, &base, &bytes, pointer) != CUDA_SUCCESS)
        base = pointer;
    export_note(all->account, name, &all->self);
    ledger_put((struct entry){.key = base, .other = name, .kind = KIND_EXPORT});
    atomic_store(&exported, true);
}

void physical_unexport(CUdeviceptr pointer)
{
    struct container *all = atomic_load(&exported) ? container_get() : NULL;
    struct entry entry;
    if (all && ledger_take(KIND_EXPORT, pointer, &entry)) export_end(all->account, entry.other, &all->self);
}

/* One address more, if the memory is known here. */
static bool join_source(uint64_t handle)
{
    struct entry source;
    lock_take(&sources, LOCK_SOURCES);
    bool known = ledger_find(KIND_SOURCE, handle, &source);
    if (known) {
        source.other++;
        ledger_put(source);
    }
    lock_give(&sources, LOCK_SOURCES);
    return known;
}

static void leave_source(uint64_t handle)
{
    struct container *all = container_get();
    struct entry source;
    lock_take(&sources, LOCK_SOURCES);
    bool known = ledger_take(KIND_SOURCE, handle, &source), last = known && (--source.other & ~PAID) == 0;
    if (known && !last) ledger_put(source);
    if (last && source.other & PAID) memory_return(&all->cards[source.card], source.bytes);
    else if (last) atomic_fetch_sub(&borrowed, 1);
    lock_give(&sources, LOCK_SOURCES);
}

void physical_import_ended(const struct entry *entry) { leave_source(entry->bytes); }

uint64_t physical_watch(void)
{
    struct container *all = container_get();
    struct entry source;
    if (atomic_load(&borrowed) == 0) return 0;
    lock_take(&sources, LOCK_SOURCES);
    for (uint32_t i = 0; ledger_nth(KIND_SOURCE, i, &source); i++) {
        if (source.other & PAID || export_is_ours(all->account, source.key, &all->self, clock_now())) continue;
        memory_force(&all->cards[source.card], source.bytes);
        source.other |= PAID;
        ledger_put(source);
        atomic_fetch_sub(&borrowed, 1);
    }
    lock_give(&sources, LOCK_SOURCES);
    return LENDER_NS;
}

/* Opens `bytes` of memory that is not known here; false: past the cap. */
static bool make_source(struct card *card, uint64_t handle, uint64_t bytes)
{
    struct container *all = container_get();
    bool ours = export_is_ours(all->account, handle, &all->self, clock_now());
    struct entry source = {.key = handle, .bytes = bytes, .other = ours ? 1 : 1 | PAID, .card = card->index, .kind = KIND_SOURCE};
    if (!ours && !memory_reserve(card, bytes)) return false;
    if (!ledger_put(source)) {
        if (!ours) memory_return(card, bytes);
        return false;
    }
    if (ours && atomic_fetch_add(&borrowed, 1) == 0) watch_wake();
    return true;
}

static uint64_t size_at(CUdeviceptr pointer)
{
    CUdeviceptr base;
    size_t bytes = 0;
    if (ASK((CUdeviceptr *, size_t *, CUdeviceptr), cuMemGetAddressRange_v2, &base, &bytes, pointer) != CUDA_SUCCESS || !bytes)
        ASK((void *, int, CUdeviceptr), cuPointerGetAttribute, &bytes, CU_POINTER_RANGE_SIZE, pointer);
    return whole_granules(bytes);
}

/* Counts opened memory. It was not opened at this address before. The lock is held. */
static CUresult import(CUdeviceptr pointer, uint64_t handle, uint64_t context)
{
    struct container *all = container_get();
    struct card *card = all ? card_of_pointer(pointer) : NULL;
    if (!card) return CUDA_SUCCESS;
    uint64_t bytes = size_at(pointer);
    if (bytes == 0) return CUDA_ERROR_NOT_SUPPORTED; /* it cannot be counted */
    struct entry entry = {.key = pointer, .bytes = handle, .context = context, .card = card->index, .kind = KIND_IMPORT};
    if (join_source(handle) || make_source(card, handle, bytes)) {
        if (ledger_put(entry)) return CUDA_SUCCESS;
        leave_source(handle);
    }
    memory_count_refusal(card);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * The driver counts how often a handle was opened, and returns the same address each time. So does the entry: `other`
 * counts the openings beyond the first.
 */
/* The lock is held. */
static bool open_again(CUdeviceptr pointer)
{
    struct entry entry = {0};
    bool known = ledger_find(KIND_IMPORT, pointer, &entry);
    entry.other++;
    if (known) ledger_put(entry);
    return known;
}

/* Before a close: one opening less; true: it was the last, and its entry has left the ledger. */
static bool close_once(CUdeviceptr pointer, struct entry *entry, bool *known)
{
    lock_take(&opens, LOCK_OPENS);
    *known = ledger_take(KIND_IMPORT, pointer, entry);
    bool last = *known && entry->other == 0;
    if (*known && !last) {
        entry->other--;
        ledger_put(*entry);
    }
    lock_give(&opens, LOCK_OPENS);
    return last;
}

CUresult physical_import(CUdeviceptr pointer, uint64_t handle, uint64_t context)
{
    lock_take(&opens, LOCK_OPENS);
    CUresult result = open_again(pointer) ? CUDA_SUCCESS : import(pointer, handle, context);
    lock_give(&opens, LOCK_OPENS);
    return result;
}

bool physical_close(CUdeviceptr pointer, struct entry *entry)
{
    bool known, last = close_once(pointer, entry, &known);
    if (known && !last) entry->kind = 0;
    return known;
}

void physical_reopen(CUdeviceptr pointer)
{
    lock_take(&opens, LOCK_OPENS);
    open_again(pointer);
    lock_give(&opens, LOCK_OPENS);
}

static CUresult opened(CUresult result, CUdeviceptr *pointer, const CUipcMem *handle)
{
    if (result != CUDA_SUCCESS || !pointer) return result;
    result = physical_import(*pointer, handle_hash(handle, sizeof *handle), contexts_now());
    if (result == CUDA_SUCCESS) return result;
    CALL(cuIpcCloseMemHandle, *pointer);
    *pointer = 0;
    return result;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMem handle, unsigned flags)
{
    return opened(CALL(cuIpcOpenMemHandle, pointer, handle, flags), pointer, &handle);
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMem handle, unsigned flags)
{
    return opened(CALL(cuIpcOpenMemHandle_v2, pointer, handle, flags), pointer, &handle);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    struct entry entry;
    bool known = physical_close(pointer, &entry);
    CUresult result = CALL(cuIpcCloseMemHandle, pointer);
    if (known && result == CUDA_SUCCESS) memory_release(&entry);
    else if (known) memory_restore(&entry);
    return result;
}

EXPORT CUresult cuImportExternalMemory(CUexternal *external, const CUexternalMemory *description)
{
    struct card *card = external && description ? card_current() : NULL;
    uint64_t bytes = card ? whole_granules(description->size) : 0;
    if (card && !memory_reserve(card, bytes)) {
        memory_count_refusal(card);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CALL(cuImportExternalMemory, external, description);
    if (!card) return result;
    struct entry entry = {.key = result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*external : 0, .bytes = bytes,
                          .context = contexts_now(), .card = card->index, .kind = KIND_EXTERNAL};
    if (result != CUDA_SUCCESS || !ledger_put(entry)) memory_return(card, bytes);
    return result;
}

EXPORT CUresult cuDestroyExternalMemory(CUexternal external)
{
    ENDED(cuDestroyExternalMemory, KIND_EXTERNAL, external);
}
