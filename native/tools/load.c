/*
 * Puts work on a card through the driver API, and prints how much was done. Runs on a real card and on the
 * modelled one, where only a kernel's first parameter counts: its time in ns.
 *
 * Usage: load [--way dlsym|proc|linked] [--kernel spin|mul|copy] [--size N] [--seconds S] [--how kernel|graph|
 *             together|config|fill|move] [--depth LAUNCHES] [--pause US] [--threads N] [--report MS] [--device N] [--timed N]
 *
 *   --how own  on the thread's own default stream; others on a stream that it makes
 *   --size     first parameter of the kernel: ns of spin, rounds of mul, words of copy
 *   --how      fill, move: no kernels of ours, but fills of a buffer of N bytes, or copies within it
 *   --depth    launches before each wait for the device; 0 waits only at the end
 *   --pause    microseconds without work after each wait; with --depth 0 after each launch
 *   --timed N  instead: N launches with a wait after each; prints "launch MEDIAN P99", ns of the call
 *   --report   prints "report NS COUNT" every MS milliseconds: CLOCK_MONOTONIC and launches done so far
 *
 * Prints "ready" before the first launch and "done COUNT NS" at the end.
 */
#include "driver.h"
#include "kernels.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct plan {
    const char *way, *kernel, *how;
    uint64_t size, depth, pause, threads, report, device, timed;
    double seconds;
};

struct work {
    const struct plan *plan;
    const struct driver *driver;
    CUcontext context;
    CUfunction function;
    CUdeviceptr buffer;
    __typeof__(&cuLaunchKernel_ptsz) launch_own;
};

static _Atomic uint64_t done;
static _Atomic int ended;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static void launch(const struct work *work, CUstream stream)
{
    const struct driver *driver = work->driver;
    const char *how = work->plan->how;
    uint64_t size = work->plan->size;
    CUdeviceptr buffer = work->buffer;
    void *params[] = {&size, &buffer, NULL};
    unsigned blocks = strcmp(work->plan->kernel, "spin") == 0 ? 1 : 512;
    unsigned threads = blocks == 1 ? 1 : 256;
    CUlaunchConfig config = {blocks, 1, 1, threads, 1, 1, 0, stream, NULL, 0};
    if (strcmp(how, "fill") == 0)
        must(driver->fill(buffer, 7, size, stream), "cuMemsetD8Async");
    else if (strcmp(how, "move") == 0)
        must(driver->move(buffer + size / 2, buffer, size / 2, stream), "cuMemcpyDtoDAsync");
    else if (strcmp(how, "together") == 0)
        must(driver->launch_together(work->function, 1, 1, 1, 32, 1, 1, 0, stream, params), "cuLaunchCooperativeKernel");
    else if (strcmp(how, "own") == 0)
        must(work->launch_own(work->function, blocks, 1, 1, threads, 1, 1, 0, NULL, params, NULL), "cuLaunchKernel_ptsz");
    else if (strcmp(how, "config") == 0)
        must(driver->launch_config(&config, work->function, params, NULL), "cuLaunchKernelEx");
    else
        must(driver->launch(work->function, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

/* A graph of ten launches. Other threads continue meanwhile: in global mode their waits would end the capture. */
static CUgraphExec capture(const struct work *work, CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    must(work->driver->begin(stream, CU_CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture");
    for (int i = 0; i < 10; i++) launch(work, stream);
    must(work->driver->end(stream, &graph), "cuStreamEndCapture");
    must(work->driver->instantiate(&exec, graph, 0), "cuGraphInstantiateWithFlags");
    return exec;
}

static void *run(void *argument)
{
    const struct work *work = argument;
    const struct plan *plan = work->plan;
    CUgraphExec graph = NULL;
    CUstream stream;
    must(work->driver->set_current(work->context), "cuCtxSetCurrent");
    if (strcmp(plan->how, "own") == 0) stream = CU_STREAM_PER_THREAD;
    else must(work->driver->make_stream(&stream, 1), "cuStreamCreate");
    if (strcmp(plan->how, "graph") == 0) graph = capture(work, stream);
    uint64_t until = now() + (uint64_t)(plan->seconds * 1e9), queued = 0;
    while (now() < until) {
        if (graph) must(work->driver->launch_graph(graph, stream), "cuGraphLaunch");
        else launch(work, stream);
        atomic_fetch_add(&done, graph ? 10 : 1);
        if (!plan->depth && plan->pause) usleep((useconds_t)plan->pause);
        if (!plan->depth || ++queued < plan->depth) continue;
        queued = 0;
        must(work->driver->stream_wait(stream), "cuStreamSynchronize");
        if (plan->pause) usleep((useconds_t)plan->pause);
    }
    must(work->driver->stream_wait(stream), "cuStreamSynchronize");
    if (stream != CU_STREAM_PER_THREAD) must(work->driver->end_stream(stream), "cuStreamDestroy");
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The time of a launch's call on an idle stream: the driver's part and all code in front of it. */
static int time_launches(const struct work *work)
{
    uint64_t count = work->plan->timed, *took = calloc(count, sizeof *took);
    CUstream stream;
    if (!took) return 1;
    must(work->driver->make_stream(&stream, 1), "cuStreamCreate");
    for (uint64_t i = 0; i < count; i++) {
        uint64_t began = now();
        launch(work, stream);
        took[i] = now() - began;
        must(work->driver->stream_wait(stream), "cuStreamSynchronize");
    }
    qsort(took, count, sizeof *took, by_size);
    printf("launch %llu %llu\n", (unsigned long long)took[count / 2], (unsigned long long)took[count * 99 / 100]);
    free(took);
    return 0;
}

static void *report(void *argument)
{
    const struct plan *plan = argument;
    while (!atomic_load(&ended)) {
        printf("report %llu %llu\n", (unsigned long long)now(), (unsigned long long)atomic_load(&done));
        fflush(stdout);
        usleep((useconds_t)plan->report * 1000);
    }
    return NULL;
}

static int read_plan(int argc, char **argv, struct plan *plan)
{
    const struct { const char *name; const char **text; uint64_t *number; } options[] = {
        {"--way", &plan->way, NULL}, {"--kernel", &plan->kernel, NULL}, {"--how", &plan->how, NULL},
        {"--size", NULL, &plan->size}, {"--depth", NULL, &plan->depth}, {"--pause", NULL, &plan->pause},
        {"--threads", NULL, &plan->threads}, {"--report", NULL, &plan->report}, {"--device", NULL, &plan->device},
        {"--timed", NULL, &plan->timed}};
    for (int i = 1; i + 1 < argc; i += 2) {
        int known = strcmp(argv[i], "--seconds") == 0;
        if (known) plan->seconds = strtod(argv[i + 1], NULL);
        for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
            if (strcmp(argv[i], options[k].name) != 0) continue;
            if (options[k].text) *options[k].text = argv[i + 1];
            else *options[k].number = strtoull(argv[i + 1], NULL, 10);
            known = 1;
        }
        if (!known) return fprintf(stderr, "load: unknown option %s\n", argv[i]), 0;
    }
    return argc % 2 == 1 && plan->threads >= 1 && plan->threads <= 64;
}

int main(int argc, char **argv)
{
    struct plan plan = {.way = "dlsym", .kernel = "spin", .how = "kernel", .size = 1000000, .depth = 1, .threads = 1, .seconds = 1};
    struct work work = {.plan = &plan};
    pthread_t threads[64], reporter;
    CUmodule module;
    if (!read_plan(argc, argv, &plan)) return 2;
    work.driver = driver_find(plan.way);
    if (!work.driver) return 4;
    must(work.driver->init(0), "cuInit");
    must(work.driver->retain(&work.context, (CUdevice)plan.device), "cuDevicePrimaryCtxRetain");
    must(work.driver->set_current(work.context), "cuCtxSetCurrent");
    must(work.driver->load(&module, kernels), "cuModuleLoadData");
    must(work.driver->function(&work.function, module, plan.kernel), "cuModuleGetFunction");
    int moves = strcmp(plan.how, "fill") == 0 || strcmp(plan.how, "move") == 0;
    uint64_t bytes = strcmp(plan.kernel, "copy") == 0 ? plan.size * 4 : moves ? plan.size : 512 * 256 * 4;
    if (moves || strcmp(plan.kernel, "spin") != 0) must(work.driver->alloc(&work.buffer, bytes), "cuMemAlloc");
    if (strcmp(plan.how, "own") == 0) *(void **)&work.launch_own = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel_ptsz");
    if (plan.timed) return time_launches(&work);
    printf("ready\n");
    fflush(stdout);
    uint64_t began = now();
    if (plan.report) pthread_create(&reporter, NULL, report, &plan);
    for (uint64_t i = 0; i < plan.threads; i++) pthread_create(&threads[i], NULL, run, &work);
    for (uint64_t i = 0; i < plan.threads; i++) pthread_join(threads[i], NULL);
    uint64_t span = now() - began;
    atomic_store(&ended, 1);
    if (plan.report) pthread_join(reporter, NULL);
    printf("done %llu %llu\n", (unsigned long long)atomic_load(&done), (unsigned long long)span);
    return 0;
}
