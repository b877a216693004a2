/*
 * Memory of the second of two cards, allocated while the thread's context is of the first. For the modelled cards.
 *
 * Usage: cards HOW
 * Or: cards ending, which destroys streams of the second card with work on them while the context is the first's.
 * Or: cards anew, which works on the second card in a context with the name of a destroyed one of the first.
 *
 *   HOW  stream       stream-ordered, on a stream of the second card
 *        contextless  the same by a thread without a context
 *        own          of the second card's own pool, on the first one's default stream
 *        made         of a pool made for the second card
 *        bare         the same by a thread without a context
 *        told         of the second card's own pool, found by its location
 *        host         of a pool of the host's memory
 *        told-host    of the host's own pool
 *        handle domain  by handle, for the card or for a part of it
 *        graph        of a graph that allocates in a part of the card
 *        import       a handle of another container's memory there, each mapped twice
 *        ipc pointer  memory of another container there, by cuIpcOpenMemHandle or of a pool
 * Allocates pieces of 128 MiB until one is refused, prints "refused CODE COUNT" and "used FIRST SECOND", frees all
 * and prints the latter again.
 */
#include "../tools/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define PIECE (128 * MIB)
#define MOST 32

static const struct driver *driver;
static CUcontext contexts[2];
static CUstream stream;
static CUpool pool;
static CUdeviceptr pieces[MOST];
static CUgraphExec execs[MOST];
static CUmemHandle handles[MOST];

static int is(const char *how, const char *name) { return strcmp(how, name) == 0; }

static size_t used_of(int card)
{
    size_t free, total;
    must(driver->set_current(contexts[card]), "cuCtxSetCurrent");
    must(driver->info(&free, &total), "cuMemGetInfo");
    return total - free;
}

static void show(void) { printf("used %zu %zu\n", used_of(0), used_of(1)); }

static void open_pool(const char *how)
{
    CUpoolProps props = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 1}};
    CUlocation location = props.location;
    if (is(how, "host") || is(how, "told-host")) location = props.location = (CUlocation){CU_LOCATION_HOST, 0};
    if (is(how, "own")) must(driver->own_pool(&pool, 1), "cuDeviceGetMemPool");
    if (is(how, "made") || is(how, "bare") || is(how, "host")) must(driver->new_pool(&pool, &props), "cuMemPoolCreate");
    if (strncmp(how, "told", 4) == 0) must(driver->pool_at(&pool, &location, 1), "cuMemGetDefaultMemPool");
    if (is(how, "pointer")) must(driver->import_pool(&pool, NULL, 1, 0), "cuMemPoolImportFromShareableHandle");
}

static CUresult take_handle(const char *how, int i)
{
    CUallocationProp prop = {.type = 1, .location = {is(how, "domain") ? CU_LOCATION_DOMAIN : CU_LOCATION_DEVICE, 1}};
    CUdeviceptr again;
    CUresult result;
    if (is(how, "domain")) prop.location.id |= 1 << 8;
    if (is(how, "import")) result = driver->import_handle(&handles[i], (void *)1, 1);
    else result = driver->create(&handles[i], PIECE, &prop, 0);
    if (result != CUDA_SUCCESS || !is(how, "import")) return result;
    must(driver->reserve(&pieces[i], PIECE, 0, 0, 0), "cuMemAddressReserve");
    must(driver->reserve(&again, PIECE, 0, 0, 0), "cuMemAddressReserve");
    result = driver->map(pieces[i], PIECE, 0, handles[i], 0);
    if (result != CUDA_SUCCESS) {
        must(driver->release_handle(handles[i]), "cuMemRelease");
        return result;
    }
    must(driver->map(again, PIECE, 0, handles[i], 0), "cuMemMap");
    must(driver->unmap(again, PIECE), "cuMemUnmap");
    return result;
}

static CUresult launch(int i)
{
    CUmemAllocNode params = {.poolProps = {.allocType = 1, .location = {CU_LOCATION_DOMAIN, 1 | 1 << 8}}, .bytesize = PIECE};
    CUgraphNode node;
    CUgraph graph;
    must(driver->new_graph(&graph, 0), "cuGraphCreate");
    must(driver->add_alloc(&node, graph, NULL, 0, &params), "cuGraphAddMemAllocNode");
    must(driver->instantiate(&execs[i], graph, 0), "cuGraphInstantiateWithFlags");
    must(driver->end_graph(graph), "cuGraphDestroy");
    pieces[i] = params.dptr;
    return driver->launch_graph(execs[i], NULL);
}

static CUresult take(const char *how, int i)
{
    uint64_t foreign[8] = {0x1001 + (uint64_t)i, PIECE, 1, 1}; /* as the stand-in reads it: address, size, process, device */
    CUpoolPointer shared;
    CUipcMem handle;
    memcpy(&shared, foreign, sizeof shared);
    memcpy(&handle, foreign, sizeof handle);
    if (is(how, "stream") || is(how, "contextless")) return driver->alloc_async(&pieces[i], PIECE, stream);
    if (is(how, "handle") || is(how, "domain") || is(how, "import")) return take_handle(how, i);
    if (is(how, "graph")) return launch(i);
    if (is(how, "ipc")) return driver->import_memory(&pieces[i], handle, 1);
    if (is(how, "pointer")) return driver->import_pointer(&pieces[i], pool, &shared);
    return driver->alloc_from(&pieces[i], PIECE, pool, is(how, "bare") ? stream : NULL);
}

static void give(const char *how, int i)
{
    if (is(how, "import")) must(driver->unmap(pieces[i], PIECE), "cuMemUnmap");
    if (is(how, "ipc")) must(driver->end_import(pieces[i]), "cuIpcCloseMemHandle");
    else if (handles[i]) must(driver->release_handle(handles[i]), "cuMemRelease");
    else must(driver->free_async(pieces[i], NULL), "cuMemFreeAsync");
    if (is(how, "graph")) must(driver->end_exec(execs[i]), "cuGraphExecDestroy");
}

static int end_streams(void)
{
    CUmodule module;
    CUfunction function;
    CUstream mine;
    uint64_t ns = 20000;
    void *params[] = {&ns, NULL};
    must(driver->set_current(contexts[1]), "cuCtxSetCurrent");
    must(driver->load(&module, ""), "cuModuleLoadData");
    must(driver->function(&function, module, "spin"), "cuModuleGetFunction");
    for (int i = 0; i < 50; i++) {
        must(driver->set_current(contexts[1]), "cuCtxSetCurrent");
        must(driver->make_stream(&mine, 1), "cuStreamCreate");
        for (int k = 0; k < 3; k++) must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, mine, params, NULL), "cuLaunchKernel");
        must(driver->set_current(contexts[0]), "cuCtxSetCurrent");
        must(driver->end_stream(mine), "cuStreamDestroy");
        usleep(3000); /* lets the watch run in between */
    }
    return 0;
}

static int make_anew(void)
{
    CUcontext context[2];
    for (int i = 0; i < 2; i++) {
        CUmodule module;
        CUfunction function;
        uint64_t ns = 1000000;
        void *params[] = {&ns, NULL};
        must(driver->make_context(&context[i], 0, i), "cuCtxCreate");
        must(driver->load(&module, ""), "cuModuleLoadData");
        must(driver->function(&function, module, "spin"), "cuModuleGetFunction");
        for (int k = 0; k < 1 + 50 * i; k++)
            must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), "cuLaunchKernel");
        must(driver->context_wait(), "cuCtxSynchronize");
        usleep(20000); /* lets the watch run in between */
        must(driver->end_context(context[i]), "cuCtxDestroy");
    }
    return context[0] != context[1];
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    CUresult result = CUDA_SUCCESS;
    int count = 0;
    driver = driver_find("dlsym");
    if (!driver) return 4;
    must(driver->init(0), "cuInit");
    if (is(how, "anew")) return make_anew();
    for (int i = 0; i < 2; i++) must(driver->retain(&contexts[i], i), "cuDevicePrimaryCtxRetain");
    if (is(how, "ending")) return end_streams();
    must(driver->set_current(contexts[1]), "cuCtxSetCurrent");
    must(driver->make_stream(&stream, 1), "cuStreamCreate");
    must(driver->set_current(contexts[0]), "cuCtxSetCurrent");
    open_pool(how);
    if (is(how, "contextless") || is(how, "bare")) must(driver->set_current(NULL), "cuCtxSetCurrent");
    while (count < MOST && (result = take(how, count)) == CUDA_SUCCESS) count++;
    printf("refused %d %d\n", result, count);
    show();
    must(driver->set_current(contexts[0]), "cuCtxSetCurrent");
    while (count-- > 0) give(how, count);
    if (is(how, "stream") || is(how, "contextless")) must(driver->own_pool(&pool, 1), "cuDeviceGetMemPool");
    if (is(how, "graph")) must(driver->trim_graphs(1), "cuDeviceGraphMemTrim");
    if (pool && !is(how, "pointer")) must(driver->trim_pool(pool, 0), "cuMemPoolTrimTo");
    show();
    return 0;
}
