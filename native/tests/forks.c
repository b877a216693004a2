/*
 * A program that forks while its threads are in every part of the library: pools, handles, graphs, the primary context,
 * launches, small allocations, the very first call, lookups of functions. Each child then does all of it by itself.
 *
 * Usage: forks all COUNT           prints "forked N hung N failed N", and ends with the first child that hangs or fails; its
 *                                  stage goes to standard error
 *        forks lookup COUNT        the same with lookups alone, for which the loader has a lock of its own
 *        forks first PIPE LIMITS   once, while a thread opens the library, which reads PIPE in place of its limits; the
 *                                  child puts the file LIMITS there and continues
 */
#include "../tools/driver.h"
#include "../tools/kernels.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define PATIENCE 120 /* seconds until a child counts as hung */

static const struct driver *driver;
static void *library;
static __typeof__(&nvmlDeviceGetMemoryInfo) nvml_info;
static CUcontext context;
static CUfunction function;
static const char **stage; /* the child's stage; shared with its parent */

static void use_pool(CUstream stream)
{
    CUdeviceptr pointer;
    must(driver->alloc_async(&pointer, 3 * MIB, stream), "cuMemAllocAsync");
    must(driver->free_async(pointer, stream), "cuMemFreeAsync");
}

static void use_handle(CUstream stream)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUmemHandle handle;
    (void)stream;
    must(driver->create(&handle, 2 * MIB, &prop, 0), "cuMemCreate");
    must(driver->release_handle(handle), "cuMemRelease");
}

static CUgraphExec make_graph(uint64_t bytes)
{
    CUmemAllocNode params = {.poolProps = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 0}}, .bytesize = bytes};
    CUgraph graph;
    CUgraphNode node, freed;
    CUgraphExec exec;
    must(driver->new_graph(&graph, 0), "cuGraphCreate");
    must(driver->add_alloc(&node, graph, NULL, 0, &params), "cuGraphAddMemAllocNode");
    must(driver->add_free(&freed, graph, &node, 1, params.dptr), "cuGraphAddMemFreeNode");
    must(driver->instantiate(&exec, graph, 0), "cuGraphInstantiate");
    must(driver->end_graph(graph), "cuGraphDestroy");
    return exec;
}

static void use_graph(CUstream stream)
{
    CUgraphExec exec = make_graph(4 * MIB);
    must(driver->launch_graph(exec, stream), "cuGraphLaunch");
    must(driver->stream_wait(stream), "cuStreamSynchronize");
    must(driver->end_exec(exec), "cuGraphExecDestroy");
}

static void use_primary(CUstream stream)
{
    CUcontext same;
    (void)stream;
    must(driver->retain(&same, 0), "cuDevicePrimaryCtxRetain");
    must(driver->release(0), "cuDevicePrimaryCtxRelease");
}

static void use_kernel(CUstream stream)
{
    uint64_t ns = 1000;
    void *params[] = {&ns, NULL};
    must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
    must(driver->stream_wait(stream), "cuStreamSynchronize");
}

static void use_little(CUstream stream)
{
    CUdeviceptr pointer;
    (void)stream;
    must(driver->alloc(&pointer, 1000), "cuMemAlloc");
    must(driver->release_memory(pointer), "cuMemFree");
}

static void use_lookup(CUstream stream)
{
    (void)stream;
    if (!dlsym(library, "cuMemAlloc_v2")) must(CUDA_ERROR_NOT_FOUND, "dlsym");
}

static void use_nvml(CUstream stream)
{
    nvmlMemory memory;
    (void)stream;
    if (nvml_info((nvmlDevice)1, &memory) != NVML_SUCCESS || memory.total != 1024 * MIB) must(CUDA_ERROR_NOT_FOUND, "NVML");
}

static const struct part {
    const char *name;
    void (*use)(CUstream stream);
} parts[] = {{"lookup", use_lookup}, {"nvml", use_nvml},       {"little", use_little},   {"pool", use_pool},
             {"handle", use_handle}, {"primary", use_primary}, {"kernel", use_kernel}, {"graph", use_graph}};
#define PARTS (sizeof parts / sizeof *parts)

static void open_card(void)
{
    CUmodule module;
    must(driver->init(0), "cuInit");
    must(driver->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->load(&module, ""), "cuModuleLoadData");
    must(driver->function(&function, module, "spin"), "cuModuleGetFunction");
}

static void *work(void *part)
{
    struct timespec pause = {0, 200000};
    CUstream stream;
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->make_stream(&stream, 1), "cuStreamCreate");
    for (int i = 0;; i++) {
        ((const struct part *)part)->use(stream);
        if (i % 16 == 0) nanosleep(&pause, NULL);
    }
    return NULL;
}

static void all_of_it(void)
{
    CUstream stream;
    *stage = "first";
    use_nvml(NULL); /* before the child has a place of its own */
    *stage = "start";
    open_card();
    must(driver->make_stream(&stream, 1), "cuStreamCreate");
    for (uint32_t i = 0; i < PARTS; i++) {
        *stage = parts[i].name;
        parts[i].use(stream);
    }
    *stage = "end";
}

static int many(int count, bool lookups)
{
    pthread_t thread;
    struct timespec pause = {0, 1000000};
    int hung = 0, failed = 0, status, i;
    open_card();
    for (uint32_t k = 0; k < PARTS; k++)
        pthread_create(&thread, NULL, work, (void *)(uintptr_t)&parts[lookups ? 0 : k]);
    for (i = 0; i < count && !hung && !failed; i++) {
        nanosleep(&pause, NULL);
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE);
            if (lookups) use_lookup(NULL);
            else all_of_it();
            exit(0);
        }
        waitpid(child, &status, 0);
        hung = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
        failed = status != 0 && !hung;
        if (status) fprintf(stderr, "child %d %s in %s\n", i, hung ? "hung" : "failed", *stage);
    }
    printf("forked %d hung %d failed %d\n", i, hung, failed);
    fflush(stdout);
    _exit(0);
}

static void *open_library(void *unused)
{
    (void)unused;
    use_nvml(NULL);
    return NULL;
}

/* The thread waits in the library for the pipe's other end, which is never opened. */
static int first(const char *pipe, const char *limits)
{
    pthread_t thread;
    struct timespec pause = {0, 200000000};
    int status;
    pthread_create(&thread, NULL, open_library, NULL);
    nanosleep(&pause, NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE);
        if (rename(limits, pipe)) _exit(6);
        all_of_it();
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("forked 1 hung %d failed %d\n", WIFSIGNALED(status), !WIFSIGNALED(status) && status);
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv)
{
    stage = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    driver = driver_find("dlsym");
    library = dlopen("libcuda.so.1", RTLD_NOW);
    nvml_info = (__typeof__(nvml_info))dlsym(dlopen("libnvidia-ml.so.1", RTLD_NOW), "nvmlDeviceGetMemoryInfo");
    if (!nvml_info || argc < 3 || stage == MAP_FAILED || !driver) return 4;
    return argc > 3 ? first(argv[2], argv[3]) : many(atoi(argv[2]), strcmp(argv[1], "lookup") == 0);
}
