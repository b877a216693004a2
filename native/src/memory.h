/* Counting memory against the cap; shared by all kinds of allocation. */
#ifndef PARTAGE_MEMORY_H
#define PARTAGE_MEMORY_H

#include "container.h"
#include "ledger.h"

#define GRANULE (2ull << 20) /* the driver takes device memory in pieces of this size */

#define MEASURED_MUCH (256ull << 20) /* more than this is measured again: it may be a neighbour's */

static inline uint64_t whole_granules(uint64_t bytes)
{
    return bytes > UINT64_MAX / 4 ? UINT64_MAX / 4 : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* Counts `bytes`; false: the container is at its cap. */
bool memory_reserve(struct card *card, uint64_t bytes);
void memory_return(struct card *card, uint64_t bytes);
/*
 * Counts what is known by an estimate alone (contexts, modules) until the agent has measured the process, beside what it
 * measured before; false: past the cap. And gives back what was so counted of what is not there after all.
 */
bool memory_estimate(struct card *card, uint64_t bytes);
void memory_unestimate(struct card *card, uint64_t bytes);
/* Counts what cannot be refused any more. */
void memory_force(struct card *card, uint64_t bytes);
/* Plain allocations: those below half a granule share granules. */
bool memory_reserve_plain(struct card *card, uint64_t bytes, enum kind *kind);
/* Gives back what an entry counted. */
void memory_release(const struct entry *entry);
/* Bytes in use and the cap of a card; false if the card has no cap. */
bool memory_view(struct card *card, uint64_t *used, uint64_t *most);
/* Brings the counts of pools and graphs up to date; `trim` also has pools give back what they can. */
void pools_refresh(struct card *card, bool trim);
/* Brings one entry to `bytes`; false: that would pass the cap, and the entry stays as it is. */
bool memory_bring(struct card *card, enum kind kind, uint64_t key, uint64_t bytes, bool force);
/* Counts memory that was opened by a handle, unless the container exported it itself; false: past the cap. */
bool memory_import(const CUdeviceptr *pointer, uint64_t handle, uint64_t context);
/* Keeps a handle's memory counted as a mapping of it does, also without the handle; false: it is not counted. */
bool handle_borrow(CUmemHandle handle, struct entry *entry);
void handle_give_up(CUmemHandle handle);
/* Takes out what was allocated at an address, however; before the driver may give the address to another thread. */
bool memory_at(CUdeviceptr pointer, struct entry *entry);
/* What ends one object: its entry is out of the ledger before the driver may give the name to another thread. */
#define ENDED(name, kind, object)                                                                        \
    struct entry entry;                                                                                  \
    bool known = ledger_take(kind, (uint64_t)(uintptr_t)(object), &entry);                               \
    CUresult result = CALL(name, object);                                                                \
    if (known && result == CUDA_SUCCESS) memory_release(&entry);                                         \
    else if (known) ledger_put(entry);                                                                   \
    return result
/* The context that what a thread makes now goes with; a green one is a part of the primary. */
uint64_t context_now(void);
/* Memory of the card that is free by the driver's word; 0 for no card. */
uint64_t memory_free(struct card *card);
void memory_count_refusal(struct card *card);

/* What is counted for the launch of a graph, until it is settled. */
struct graph_hold {
    uint64_t held[CARDS];
    uint32_t cards; /* a bit each */
    bool any;
};
/* Counts what a launch may add; false: past the cap, and nothing is held. */
bool graph_admit(CUgraphExec exec, CUstream stream, struct graph_hold *kept);
/* After it: counts what graphs hold by the driver's word instead. */
void graph_settle(const struct graph_hold *kept);
/* May an allocation of so many bytes be part of a graph? */
bool graph_may_add(struct card *card, uint64_t bytes);
/* The count of graphs brought up to date, their unused memory given back if `trim`. */
void graphs_refresh(struct card *card, bool trim);
/* An instance whose entry went with its context. */
void graph_ended(const struct entry *entry);
/* A capture that is over: with its stream's or its context's end, too. */
void capture_ended(const struct entry *entry);

/* In a child after fork: what the parent had is not there, and no lock is held. */
void contexts_forget(void);
void settings_forget(void);
void graphs_forget(void);
void physical_forget(void);
void pools_forget(void);

#endif
