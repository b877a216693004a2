/* The driver's start and contexts: their cost in memory, and the objects that end with them. */
#include "contexts.h"
#include "driver.h"
#include "ledger.h"
#include "memory.h"
#include "pools.h"
#include "watch.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void at_end(void)
{
    struct container *all = container_get();
    /* A child of a bare clone has this handler too, but its parent's place and turns are not its own. */
    if (all && identity_pid(all->self.identity) != ((uint64_t)syscall(SYS_getpid) & 0x3fffff)) return;
    watch_stop();
    for (uint32_t i = 0; all && i < all->limits.count; i++) gate_shut(&all->cards[i].gate);
    /* Later destructors may call the driver, which may already be gone: the library does not call it for itself. */
    driver_leave();
    /* Bytes that they release must not reduce the next owner's count. */
    static struct place gone;
    struct place *place = all ? atomic_exchange(&all->place, &gone) : NULL;
    if (place) place_leave(place, &all->self);
}

/* Every visible device of the driver must have limits; one without would be unlimited. */
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
        container_complain("limits", "the driver shows a device that the file does not name", 0);
        atomic_store(&container_get()->place->state, PLACE_FAULT);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    /* Registered after the driver's own handlers, so it runs before them. */
    if (!atomic_exchange(&registered, true)) atexit(at_end);
    watch_wake(); /* always: a process that cannot read this one's /proc entry sees its beat alone */
    return result;
}

/* Counts a context until the agent has measured its real cost. */
static bool admit_context(struct card *card)
{
    if (memory_estimate(card, card->limits->context)) return true;
    memory_count_refusal(card);
    return false;
}

_Atomic uint64_t contexts_made;

static CUresult made(struct card *card, CUcontext *context, CUresult result)
{
    atomic_fetch_add(&contexts_made, 1);
    if (!card) return result;
    struct entry entry = {.key = result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*context : 0,
                          .bytes = card->limits->context, .card = card->index, .kind = KIND_CONTEXT};
    entry.context = entry.key;
    if (result != CUDA_SUCCESS || !ledger_put(entry)) memory_unestimate(card, card->limits->context);
    return result;
}

#define CREATES(name, args, ...)                                                                         \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct card *card = context ? card_of(device) : NULL;                                            \
        if (card && !admit_context(card)) return CUDA_ERROR_OUT_OF_MEMORY;                                       \
        return made(card, context, CALL(name, __VA_ARGS__));                                             \
    }

CREATES(cuCtxCreate, (CUcontext *context, unsigned flags, CUdevice device), context, flags, device)
CREATES(cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device), context, flags, device)
CREATES(cuCtxCreate_v3, (CUcontext *context, void *params, int count, unsigned flags, CUdevice device), context,
        params, count, flags, device)
CREATES(cuCtxCreate_v4, (CUcontext *context, void *params, unsigned flags, CUdevice device), context, params, flags,
        device)
CREATES(cuGLCtxCreate, (CUcontext *context, unsigned flags, CUdevice device), context, flags, device)
CREATES(cuGLCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device), context, flags, device)
CREATES(cuVDPAUCtxCreate, (CUcontext *context, unsigned flags, CUdevice device, uint32_t video, void *find), context,
        flags, device, video, find)
CREATES(cuVDPAUCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device, uint32_t video, void *find), context,
        flags, device, video, find)

/* Allocations of a context, which end with it. They leave the ledger before the driver may reuse their names. */
struct estate {
    struct entry *entries;
    uint32_t count;
};

/* Events must be destroyed while the context still exists. */
static void forget_gates(CUcontext context)
{
    struct container *all = container_get();
    for (uint32_t i = 0; all && i < all->limits.count; i++) gate_forget(&all->cards[i].gate, context, NULL, true);
}

static struct estate open_estate(uint64_t context)
{
    struct estate estate;
    forget_gates((CUcontext)(uintptr_t)context);
    estate.count = pools_take_of(context, &estate.entries);
    return estate;
}

static void close_estate(struct estate estate, bool ended)
{
    for (uint32_t i = 0; i < estate.count; i++) {
        if (ended) memory_release(&estate.entries[i]);
        else ledger_put(estate.entries[i]);
    }
    free(estate.entries);
}

#define DESTROYS(name)                                                                                   \
    EXPORT CUresult name(CUcontext context)                                                              \
    {                                                                                                    \
        struct estate estate = open_estate((uint64_t)(uintptr_t)context);                                \
        CUresult result = CALL(name, context);                                                           \
        close_estate(estate, result == CUDA_SUCCESS);                                                    \
        return result;                                                                                   \
    }

DESTROYS(cuCtxDestroy)
DESTROYS(cuCtxDestroy_v2)

#define DEVICES 64
/* By device, for holders of its primary context: the driver may wait for another's work under it. And for others. */
static struct lock holders[DEVICES], users;

static _Atomic bool greens; /* a green context was made */

void contexts_forget(void)
{
    memset(holders, 0, sizeof holders);
    users = (struct lock){0};
}

static struct lock *holders_of(CUdevice device) { return &holders[(unsigned)device % DEVICES]; }

/* The old count of a context's users: one from the start, in `other` the rest; the last to detach ends it. */
static bool hold_by(uint64_t context, int64_t more)
{
    struct entry entry;
    lock_take(&users, LOCK_USERS);
    bool known = ledger_find(KIND_CONTEXT, context, &entry) && (more > 0 || entry.other > 0);
    if (known) {
        entry.other += (uint64_t)more;
        ledger_put(entry);
    }
    lock_give(&users, LOCK_USERS);
    return known;
}

EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags)
{
    CUresult result = CALL(cuCtxAttach, context, flags);
    if (result == CUDA_SUCCESS && context) hold_by((uint64_t)(uintptr_t)*context, 1);
    return result;
}

EXPORT CUresult cuCtxDetach(CUcontext context)
{
    struct entry entry;
    uint64_t key = (uint64_t)(uintptr_t)context;
    bool one_of_many = hold_by(key, -1), last = !one_of_many && ledger_find(KIND_CONTEXT, key, &entry);
    struct estate estate = {0};
    if (last) estate = open_estate(key);
    CUresult result = CALL(cuCtxDetach, context);
    close_estate(estate, result == CUDA_SUCCESS);
    if (one_of_many && result != CUDA_SUCCESS) hold_by(key, 1);
    return result;
}

/* The primary context of a device is one for all holders: keyed by device, as its address is known only later. */
static uint64_t primary_key(CUdevice device) { return (uint64_t)(unsigned)device | 1ull << 63; }

uint64_t contexts_now(void)
{
    CUcontext context = NULL;
    CUdevice device;
    struct entry entry;
    ASK((CUcontext *), cuCtxGetCurrent, &context);
    uint64_t key = (uint64_t)(uintptr_t)context;
    /* A context that was not created is a primary one, or a green one of it. */
    if (!context || !atomic_load(&greens) || ledger_find(KIND_CONTEXT, key, &entry)) return key;
    bool told = ASK((CUdevice *), cuCtxGetDevice, &device) == CUDA_SUCCESS;
    return told && ledger_find(KIND_CONTEXT, primary_key(device), &entry) && entry.context ? entry.context : key;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    struct card *card = context ? card_of(device) : NULL;
    struct entry entry = {.key = primary_key(device), .kind = KIND_CONTEXT};
    if (!card) return CALL(cuDevicePrimaryCtxRetain, context, device);
    bool active = ledger_find(KIND_CONTEXT, entry.key, &entry) && entry.context; /* it was not reset since */
    if (!active && !admit_context(card)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL(cuDevicePrimaryCtxRetain, context, device);
    if (result == CUDA_SUCCESS) {
        if (!active) atomic_fetch_add(&contexts_made, 1);
        entry.other++;
        entry.card = card->index;
        entry.context = (uint64_t)(uintptr_t)*context;
        if (!active) entry.bytes = card->limits->context;
        ledger_put(entry);
    } else if (!active) {
        memory_unestimate(card, card->limits->context);
    }
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    lock_take(holders_of(device), LOCK_HOLDERS);
    CUresult result = retain(context, device);
    lock_give(holders_of(device), LOCK_HOLDERS);
    return result;
}

/* A reset ends all of it except the holds: each holder still has to release it. */
static CUresult let_go(CUresult (*real)(CUdevice), CUdevice device, bool reset)
{
    struct entry entry = {0};
    struct estate estate = {0};
    lock_take(holders_of(device), LOCK_HOLDERS);
    bool known = ledger_find(KIND_CONTEXT, primary_key(device), &entry), last = known && (reset || entry.other <= 1);
    if (last && entry.context) estate = open_estate(entry.context);
    else if (last) ledger_take(KIND_CONTEXT, entry.key, &entry);
    CUresult result = real ? real(device) : CUDA_ERROR_NOT_SUPPORTED;
    bool good = result == CUDA_SUCCESS;
    close_estate(estate, good);
    if (last && !entry.context && !good) ledger_put(entry);
    if (known && good && (reset || !last)) {
        entry.other -= !reset;
        if (reset) entry.bytes = entry.context = 0;
        ledger_put(entry);
    }
    lock_give(holders_of(device), LOCK_HOLDERS);
    return result;
}

#define ENDS_PRIMARY(name, reset)                                                                        \
    EXPORT CUresult name(CUdevice device) { return let_go(REAL(name), device, reset); }

ENDS_PRIMARY(cuDevicePrimaryCtxRelease, false)
ENDS_PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
ENDS_PRIMARY(cuDevicePrimaryCtxReset, true)
ENDS_PRIMARY(cuDevicePrimaryCtxReset_v2, true)

/*
 * A process that goes on after a checkpoint has its memory where it had it, and it is counted there. On other cards than
 * before it would count on the wrong ones.
 */
EXPORT CUresult cuCheckpointProcessRestore(int pid, const CUrestoreArgs *args)
{
    bool moves = false;
    for (unsigned i = 0; args && args->pairs && i < args->count; i++)
        moves |= memcmp(&args->pairs[i].before, &args->pairs[i].after, sizeof args->pairs[i].after) != 0;
    return moves ? CUDA_ERROR_NOT_SUPPORTED : CALL(cuCheckpointProcessRestore, pid, args);
}

/*
 * A green context is a part of the primary one, which it keeps alive: so the primary is counted. Allocations in it
 * are the primary's as well, and outlive it.
 */
EXPORT CUresult cuGreenCtxCreate(CUgreen *green, void *resources, CUdevice device, unsigned flags)
{
    CUcontext context;
    if (!green || !card_of(device)) return CALL(cuGreenCtxCreate, green, resources, device, flags);
    lock_take(holders_of(device), LOCK_HOLDERS);
    CUresult result = retain(&context, device);
    lock_give(holders_of(device), LOCK_HOLDERS);
    if (result != CUDA_SUCCESS) return result;
    result = CALL(cuGreenCtxCreate, green, resources, device, flags);
    struct entry entry = {.other = (uint64_t)(unsigned)device, .kind = KIND_GREEN};
    if (result == CUDA_SUCCESS) {
        atomic_store(&greens, true);
        atomic_fetch_add(&contexts_made, 1);
        entry.key = (uint64_t)(uintptr_t)*green;
        if (ledger_put(entry)) return result;
        CALL(cuGreenCtxDestroy, *green);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    let_go(REAL(cuDevicePrimaryCtxRelease_v2), device, false);
    return result;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreen green)
{
    struct entry entry;
    CUcontext context = NULL;
    bool known = ledger_take(KIND_GREEN, (uint64_t)(uintptr_t)green, &entry);
    if (known && ASK((CUcontext *, CUgreen), cuCtxFromGreenCtx, &context, green) == CUDA_SUCCESS) forget_gates(context);
    CUresult result = CALL(cuGreenCtxDestroy, green);
    if (known && result == CUDA_SUCCESS)
        let_go(REAL(cuDevicePrimaryCtxRelease_v2), (CUdevice)entry.other, false);
    else if (known) ledger_put(entry);
    return result;
}
