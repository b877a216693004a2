/* The driver's contexts. */
#ifndef PARTAGE_CONTEXTS_H
#define PARTAGE_CONTEXTS_H

#include "container.h"
#include "ledger.h"

/* The context that what a thread makes now goes with; a green one is a part of the primary. */
uint64_t contexts_now(void);
/* In a child after fork: what the parent had is not there, and its lock is free. */
void contexts_forget(void);

#endif
