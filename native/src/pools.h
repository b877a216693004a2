/* Stream-ordered allocation. */
#ifndef PARTAGE_POOLS_H
#define PARTAGE_POOLS_H

#include "container.h"
#include "ledger.h"

/* Brings the counts of pools and graphs up to date; `trim` also has pools release what they can. */
void pools_refresh(struct card *card, bool trim);
/* In a child after fork: what the parent had is not there, and its lock is free. */
void pools_forget(void);

#endif
