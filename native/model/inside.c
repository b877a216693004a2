/*
 * Replaces files, loader and threads in a modelled process's copy of the library: its limits and account, the way to its
 * driver, its watch. All other files of the library are in that copy unchanged.
 */
#include "inside.h"
#include "../src/container.h"
#include "../src/driver.h"
#include "../src/watch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct container container;
static struct inside_world world;
static void (*last_word)(void);
EXPORT __thread char inside_own; /* the other variables of the copy's threads are found by its address */

static void open_gate(struct card *card, struct seat *seat)
{
    const struct card_limits *limits = card->limits;
    struct gate *gate = &card->gate;
    gate->seats.own = seat;
    gate->seats.index = limits->slot;
    gate->books = &container.account->books[card->index];
    gate->granted = &card->now->core;
    gate->quota = (uint32_t)atomic_load(gate->granted);
    gate->capped = limits->policy == POLICY_FIXED_SHARE && gate->quota < 1000;
    gate->kernel_ns = UNKNOWN_NS;
    gate->outer = (struct arbiter){.own = seat, .seats = gate->seats.view, .see = seats_see, .eyes = &gate->seats, .promised = true,
                                   .clock = &gate->books->clock, .index = limits->slot,
                                   .tenant = container.limits.container,
                                   .terms = terms_pack(limits->policy, limits->priority, gate->quota)};
    struct inner_page *page = &container.account->inner[card->index];
    atomic_store(&page->seats[0].tenant, container.self.identity);
    gate->has_inner = true;
    gate->inner = (struct arbiter){.own = &page->seats[0], .seats = page->seats, .clock = &gate->inner_clock,
                                   .tenant = container.self.identity,
                                   .terms = terms_pack(POLICY_BURST_SHARE, PRIORITY_ORDINARY, 100)};
    gate->open = true;
}

EXPORT void inside_open(const struct inside_world *given)
{
    world = *given;
    container.account = calloc(1, sizeof *container.account);
    if (!container.account || !self_read(&container.self)) abort();
    atomic_store(&container.account->magic, ACCOUNT_MAGIC);
    container.amounts = &container.fixed;
    container.limits.container = given->limits.slot + 1;
    container.limits.count = given->cards;
    for (uint32_t i = 0; i < given->cards; i++) {
        struct card *card = &container.cards[i];
        container.limits.cards[i] = given->limits;
        atomic_store(&container.fixed.cards[i].memory, given->limits.memory);
        atomic_store(&container.fixed.cards[i].core, given->limits.core);
        card->limits = &container.limits.cards[i];
        card->now = &container.amounts->cards[i];
        card->index = i;
        card->device = (CUdevice)i;
        if (given->limits.policy != POLICY_NONE) open_gate(card, given->seats[i]);
    }
    atomic_store(&container.place, place_take(container.account, &container.self, clock_now()));
}

EXPORT bool inside_watch(void)
{
    bool works = false;
    for (uint32_t i = 0; i < container.limits.count; i++)
        if (container.cards[i].gate.open) works |= gate_watch(&container.cards[i].gate);
    return works;
}

EXPORT uint64_t inside_counted(uint32_t card)
{
    return memory_used(container.account, card, &container.self, clock_now());
}

EXPORT uint64_t inside_served(uint32_t card) { return atomic_load(&container.account->books[card].served); }

EXPORT void inside_end(void)
{
    if (last_word) last_word();
}

/* The library's last call in a process that ends. */
int inside_atexit(void (*function)(void));
int inside_atexit(void (*function)(void)) { return last_word = function, 0; }

struct container *container_get(void) { return &container; }
bool container_join(void) { return true; }
void container_forget(void) {}
struct card *card_of(CUdevice device)
{
    return device >= 0 && (uint32_t)device < container.limits.count ? &container.cards[device] : NULL;
}
struct card *card_named(const char *uuid) { return (void)uuid, NULL; }
void container_complain(const char *what, const char *why, uint32_t line)
{
    fprintf(stderr, "partage: %s, line %u: %s\n", what, line, why);
}

#define HOOK_WORD(name, base, since, per_thread, library) #name,
static const char *const names[HOOK_COUNT] = {HOOKS(HOOK_WORD)};
static void *_Atomic found_hooks[HOOK_COUNT];
static bool left;

void *driver_function(void *_Atomic *slot, const char *soname, const char *name)
{
    if (left || strcmp(soname, CUDA_SONAME) != 0) return NULL;
    void *found = atomic_load(slot);
    if (!found) atomic_store(slot, found = world.driver(name));
    return found;
}

void *driver_hooked(enum hook hook)
{
    void *found = atomic_load(&found_hooks[hook]);
    if (!found) atomic_store(&found_hooks[hook], found = world.driver(names[hook]));
    return found;
}

void driver_leave(void) { left = true; }

int driver_step_aside(void)
{
    int mode = CU_CAPTURE_RELAXED;
    return ASK((int *), cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : -1;
}

void driver_step_back(int mode)
{
    if (mode >= 0) ASK((int *), cuThreadExchangeStreamCaptureMode, &mode);
}
