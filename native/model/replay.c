/*
 * Programs over the library and a modelled card in virtual time.
 *
 * Usage: replay SCENE MODEL SEED [NUMBER [bare]]       prints "name value" lines; ends with 3 if all hang
 *        replay trace-NAME MODEL SEED TENANTS [bare|memory|best-effort|fixed-share|burst-share [MIB]]
 *                                              a framework's program in each tenant, with even quotas and parts of the memory;
 *                                              trace-NAME+NAME: every second tenant has the other
 *        replay interleavings MODEL SEED COUNT         so many times few tenants with any programs and terms, each to its end
 */
#include "traces.h"
#include "../src/batch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define US 1000ull
#define SECOND (1000 * MS)

static struct process processes[SEATS];
static uint64_t number, until;
static bool bare;

static const struct submission nothing;

static struct submission kernel(uint64_t ns, uint32_t part)
{
    struct submission work = nothing;
    work.ns = ns;
    work.part = part;
    return work;
}

static void say(const char *name, uint64_t value) { printf("%s %llu\n", name, (unsigned long long)value); }

static struct tenant_terms terms(enum policy policy, uint32_t quota)
{
    return (struct tenant_terms){.policy = policy, .priority = PRIORITY_ORDINARY, .quota = quota, .bare = bare};
}

/* Graphs of 300 us in a row, a wait after each round, with little host time between. */
static void graphs(void *argument)
{
    struct process *process = argument;
    for (uint64_t i = 0;; i++) {
        uint64_t name = 0x7f0000000000ull + (i % number * 0x9e3779b97f4a7c15ull >> 36) * 16; /* spread as addresses on a heap */
        process_launch(process, 0, 1, name, name, kernel(300 * US, 1000));
        if (i % 32 == 31) process_await(process, 0, 1);
    }
}

static int many_graphs(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 1000));
    world_thread(graphs, &processes[0]);
    bool good = world_run(world_now() + SECOND);
    say("busy", card_busy(0) * 1000 / SECOND);
    return good ? 0 : 3;
}

/* The same in two tenants: as one waits for the other, launches ahead are bounded by what graphs are expected to take. */
static int graphs_in_turns(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        process_open(&processes[i], 1, i, terms(POLICY_BURST_SHARE, 500));
        world_thread(graphs, &processes[i]);
    }
    bool good = world_run(world_now() + 2 * SECOND);
    uint64_t before = card_busy(0);
    good &= world_run(world_now() + 2 * SECOND);
    say("busy", (card_busy(0) - before) * 1000 / (2 * SECOND));
    return good ? 0 : 3;
}

/* A kernel that never ends on one stream, small ones with waits on another. */
static void small(void *argument)
{
    struct process *process = argument;
    struct submission spin = kernel(0, 100);
    spin.work = WORK_SPIN;
    spin.flag = 1;
    process_launch(process, 0, 2, 0, 0x100, spin);
    for (;;) {
        for (int i = 0; i < 10; i++) process_launch(process, 0, 3, 0, 0x200, kernel(50 * US, 500));
        process_await(process, 0, 3);
    }
}

static int beside_long(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 500));
    world_thread(small, &processes[0]);
    bool good = world_run(world_now() + SECOND);
    say("launches", processes[0].launches);
    return good ? 0 : 3;
}

/* One tenant launches ahead as far as it may, and never waits. Another wakes beside it, and waits for each of its kernels. */
static void ahead(void *argument)
{
    for (;;) process_launch(argument, 0, 1, 0, 0x100, kernel(200 * US, 1000));
}

static uint64_t first_after;

static void waker(void *argument)
{
    uint64_t begun;
    world_sleep(500 * MS);
    begun = world_now();
    for (;;) {
        process_launch(argument, 0, 1, 0, 0x200, kernel(MS, 1000));
        process_await(argument, 0, 1);
        if (!first_after) first_after = world_now() - begun;
    }
}

static int wakes(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 500));
    process_open(&processes[1], 1, 1, terms(POLICY_BURST_SHARE, 500));
    world_thread(ahead, &processes[0]);
    world_thread(waker, &processes[1]);
    bool good = world_run(world_now() + SECOND);
    uint64_t before = card_served(processes[1].channels[0]);
    good &= world_run(world_now() + SECOND);
    say("first-us", first_after / US);
    say("share", (card_served(processes[1].channels[0]) - before) * 1000 / SECOND);
    return good ? 0 : 3;
}

/* A host function on a stream needs the lock under which its program launches, such as an interpreter's. */
static bool locked;
static bool is_unlocked(void *unused) { return (void)unused, !locked; }

static uint64_t longest;

static void interpreter(void *argument)
{
    for (uint64_t i = 0;; i++) {
        struct submission host = {.work = WORK_HOST, .host = is_unlocked};
        uint64_t begun = world_now();
        locked = true;
        process_launch(argument, 0, 1, 0, 0x100, kernel(3 * MS, 1000));
        process_part(argument, 0, 1, host);
        for (int k = 0; k < 8; k++) process_launch(argument, 0, 1, 0, 0x100, kernel(3 * MS, 1000));
        locked = false;
        if (i && world_now() - begun > longest) longest = world_now() - begun;
        process_await(argument, 0, 1);
    }
}

static int callbacks(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_FIXED_SHARE, 990));
    world_thread(interpreter, &processes[0]);
    bool good = world_run(world_now() + 4 * SECOND);
    say("longest-us", longest / US);
    say("busy", card_busy(0) / 4 / MS);
    return good ? 0 : 3;
}

/* Many short kernels and some long ones, of two tenants with half the card each. */
static void uneven(void *argument)
{
    for (uint64_t i = 0;; i++) {
        uint64_t ns = i % 100 < 4 ? 4 * MS : 20 * US;
        process_launch(argument, 0, 1, 0, 0x1000 + (ns / 10000) * 16, kernel(ns, 1000));
    }
}

static int mixed(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        process_open(&processes[i], 1, i, terms(POLICY_FIXED_SHARE, 500));
        world_thread(uneven, &processes[i]);
    }
    bool good = world_run(world_now() + 4 * SECOND);
    say("busy", card_busy(0) / 4 / MS);
    say("first", card_served(processes[0].channels[0]) / 4 / MS);
    return good ? 0 : 3;
}

/* Work on the legacy stream; then on a blocking stream a kernel that spins for one on another blocking stream. */
static void joined(void *argument)
{
    struct process *process = argument;
    world_needs(true);
    for (uint64_t i = 0; i < 20; i++) {
        struct submission spin = kernel(0, 100), sets = kernel(20 * US, 100);
        flag_set(1, false);
        process_launch(process, 0, 0, 0, 0x100, kernel(world_chance(5 * MS), 500));
        spin.work = WORK_SPIN;
        spin.flag = sets.sets = 1;
        process_launch(process, 0, 1, 0, 0x200, spin);
        world_sleep(world_chance(4 * MS));
        process_launch(process, 0, 2, 0, 0x300, sets);
        process_await(process, 0, MODEL_STREAMS);
    }
    say("ended", 1);
}

/* Two threads, one on the legacy stream and one beside it. */
static void on_legacy(void *argument)
{
    for (uint64_t i = 0;; i++) {
        process_launch(argument, 0, 0, 0, 0x100, kernel(200 * US + world_chance(200 * US), 1000));
        if (i % 4 == 3) process_await(argument, 0, 0);
    }
}

static void on_blocking(void *argument)
{
    for (uint64_t i = 0;; i++) {
        process_launch(argument, 0, 1, 0, 0x200, kernel(200 * US + world_chance(200 * US), 1000));
        if (i % 8 == 7) process_await(argument, 0, 1);
    }
}

static int beside_legacy(void)
{
    streams_join = true;
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 500));
    world_thread(on_legacy, &processes[0]);
    world_thread(on_blocking, &processes[0]);
    bool good = world_run(world_now() + SECOND);
    say("counted", processes[0].books[0].served / US);
    say("used", card_served(processes[0].channels[0]) / US);
    return good ? 0 : 3;
}

/* The host stops in its launch on the legacy stream. Meanwhile another thread's stream begins to spin for a third one. */
static void stops(void *argument)
{
    struct submission work = kernel(100 * US, 1000);
    work.late = 2 * MS;
    process_launch(argument, 0, 0, 0, 0x100, work);
}

static void spins_meanwhile(void *argument)
{
    struct submission spin = kernel(0, 100), there = kernel(100 * US, 100);
    spin.work = WORK_SPIN;
    spin.flag = there.sets = 1;
    world_needs(true);
    world_sleep(MS);
    process_launch(argument, 0, 1, 0, 0x200, spin);
    world_sleep(3 * MS);
    process_launch(argument, 0, 2, 0, 0x300, there);
    process_await(argument, 0, 1);
    say("ended", 1);
}

static int legacy_marks(void)
{
    streams_join = true; /* by the documentation of cuStreamCreate */
    if (number) {
        process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 1000));
        world_thread(stops, &processes[0]);
        world_thread(spins_meanwhile, &processes[0]);
        return world_run(world_now() + 2 * SECOND) ? 0 : 3;
    }
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 1000));
    world_thread(joined, &processes[0]);
    until = world_now() + 2 * SECOND;
    bool good = world_run(until);
    return good ? 0 : 3;
}

/* Copies from the host behind a kernel that does not end, until the channel is full. */
static void copier(void *argument)
{
    struct process *process = argument;
    struct submission spin = kernel(0, 100);
    spin.work = WORK_SPIN;
    spin.flag = 1;
    process_launch(process, 0, 1, 0, 0x100, spin);
    for (;;) card_submit(process->channels[0], 1, kernel(10 * US, 1));
}

/* So another thread stays inside the driver, also during a mark of the library. */
static void filler(void *argument)
{
    world_thread(copier, argument);
    world_sleep(MS);
    for (;;) process_launch(argument, 0, 2, 0, 0x200, kernel(50 * US, 500));
}

static uint64_t oldest_beat;

static void listener(void *argument)
{
    struct process *process = argument;
    for (;;) {
        const struct seat *seat = process->gates[0].outer.own;
        world_sleep(MS);
        if (seat->wants && world_now() - seat->beat > oldest_beat) oldest_beat = world_now() - seat->beat;
    }
}

static int full_channel(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 500));
    world_thread(filler, &processes[0]);
    world_thread(listener, &processes[0]);
    world_run(world_now() + SECOND);
    say("beat-us", oldest_beat / US);
    return 0;
}

static void leaver(void *argument)
{
    world_needs(true);
    world_sleep(SECOND);
    gate_shut(&((struct process *)argument)->gates[0]);
    say("ended", 1);
}

/* The process ends while one of its threads never returns from the driver. */
static int leaves(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 500));
    world_thread(filler, &processes[0]);
    world_thread(leaver, &processes[0]);
    return world_run(world_now() + 20 * SECOND) ? 0 : 3;
}

/* A launch in eight is its function's first, and takes the host 2 ms to load. */
static void loader(void *argument)
{
    for (uint64_t i = 0;; i++) {
        struct submission work = kernel(20 * US, 1000);
        if (i % 8 == 0) work.loading = 2 * MS;
        process_launch(argument, 0, 1, 0, 0x1000 + i / 8 * 64, work);
        if (number && i % number == 0) process_await(argument, 0, 1);
        world_sleep(world_chance(20 * US));
    }
}

static int loads(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 500));
    world_thread(loader, &processes[0]);
    bool good = world_run(world_now() + SECOND);
    say("counted", processes[0].books[0].served / US);
    say("used", card_served(processes[0].channels[0]) / US);
    return good ? 0 : 3;
}

/* Kernels of 5 ms with a fixed share of 20 %; the host pauses for 20 ms after the first launch, and after each NUMBERth. */
static void halting(void *argument)
{
    for (uint64_t i = 0;; i++) {
        struct submission work = kernel(5 * MS, 1000);
        if (number ? i % number == 0 : i == 0) work.late = 20 * MS;
        process_launch(argument, 0, 1, 0, 0x100, work);
    }
}

static int late_host(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_FIXED_SHARE, 200));
    world_thread(halting, &processes[0]);
    bool good = world_run(world_now() + SECOND);
    say("first", card_served(processes[0].channels[0]) / MS);
    good &= world_run(world_now() + 4 * SECOND);
    say("share", card_served(processes[0].channels[0]) / 5 / MS);
    say("counted", processes[0].books[0].served / US);
    say("used", card_served(processes[0].channels[0]) / US);
    return good ? 0 : 3;
}

/*
 * 10 us of the card, then 300 of the host: NUMBER 0 with a fixed share of 20 %, else bursting. NUMBER 2: first the same
 * function takes long, ten times; then the program waits for short work, with pauses of 3 ms.
 */
static void pausing(void *argument)
{
    for (uint32_t i = 0; number == 2; i++) {
        process_launch(argument, 0, 1, 0, 0x100, kernel(i < 10 ? 50 * MS : 200 * US, 1000));
        if (i < 74) process_await(argument, 0, 1);
        else world_sleep(3 * MS);
    }
    for (;;) {
        process_launch(argument, 0, 1, 0, 0x100, kernel(10 * US, 1000));
        world_sleep(300 * US);
    }
}

static int pauses(void)
{
    process_open(&processes[0], 1, 0, terms(number ? POLICY_BURST_SHARE : POLICY_FIXED_SHARE, 200));
    world_thread(pausing, &processes[0]);
    bool good = world_run(world_now() + SECOND);
    say("launches", processes[0].launches);
    say("counted", processes[0].books[0].served / US);
    say("used", card_served(processes[0].channels[0]) / US);
    return good ? 0 : 3;
}

/* 20 us of the card, after each of which its stream waits for 180: for a function of the host, or (NUMBER 1) for another context. */
static void parting(void *argument)
{
    struct process *process = argument;
    struct channel *other = card_open(1);
    struct event *event = event_new();
    for (uint64_t i = 0;; i++) {
        struct submission host = {.work = WORK_HOST, .ns = 180 * US};
        process_launch(process, 0, 1, 0, 0x100, kernel(20 * US, 1000));
        if (number) {
            card_submit(other, 1, host);
            card_submit(other, 1, (struct submission){.work = WORK_MARK, .event = event});
            card_flush(other);
            host = (struct submission){.work = WORK_AWAIT, .event = event};
        }
        process_part(process, 0, 1, host);
        if (i % 16 == 15) process_await(process, 0, 1);
    }
}

static int parts(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 300));
    world_thread(parting, &processes[0]);
    bool good = world_run(world_now() + SECOND);
    say("counted", processes[0].books[0].served / US);
    say("used", processes[0].launches * 20);
    return good ? 0 : 3;
}

/* Kernels of 8 us, a wait after every NUMBER of them. */
static void waiting(void *argument)
{
    for (uint64_t i = 0;; i++) {
        process_launch(argument, 0, 1, 0, 0x100, kernel(8 * US, 1000));
        if (i % number == number - 1) process_await(argument, 0, 1);
    }
}

static int long_waits(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_BURST_SHARE, 500));
    world_thread(waiting, &processes[0]);
    bool good = world_run(world_now() + SECOND);
    say("counted", processes[0].books[0].served / US);
    say("used", card_served(processes[0].channels[0]) / US);
    return good ? 0 : 3;
}

/* One tenant alone with a fixed share of 20 %: NUMBER 0 kernels of 1 ms and a wait after each; 1 without waits; 2 graphs of 10 ms,
 * four ahead; 3 kernels of 20 us; 4 three threads; 5 kernels of 400 ms. */
static void alone(void *argument)
{
    static uint64_t threads;
    uint32_t stream = (uint32_t)++threads, every = number == 0 ? 1 : number == 2 ? 4 : number == 4 ? 2 : 0;
    uint64_t ns = number == 2 ? 10 * MS : number == 3 ? 20 * US : number == 5 ? 400 * MS : MS;
    for (uint64_t i = 1;; i++) {
        process_launch(argument, 0, stream, number == 2 ? 0x900 : 0, 0x100, kernel(ns, 1000));
        if (every && i % every == 0) process_await(argument, 0, stream);
    }
}

static int alone_shares(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_FIXED_SHARE, 200));
    for (int i = 0; i < (number == 4 ? 3 : 1); i++) world_thread(alone, &processes[0]);
    uint64_t seconds = number == 5 ? 40 : 4;
    world_run(world_now() + 2 * SECOND);
    uint64_t before = card_served(processes[0].channels[0]);
    bool good = world_run(world_now() + seconds * SECOND);
    say("share", (card_served(processes[0].channels[0]) - before) / seconds / MS);
    return good ? 0 : 3;
}

/* NUMBER tenants with even fixed-share quotas, all busy; NUMBER 0: of 30 and 70 %. */
static void steady(void *argument)
{
    for (uint64_t i = 0;; i++) {
        process_launch(argument, 0, 1, 0, 0x100 + i % 3 * 16, kernel(200 * US + i % 3 * 400 * US, 1000));
        if (i % 16 == 15) process_await(argument, 0, 1);
    }
}

static int shares(void)
{
    uint32_t count = number ? (uint32_t)number : 2;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t quota = number ? 1000 / count : i ? 700 : 300;
        process_open(&processes[i], 1, i, terms(POLICY_FIXED_SHARE, quota));
        world_thread(steady, &processes[i]);
    }
    world_run(world_now() + SECOND);
    uint64_t before[SEATS];
    for (uint32_t i = 0; i < count; i++) before[i] = card_served(processes[i].channels[0]);
    bool good = world_run(world_now() + 8 * SECOND);
    for (uint32_t i = 0; i < count; i++) {
        char name[24];
        snprintf(name, sizeof name, "share-%u", i);
        say(name, (card_served(processes[i].channels[0]) - before[i]) / 8 / MS);
    }
    return good ? 0 : 3;
}

/* Two busy ones with fixed quotas of 30 and 40 %; the agent raises the first to 60 % while it runs, then lowers it to 20 %. */
static int adjusted(void)
{
    static const char *const names[] = {"before", "raised", "lowered"};
    static const uint32_t quotas[] = {300, 600, 200};
    static _Atomic uint64_t granted;
    bool good = true;
    for (uint32_t i = 0; i < 2; i++) {
        process_open(&processes[i], 1, i, terms(POLICY_FIXED_SHARE, i ? 400 : quotas[0]));
        world_thread(steady, &processes[i]);
    }
    processes[0].gates[0].granted = &granted;
    for (uint32_t k = 0; k < 3; k++) {
        atomic_store(&granted, quotas[k]);
        process_terms(0, 0, terms(POLICY_FIXED_SHARE, quotas[k]));
        good &= world_run(world_now() + SECOND);
        uint64_t before = card_served(processes[0].channels[0]);
        good &= world_run(world_now() + 2 * SECOND);
        say(names[k], (card_served(processes[0].channels[0]) - before) / 2 / MS);
    }
    return good ? 0 : 3;
}

/* Two that burst, with quotas of 10 and 40 %. */
static int bursts(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        process_open(&processes[i], 1, i, terms(POLICY_BURST_SHARE, i ? 400 : 100));
        world_thread(steady, &processes[i]);
    }
    bool good = world_run(world_now() + 8 * SECOND);
    say("small", card_served(processes[0].channels[0]) / 8 / MS);
    say("large", card_served(processes[1].channels[0]) / 8 / MS);
    return good ? 0 : 3;
}

/* Says the part of each of three tenants in the next four seconds. */
static bool parts_of_three(const char *when)
{
    uint64_t before[3];
    for (uint32_t i = 0; i < 3; i++) before[i] = card_served(processes[i].channels[0]);
    bool good = world_run(world_now() + 4 * SECOND);
    for (uint32_t i = 0; i < 3; i++) {
        char name[24];
        snprintf(name, sizeof name, "%s-%u", when, i);
        say(name, (card_served(processes[i].channels[0]) - before[i]) / 4 / MS);
    }
    return good;
}

/* Tenants that burst with 5, 5 and 10 %; the last one has no work at first. */
static int idle_time(void)
{
    for (uint32_t i = 0; i < 3; i++) process_open(&processes[i], 1, i, terms(POLICY_BURST_SHARE, i < 2 ? 50 : 100));
    for (uint32_t i = 0; i < 2; i++) world_thread(steady, &processes[i]);
    bool good = parts_of_three("idle");
    world_thread(steady, &processes[2]);
    return parts_of_three("busy") && good ? 0 : 3;
}

/* With 20 % of the card: work for 300 ms, then none for 700. */
static void dozes(void *argument)
{
    for (;;) {
        for (uint64_t end = world_now() + 300 * MS; world_now() < end;) {
            process_launch(argument, 0, 1, 0, 0x100, kernel(200 * US, 1000));
            process_await(argument, 0, 1);
        }
        world_sleep(700 * MS);
    }
}

static int saves_up(void)
{
    process_open(&processes[0], 1, 0, terms(POLICY_FIXED_SHARE, 200));
    world_thread(dozes, &processes[0]);
    bool good = world_run(world_now() + 10 * SECOND);
    say("share", card_served(processes[0].channels[0]) / 10 / MS);
    return good ? 0 : 3;
}

/* Collectives of two ranks on two cards: each waits on its card for the other. NUMBER tenants, and a wait after each step. */
static uint64_t steps[SEATS];

static void collective(void *argument)
{
    struct process *process = argument;
    uint32_t who = (uint32_t)(process - processes);
    for (;;) {
        flag_set(1 + who * 2, false), flag_set(2 + who * 2, false);
        for (uint32_t card = 0; card < 2; card++) {
            /* Sets the flag of this rank, and spins for the other's. */
            struct submission work = kernel(0, 100), there = kernel(500 * US, 1000);
            there.sets = 1 + who * 2 + card;
            work.work = WORK_SPIN;
            work.flag = 1 + who * 2 + 1 - card;
            process_launch(process, card, 1, 0, 0x100, there);
            process_launch(process, card, 1, 0, 0x200, work);
        }
        process_await(process, 0, 1);
        process_await(process, 1, 1);
        steps[who]++;
    }
}

static int collectives(void)
{
    for (uint32_t i = 0; i < number; i++) {
        process_open(&processes[i], 2, i, terms(POLICY_BURST_SHARE, (uint32_t)(1000 / number)));
        world_thread(collective, &processes[i]);
    }
    bool good = world_run(world_now() + 10 * SECOND);
    uint64_t all = 0;
    for (uint32_t i = 0; i < number; i++) all += steps[i];
    say("steps", all / 10);
    return good ? 0 : 3;
}

/*
 * NUMBER tenants that wait for the host between rounds, as serving programs do: rounds of three kernels of 200 us, then
 * 150 us of the host. With best-effort, which the driver shares, or with even quotas, which turns enforce. Or rounds of four
 * kernels of 1 ms, then 2 ms of the host: longer than a tenant without work keeps its turn.
 */
static struct {
    int kernels;
    uint64_t each, pause;
} form = {3, 200 * US, 150 * US};
static uint64_t rounds[SEATS], longest_round;

static void bursty(void *argument)
{
    struct process *process = argument;
    for (;;) {
        uint64_t begun = world_now();
        for (int i = 0; i < form.kernels; i++) process_launch(process, 0, 1, 0, 0x100, kernel(form.each, 1000));
        process_await(process, 0, 1);
        if (world_now() - begun > longest_round) longest_round = world_now() - begun;
        rounds[process - processes]++;
        world_sleep(form.pause * 2 / 3 + world_chance(form.pause * 2 / 3));
    }
}

static int serve(enum policy policy)
{
    uint32_t count = (uint32_t)number;
    uint64_t before[SEATS], least = MODEL_NEVER, most = 0, all = 0, busy, counted = 0;
    for (uint32_t i = 0; i < count; i++) {
        process_open(&processes[i], 1, i, terms(policy, policy == POLICY_BEST_EFFORT ? 0 : 1000 / count));
        world_thread(bursty, &processes[i]);
    }
    bool good = world_run(world_now() + SECOND);
    busy = card_busy(0);
    longest_round = 0;
    for (uint32_t i = 0; i < count; i++) before[i] = rounds[i];
    good &= world_run(world_now() + 4 * SECOND);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t mine = rounds[i] - before[i];
        least = mine < least ? mine : least;
        most = mine > most ? mine : most;
        all += mine;
        counted += processes[i].books[0].served;
    }
    say("rounds", all / 4);
    say("least", least / 4);
    say("most", most / 4);
    say("busy", (card_busy(0) - busy) / 4 / MS);
    say("longest-us", longest_round / US);
    say("counted", counted / US);
    return good ? 0 : 3;
}

static int without_turns(void) { return serve(POLICY_BEST_EFFORT); }
static int with_turns(void) { return serve(POLICY_BURST_SHARE); }

static int with_pauses(void)
{
    form = (__typeof__(form)){4, MS, 2 * MS};
    return serve(POLICY_BURST_SHARE);
}

/* Two tenants with best-effort; from the second to the third second a third one runs too, with a quota of 30 % (NUMBER 1: with a higher priority). */
static bool gone;

static void guest(void *argument)
{
    while (!gone) {
        process_launch(argument, 0, 1, 0, 0x300, kernel(500 * US, 1000));
        if (number && !gone) process_await(argument, 0, 1);
    }
}

static uint64_t counted_of(uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += processes[i].books[0].served;
    return sum;
}

static int comes_and_goes(void)
{
    struct tenant_terms third = terms(number ? POLICY_BEST_EFFORT : POLICY_FIXED_SHARE, number ? 0 : 300);
    if (number) third.priority = PRIORITY_ONLINE;
    for (uint32_t i = 0; i < 2; i++) {
        process_open(&processes[i], 1, i, terms(POLICY_BEST_EFFORT, 0));
        world_thread(ahead, &processes[i]);
    }
    bool good = world_run(world_now() + SECOND);
    say("counted-before", counted_of(2) / US);
    process_open(&processes[2], 1, 2, third);
    world_thread(guest, &processes[2]);
    good &= world_run(world_now() + SECOND);
    uint64_t before[3];
    for (uint32_t i = 0; i < 3; i++) before[i] = card_served(processes[i].channels[0]);
    good &= world_run(world_now() + 2 * SECOND);
    for (uint32_t i = 0; i < 3; i++) {
        char name[24];
        snprintf(name, sizeof name, "share-%u", i);
        say(name, (card_served(processes[i].channels[0]) - before[i]) / 2 / MS);
    }
    gone = true;
    good &= world_run(world_now() + 100 * MS);
    process_close(&processes[2]);
    good &= world_run(world_now() + SECOND);
    uint64_t counted = counted_of(2), launches = processes[0].launches + processes[1].launches;
    good &= world_run(world_now() + SECOND);
    say("counted-after", (counted_of(2) - counted) / US);
    say("launches-after", processes[0].launches + processes[1].launches - launches);
    return good ? 0 : 3;
}

/* Offline work, and online work beside it for a while. */
static int precedence(void)
{
    struct tenant_terms mine = terms(POLICY_BEST_EFFORT, 0);
    for (uint32_t i = 0; i < 2; i++) {
        mine.priority = i ? PRIORITY_ONLINE : PRIORITY_OFFLINE;
        process_open(&processes[i], 1, i, mine);
    }
    world_thread(ahead, &processes[0]);
    bool good = world_run(world_now() + 500 * MS);
    world_thread(guest, &processes[1]);
    good &= world_run(world_now() + 500 * MS);
    const uint64_t spans[] = {2 * SECOND, 100 * MS, 50 * MS, SECOND};
    static const char *const names[] = {"meanwhile", "at-first", "then", "later"};
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t before = card_served(processes[0].channels[0]);
        for (uint64_t end = world_now() + spans[i]; good && world_now() < end;) good = world_run(end); /* it returns once the guest has left */
        say(names[i], (card_served(processes[0].channels[0]) - before) * 1000 / spans[i]);
        gone = true;
    }
    return good ? 0 : 3;
}

static struct program programs[MODEL_WHOLE];

/* How a tenant has a card: the driver alone, its memory capped alone, or one of the policies. */
static const struct { const char *name; enum policy policy; bool bare; } modes[] = {
    {"bare", POLICY_NONE, true}, {"memory", POLICY_NONE, false}, {"best-effort", POLICY_BEST_EFFORT, false},
    {"fixed-share", POLICY_FIXED_SHARE, false}, {"burst-share", POLICY_BURST_SHARE, false}};
#define MODES (sizeof modes / sizeof *modes)

static void open_program(uint32_t i, const struct trace *trace, struct tenant_terms mine, uint64_t most)
{
    programs[i] = (struct program){.trace = trace, .whole = whole_at(i), .index = i, .most = most};
    whole_open(programs[i].whole, trace->cards, i, mine);
    program_start(&programs[i]);
}

static uint64_t cap; /* bytes of each tenant; 0: its part of the card */

static struct tenant_terms terms_of(uint32_t mode, uint32_t count)
{
    struct tenant_terms mine = terms(modes[mode].policy, modes[mode].policy == POLICY_BEST_EFFORT ? 0 : 1000 / count);
    mine.bare = modes[mode].bare;
    mine.memory = cap ? cap : (MODEL_MEMORY - (MODEL_MEMORY >> 4)) / count; /* code that loads late is beyond the caps */
    return mine;
}

static uint64_t served_on(uint32_t i, uint32_t card) { return card_served(programs[i].whole->process.channels[card]); }

static int framework(const struct trace *trace, const struct trace *other, uint32_t mode)
{
    uint32_t count = number ? (uint32_t)number : 1;
    uint64_t steps_before[MODEL_WHOLE], served[MODEL_WHOLE][MODEL_CARDS], all = 0;
    for (uint32_t i = 0; i < count; i++) {
        open_program(i, i % 2 ? other : trace, terms_of(mode, count), 0);
        programs[i].among = modes[mode].bare ? count : 0;
    }
    bool good = world_run(world_now() + SECOND);
    for (uint32_t i = 0; i < count; i++) {
        steps_before[i] = programs[i].steps;
        for (uint32_t card = 0; card < trace->cards; card++) served[i][card] = served_on(i, card);
    }
    good &= world_run(world_now() + 2 * SECOND);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t card = 0; card < trace->cards; card++) {
            char name[24];
            snprintf(name, sizeof name, card ? "share-%u-%u" : "share-%u", i, card);
            say(name, (served_on(i, card) - served[i][card]) / 2 / MS);
        }
        all += programs[i].steps - steps_before[i];
    }
    say("steps", all / 2);
    uint64_t uncounted = 0, too_many = 0, refusals = 0, refused = 0, most = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (programs[i].uncounted > uncounted) uncounted = programs[i].uncounted;
        if (programs[i].too_many > too_many) too_many = programs[i].too_many;
        if (programs[i].most_counted > most) most = programs[i].most_counted;
        refusals += programs[i].refusals;
        refused += programs[i].refused;
    }
    say("uncounted-mib", uncounted >> 20);
    say("too-many-mib", too_many >> 20);
    say("most-mib", most >> 20);
    say("refusals", refusals);
    say("refused", refused);
    return good ? 0 : 3;
}

/* Each ends after some steps. One that needs that much more time than all of them in turn counts as stuck. */
static int interleaving(uint64_t seed, uint64_t *span)
{
    static const enum policy any[] = {POLICY_BEST_EFFORT, POLICY_FIXED_SHARE, POLICY_BURST_SHARE, POLICY_NONE};
    uint32_t count = 2 + (uint32_t)world_chance(3);
    bool over = false;
    for (uint32_t i = 0; i < count; i++) {
        /* Without overlapping streams, a kernel that stays stops its program, whatever the library does. */
        const struct trace *trace = &traces[world_chance(world_model()->overlaps ? TRACES : TRACES - 1)];
        struct tenant_terms mine = terms(any[world_chance(4)], 100 + (uint32_t)world_chance(150));
        mine.priority = world_chance(4) ? PRIORITY_ORDINARY : PRIORITY_ONLINE;
        mine.memory = (1500 + world_chance(3000)) << 20; /* the memory that programs keep does not always fit */
        open_program(i, trace, mine, 1 + world_chance(3));
    }
    uint64_t begun = world_now();
    /* A fixed share of a tenth takes ten times as long, and patience 250 ms a launch where a kernel stays. */
    for (uint32_t k = 0; k < 2000 && !over; k++) {
        if (!world_run(world_now() + 100 * MS)) break;
        over = true;
        for (uint32_t i = 0; i < count; i++) over &= programs[i].over;
    }
    for (uint32_t i = 0; i < count && !over; i++)
        fprintf(stderr, "seed %llu: %s: %llu of %llu steps\n", (unsigned long long)seed, programs[i].trace->name,
                (unsigned long long)programs[i].steps, (unsigned long long)programs[i].most);
    for (uint32_t i = 0; i < count && over; i++) {
        if (programs[i].uncounted) fprintf(stderr, "seed %llu: %s: memory is not counted\n", (unsigned long long)seed, programs[i].trace->name);
        over &= programs[i].uncounted == 0;
    }
    *span = world_now() - begun;
    return over ? 0 : 3;
}

/* Each in a process of its own, because each copy of the library is used once. */
static int interleavings(const struct model *model, uint64_t seed)
{
    uint64_t played = 0, longest_run = 0;
    for (; played < number; played++) {
        uint64_t span = 0;
        int ends[2], status;
        if (pipe(ends) != 0) return perror("replay: pipe"), 1;
        pid_t child = fork();
        if (child == 0) {
            world_open(model, seed + played);
            int result = interleaving(seed + played, &span);
            if (write(ends[1], &span, sizeof span) != sizeof span) _exit(1);
            _exit(result);
        }
        close(ends[1]);
        if (child < 0 || read(ends[0], &span, sizeof span) < 0 || waitpid(child, &status, 0) != child) return 1;
        close(ends[0]);
        if (status != 0) return say("stuck-at", seed + played), 3;
        if (span > longest_run) longest_run = span;
    }
    say("played", played);
    say("longest-ms", longest_run / MS);
    return 0;
}

static const struct {
    const char *name;
    int (*play)(void);
} scenes[] = {{"many-graphs", many_graphs}, {"graphs-in-turns", graphs_in_turns},
              {"beside-long", beside_long}, {"wakes", wakes}, {"full-channel", full_channel},
              {"leaves", leaves}, {"shares", shares}, {"collectives", collectives}, {"loads", loads}, {"late-host", late_host}, {"legacy-marks", legacy_marks},
              {"pauses", pauses}, {"parts", parts}, {"long-waits", long_waits}, {"alone", alone_shares}, {"bursts", bursts}, {"idle-time", idle_time}, {"saves-up", saves_up},
              {"precedence", precedence}, {"adjusted", adjusted},
              {"mixed", mixed}, {"callbacks", callbacks}, {"beside-legacy", beside_legacy},
              {"without-turns", without_turns}, {"with-turns", with_turns}, {"with-pauses", with_pauses}, {"comes-and-goes", comes_and_goes}};

/* Ends at once, without the handlers of the copies: these belong to the modelled processes. */
static int ended(int result)
{
    fflush(stdout);
    _exit(result);
}

int main(int argc, char **argv)
{
    const struct model *model = argc > 3 ? model_named(argv[2]) : NULL;
    if (!model) return fprintf(stderr, "usage: replay SCENE MODEL SEED [NUMBER [bare]]\n"), 2;
    number = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    bare = argc > 5 && strcmp(argv[5], "bare") == 0;
    world_open(model, strtoull(argv[3], NULL, 10));
    if (strcmp(argv[1], "interleavings") == 0) {
        whole_prepare(argv[0], 4);
        return ended(interleavings(model, strtoull(argv[3], NULL, 10)));
    }
    char *first = strncmp(argv[1], "trace-", 6) == 0 ? argv[1] + 6 : NULL, *beside = first ? strchr(first, '+') : NULL;
    if (beside) *beside++ = 0;
    if (first && trace_named(first) && (!beside || trace_named(beside))) {
        uint32_t mode = 0;
        while (mode < MODES - 1 && (argc < 6 || strcmp(argv[5], modes[mode].name) != 0)) mode++;
        cap = argc > 6 ? strtoull(argv[6], NULL, 10) << 20 : 0;
        whole_prepare(argv[0], number ? (uint32_t)number : 1);
        return ended(framework(trace_named(first), trace_named(beside ? beside : first), mode));
    }
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[1]) == 0) return scenes[i].play();
    return fprintf(stderr, "replay: no scene %s\n", argv[1]), 2;
}
