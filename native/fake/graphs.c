/*
 * Stand-in for libcuda.so.1: graphs, and the memory that they allocate themselves.
 *
 * As on a card, an allocation has its address when its node is made, and memory from the first launch (or upload)
 * on. A graph uses addresses again. A launched graph keeps its memory until a trim or its own end; memory that was
 * not freed stays even then. A graph whose allocations still exist does not launch again, unless it frees them itself.
 */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 512 /* allocations of one graph */

struct cu_graph_exec {
    uint64_t ns, footprint, context, stream;
    CUdevice device;
    int mapped, ended, frees_itself;
    uint32_t live, kept, freed;
    CUdeviceptr keeps[MOST], frees[MOST]; /* memory that a launch leaves, and others' memory that it frees */
    CUgraphExec next;
};

static struct { uint64_t reserved, used; } pools[FAKE_CARDS];
static CUgraphExec execs;
FAKE_LOCK(lock)

static uint64_t whole(uint64_t bytes) { return (bytes + FAKE_GRANULE - 1) / FAKE_GRANULE * FAKE_GRANULE; }

CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    *graph = calloc(1, sizeof **graph);
    return *graph && !flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUgraphNode add(CUgraph graph, int type)
{
    CUgraphNode *at = &graph->first, node = calloc(1, sizeof *node);
    if (!node) abort();
    while (*at) at = &(*at)->next;
    node->type = type;
    return *at = node;
}

CUresult fake_graph_allocate(CUgraph graph, CUdevice device, uint64_t bytes, CUdeviceptr *pointer)
{
    *pointer = 0;
    for (CUgraphNode old = graph->first; old && !*pointer; old = old->next) {
        if (old->type != CU_NODE_MEM_ALLOC || old->ended != 1 || whole(old->params.bytesize) < whole(bytes)) continue;
        *pointer = old->params.dptr;
        old->ended = 2; /* its place is used again */
    }
    if (!*pointer) *pointer = fake_address(bytes);
    CUgraphNode node = add(graph, CU_NODE_MEM_ALLOC);
    node->params = (CUmemAllocNode){.poolProps.location = {CU_LOCATION_DEVICE, device}, .bytesize = bytes, .dptr = *pointer};
    return CUDA_SUCCESS;
}

CUresult fake_graph_free(CUgraph graph, CUdeviceptr pointer)
{
    for (CUgraphNode old = graph->first; old; old = old->next)
        if (old->type == CU_NODE_MEM_ALLOC && old->params.dptr == pointer && !old->ended) old->ended = 1;
    add(graph, CU_NODE_MEM_FREE)->params.dptr = pointer;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                CUmemAllocNode *params)
{
    (void)needs, (void)count;
    CUresult result = fake_graph_allocate(graph, params->poolProps.location.id, params->bytesize, &params->dptr);
    for (*node = graph->first; (*node)->next; *node = (*node)->next) {}
    (*node)->params.poolProps = params->poolProps;
    return result;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count, CUdeviceptr pointer);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count, CUdeviceptr pointer)
{
    (void)needs, (void)count;
    CUresult result = fake_graph_free(graph, pointer);
    for (*node = graph->first; (*node)->next; *node = (*node)->next) {}
    return result;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count, CUnodeParams *params)
{
    if (params->type == CU_NODE_MEM_ALLOC) return cuGraphAddMemAllocNode(node, graph, needs, count, &params->alloc);
    if (params->type == CU_NODE_MEM_FREE) return cuGraphAddMemFreeNode(node, graph, needs, count, params->free.dptr);
    if (params->type != CU_NODE_GRAPH) return CUDA_ERROR_NOT_SUPPORTED;
    *node = add(graph, CU_NODE_GRAPH);
    (*node)->child = params->graph.graph; /* from now on this graph owns it */
    return CUDA_SUCCESS;
}
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, const void *edges, size_t count,
                           CUnodeParams *params)
{
    (void)edges;
    return cuGraphAddNode(node, graph, needs, count, params);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    size_t found = 0;
    for (CUgraphNode node = graph->first; node; node = node->next, found++)
        if (nodes && found < *count) nodes[found] = node;
    *count = nodes && found > *count ? *count : found;
    return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUgraphNode node, int *type);
CUresult cuGraphNodeGetType(CUgraphNode node, int *type) { *type = node->type; return CUDA_SUCCESS; }
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUmemAllocNode *params);
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUmemAllocNode *params)
{
    *params = node->params;
    return CUDA_SUCCESS;
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) { *graph = node->child; return CUDA_SUCCESS; }

/* Collects the effects of a launch, of a graph and of those inside it. */
static void read_nodes(CUgraphExec exec, CUgraph graph)
{
    exec->ns += graph->ns;
    for (CUgraphNode node = graph->first; node; node = node->next) {
        if (node->type == CU_NODE_GRAPH) read_nodes(exec, node->child);
        if (node->type == CU_NODE_MEM_ALLOC) {
            exec->device = node->params.poolProps.location.id & 0xff;
            if (node->ended != 2) exec->footprint += whole(node->params.bytesize); /* the last at its place */
            if (!node->ended && exec->kept < MOST) exec->keeps[exec->kept++] = node->params.dptr;
        } else if (node->type == CU_NODE_MEM_FREE) {
            bool own = false;
            for (CUgraphNode old = graph->first; old; old = old->next)
                own |= old->type == CU_NODE_MEM_ALLOC && old->params.dptr == node->params.dptr;
            if (!own && exec->freed < MOST) exec->frees[exec->freed++] = node->params.dptr;
        }
    }
}

/* Memory for its allocations: unused memory first, then the card's. The lock is held. */
static CUresult map(CUgraphExec exec)
{
    CUdevice device = exec->device;
    if (exec->mapped || exec->footprint == 0) return CUDA_SUCCESS;
    uint64_t spare = pools[device].reserved - pools[device].used;
    uint64_t more = exec->footprint > spare ? exec->footprint - spare : 0;
    if (more && fake_take(device, more) != CUDA_SUCCESS) return CUDA_ERROR_OUT_OF_MEMORY;
    pools[device].reserved += more;
    pools[device].used += exec->footprint;
    exec->mapped = 1;
    return CUDA_SUCCESS;
}

static void unmap(CUgraphExec exec)
{
    if (exec->mapped) pools[exec->device].used -= exec->footprint;
    exec->mapped = 0;
}

static void discard(CUgraphExec exec)
{
    CUgraphExec *at = &execs;
    while (*at && *at != exec) at = &(*at)->next;
    if (*at) *at = exec->next;
    unmap(exec);
    free(exec);
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CUgraphExec fresh = calloc(1, sizeof *fresh);
    CUresult result = CUDA_SUCCESS;
    if (!fresh) return CUDA_ERROR_OUT_OF_MEMORY;
    read_nodes(fresh, graph);
    fresh->frees_itself = (flags & CU_INSTANTIATE_AUTO_FREE) != 0;
    pthread_mutex_lock(&lock);
    if (flags & CU_INSTANTIATE_UPLOAD) result = map(fresh);
    fresh->next = execs;
    execs = fresh;
    if (result != CUDA_SUCCESS) discard(fresh);
    else *exec = fresh;
    pthread_mutex_unlock(&lock);
    return result;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    return instantiate(exec, graph, flags & ~(unsigned long long)CU_INSTANTIATE_UPLOAD);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUinstantiateParams *params)
{
    return instantiate(exec, graph, params->flags);
}
CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *fault, char *log, size_t room)
{
    (void)fault, (void)log, (void)room;
    return instantiate(exec, graph, 0);
}

/* One allocation that a launch left has ended. */
static void freed(CUgraphExec exec)
{
    if (exec->live && --exec->live == 0 && exec->ended) discard(exec);
}

void fake_graph_freed(uint64_t owner)
{
    pthread_mutex_lock(&lock);
    freed((CUgraphExec)(uintptr_t)(owner & ~FAKE_OF_GRAPH));
    pthread_mutex_unlock(&lock);
}

static void free_pointer(CUdeviceptr pointer)
{
    uint64_t bytes, owner;
    if (fake_recall(pointer, &bytes, &owner, 1) && owner & FAKE_OF_GRAPH)
        freed((CUgraphExec)(uintptr_t)(owner & ~FAKE_OF_GRAPH));
}

static CUresult start(CUgraphExec exec, CUstream stream)
{
    if (exec->live && !exec->frees_itself) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; exec->live && i < exec->kept; i++) free_pointer(exec->keeps[i]);
    CUresult result = map(exec);
    if (result != CUDA_SUCCESS) return result;
    for (uint32_t i = 0; i < exec->kept; i++)
        fake_note(exec->keeps[i], FAKE_GRANULE, (uint64_t)(uintptr_t)exec | FAKE_OF_GRAPH);
    exec->live = exec->kept;
    for (uint32_t i = 0; i < exec->freed; i++) free_pointer(exec->frees[i]);
    exec->context = fake_current ? fake_current->id : 0;
    exec->stream = fake_stream(stream);
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    pthread_mutex_lock(&lock);
    CUresult result = start(exec, stream);
    uint64_t ns = exec->ns;
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS && getenv(FAKE_SLOW)) usleep(20000);
    return result == CUDA_SUCCESS ? fake_run(ns, stream) : result;
}
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    (void)stream;
    pthread_mutex_lock(&lock);
    CUresult result = map(exec);
    pthread_mutex_unlock(&lock);
    return result;
}
CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream);
CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphUpload(exec, stream); }
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *info)
{
    (void)info;
    if (exec->footprint || graph->first) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    exec->ns = graph->ns;
    return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    pthread_mutex_lock(&lock);
    exec->ended = 1;
    if (!exec->live) discard(exec);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphDestroy(CUgraph graph)
{
    for (CUgraphNode node = graph->first, next; node; node = next) {
        next = node->next;
        if (node->child) cuGraphDestroy(node->child);
        free(node);
    }
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value);
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    CUresult refused = fake_unsafe();
    if (refused) return refused;
    pthread_mutex_lock(&lock);
    uint64_t bytes = attribute == CU_GRAPH_MEM_RESERVED_CURRENT ? pools[device].reserved : pools[device].used;
    pthread_mutex_unlock(&lock);
    memcpy(value, &bytes, sizeof bytes);
    return CUDA_SUCCESS;
}

/* A graph that neither runs nor holds an allocation loses its memory; unused memory returns to the card. */
CUresult cuDeviceGraphMemTrim(CUdevice device);
CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult refused = fake_unsafe();
    if (refused) return refused;
    struct answer answer;
    pthread_mutex_lock(&lock);
    for (CUgraphExec exec = execs; exec; exec = exec->next) {
        struct request asked = {.kind = ASK_STREAM, .context = exec->context, .stream = exec->stream};
        if (exec->device == device && exec->mapped && !exec->live && fake_ask(asked, &answer) == CUDA_SUCCESS) unmap(exec);
    }
    uint64_t spare = pools[device].reserved - pools[device].used;
    pools[device].reserved -= spare;
    if (spare) fake_give(device, spare);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
