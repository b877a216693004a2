#include "container.h"
#include "driver.h"
#include "kernel.h"
#include "symbols.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STATUS_CLOSED 2
#define STATUS_OPEN 1
#define DEVICES 64

#ifdef PARTAGE_CHECKED
_Thread_local uint32_t locks_held;
#endif

static struct container container;
static char home[1024]; /* the library's folder, with a slash */
static struct lock opening;
static _Atomic uint32_t status;          /* 0 until opened */
static _Atomic uint32_t joined;
static _Atomic uint32_t complained, warned;
static _Atomic int card_of_device[DEVICES]; /* index + 1; -1: none; 0: not asked */

/* Writes one line to standard error, once for each mark. */
static void say(_Atomic uint32_t *said, const char *what, const char *why, uint32_t line, const char *end)
{
    char text[512];
    if (atomic_exchange(said, 1)) return;
    int size = line ? snprintf(text, sizeof text, "partage: %s, line %u: %s%s\n", what, line, why, end)
                    : snprintf(text, sizeof text, "partage: %s: %s%s\n", what, why, end);
    size_t length = size < (int)sizeof text ? (size_t)size : sizeof text - 1;
    if (size > 0 && kernel_write(STDERR_FILENO, text, length) < 0) return;
}

void container_complain(const char *what, const char *why, uint32_t line)
{
    say(&complained, what, why, line, "; the card stays closed");
}

void container_warn(const char *what, const char *why) { say(&warned, what, why, 0, ""); }

/* Finds the library's own folder; false if its path is not absolute or too long. */
static bool find_home(void)
{
    if (!symbols_home((const void *)&container_get, home, sizeof home) || home[0] != '/') return false;
    strrchr(home, '/')[1] = 0;
    return true;
}

/* "folder of the library / name"; false if that is too long. */
static bool beside(const char *name, char *path, size_t room)
{
    size_t length = strlen(home);
    if (length + strlen(name) >= room) return false;
    memcpy(path, home, length);
    strcpy(path + length, name);
    return true;
}

static bool read_limits(void)
{
    static char text[LIMITS_BYTES + 1];
    char path[1024];
    const char *why;
    if (!find_home() || !beside("limits", path, sizeof path)) {
        container_complain("limits", "the library was not loaded by its absolute path", 0);
        return false;
    }
    int file = kernel_open(path, O_RDONLY | O_CLOEXEC);
    size_t size = 0;
    for (ssize_t part = 1; file >= 0 && part > 0 && size < sizeof text; size += part > 0 ? (size_t)part : 0)
        part = kernel_read(file, text + size, sizeof text - size);
    if (file < 0) {
        container_complain(path, strerror(errno), 0);
        return false;
    }
    kernel_close(file);
    uint32_t line = limits_parse(text, size, &container.limits, &why);
    if (line) container_complain(path, why, line);
    return line == 0;
}

/* Maps a shared file of the agent, which must already have its size and its mark. */
static void *map_shared(const char *name, size_t bytes, uint64_t magic)
{
    char path[1024];
    void *memory = MAP_FAILED;
    int file = beside(name, path, sizeof path) ? kernel_open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (file >= 0 && lseek(file, 0, SEEK_END) >= (off_t)bytes)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) kernel_close(file);
    if (memory == MAP_FAILED) {
        container_complain(name, "the library cannot map the file, or the file is too short", 0);
        return NULL;
    }
    if (atomic_load((_Atomic uint64_t *)memory) != magic) {
        container_complain(name, "the file has another version than the library", 0);
        munmap(memory, bytes);
        return NULL;
    }
    return memory;
}

/*
 * The agent's page of amounts, if it gave one: an agent without one changes no amounts. A card has a cap or a quota by
 * the page exactly if the limits give it one, always.
 */
static bool map_amounts(void)
{
    char path[1024];
    const struct amounts_page *page = &container.fixed;
    for (uint32_t i = 0; i < container.limits.count; i++) {
        atomic_store(&container.fixed.cards[i].memory, container.limits.cards[i].memory);
        atomic_store(&container.fixed.cards[i].core, container.limits.cards[i].core);
    }
    int file = beside("amounts", path, sizeof path) ? kernel_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    bool none = file < 0 && errno == ENOENT, good = none;
    if (file >= 0 && lseek(file, 0, SEEK_END) == (off_t)sizeof *page) {
        page = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, file, 0);
        good = page != MAP_FAILED && atomic_load(&page->magic) == AMOUNTS_MAGIC;
    }
    if (file >= 0) kernel_close(file);
    for (uint32_t i = 0; good && i < container.limits.count; i++) {
        const struct card_limits *limits = &container.limits.cards[i];
        uint64_t core = atomic_load(&page->cards[i].core);
        good = (atomic_load(&page->cards[i].memory) == 0) == (limits->memory == 0) && (core == 0) == (limits->core == 0) &&
               core <= 1000;
    }
    if (!good) container_complain("amounts", "the file is not the page that the agent made for this container", 0);
    container.amounts = page;
    return good;
}

void container_forget(void)
{
    uint32_t seen = atomic_load(&status);
    opening = (struct lock){0};
    if (seen != STATUS_OPEN) return; /* nothing was opened: most processes of a container use no card */
    atomic_store(&joined, 0);
    atomic_store(&container.place, NULL);
    for (uint32_t i = 0; i < container.limits.count; i++) {
        struct card *card = &container.cards[i];
        memset(&card->gate, 0, sizeof card->gate);
        card->blocks_lock = (struct lock){0};
        card->blocks = 0;
        card->device = -1;
    }
    for (int i = 0; i < DEVICES; i++) atomic_store(&card_of_device[i], 0);
    if (!self_read(&container.self)) atomic_store(&status, STATUS_CLOSED);
}

static bool open_all(void)
{
    if (!read_limits() || !map_amounts()) return false;
    container.account = map_shared(container.limits.account, sizeof *container.account, ACCOUNT_MAGIC);
    if (!container.account) return false;
    if (!self_read(&container.self)) {
        container_complain("/proc/self/stat", "the library cannot read the file", 0);
        return false;
    }
    for (uint32_t i = 0; i < container.limits.count; i++) {
        struct card *card = &container.cards[i];
        card->limits = &container.limits.cards[i];
        card->now = &container.amounts->cards[i];
        card->index = i;
        card->device = -1;
    }
    return true;
}

struct container *container_get(void)
{
    uint32_t seen = atomic_load_explicit(&status, memory_order_acquire);
    if (seen == 0) {
        lock_take(&opening, LOCK_OPENING);
        seen = atomic_load(&status);
        if (seen == 0) {
            seen = open_all() ? STATUS_OPEN : STATUS_CLOSED;
            atomic_store_explicit(&status, seen, memory_order_release);
        }
        lock_give(&opening, LOCK_OPENING);
    }
    return seen == STATUS_OPEN ? &container : NULL;
}

static void format_uuid(const CUuuid *uuid, const char *prefix, char *text)
{
    text += sprintf(text, "%s", prefix);
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *text++ = '-';
        text += sprintf(text, "%02x", uuid->bytes[i]);
    }
}

struct card *card_named(const char *uuid)
{
    struct container *all = container_get();
    for (uint32_t i = 0; all && i < all->limits.count; i++)
        if (strcmp(all->cards[i].limits->uuid, uuid) == 0) return &all->cards[i];
    return NULL;
}

/* A turn among the container's own processes needs a seat on the inner page. */
static bool seat_inner(struct inner_page *page, uint32_t *index)
{
    for (uint32_t i = 0; i < SEATS; i++) {
        _Atomic uint64_t *tenant = &page->seats[i].tenant;
        uint64_t seen = atomic_load(tenant);
        struct place stale = {.owner = seen, .space = container.self.space};
        if (seen != 0 && seen != container.self.identity && place_is_alive(&stale, &container.self, 0)) continue;
        if (!atomic_compare_exchange_strong(tenant, &seen, container.self.identity)) continue;
        atomic_store(&page->seats[i].wants, 0);
        atomic_store(&page->seats[i].claim, 0);
        *index = i;
        return true;
    }
    return false;
}

static bool open_gate(struct card *card)
{
    const struct card_limits *limits = card->limits;
    struct gate *gate = &card->gate;
    uint32_t inner = 0;
    char folder[FOLDER_BYTES];
    if (!beside(limits->seats, folder, sizeof folder) || !seats_open(&gate->seats, folder, limits->slot)) {
        container_complain(limits->seats, "the library cannot map the container's seat, or the seat has a wrong size", 0);
        return false;
    }
    gate->books = &container.account->books[card->index];
    gate->granted = &card->now->core;
    gate->quota = (uint32_t)atomic_load(gate->granted);
    gate->capped = limits->policy == POLICY_FIXED_SHARE && gate->quota < 1000;
    gate->kernel_ns = UNKNOWN_NS;
    gate->outer = (struct arbiter){.own = gate->seats.own, .seats = gate->seats.view, .see = seats_see,
                                   .eyes = &gate->seats, .clock = &gate->books->clock, .index = limits->slot,
                                   .tenant = container.limits.container, .promised = true,
                                   .terms = terms_pack(limits->policy, limits->priority, gate->quota)};
    struct inner_page *page = &container.account->inner[card->index];
    gate->has_inner = seat_inner(page, &inner);
    gate->inner = (struct arbiter){.own = &page->seats[inner], .seats = page->seats, .clock = &gate->inner_clock,
                                   .index = inner, .tenant = container.self.identity,
                                   .terms = terms_pack(POLICY_BURST_SHARE, PRIORITY_ORDINARY, 100)};
    gate->open = true;
    return true;
}

static int find_card(CUdevice device)
{
    CUuuid uuid;
    char text[NAME_BYTES];
    CUresult result = ASK((CUuuid *, CUdevice), cuDeviceGetUuid_v2, &uuid, device);
    if (result != CUDA_SUCCESS) result = ASK((CUuuid *, CUdevice), cuDeviceGetUuid, &uuid, device);
    if (result != CUDA_SUCCESS) return 0;
    format_uuid(&uuid, "GPU-", text);
    struct card *card = card_named(text);
    if (!card) {
        format_uuid(&uuid, "MIG-", text);
        card = card_named(text);
    }
    if (!card) return -1;
    card->device = device;
    return (int)card->index + 1;
}

/* Again, at the first use of a card: clone, the system call and _Fork make children without the reset of fork. */
static bool identify(void)
{
    char path[1024];
    if (!self_read(&container.self)) return false;
    if (beside(container.limits.account, path, sizeof path)) self_hold(&container.self, path);
    return true;
}

bool container_join(void)
{
    struct container *all = container_get();
    if (!all) return false;
    if (atomic_load_explicit(&joined, memory_order_acquire)) return true;
    lock_take(&opening, LOCK_OPENING);
    bool good = atomic_load(&joined);
    if (!good) {
        /* A failed attempt keeps its place, whose state shows the fault: the next attempt gets it. */
        struct place *place = atomic_load(&all->place);
        good = place || identify();
        if (good && !place) atomic_store(&all->place, place = place_take(all->account, &all->self, clock_now()));
        good = place != NULL;
        if (!good) container_complain("account", "too many processes of this container use cards", 0);
        uint64_t state = PLACE_LIMITED;
        for (uint32_t i = 0; good && i < all->limits.count; i++) {
            if (all->limits.cards[i].policy == POLICY_NONE) continue;
            good = all->cards[i].gate.open || open_gate(&all->cards[i]);
            state |= PLACE_GATED;
        }
        if (place) atomic_store(&place->state, good ? state : PLACE_FAULT);
        atomic_store_explicit(&joined, good, memory_order_release);
    }
    lock_give(&opening, LOCK_OPENING);
    return good;
}

struct card *card_of(CUdevice device)
{
    if (device < 0 || device >= DEVICES || !container_join()) return NULL;
    int seen = atomic_load_explicit(&card_of_device[device], memory_order_acquire);
    if (seen == 0) {
        seen = find_card(device);
        atomic_store_explicit(&card_of_device[device], seen, memory_order_release);
    }
    return seen > 0 ? &container.cards[seen - 1] : NULL;
}
