/*
 * The watch: a thread that closes and counts batches when the program itself is silent, writes the beats of
 * seat and place, and passes the turn on.
 */
#include "watch.h"
#include "container.h"
#include "driver.h"
#include "physical.h"
#include "pools.h"
#include "symbols.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define ROUND_SLEEP_NS 1000000ull
#define LONG_SLEEP_NS (10000 * ROUND_SLEEP_NS) /* until a call; a place expires once its beat is six times as old */

static _Atomic uint32_t state; /* 0 none, 1 runs, 2 must end, 3 ended */
static _Atomic uint32_t call;  /* changes when there is work */

typedef int make_thread(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

/* By its oldest version, and weak: an old C library has it in an object that may be loaded only later. */
extern make_thread pthread_create_oldest __attribute__((weak));
#ifdef __x86_64__
__asm__(".symver pthread_create_oldest, pthread_create@GLIBC_2.2.5");
#else
__asm__(".symver pthread_create_oldest, pthread_create@GLIBC_2.17");
#endif

/* ns until the next. */
static uint64_t round_of_all(void)
{
    struct container *all = container_get();
    uint64_t soonest = LONG_SLEEP_NS;
    for (uint32_t i = 0; all && i < all->limits.count; i++) {
        uint64_t again = all->cards[i].gate.open ? gate_watch(&all->cards[i].gate) : 0;
        if (again && again < soonest) soonest = again;
    }
    uint64_t again = all && all->place ? pools_watch() : 0;
    if (again && again < soonest) soonest = again;
    again = all && all->place ? physical_watch() : 0;
    if (again && again < soonest) soonest = again;
    if (all && all->place) atomic_store(&all->place->beat, clock_now());
    return soonest;
}

static void *watch(void *unused)
{
    int mode = CU_CAPTURE_RELAXED;
    (void)unused;
    ASK((int *), cuThreadExchangeStreamCaptureMode, &mode);
    while (atomic_load(&state) == 1) {
        uint32_t seen = atomic_load(&call);
        bell_wait(&call, seen, round_of_all());
    }
    atomic_store(&state, 3);
    bell_ring(&state);
    return NULL;
}

static void start(void)
{
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    make_thread *make = pthread_create_oldest;
    if (!make) make = (make_thread *)symbols_of_libc("pthread_create");
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (!make || make(&thread, &detached, watch, NULL) != 0) {
        atomic_store(&state, 0);
        container_warn("watch", "the library cannot start a thread, so work counts only when the program calls the driver");
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}

void watch_wake(void)
{
    uint32_t none = 0;
    if (atomic_load_explicit(&state, memory_order_acquire) == 0 &&
        atomic_compare_exchange_strong(&state, &none, 1))
        start();
    atomic_fetch_add(&call, 1);
    bell_ring(&call);
}

void watch_stop(void)
{
    uint32_t runs = 1;
    if (!atomic_compare_exchange_strong(&state, &runs, 2)) return;
    atomic_fetch_add(&call, 1);
    bell_ring(&call);
    /* Bounded: a driver call that does not return must not keep the process from ending. */
    for (int i = 0; i < 100 && atomic_load(&state) == 2; i++) bell_wait(&state, 2, ROUND_SLEEP_NS);
}

void watch_forget(void)
{
    atomic_store(&state, 0);
    atomic_store(&call, 0);
}
