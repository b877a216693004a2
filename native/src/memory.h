/* Counting memory against the cap; shared by all kinds of allocation. */
#ifndef PARTAGE_MEMORY_H
#define PARTAGE_MEMORY_H

#include "container.h"
#include "ledger.h"

#define GRANULE (2ull << 20) /* the driver takes device memory in pieces of this size */

static inline uint64_t whole_granules(uint64_t bytes)
{
    return bytes > UINT64_MAX / 4 ? UINT64_MAX / 4 : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* Counts `bytes`; false: the container is at its cap. */
bool memory_reserve(struct card *card, uint64_t bytes);
void memory_return(struct card *card, uint64_t bytes);
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
/* Is anything left below the cap? Has a graph of this process memory of its own? */
bool memory_room(struct card *card);
bool memory_of_graphs(struct card *card);
uint64_t context_now(void);
void memory_count_refusal(struct card *card);

#endif
