/* Counting memory against the cap; shared by all kinds of allocation. */
#ifndef PARTAGE_MEMORY_H
#define PARTAGE_MEMORY_H

#include "container.h"
#include "ledger.h"

#define GRANULE (2ull << 20) /* the driver allocates device memory in pieces of this size */

#define MEASURED_MUCH (256ull << 20) /* a larger figure is measured again, because it may be a neighbour's */

static inline uint64_t whole_granules(uint64_t bytes)
{
    return bytes > UINT64_MAX / 4 ? UINT64_MAX / 4 : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/*
 * Counts `bytes`; false: the container is at its cap. memory_reserve asks pools first, and waits for memory that streams
 * are about to free.
 */
bool memory_room(struct card *card, uint64_t bytes);
bool memory_reserve(struct card *card, uint64_t bytes);
void memory_return(struct card *card, uint64_t bytes);
/*
 * Counts an estimate (contexts, modules) until the agent has measured the process, beside the earlier measurement;
 * false: past the cap. And releases the estimate of an object that was not created.
 */
bool memory_estimate(struct card *card, uint64_t bytes);
void memory_unestimate(struct card *card, uint64_t bytes);
/* Counts memory that cannot be refused any more. */
void memory_force(struct card *card, uint64_t bytes);
/* Releases the bytes of an entry. */
void memory_release(const struct entry *entry);
/* Bytes in use and the cap of a card; false if the card has no cap. */
bool memory_view(struct card *card, uint64_t *used, uint64_t *most);
/* Sets one entry to `bytes`; false: that would exceed the cap, and the entry stays unchanged. */
bool memory_bring(struct card *card, enum kind kind, uint64_t key, uint64_t bytes, bool force);
/*
 * Removes any allocation at an address, before the driver may give the address to another thread. Of memory that was
 * opened several times one opening is removed: entry->kind is 0. memory_restore: the driver did not free it.
 */
bool memory_at(CUdeviceptr pointer, struct entry *entry);
void memory_restore(const struct entry *entry);
/* Ends one object: its entry leaves the ledger before the driver may give the name to another thread. */
#define ENDED(name, kind, object)                                                                        \
    struct entry entry;                                                                                  \
    bool known = ledger_take(kind, (uint64_t)(uintptr_t)(object), &entry);                               \
    CUresult result = CALL(name, object);                                                                \
    if (known && result == CUDA_SUCCESS) memory_release(&entry);                                         \
    else if (known) ledger_put(entry);                                                                   \
    return result
/* Free memory of the card by the driver's figure; 0 for no card. */
uint64_t memory_free(struct card *card);
void memory_count_refusal(struct card *card);


#endif
