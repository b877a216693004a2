/*
 * Counting of batches against a plain twin: batches of known times on streams that overlap are opened, closed and counted at
 * random moments, and what was charged is compared with the measure of the union of their times. The driver is a table of
 * events; nothing sleeps.
 *
 * Usage: union SEED ROUNDS     prints "counted NS of NS" and ends with 1 where they differ by more than 20 ns a batch
 */
#include "../src/batch.h"
#include "../src/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS 6
#define FIRST 16 /* below it are the names of special streams */
#define EVENTS 4096
#define ROUND_BATCHES 400

static uint64_t chances, moment, charged, free_at[STREAMS + 1], times[EVENTS], next_end[STREAMS + 1];
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

void arbiter_charge(struct arbiter *arbiter, uint64_t used, uint64_t now)
{
    (void)arbiter, (void)now;
    charged += used;
}

void quota_charge(_Atomic uint64_t *paid, uint64_t used, uint32_t quota, uint64_t now)
{
    (void)paid, (void)used, (void)quota, (void)now;
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

/* One batch on a stream; its end is marked at once, as that of a full one is. */
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

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, counted = 0, real = 0;
    chances = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 0x9e3779b97f4a7c15ull + 1;
    for (uint64_t round = 0; round < rounds; round++) {
        static struct gate gate;
        static struct card_books books;
        memset(&gate, 0, sizeof gate);
        memset(times, 0, sizeof times);
        memset(free_at, 0, sizeof free_at);
        gate.books = &books;
        made = 0, charged = 0, moment = 1000000;
        for (uint32_t i = 0; i < ROUND_BATCHES; i++) {
            while (!has_room(&gate)) moment += 100000, batch_harvest(&gate, moment);
            add(&gate, i);
            moment += chance(chance(8) ? 200000 : 8000000);
            if (chance(3) == 0) batch_harvest(&gate, moment);
        }
        moment += 10000000000ull;
        batch_harvest(&gate, moment);
        uint64_t whole = union_of(ROUND_BATCHES), off = charged > whole ? charged - whole : whole - charged;
        counted += charged;
        real += whole;
        if (off > 20 * ROUND_BATCHES) return printf("round %llu: counted %llu of %llu\n", (unsigned long long)round,
                                                    (unsigned long long)charged, (unsigned long long)whole), 1;
    }
    return printf("counted %llu of %llu\n", (unsigned long long)counted, (unsigned long long)real), 0;
}
