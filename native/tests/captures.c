/*
 * Captures, and the library's own calls during them. For the modelled card, whose driver ends a capture
 * at every call that the documentation forbids during one.
 *
 *   begin HOW    launches on a stream, captures it by the entry point HOW, launches into it, ends: prints the answer;
 *                with + the per-thread stream, with - its work is over soon
 *   legacy HOW   the same after a launch on the legacy stream, by NULL or by its name
 *   fork         another stream, which had work, joins the capture by an event
 *   strange HOW  ends a capture that does not exist, or from a wrong stream or thread, during another capture
 *   over HOW     ends one by HOW; prints how often the library asked the driver about captures in 100 launches after it
 *   call WHAT    during a capture in global mode of this thread and of another: WHAT, which the driver allows then
 *   own HOW      stream-ordered memory in a capture of the per-thread stream, of a pool or not
 *   beside N     N captures while another thread launches all the time; prints how many were invalidated
 *
 * Usage: captures WHAT [HOW]
 */
#include "../tools/driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GLOBAL 0

static const struct driver *driver;
static CUcontext context;
static CUfunction function;
static void *library;

static void *named(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "the driver has no %s\n", name), exit(4);
    return found;
}
#define NAMED(name) ((__typeof__(&name))named(#name))

static uint64_t ns = 1000; /* of a launch */

static void launch(CUstream stream)
{
    void *params[] = {&ns, NULL};
    must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

static void launch_own(void)
{
    void *params[] = {&ns, NULL};
    must(NAMED(cuLaunchKernel_ptsz)(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), "cuLaunchKernel_ptsz");
}

static CUstream new_stream(unsigned flags)
{
    CUstream stream;
    must(driver->make_stream(&stream, flags), "cuStreamCreate");
    return stream;
}

/* Teaches the library that launches are short, so that it joins several in a batch. */
static void warm_up(void)
{
    CUstream stream = new_stream(1);
    for (int i = 0; i < 40; i++) {
        launch(stream);
        must(driver->stream_wait(stream), "cuStreamSynchronize");
    }
}

/* Long enough for the watch to check open batches. */
static void pass_time(void) { usleep(20000); }

static CUresult begin_by(const char *how, CUstream stream, CUgraph graph)
{
    void *params[1] = {NULL};
    bool own = strchr(how, '+') != NULL;
#define EITHER(name, ...) (own ? NAMED(name##_ptsz)(__VA_ARGS__) : NAMED(name)(__VA_ARGS__))
    switch (how[0]) {
    case 'o': return EITHER(cuStreamBeginCapture, stream);
    case 'm': return EITHER(cuStreamBeginCapture_v2, stream, GLOBAL);
    case 'g': return EITHER(cuStreamBeginCaptureToGraph, stream, graph, NULL, NULL, 0, GLOBAL);
    case 'a': return EITHER(cuStreamBeginRecaptureToGraph, stream, GLOBAL, graph, NULL, NULL);
    default: return EITHER(cuStreamBeginCaptureToCig, stream, params);
    }
}

static CUresult end_by(const char *how, CUstream stream, CUgraph *graph)
{
    bool own = strchr(how, '+') != NULL;
    if (how[0] != 'l') return EITHER(cuStreamEndCapture, stream, graph);
    return EITHER(cuStreamEndCaptureToCig, stream);
}

static int begin(const char *how)
{
    bool own = strchr(how, '+') != NULL;
    CUstream stream = own ? NULL : new_stream(1);
    CUgraph graph;
    must(driver->new_graph(&graph, 0), "cuGraphCreate");
    ns = strchr(how, '-') ? 1000 : 3000000; /* short: its stream is dry when the watch checks; long: it is not */
    for (int i = 0; i < 2; i++) own ? launch_own() : launch(stream);
    must(begin_by(how, stream, graph), "begin");
    for (int i = 0; i < 3; i++) {
        own ? launch_own() : launch(stream);
        pass_time();
    }
    printf("answer %d\n", end_by(how, stream, &graph));
    return 0;
}

static int after_legacy(const char *how)
{
    CUstream stream = new_stream(0);
    CUgraph graph;
    launch(how[0] == 'n' ? NULL : CU_STREAM_LEGACY);
    must(driver->begin(stream, GLOBAL), "cuStreamBeginCapture");
    pass_time();
    launch(stream);
    printf("answer %d\n", driver->end(stream, &graph));
    return 0;
}

static int take_in_another(void)
{
    CUstream stream = new_stream(1), other = new_stream(0);
    CUevent fork, join;
    CUgraph graph;
    must(driver->make_event(&fork, 0), "cuEventCreate");
    must(driver->make_event(&join, 0), "cuEventCreate");
    must(driver->begin(stream, GLOBAL), "cuStreamBeginCapture");
    launch(NULL);
    launch(other);
    must(driver->record(fork, stream), "cuEventRecord");
    must(NAMED(cuStreamWaitEvent)(other, fork, 0), "cuStreamWaitEvent");
    launch(other);
    pass_time();
    must(driver->record(join, other), "cuEventRecord");
    must(NAMED(cuStreamWaitEvent)(stream, join, 0), "cuStreamWaitEvent");
    launch(stream);
    printf("answer %d\n", driver->end(stream, &graph));
    launch(other);
    return 0;
}

struct ending { CUstream stream; CUresult result; };

static void *end_here(void *argument)
{
    struct ending *ending = argument;
    CUgraph graph;
    must(driver->set_current(context), "cuCtxSetCurrent");
    ending->result = driver->end(ending->stream, &graph);
    return NULL;
}

static int end_strangely(const char *how)
{
    CUstream stream = new_stream(1), other = new_stream(1);
    struct ending ending = {stream, 0};
    pthread_t thread;
    CUgraph graph;
    must(driver->begin(stream, GLOBAL), "cuStreamBeginCapture");
    if (strcmp(how, "thread") == 0) {
        pthread_create(&thread, NULL, end_here, &ending);
        pthread_join(thread, NULL);
    } else {
        for (int i = 0; i < 3; i++) ending.result = driver->end(other, &graph);
    }
    if (strcmp(how, "begin") == 0) ending.result = driver->begin(stream, GLOBAL);
    for (int i = 0; i < 3; i++) {
        launch(stream);
        pass_time();
    }
    printf("refused %d\nanswer %d\n", ending.result, driver->end(stream, &graph));
    return 0;
}

/* A capture invalidated by a query that this thread must not make. */
static void spoil(void)
{
    if (driver->stream_wait(new_stream(1)) == CUDA_SUCCESS) exit(5);
}

static uint64_t asked(void) { return ((uint64_t(*)(void))named("fake_times_asked"))(); }

static int count_after(const char *how)
{
    CUstream stream = new_stream(1), fresh = new_stream(1);
    CUcontext other;
    CUgraph graph;
    void *params[1] = {NULL};
    if (strcmp(how, "refused") == 0) {
        if (driver->begin(NULL, GLOBAL) == CUDA_SUCCESS) return 5;
    } else if (strcmp(how, "context") == 0) {
        must(driver->make_context(&other, 0, 0), "cuCtxCreate");
        must(driver->begin(new_stream(1), GLOBAL), "cuStreamBeginCapture");
        must(driver->end_context(other), "cuCtxDestroy");
        must(driver->set_current(context), "cuCtxSetCurrent");
    } else if (strcmp(how, "graphics") == 0) {
        must(NAMED(cuStreamBeginCaptureToCig)(stream, params), "cuStreamBeginCaptureToCig");
        if (driver->end(stream, &graph) == CUDA_SUCCESS) return 5;
        must(NAMED(cuStreamEndCaptureToCig)(stream), "cuStreamEndCaptureToCig");
    } else {
        must(driver->begin(stream, GLOBAL), "cuStreamBeginCapture");
        if (strcmp(how, "spoilt") == 0) spoil();
        if (strcmp(how, "destroyed") == 0) must(driver->end_stream(stream), "cuStreamDestroy");
        else driver->end(stream, &graph);
    }
    uint64_t before = asked();
    for (int i = 0; i < 100; i++) launch(fresh);
    printf("asked %d\n", (int)(asked() - before));
    return 0;
}

/* A call that the driver allows during a capture, also if the cap on memory makes the library ask the driver. */
static CUresult call(const char *what)
{
    CUstream other = new_stream(1);
    CUdeviceptr pointer;
    CUmodule module;
    CUgraph graph;
    CUgraphExec exec;
    CUmemAllocNode node = {.poolProps = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 0}}, .bytesize = 600 * MIB};
    CUgraphNode added;
    if (strcmp(what, "module") == 0) return driver->load(&module, "");
    if (strcmp(what, "large-module") == 0) return driver->load(&module, "5000") == 2 ? 0 : 5;
    if (strcmp(what, "memory") == 0) return driver->alloc_async(&pointer, 16 * MIB, other);
    if (strcmp(what, "large-memory") == 0) return driver->alloc_async(&pointer, 5000 * MIB, other) == 2 ? 0 : 5;
    if (strcmp(what, "launch") == 0) return launch(other), 0;
    must(driver->new_graph(&graph, 0), "cuGraphCreate");
    must(driver->add_alloc(&added, graph, NULL, 0, &node), "cuGraphAddMemAllocNode");
    must(driver->instantiate(&exec, graph, 0), "cuGraphInstantiate");
    CUresult first = driver->launch_graph(exec, other); /* the second of two calls has no room */
    must(driver->instantiate(&exec, graph, 0), "cuGraphInstantiate");
    return (first == 0 || first == 2) && driver->launch_graph(exec, other) == 2 ? 0 : 5;
}

static void *call_there(void *argument)
{
    must(driver->set_current(context), "cuCtxSetCurrent");
    return (void *)(intptr_t)call(argument);
}

static int call_during(char *what)
{
    CUstream stream = new_stream(1);
    pthread_t thread;
    void *there;
    CUgraph graph;
    must(driver->begin(stream, GLOBAL), "cuStreamBeginCapture");
    pthread_create(&thread, NULL, call_there, what);
    pthread_join(thread, &there);
    printf("there %d\n", (int)(intptr_t)there);
    printf("here %d\n", call(what));
    printf("answer %d\n", driver->end(stream, &graph));
    return 0;
}

/* A capture takes no memory of its graph yet, also on the per-thread stream. */
static int allocate_captured(const char *how)
{
    CUdeviceptr held, pointer;
    CUpool pool;
    CUgraph graph;
    must(driver->alloc(&held, 600 * MIB), "cuMemAlloc");
    must(driver->own_pool(&pool, 0), "cuDeviceGetMemPool");
    must(NAMED(cuStreamBeginCapture_v2_ptsz)(NULL, GLOBAL), "cuStreamBeginCapture_v2_ptsz");
    if (how[0] == 'p') printf("refused %d\n", NAMED(cuMemAllocFromPoolAsync_ptsz)(&pointer, 600 * MIB, pool, NULL));
    else printf("refused %d\n", NAMED(cuMemAllocAsync_ptsz)(&pointer, 600 * MIB, NULL));
    printf("answer %d\n", NAMED(cuStreamEndCapture_ptsz)(NULL, &graph));
    return 0;
}

static _Atomic int ended;

static void *launch_always(void *unused)
{
    CUstream stream;
    (void)unused;
    must(driver->set_current(context), "cuCtxSetCurrent");
    stream = new_stream(1);
    while (!atomic_load(&ended)) launch(stream);
    return NULL;
}

static int capture_beside(int times)
{
    CUstream stream = new_stream(1);
    pthread_t threads[2];
    int spoilt = 0;
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, launch_always, NULL);
    for (int i = 0; i < times; i++) {
        CUgraph graph;
        must(driver->begin(stream, GLOBAL), "cuStreamBeginCapture");
        launch(stream);
        if (i % 8 == 0) usleep(200);
        spoilt += driver->end(stream, &graph) != CUDA_SUCCESS;
        launch(stream);
    }
    atomic_store(&ended, 1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("spoilt %d\n", spoilt);
    return 0;
}

int main(int argc, char **argv)
{
    CUmodule module;
    char *how = argc > 2 ? argv[2] : "";
    driver = driver_find("dlsym");
    if (!driver || argc < 2) return 4;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    must(driver->init(0), "cuInit");
    must(driver->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->load(&module, ""), "cuModuleLoadData");
    must(driver->function(&function, module, "spin"), "cuModuleGetFunction");
    warm_up();
    if (strcmp(argv[1], "begin") == 0) return begin(how);
    if (strcmp(argv[1], "legacy") == 0) return after_legacy(how);
    if (strcmp(argv[1], "fork") == 0) return take_in_another();
    if (strcmp(argv[1], "strange") == 0) return end_strangely(how);
    if (strcmp(argv[1], "over") == 0) return count_after(how);
    if (strcmp(argv[1], "call") == 0) return call_during(how);
    if (strcmp(argv[1], "own") == 0) return allocate_captured(how);
    if (strcmp(argv[1], "beside") == 0) return capture_beside(atoi(how));
    return 2;
}
