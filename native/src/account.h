/*
 * The container's account: which of its processes use cards, and how much memory each counted.
 *
 * A process is its pid and start time, and the program that it runs: what it had before exec is gone. A place whose
 * owner is gone counts for nothing and is taken by the next process; no cleaning up is needed, so a kill at any
 * instruction leaves nothing behind. Who cannot be asked after is there.
 */
#ifndef PARTAGE_ACCOUNT_H
#define PARTAGE_ACCOUNT_H

#include "page.h"
#include <stdbool.h>
#include <stddef.h>

struct self {
    uint64_t identity;
    uint64_t space; /* pid namespace */
    uint64_t image; /* of the program that it runs: exec gives it another; 0 is not known */
};

/* Who this process is; false if /proc does not say. */
bool self_read(struct self *self);
/* Is the owner of a place still running? */
bool place_is_alive(const struct place *place, const struct self *self, uint64_t now);
/* Takes a free or orphaned place; NULL if all are in use. */
struct place *place_take(struct account *account, const struct self *self, uint64_t now);
void place_leave(struct place *place, const struct self *self);

/* Bytes that the container uses on a card, over all its processes that are alive. */
uint64_t memory_used(struct account *account, uint32_t card, const struct self *self, uint64_t now);
/* Counts `bytes` for the place unless the container would pass `cap` (0: no cap), which may change meanwhile. */
bool memory_take(struct account *account, struct place *place, uint32_t card, uint64_t bytes, const _Atomic uint64_t *cap,
                 const struct self *self, uint64_t now);
/* Takes back what was counted; never below zero. */
void memory_give(_Atomic uint64_t *counted, uint64_t bytes);

/* Handles that the container exported: memory that is counted already. */
void export_note(struct account *account, uint64_t handle, const struct self *self);
bool export_is_ours(struct account *account, uint64_t handle, const struct self *self);
uint64_t handle_hash(const void *bytes, size_t length);

#endif
