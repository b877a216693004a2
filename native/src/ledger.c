#include "ledger.h"
#include "lock.h"
#include <stdlib.h>
#include <string.h>

static struct {
    struct lock lock;
    struct entry *entries;
    uint32_t room, used; /* room is a power of two */
} ledger;

static uint32_t home(uint32_t kind, uint64_t key)
{
    uint64_t mixed = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(mixed >> 32) & (ledger.room - 1);
}

static struct entry *seek(uint32_t kind, uint64_t key)
{
    for (uint32_t i = home(kind, key);; i = (i + 1) & (ledger.room - 1)) {
        struct entry *entry = &ledger.entries[i];
        if (entry->kind == 0 || (entry->kind == kind && entry->key == key)) return entry;
    }
}

static bool grow(void)
{
    struct entry *old = ledger.entries;
    uint32_t room = ledger.room;
    struct entry *fresh = calloc(room ? room * 2 : 256, sizeof *fresh);
    if (!fresh) return false;
    ledger.entries = fresh;
    ledger.room = room ? room * 2 : 256;
    for (uint32_t i = 0; i < room; i++)
        if (old[i].kind) *seek(old[i].kind, old[i].key) = old[i];
    free(old);
    return true;
}

/* Removes an entry and moves up those behind it that could no longer be found. */
static void erase(struct entry *entry)
{
    uint32_t mask = ledger.room - 1, hole = (uint32_t)(entry - ledger.entries);
    ledger.used--;
    for (uint32_t i = (hole + 1) & mask; ledger.entries[i].kind; i = (i + 1) & mask) {
        uint32_t wanted = home(ledger.entries[i].kind, ledger.entries[i].key);
        if (((i - wanted) & mask) < ((i - hole) & mask)) continue;
        ledger.entries[hole] = ledger.entries[i];
        hole = i;
    }
    ledger.entries[hole].kind = 0;
}

bool ledger_put(struct entry entry)
{
    lock_take(&ledger.lock, LOCK_LEDGER);
    bool known = ledger.room && seek(entry.kind, entry.key)->kind;
    bool good = known || ledger.used + 1 <= ledger.room / 2 || grow();
    if (good) {
        struct entry *at = seek(entry.kind, entry.key);
        ledger.used += at->kind == 0;
        *at = entry;
    }
    lock_give(&ledger.lock, LOCK_LEDGER);
    return good;
}

static bool get(enum kind kind, uint64_t key, struct entry *found, bool remove)
{
    lock_take(&ledger.lock, LOCK_LEDGER);
    struct entry *at = ledger.room ? seek(kind, key) : NULL;
    bool good = at && at->kind;
    if (good) *found = *at;
    if (good && remove) erase(at);
    lock_give(&ledger.lock, LOCK_LEDGER);
    return good;
}

bool ledger_find(enum kind kind, uint64_t key, struct entry *found) { return get(kind, key, found, false); }

bool ledger_take(enum kind kind, uint64_t key, struct entry *found) { return get(kind, key, found, true); }

bool ledger_take_any(uint32_t kinds, uint64_t key, struct entry *found)
{
    struct entry *at = NULL;
    lock_take(&ledger.lock, LOCK_LEDGER);
    for (uint32_t kind = 1; ledger.room && !at && kinds >> kind; kind++) {
        if (kinds >> kind & 1) at = seek(kind, key);
        if (at && !at->kind) at = NULL;
    }
    if (at) {
        *found = *at;
        erase(at);
    }
    lock_give(&ledger.lock, LOCK_LEDGER);
    return at != NULL;
}

static bool is_in(const struct entry *entry, uint64_t context) { return entry->kind && entry->context == context; }

static bool is_tile_of(const struct entry *entry, uint64_t array)
{
    return entry->kind == KIND_TILE && entry->bytes == array;
}

static uint32_t take_all(bool (*is)(const struct entry *, uint64_t), uint64_t what, struct entry **found)
{
    uint32_t count = 0, room = 0;
    *found = NULL;
    lock_take(&ledger.lock, LOCK_LEDGER);
    for (uint32_t i = 0; what && i < ledger.room; i++) room += is(&ledger.entries[i], what);
    if (room) *found = malloc(room * sizeof **found);
    for (uint32_t i = 0; *found && i < ledger.room; i++) {
        while (is(&ledger.entries[i], what)) { /* another may move up to its place */
            (*found)[count++] = ledger.entries[i];
            erase(&ledger.entries[i]);
        }
    }
    lock_give(&ledger.lock, LOCK_LEDGER);
    return count;
}

uint32_t ledger_take_of(uint64_t context, struct entry **found) { return take_all(is_in, context, found); }

uint32_t ledger_take_tiles(uint64_t array, struct entry **found) { return take_all(is_tile_of, array, found); }

bool ledger_nth(enum kind kind, uint32_t n, struct entry *found)
{
    bool good = false;
    lock_take(&ledger.lock, LOCK_LEDGER);
    for (uint32_t i = 0; i < ledger.room && !good; i++) {
        if (ledger.entries[i].kind != (uint32_t)kind || n-- > 0) continue;
        *found = ledger.entries[i];
        good = true;
    }
    lock_give(&ledger.lock, LOCK_LEDGER);
    return good;
}

void ledger_forget(void)
{
    /* The lock may have been held by a thread that does not exist here; the memory is abandoned. */
    memset(&ledger, 0, sizeof ledger);
}
