/*
 * The container's account: which of its processes use cards, and the memory that each counted.
 *
 * A process is identified by its pid, its start time and its program: memory from before an exec is gone. A place whose
 * owner is gone does not count, and the next process takes it. No cleaning up is needed, so a kill at any instruction
 * leaves nothing behind. A process that cannot be checked counts as alive, and so does one whose forked child runs.
 */
#ifndef PARTAGE_ACCOUNT_H
#define PARTAGE_ACCOUNT_H

#include "page.h"
#include <stdbool.h>
#include <stddef.h>

struct self {
    uint64_t identity;
    uint64_t space; /* pid namespace */
    uint64_t image; /* of its program: exec changes it; 0 is unknown */
    bool strange;   /* /proc is of another pid namespace: its numbers belong to other processes */
    int file;       /* the account, open while this process or a forked child of it runs; 0 is none */
};

/* The identity of this process; false if /proc does not contain it. */
bool self_read(struct self *self);
/* Keeps the account open, with a lock by which others know that this process, or a forked child of it, runs. */
void self_hold(struct self *self, const char *account);
/* Is the owner of a place still running? */
bool place_is_alive(const struct place *place, const struct self *self, uint64_t now);
/* Takes a free or orphaned place; NULL if all are in use. */
struct place *place_take(struct account *account, const struct self *self, uint64_t now);
void place_leave(struct place *place, const struct self *self);

/* Bytes that the container uses on a card, over all its live processes. */
uint64_t memory_used(struct account *account, uint32_t card, const struct self *self, uint64_t now);
/* Counts `bytes` for the place unless the container would exceed `cap` (0: no cap), which may change meanwhile. */
bool memory_take(struct account *account, struct place *place, uint32_t card, uint64_t bytes, const _Atomic uint64_t *cap,
                 const struct self *self, uint64_t now);
/* Subtracts counted bytes; never below zero. */
void memory_give(_Atomic uint64_t *counted, uint64_t bytes);

/* Handles that the container exported: their memory is already counted. */
void export_note(struct account *account, uint64_t handle, const struct self *self);
/* This process freed what it exported. */
void export_end(struct account *account, uint64_t handle, const struct self *self);
bool export_is_ours(struct account *account, uint64_t handle, const struct self *self, uint64_t now);
uint64_t handle_hash(const void *bytes, size_t length);

#endif
