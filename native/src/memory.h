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
 * measured before; false: past the cap. And releases what was so counted of what is not there after all.
 */
bool memory_estimate(struct card *card, uint64_t bytes);
void memory_unestimate(struct card *card, uint64_t bytes);
/* Counts what cannot be refused any more. */
void memory_force(struct card *card, uint64_t bytes);
/* Releases what an entry counted. */
void memory_release(const struct entry *entry);
/* Bytes in use and the cap of a card; false if the card has no cap. */
bool memory_view(struct card *card, uint64_t *used, uint64_t *most);
/* Brings one entry to `bytes`; false: that would pass the cap, and the entry stays as it is. */
bool memory_bring(struct card *card, enum kind kind, uint64_t key, uint64_t bytes, bool force);
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
/* Memory of the card that is free by the driver's word; 0 for no card. */
uint64_t memory_free(struct card *card);
void memory_count_refusal(struct card *card);


#endif
