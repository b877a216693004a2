/*
 * The container in this process: limits, account, seats, and the card of each device.
 *
 * The first call that needs it opens it. The files lie beside the library itself, in a folder that the
 * agent mounts read-only (its own seats and the account are writable); no environment variable is read.
 */
#ifndef PARTAGE_CONTAINER_H
#define PARTAGE_CONTAINER_H

#include "account.h"
#include "abi.h"
#include "gate.h"
#include "limits.h"
#include "lock.h"
#include <stdatomic.h>

struct card {
    const struct card_limits *limits;
    const struct card_amounts *now; /* memory and core: the agent changes them while the program runs */
    uint32_t index; /* in the limits and in the account */
    CUdevice device; /* -1: CUDA has not reported it */
    struct gate gate;
    struct lock blocks_lock;
    uint64_t blocks; /* that allocations may share */
};

struct container {
    struct limits limits;
    struct amounts_page fixed; /* the limits' own, if the agent gave no page */
    const struct amounts_page *amounts;
    struct account *account;
    struct place *_Atomic place; /* at the process's end a private one */
    struct self self;
    struct card cards[CARDS];
};

/* Most bytes of a card that the container may use now; 0 is no cap. */
static inline uint64_t card_cap(const struct card *card) { return atomic_load(&card->now->memory); }

/* The container, or NULL if its files cannot be trusted: then nothing is allowed. */
struct container *container_get(void);
/* Takes a place in the account and learns the devices' names; after the driver's cuInit. */
bool container_join(void);
/* The card of a device; NULL: no limits are set for it. */
struct card *card_of(CUdevice device);
struct card *card_named(const char *uuid);
/* Writes why a card stays closed to standard error, one line, once a process. */
void container_complain(const char *what, const char *why, uint32_t line);
/* Likewise a fault that closes no card. */
void container_warn(const char *what, const char *why);

/* In a child after fork: it must join the container again. */
void container_forget(void);

#endif
