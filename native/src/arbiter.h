/*
 * Turns on one card: which sharer may launch now, and for how long.
 *
 * Every sharer applies this rule to the same seats and gets the same answer; there is no arbiter process. Only its own
 * sharer writes a seat, so no shared word holds the turn. Each sharer claims in its seat who has the turn since when,
 * and the latest claim counts. A sharer that takes a turn reads again, and yields to a later claim. A sharer receives
 * device time in proportion to its weight: the one with the lowest virtual time (device ns received / weight) is
 * next, for at most one quantum while others wait.
 * Nothing here reads a clock, sleeps or locks: `now` is an argument, seats are plain atomic words.
 *
 * Trust: quotas are from the sharer's own limits file. Seats contain only statements. A false statement or a corrupt
 * word costs fairness for a bounded time (LEASE_NS, PATIENCE_NS, HUNGER_NS, DEBT_NS), never memory safety. Each sharer counts for
 * itself what it misses of its quota. If that is much, it takes a turn and ignores others' claims until that turn ends.
 * From then on it ignores sharers that claim turns of its own, until they have not for a while (DEAF_NS).
 */
#ifndef PARTAGE_ARBITER_H
#define PARTAGE_ARBITER_H

#include "page.h"
#include <stdbool.h>

#define MS 1000000ull
#define QUANTUM_NS (20 * MS)     /* device time of a turn while few others wait */
#define QUANTUM_MIN_NS (4 * MS)  /* and while many do */
#define ROUND_NS (64 * MS)       /* target of a round of all waiting sharers */
#define LEASE_NS (30 * MS)       /* a turn that is not renewed ends after this */
#define GRACE_NS (4 * MS)        /* a turn that was handed over is taken up within this */
#define RANK_DELAY_NS (MS / 2)   /* the n-th in the queue takes a free turn after n of these */
#define NEXT_NS (MS / 2)         /* the next sharer checks this often whether the turn is free */
#define BEHIND_NS (2 * MS)       /* and the ones behind it this often: the bell wakes them earlier if needed */
#define FRESH_NS (80 * MS)       /* a seat without a beat for this long does not count */
#define PATIENCE_NS (400 * MS)   /* after waiting this long a sharer without a quota takes the turn regardless */
#define HUNGER_NS (2400 * MS)    /* and one with a quota once it misses the device time of this long: others' kernels may be long */
#define DEAF_NS (2000 * MS)      /* the claims of a sharer that claims others' turns are ignored for this long */
#define DEBT_NS (2000 * MS)      /* device time that a sharer at most still owes its equals once it lost patience */
#define LATE_NS (50000ull)       /* a look at the seats is good for this long */
#define RETURN_NS (100 * MS)     /* offline work resumes after online work was idle for this long */
#define WINDOW_NS (50 * MS)      /* an idle sharer may save this much wall time of its quota */
#define LAG_NS (1000 * MS)       /* and one that waits for the card this much */

struct arbiter {
    struct seat *own;              /* the sharer's own seat */
    const struct seat *seats;      /* all seats as last copied; its own entry is not used */
    void (*see)(struct arbiter *, uint64_t since); /* copies again unless it did since then; NULL: nothing to do */
    void *eyes;                    /* for `see` */
    _Atomic uint64_t *clock; /* master of the seat's virtual time, where no other tenant writes */
    uint32_t index;          /* own seat */
    uint64_t tenant;         /* required value of own seat.tenant */
    uint64_t terms;          /* own policy, priority, quota: from the limits file */
    uint64_t in_turn;        /* device ns received in this turn */
    uint32_t ahead;          /* number of others before it when it last asked for the turn and did not get it */
    bool promised;           /* its quota is promised to it among others, of whom any may lie */
    uint64_t hunger;         /* ns for which it wanted the card, and that its device time has not paid for */
    uint64_t waits_at;       /* when it last asked for the turn and did not get it; 0: it does not wait */
    uint64_t pressed_at;     /* when the turn was last taken out of impatience, */
    uint64_t heard[SEATS];   /* the claims last seen that were against the rule, */
    uint8_t again[SEATS];    /* how many were seen, */
    uint64_t minds_since;    /* and since when: LEASE_NS ago at most */
    uint64_t deaf[SEATS];    /* time until which a seat's claims are ignored, */
    uint64_t deaf_until;     /* and any seat's */
};

/* Notes that the sharer has work from now on; true if it had none before. */
bool arbiter_want(struct arbiter *arbiter, uint64_t now);
/* Notes that it has none. */
void arbiter_rest(struct arbiter *arbiter, uint64_t now);
/* A sign of life; writes the whole seat again, which another process may have changed. */
void arbiter_beat(struct arbiter *arbiter, uint64_t now);
/* The same for the sharer's own words alone: the only call that may run beside others. */
void arbiter_live(struct arbiter *arbiter, uint64_t now);
/* Takes the turn if it is due. True: the turn is ours. */
bool arbiter_try(struct arbiter *arbiter, uint64_t now);
/* The sleep before the next attempt, if no bell rings: ns. */
uint64_t arbiter_pause(const struct arbiter *arbiter);
/*
 * May the holder continue with `pending` device ns launched and not yet counted? Renews the lease. False: the
 * turn was lost or another's is due; finish running work and pass.
 */
bool arbiter_keep(struct arbiter *arbiter, uint64_t now, uint64_t pending);
/* Keeps the lease while work drains; does not extend the turn. */
void arbiter_renew(struct arbiter *arbiter, uint64_t now);
/* Is the turn ours at this moment? */
bool arbiter_holds(const struct arbiter *arbiter, uint64_t now);
/* Counts device time received. */
void arbiter_charge(struct arbiter *arbiter, uint64_t used, uint64_t now);
/* Passes the turn to the next sharer. */
void arbiter_pass(struct arbiter *arbiter, uint64_t now);
/* The number of other live sharers with work. */
uint32_t arbiter_waiting(const struct arbiter *arbiter, uint64_t now);

/* Is there no other sharer with work, nor one with precedence that may have work any time? */
bool arbiter_is_alone(struct arbiter *arbiter, uint64_t now);

/*
 * Has every tenant of the card best-effort, and the same priority? Then turns have no effect, and the driver shares the
 * card. This uses the agent's terms of all tenants, with or without work.
 */
bool arbiter_is_free(struct arbiter *arbiter, uint64_t now);

/* The seat whose bell rings at the next change: that of the turn's holder, else its own. */
uint32_t arbiter_bell(const struct arbiter *arbiter, uint64_t now);

/* The quota as one word: `paid` is the time up to which device time received is paid for. */
void quota_open(_Atomic uint64_t *paid, uint64_t now, uint64_t window);
void quota_charge(_Atomic uint64_t *paid, uint64_t used, uint32_t quota_milli, uint64_t now);
/* ns to wait before the next launch, given work launched and not yet counted; 0 means launch. */
uint64_t quota_wait(const _Atomic uint64_t *paid, uint64_t pending, uint32_t quota_milli, uint64_t now);

#endif
