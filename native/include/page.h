/*
 * Layout of the memory that processes share: one seat for each tenant of a card, and one account for all processes
 * of a container.
 *
 * A seat is a file of its own, a page long. Only its own container can write it. The other tenants of the card read it,
 * but never by a load, because another container may truncate it: the kernel copies it (seats.c), so a missing page is
 * an empty seat and not a fault.
 *
 * Rules that make the layout safe to share, for every field:
 *   - no pointers, no lengths, no indices that are used before they are checked;
 *   - each field is one aligned atomic word that is valid by itself: a writer killed between two stores
 *     leaves an old or a new value, never a broken one;
 *   - no locks; the rights of a dead process end by time (the turn) or by its identity (a place).
 *
 * src/partage/agent/isolation reads and writes the same layout (seats.py, account.py, amounts.py). A change of it
 * changes the mark of seat or account too: a seat with another mark is not read.
 */
#ifndef PARTAGE_PAGE_H
#define PARTAGE_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#define SEAT_MAGIC 0x3254414553545250ull    /* "PRTSEAT2" */
#define ACCOUNT_MAGIC 0x3254434341545250ull /* "PRTACCT2" */
#define AMOUNTS_MAGIC 0x3153544d41545250ull /* "PRTAMTS1" */
#define SEAT_BYTES 4096                     /* of a seat's file: a page, so that nothing else is mapped with it */

#define SEATS 63   /* tenants of one card, or processes of a container on it */
#define CARDS 16    /* cards of one container */
#define PLACES 1024 /* processes of one container that use a card at the same time */
#define EXPORTS 512 /* memory handles that a container exported to itself */

/* The words of one sharer: its own state, and whose turn it is. Only the sharer writes it. */
struct seat {
    _Atomic uint64_t magic;  /* layout of this seat; a seat of another version is ignored */
    _Atomic uint64_t tenant; /* the sharer: a number from the limits file, or a process identity; 0 is free */
    _Atomic uint64_t beat;   /* last sign of life, ns of CLOCK_MONOTONIC */
    _Atomic uint64_t wants;  /* time since which it has work for the card, ns; 0 is idle */
    _Atomic uint64_t clock;  /* virtual time: device ns received, divided by weight */
    _Atomic uint64_t terms;  /* policy, priority and quota (terms_pack); of a container only the agent's page counts */
    _Atomic uint64_t served; /* device ns received since the seat was made */
    _Atomic uint64_t active; /* time when its work was last seen on the device, ns */
    _Atomic uint64_t claim;  /* the holder of the turn by this seat, and the time of the claim (claim_pack) */
    _Atomic uint64_t lease;  /* time when its own turn ends, ns */
    _Atomic uint64_t floor;  /* highest virtual time at which it took a turn */
    _Atomic uint32_t bell;   /* counts the turns that it passed on; waiters sleep on this word */
    uint32_t pad;
    uint64_t spare[4];
};
_Static_assert(sizeof(struct seat) == 128, "layout of a seat");

/*
 * The agent's page about the sharers of a card: policy, priority and quota of each (terms_pack), bit 56 if the seat is
 * allocated, and the number of files that the seat has had. If that number changes, the seat is a new file under the
 * same name, and the mapped one is a former tenant's. 0 is of an older agent, whose seats keep their files.
 * Tenants have the page read-only, so no tenant can claim more than its grant.
 */
struct terms_page {
    _Atomic uint64_t terms[SEATS];
    _Atomic uint64_t files[SEATS];
    uint64_t spare[386];
};
_Static_assert(sizeof(struct terms_page) == SEAT_BYTES, "the terms are one page");

/*
 * The agent's amounts of a container, by card: these words replace those of the limits file from the start.
 * The container has the page read-only. The agent writes only in place: a changed word is in force at once, also in
 * processes that sleep.
 */
struct card_amounts {
    _Atomic uint64_t memory; /* bytes; 0 is no cap */
    _Atomic uint64_t core;   /* thousandths of the card; 0 is no quota */
};
struct amounts_page {
    _Atomic uint64_t magic;
    uint64_t spare[7];
    struct card_amounts cards[CARDS];
    uint64_t rest[472];
};
_Static_assert(sizeof(struct amounts_page) == 4096, "the amounts are one page");

/* Turns among the processes of one container on one card. */
struct inner_page {
    struct seat seats[SEATS];
    uint64_t spare[16];
};
_Static_assert(sizeof(struct inner_page) == 8192, "an inner page is two pages");

/* Books of one container on one card, shared by its processes. */
struct card_books {
    _Atomic uint64_t clock;  /* the container's virtual time, the master of seat.clock */
    _Atomic uint64_t paid;   /* time up to which the quota has paid for device time received, ns */
    _Atomic uint64_t served; /* device ns received */
    _Atomic uint64_t waited; /* ns that launches waited */
    _Atomic uint64_t refused; /* allocations refused by the cap */
    uint64_t spare[3];
};

/* Memory of one process on one card, in bytes. */
struct holding {
    _Atomic uint64_t counted;  /* the library's own count */
    _Atomic uint64_t allowance; /* contexts and modules, as estimated */
    _Atomic uint64_t overhead; /* the agent's measurement beyond `counted`; 0 is not measured */
    _Atomic uint64_t swapped;  /* bytes served from host memory in oversubscription */
};

struct place {
    _Atomic uint64_t owner; /* identity_pack; 0 is free */
    _Atomic uint64_t space; /* inode of its pid namespace */
    _Atomic uint64_t beat;  /* last sign of life, ns */
    _Atomic uint64_t state; /* PLACE_* flags: the limits in force, for the agent */
    struct holding cards[CARDS];
    _Atomic uint64_t image; /* start of the stack of the owner's program, by procfs; 0 is unknown */
    uint64_t spare[3];
};

struct export_mark {
    _Atomic uint64_t handle; /* hash of an exported handle */
    _Atomic uint64_t owner;  /* identity of the exporter */
};

struct account {
    _Atomic uint64_t magic;
    _Atomic uint64_t version;
    _Atomic uint64_t used_places; /* places below this were used at some time */
    uint64_t spare[5];
    struct card_books books[CARDS];
    struct export_mark exports[EXPORTS];
    struct place places[PLACES];
    uint8_t pad[3008];
    struct inner_page inner[CARDS];
};
_Static_assert(sizeof(struct place) == 576, "layout of a place");
_Static_assert(sizeof(struct account) % 4096 == 0, "an account is whole pages");

#define PLACE_LIMITED 1u  /* limits were read and memory is capped */
#define PLACE_GATED 2u    /* launches pass the gate */
#define PLACE_FAULT 4u    /* the library found a fault and refuses work */

/* Identity of a process: pid below 2^22, start time in clock ticks below 2^41, one bit while it settles. */
#define IDENTITY_SETTLING 1ull
static inline uint64_t identity_pack(uint64_t pid, uint64_t start)
{
    return (pid & 0x3fffffull) << 42 | (start & 0x1ffffffffffull) << 1;
}
static inline uint64_t identity_pid(uint64_t identity) { return identity >> 42; }
static inline uint64_t identity_start(uint64_t identity)
{
    return identity >> 1 & 0x1ffffffffffull;
}

enum policy { POLICY_BEST_EFFORT = 0, POLICY_FIXED_SHARE = 1, POLICY_BURST_SHARE = 2, POLICY_NONE = 3 };
enum priority { PRIORITY_OFFLINE = 0, PRIORITY_ORDINARY = 1, PRIORITY_ONLINE = 2 };

static inline uint64_t terms_pack(enum policy policy, enum priority priority, uint32_t quota_milli)
{
    return (uint64_t)policy << 32 | (uint64_t)priority << 40 | quota_milli;
}
static inline uint32_t terms_policy(uint64_t terms) { return (uint32_t)(terms >> 32 & 0xff); }
static inline uint32_t terms_priority(uint64_t terms) { return (uint32_t)(terms >> 40 & 0xff); }
static inline uint32_t terms_quota(uint64_t terms)
{
    uint32_t quota = (uint32_t)(terms & 0xffffffffu);
    return quota > 1000 ? 1000 : quota;
}

/*
 * A claim: its time, in units of 64 ns, and the index + 1 of the holder of the turn from then on (0: none).
 * The latest of all claims counts. One from the future does not count.
 */
#define CLAIM_UNIT 64ull
static inline uint64_t claim_pack(uint64_t stamp_ns, uint32_t holder_plus_one)
{
    return (stamp_ns / CLAIM_UNIT) << 8 | (holder_plus_one & 0xffu);
}
static inline uint32_t claim_holder(uint64_t claim) { return (uint32_t)(claim & 0xffu); }
static inline uint64_t claim_stamp(uint64_t claim) { return (claim >> 8) * CLAIM_UNIT; }

#endif
