/*
 * Counting of batches against plain twins. The driver is a table of events; nothing sleeps.
 *
 * Batches of known times on overlapping streams are opened, closed and counted at random moments. The charged time is
 * compared with the union of their times. And threads enter and leave the gate in any order, while batches are lost: each
 * batch has exactly the tickets in it, and the pending time is the sum of the batches' expected times. And graphs are
 * launched and end in any order: each is expected to take its own last time, and an ended one leaves nothing.
 *
 * Usage: union SEED ROUNDS     prints "counted NS of NS" and ends with 1 if they differ by more than 20 ns a batch,
 *                              with 2 if a batch and its tickets differ, and with 3 if times of graphs do
 */
#include "../src/batch.h"
#include "../src/driver.h"
#include "../src/watch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS 6
#define FIRST 16 /* below it are the names of special streams */
#define EVENTS 4096
#define ROUND_BATCHES 400
#define INSIDE 12 /* threads in the gate */
#define STEPS 4000
#define GRAPHS 3000

static uint64_t chances, moment, free_at[STREAMS + 1], times[EVENTS], next_end[STREAMS + 1];
static uint64_t starts[ROUND_BATCHES], ends[ROUND_BATCHES];
static uintptr_t made;

static uint64_t chance(uint64_t below)
{
    chances ^= chances << 13;
    chances ^= chances >> 7;
    chances ^= chances << 17;
    return chances % below;
}

static CUresult current(CUcontext *context) { return *context = (CUcontext)1, CUDA_SUCCESS; }

static CUresult create(CUevent *event, unsigned flags)
{
    (void)flags;
    if (made + 1 >= EVENTS) abort();
    return *event = (CUevent)++made, CUDA_SUCCESS;
}

static CUresult destroy(CUevent event) { return times[(uintptr_t)event] = 0, CUDA_SUCCESS; }

/* The stream's work up to here is over at free_at; `next_end` is set before the end of a batch is marked. */
static CUresult record(CUevent event, CUstream stream)
{
    uintptr_t i = (uintptr_t)stream - FIRST;
    if (next_end[i]) free_at[i] = next_end[i];
    else if (free_at[i] < moment) free_at[i] = moment;
    next_end[i] = 0;
    times[(uintptr_t)event] = free_at[i];
    return CUDA_SUCCESS;
}

static CUresult query(CUevent event) { return times[(uintptr_t)event] <= moment ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }

static CUresult ask(CUstream stream) { return free_at[(uintptr_t)stream - FIRST] <= moment ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }

static CUresult elapsed(float *ms, CUevent from, CUevent to)
{
    uint64_t a = times[(uintptr_t)from], b = times[(uintptr_t)to];
    if (a > moment || b > moment) return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(int64_t)(b - a) / 1e6);
    return CUDA_SUCCESS;
}

void *driver_function(void *_Atomic *slot, const char *soname, const char *name)
{
    static const struct { const char *name; void *function; } known[] = {
        {"cuCtxGetCurrent", (void *)current}, {"cuEventCreate", (void *)create}, {"cuEventDestroy_v2", (void *)destroy},
        {"cuEventRecord", (void *)record}, {"cuEventQuery", (void *)query}, {"cuStreamQuery", (void *)ask},
        {"cuEventElapsedTime", (void *)elapsed}};
    (void)slot, (void)soname;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) return known[i].function;
    return NULL;
}

#ifdef PARTAGE_CHECKED
_Thread_local uint32_t locks_held;
#endif
void watch_wake(void) {}
void seats_wait(const struct seats *seats, uint32_t whose, uint32_t seen, uint64_t ns)
{
    (void)seats, (void)whose, (void)seen, (void)ns;
    moment += 100000; /* time passes while work runs */
}

/* The plain twin: sweeps over the sorted times. */
static int by_start(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static uint64_t union_of(uint32_t count)
{
    uint64_t spans[ROUND_BATCHES][2], whole = 0, until = 0;
    for (uint32_t i = 0; i < count; i++) spans[i][0] = starts[i], spans[i][1] = ends[i];
    qsort(spans, count, sizeof *spans, by_start);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t from = spans[i][0] > until ? spans[i][0] : until;
        if (spans[i][1] > from) whole += spans[i][1] - from;
        if (spans[i][1] > until) until = spans[i][1];
    }
    return whole;
}

/* One batch on a stream; its end is marked at once, as with a full one. */
static void add(struct gate *gate, uint32_t index)
{
    uintptr_t stream = 1 + chance(STREAMS);
    uint64_t span = 1000 + chance(chance(4) ? 500000 : 10000000);
    struct batch *batch = batch_open(gate, (CUcontext)1, (CUstream)(stream + FIRST), 0, false, moment);
    if (!batch) abort();
    starts[index] = free_at[stream];
    ends[index] = next_end[stream] = free_at[stream] + span;
    batch->count = 1;
    batch->last = moment;
    free_at[stream] = ends[index]; /* it has work, so nothing is estimated */
    batch_close(gate, batch, moment);
}

static bool has_room(const struct gate *gate)
{
    for (uint32_t i = 0; i < BATCHES; i++)
        if (gate->batches[i].state == BATCH_FREE) return true;
    return false;
}

static struct gate gate;

/* A gate of the only tenant of a card, without a quota. */
static void renew(void)
{
    static struct card_books books;
    static struct seat seats[SEATS];
    static _Atomic uint64_t clock;
    memset(&gate, 0, sizeof gate);
    memset(&books, 0, sizeof books);
    memset(seats, 0, sizeof seats);
    memset(times, 0, sizeof times);
    memset(free_at, 0, sizeof free_at);
    gate.books = &books;
    gate.outer = (struct arbiter){.own = seats, .seats = seats, .clock = &clock, .tenant = 1, .terms = terms_pack(POLICY_BURST_SHARE, 0, 1000)};
    gate.open = true;
    made = 0, moment = 1000000;
}

/* Does each batch have the launches of the threads inside, and is the pending time their expected sum? */
static bool agree(const struct ticket *inside)
{
    uint64_t pending = 0;
    for (uint32_t i = 0; i < BATCHES; i++) {
        const struct batch *batch = &gate.batches[i];
        uint32_t busy = 0;
        if (batch->state == BATCH_FREE) continue;
        pending += batch->expected;
        for (uint32_t j = 0; j < INSIDE; j++) busy += inside[j].batch == batch && inside[j].number == batch->number;
        if (busy != batch->busy || batch->count < busy) return false;
    }
    return pending == gate.pending;
}

static bool tickets_agree(void)
{
    struct ticket inside[INSIDE] = {0};
    renew();
    for (uint32_t step = 0; step < STEPS; step++) {
        struct ticket *ticket = &inside[chance(INSIDE)];
        uintptr_t stream = 1 + chance(STREAMS);
        moment += chance(300000);
        if (chance(50) == 0) {
            gate_forget(&gate, (CUcontext)1, NULL, true);
        } else if (!ticket->batch) {
            gate_enter(&gate, ticket, (CUcontext)1, (CUstream)(stream + FIRST), 0, chance(5));
            free_at[stream] = (free_at[stream] > moment ? free_at[stream] : moment) + chance(400000);
        } else {
            gate_leave(ticket, chance(5) > 0);
            *ticket = (struct ticket){0};
        }
        if (chance(20) == 0) gate_settle(&gate);
        if (!agree(inside)) return false;
    }
    for (uint32_t j = 0; j < INSIDE; j++) {
        if (inside[j].batch) gate_leave(&inside[j], true);
        inside[j].batch = NULL;
    }
    gate_settle(&gate);
    moment += 10000000000ull;
    batch_harvest(&gate, moment);
    return agree(inside) && batch_places(&gate) == BATCHES && gate.pending == 0;
}

/* A launch of a graph that takes `span`; its end is seen at once, or after the graph has ended too. */
static void play(uint64_t graph, uint64_t span, bool gone)
{
    struct batch *batch = batch_open(&gate, (CUcontext)1, (CUstream)(1 + FIRST), graph, false, moment);
    if (!batch) abort();
    next_end[1] = moment + span;
    batch->count = 1;
    batch->last = moment;
    free_at[1] = next_end[1];
    batch_close(&gate, batch, moment);
    if (gone) gate_forget_graph(&gate, graph);
    moment += span + 1;
    batch_harvest(&gate, moment);
}

static bool graphs_agree(void)
{
    static uint64_t last[GRAPHS];
    memset(last, 0, sizeof last);
    renew();
    for (uint32_t step = 0; step < 2 * GRAPHS; step++) {
        uint32_t i = (uint32_t)chance(GRAPHS);
        uint64_t span = 1000 + chance(10000000);
        bool gone = chance(4) == 0;
        play(0x7f0000000000ull + i * 64, span, gone);
        last[i] = gone ? 0 : span;
    }
    uint32_t known = 0;
    for (uint32_t i = 0; i < GRAPHS; i++) {
        uint64_t told = batch_expect(&gate, 0x7f0000000000ull + i * 64, NULL), want = last[i] ? last[i] : gate.graphs.mean_ns;
        known += last[i] != 0;
        if (told + 100 < want || told > want + 100) return false;
    }
    return gate.graphs.mean_ns && gate.graphs.used == known;
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, counted = 0, real = 0;
    chances = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 0x9e3779b97f4a7c15ull + 1;
    for (uint64_t round = 0; round < rounds; round++) {
        if (round % 100 == 0 && !graphs_agree()) return printf("round %llu: graphs\n", (unsigned long long)round), 3;
        if (!tickets_agree()) return printf("round %llu: tickets\n", (unsigned long long)round), 2;
        renew();
        for (uint32_t i = 0; i < ROUND_BATCHES; i++) {
            while (!has_room(&gate)) moment += 100000, batch_harvest(&gate, moment);
            add(&gate, i);
            moment += chance(chance(8) ? 200000 : 8000000);
            if (chance(3) == 0) batch_harvest(&gate, moment);
        }
        moment += 10000000000ull;
        batch_harvest(&gate, moment);
        uint64_t charged = gate.books->served, whole = union_of(ROUND_BATCHES), off = charged > whole ? charged - whole : whole - charged;
        counted += charged;
        real += whole;
        if (off > 20 * ROUND_BATCHES) return printf("round %llu: counted %llu of %llu\n", (unsigned long long)round,
                                                    (unsigned long long)charged, (unsigned long long)whole), 1;
    }
    return printf("counted %llu of %llu\n", (unsigned long long)counted, (unsigned long long)real), 0;
}
