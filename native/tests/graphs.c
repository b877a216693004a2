/*
 * Graphs with memory of their own, step by step. Each argument is a step; all but the first kind print their result.
 *
 *   a=K300,T200,Gb   graph a: keeps 300 MiB, takes 200 MiB and frees them again, holds graph b (and owns it then)
 *   c=...            the same by capturing a stream, where the name is c (no G)
 *   i:a I:a A:a      instantiate a; with its memory at once; so that a launch frees the memory that the one before kept
 *   o:a              instantiate it by the call from before CUDA 12
 *   u:a l:a          upload, launch
 *   O U:a            work on the thread's own stream from here on; upload there, by the call for it
 *   T:a              launch from as many threads as there are letters, in streams of their own: prints how many passed
 *   f:a d:a          free the memory that a keeps, destroy its instance
 *   p:600 x          allocate 600 MiB, free them
 *   w:20             20 ms of work on the stream
 *   s                wait for all work
 *   m                MiB in use
 *   hold             waits for the end of standard input
 *
 * Usage: graphs WAY STEP...
 */
#include "../tools/driver.h"
#include "../tools/kernels.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1ull << 20)

struct made {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr kept[64];
    int count;
};

static const struct driver *driver;
static struct made all[26];
static CUcontext context;
static CUstream stream;
static CUfunction function;
static CUdeviceptr plain;

static struct made *named(char letter) { return &all[(letter - 'a') % 26]; }

static void add(struct made *made, char kind, uint64_t mib, char child)
{
    CUnodeParams params = {.type = CU_NODE_MEM_ALLOC};
    CUgraphNode node, freed;
    if (kind == 'G') {
        params = (CUnodeParams){.type = CU_NODE_GRAPH, .graph = {named(child)->graph, 1}};
        must(driver->add_node(&node, made->graph, NULL, NULL, 0, &params), "cuGraphAddNode");
        return;
    }
    params.alloc = (CUmemAllocNode){.poolProps = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 0}}, .bytesize = mib * MIB};
    must(driver->add_alloc(&node, made->graph, NULL, 0, &params.alloc), "cuGraphAddMemAllocNode");
    if (kind == 'T') must(driver->add_free(&freed, made->graph, &node, 1, params.alloc.dptr), "cuGraphAddMemFreeNode");
    else made->kept[made->count++] = params.alloc.dptr;
}

static void record(struct made *made, char kind, uint64_t mib)
{
    CUdeviceptr pointer;
    must(driver->alloc_async(&pointer, mib * MIB, stream), "cuMemAllocAsync");
    if (kind == 'T') must(driver->free_async(pointer, stream), "cuMemFreeAsync");
    else made->kept[made->count++] = pointer;
}

static void define(char *step)
{
    struct made *made = named(step[0]);
    if (step[0] == 'c') must(driver->begin(stream, 0), "cuStreamBeginCapture");
    else must(driver->new_graph(&made->graph, 0), "cuGraphCreate");
    for (char *part = strtok(step + 2, ","); part; part = strtok(NULL, ",")) {
        uint64_t mib = strtoull(part + 1, NULL, 10);
        if (step[0] == 'c') record(made, part[0], mib);
        else add(made, part[0], mib, part[1]);
    }
    if (step[0] == 'c') must(driver->end(stream, &made->graph), "cuStreamEndCapture");
}

static CUresult instantiate_old(struct made *made)
{
    __typeof__(&cuGraphInstantiate_v2) old =
        (__typeof__(old))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGraphInstantiate_v2");
    return old(&made->exec, made->graph, NULL, NULL, 0);
}

static CUresult upload_own(struct made *made)
{
    __typeof__(&cuGraphUpload) own = (__typeof__(own))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGraphUpload_ptsz");
    return own(made->exec, NULL);
}

static void *launch_one(void *argument)
{
    struct made *made = argument;
    CUstream own;
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->make_stream(&own, 1), "cuStreamCreate");
    return (void *)(intptr_t)(driver->launch_graph(made->exec, own) == CUDA_SUCCESS);
}

static int launch_all(const char *letters)
{
    pthread_t threads[26];
    int passed = 0;
    for (int i = 0; letters[i]; i++) {
        pthread_create(&threads[i], NULL, launch_one, named(letters[i]));
        if (getenv("FAKE_GPU_SLOW")) usleep(2000); /* each begins during the launch of the one before */
    }
    for (int i = 0; letters[i]; i++) {
        void *good;
        pthread_join(threads[i], &good);
        passed += good != NULL;
    }
    return passed;
}

static int free_kept(struct made *made)
{
    int result = CUDA_SUCCESS;
    for (int i = 0; i < made->count && result == CUDA_SUCCESS; i++) {
        if (i % 2) result = driver->release_memory(made->kept[i]);
        else result = driver->free_async(made->kept[i], stream);
    }
    return result;
}

static int work(uint64_t ms)
{
    uint64_t ns = ms * 1000000;
    void *params[] = {&ns, NULL};
    return driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static int used(void)
{
    size_t free, total;
    must(driver->info(&free, &total), "cuMemGetInfo");
    return (int)((total - free) / MIB);
}

static int run(const char *step)
{
    struct made *made = named(step[0] && step[1] == ':' ? step[2] : 'a');
    CUinstantiateParams at_once = {.flags = CU_INSTANTIATE_UPLOAD, .hUploadStream = stream};
    switch (step[0]) {
    case 'i': return driver->instantiate(&made->exec, made->graph, 0);
    case 'I': return driver->instantiate_with(&made->exec, made->graph, &at_once);
    case 'A': return driver->instantiate(&made->exec, made->graph, CU_INSTANTIATE_AUTO_FREE);
    case 'o': return instantiate_old(made);
    case 'u': return driver->upload(made->exec, stream);
    case 'l': return driver->launch_graph(made->exec, stream);
    case 'O': return stream = CU_STREAM_PER_THREAD, CUDA_SUCCESS;
    case 'U': return upload_own(made);
    case 'T': return launch_all(step + 2);
    case 'f': return free_kept(made);
    case 'd': return driver->end_exec(made->exec);
    case 'p': return driver->alloc(&plain, strtoull(step + 2, NULL, 10) * MIB);
    case 'x': return driver->release_memory(plain);
    case 'w': return work(strtoull(step + 2, NULL, 10));
    case 's': return driver->context_wait();
    case 'm': return used();
    default: return -1;
    }
}

int main(int argc, char **argv)
{
    CUmodule module;
    driver = driver_find(argc > 1 ? argv[1] : "dlsym");
    if (!driver) return 4;
    must(driver->init(0), "cuInit");
    must(driver->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->make_stream(&stream, 1), "cuStreamCreate");
    must(driver->load(&module, kernels), "cuModuleLoadData");
    must(driver->function(&function, module, "spin"), "cuModuleGetFunction");
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "hold") == 0) {
            fflush(stdout);
            while (getchar() != EOF) {}
        } else if (argv[i][0] && argv[i][1] == '=')
            define(argv[i]);
        else printf("%s %d\n", argv[i], run(argv[i]));
    }
    return 0;
}
