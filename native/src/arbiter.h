/*
 * Turns on one card: who may launch now, and for how long.
 *
 * Every sharer runs this same rule over the same seats and comes to the same answer; there is no arbiter
 * process. A seat is written by its own sharer only, so the turn is no word that all may change: each says in its
 * seat whose turn it is since when, and the latest saying counts. Who takes a turn looks again, and gives way
 * to who was later. A sharer receives device time in proportion to its weight: the one with the lowest
 * virtual time (device ns received / weight) goes next, for at most one quantum while others wait.
 * Nothing here reads a clock, sleeps or locks: `now` is an argument, seats are plain atomic words.
 *
 * Trust: quotas come from the sharer's own limits file. Seats carry statements only. A false one or a corrupt
 * word costs fairness for a bounded time (LEASE_NS, PATIENCE_NS), never memory safety. Who takes a turn back at
 * once that another took out of impatience is not listened to for a while (DEAF_NS).
 */
#ifndef PARTAGE_ARBITER_H
#define PARTAGE_ARBITER_H

#include "page.h"
#include <stdbool.h>

#define MS 1000000ull
#define QUANTUM_NS (20 * MS)     /* device time of a turn while few others wait */
#define QUANTUM_MIN_NS (4 * MS)  /* and while many do */
#define ROUND_NS (64 * MS)       /* a round of all waiting aims at this */
#define LEASE_NS (30 * MS)       /* a turn that is not renewed ends after this */
#define GRACE_NS (4 * MS)        /* a turn that was handed over is taken up within this */
#define RANK_DELAY_NS (MS / 2)   /* the n-th in the queue takes a free turn after n of these */
#define NEXT_NS (MS / 2)         /* who is next looks this often whether the turn is free */
#define BEHIND_NS (2 * MS)       /* and who is behind it this often: the bell wakes it sooner when it comes to that */
#define FRESH_NS (80 * MS)       /* a seat without a beat for this long does not count */
#define PATIENCE_NS (400 * MS)   /* after waiting this long a sharer takes the turn regardless */
#define DEAF_NS (2000 * MS)      /* for so long the claims of who does not give the card count for nothing */
#define LATE_NS (50000ull)       /* a look at the seats is good for this long */
#define RETURN_NS (100 * MS)     /* offline work resumes after online work was idle for this long */
#define WINDOW_NS (50 * MS)      /* quota of this much wall time may be saved up while idle */
#define LAG_NS (1000 * MS)       /* and this much while waiting for the card */

struct arbiter {
    struct seat *own;              /* the sharer's own seat */
    const struct seat *seats;      /* all seats as last seen; the own one there is not looked at */
    void (*see)(struct arbiter *, uint64_t since); /* looks again unless it did since then; NULL: nothing to do */
    void *eyes;                    /* for `see` */
    _Atomic uint64_t *clock; /* master of the seat's virtual time, where no other tenant writes */
    uint32_t index;          /* own seat */
    uint64_t tenant;         /* what own seat.tenant must hold */
    uint64_t terms;          /* own policy, priority, quota: from the limits file */
    uint64_t in_turn;        /* device ns received in this turn */
    uint32_t ahead;          /* how many others came before it when it last asked for the turn and did not get it */
    uint64_t pressed_at;     /* when the turn was last taken out of impatience, */
    uint32_t pressed;        /* and from whom */
    uint64_t deaf[SEATS];    /* until when a seat's claims count for nothing */
};

/* Says that the sharer has work, from now on; true if it had none before. */
bool arbiter_want(struct arbiter *arbiter, uint64_t now);
/* Says that it has none. */
void arbiter_rest(struct arbiter *arbiter, uint64_t now);
/* A sign of life; writes the seat anew, whatever was done to it. */
void arbiter_beat(struct arbiter *arbiter, uint64_t now);
/* The same of the sharer's own words alone: the one call that may be made beside others. */
void arbiter_live(struct arbiter *arbiter, uint64_t now);
/* Takes the turn if it is due. True: the turn is ours. */
bool arbiter_try(struct arbiter *arbiter, uint64_t now);
/* How long to sleep before it is worth asking again, if no bell rings: ns. */
uint64_t arbiter_pause(const struct arbiter *arbiter);
/*
 * May the holder go on with `pending` device ns launched and not yet counted? Renews the lease. False: the
 * turn was lost or another's is due; finish what runs and pass.
 */
bool arbiter_keep(struct arbiter *arbiter, uint64_t now, uint64_t pending);
/* Keeps the lease while work drains; does not ask for more. */
void arbiter_renew(struct arbiter *arbiter, uint64_t now);
/* Is the turn ours at this moment? */
bool arbiter_holds(const struct arbiter *arbiter, uint64_t now);
/* Counts device time received. */
void arbiter_charge(struct arbiter *arbiter, uint64_t used, uint64_t now);
/* Gives the turn to who is due. */
void arbiter_pass(struct arbiter *arbiter, uint64_t now);
/* Others that have work and are alive. */
uint32_t arbiter_waiting(const struct arbiter *arbiter, uint64_t now);

/* Is there no other that has work, nor one that goes before this sharer and may have work any time? */
bool arbiter_is_alone(struct arbiter *arbiter, uint64_t now);

/*
 * Has every tenant of the card best-effort, and the same priority? Then there is nothing that turns would keep, and the driver
 * shares the card. It goes by what the agent says of all that were granted a part, whether they have work or not.
 */
bool arbiter_is_free(struct arbiter *arbiter, uint64_t now);

/* Whose bell tells of the next change: who has the turn, else the sharer itself. */
uint32_t arbiter_bell(const struct arbiter *arbiter, uint64_t now);

/* The quota as one word: `paid` is the time until which device time received is paid for. */
void quota_open(_Atomic uint64_t *paid, uint64_t now, uint64_t window);
void quota_charge(_Atomic uint64_t *paid, uint64_t used, uint32_t quota_milli, uint64_t now);
/* ns to wait before the next launch, given work launched and not yet counted; 0 is go. */
uint64_t quota_wait(const _Atomic uint64_t *paid, uint64_t pending, uint32_t quota_milli, uint64_t now);

#endif
