/*
 * Gives the readers of shared memory and of the limits file random bytes. Built with sanitizers, it
 * shows that corruption costs fairness and never memory safety.
 *
 * Usage: corrupt SEED ROUNDS
 */
#include "../src/account.h"
#include "../src/arbiter.h"
#include "../src/limits.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t chance(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Words that break arithmetic more often than any others. */
static uint64_t nasty(void)
{
    static const uint64_t words[] = {0, 1, 2, 999, 1000, 1001, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_MAX / 2,
                                     UINT64_MAX / 4, 1ull << 62, 1ull << 56, 63ull << 56, 64ull << 56, 255ull << 56};
    uint64_t pick = chance();
    return pick % 3 ? words[chance() % (sizeof words / sizeof *words)] : pick % 2 ? chance() : chance() >> (chance() % 64);
}

static void scribble(void *memory, size_t bytes)
{
    uint64_t *words = memory;
    uint64_t count = chance() % 64;
    for (uint64_t i = 0; i < count; i++) words[chance() % (bytes / 8)] = nasty();
}

static void turns(struct seat *seats)
{
    _Atomic uint64_t clock = nasty(), paid = nasty();
    uint32_t index = (uint32_t)(chance() % SEATS);
    struct arbiter me = {.own = &seats[index], .seats = seats, .clock = &clock, .index = index, .tenant = 7,
        .terms = terms_pack((enum policy)(chance() % 3), (enum priority)(chance() % 3), (uint32_t)(chance() % 1001))};
    uint64_t now = 1000000000ull + chance() % (1ull << 50);
    for (int i = 0; i < 20; i++) {
        scribble(seats, SEATS * sizeof *seats);
        now += chance() % (20 * MS);
        arbiter_want(&me, now);
        if (arbiter_try(&me, now) && arbiter_keep(&me, now, chance() % MS)) arbiter_charge(&me, chance() % (10 * MS), now);
        if (chance() % 4 == 0) arbiter_pass(&me, now);
        if (chance() % 8 == 0) arbiter_rest(&me, now);
        quota_charge(&paid, chance() % (10 * MS), (uint32_t)(chance() % 1001), now);
        quota_wait(&paid, chance() % MS, 100, now);
    }
}

/* Whatever the seats contain, a sharer with work gets the card within bounded time. */
static int recovers(struct seat *seats)
{
    _Atomic uint64_t clock = 0;
    struct arbiter me = {.own = &seats[5], .seats = seats, .clock = &clock, .index = 5, .tenant = 7, .terms = terms_pack(POLICY_BURST_SHARE, PRIORITY_ORDINARY, 100)};
    uint64_t start = 1ull << 52, now = start;
    for (; now < start + 60000 * MS; now += MS) {
        arbiter_want(&me, now);
        arbiter_beat(&me, now);
        if (arbiter_try(&me, now)) return 1;
    }
    return 0;
}

static void books(struct account *account, const struct self *self)
{
    scribble(account, sizeof *account);
    uint64_t now = chance();
    struct place *place = place_take(account, self, now);
    if (!place) return;
    uint32_t card = (uint32_t)(chance() % CARDS);
    _Atomic uint64_t cap = nasty();
    memory_take(account, place, card, nasty(), &cap, self, now);
    memory_used(account, card, self, now);
    memory_give(&place->cards[card].counted, nasty());
    export_note(account, chance(), self);
    export_is_ours(account, chance(), self, now);
    place_leave(place, self);
}

static void limits(void)
{
    static const char good[] = "partage-limits 2\ncontainer 1f\naccount account\ncard GPU-1\nseats card-0\nslot 1\nmemory 1024\n"
                               "core 300\npolicy fixed-share\npriority ordinary\nswap 0\ncontext 0\nend\n";
    struct limits read;
    const char *why;
    size_t length = sizeof good - 1;
    char *text = malloc(length);
    if (!text) abort();
    memcpy(text, good, length);
    uint64_t changes = chance() % 4;
    for (uint64_t i = 0; i < changes; i++) text[chance() % length] = (char)chance();
    if (chance() % 2) length = chance() % (length + 1);
    /* The copy has exactly the given length, so that a sanitizer notices a read of one byte more. */
    char *exact = malloc(length ? length : 1);
    if (!exact) abort();
    memcpy(exact, text, length);
    limits_parse(exact, length, &read, &why);
    free(exact);
    free(text);
}

int main(int argc, char **argv)
{
    state = argc > 1 ? strtoull(argv[1], NULL, 10) | 1 : 1;
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    struct seat *seats = calloc(SEATS, sizeof *seats);
    struct account *account = calloc(1, sizeof *account);
    struct self self;
    if (!seats || !account || !self_read(&self)) return fprintf(stderr, "corrupt: cannot begin\n"), 2;
    for (uint64_t i = 0; i < rounds; i++) {
        turns(seats);
        scribble(seats, SEATS * sizeof *seats);
        if (i % 16 == 0 && !recovers(seats)) return fprintf(stderr, "corrupt: round %llu: no turn\n", (unsigned long long)i), 1;
        if (i % 8 == 0) books(account, &self);
        limits();
    }
    free(seats);
    free(account);
    puts("ok");
    return 0;
}
