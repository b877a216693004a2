/*
 * Allocates by one path until it is refused, frees all, and does it again. For the modelled card.
 *
 * Usage: memory PATH CHUNK_BYTES [WAY] [hold [CHUNKS]]
 *   PATH  plain small pitch managed handle pool newpool array import heap context module show
 *         graph node capture   graphs that allocate a chunk in two parts and keep it, made in three ways
 * Prints "refused CODE", "total BYTES" of each round, "info TOTAL FREE" as the driver shows them before and
 * after. With `hold`, keeps a round's memory (CHUNKS at most) until it reads a byte: after `+` it allocates more beside
 * that, after any other it begins the next round without it; an end of input ends the program.
 */
#include "../tools/driver.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 4096

static const struct driver *driver;
static uint64_t held[MOST], spaces[MOST];
static CUgraphExec execs[MOST];
static CUcontext context;
static CUpool pool; /* of the path newpool, or the card's own */
static CUstream stream;

static bool is_graph(const char *path)
{
    return strcmp(path, "graph") == 0 || strcmp(path, "node") == 0 || strcmp(path, "capture") == 0;
}

/* Half a chunk, as a node of a graph. */
static CUresult add(const char *path, CUgraph graph, CUdeviceptr *pointer, size_t half)
{
    CUnodeParams params = {.type = CU_NODE_MEM_ALLOC};
    CUgraphNode node;
    CUresult result;
    params.alloc = (CUmemAllocNode){.poolProps = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 0}}, .bytesize = half};
    if (strcmp(path, "graph") == 0) result = driver->add_alloc(&node, graph, NULL, 0, &params.alloc);
    else result = driver->add_node(&node, graph, NULL, NULL, 0, &params);
    *pointer = params.alloc.dptr;
    return result;
}

/* A graph of two allocations, launched: they outlive it. */
static CUresult launch(const char *path, int i, size_t half)
{
    CUgraph graph = NULL;
    CUdeviceptr *first = (CUdeviceptr *)&held[i], *second = (CUdeviceptr *)&spaces[i];
    CUresult result, ended = CUDA_SUCCESS;
    if (strcmp(path, "capture") == 0) {
        if (!stream) must(driver->make_stream(&stream, 1), "cuStreamCreate");
        must(driver->begin(stream, 0), "cuStreamBeginCapture");
        result = driver->alloc_async(first, half, stream);
        if (result == CUDA_SUCCESS) result = driver->alloc_async(second, half, stream);
        ended = driver->end(stream, &graph);
    } else {
        must(driver->new_graph(&graph, 0), "cuGraphCreate");
        result = add(path, graph, first, half);
        if (result == CUDA_SUCCESS) result = add(path, graph, second, half);
    }
    if (result == CUDA_SUCCESS) result = ended;
    if (result == CUDA_SUCCESS) result = driver->instantiate_old(&execs[i], graph, NULL, NULL, 0);
    if (graph) must(driver->end_graph(graph), "cuGraphDestroy");
    if (result != CUDA_SUCCESS) return result;
    result = driver->launch_graph(execs[i], stream);
    if (result != CUDA_SUCCESS) must(driver->end_exec(execs[i]), "cuGraphExecDestroy");
    else must(driver->context_wait(), "cuCtxSynchronize");
    return result;
}

static void open_pool(const char *path)
{
    CUpoolProps props = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 0}};
    if (strcmp(path, "newpool") == 0) must(driver->new_pool(&pool, &props), "cuMemPoolCreate");
}

/* Releases unused memory of a pool or of the graphs. */
static void close_pool(const char *path)
{
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->context_wait(), "cuCtxSynchronize");
    if (strcmp(path, "newpool") == 0) must(driver->end_pool(pool), "cuMemPoolDestroy");
    if (is_graph(path)) must(driver->trim_graphs(0), "cuDeviceGraphMemTrim");
    if (strcmp(path, "pool") != 0) return;
    must(driver->own_pool(&pool, 0), "cuDeviceGetMemPool");
    must(driver->trim_pool(pool, 0), "cuMemPoolTrimTo");
}

static CUresult import(CUdeviceptr *pointer, size_t chunk)
{
    /* A handle of another container: the stand-in reads address, size and pid from it. */
    static uint64_t others;
    uint64_t foreign[8] = {0x1000 | ++others, chunk, 1};
    CUipcMem handle;
    memcpy(&handle, foreign, sizeof handle);
    return driver->import_memory(pointer, handle, 1);
}

static CUresult map(uint64_t *space, uint64_t *handle, size_t chunk)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUmemHandle made;
    CUresult result = driver->create(&made, chunk, &prop, 0);
    if (result != CUDA_SUCCESS) return result;
    must(driver->reserve((CUdeviceptr *)space, chunk, 0, 0, 0), "cuMemAddressReserve");
    must(driver->map(*space, chunk, 0, made, 0), "cuMemMap");
    /* Released while mapped, as allocators do: the memory stays until it is unmapped. */
    must(driver->release_handle(made), "cuMemRelease");
    *handle = made;
    return CUDA_SUCCESS;
}

static CUresult take(const char *path, size_t chunk, int i)
{
    CUdeviceptr *pointer = (CUdeviceptr *)&held[i];
    CUarray3D shape = {chunk / 4 / 1024, 1024, 0, 0x20, 1, 0};
    size_t pitch;
    if (strcmp(path, "plain") == 0 || strcmp(path, "small") == 0) return driver->alloc(pointer, chunk);
    if (strcmp(path, "pitch") == 0) return driver->alloc_pitch(pointer, &pitch, chunk / 1024, 1024, 4);
    if (strcmp(path, "managed") == 0) return driver->alloc_managed(pointer, chunk, 1);
    if (strcmp(path, "handle") == 0) return map(&spaces[i], &held[i], chunk);
    if (strcmp(path, "pool") == 0) return driver->alloc_async(pointer, chunk, NULL);
    if (strcmp(path, "newpool") == 0) return driver->alloc_from(pointer, chunk, pool, NULL);
    if (is_graph(path)) return launch(path, i, chunk / 2);
    if (strcmp(path, "array") == 0) return driver->array((CUarray *)&held[i], &shape);
    if (strcmp(path, "import") == 0) return import(pointer, chunk);
    if (strcmp(path, "heap") == 0) return driver->set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, (8ull << 20) + chunk * (size_t)(i + 1));
    if (strcmp(path, "context") == 0) return driver->make_context((CUcontext *)&held[i], 0, 0);
    if (strcmp(path, "module") == 0) return driver->load((CUmodule *)&held[i], "");
    return CUDA_ERROR_NOT_FOUND;
}

static void give(const char *path, size_t chunk, int i)
{
    if (strcmp(path, "handle") == 0) must(driver->unmap(spaces[i], chunk), "cuMemUnmap");
    else if (strcmp(path, "pool") == 0 || strcmp(path, "newpool") == 0)
        must(driver->free_async(held[i], NULL), "cuMemFreeAsync");
    else if (is_graph(path)) {
        must(driver->free_async(held[i], stream), "cuMemFreeAsync");
        must(driver->release_memory(spaces[i]), "cuMemFree");
        must(driver->end_exec(execs[i]), "cuGraphExecDestroy");
    }
    else if (strcmp(path, "array") == 0) must(driver->end_array((CUarray)(uintptr_t)held[i]), "cuArrayDestroy");
    else if (strcmp(path, "import") == 0) must(driver->end_import(held[i]), "cuIpcCloseMemHandle");
    else if (strcmp(path, "heap") == 0) must(driver->set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 8ull << 20), "cuCtxSetLimit");
    else if (strcmp(path, "context") == 0) must(driver->end_context((CUcontext)(uintptr_t)held[i]), "cuCtxDestroy");
    else if (strcmp(path, "module") == 0) must(driver->unload((CUmodule)(uintptr_t)held[i]), "cuModuleUnload");
    else must(driver->release_memory(held[i]), "cuMemFree");
}

static void show(void)
{
    size_t free, total, whole;
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->info(&free, &total), "cuMemGetInfo");
    must(driver->total(&whole, 0), "cuDeviceTotalMem");
    printf("info %zu %zu %zu\n", total, free, whole);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "show", *way = argc > 3 ? argv[3] : "dlsym";
    size_t chunk = argc > 2 ? strtoull(argv[2], NULL, 10) : 32 << 20;
    int most = argc > 5 ? atoi(argv[5]) : MOST;
    driver = driver_find(way);
    if (!driver) return 4;
    must(driver->init(0), "cuInit");
    must(driver->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    show();
    fflush(stdout); /* tells the test that it has begun */
    for (int round = 0; round < 2 && strcmp(path, "show") != 0; round++) {
        CUresult result = CUDA_SUCCESS;
        int count = 0;
        must(driver->set_current(context), "cuCtxSetCurrent");
        open_pool(path);
        for (int more = '+'; more == '+';) {
            while (count < most && (result = take(path, chunk, count)) == CUDA_SUCCESS) count++;
            printf("refused %d\ntotal %zu\n", result, (size_t)count * chunk);
            more = 0;
            if (argc <= 4) continue;
            fflush(stdout);
            if ((more = getchar()) == EOF) return 0;
            round = 0;
        }
        while (count-- > 0) give(path, chunk, count);
        close_pool(path);
    }
    show();
    return 0;
}
