/* The allocations of this process: by kind and key, the bytes counted for each, its card and its context. */
#ifndef PARTAGE_LEDGER_H
#define PARTAGE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum kind { KIND_POINTER = 1, KIND_BLOCK, KIND_SWAP, KIND_HANDLE, KIND_MAPPING, KIND_ARRAY, KIND_MIPMAP,
            KIND_IMPORT, KIND_EXTERNAL, KIND_POOL, KIND_CONTEXT, KIND_MODULE, KIND_LIBRARY, KIND_SETTING,
            KIND_GRAPHS, KIND_EXEC, KIND_BINDING, KIND_GREEN, KIND_CAPTURE, KIND_TILE, KIND_FREED, KIND_SOURCE,
            KIND_EXPORT };

struct entry {
    uint64_t key;
    uint64_t bytes;  /* of a tile: its array; of an import: its source; of memory freed in stream order: the entry that it had */
    uint64_t other;  /* kind's own: references of a handle, handle of a mapping, device of a green context and so on */
    uint64_t context; /* freed with this context; 0 outlives all */
    uint32_t card;
    uint32_t kind;   /* 0: free */
};

/* False when out of host memory. Replaces an entry of the same kind and key. */
bool ledger_put(struct entry entry);
bool ledger_find(enum kind kind, uint64_t key, struct entry *found);
/* Removes and returns; false if there is none. */
bool ledger_take(enum kind kind, uint64_t key, struct entry *found);
/* The same for the first of several kinds, a bit each. */
bool ledger_take_any(uint32_t kinds, uint64_t key, struct entry *found);
/* Removes all entries of a context, of any kind, into memory for the caller; none if there is no memory for them. */
uint32_t ledger_take_of(uint64_t context, struct entry **found);
/* The same for the tiles of an array. */
uint32_t ledger_take_tiles(uint64_t array, struct entry **found);
/* The n-th entry of a kind, for walks; false past the end. */
bool ledger_nth(enum kind kind, uint32_t n, struct entry *found);
/* Forgets all (in a child after fork). */
void ledger_forget(void);

#endif
