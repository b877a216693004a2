/* Memory that graphs allocate themselves. */
#ifndef PARTAGE_GRAPHS_H
#define PARTAGE_GRAPHS_H

#include "container.h"
#include "ledger.h"

/* The bytes counted for the launch of a graph, until it is settled. */
struct graphs_hold {
    uint64_t held[CARDS];
    uint32_t cards; /* a bit each */
    bool any;
};
/* Counts the possible growth by a launch; false: past the cap, and nothing is held. */
bool graphs_admit(CUgraphExec exec, CUstream stream, struct graphs_hold *kept);
/* After it: counts instead the memory of graphs by the driver's figure. */
void graphs_settle(const struct graphs_hold *kept);
/* May an allocation of this size be part of a graph? */
bool graphs_may_add(struct card *card, uint64_t bytes);
/* Updates the count of graphs, and releases their unused memory if `trim`. */
void graphs_refresh(struct card *card, bool trim);
/* An instance whose entry was removed with its context. */
void graphs_ended(const struct entry *entry);
/* In a child after fork: the parent's objects do not exist, and its lock is free. */
void graphs_forget(void);

#endif
