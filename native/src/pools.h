/* Stream-ordered allocation. */
#ifndef PARTAGE_POOLS_H
#define PARTAGE_POOLS_H

#include "container.h"
#include "ledger.h"

/* Updates the counts of pools and graphs; `trim` also makes pools release unused memory. */
void pools_refresh(struct card *card, bool trim);
/* Waits a bounded time for memory of the card that was freed in stream order; false: there is none. */
bool pools_await_freed(struct card *card);
/* For the watch: releases memory that was freed meanwhile; ns until it should ask again, 0 if there is none. */
uint64_t pools_watch(void);
/* The end of an entry of memory that was freed in stream order. */
void pools_freed(struct entry *was);
/* ledger_take_of, while no thread asks about the context's events. */
uint32_t pools_take_of(uint64_t context, struct entry **found);
/* In a child after fork: the parent's objects do not exist, and its lock is free. */
void pools_forget(void);

#endif
