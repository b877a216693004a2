/*
 * Frameworks' calls of the driver, step by step, by their public documentation; none was recorded.
 *
 * eager       PyTorch, training: a caching allocator over cuMemAlloc (segments of 2 and 20 MiB; it keeps freed ones, and
 *             releases them when memory is short), many short kernels, a copy stream for which compute waits by events, a
 *             wait for the loss
 * serving     vLLM, SGLang: most of the free memory at once, a graph a layer captured for each size of batch with memory for
 *             it, sampling kernels, the host between tokens; now and then a prompt of long kernels
 * engine      TensorRT: the whole model captured on each of two streams with the memory that it needs meanwhile, memory in
 *             stream order from a pool of its own for each request, two requests ahead with waits by events; a new capture
 *             when the shape of its input changes
 * compiled    JAX: three quarters of the free memory at once, few long fused kernels, eight steps dispatched ahead, a graph that
 *             is updated in place, a function of the host now and then
 * ranks       NCCL: buffers by handle and mapping, compute on two cards, then a collective on a stream of its own whose ranks
 *             spin for each other
 * persistent  a kernel that stays on a tenth of the card until the host ends it, and short ones beside it on another stream
 */
#include "traces.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define US 1000ull
#define MIB (1ull << 20)
#define NON_BLOCKING 1
#define THREAD_LOCAL 1 /* of captures */

/* One call of the program; a failure without a reason ends the run. */
#define DO(call, ...)                                                                                    \
    do {                                                                                                 \
        CUresult result_ = ASKED(call, __VA_ARGS__);                                                     \
        if (result_ == CUDA_SUCCESS) break;                                                              \
        fprintf(stderr, "%s: " #call " answered %d\n", self->trace->name, result_);                      \
        exit(4);                                                                                         \
    } while (0)
#define ASKED(call, ...) (world_sleep(world_model()->call_ns), self->whole->calls.call(__VA_ARGS__))

/* Of the host: data, schedulers, interpreters. */
static void host(uint64_t ns) { world_sleep(ns / 2 + world_chance(ns)); }

static void on_card(struct program *self, uint32_t card)
{
    if (self->whole->on != card) DO(cuCtxSetCurrent, self->contexts[card]);
}

static void begin(struct program *self)
{
    CUmodule module;
    DO(cuInit, 0);
    for (uint32_t card = 0; card < self->trace->cards; card++) {
        DO(cuDevicePrimaryCtxRetain, &self->contexts[card], (CUdevice)card);
        DO(cuCtxSetCurrent, self->contexts[card]);
        DO(cuModuleLoadData, &module, "16");
    }
    DO(cuCtxSetCurrent, self->contexts[0]);
}

static CUstream new_stream(struct program *self)
{
    CUstream stream;
    DO(cuStreamCreate, &stream, NON_BLOCKING);
    return stream;
}

static CUevent new_event(struct program *self)
{
    CUevent event;
    DO(cuEventCreate, &event, 0);
    return event;
}

static void launch(struct program *self, CUstream stream, uint64_t function, uint64_t ns, struct shape shape)
{
    void *params[] = {&ns, &shape};
    DO(cuLaunchKernel, (CUfunction)(uintptr_t)function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
    self->whole->process.launches++;
}

static void kernel(struct program *self, CUstream stream, uint64_t function, uint64_t ns, uint32_t part)
{
    launch(self, stream, function, ns, (struct shape){.part = part});
}

/* A copy from the host, by an engine of its own. */
static void copy_in(struct program *self, CUstream stream, uint64_t ns) { whole_copy(self->whole, stream, ns); }

static bool is_over(const struct program *self) { return self->most && self->steps >= self->most; }

/* A step is done. The library's count must equal the memory that the driver took by the step's calls. */
static void step(struct program *self)
{
    struct whole *whole = self->whole;
    self->steps++;
    for (uint32_t card = 0; card < self->trace->cards && !whole->process.bare; card++) {
        uint64_t counted = whole->inside.counted(card), taken = whole->taken[card];
        if (counted > self->most_counted) self->most_counted = counted;
        if (taken > counted && taken - counted > self->uncounted) self->uncounted = taken - counted;
        if (counted > taken && counted - taken > self->too_many) self->too_many = counted - taken;
    }
}

/* The caching allocator of eager: segments that are in use or kept. */
#define SEGMENTS 64
struct cache { struct { CUdeviceptr at; uint64_t bytes; bool used; } segments[SEGMENTS]; };

static void empty(struct program *self, struct cache *cache)
{
    for (int i = 0; i < SEGMENTS; i++) {
        if (!cache->segments[i].at || cache->segments[i].used) continue;
        DO(cuMemFree_v2, cache->segments[i].at);
        cache->segments[i].at = 0;
    }
}

static int obtain(struct program *self, struct cache *cache, uint64_t bytes)
{
    uint64_t whole = bytes <= MIB ? 2 * MIB : bytes <= 10 * MIB ? 20 * MIB : (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    int best = -1, vacant = -1;
    for (int i = 0; i < SEGMENTS; i++) {
        if (!cache->segments[i].at) vacant = i;
        else if (!cache->segments[i].used && cache->segments[i].bytes >= whole &&
                 (best < 0 || cache->segments[i].bytes < cache->segments[best].bytes))
            best = i;
    }
    if (best < 0 && vacant >= 0) {
        CUresult result = ASKED(cuMemAlloc_v2, &cache->segments[vacant].at, whole);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            cache->segments[vacant].at = 0;
            self->refusals++;
            empty(self, cache);
            result = ASKED(cuMemAlloc_v2, &cache->segments[vacant].at, whole);
        }
        if (result == CUDA_SUCCESS) cache->segments[best = vacant].bytes = whole;
        else cache->segments[vacant].at = 0, self->refused++;
    }
    if (best >= 0) cache->segments[best].used = true;
    return best;
}

static void eager(struct program *self)
{
    struct cache cache = {0};
    CUstream compute = new_stream(self), copies = new_stream(self);
    CUevent copied = new_event(self), used = new_event(self);
    int weights = obtain(self, &cache, 256 * MIB);
    for (uint64_t n = 0; !is_over(self); n++) {
        int held[6];
        for (uint32_t i = 0; i < 6; i++) /* the size of a batch changes now and then */
            held[i] = obtain(self, &cache, (i % 2 ? 12 + 8 * i * (1 + n / 16 % 3) : i / 2 + 1) * MIB / 2);
        /* The next batch arrives on a stream of its own, after the last one was read. */
        if (n) DO(cuStreamWaitEvent, copies, used, 0);
        copy_in(self, copies, 80 * US);
        DO(cuEventRecord, copied, copies);
        DO(cuStreamWaitEvent, compute, copied, 0);
        for (uint32_t i = 0; i < 24; i++) /* forward and backward */
            kernel(self, compute, 0x1000 + i % 12 * 64, (20 + i % 6 * 30) * US, i % 3 ? 1000 : 400);
        if (weights >= 0 && held[1] >= 0)
            DO(cuMemcpyDtoDAsync_v2, cache.segments[held[1]].at, cache.segments[weights].at, 8 * MIB, compute);
        DO(cuEventRecord, used, compute);
        for (uint32_t i = 0; i < 8; i++) kernel(self, compute, 0x8000 + i * 64, 15 * US, 600); /* the optimizer */
        for (uint32_t i = 0; i < 6; i++)
            if (held[i] >= 0) cache.segments[held[i]].used = false;
        DO(cuStreamSynchronize, compute);
        if (n % 64 == 63) empty(self, &cache); /* between epochs */
        host(100 * US);
        step(self);
    }
    if (weights >= 0) cache.segments[weights].used = false;
    empty(self, &cache);
}

/* Most of the visible free memory, in one piece. */
static CUdeviceptr reserve(struct program *self, uint64_t percent)
{
    CUdeviceptr at = 0;
    size_t free_bytes, total;
    DO(cuMemGetInfo_v2, &free_bytes, &total);
    if (self->among) free_bytes = total / self->among - MODEL_CONTEXT; /* as users configure such programs */
    DO(cuMemAlloc_v2, &at, free_bytes / 100 * percent);
    return at;
}

static CUgraphExec instantiate(struct program *self, CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    DO(cuStreamEndCapture, stream, &graph);
    DO(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
    DO(cuGraphDestroy, graph);
    return exec;
}

#define LAYERS 16
#define SIZES 4

static void serving(struct program *self)
{
    CUstream stream = new_stream(self);
    CUdeviceptr cache = reserve(self, 80), private[SIZES];
    CUgraphExec graphs[SIZES][LAYERS];
    for (uint64_t size = 0; size < SIZES; size++) {
        for (uint64_t layer = 0; layer < LAYERS; layer++) {
            int mode = CU_CAPTURE_RELAXED;
            DO(cuStreamBeginCapture_v2, stream, THREAD_LOCAL);
            if (layer == 0) { /* the shared memory of this size's graphs is allocated during the capture, as the allocator needs it */
                DO(cuThreadExchangeStreamCaptureMode, &mode);
                DO(cuMemAlloc_v2, &private[size], (20 + 4 * size) * MIB);
                DO(cuThreadExchangeStreamCaptureMode, &mode);
            }
            kernel(self, stream, 0x9800 + layer * 64, (80 + 20 * size) * US, 900);
            graphs[size][layer] = instantiate(self, stream);
        }
    }
    for (uint64_t n = 0; !is_over(self); n++) {
        uint64_t size = n / 5 % SIZES; /* the batch changes, and with it the set of graphs */
        if (n % 20 == 0)
            for (uint32_t k = 0; k < 4; k++) kernel(self, stream, 0x9000 + k * 64, 2 * MS, 1000);
        for (uint64_t layer = 0; layer < LAYERS; layer++) DO(cuGraphLaunch, graphs[size][layer], stream);
        kernel(self, stream, 0xa000, 40 * US, 300);
        DO(cuStreamSynchronize, stream);
        host(150 * US);
        step(self);
    }
    for (uint64_t size = 0; size < SIZES; size++) {
        for (uint64_t layer = 0; layer < LAYERS; layer++) DO(cuGraphExecDestroy, graphs[size][layer]);
        DO(cuMemFree_v2, private[size]);
    }
    DO(cuMemFree_v2, cache);
}

/* The model with the memory that it needs while it runs, in a graph of its own. */
static CUgraphExec capture_engine(struct program *self, CUstream stream, uint64_t shape)
{
    CUdeviceptr scratch[2];
    DO(cuStreamBeginCapture_v2, stream, THREAD_LOCAL);
    for (uint32_t k = 0; k < 2; k++) DO(cuMemAllocAsync, &scratch[k], (24 + 16 * shape) * MIB, stream);
    for (uint32_t k = 0; k < 3; k++) kernel(self, stream, 0xe000 + k * 64, 500 * US, 700);
    for (uint32_t k = 0; k < 2; k++) DO(cuMemFreeAsync, scratch[k], stream);
    return instantiate(self, stream);
}

static void engine(struct program *self)
{
    const CUpoolProps props = {.allocType = 1, .location = {.type = CU_LOCATION_DEVICE, .id = 0}};
    CUstream streams[2];
    CUevent done[2];
    CUgraphExec execs[2];
    CUdeviceptr weights, buffers[2] = {0};
    CUpool pool;
    DO(cuMemAlloc_v2, &weights, 512 * MIB);
    DO(cuMemPoolCreate, &pool, &props);
    for (uint32_t i = 0; i < 2; i++) {
        streams[i] = new_stream(self);
        done[i] = new_event(self);
        execs[i] = capture_engine(self, streams[i], 0);
    }
    for (uint64_t n = 0; !is_over(self); n++) {
        uint32_t at = n % 2;
        if (n > 1) DO(cuEventSynchronize, done[at]);
        if (buffers[at]) DO(cuMemFreeAsync, buffers[at], streams[at]);
        buffers[at] = 0;
        if (n % 128 == 126) { /* destroys a pool of which the other stream still has memory */
            DO(cuMemPoolDestroy, pool);
            DO(cuMemPoolCreate, &pool, &props);
        }
        if (n % 64 >= 62) { /* another shape: with memory of its own a graph cannot be updated */
            DO(cuGraphExecDestroy, execs[at]);
            execs[at] = capture_engine(self, streams[at], n / 64 % 3);
        }
        DO(cuMemAllocFromPoolAsync, &buffers[at], (4 + n % 3 * 2) * MIB, pool, streams[at]);
        copy_in(self, streams[at], 30 * US);
        DO(cuGraphLaunch, execs[at], streams[at]);
        DO(cuEventRecord, done[at], streams[at]);
        host(80 * US);
        step(self);
    }
    for (uint32_t i = 0; i < 2; i++) {
        DO(cuStreamSynchronize, streams[i]);
        if (buffers[i]) DO(cuMemFreeAsync, buffers[i], streams[i]);
        DO(cuGraphExecDestroy, execs[i]);
    }
    DO(cuMemPoolDestroy, pool);
    DO(cuMemFree_v2, weights);
}

static void capture_steps(struct program *self, CUstream stream, uint64_t n, CUgraph *graph)
{
    DO(cuStreamBeginCapture_v2, stream, THREAD_LOCAL);
    for (uint32_t k = 0; k < 2; k++) kernel(self, stream, 0xb800 + k * 64, (50 + n % 4 * 10) * US, 800);
    DO(cuStreamEndCapture, stream, graph);
}

static void compiled(struct program *self)
{
    CUstream stream = new_stream(self), captures = new_stream(self);
    CUevent ends[8];
    CUgraph graph;
    CUgraphExec buffer;
    CUdeviceptr arena = reserve(self, 75);
    for (uint32_t i = 0; i < 8; i++) ends[i] = new_event(self);
    capture_steps(self, captures, 0, &graph);
    DO(cuGraphInstantiateWithFlags, &buffer, graph, 0ull);
    DO(cuGraphDestroy, graph);
    for (uint64_t n = 0; !is_over(self); n++) {
        if (n >= 8) DO(cuEventSynchronize, ends[n % 8]);
        for (uint32_t k = 0; k < 3; k++) kernel(self, stream, 0xb000 + k * 64, (550 + k * 700) * US, 1000);
        if (n % 4 == 3) { /* its buffers have new addresses */
            uint64_t result[8];
            capture_steps(self, captures, n, &graph);
            DO(cuGraphExecUpdate_v2, buffer, graph, result);
            DO(cuGraphDestroy, graph);
        }
        DO(cuGraphLaunch, buffer, stream);
        if (n % 16 == 7) DO(cuLaunchHostFunc, stream, NULL, (void *)(50 * US));
        DO(cuEventRecord, ends[n % 8], stream);
        host(60 * US);
        step(self);
    }
    DO(cuStreamSynchronize, stream);
    DO(cuGraphExecDestroy, buffer);
    DO(cuMemFree_v2, arena);
}

#define BUFFERS 4

static void ranks(struct program *self)
{
    uint32_t flags = 1 + self->index * 2;
    struct { CUstream compute, collective; CUevent ready; CUdeviceptr at; CUmemHandle handles[BUFFERS]; } on[2];
    for (uint32_t card = 0; card < 2; card++) {
        CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, (int)card}};
        DO(cuCtxSetCurrent, self->contexts[card]);
        on[card].compute = new_stream(self);
        on[card].collective = new_stream(self);
        on[card].ready = new_event(self);
        DO(cuMemAddressReserve, &on[card].at, BUFFERS * 16 * MIB, 0, 0, 0ull);
        for (uint32_t i = 0; i < BUFFERS; i++) {
            DO(cuMemCreate, &on[card].handles[i], 16 * MIB, &prop, 0ull);
            DO(cuMemMap, on[card].at + i * 16 * MIB, 16 * MIB, 0, on[card].handles[i], 0ull);
            DO(cuMemRelease, on[card].handles[i]); /* the mapping keeps it */
        }
    }
    while (!is_over(self)) {
        flag_set(flags, false), flag_set(flags + 1, false);
        for (uint32_t card = 0; card < 2; card++) {
            on_card(self, card);
            for (uint32_t i = 0; i < 4; i++) kernel(self, on[card].compute, 0xc000 + i * 64, 150 * US, 1000);
            DO(cuEventRecord, on[card].ready, on[card].compute);
            DO(cuStreamWaitEvent, on[card].collective, on[card].ready, 0);
            launch(self, on[card].collective, 0xd000, 60 * US, (struct shape){.part = 100, .sets = flags + card});
            launch(self, on[card].collective, 0xd040, 0, (struct shape){.part = 100, .flag = flags + 1 - card});
        }
        for (uint32_t card = 0; card < 2; card++) {
            on_card(self, card);
            DO(cuStreamSynchronize, on[card].collective);
        }
        host(60 * US);
        step(self);
    }
    for (uint32_t card = 0; card < 2; card++) {
        on_card(self, card);
        DO(cuCtxSynchronize);
        for (uint32_t i = 0; i < BUFFERS; i++) DO(cuMemUnmap, on[card].at + i * 16 * MIB, 16 * MIB);
    }
}

static void persistent(struct program *self)
{
    CUstream stays = new_stream(self), beside = new_stream(self);
    CUdeviceptr mailbox;
    uint32_t flag = 40 + self->index;
    DO(cuMemAlloc_v2, &mailbox, 64 << 10);
    while (!is_over(self)) {
        flag_set(flag, false);
        launch(self, stays, 0xf000, 0, (struct shape){.part = 100, .flag = flag});
        for (uint32_t request = 0; request < 8; request++) {
            for (uint32_t k = 0; k < 3; k++) kernel(self, beside, 0xf100 + k * 64, 100 * US, 600);
            DO(cuStreamSynchronize, beside);
            host(50 * US);
        }
        flag_set(flag, true);
        DO(cuStreamSynchronize, stays);
        step(self);
    }
    DO(cuMemFree_v2, mailbox);
}

const struct trace traces[TRACES] = {{"eager", 1, eager}, {"serving", 1, serving}, {"engine", 1, engine},
                                     {"compiled", 1, compiled}, {"ranks", 2, ranks}, {"persistent", 1, persistent}};

const struct trace *trace_named(const char *name)
{
    for (uint32_t i = 0; i < TRACES; i++)
        if (strcmp(traces[i].name, name) == 0) return &traces[i];
    return NULL;
}

static void body(void *argument)
{
    struct program *self = argument;
    world_needs(self->most != 0);
    begin(self);
    self->trace->play(self);
    for (uint32_t card = 0; card < self->trace->cards; card++) DO(cuDevicePrimaryCtxRelease_v2, (CUdevice)card);
    self->over = true;
    if (!self->whole->process.bare) self->whole->inside.end();
}

void program_start(struct program *self) { whole_thread(self->whole, body, self); }
