/* A lock among the threads of one process: one word, the kernel's futex when contended. */
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

#ifdef PARTAGE_VIRTUAL /* time and threads of the model (model/) */
uint64_t clock_now(void);
void lock_take(struct lock *lock);
bool lock_try(struct lock *lock);
void lock_give(struct lock *lock);
void bell_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns);
void bell_ring(_Atomic uint32_t *word);
#else

static inline void lock_take(struct lock *lock)
{
    uint32_t seen = 0;
    if (atomic_compare_exchange_strong(&lock->word, &seen, 1)) return;
    while (atomic_exchange(&lock->word, 2) != 0)
        syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline bool lock_try(struct lock *lock)
{
    uint32_t seen = 0;
    return atomic_compare_exchange_strong(&lock->word, &seen, 1);
}

static inline void lock_give(struct lock *lock)
{
    if (atomic_exchange(&lock->word, 0) == 2)
        syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Sleeps until `word` is no longer `seen`, is rung, or `ns` are over. Shared between processes. */
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
