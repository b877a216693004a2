#include "arbiter.h"

#define LOAD(word) atomic_load_explicit(&(word), memory_order_acquire)
#define STORE(word, value) atomic_store_explicit(&(word), (value), memory_order_release)

/* One look at another's seat. */
struct sight {
    bool waits;
    uint32_t priority;
    uint64_t clock;
};

static bool is_past(uint64_t then, uint64_t now, uint64_t age)
{
    return then > now ? then - now < MS : now - then <= age;
}

static struct sight look(const struct arbiter *me, uint32_t i, uint64_t now)
{
    const struct seat *seat = &me->page->seats[i];
    struct sight sight = {false, PRIORITY_ORDINARY, 0};
    if (LOAD(seat->tenant) == 0 || LOAD(seat->wants) == 0) return sight;
    if (!is_past(LOAD(seat->beat), now, FRESH_NS)) return sight;
    uint32_t priority = terms_priority(LOAD(seat->terms));
    sight.waits = true;
    sight.priority = priority > PRIORITY_ONLINE ? PRIORITY_ONLINE : priority;
    sight.clock = LOAD(seat->clock);
    return sight;
}

static uint32_t my_priority(const struct arbiter *me) { return terms_priority(me->terms); }

/* Weight of device time: own quota; without one, an even part of what no busy quota takes. */
static uint64_t weight(const struct arbiter *me, uint64_t now)
{
    uint32_t quota = terms_quota(me->terms);
    if (terms_policy(me->terms) != POLICY_BEST_EFFORT) return quota ? quota : 1;
    uint64_t promised = 0, even = 1;
    for (uint32_t i = 0; i < SEATS; i++) {
        if (i == me->index || !look(me, i, now).waits) continue;
        uint64_t terms = LOAD(me->page->seats[i].terms);
        if (terms_policy(terms) == POLICY_BEST_EFFORT) even++;
        else promised += terms_quota(terms);
    }
    uint64_t left = promised >= 1000 ? 0 : (1000 - promised) / even;
    return left < 10 ? 10 : left;
}

/* Online work that ran a moment ago keeps the card for RETURN_NS; only lower ranks ask. */
static bool is_held_for_online(const struct arbiter *me, uint64_t now)
{
    if (my_priority(me) == PRIORITY_ONLINE) return false;
    for (uint32_t i = 0; i < SEATS; i++) {
        const struct seat *seat = &me->page->seats[i];
        if (i == me->index || LOAD(seat->tenant) == 0) continue;
        if (terms_priority(LOAD(seat->terms)) != PRIORITY_ONLINE) continue;
        if (look(me, i, now).waits) return true;
        uint64_t active = LOAD(seat->active);
        if (active != 0 && is_past(active, now, RETURN_NS)) return true;
    }
    return false;
}

/* Does (priority, clock, index) of a come before b? */
static bool precedes(struct sight a, uint32_t i, struct sight b, uint32_t j)
{
    if (a.priority != b.priority) return a.priority > b.priority;
    return a.clock != b.clock ? a.clock < b.clock : i < j;
}

static struct sight own_sight(const struct arbiter *me, uint64_t pending, uint64_t share)
{
    struct sight own = {true, my_priority(me), LOAD(*me->clock) + pending * 1000 / share};
    return own;
}

/* How many others come before the sharer; `due` is the first of all others or SEATS. */
static uint32_t rank(const struct arbiter *me, uint64_t now, uint64_t pending, uint32_t *due)
{
    struct sight own = own_sight(me, pending, weight(me, now)), best = {false, 0, 0};
    uint32_t ahead = 0;
    *due = SEATS;
    for (uint32_t i = 0; i < SEATS; i++) {
        struct sight other = i == me->index ? (struct sight){false, 0, 0} : look(me, i, now);
        if (!other.waits) continue;
        ahead += precedes(other, i, own, me->index);
        if (*due == SEATS || precedes(other, i, best, *due)) {
            best = other;
            *due = i;
        }
    }
    return ahead;
}

uint32_t arbiter_waiting(const struct arbiter *me, uint64_t now)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SEATS; i++)
        count += i != me->index && look(me, i, now).waits;
    return count;
}

static uint64_t quantum(uint32_t others)
{
    uint64_t slice = ROUND_NS / (others + 1);
    if (slice > QUANTUM_NS) return QUANTUM_NS;
    return slice < QUANTUM_MIN_NS ? QUANTUM_MIN_NS : slice;
}

/* Where virtual time stands: the least of those who have work, else where turns were last taken. */
static uint64_t standing(const struct arbiter *me, uint64_t now)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < SEATS; i++) {
        struct sight other = i == me->index ? (struct sight){false, 0, 0} : look(me, i, now);
        if (other.waits && other.clock < least) least = other.clock;
    }
    return least == UINT64_MAX ? LOAD(me->page->floor) : least;
}

void arbiter_beat(struct arbiter *me, uint64_t now)
{
    struct seat *own = &me->page->seats[me->index];
    STORE(own->tenant, me->tenant);
    STORE(own->terms, me->terms);
    STORE(own->clock, LOAD(*me->clock));
    STORE(own->beat, now);
}

bool arbiter_want(struct arbiter *me, uint64_t now)
{
    struct seat *own = &me->page->seats[me->index];
    uint64_t since = LOAD(own->wants);
    if (since != 0 && since <= now && LOAD(own->tenant) == me->tenant &&
        is_past(LOAD(own->beat), now, FRESH_NS)) {
        if (now - LOAD(own->beat) > MS) arbiter_beat(me, now);
        return false;
    }
    /* Who wakes starts where the others stand: it neither saved up time nor pays for time alone. */
    uint64_t least = standing(me, now), slack = QUANTUM_NS * 1000 / weight(me, now);
    uint64_t clock = LOAD(*me->clock);
    if (least < UINT64_MAX / 2 && (clock < least || clock > least + slack)) STORE(*me->clock, least);
    STORE(own->wants, now ? now : 1);
    arbiter_beat(me, now);
    return true;
}

void arbiter_rest(struct arbiter *me, uint64_t now)
{
    STORE(me->page->seats[me->index].wants, 0);
    if (arbiter_holds(me, now)) arbiter_pass(me, now);
}

bool arbiter_holds(const struct arbiter *me, uint64_t now)
{
    uint64_t turn = LOAD(me->page->turn);
    (void)now; /* an expired turn is still ours until another takes it */
    return turn_holder(turn) == me->index + 1;
}

static bool take(struct arbiter *me, uint64_t seen, uint64_t now)
{
    uint64_t mine = turn_pack(me->index + 1, now + LEASE_NS);
    if (!atomic_compare_exchange_strong(&me->page->turn, &seen, mine)) return false;
    uint64_t clock = LOAD(*me->clock);
    if (clock > LOAD(me->page->floor) || LOAD(me->page->floor) > UINT64_MAX / 2)
        STORE(me->page->floor, clock);
    me->in_turn = 0;
    atomic_fetch_add(&me->page->bell, 1);
    return true;
}

bool arbiter_try(struct arbiter *me, uint64_t now)
{
    uint64_t turn = LOAD(me->page->turn), until = turn_until(turn);
    uint32_t holder = turn_holder(turn);
    if (is_held_for_online(me, now)) return false;
    if (holder == me->index + 1) {
        /* Handed over, or kept: either way it is renewed, and if it was stolen meanwhile we see it. */
        if (until < now + LEASE_NS - MS) return take(me, turn, now);
        return true;
    }
    uint32_t due, ahead = rank(me, now, 0, &due);
    if (holder != 0 && holder <= SEATS && until > now && until - now <= LEASE_NS) {
        struct sight other = look(me, holder - 1, now);
        bool outranks = my_priority(me) == PRIORITY_ONLINE && other.priority < PRIORITY_ONLINE;
        uint64_t since = LOAD(me->page->seats[me->index].wants);
        uint64_t limit = PATIENCE_NS * (ahead + 1ull);
        bool impatient = since != 0 && since < now && now - since > limit &&
                         now - LOAD(me->page->seats[me->index].active) > limit;
        if (!outranks && !impatient) return false;
        return take(me, turn, now);
    }
    uint64_t freed = until > now ? now - now % MS : until;
    if (ahead > 0 && now - freed < ahead * RANK_DELAY_NS) return false;
    return take(me, turn, now);
}

bool arbiter_keep(struct arbiter *me, uint64_t now, uint64_t pending)
{
    uint64_t turn = LOAD(me->page->turn);
    if (turn_holder(turn) != me->index + 1) return false;
    if (is_held_for_online(me, now)) return false;
    uint32_t others = arbiter_waiting(me, now), due;
    if (others > 0 && me->in_turn + pending >= quantum(others)) {
        if (rank(me, now, pending, &due) > 0) return false;
        me->in_turn = 0;
    } else if (others > 0) {
        rank(me, now, pending, &due);
        if (due < SEATS && look(me, due, now).priority > my_priority(me)) return false;
    }
    arbiter_renew(me, now);
    return true;
}

void arbiter_renew(struct arbiter *me, uint64_t now)
{
    uint64_t turn = LOAD(me->page->turn);
    if (turn_holder(turn) != me->index + 1 || turn_until(turn) > now + LEASE_NS - 2 * MS) return;
    atomic_compare_exchange_strong(&me->page->turn, &turn,
                                   turn_pack(me->index + 1, now + LEASE_NS));
}

void arbiter_charge(struct arbiter *me, uint64_t used, uint64_t now)
{
    struct seat *own = &me->page->seats[me->index];
    uint64_t clock = atomic_fetch_add(me->clock, used * 1000 / weight(me, now));
    STORE(own->clock, clock + used * 1000 / weight(me, now));
    atomic_fetch_add(&own->served, used);
    STORE(own->active, now);
    me->in_turn += used;
}

void arbiter_pass(struct arbiter *me, uint64_t now)
{
    uint64_t turn = LOAD(me->page->turn);
    uint32_t due;
    if (turn_holder(turn) != me->index + 1) return;
    rank(me, now, 0, &due);
    uint64_t next = due == SEATS ? turn_pack(0, now) : turn_pack(due + 1, now + GRACE_NS);
    me->in_turn = 0;
    if (atomic_compare_exchange_strong(&me->page->turn, &turn, next))
        atomic_fetch_add(&me->page->bell, 1);
}

void quota_open(_Atomic uint64_t *paid, uint64_t now, uint64_t window)
{
    uint64_t since = now > window ? now - window : 0, old = LOAD(*paid);
    while (old < since && !atomic_compare_exchange_weak(paid, &old, since)) {
    }
}

void quota_charge(_Atomic uint64_t *paid, uint64_t used, uint32_t quota_milli, uint64_t now)
{
    quota_open(paid, now, LAG_NS);
    atomic_fetch_add(paid, used * 1000 / (quota_milli ? quota_milli : 1));
}

uint64_t quota_wait(const _Atomic uint64_t *paid, uint64_t pending, uint32_t quota_milli, uint64_t now)
{
    uint64_t until = LOAD(*paid) + pending * 1000 / (quota_milli ? quota_milli : 1);
    return until > now ? until - now : 0;
}
