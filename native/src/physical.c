/* Physical memory by handle: created, imported, mapped. It is free when it has no handle and no mapping left. */
#include "physical.h"
#include "cards.h"
#include "contexts.h"
#include "driver.h"
#include "ledger.h"
#include "memory.h"

#define MAPPED (1ull << 32) /* entry.other of a handle: references below, mappings above */
#define IMPORTED (1ull << 63) /* and whether its size is known only when it is mapped */

static struct lock physical;
static struct lock opens; /* of handles of other processes */

void physical_forget(void) { physical = opens = (struct lock){0}; }

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

/* Counts the found size of an imported handle, once until it is gone; false: past the cap. */
static bool found_to_hold(CUmemHandle handle, struct card *card, uint64_t bytes)
{
    struct entry entry;
    lock_take(&physical, LOCK_PHYSICAL);
    bool good = !ledger_find(KIND_HANDLE, handle, &entry) || bytes <= entry.bytes;
    if (!good && memory_reserve(card, bytes - entry.bytes)) {
        entry.bytes = bytes;
        good = ledger_put(entry);
    }
    lock_give(&physical, LOCK_PHYSICAL);
    return good;
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long flags)
{
    struct entry entry;
    if (!physical_borrow(handle, &entry)) {
        CUresult result = CALL(cuMemMap, pointer, bytes, offset, handle, flags);
        /* Of no counted handle, but it may be unmapped together with counted memory. */
        if (result == CUDA_SUCCESS && container_get()) mapped(pointer, bytes, 0, 0);
        return result;
    }
    struct card *card = &container_get()->cards[entry.card];
    if ((entry.other & IMPORTED) && !found_to_hold(handle, card, bytes)) {
        physical_give_up(handle);
        memory_count_refusal(card);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
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
        bool known = physical_borrow(handle, &entry);                                                             \
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

/* Memory of another process by handle. Memory that this container exported to itself is already counted. */
EXPORT CUresult cuIpcGetMemHandle(CUipcMem *handle, CUdeviceptr pointer)
{
    CUresult result = CALL(cuIpcGetMemHandle, handle, pointer);
    struct container *all = result == CUDA_SUCCESS && handle ? container_get() : NULL;
    if (all) export_note(all->account, handle_hash(handle, sizeof *handle), &all->self);
    return result;
}

bool physical_import(const CUdeviceptr *pointer, uint64_t handle, uint64_t context)
{
    struct container *all = container_get();
    struct card *card = pointer ? card_of_pointer(*pointer) : NULL;
    if (!card || !all || export_is_ours(all->account, handle, &all->self)) return true;
    CUdeviceptr base;
    size_t bytes = 0;
    ASK((CUdeviceptr *, size_t *, CUdeviceptr), cuMemGetAddressRange_v2, &base, &bytes, *pointer);
    bytes = whole_granules(bytes);
    struct entry entry = {.key = *pointer, .bytes = bytes, .context = context, .card = card->index, .kind = KIND_IMPORT};
    if (memory_reserve(card, bytes)) {
        if (ledger_put(entry)) return true;
        memory_return(card, bytes);
    }
    memory_count_refusal(card);
    return false;
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

static CUresult opened(CUresult result, CUdeviceptr *pointer, const CUipcMem *handle)
{
    if (result != CUDA_SUCCESS || !pointer) return result;
    lock_take(&opens, LOCK_OPENS);
    bool good = open_again(*pointer) || physical_import(pointer, handle_hash(handle, sizeof *handle), contexts_now());
    lock_give(&opens, LOCK_OPENS);
    if (good) return result;
    CALL(cuIpcCloseMemHandle, *pointer);
    *pointer = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
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
    bool known, last = close_once(pointer, &entry, &known);
    CUresult result = CALL(cuIpcCloseMemHandle, pointer);
    if (result == CUDA_SUCCESS && last) memory_release(&entry);
    if (result == CUDA_SUCCESS || !known) return result;
    lock_take(&opens, LOCK_OPENS);
    if (last) ledger_put(entry);
    else open_again(pointer);
    lock_give(&opens, LOCK_OPENS);
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
