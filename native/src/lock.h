/*
 * A lock among the threads of one process: one word, the kernel's futex under contention. And the order of all locks.
 *
 * The holder of a lock takes only locks that are later in `lock_rank`, and none twice, so no two threads wait for each
 * other. Builds with checks (SANITIZE) end at the first violation; in others a rank costs nothing.
 */
#ifndef PARTAGE_LOCK_H
#define PARTAGE_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct lock {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and waited for */
};

enum lock_rank {
    LOCK_HOLDERS = 1, /* of a device's primary context; the driver may wait for other threads' work under it */
    LOCK_SETTINGS,    /* values for cuCtxSetLimit */
    LOCK_OPENS,       /* handles of other processes */
    LOCK_PHYSICAL,    /* references and mappings of a handle */
    LOCK_POOLS,       /* and memory freed in stream order */
    LOCK_BLOCKS,      /* that allocations of a card share */
    LOCK_SOURCES,     /* memory of other processes */
    LOCK_GRAPHS,
    LOCK_USERS,   /* of contexts */
    LOCK_LEDGER,
    LOCK_GATE,    /* of a card's turns */
    LOCK_OPENING, /* of the container: taken by its first call, from any caller */
};

#ifdef PARTAGE_CHECKED
extern _Thread_local uint32_t locks_held; /* a bit for each rank */

static inline void lock_check(enum lock_rank rank)
{
    if (locks_held >> rank) __builtin_trap();
}

static inline void lock_note(enum lock_rank rank) { locks_held |= 1u << rank; }
static inline void lock_drop(enum lock_rank rank) { locks_held &= ~(1u << rank); }
static inline void locks_forget(void) { locks_held = 0; }
#else
static inline void lock_check(enum lock_rank rank) { (void)rank; }
static inline void lock_note(enum lock_rank rank) { (void)rank; }
static inline void lock_drop(enum lock_rank rank) { (void)rank; }
static inline void locks_forget(void) {}
#endif

#ifdef PARTAGE_VIRTUAL /* time and threads of the model (model/) */
uint64_t clock_now(void);
void lock_take(struct lock *lock, enum lock_rank rank);
bool lock_try(struct lock *lock, enum lock_rank rank);
void lock_give(struct lock *lock, enum lock_rank rank);
void bell_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns);
void bell_ring(_Atomic uint32_t *word);
#else

static inline void lock_take(struct lock *lock, enum lock_rank rank)
{
    uint32_t seen = 0;
    lock_check(rank);
    lock_note(rank);
    if (atomic_compare_exchange_strong(&lock->word, &seen, 1)) return;
    while (atomic_exchange(&lock->word, 2) != 0)
        syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline bool lock_try(struct lock *lock, enum lock_rank rank)
{
    uint32_t seen = 0;
    bool taken = atomic_compare_exchange_strong(&lock->word, &seen, 1);
    if (taken) lock_note(rank);
    return taken;
}

static inline void lock_give(struct lock *lock, enum lock_rank rank)
{
    lock_drop(rank);
    if (atomic_exchange(&lock->word, 0) == 2)
        syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Sleeps until `word` is no longer `seen`, is rung, or `ns` have passed. Shared between processes. */
static inline void bell_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    struct timespec span = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &span, NULL, 0);
}

static inline void bell_ring(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static inline uint64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}
#endif

#endif
