#include "gate.h"
#include "batch.h"
#include "container.h"
#include "watch.h"
#include <stdatomic.h>

#define AHEAD_NS (8 * MS)        /* launched and not counted: at most this much, or one launch, if that is bounded */
#define BATCH_NS (MS / 2)        /* a batch is closed when its launches are expected to take this long */
#define ALONE_BATCHES 16         /* both times this factor while nothing bounds launches ahead */
#define CHECK_NS 200000ull       /* launches pass unchecked for this long */
#define DRAIN_PATIENCE (250 * MS) /* launches pass work that is late by this: it may wait for a delayed launch */
#define HOST_PATIENCE (20 * MS)  /* the same with a host function in it: that may need the launching thread's lock */
#define LEFT_MOST (2000 * MS)    /* no launch waits longer than this for work beyond its expected end */
#define IDLE_NS (5 * MS)         /* without work for this long it rests */
#define SHORT_NS (MS / 2)        /* work that is waited for alone: a mark would take some percent of shorter work */
#define LINGER_NS (20 * MS)      /* launches beside a kernel that stays pass for this long after the turn's end */
#define NEAR_NS 10000ull        /* about to end: asked again after this */
#define SOON_NS 50000ull        /* the watch checks again after this at the earliest */
#define RINGS 16                 /* a wait may be cut short so often; then it lasts */
#define IDLE_BUSY_NS (MS / 2)    /* and for this long while others wait: with half of it shares were up to 4 points off their quotas on the hostile model */

static struct arbiter *arbiters(struct gate *gate, int i)
{
    return i == 0 ? (gate->has_inner ? &gate->inner : NULL) : &gate->outer;
}

/* Wakes waiters for the end of the container's turn; processes of the container are among them. */
static void ring(struct gate *gate) { bell_ring(&gate->outer.own->bell); }

static void pass_all(struct gate *gate, uint64_t now)
{
    for (int i = 1; i >= 0; i--) {
        struct arbiter *arbiter = arbiters(gate, i);
        if (!arbiter || !arbiter_holds(arbiter, now)) continue;
        arbiter_pass(arbiter, now);
        ring(gate);
    }
}

static void rest_all(struct gate *gate, uint64_t now)
{
    bool last = true;
    if (gate->has_inner) {
        last = arbiter_waiting(&gate->inner, now) == 0;
        arbiter_rest(&gate->inner, now);
        ring(gate);
    }
    gate->outer.waits_at = 0; /* it has no work, or no quota left: it does not wait for the card */
    /* The container's seat stays as long as another process of it has work. */
    if (!last) return;
    arbiter_rest(&gate->outer, now);
    ring(gate);
}

static void want_all(struct gate *gate, uint64_t now)
{
    if (gate->has_inner) arbiter_want(&gate->inner, now);
    arbiter_want(&gate->outer, now);
    if (gate->wanting) return;
    gate->wanting = true;
    gate->held_since = 0;
    if (gate->capped) quota_open(&gate->books->paid, now, WINDOW_NS);
    watch_wake();
}

/* Applies the quota that the agent grants now. Time received earlier is paid for by the earlier quota. */
static void follow(struct gate *gate)
{
    uint64_t quota = gate->granted ? atomic_load_explicit(gate->granted, memory_order_relaxed) : gate->quota, terms = gate->outer.terms;
    if (quota == gate->quota || quota == 0 || quota > 1000) return;
    gate->quota = (uint32_t)quota;
    gate->capped = terms_policy(terms) == POLICY_FIXED_SHARE && quota < 1000;
    terms = terms_pack(terms_policy(terms), terms_priority(terms), gate->quota);
    __atomic_store_n(&gate->outer.terms, terms, __ATOMIC_RELAXED); /* is_free reads it without the lock */
    gate->go_until = 0;
}

/* The expected end of all launched work. */
static uint64_t due(const struct gate *gate)
{
    return (gate->last_end > gate->last_launch ? gate->last_end : gate->last_launch) + gate->pending;
}

/*
 * Is running work late, so that a launch passes it? Counted from when launches began to wait, work ended or a launch
 * passed, so each launch has its own patience: work that only takes long does not let all others in.
 */
static bool is_late(const struct gate *gate, uint64_t now)
{
    if (gate->pending == 0 || gate->held_since == 0) return false;
    uint64_t left = due(gate) > gate->held_since ? due(gate) - gate->held_since : 0;
    uint64_t patience = gate->hosted_at ? HOST_PATIENCE : DRAIN_PATIENCE;
    return now - gate->held_since >= patience + (left < LEFT_MOST ? left : LEFT_MOST);
}

/* Waits for work to end: closes open batches, counts ended ones. False: nothing is in the way any more. */
static bool drains(struct gate *gate, uint64_t now, uint64_t *wait)
{
    batch_close_old(gate, 0, now);
    batch_harvest(gate, now);
    if (gate->pending == 0) return false;
    if (gate->held_since == 0) gate->held_since = now;
    /* Asks again half-way to the expected end, often when that is near, and less often the later it is. */
    uint64_t end = due(gate), away = end > now ? (end - now) / 2 : (now - end) / 16, most = end > now ? MS : MS / 2;
    *wait = away < NEAR_NS ? NEAR_NS : away > most ? most : away;
    return !is_late(gate, now);
}

/*
 * The host ends a kernel that stays after launches beside it. If these waited, it would stay on the card through
 * others' turns. So they pass until it has ended, for a while, but no further kernel that stays does.
 */
static bool lingers(struct gate *gate, bool stays, uint64_t now)
{
    if (stays || !batch_stay(gate)) return false;
    if (gate->lingers_since == 0) gate->lingers_since = now;
    return now - gate->lingers_since < LINGER_NS;
}

static bool has_turn(struct gate *gate, const struct ticket *ticket, uint64_t now, uint64_t *wait)
{
    for (int i = 0; i < 2; i++) {
        struct arbiter *arbiter = arbiters(gate, i);
        if (!arbiter) continue;
        if (arbiter_holds(arbiter, now)) {
            if (arbiter_keep(arbiter, now, gate->pending) || lingers(gate, ticket->stays, now)) continue;
            /* Work launched while none waited is left to the driver, which shares the card: no turn lasts so long. */
            if (drains(gate, now, wait) && !gate->backlog) return false;
            gate->held_since = 0;
            arbiter_pass(arbiter, now);
            ring(gate);
        }
        /* Work of an earlier turn must end before the next begins. */
        if (gate->pending && drains(gate, now, wait)) return false;
        bool ours = arbiter_try(arbiter, now);
        *wait = arbiter_pause(arbiter);
        if (!ours) return false;
    }
    return true;
}

/*
 * Is there no quota, and no other sharer that needs a bound on launches ahead? Then a program has its streams as the
 * driver provides them: beside a kernel that takes long, or never ends, its others run.
 */
static bool is_alone(struct gate *gate, uint64_t now)
{
    if (gate->capped || !arbiter_is_alone(&gate->outer, now)) return false;
    return !gate->has_inner || arbiter_is_alone(&gate->inner, now);
}

/* Is enough launched already? By its expected time, or by how long the device has worked on it. */
static bool is_ahead(const struct gate *gate, uint64_t expected, uint64_t now)
{
    if (gate->pending == 0 || gate->alone) return false;
    return gate->pending + expected > AHEAD_NS || (gate->oldest && now - gate->oldest > 2 * AHEAD_NS);
}

/*
 * Small launches of other threads could fill the bound on launches ahead for ever, and a large one never have room. So
 * none passes the one that has waited longest, once that is long; while nothing runs, nothing is in its way.
 */
static bool is_overtaking(const struct gate *gate, const struct ticket *ticket, uint64_t now)
{
    const struct ticket *oldest = gate->oldest_waiter;
    return oldest && oldest != ticket && gate->pending && now > oldest->begun + 2 * AHEAD_NS;
}

static void join_queue(struct gate *gate, struct ticket *ticket)
{
    struct ticket **at = &gate->oldest_waiter;
    while (*at) at = &(*at)->next;
    ticket->next = NULL;
    *at = ticket;
}

static void leave_queue(struct gate *gate, const struct ticket *ticket)
{
    struct ticket **at = &gate->oldest_waiter;
    while (*at && *at != ticket) at = &(*at)->next;
    if (*at) *at = ticket->next;
}

/* May a launch pass now? Otherwise *wait is the time until the next check. */
static bool may_pass(struct gate *gate, const struct ticket *ticket, uint64_t now, uint64_t *wait)
{
    uint64_t expected = ticket->expected;
    *wait = MS / 2;
    follow(gate);
    if (arbiter_is_free(&gate->outer, now)) return true; /* the last quota ended meanwhile */
    if (is_overtaking(gate, ticket, now)) return false;
    if (gate->wanting && now < gate->go_until && (gate->alone || gate->pending + expected <= AHEAD_NS)) return true;
    batch_harvest(gate, now);
    if (gate->capped) {
        uint64_t unpaid = quota_wait(&gate->books->paid, gate->pending, gate->quota, now);
        if (unpaid > 0 && gate->wanting && !lingers(gate, ticket->stays, now)) {
            gate->go_until = 0;
            if (drains(gate, now, wait)) return false;
            unpaid = quota_wait(&gate->books->paid, 0, gate->quota, now);
            if (unpaid > 0) {
                rest_all(gate, now);
                *wait = unpaid < 20 * MS ? unpaid : 20 * MS;
                return false;
            }
        }
    }
    want_all(gate, now);
    gate->alone = is_alone(gate, now);
    if (is_ahead(gate, expected, now) && drains(gate, now, wait) && is_ahead(gate, expected, now)) return false;
    if (!has_turn(gate, ticket, now, wait)) {
        gate->go_until = 0;
        return false;
    }
    if (!batch_stay(gate)) gate->lingers_since = 0;
    gate->go_until = gate->lingers_since || is_late(gate, now) ? 0 : now + CHECK_NS;
    gate->held_since = 0;
    return true;
}

/* Sleeps without the lock until the holder of the turn passes it on; `own` is the own bell before that check. */
static void sleep_for(struct gate *gate, uint32_t own, uint32_t rings, uint64_t now, uint64_t ns)
{
    uint32_t whose = arbiter_bell(&gate->outer, now);
    uint32_t seen = whose == gate->outer.index ? own : atomic_load(&gate->seats.view[whose].bell);
    lock_give(&gate->lock, LOCK_GATE);
    /* A bell that never stops ringing must not cause a busy loop. */
    seats_wait(&gate->seats, rings < RINGS ? whose : SEATS, seen, ns);
    lock_take(&gate->lock, LOCK_GATE);
}

/* The known cost of a function; NULL for none, and beyond the number that is kept. */
static struct function_cost *cost_of(struct gate *gate, uint64_t function)
{
    uint64_t at = (function * 0x9e3779b97f4a7c15ull) >> 51;
    _Static_assert(FUNCTIONS == 1 << 13, "the upper 13 bits name a place");
    for (uint32_t i = 0; function && i < 8; i++) {
        struct function_cost *cost = &gate->functions[(at + i) % FUNCTIONS];
        if (cost->function == function || cost->function == 0) return cost;
    }
    return NULL;
}

/*
 * Does the driver share the card, so that launches are neither counted nor delayed? Checked at intervals, so turns
 * begin or end that soon after a sharer with a quota or another priority arrives or leaves. Earlier work runs on.
 */
static bool is_free(struct gate *gate)
{
    if (terms_policy(__atomic_load_n(&gate->outer.terms, __ATOMIC_RELAXED)) != POLICY_BEST_EFFORT) return false;
    uint64_t now = clock_now();
    if (now < atomic_load_explicit(&gate->free_until, memory_order_relaxed)) return true;
    lock_take(&gate->lock, LOCK_GATE);
    bool free = arbiter_is_free(&gate->outer, now);
    if (free) atomic_store_explicit(&gate->free_until, now + CHECK_NS, memory_order_relaxed);
    lock_give(&gate->lock, LOCK_GATE);
    return free;
}

static void expect(struct gate *gate, struct ticket *ticket, uint64_t graph, const struct function_cost *cost)
{
    ticket->stays = cost && cost->stays && !graph;
    ticket->expected = ticket->stays ? 0 : batch_expect(gate, graph, cost);
}

void gate_enter(struct gate *gate, struct ticket *ticket, CUcontext context, CUstream stream, uint64_t graph,
                uint64_t function)
{
    if (is_free(gate)) return;
    uint64_t wait, begun = clock_now(), now = begun;
    uint32_t rings = 0, bell;
    bool queued = false;
    lock_take(&gate->lock, LOCK_GATE);
    struct function_cost *cost = cost_of(gate, function);
    bell = atomic_load(&gate->outer.own->bell);
    ticket->begun = begun;
    expect(gate, ticket, graph, cost);
    gate->waiters++;
    while (!may_pass(gate, ticket, now, &wait)) {
        if (!queued) join_queue(gate, ticket);
        queued = true;
        sleep_for(gate, bell, rings, now, wait);
        bell = atomic_load(&gate->outer.own->bell);
        uint64_t woke = clock_now();
        rings = woke - now < wait / 2 ? rings + 1 : 0;
        now = woke;
        cost = cost_of(gate, function); /* another may have taken the free place meanwhile */
        expect(gate, ticket, graph, cost);
    }
    gate->waiters--;
    if (queued) leave_queue(gate, ticket);
    if (now != begun) atomic_fetch_add(&gate->books->waited, now - begun);
    /* Its first launch may load it, which takes the host up to seconds. */
    bool alone = cost && cost->function == 0;
    if (alone) *cost = (struct function_cost){function, 0, false};
    ticket->gate = gate;
    ticket->called = alone || gate->pending == 0 ? clock_now() : 0;
    /* No other waits: graphs are measured one by one only at times, as marks between short ones cost much. */
    if (gate->alone && graph && !alone && batch_knows(gate, graph) && !batch_is_sample(gate)) graph = GRAPH_KNOWN;
    batch_mix(gate, context, stream);
    ticket->batch = batch_open(gate, context, stream, graph, alone || ticket->stays, now);
    if (ticket->batch) {
        ticket->number = ticket->batch->number;
        ticket->batch->stays = ticket->stays;
        ticket->batch->busy++;
        ticket->batch->count++;
        if (cost && !graph && ticket->batch->known < BATCH_MOST)
            ticket->batch->functions[ticket->batch->known++] = (uint16_t)(cost - gate->functions);
        ticket->batch->expected += ticket->expected;
        gate->pending += ticket->expected;
        gate->backlog |= gate->alone && gate->pending > 2 * AHEAD_NS;
    } else {
        batch_charge(gate, ticket->expected, now); /* it will not be measured */
    }
    if (gate->pending == ticket->expected) gate->last_launch = now; /* the device was idle until now */
    gate->last_work = ticket->passed = now;
    lock_give(&gate->lock, LOCK_GATE);
}

void gate_leave(struct ticket *ticket, bool launched)
{
    struct gate *gate = ticket->gate;
    struct batch *batch = ticket->batch;
    if (!batch) return;
    lock_take(&gate->lock, LOCK_GATE);
    /* It may have been lost meanwhile, with all that was expected of it, and have made room for another. */
    if (batch->state == BATCH_FREE || batch->number != ticket->number) {
        lock_give(&gate->lock, LOCK_GATE);
        return;
    }
    batch->busy--;
    if (launched) {
        if (ticket->passed > batch->last) batch->last = ticket->passed;
        if (ticket->called && batch->count == 1) batch_began(gate, batch, ticket->called, clock_now());
    } else {
        batch->count--;
        batch->expected -= ticket->expected;
        gate->pending -= ticket->expected < gate->pending ? ticket->expected : gate->pending;
    }
    uint64_t times = gate->alone ? ALONE_BATCHES : 1;
    bool full = batch->expected >= BATCH_NS * times || batch->count >= BATCH_MOST * times ||
                (batch->graph && batch->graph != GRAPH_KNOWN) ||
                batch->alone || batch->mixed || batch_is_sample(gate);
    if (batch->count == 0 && batch->busy == 0) batch_drop(gate, batch);
    else if (!batch_mark(batch)) batch_lose(gate, batch, ticket->passed);
    else if (full && batch->busy == 0 && batch->state == BATCH_OPEN) batch_close(gate, batch, batch->last);
    lock_give(&gate->lock, LOCK_GATE);
}

void gate_settle(struct gate *gate)
{
    if (!gate->open) return;
    lock_take(&gate->lock, LOCK_GATE);
    if (gate->wanting) batch_close_old(gate, 0, clock_now());
    lock_give(&gate->lock, LOCK_GATE);
}

/*
 * Alone, the end of short work is not marked, because the program would wait for the mark each time too. The watch
 * marks it if the wait lasts; work that ended by then, or by the next launch, is estimated.
 */
void gate_await(struct gate *gate)
{
    if (!gate->open) return;
    lock_take(&gate->lock, LOCK_GATE);
    uint64_t now = clock_now();
    for (uint64_t left = gate->wanting ? gate->open_batches : 0; left; left &= left - 1) {
        struct batch *batch = &gate->batches[__builtin_ctzll(left)];
        if (gate->alone && !batch->alone && batch->expected < SHORT_NS) batch->awaited = true;
        else if (batch->count && !batch->busy) batch_close(gate, batch, now);
    }
    lock_give(&gate->lock, LOCK_GATE);
}

void gate_part(struct gate *gate, CUcontext context, CUstream stream, bool hosted)
{
    if (!gate->open) return;
    lock_take(&gate->lock, LOCK_GATE);
    uint64_t now = clock_now();
    if (hosted) gate->hosted_at = now, gate->hosted_context = context, gate->hosted_stream = stream;
    for (uint64_t left = gate->wanting ? gate->open_batches : 0; left; left &= left - 1) {
        struct batch *batch = &gate->batches[__builtin_ctzll(left)];
        /* The legacy stream and those beside it wait for each other. */
        bool waits = batch->stream == stream || !batch->stream || !stream;
        if (batch->marks && batch->busy && batch->stream != stream) batch->mixed = true;
        if (batch->busy == 0 && waits && batch->context == context) batch_close(gate, batch, now);
    }
    lock_give(&gate->lock, LOCK_GATE);
}

void gate_forget(struct gate *gate, CUcontext context, CUstream stream, bool all)
{
    if (!gate->open) return;
    lock_take(&gate->lock, LOCK_GATE);
    for (uint64_t left = all ? 0 : gate->open_batches; left; left &= left - 1) {
        struct batch *batch = &gate->batches[__builtin_ctzll(left)];
        if (batch->busy == 0 && batch->stream == stream)
            batch_close(gate, batch, clock_now());
    }
    if (all) batch_forget_context(gate, context, clock_now());
    lock_give(&gate->lock, LOCK_GATE);
}

void gate_forget_graph(struct gate *gate, uint64_t graph)
{
    if (!gate->open) return;
    lock_take(&gate->lock, LOCK_GATE);
    batch_forget_graph(gate, graph);
    lock_give(&gate->lock, LOCK_GATE);
}

/*
 * The time of the watch's next round. While others wait, it is soon after the expected end of work, and soon after the
 * work has been over for long enough: until the turn is passed on the card is idle.
 */
static uint64_t look_again(const struct gate *gate, uint64_t now)
{
    if (!arbiter_waiting(&gate->outer, now)) return MS;
    uint64_t end = gate->pending ? due(gate) : gate->last_work + IDLE_BUSY_NS;
    uint64_t away = end > now ? end - now : gate->pending ? (now - end) / 16 : 0;
    return away < SOON_NS ? SOON_NS : away > MS ? MS : away;
}

uint64_t gate_watch(struct gate *gate)
{
    uint64_t now = clock_now();
    if (!lock_try(&gate->lock, LOCK_GATE)) {
        /* A thread in the driver may hold it, and waits if a channel is full. The sign of life is written anyway. */
        for (int i = 0; i < 2; i++)
            if (arbiters(gate, i)) arbiter_live(arbiters(gate, i), now);
        return MS;
    }
    follow(gate);
    if (gate->wanting) {
        /* Far ahead of the card places run short: open batches continue. */
        if (!gate->alone || batch_places(gate) > BATCHES / 4) batch_close_old(gate, MS, now);
        batch_harvest(gate, now);
        uint64_t idle = arbiter_waiting(&gate->outer, now) ? IDLE_BUSY_NS : IDLE_NS;
        bool quiet = gate->pending == 0 && gate->waiters == 0;
        if (quiet && now - gate->last_work > idle) {
            gate->wanting = false;
            gate->go_until = 0;
            rest_all(gate, now);
        } else {
            for (int i = 0; i < 2; i++) {
                struct arbiter *arbiter = arbiters(gate, i);
                if (!arbiter) continue;
                arbiter_beat(arbiter, now);
                if (!arbiter_holds(arbiter, now)) continue;
                arbiter_renew(arbiter, now);
                if (arbiter_keep(arbiter, now, gate->pending)) continue;
                gate->go_until = 0;
                if ((quiet || gate->backlog) && !lingers(gate, false, now)) pass_all(gate, now);
            }
        }
    }
    uint64_t again = gate->wanting ? look_again(gate, now) : 0;
    lock_give(&gate->lock, LOCK_GATE);
    return again;
}

void gate_shut(struct gate *gate)
{
    if (!gate->open) return;
    _Atomic uint32_t never = 0;
    bool ours = lock_try(&gate->lock, LOCK_GATE);
    /* Bounded: a thread may be in a driver call that does not return, and must not keep the process from ending. */
    for (int i = 0; i < 100 && !ours; i++) {
        bell_wait(&never, 0, MS);
        ours = lock_try(&gate->lock, LOCK_GATE);
    }
    gate->open = false;
    if (ours) {
        gate->wanting = false;
        rest_all(gate, clock_now());
    } else { /* its turn ends with its lease */
        atomic_store(&gate->outer.own->wants, 0);
        if (gate->has_inner) atomic_store(&gate->inner.own->wants, 0);
    }
    if (gate->has_inner) atomic_store(&gate->inner.own->tenant, 0);
    if (ours) lock_give(&gate->lock, LOCK_GATE);
}
