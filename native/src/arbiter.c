#include "arbiter.h"
#include <string.h>

#define LOAD(word) atomic_load_explicit(&(word), memory_order_acquire)
#define STORE(word, value) atomic_store_explicit(&(word), (value), memory_order_release)

/* The turn by the latest claim. */
struct turn {
    uint32_t author, holder; /* indices; SEATS: none */
    uint64_t stamp, until;
};

/* The state of another seat in one look. */
struct sight {
    bool waits;
    uint32_t priority;
    uint64_t clock;
};

static bool is_past(uint64_t then, uint64_t now, uint64_t age)
{
    return then > now ? then - now < MS : now - then <= age;
}

static const struct seat *seat_at(const struct arbiter *me, uint32_t i)
{
    return i == me->index ? me->own : &me->seats[i];
}

static bool is_taken(const struct seat *seat) { return LOAD(seat->magic) == SEAT_MAGIC && LOAD(seat->tenant) != 0; }

static void see(struct arbiter *me, uint64_t since)
{
    if (me->see) me->see(me, since);
}

static bool is_pressed(const struct arbiter *me, uint64_t now)
{
    return me->pressed_at != 0 && now < me->pressed_at + LEASE_NS;
}

static struct turn turn_of(const struct arbiter *me, uint64_t now)
{
    struct turn turn = {SEATS, SEATS, 0, 0};
    uint64_t latest = 0;
    if (is_pressed(me, now)) /* until it ends, others' claims do not count */
        return (struct turn){me->index, me->index, claim_stamp(LOAD(me->own->claim)), LOAD(me->own->lease)};
    for (uint32_t i = 0; i < SEATS; i++) {
        const struct seat *seat = seat_at(me, i);
        if (!is_taken(seat) || me->deaf[i] > now) continue;
        uint64_t claim = LOAD(seat->claim), stamp = claim_stamp(claim), lease = LOAD(seat->lease);
        if (claim == 0 || stamp < latest || stamp > now + MS) continue;
        latest = stamp;
        uint32_t named = claim_holder(claim), holder = named == 0 || named > SEATS ? SEATS : named - 1;
        turn = (struct turn){i, holder, stamp, stamp};
        /* A copy may contain a claim and the lease of the turn before (reads arrive in any order on aarch64). */
        if (holder == i) turn.until = lease > stamp + GRACE_NS ? lease : stamp + GRACE_NS;
        else if (holder < SEATS) turn.until = stamp + GRACE_NS;
    }
    return turn;
}

/* Claims the turn for a holder from now on, later than the seen claims. */
static bool claim(struct arbiter *me, struct turn seen, uint64_t old, uint32_t holder, uint64_t now)
{
    uint64_t stamp = now > seen.stamp ? now : seen.stamp + CLAIM_UNIT;
    return atomic_compare_exchange_strong(&me->own->claim, &old, claim_pack(stamp, holder == SEATS ? 0 : holder + 1));
}

static struct sight look(const struct arbiter *me, uint32_t i, uint64_t now)
{
    const struct seat *seat = &me->seats[i];
    struct sight sight = {false, PRIORITY_ORDINARY, 0};
    if (!is_taken(seat) || me->deaf[i] > now || LOAD(seat->wants) == 0) return sight;
    if (!is_past(LOAD(seat->beat), now, FRESH_NS)) return sight;
    uint32_t priority = terms_priority(LOAD(seat->terms));
    sight.waits = true;
    sight.priority = priority > PRIORITY_ONLINE ? PRIORITY_ONLINE : priority;
    sight.clock = LOAD(seat->clock);
    return sight;
}

static uint32_t my_priority(const struct arbiter *me) { return terms_priority(me->terms); }

/* Weight of device time: own quota; without one, an even part of the time that no busy quota takes. */
static uint64_t weight(const struct arbiter *me, uint64_t now)
{
    uint32_t quota = terms_quota(me->terms);
    if (terms_policy(me->terms) != POLICY_BEST_EFFORT) return quota ? quota : 1;
    uint64_t promised = 0, even = 1;
    for (uint32_t i = 0; i < SEATS; i++) {
        if (i == me->index || !look(me, i, now).waits) continue;
        uint64_t terms = LOAD(me->seats[i].terms);
        if (terms_policy(terms) == POLICY_BEST_EFFORT) even++;
        else promised += terms_quota(terms);
    }
    uint64_t left = promised >= 1000 ? 0 : (1000 - promised) / even;
    return left < 10 ? 10 : left;
}

/* Online work that ran a moment ago keeps the card for RETURN_NS; only lower ranks ask this. */
static bool is_held_for_online(const struct arbiter *me, uint64_t now)
{
    if (my_priority(me) == PRIORITY_ONLINE) return false;
    for (uint32_t i = 0; i < SEATS; i++) {
        const struct seat *seat = &me->seats[i];
        if (i == me->index || !is_taken(seat) || me->deaf[i] > now) continue;
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

/* The number of others before the sharer; `due` is the first of all others or SEATS. */
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

bool arbiter_is_alone(struct arbiter *me, uint64_t now)
{
    see(me, now - LATE_NS);
    for (uint32_t i = 0; i < SEATS; i++) {
        const struct seat *seat = &me->seats[i];
        if (i == me->index || !is_taken(seat)) continue;
        if (look(me, i, now).waits || terms_priority(LOAD(seat->terms)) > my_priority(me)) return false;
    }
    return true;
}

bool arbiter_is_free(struct arbiter *me, uint64_t now)
{
    if (terms_policy(me->terms) != POLICY_BEST_EFFORT) return false;
    see(me, now - LATE_NS);
    for (uint32_t i = 0; i < SEATS; i++) {
        const struct seat *seat = &me->seats[i];
        uint64_t terms = LOAD(seat->terms);
        if (i == me->index || (terms == 0 && !is_taken(seat))) continue;
        if (terms_policy(terms) != POLICY_BEST_EFFORT || terms_priority(terms) != my_priority(me)) return false;
    }
    return true;
}

static uint64_t quantum(uint32_t others)
{
    uint64_t slice = ROUND_NS / (others + 1);
    if (slice > QUANTUM_NS) return QUANTUM_NS;
    return slice < QUANTUM_MIN_NS ? QUANTUM_MIN_NS : slice;
}

/* The common virtual time: the least of those with work, else the one at which turns were last taken. */
static uint64_t standing(const struct arbiter *me, uint64_t now)
{
    uint64_t least = UINT64_MAX, floor = 0;
    for (uint32_t i = 0; i < SEATS; i++) {
        const struct seat *seat = seat_at(me, i);
        if (!is_taken(seat)) continue;
        uint64_t taken = LOAD(seat->floor);
        if (taken > floor && taken < UINT64_MAX / 2) floor = taken;
        struct sight other = i == me->index ? (struct sight){false, 0, 0} : look(me, i, now);
        if (other.waits && other.clock < least) least = other.clock;
    }
    return least == UINT64_MAX ? floor : least;
}

uint32_t arbiter_bell(const struct arbiter *me, uint64_t now)
{
    uint32_t holder = turn_of(me, now).holder;
    return holder < SEATS ? holder : me->index;
}

/*
 * Notes sharers that claim the sharer's own turn, against the rule: if it was taken out of impatience, or while any are
 * ignored. Else the later claim has the turn.
 */
static void mind(struct arbiter *me, uint64_t now)
{
    if (!is_pressed(me, now) && me->deaf_until <= now) return;
    if (now - me->minds_since >= LEASE_NS) {
        memset(me->again, 0, sizeof me->again);
        me->minds_since = now;
    }
    struct turn turn = turn_of(me, now);
    if (turn.holder != me->index || turn.author != me->index) return;
    uint64_t ours = claim_stamp(LOAD(me->own->claim));
    for (uint32_t i = 0; i < SEATS; i++) {
        const struct seat *seat = &me->seats[i];
        uint64_t claim = LOAD(seat->claim), stamp = claim_stamp(claim);
        if (i == me->index || !is_taken(seat) || claim == me->heard[i] || stamp <= ours || stamp > now + MS) continue;
        if (my_priority(me) < PRIORITY_ONLINE && terms_priority(LOAD(seat->terms)) == PRIORITY_ONLINE) continue;
        me->heard[i] = claim;
        /*
         * Another that lost patience too claims it once, and passes it once. It may claim more often if others that lie
         * hand it turns: if it is ignored for that, it still has most of its part by its own patience.
         */
        if (++me->again[i] > 2) me->deaf[i] = me->deaf_until = now + DEAF_NS;
    }
}

/* Thousandths of the card that the sharer should have at least, whatever others write; 0: none. */
static uint64_t promise(const struct arbiter *me)
{
    /* Others may take all that offline work or one without a quota would have. */
    if (!me->promised || my_priority(me) == PRIORITY_OFFLINE || terms_policy(me->terms) == POLICY_BEST_EFFORT) return 0;
    uint64_t all = 0, part = terms_quota(me->terms);
    for (uint32_t i = 0; i < SEATS; i++) {
        uint64_t terms = i == me->index ? me->terms : LOAD(me->seats[i].terms);
        if (terms_policy(terms) != POLICY_BEST_EFFORT) all += terms_quota(terms);
    }
    part = all > 1000 ? part * 1000 / all : part;
    return part ? part : 1;
}

/*
 * Did the sharer want the card for long beyond the time that its device time pays for? By its own books: any number of
 * others may lie. A third more is paid for, as the costs of turns must not make all hungry.
 */
static bool is_hungry(struct arbiter *me, uint64_t part, uint64_t now)
{
    uint64_t limit = HUNGER_NS + QUANTUM_NS * 1000 / part;
    if (me->waits_at != 0 && now - me->waits_at < FRESH_NS) me->hunger += now - me->waits_at; /* else it was stopped */
    me->waits_at = now;
    if (me->hunger > limit) me->hunger = limit; /* what it missed earlier is not made up for */
    return me->hunger == limit;
}

/* Device time received is time that it wanted the card too. */
static void eat(struct arbiter *me, uint64_t used)
{
    me->waits_at = 0;
    if (me->hunger == 0) return;
    uint64_t part = promise(me), paid = part ? used * 4000 / 3 / part - used : me->hunger;
    me->hunger = me->hunger > paid ? me->hunger - paid : 0;
}

void arbiter_beat(struct arbiter *me, uint64_t now)
{
    if (is_pressed(me, now) || me->deaf_until > now) see(me, now - LATE_NS);
    struct seat *own = me->own;
    STORE(own->magic, SEAT_MAGIC);
    STORE(own->tenant, me->tenant);
    STORE(own->terms, me->terms);
    STORE(own->clock, LOAD(*me->clock));
    STORE(own->beat, now);
    mind(me, now);
}

void arbiter_live(struct arbiter *me, uint64_t now)
{
    struct seat *own = __atomic_load_n(&me->own, __ATOMIC_ACQUIRE);
    if (LOAD(own->wants) == 0) return;
    STORE(own->beat, now);
    if (claim_holder(LOAD(own->claim)) == me->index + 1) STORE(own->lease, now + LEASE_NS);
}

bool arbiter_want(struct arbiter *me, uint64_t now)
{
    struct seat *own = me->own;
    uint64_t since = LOAD(own->wants);
    if (since != 0 && since <= now && LOAD(own->tenant) == me->tenant &&
        is_past(LOAD(own->beat), now, FRESH_NS)) {
        if (now - LOAD(own->beat) > MS) arbiter_beat(me, now);
        return false;
    }
    see(me, now - LATE_NS);
    own = me->own;
    /*
     * A sharer that wakes starts at the others' virtual time: it neither saved up time nor pays for time alone. It is
     * first among equals, unless it only paused; otherwise it could be first again and again.
     */
    bool slept = !is_past(LOAD(own->active), now, WINDOW_NS);
    uint64_t least = standing(me, now), slack = QUANTUM_NS * 1000 / weight(me, now);
    uint64_t clock = LOAD(*me->clock);
    if (least < UINT64_MAX / 2 && (clock < least || clock > least + slack))
        STORE(*me->clock, slept && least ? least - 1 : least);
    STORE(own->wants, now ? now : 1);
    arbiter_beat(me, now);
    return true;
}

void arbiter_rest(struct arbiter *me, uint64_t now)
{
    STORE(me->own->wants, 0);
    me->waits_at = 0;
    if (arbiter_holds(me, now)) arbiter_pass(me, now);
}

bool arbiter_holds(const struct arbiter *me, uint64_t now)
{
    return turn_of(me, now).holder == me->index; /* an ended turn is still ours until another takes it */
}

static bool take(struct arbiter *me, struct turn seen, uint64_t now)
{
    uint64_t old = LOAD(me->own->claim), clock = LOAD(*me->clock);
    STORE(me->own->lease, now + LEASE_NS);
    if (!claim(me, seen, old, me->index, now)) return false;
    /* Of two that claim at once each writes before it reads, or neither sees the other: a claim is in memory first. */
    atomic_thread_fence(memory_order_seq_cst);
    see(me, UINT64_MAX);
    if (turn_of(me, now).holder != me->index) return false; /* another's claim is later */
    if (clock > LOAD(me->own->floor) || LOAD(me->own->floor) > UINT64_MAX / 2) STORE(me->own->floor, clock);
    me->in_turn = me->waits_at = 0;
    return true;
}

/*
 * A sharer that wakes takes its virtual time from others, of whom one may lie: it would then be far from its equals for
 * as long as they all have work. So the one behind, whose patience ends, owes the holder of the turn a bounded time.
 */
static void forgive(struct arbiter *me, struct sight holder, uint64_t now)
{
    uint64_t clock = LOAD(*me->clock), most;
    if (!holder.waits || holder.priority != my_priority(me)) return;
    if (__builtin_add_overflow(holder.clock, DEBT_NS * 1000 / weight(me, now), &most) || clock <= most) return;
    atomic_compare_exchange_strong(me->clock, &clock, most);
    STORE(me->own->clock, LOAD(*me->clock));
}

static bool is_impatient(struct arbiter *me, uint32_t ahead, uint64_t now)
{
    uint64_t part = promise(me), since = LOAD(me->own->wants), limit = PATIENCE_NS * (ahead + 1ull);
    if (part) return is_hungry(me, part, now);
    return since != 0 && since < now && now - since > limit && now - LOAD(me->own->active) > limit;
}

bool arbiter_try(struct arbiter *me, uint64_t now)
{
    see(me, now - LATE_NS);
    mind(me, now);
    struct turn turn = turn_of(me, now);
    me->ahead = 0;
    if (is_held_for_online(me, now)) {
        me->waits_at = 0;
        return false;
    }
    if (turn.holder == me->index) {
        /* Handed over, or kept: in both cases it is renewed, and we see it if another took it meanwhile. */
        if (turn.until < now + LEASE_NS - MS) return take(me, turn, now);
        return true;
    }
    uint32_t due, ahead = me->ahead = rank(me, now, 0, &due);
    struct sight other = {false, PRIORITY_ORDINARY, 0};
    bool free;
    if (turn.holder < SEATS && turn.until > now && turn.until - now <= LEASE_NS) {
        other = look(me, turn.holder, now);
        free = my_priority(me) == PRIORITY_ONLINE && other.priority < PRIORITY_ONLINE;
    } else {
        uint64_t freed = turn.until > now ? now - now % MS : turn.until;
        free = now - freed >= ahead * RANK_DELAY_NS;
    }
    if (free) return take(me, turn, now);
    if (!is_impatient(me, ahead, now)) return false;
    me->pressed_at = now;
    forgive(me, other, now);
    if (take(me, turn, now)) return true;
    me->pressed_at = 0; /* another process of the tenant was faster */
    return false;
}

uint64_t arbiter_pause(const struct arbiter *me) { return me->ahead > 1 ? BEHIND_NS : NEXT_NS; }

bool arbiter_keep(struct arbiter *me, uint64_t now, uint64_t pending)
{
    see(me, now - LATE_NS);
    if (!arbiter_holds(me, now)) return false;
    if (is_held_for_online(me, now)) return false;
    /* A turn taken out of impatience is a whole one, whatever others say. */
    bool whole = is_pressed(me, now) && my_priority(me) != PRIORITY_OFFLINE && me->in_turn + pending < QUANTUM_NS;
    uint32_t others = whole ? 0 : arbiter_waiting(me, now), due;
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
    uint64_t old = LOAD(me->own->claim);
    struct turn turn = turn_of(me, now);
    if (turn.holder != me->index || (turn.until > now + LEASE_NS - 2 * MS && turn.until <= now + LEASE_NS)) return;
    STORE(me->own->lease, now + LEASE_NS);
    /* An own claim keeps its time: a renewal must not be later than another's claim meanwhile. */
    if (turn.author != me->index) claim(me, turn, old, me->index, now);
}

void arbiter_charge(struct arbiter *me, uint64_t used, uint64_t now)
{
    struct seat *own = me->own;
    uint64_t clock = atomic_fetch_add(me->clock, used * 1000 / weight(me, now));
    STORE(own->clock, clock + used * 1000 / weight(me, now));
    atomic_fetch_add(&own->served, used);
    STORE(own->active, now);
    me->in_turn += used;
    eat(me, used);
}

void arbiter_pass(struct arbiter *me, uint64_t now)
{
    see(me, now - LATE_NS);
    uint64_t old = LOAD(me->own->claim);
    struct turn turn = turn_of(me, now);
    uint32_t due;
    if (turn.holder != me->index) return;
    rank(me, now, 0, &due);
    me->in_turn = me->pressed_at = 0;
    if (claim(me, turn, old, due, now)) atomic_fetch_add(&me->own->bell, 1);
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
