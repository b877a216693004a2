/* The driver's contexts. */
#ifndef PARTAGE_CONTEXTS_H
#define PARTAGE_CONTEXTS_H

#include "container.h"
#include "ledger.h"

/* The context of an object that a thread creates now; a green one is a part of the primary. */
uint64_t contexts_now(void);
/* In a child after fork: the parent's objects do not exist, and its lock is free. */
void contexts_forget(void);

/* Counts created contexts: facts kept by a context's name may belong to an earlier context of that name. */
extern _Atomic uint64_t contexts_made;

#endif
