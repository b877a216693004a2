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

/* What a tenant writes again and again into its seat, beside that it waits and has received nothing. */
enum lie {
    HONEST,
    HOLDS,     /* has the turn */
    LAUNCHES,  /* the same, and it launches at any time */
    FREES,     /* the turn was free just now */
    SERVES,    /* has the turn, and received and did work at random times */
    ALTERNATES, /* has the turn, for every other second */
    OBEYS,     /* has the turn as soon as another's has ended: no claim is against the rule */
    FRAMES,    /* has the turn, and while an honest one has it, that another honest one does or nothing */
    HANDS,     /* has the turn, then another has it, then nothing: that one's claim may look like a lie */
    LIES
};

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
    bool pressed;               /* it took a turn out of impatience */
    enum lie lies;
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

/* The holder by the latest claim of an honest tenant, until its lease ends; SEATS: there is none. */
static uint32_t honest_holder(const struct tenant *tenants, uint32_t count, uint64_t now)
{
    uint64_t latest_claim = 0;
    uint32_t holder = SEATS;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t claim = atomic_load(&seats[i].claim);
        if (tenants[i].lies || claim_stamp(claim) <= latest_claim) continue;
        latest_claim = claim_stamp(claim);
        holder = claim_holder(claim) == i + 1 && atomic_load(&seats[i].lease) > now ? i : SEATS;
    }
    return holder;
}

static void lie(struct tenant *tenants, uint32_t count, uint32_t index, uint64_t now)
{
    struct tenant *tenant = &tenants[index];
    struct seat *own = &seats[index];
    uint32_t holder = index + 1;
    bool silent = tenant->lies == ALTERNATES && now / (1000 * MS) % 2;
    arbiter_beat(&tenant->arbiter, now);
    atomic_store(&own->clock, 0);
    atomic_store(&own->wants, silent ? 0 : 1);
    if (silent || (tenant->lies == OBEYS && honest_holder(tenants, count, now) < SEATS)) return;
    if (tenant->lies == SERVES) atomic_store(&own->served, chance(UINT64_MAX)), atomic_store(&own->active, now - chance(now));
    if (tenant->lies == FREES) holder = 0;
    uint32_t of_three = tenant->lies == HANDS ? (uint32_t)chance(3) : 0;
    if (of_three == 1) holder = 1 + (uint32_t)chance(count);
    if (tenant->lies == FRAMES && honest_holder(tenants, count, now) < SEATS) {
        of_three = 1 + (uint32_t)chance(2);
        do holder = 1 + (uint32_t)chance(count);
        while (tenants[holder - 1].lies);
        if (holder == 1 + honest_holder(tenants, count, now)) return;
    }
    atomic_store(&own->lease, now + LEASE_NS);
    atomic_store(&own->claim, of_three == 2 ? 0 : claim_pack(now + MS / 2, holder));
    while (tenant->lies == LAUNCHES && tenant->queued < 8)
        if (tenant->queued++ == 0) tenant->running = tenant->kernel;
}

/* One look of a tenant: counts ended work, launches what it may, passes the turn if it must. */
static void act(struct tenant *tenant, uint64_t now)
{
    bool drain = false;
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
    _Atomic uint64_t *wants = &seats[tenant->arbiter.index].wants;
    if (tenant->policy == POLICY_FIXED_SHARE && atomic_load(wants) == 0 && !quota_wait(&tenant->paid, 0, tenant->quota, now))
        atomic_store(wants, now ? now : 1);
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
            if (tenants[i].lies) lie(tenants, count, i, now);
            else act(&tenants[i], now);
            tenants[i].pressed |= tenants[i].arbiter.pressed_at != 0;
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
        tenant->arbiter = (struct arbiter){.own = &seats[i], .seats = seats, .clock = &tenant->clock, .index = i, .promised = true,
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

/* Among honest tenants none takes a turn before its time. */
static void expect_patience(const struct tenant *tenants, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (tenants[i].pressed) printf("tenant %2u was impatient  WRONG\n", i);
        failures += tenants[i].pressed;
    }
}

static void steady(const char *what, struct tenant *tenants, uint32_t count, const double *points, uint64_t seconds)
{
    open_card(tenants, count);
    simulate(tenants, count, MS, seconds * 1000 * MS);
    for (uint32_t i = 0; i < count; i++) expect(what, i, tenants[i].done, (seconds * 1000 - 1) * MS, points[i]);
    expect_patience(tenants, count);
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
    struct tenant four[4] = {{.kernel = MS / 2}, {.kernel = MS}, {.kernel = 500 * MS}, {.kernel = 500 * MS}};
    for (int i = 0; i < 4; i++) four[i].policy = POLICY_BURST_SHARE, four[i].quota = 250;
    steady("burst-share, two 500 ms kernels", four, 4, (double[]){25, 25, 25, 25}, seconds);
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

/* More is promised than there is; each has its part, and all are hungry by no count. */
static void oversubscribed(uint64_t seconds)
{
    for (uint32_t count = 4; count <= 16; count *= 4)
        for (enum policy policy = POLICY_FIXED_SHARE; policy <= POLICY_BURST_SHARE; policy++) {
            struct tenant many[MAX] = {0};
            double points[MAX];
            for (uint32_t i = 0; i < count; i++) {
                many[i] = (struct tenant){.policy = policy, .quota = 2000 / count, .kernel = (i % 3 + 1) * MS / 2};
                points[i] = 100.0 / count;
            }
            steady("twice of what there is", many, count, points, seconds);
            expect_patience(many, count);
        }
}

/* One of three is stopped, with or without the turn, and goes on: it neither makes up for the time nor is ignored. */
static void stopped(void)
{
    for (uint64_t phase = 0; phase < 8; phase++) {
        struct tenant three[3] = {{.policy = POLICY_BURST_SHARE, .quota = 300}, {.policy = POLICY_BURST_SHARE, .quota = 300},
                                  {.policy = POLICY_BURST_SHARE, .quota = 300}};
        uint64_t now = 3000 * MS + phase * 9 * MS, before[3];
        open_card(three, 3);
        simulate(three, 3, MS, now);
        three[2].acts = now + 3000 * MS;
        three[2].wanting = false; /* the library asks again after so long without a beat */
        simulate(three, 3, now, now + 200 * MS);
        for (int i = 0; i < 3; i++) before[i] = three[i].done;
        simulate(three, 3, now + 200 * MS, now + 3000 * MS);
        for (uint32_t i = 0; i < 3; i++) expect("one is stopped", i, three[i].done - before[i], 2800 * MS, i < 2 ? 50 : 0);
        for (int i = 0; i < 3; i++) before[i] = three[i].done;
        simulate(three, 3, now + 3000 * MS, now + 6000 * MS);
        for (uint32_t i = 0; i < 3; i++) expect("one went on", i, three[i].done - before[i], 3000 * MS, 100 / 3.0);
        expect_patience(three, 3);
    }
}

static void online_first(enum policy policy, uint32_t quota, enum priority priority)
{
    struct tenant two[2] = {{.policy = policy, .quota = quota}, {.policy = policy, .quota = quota, .from = 1000 * MS, .until = 4000 * MS}};
    open_card(two, 2);
    two[0].arbiter.terms = terms_pack(policy, priority, quota);
    two[1].arbiter.terms = terms_pack(policy, PRIORITY_ONLINE, quota);
    simulate(two, 2, MS, 1010 * MS);
    uint64_t before = two[0].done;
    simulate(two, 2, 1010 * MS, 4000 * MS);
    expect("while online works", 0, two[0].done - before, 2990 * MS, 0);
    before = two[0].done;
    simulate(two, 2, 4000 * MS, 4090 * MS);
    expect("90 ms after online ended", 0, two[0].done - before, 90 * MS, 0);
    before = two[0].done;
    simulate(two, 2, 4120 * MS, 5120 * MS);
    expect("after the return time", 0, two[0].done - before, 1000 * MS, 100);
    expect_patience(two, 2);
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

/*
 * Tenants beside others that lie with a thousandth of the card each, from 3.5 s on after those begin. Beside one that
 * launches as much as it can, the driver gives that one its part, and none starves. However many launch nothing, each tenant
 * has its quota but for three points. If claims keep to the rule, or for half of the time, it has most or half of it.
 */
static void beside_liars(enum policy policy, enum lie lie, uint32_t victims, uint32_t quota, uint32_t liars, uint64_t seconds)
{
    static const char *const names[LIES] = {"", "holds", "launches", "frees", "serves", "alternates", "obeys", "frames", "hands"};
    static struct tenant all[SEATS];
    uint64_t before[MAX];
    double least = lie == LAUNCHES ? 10 : lie == OBEYS || lie == FRAMES || lie == ALTERNATES ? quota * 0.04 : quota / 10.0 - 3, worst = 100;
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i < victims + liars; i++)
        all[i] = (struct tenant){.policy = policy, .quota = i < victims ? quota : 1, .lies = i < victims ? HONEST : lie};
    open_card(all, victims + liars);
    for (uint32_t i = 0; i < victims; i++) all[i].clock = seats[i].floor = 3600000 * MS; /* they ran for long */
    simulate(all, victims, MS, 500 * MS);
    simulate(all, victims + liars, 500 * MS, 4000 * MS);
    for (uint32_t i = 0; i < victims; i++) before[i] = all[i].done;
    simulate(all, victims + liars, 4000 * MS, 4000 * MS + seconds * 1000 * MS);
    for (uint32_t i = 0; i < victims; i++) {
        double share = 100.0 * (double)(all[i].done - before[i]) / (double)(seconds * 1000 * MS);
        if (share < worst) worst = share;
    }
    printf("%2u of %5.2f %% %s beside %2u of whom each %-10s %6.2f %% at least%s\n", victims, quota / 10.0,
           policy == POLICY_FIXED_SHARE ? "fixed" : "burst", liars, names[lie], worst, worst < least ? "  WRONG" : "");
    failures += worst < least;
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
    online_first(POLICY_BEST_EFFORT, 0, PRIORITY_OFFLINE);
    online_first(POLICY_BURST_SHARE, 400, PRIORITY_OFFLINE);
    online_first(POLICY_BURST_SHARE, 400, PRIORITY_ORDINARY);
    oversubscribed(seconds);
    stopped();
    const uint32_t quotas[][3] = {{50, 50, 100}, {250, 250, 500}, {450, 450, 100}, {300, 600, 100}, {50, 900, 50}, {333, 333, 333}};
    for (uint32_t i = 0; i < sizeof quotas / sizeof *quotas; i++) wakes(quotas[i], 300000), wakes(quotas[i], 3 * MS);
    torn_look();
    const uint32_t liars[][3] = {{2, 400, 2}, {2, 400, 4}, {1, 400, 8}, {1, 400, 62}, {4, 240, 4}, {16, 60, 8}};
    for (uint32_t i = 0; i < sizeof liars / sizeof *liars; i++)
        for (enum lie lie = HOLDS; lie < LIES; lie++) {
            if (lie == LAUNCHES || (liars[i][2] > 8 && lie != HOLDS && lie != FREES)) continue;
            beside_liars(POLICY_BURST_SHARE, lie, liars[i][0], liars[i][1], liars[i][2], seconds);
            beside_liars(POLICY_FIXED_SHARE, lie, liars[i][0], liars[i][1], liars[i][2], seconds);
        }
    beside_liars(POLICY_BURST_SHARE, LAUNCHES, 2, 400, 1, seconds);
    beside_liars(POLICY_FIXED_SHARE, LAUNCHES, 2, 400, 1, seconds);
    after_a_lie("after a low virtual time", 0, true, 0);
    after_a_lie("after a high virtual time", UINT64_MAX / 2 - 1, true, 2500 * MS);
    after_a_lie("after a high floor", UINT64_MAX / 2 - 1, false, 2500 * MS);
    printf("%d wrong\n", failures);
    return failures != 0;
}
