/* Virtual time and its threads: coroutines, of which one runs at a time, in an order that a seed decides. */
#include "model.h"
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define THREADS 256
#define STACK_BYTES (128u << 10)

struct thread {
    ucontext_t state;
    jmp_buf at; /* the point where it continues, once it has begun */
    void *stack;
    void (*body)(void *);
    void *argument;
    uint64_t wakes;
    bool (*ready)(void *);
    void *what, *own[2];
    uint32_t held; /* ranks of the locks that it holds */
    bool begun, ended, came, needs;
    _Alignas(16) unsigned char kept[MODEL_KEPT];
};

static const struct model models[] = {
    /* The conditions for which the library's rule was made: one context's work in order, and no other cost. */
    {.name = "optimistic", .slice_ns = 2 * MS, .call_ns = 1000, .wake_ns = 20000, .channel = 1024},
    /* A data-centre card, by vendors' documents and others' measurements. */
    {.name = "measured", .overlaps = true, .legacy = true, .mark_ns = 1500, .switch_ns = 100000, .slice_ns = 2 * MS,
     .call_ns = 2500, .wake_ns = 60000, .channel = 1024, .throttle = 50, .drift = 20, .alloc_ns = 50000,
     .lazy_ns = 300000, .lazy_bytes = 256 << 10, .frees_wait = true},
    /* The same with a display and clients of MPS beside it, and a driver that gathers its submissions. */
    {.name = "crowded", .overlaps = true, .legacy = true, .mark_ns = 1500, .switch_ns = 100000, .slice_ns = 2 * MS,
     .call_ns = 2500, .flush_ns = 200000, .gathers = 16, .wake_ns = 60000, .channel = 1024, .throttle = 50, .drift = 20,
     .alloc_ns = 50000, .lazy_ns = 300000, .lazy_bytes = 256 << 10, .frees_wait = true, .display = {1200000, 16667000},
     .client = {400000, 5000000}},
    /* All adverse conditions at once. */
    {.name = "hostile", .overlaps = true, .legacy = true, .mark_ns = 8000, .switch_ns = 400000, .slice_ns = 5 * MS,
     .call_ns = 6000, .flush_ns = 100000, .wake_ns = 250000, .channel = 96, .throttle = 300, .drift = 1000, .alloc_ns = 400000,
     .lazy_ns = 5000000, .lazy_bytes = 8 << 20, .frees_wait = true},
};

static struct thread threads[THREADS], *current;
static uint32_t thread_count;
static uint64_t moment, chances;
static const struct model *model;
static void (*switching)(void **own, void *kept);

const struct model *model_named(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].name, name) == 0) return &models[i];
    return NULL;
}

const struct model *world_model(void) { return model; }

uint64_t world_now(void) { return moment; }

uint64_t world_chance(uint64_t below)
{
    chances ^= chances << 13;
    chances ^= chances >> 7;
    chances ^= chances << 17;
    return below ? chances % below : 0;
}

/* A context that has work on a card and no turns. */
static void stranger(void *argument)
{
    const struct foreigner *foreigner = argument;
    struct channel *channels[MODEL_CARDS];
    for (uint32_t i = 0; i < MODEL_CARDS; i++) channels[i] = card_open(i);
    for (;;) {
        world_sleep(foreigner->every_ns);
        for (uint32_t i = 0; i < MODEL_CARDS; i++) {
            if (!card_is_empty(channels[i])) continue; /* it has fallen behind */
            card_submit(channels[i], 1, (struct submission){.ns = foreigner->works_ns, .part = 1000});
            card_flush(channels[i]);
        }
    }
}

void world_open(const struct model *of, uint64_t seed)
{
    for (uint32_t i = 0; i < thread_count; i++) free(threads[i].stack);
    memset(threads, 0, sizeof threads);
    thread_count = 0;
    current = NULL;
    model = of;
    moment = 1000 * MS;
    chances = seed * 0x9e3779b97f4a7c15ull + 0x1234567ull;
    card_reset(of);
    card_advance_all(moment);
    if (of->display.works_ns) world_thread(stranger, (void *)&of->display);
    if (of->client.works_ns) world_thread(stranger, (void *)&of->client);
}

/* `swapcontext` asks the kernel for the signal mask, which took a third of all time. Sanitizers follow only it. */
#ifdef PARTAGE_CHECKED
static ucontext_t root;

static void resume(struct thread *thread) { swapcontext(&root, &thread->state); }
static void yield(void) { swapcontext(&current->state, &root); }
#else
static jmp_buf outside;

static void resume(struct thread *thread)
{
    if (_setjmp(outside) != 0) return;
    if (thread->begun) _longjmp(thread->at, 1);
    thread->begun = true;
    setcontext(&thread->state);
}

static void yield(void)
{
    if (_setjmp(current->at) == 0) _longjmp(outside, 1);
}
#endif

static void enter(void)
{
    current->body(current->argument);
    current->ended = true;
    yield();
}

void **world_thread(void (*body)(void *), void *argument)
{
    if (thread_count == THREADS) abort();
    struct thread *thread = &threads[thread_count++];
    *thread = (struct thread){.stack = malloc(STACK_BYTES), .body = body, .argument = argument, .wakes = moment};
    if (!thread->stack || getcontext(&thread->state) != 0) abort();
    thread->state.uc_stack.ss_sp = thread->stack;
    thread->state.uc_stack.ss_size = STACK_BYTES;
    makecontext(&thread->state, enter, 0);
    return thread->own;
}

void world_on_switch(void (*hook)(void **own, void *kept)) { switching = hook; }

void **world_own(void)
{
    static void *none[2];
    return current ? current->own : none;
}

void world_needs(bool needs) { current->needs = needs; }

void world_sleep(uint64_t ns)
{
    current->ready = NULL;
    current->wakes = moment + ns;
    yield();
}

bool world_until(bool (*ready)(void *), void *what, uint64_t ns)
{
    if (ready(what)) return true;
    if (!current) abort();
    current->ready = ready;
    current->what = what;
    current->wakes = ns > MODEL_NEVER - moment ? MODEL_NEVER : moment + ns;
    yield();
    current->ready = NULL;
    return current->came;
}

/* A random one of the threads that can continue; NULL: none can at this moment. */
static struct thread *pick(void)
{
    struct thread *chosen = NULL;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < thread_count; i++) {
        struct thread *thread = &threads[i];
        if (thread->ended) continue;
        bool came = thread->ready && thread->ready(thread->what);
        if (!came && thread->wakes > moment) continue;
        if (world_chance(++seen) != 0) continue;
        chosen = thread;
        thread->came = came;
    }
    return chosen;
}

/* Does a thread that must continue wait for something that no passing time causes? */
static bool is_stuck(void)
{
    bool needed = false;
    for (uint32_t i = 0; i < thread_count; i++) {
        if (threads[i].ended || !(threads[i].needs || threads[i].held)) continue; /* a holder of a lock counts: others may wait for it */
        if (threads[i].wakes != MODEL_NEVER) return false;
        needed |= threads[i].needs;
    }
    return needed && card_next_change() == MODEL_NEVER;
}

static bool any_needed(void)
{
    for (uint32_t i = 0; i < thread_count; i++)
        if (!threads[i].ended && threads[i].needs) return true;
    return false;
}

bool world_run(uint64_t until)
{
    for (;;) {
        struct thread *thread = pick();
        if (thread) {
            current = thread;
            if (switching) switching(thread->own, thread->kept);
            resume(thread);
            current = NULL;
            if (thread->ended && !any_needed()) return true; /* all needed threads have ended */
            continue;
        }
        uint64_t next = card_next_change();
        for (uint32_t i = 0; i < thread_count; i++)
            if (!threads[i].ended && threads[i].wakes < next) next = threads[i].wakes;
        if (next >= until) break;
        if (next == MODEL_NEVER || is_stuck()) break;
        moment = next;
        card_advance_all(moment);
    }
    bool stuck = is_stuck();
    if (!stuck && moment < until && until != MODEL_NEVER) moment = until, card_advance_all(until);
    return !stuck;
}

/* The library's system calls, in virtual time. */
uint64_t clock_now(void) { return moment; }

static bool is_free(void *lock) { return ((struct lock *)lock)->word == 0; }

/* The order of locks holds here as in builds with checks. */
void lock_take(struct lock *lock, enum lock_rank rank)
{
    if (current && current->held >> rank) abort();
    if (current) current->held |= 1u << rank;
    while (lock->word) world_until(is_free, lock, MODEL_NEVER);
    lock->word = 1;
}

bool lock_try(struct lock *lock, enum lock_rank rank)
{
    if (lock->word) return false;
    if (current) current->held |= 1u << rank;
    lock->word = 1;
    return true;
}

void lock_give(struct lock *lock, enum lock_rank rank)
{
    if (current) current->held &= ~(1u << rank);
    lock->word = 0;
}

void bell_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    (void)word, (void)seen;
    world_sleep(ns);
}

void bell_ring(_Atomic uint32_t *word) { (void)word; }
