/*
 * The rule of turns in virtual time: a modelled card, tenants with wake-up latencies, no real clock.
 * Prints each scenario's shares, and fails if one is off by more than a point.
 *
 * Usage: simulate [SECONDS [WAKE_US]]   virtual seconds of each scenario, 20 by default; the longest time that a
 *                                       tenant takes to wake up, 100 by default, more on a busy machine
 */
#include "../src/arbiter.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP 20000ull /* ns */
#define MAX 16

struct tenant {
    struct arbiter arbiter;
    _Atomic uint64_t clock, paid;
    enum policy policy;
    uint32_t quota;
    uint64_t kernel;            /* ns of one kernel */
    uint64_t from, until;       /* busy in this span of virtual time */
    uint64_t queued, running;   /* kernels launched and not done; ns left of the first */
    uint64_t began;             /* when the running kernel began */
    uint64_t acts;              /* the time of its next look (latency of its wake-up) */
    uint64_t done, uncounted;   /* device ns in all; measured and not yet charged */
    uint64_t first;             /* the end of its first kernel */
    bool wanting;
    bool lies;                  /* writes whatever keeps it the card, and launches at any time */
};

static struct seat seats[SEATS];
static uint64_t seed = 12345;
static uint64_t latest = 100000; /* ns that a wake-up takes at most */

static uint64_t chance(uint64_t below)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (seed >> 33) % below;
}

static bool may_launch(struct tenant *tenant, uint64_t now, bool *drain)
{
    uint64_t pending = tenant->queued * tenant->kernel;
    *drain = false;
    if (tenant->policy == POLICY_FIXED_SHARE &&
        quota_wait(&tenant->paid, pending, tenant->quota, now) > 0) {
        *drain = true;
        return false;
    }
    if (pending > 0 && pending + tenant->kernel > 8 * MS) return false;
    if (!arbiter_holds(&tenant->arbiter, now)) return tenant->queued == 0 && arbiter_try(&tenant->arbiter, now);
    if (tenant->queued == 0 && tenant->arbiter.in_turn == 0 && !arbiter_try(&tenant->arbiter, now)) return false;
    *drain = !arbiter_keep(&tenant->arbiter, now, pending);
    return !*drain;
}

/* Claims to be first at all times, with always the latest claim of the turn. */
static void lie(struct tenant *tenant, uint64_t now)
{
    struct seat *own = &seats[tenant->arbiter.index];
    arbiter_beat(&tenant->arbiter, now);
    atomic_store(&own->clock, 0);
    atomic_store(&own->wants, 1);
    atomic_store(&own->lease, now + LEASE_NS);
    atomic_store(&own->claim, claim_pack(now + MS / 2, tenant->arbiter.index + 1));
    while (tenant->queued < 8)
        if (tenant->queued++ == 0) tenant->running = tenant->kernel;
}

/* One look of a tenant: counts ended work, launches what it may, passes the turn if it must. */
static void act(struct tenant *tenant, uint64_t now)
{
    bool drain = false;
    if (tenant->lies) {
        lie(tenant, now);
        return;
    }
    if (tenant->uncounted) {
        arbiter_charge(&tenant->arbiter, tenant->uncounted, now);
        quota_charge(&tenant->paid, tenant->uncounted, tenant->quota, now);
        tenant->uncounted = 0;
    }
    if (now < tenant->from || now >= tenant->until) {
        if (tenant->wanting && tenant->queued == 0) arbiter_rest(&tenant->arbiter, now);
        if (tenant->queued == 0) tenant->wanting = false;
        return;
    }
    if (!tenant->wanting) {
        arbiter_want(&tenant->arbiter, now);
        quota_open(&tenant->paid, now, WINDOW_NS);
        tenant->wanting = true;
    }
    arbiter_beat(&tenant->arbiter, now);
    while (may_launch(tenant, now, &drain)) {
        if (tenant->queued++ == 0) tenant->running = tenant->kernel;
    }
    if (drain && tenant->queued == 0) {
        if (tenant->policy == POLICY_FIXED_SHARE && quota_wait(&tenant->paid, 0, tenant->quota, now))
            arbiter_rest(&tenant->arbiter, now), tenant->wanting = true;
        else
            arbiter_pass(&tenant->arbiter, now);
    }
    if (arbiter_holds(&tenant->arbiter, now)) arbiter_renew(&tenant->arbiter, now);
    if (tenant->policy == POLICY_FIXED_SHARE && !quota_wait(&tenant->paid, 0, tenant->quota, now))
        atomic_store(&seats[tenant->arbiter.index].wants, now ? now : 1);
}

/* The card runs for one step: contexts that have kernels take turns of two milliseconds. */
static void run_card(struct tenant *tenants, uint32_t count, uint64_t now)
{
    static uint32_t current;
    static uint64_t slice;
    if (slice == 0 || tenants[current % count].queued == 0) {
        for (uint32_t i = 1; i <= count; i++)
            if (tenants[(current + i) % count].queued) {
                current = (current + i) % count;
                slice = 2 * MS;
                break;
            }
    }
    struct tenant *tenant = &tenants[current % count];
    if (tenant->queued == 0) return;
    if (tenant->running == tenant->kernel) tenant->began = now;
    slice = slice > STEP ? slice - STEP : 0;
    tenant->done += STEP;
    tenant->running = tenant->running > STEP ? tenant->running - STEP : 0;
    if (tenant->running == 0) {
        tenant->uncounted += now + STEP - tenant->began;
        if (!tenant->first) tenant->first = now;
        if (--tenant->queued) tenant->running = tenant->kernel;
    }
}

static void simulate(struct tenant *tenants, uint32_t count, uint64_t from, uint64_t until)
{
    for (uint64_t now = from; now < until; now += STEP) {
        for (uint32_t i = 0; i < count; i++) {
            if (tenants[i].acts > now) continue;
            act(&tenants[i], now);
            tenants[i].acts = now + STEP + chance(latest);
        }
        run_card(tenants, count, now);
    }
}

static void open_card(struct tenant *tenants, uint32_t count)
{
    memset(seats, 0, sizeof seats);
    for (uint32_t i = 0; i < count; i++) {
        struct tenant *tenant = &tenants[i];
        tenant->arbiter = (struct arbiter){.own = &seats[i], .seats = seats, .clock = &tenant->clock, .index = i,
            .tenant = i + 1, .terms = terms_pack(tenant->policy, PRIORITY_ORDINARY, tenant->quota)};
        if (!tenant->until) tenant->until = UINT64_MAX;
        if (!tenant->kernel) tenant->kernel = MS;
    }
}

static int failures;

static void expect(const char *what, uint32_t i, uint64_t done, uint64_t span, double points)
{
    double share = 100.0 * (double)done / (double)span;
    bool good = share <= points + 1 && share >= points - 1;
    printf("%-34s tenant %2u  %6.2f %%  expected %6.2f %%%s\n", what, i, share, points, good ? "" : "  WRONG");
    failures += !good;
}

static void steady(const char *what, struct tenant *tenants, uint32_t count, const double *points, uint64_t seconds)
{
    open_card(tenants, count);
    simulate(tenants, count, MS, seconds * 1000 * MS);
    for (uint32_t i = 0; i < count; i++) expect(what, i, tenants[i].done, (seconds * 1000 - 1) * MS, points[i]);
}

static void fixed_shares(uint64_t seconds)
{
    for (uint32_t quota = 50; quota <= 950; quota += 50) {
        struct tenant alone[1] = {{.policy = POLICY_FIXED_SHARE, .quota = quota, .kernel = 700000}};
        steady("fixed-share alone", alone, 1, (double[]){quota / 10.0}, seconds);
        struct tenant pair[2] = {{.policy = POLICY_FIXED_SHARE, .quota = quota, .kernel = 3 * MS},
                                 {.policy = POLICY_FIXED_SHARE, .quota = 1000 - quota, .kernel = 200000}};
        steady("fixed-share pair", pair, 2, (double[]){quota / 10.0, 100 - quota / 10.0}, seconds);
    }
    for (uint32_t count = 4; count <= 16; count *= 2) {
        struct tenant many[MAX] = {0};
        double points[MAX];
        for (uint32_t i = 0; i < count; i++) {
            many[i] = (struct tenant){.policy = POLICY_FIXED_SHARE, .quota = 1000 / count, .kernel = MS};
            points[i] = 100.0 / count;
        }
        steady("fixed-share many", many, count, points, seconds);
    }
}

/* Kernels, or whole graphs, that take longer than each tenant's patience: quotas hold over many of them. */
static void long_work(void)
{
    const uint64_t seconds = 240, kernel = 400 * MS;
    struct tenant alone[1] = {{.policy = POLICY_FIXED_SHARE, .quota = 200, .kernel = kernel}};
    steady("fixed-share alone, 400 ms kernels", alone, 1, (double[]){20}, seconds);
    struct tenant pair[2] = {{.policy = POLICY_FIXED_SHARE, .quota = 300, .kernel = kernel},
                             {.policy = POLICY_FIXED_SHARE, .quota = 700, .kernel = kernel}};
    steady("fixed-share 30/70, 400 ms kernels", pair, 2, (double[]){30, 70}, seconds);
}

/* Sixteen tenants, all different. */
static void uneven_shares(uint64_t seconds)
{
    const uint32_t quotas[MAX] = {200, 150, 100, 100, 80, 60, 50, 50, 40, 40, 30, 30, 20, 20, 20, 10};
    struct tenant many[MAX] = {0};
    double points[MAX];
    for (uint32_t i = 0; i < MAX; i++) {
        many[i] = (struct tenant){.policy = POLICY_FIXED_SHARE, .quota = quotas[i], .kernel = (i % 4 + 1) * MS / 2};
        points[i] = quotas[i] / 10.0;
    }
    steady("fixed-share uneven", many, MAX, points, seconds);
    for (uint32_t i = 0; i < MAX; i++) many[i] = (struct tenant){.policy = POLICY_BURST_SHARE, .quota = quotas[i], .kernel = MS};
    steady("burst-share uneven", many, MAX, points, seconds);
}

static void bursts(uint64_t seconds)
{
    struct tenant three[3] = {{.policy = POLICY_BURST_SHARE, .quota = 50}, {.policy = POLICY_BURST_SHARE, .quota = 50},
                              {.policy = POLICY_BURST_SHARE, .quota = 100, .from = seconds * 1000 * MS}};
    steady("burst-share 5/5, 10 idle", three, 3, (double[]){50, 50, 0}, seconds);
    uint64_t woke = seconds * 1000 * MS, before[3];
    simulate(three, 3, woke, woke + 50 * MS);
    for (int i = 0; i < 3; i++) before[i] = three[i].done;
    printf("%-34s first kernel after %.1f ms, %.1f ms of 50 received\n", "burst-share 10 wakes",
           (double)(three[2].first - woke) / 1e6, (double)three[2].done / 1e6);
    failures += three[2].first > woke + 50 * MS;
    simulate(three, 3, woke + 50 * MS, 2 * woke + 50 * MS);
    for (uint32_t i = 0; i < 3; i++) expect("burst-share 5/5/10", i, three[i].done - before[i], woke, i == 2 ? 50 : 25);
    struct tenant even[5] = {0};
    for (int i = 0; i < 5; i++) even[i].policy = POLICY_BEST_EFFORT;
    even[3].kernel = 6 * MS;
    steady("best-effort", even, 5, (double[]){20, 20, 20, 20, 20}, seconds);
    struct tenant mixed[3] = {{.policy = POLICY_FIXED_SHARE, .quota = 300}, {.policy = POLICY_BURST_SHARE, .quota = 200},
                              {.policy = POLICY_BEST_EFFORT}};
    steady("fixed 30, burst 20, best-effort", mixed, 3, (double[]){30, 20, 50}, seconds);
}

static void online_first(void)
{
    struct tenant two[2] = {{.policy = POLICY_BEST_EFFORT}, {.policy = POLICY_BEST_EFFORT, .from = 1000 * MS, .until = 1500 * MS}};
    open_card(two, 2);
    two[0].arbiter.terms = terms_pack(POLICY_BEST_EFFORT, PRIORITY_OFFLINE, 0);
    two[1].arbiter.terms = terms_pack(POLICY_BEST_EFFORT, PRIORITY_ONLINE, 0);
    simulate(two, 2, MS, 1010 * MS);
    uint64_t offline = two[0].done;
    simulate(two, 2, 1010 * MS, 1500 * MS);
    expect("offline while online works", 0, two[0].done - offline, 490 * MS, 0);
    offline = two[0].done;
    simulate(two, 2, 1500 * MS, 1590 * MS);
    expect("offline 90 ms after online ended", 0, two[0].done - offline, 90 * MS, 0);
    offline = two[0].done;
    simulate(two, 2, 1620 * MS, 2620 * MS);
    expect("offline after the return time", 0, two[0].done - offline, 1000 * MS, 100);
}

/* Each sharer's largest distance from its part of the time since `from`. */
static uint64_t furthest(struct tenant *tenants, uint32_t count, const double *parts, uint64_t from, uint64_t span)
{
    uint64_t before[MAX], most = 0;
    for (uint32_t i = 0; i < count; i++) before[i] = tenants[i].done;
    for (uint64_t now = from; now < from + span; now += MS) {
        simulate(tenants, count, now, now + MS);
        for (uint32_t i = 0; i < count; i++) {
            double off = (double)(tenants[i].done - before[i]) - parts[i] * (double)(now + MS - from);
            uint64_t by = (uint64_t)(off < 0 ? -off : off);
            if (by > most) most = by;
        }
    }
    return most;
}

static void within(const char *what, uint64_t is, uint64_t most, bool at_least)
{
    bool good = at_least ? is >= most : is <= most;
    if (!good) printf("%s: %.2f ms, %s %.2f  WRONG\n", what, (double)is / 1e6, at_least ? "at least" : "at most", (double)most / 1e6);
    failures += !good;
}

/*
 * Two are busy; a third wakes, sleeps and wakes again, at many points of the others' turns. After 50 ms it has its
 * guaranteed part of them (or a whole turn if that is less). From then on each sharer is at every moment at most so far
 * from its part of the card: one turn, the work launched ahead of it and ten wake-ups (1 ms), or its part of two turns of
 * the others. The same holds for the two after the third has left. It sleeps until its use ahead of its quota is paid: a
 * turn is 400 ms of 5 %.
 */
static void wakes(const uint32_t *quotas, uint64_t kernel)
{
    uint64_t turn = QUANTUM_NS + 8 * MS + kernel + 10 * latest;
    uint32_t all = quotas[0] + quotas[1] + quotas[2];
    double three[3], two[3] = {quotas[0], quotas[1], 0};
    uint64_t least = UINT64_MAX, most = 0, after = 0;
    for (uint32_t i = 0; i < 3; i++) {
        three[i] = (double)quotas[i] / all, two[i] /= quotas[0] + quotas[1];
        uint64_t others = (uint64_t)(three[i] * 2 * (double)(QUANTUM_NS + kernel));
        if (others > turn) turn = others;
    }
    for (uint64_t phase = 0; phase < 12; phase++) {
        struct tenant tenants[3] = {0};
        for (uint32_t i = 0; i < 3; i++)
            tenants[i] = (struct tenant){.policy = POLICY_BURST_SHARE, .quota = quotas[i], .kernel = kernel, .from = i == 2 ? UINT64_MAX : 0};
        open_card(tenants, 3);
        uint64_t now = 300 * MS + phase * 5300000;
        simulate(tenants, 3, MS, now);
        for (int again = 0; again < 2; again++) {
            uint64_t before = tenants[2].done, by;
            tenants[2].from = now, tenants[2].until = now + 450 * MS;
            simulate(tenants, 3, now, now + 50 * MS);
            if (tenants[2].done - before < least) least = tenants[2].done - before;
            by = furthest(tenants, 3, three, now + 50 * MS, 400 * MS);
            if (by > most) most = by;
            simulate(tenants, 3, now + 450 * MS, now + 500 * MS);
            by = furthest(tenants, 2, two, now + 500 * MS, 200 * MS);
            if (by > after) after = by;
            simulate(tenants, 3, now + 700 * MS, now + 1000 * MS);
            now += 1000 * MS;
        }
    }
    uint64_t guarantee = 50 * MS * quotas[2] / 1000;
    printf("%u/%u and %u wakes, kernels of %.1f ms: %.1f ms of the first 50 (guaranteed %.1f); then %.1f ms off, %.1f when it left\n",
           quotas[0], quotas[1], quotas[2], (double)kernel / 1e6, (double)least / 1e6, (double)guarantee / 1e6,
           (double)most / 1e6, (double)after / 1e6);
    within("first 50 ms of a tenant that woke", least, guarantee < QUANTUM_NS - STEP ? guarantee : QUANTUM_NS - STEP, true);
    within("off its part from 50 ms on", most, turn, false);
    within("off its part 50 ms after another left", after, turn, false);
}

/* A look that reads a new turn with the lease of the one before: words of a seat are copied in any order. */
static void torn_look(void)
{
    struct tenant two[2] = {{.policy = POLICY_BEST_EFFORT}, {.policy = POLICY_BEST_EFFORT}};
    uint64_t now = 1000 * MS;
    open_card(two, 2);
    for (int i = 0; i < 2; i++) arbiter_want(&two[i].arbiter, now);
    bool taken = arbiter_try(&two[0].arbiter, now);
    atomic_store(&seats[0].lease, now - 100 * MS);
    bool doubled = arbiter_try(&two[1].arbiter, now + MS);
    printf("a turn just taken is %s by who sees an old lease\n", !taken || doubled ? "taken again  WRONG" : "left alone");
    failures += !taken || doubled;
}

/* Beside a liar no sharer keeps its share, but none starves. */
static void beside_a_liar(uint64_t seconds)
{
    struct tenant three[3] = {{.policy = POLICY_BURST_SHARE, .quota = 400}, {.policy = POLICY_BURST_SHARE, .quota = 400},
                              {.policy = POLICY_BURST_SHARE, .quota = 50, .lies = true}};
    open_card(three, 3);
    simulate(three, 3, MS, seconds * 1000 * MS);
    for (uint32_t i = 0; i < 2; i++) {
        double share = 100.0 * (double)three[i].done / (double)(seconds * 1000 * MS);
        printf("%-34s tenant %2u  %6.2f %%%s\n", "beside a liar", i, share, share < 10 ? "  WRONG" : "");
        failures += share < 10;
    }
}

/*
 * A tenant wakes beside another that is busy or arrives later, while a third writes a false virtual time. After the
 * third has ended, both soon have their shares again.
 */
static void after_a_lie(const char *what, uint64_t said, bool waits, uint64_t other_from)
{
    const uint64_t old = 3600000 * MS; /* the virtual time of a long-running tenant */
    struct tenant two[2] = {{.policy = POLICY_BURST_SHARE, .quota = 400, .from = 1000 * MS},
                            {.policy = POLICY_BURST_SHARE, .quota = 400, .from = other_from}};
    uint64_t before[2];
    open_card(two, 2);
    two[1].clock = old;
    seats[1].floor = old;
    arbiter_beat(&two[1].arbiter, MS);
    for (uint64_t now = MS; now < 2000 * MS; now += MS) {
        if (now > 500 * MS)
            seats[2] = (struct seat){.magic = SEAT_MAGIC, .tenant = 3, .beat = now, .wants = waits, .clock = said, .floor = said,
                                     .terms = terms_pack(POLICY_BURST_SHARE, PRIORITY_ORDINARY, 50)};
        simulate(two, 2, now, now + MS);
    }
    memset(&seats[2], 0, sizeof seats[2]);
    simulate(two, 2, 2000 * MS, 10000 * MS);
    for (uint32_t i = 0; i < 2; i++) before[i] = two[i].done;
    simulate(two, 2, 10000 * MS, 20000 * MS);
    for (uint32_t i = 0; i < 2; i++) expect(what, i, two[i].done - before[i], 10000 * MS, 50);
}

int main(int argc, char **argv)
{
    uint64_t seconds = argc > 1 ? strtoull(argv[1], NULL, 10) : 20;
    if (seconds < 1 || seconds > 1000) return fprintf(stderr, "simulate: 1 to 1000 seconds\n"), 2;
    if (argc > 2) latest = 1 + 1000 * strtoull(argv[2], NULL, 10);
    fixed_shares(seconds);
    long_work();
    uneven_shares(seconds);
    bursts(seconds);
    online_first();
    const uint32_t quotas[][3] = {{50, 50, 100}, {250, 250, 500}, {450, 450, 100}, {300, 600, 100}, {50, 900, 50}, {333, 333, 333}};
    for (uint32_t i = 0; i < sizeof quotas / sizeof *quotas; i++) wakes(quotas[i], 300000), wakes(quotas[i], 3 * MS);
    torn_look();
    beside_a_liar(seconds);
    after_a_lie("after a low virtual time", 0, true, 0);
    after_a_lie("after a high virtual time", UINT64_MAX / 2 - 1, true, 2500 * MS);
    after_a_lie("after a high floor", UINT64_MAX / 2 - 1, false, 2500 * MS);
    printf("%d wrong\n", failures);
    return failures != 0;
}
