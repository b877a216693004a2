/*
 * Layout of the memory that processes share: one card page for all tenants of a card, and one account
 * for all processes of a container.
 *
 * Rules that every field keeps, and that make the layout safe to share:
 *   - no pointers, no lengths, no indices that are used before they are checked;
 *   - each field is one aligned atomic word that is true by itself: a writer killed between two stores
 *     leaves an old or a new value, never a broken one;
 *   - no locks; what a dead process held ends by time (the turn) or by its identity (a place).
 *
 * src/partage/agent/isolation/page.py reads and writes the same layout; PAGE_VERSION changes with it.
 */
#ifndef PARTAGE_PAGE_H
#define PARTAGE_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#define PAGE_VERSION 1u
#define CARD_MAGIC 0x3145474150545250ull    /* "PRTPAGE1" */
#define ACCOUNT_MAGIC 0x3154434341545250ull /* "PRTACCT1" */

#define SEATS 63   /* tenants of one card, or processes in an inner page */
#define CARDS 16    /* cards of one container */
#define PLACES 1024 /* processes of one container that use a card at the same time */
#define EXPORTS 512 /* memory handles that a container exported to itself */

/* What one sharer says of itself. Only the sharer writes it; others believe it as far as fairness goes. */
struct seat {
    _Atomic uint64_t tenant; /* who: a number from the limits file, or a process identity; 0 is free */
    _Atomic uint64_t beat;   /* last sign of life, ns of CLOCK_MONOTONIC */
    _Atomic uint64_t wants;  /* since when it has work for the card, ns; 0 is idle */
    _Atomic uint64_t clock;  /* virtual time: device ns received, divided by weight */
    _Atomic uint64_t terms;  /* policy, priority and quota as it states them (terms_pack) */
    _Atomic uint64_t served; /* device ns received since the seat was made */
    _Atomic uint64_t active; /* when its work was last seen on the device, ns */
    _Atomic uint64_t spare;
};

struct turn_page {
    _Atomic uint64_t magic;
    _Atomic uint64_t turn;   /* whose turn, until when (turn_pack) */
    _Atomic uint32_t bell;   /* counts changes of the turn; the word that waiters sleep on */
    _Atomic uint32_t version;
    _Atomic uint64_t floor;  /* highest virtual time at which a turn was taken */
    uint64_t spare[4];
    struct seat seats[SEATS];
};
_Static_assert(sizeof(struct turn_page) == 4096, "a card page is one page");

/* Books of one container on one card, shared by its processes. */
struct card_books {
    _Atomic uint64_t clock;  /* the container's virtual time, the master of seat.clock */
    _Atomic uint64_t paid;   /* until when device time received is paid for by the quota, ns */
    _Atomic uint64_t served; /* device ns received */
    _Atomic uint64_t waited; /* ns that launches were held back */
    _Atomic uint64_t refused; /* allocations refused by the cap */
    uint64_t spare[3];
};

/* Memory of one process on one card, in bytes. */
struct holding {
    _Atomic uint64_t counted;  /* what the library counted */
    _Atomic uint64_t allowance; /* contexts and modules, as estimated */
    _Atomic uint64_t overhead; /* what the agent measured beyond `counted`; 0 is not measured */
    _Atomic uint64_t swapped;  /* bytes served from host memory in oversubscription */
};

struct place {
    _Atomic uint64_t owner; /* identity_pack; 0 is free */
    _Atomic uint64_t space; /* inode of its pid namespace */
    _Atomic uint64_t beat;  /* last sign of life, ns */
    _Atomic uint64_t state; /* PLACE_* flags: what is in force, for the agent to read */
    struct holding cards[CARDS];
    uint64_t spare[4];
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
    struct turn_page inner[CARDS]; /* turns among the processes of the container */
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

/* A turn: the holder's index + 1 (0: nobody) and the microsecond until which it lasts. */
static inline uint64_t turn_pack(uint32_t holder_plus_one, uint64_t until_ns)
{
    return (uint64_t)holder_plus_one << 56 | (until_ns / 1000 & 0xffffffffffffffull);
}
static inline uint32_t turn_holder(uint64_t turn) { return (uint32_t)(turn >> 56); }
static inline uint64_t turn_until(uint64_t turn) { return (turn & 0xffffffffffffffull) * 1000; }

#endif
