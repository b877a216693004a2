/* Memory that graphs allocate themselves. */
#ifndef PARTAGE_GRAPHS_H
#define PARTAGE_GRAPHS_H

#include "container.h"
#include "ledger.h"

/* What is counted for the launch of a graph, until it is settled. */
struct graphs_hold {
    uint64_t held[CARDS];
    uint32_t cards; /* a bit each */
    bool any;
};
/* Counts what a launch may add; false: past the cap, and nothing is held. */
bool graphs_admit(CUgraphExec exec, CUstream stream, struct graphs_hold *kept);
/* After it: counts what graphs hold by the driver's word instead. */
void graphs_settle(const struct graphs_hold *kept);
/* May an allocation of so many bytes be part of a graph? */
bool graphs_may_add(struct card *card, uint64_t bytes);
/* The count of graphs brought up to date, their unused memory released if `trim`. */
void graphs_refresh(struct card *card, bool trim);
/* An instance whose entry went with its context. */
void graphs_ended(const struct entry *entry);
/* In a child after fork: what the parent had is not there, and its lock is free. */
void graphs_forget(void);

#endif
