/*
 * Memory that graphs allocate themselves.
 *
 * An allocation of a graph is an address when its node is created, and memory from the first launch (or upload) on. So
 * a graph is measured when it is instantiated. The driver lists its nodes of any origin (added, captured, in a child
 * graph), and each card's part is the span of all addresses, those used twice counted once.
 * Before a launch its largest possible growth is counted; after it, the driver's figure of all graphs' memory.
 */
#include "graphs.h"
#include "batch.h"
#include "cards.h"
#include "contexts.h"
#include "driver.h"
#include "kernel.h"
#include "ledger.h"
#include "memory.h"
#include "pools.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 32                 /* of graphs inside graphs */
#define STREAM_NS 10000000000ull /* a launch at the cap waits this long for its stream's work */
#define SETTLE_NS 1000000000ull  /* and this long for other launches, whose memory counts twice until they are made */
#define UNKNOWN (1ull << 62)     /* the place of allocations whose address the driver does not report */

struct span { uint64_t from, to; uint32_t card; };

struct weight {
    uint64_t need[CARDS];
    bool any, keeps; /* has memory of its own; leaves some of it after a launch */
};

struct nodes {
    struct span *spans;
    uint32_t count, room, allocated, freed;
};

static struct lock graphs;
static _Atomic bool any;          /* a graph of this process has memory of its own */
static uint64_t launching[CARDS]; /* counted for launches in progress */
static uint64_t existing[CARDS];  /* need of all graphs that can be launched */
static uint64_t orphaned[CARDS];  /* need of deleted graphs, which may have left memory */

void graphs_forget(void)
{
    graphs = (struct lock){0};
    if (!atomic_exchange(&any, false)) return;
    memset(launching, 0, sizeof launching);
    memset(existing, 0, sizeof existing);
    memset(orphaned, 0, sizeof orphaned);
}

static bool note_span(struct nodes *nodes, const CUmemAllocNode *params)
{
    struct card *card = card_at(&params->poolProps.location);
    nodes->allocated++;
    if (!card) return true;
    if (nodes->count == nodes->room) {
        uint32_t room = nodes->room ? nodes->room * 2 : 64;
        struct span *grown = realloc(nodes->spans, room * sizeof *grown);
        if (!grown) return false;
        nodes->spans = grown;
        nodes->room = room;
    }
    uint64_t bytes = whole_granules(params->bytesize), from = params->dptr / GRANULE * GRANULE;
    if (!from) from = UNKNOWN + nodes->count * (UNKNOWN >> 20);
    uint64_t to = params->dptr ? whole_granules(params->dptr + params->bytesize) : from + bytes;
    nodes->spans[nodes->count++] = (struct span){from, to, card->index};
    return true;
}

/* Every allocation of a graph and of those inside it; false: out of host memory. */
static bool read_nodes(CUgraph graph, struct nodes *nodes, int depth)
{
    size_t count = 0;
    bool good = true;
    if (ASK((CUgraph, CUgraphNode *, size_t *), cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS || !count)
        return true;
    CUgraphNode *list = calloc(count, sizeof *list);
    if (!list) return false;
    if (ASK((CUgraph, CUgraphNode *, size_t *), cuGraphGetNodes, graph, list, &count) != CUDA_SUCCESS) count = 0;
    for (size_t i = 0; i < count && good; i++) {
        CUmemAllocNode params;
        CUgraph child = NULL;
        int type = -1;
        ASK((CUgraphNode, int *), cuGraphNodeGetType, list[i], &type);
        nodes->freed += type == CU_NODE_MEM_FREE;
        if (type == CU_NODE_MEM_ALLOC &&
            ASK((CUgraphNode, CUmemAllocNode *), cuGraphMemAllocNodeGetParams, list[i], &params) == CUDA_SUCCESS)
            good = note_span(nodes, &params);
        if (type == CU_NODE_GRAPH && depth < DEPTH &&
            ASK((CUgraphNode, CUgraph *), cuGraphChildGraphNodeGetGraph, list[i], &child) == CUDA_SUCCESS)
            good = read_nodes(child, nodes, depth + 1);
    }
    free(list);
    return good;
}

static int by_place(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->card != y->card) return x->card < y->card ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static bool weigh(CUgraph graph, struct weight *weight)
{
    struct nodes nodes = {0};
    memset(weight, 0, sizeof *weight);
    bool good = read_nodes(graph, &nodes, 0);
    if (good && nodes.count) {
        uint64_t end = 0;
        qsort(nodes.spans, nodes.count, sizeof *nodes.spans, by_place);
        for (uint32_t i = 0; i < nodes.count; i++) {
            struct span *span = &nodes.spans[i];
            if (i == 0 || span->card != span[-1].card) end = 0;
            uint64_t from = span->from > end ? span->from : end;
            if (span->to > from) weight->need[span->card] += span->to - from;
            if (span->to > end) end = span->to;
        }
        weight->any = true;
        weight->keeps = nodes.freed < nodes.allocated;
        atomic_store(&any, true);
    }
    free(nodes.spans);
    return good;
}

/* Updates the count to the driver's figure of graphs' memory. The lock is held. */
static uint64_t refresh(struct card *card)
{
    uint64_t bytes = 0;
    if (card->device < 0) return 0;
    int mode = atomic_load(&captures) ? driver_step_aside() : -1;
    CUresult result = ASK((CUdevice, int, void *), cuDeviceGetGraphMemAttribute, card->device,
                          CU_GRAPH_MEM_RESERVED_CURRENT, &bytes);
    driver_step_back(mode);
    if (result != CUDA_SUCCESS) return 0;
    memory_bring(card, KIND_GRAPHS, card->index, bytes, true);
    if (bytes == 0) orphaned[card->index] = 0;
    return bytes;
}

void graphs_refresh(struct card *card, bool trim)
{
    if (!atomic_load(&any)) return;
    lock_take(&graphs, LOCK_GRAPHS);
    if (trim && card->device >= 0) {
        int mode = driver_step_aside();
        ASK((CUdevice), cuDeviceGraphMemTrim, card->device);
        driver_step_back(mode);
    }
    refresh(card);
    lock_give(&graphs, LOCK_GRAPHS);
}

/*
 * Counts the possible growth by a launch that needs `need`: never more than that, nor more than all graphs need
 * together, since none runs twice at a time. `fresh` is the graph's need that is not among the existing ones yet.
 */
static bool hold(struct card *card, uint64_t need, uint64_t fresh, uint64_t *held)
{
    struct container *all = container_get();
    uint32_t i = card->index;
    lock_take(&graphs, LOCK_GRAPHS);
    uint64_t now = refresh(card) + launching[i], most = existing[i] + orphaned[i] + fresh;
    if (most < now) most = now;
    if (most > now + need) most = now + need;
    uint64_t more = most - now;
    bool good = more == 0 || memory_take(all->account, all->place, i, more, &card->now->memory, &all->self, clock_now());
    if (good) launching[i] += *held = more;
    lock_give(&graphs, LOCK_GRAPHS);
    return good;
}

static void settle_card(struct card *card, uint64_t held)
{
    lock_take(&graphs, LOCK_GRAPHS);
    refresh(card);
    launching[card->index] -= held;
    memory_return(card, held);
    lock_give(&graphs, LOCK_GRAPHS);
}

static bool is_launching(const struct card *card)
{
    lock_take(&graphs, LOCK_GRAPHS);
    bool others = launching[card->index] > 0;
    lock_give(&graphs, LOCK_GRAPHS);
    return others;
}

/* Waits for work that must end before work on this stream begins. */
static void await(CUstream stream)
{
    struct timespec pause = {0, 200000};
    int mode = driver_step_aside();
    for (uint64_t begun = clock_now(); clock_now() - begun < STREAM_NS; kernel_sleep(&pause)) {
        /* The legacy stream must not be queried while a stream that it waits for is captured, in any mode. */
        if (!stream && atomic_load(&captures)) break;
        if (ASK((CUstream), cuStreamQuery, stream) != CUDA_ERROR_NOT_READY) break;
    }
    driver_step_back(mode);
}

/* The same, after others have released unused memory. */
static bool obtain(struct card *card, uint64_t need, uint64_t fresh, CUstream stream, uint64_t *held)
{
    struct timespec pause = {0, 200000};
    if (hold(card, need, fresh, held)) return true;
    bool possible = !card_cap(card) || need <= card_cap(card);
    for (int attempt = 0; possible && attempt < 2; attempt++) {
        if (attempt) await(stream);
        pools_refresh(card, true);
        if (hold(card, need, fresh, held)) return true;
    }
    bool others = possible;
    for (uint64_t begun = clock_now(); others && clock_now() - begun < SETTLE_NS; kernel_sleep(&pause)) {
        others = is_launching(card); /* one more try after the last of them */
        if (hold(card, need, fresh, held)) return true;
    }
    memory_count_refusal(card);
    return false;
}

void graphs_settle(const struct graphs_hold *kept)
{
    struct container *all = kept->any ? container_get() : NULL;
    for (uint32_t i = 0; all && i < all->limits.count; i++)
        if (kept->cards >> i & 1) settle_card(&all->cards[i], kept->held[i]);
}

static bool obtain_all(const struct weight *weight, bool fresh, CUstream stream, struct graphs_hold *kept)
{
    struct container *all = weight->any ? container_get() : NULL;
    *kept = (struct graphs_hold){.any = weight->any};
    for (uint32_t i = 0; all && i < all->limits.count; i++) {
        uint64_t need = weight->need[i];
        if (need == 0) continue;
        if (!obtain(&all->cards[i], need, fresh ? need : 0, stream, &kept->held[i])) {
            graphs_settle(kept);
            return false;
        }
        kept->cards |= 1u << i;
    }
    return true;
}

static uint64_t key_of(CUgraphExec exec, uint32_t card) { return (uint64_t)(uintptr_t)exec ^ (uint64_t)card << 56; }

bool graphs_admit(CUgraphExec exec, CUstream stream, struct graphs_hold *kept)
{
    struct container *all = atomic_load(&any) ? container_get() : NULL;
    struct weight weight = {0};
    struct entry entry;
    for (uint32_t i = 0; all && i < all->limits.count; i++) {
        if (!ledger_find(KIND_EXEC, key_of(exec, i), &entry)) continue;
        weight.need[i] = entry.bytes;
        weight.any = true;
    }
    return obtain_all(&weight, false, stream, kept);
}

/* Records an instance's need; it adds to a known one. */
static bool keep(CUgraphExec exec, const struct weight *weight)
{
    struct container *all = weight->any ? container_get() : NULL;
    bool good = true;
    lock_take(&graphs, LOCK_GRAPHS);
    for (uint32_t i = 0; all && i < all->limits.count && good; i++) {
        struct entry entry = {.key = key_of(exec, i), .context = contexts_now(), .card = i, .kind = KIND_EXEC};
        if (weight->need[i] == 0) continue;
        ledger_find(KIND_EXEC, entry.key, &entry);
        entry.other |= weight->keeps;
        uint64_t more = weight->need[i] > entry.bytes ? weight->need[i] - entry.bytes : 0;
        entry.bytes += more;
        good = ledger_put(entry);
        if (good) existing[i] += more;
    }
    lock_give(&graphs, LOCK_GRAPHS);
    return good;
}

/* An instance is gone; memory of its launches may remain. */
static void drop(const struct entry *entry)
{
    lock_take(&graphs, LOCK_GRAPHS);
    existing[entry->card] -= entry->bytes;
    if (entry->other) orphaned[entry->card] += entry->bytes;
    lock_give(&graphs, LOCK_GRAPHS);
}

void graphs_ended(const struct entry *entry) { drop(entry); }

static void forget_cost(CUgraphExec exec)
{
    struct container *all = container_get();
    for (uint32_t i = 0; all && i < all->limits.count; i++)
        gate_forget_graph(&all->cards[i].gate, (uint64_t)(uintptr_t)exec);
}

static CUresult destroy(CUgraphExec exec)
{
    forget_cost(exec);
    struct container *all = atomic_load(&any) ? container_get() : NULL;
    struct entry entries[CARDS];
    uint32_t known = 0;
    /* Removed before the driver may give the address to another thread. */
    for (uint32_t i = 0; all && i < all->limits.count; i++)
        known |= (uint32_t)ledger_take(KIND_EXEC, key_of(exec, i), &entries[i]) << i;
    CUresult result = CALL(cuGraphExecDestroy, exec);
    for (uint32_t i = 0; known >> i; i++) {
        if (!(known >> i & 1)) continue;
        if (result == CUDA_SUCCESS) drop(&entries[i]);
        else ledger_put(entries[i]);
    }
    return result;
}

static bool could_fit(const struct weight *weight)
{
    struct container *all = weight->any ? container_get() : NULL;
    for (uint32_t i = 0; all && i < all->limits.count; i++) {
        uint64_t most = card_cap(&all->cards[i]);
        if (most == 0 || weight->need[i] <= most) continue;
        memory_count_refusal(&all->cards[i]);
        return false;
    }
    return true;
}

/* Did the driver already take more for it than there is? Then it is not kept. */
static bool is_within(const struct weight *weight)
{
    struct container *all = weight->any ? container_get() : NULL;
    for (uint32_t i = 0; all && i < all->limits.count; i++) {
        if (weight->need[i] == 0 || card_cap(&all->cards[i]) == 0) continue;
        for (int attempt = 0; attempt < 2; attempt++) {
            pools_refresh(&all->cards[i], attempt > 0);
            if (memory_used(all->account, i, &all->self, clock_now()) <= card_cap(&all->cards[i])) break;
            if (attempt == 0) continue;
            memory_count_refusal(&all->cards[i]);
            return false;
        }
    }
    return true;
}

#define INSTANTIATES(name, upload, stream, args, ...)                                                    \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct graphs_hold kept = {0};                                                                   \
        struct weight weight;                                                                            \
        if (!exec || !graph || !container_get()) return CALL(name, __VA_ARGS__);                         \
        if (!weigh(graph, &weight) || !could_fit(&weight)) return CUDA_ERROR_OUT_OF_MEMORY;              \
        if ((upload) && !obtain_all(&weight, true, stream, &kept)) return CUDA_ERROR_OUT_OF_MEMORY;      \
        CUresult result = CALL(name, __VA_ARGS__);                                                       \
        bool good = result != CUDA_SUCCESS || keep(*exec, &weight);                                      \
        graphs_settle(&kept);                                                                            \
        if (result != CUDA_SUCCESS || (good && is_within(&weight))) return result;                       \
        destroy(*exec);                                                                                  \
        *exec = NULL;                                                                                    \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                 \
    }
#define OF_OLD (CUgraphExec *exec, CUgraph graph, CUgraphNode *fault, char *log, size_t room)
#define WITH_PARAMS (CUgraphExec *exec, CUgraph graph, CUinstantiateParams *params)
#define PARAMS_UPLOAD params && params->flags & CU_INSTANTIATE_UPLOAD

INSTANTIATES(cuGraphInstantiate, false, NULL, OF_OLD, exec, graph, fault, log, room)
INSTANTIATES(cuGraphInstantiate_v2, false, NULL, OF_OLD, exec, graph, fault, log, room)
INSTANTIATES(cuGraphInstantiateWithFlags, flags & CU_INSTANTIATE_UPLOAD, NULL,
             (CUgraphExec *exec, CUgraph graph, unsigned long long flags), exec, graph, flags)
INSTANTIATES(cuGraphInstantiateWithParams, PARAMS_UPLOAD, params->hUploadStream, WITH_PARAMS, exec, graph, params)
INSTANTIATES(cuGraphInstantiateWithParams_ptsz, PARAMS_UPLOAD,
             params->hUploadStream ? params->hUploadStream : CU_STREAM_PER_THREAD, WITH_PARAMS, exec, graph, params)

#define UPLOADS(name, own)                                                                               \
    EXPORT CUresult name(CUgraphExec exec, CUstream stream)                                              \
    {                                                                                                    \
        struct graphs_hold kept;                                                                         \
        if (!graphs_admit(exec, stream ? stream : (own), &kept)) return CUDA_ERROR_OUT_OF_MEMORY;        \
        CUresult result = CALL(name, exec, stream);                                                      \
        graphs_settle(&kept);                                                                            \
        return result;                                                                                   \
    }

UPLOADS(cuGraphUpload, NULL)
UPLOADS(cuGraphUpload_ptsz, CU_STREAM_PER_THREAD)

static CUresult updated(CUgraphExec exec, CUgraph graph, CUresult result)
{
    struct weight weight;
    forget_cost(exec);
    /* A driver that allows updates of graphs with memory could have changed their need. */
    if (result == CUDA_SUCCESS && atomic_load(&any) && weigh(graph, &weight)) keep(exec, &weight);
    return result;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *fault, int *why)
{
    return updated(exec, graph, CALL(cuGraphExecUpdate, exec, graph, fault, why));
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *info)
{
    return updated(exec, graph, CALL(cuGraphExecUpdate_v2, exec, graph, info));
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) { return destroy(exec); }

/* An impossible allocation is refused when it is added; the others are checked when the graph is instantiated. */
bool graphs_may_add(struct card *card, uint64_t bytes)
{
    if (card_cap(card) == 0 || whole_granules(bytes) <= card_cap(card)) return true;
    memory_count_refusal(card);
    return false;
}

static bool may_add(const CUmemAllocNode *params)
{
    struct card *card = params ? card_at(&params->poolProps.location) : NULL;
    return !card || graphs_may_add(card, params->bytesize);
}

#define ADDS(name, node_params, args, ...)                                                               \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        return may_add(node_params) ? CALL(name, __VA_ARGS__) : CUDA_ERROR_OUT_OF_MEMORY;                \
    }
#define GENERIC params && params->type == CU_NODE_MEM_ALLOC ? &params->alloc : NULL

ADDS(cuGraphAddMemAllocNode, params,
     (CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count, CUmemAllocNode *params), node, graph,
     needs, count, params)
ADDS(cuGraphAddNode, GENERIC,
     (CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count, CUnodeParams *params), node, graph,
     needs, count, params)
ADDS(cuGraphAddNode_v2, GENERIC,
     (CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, const void *edges, size_t count, CUnodeParams *params),
     node, graph, needs, edges, count, params)
ADDS(cuGraphAddNode_v3, GENERIC,
     (CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, const void *edges, size_t count, CUnodeParams *params),
     node, graph, needs, edges, count, params)
