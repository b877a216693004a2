/* Stream-ordered allocation. */
#ifndef PARTAGE_POOLS_H
#define PARTAGE_POOLS_H

#include "container.h"
#include "ledger.h"

/* Updates the counts of pools and graphs; `trim` also makes pools release unused memory. */
void pools_refresh(struct card *card, bool trim);
/* In a child after fork: the parent's objects do not exist, and its lock is free. */
void pools_forget(void);

#endif
