/* Inside the stand-in for libcuda.so.1: shared by its parts. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "../src/hooks.h"
#include "link.h"
#include <pthread.h>

/* A lock that is free in a child, whichever thread held it at the fork, so that no child hangs in this driver. */
#define FAKE_LOCK(name)                                                                                  \
    static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                                             \
    static void name##_renew(void) { pthread_mutex_init(&name, NULL); }                                  \
    __attribute__((constructor)) static void name##_watch(void) { pthread_atfork(NULL, NULL, name##_renew); }

#define FAKE_GRANULE (2ull << 20)
#define FAKE_CONTEXT_BYTES (300ull << 20) /* memory of a context */
#define FAKE_MODULE_BYTES (8ull << 20)    /* memory of a module */
#define FAKE_POOL_STEP (32ull << 20)      /* a pool grows by this */

#define FAKE_PROCESSORS 16                /* of a card, each with so many threads at a time: */
#define FAKE_THREADS 2048
#define FAKE_DEPTH_BYTES (64ull << 20)    /* memory of a level of CU_LIMIT_SYNC_DEPTH */
#define FAKE_LIMITS 11

struct cu_context {
    uint64_t id;
    CUdevice device;
    uint32_t retained, users, active;
    uint64_t taken; /* by the limits below */
    size_t limits[FAKE_LIMITS];
};
struct cu_pool { CUdevice device; uint64_t reserved, used; int ended, host; };
/* graph: the target of its capture; first: of a stream that joined a capture, the stream where the capture began. */
struct cu_stream { uint64_t id; unsigned flags; CUcontext context; CUgraph graph; CUstream first; int mode, broken, graphics, over;
                   pthread_t thread; };
struct cu_graph_node { int type, ended; CUmemAllocNode params; CUgraph child; CUgraphNode next; };
struct cu_graph { uint64_t ns, kernels; CUgraphNode first; };

extern __thread CUcontext fake_current;
extern __thread int fake_capture_mode;
/* The primary context of a device, retained or not. */
CUcontext fake_primary(CUdevice device);
/* Other facts of the card for a runtime. */
int fake_attribute(int attribute);
/* Writes the names asked of cuGetProcAddress to the file that FAKE_ASKED names. */
void fake_asked(const char *symbol, int version, uint64_t flags);
/* Takes memory of the current (or given) device; false: none is left. */
CUresult fake_take(CUdevice device, uint64_t bytes);
void fake_give(CUdevice device, uint64_t bytes);
uint64_t fake_address(uint64_t bytes);
/* A context ended with the memory in its blocks. */
void fake_forget_blocks(CUcontext context);
/* Releases the memory noted under a key, also from its pool. */
CUresult fake_release(uint64_t key);
/* Adds or removes one reference to a handle. */
CUresult fake_refer(uint64_t handle, int64_t by);
/* Does plain memory lie at an address? */
bool fake_is_plain(CUdeviceptr pointer);
/* Was it opened by a handle whose address is the same each time? */
bool fake_is_opened(CUdeviceptr pointer);
/* Returns memory that streams have freed meanwhile. */
void fake_free_reached(void);
void fake_unpool(CUpool pool, uint64_t bytes);
/* The device of memory: its pool's, or the noted one. */
CUdevice fake_device_of(uint64_t other);
uint64_t fake_serial(void);
/* Names of objects: the lowest free one. A name is free some time before the call that ended its object returns. */
uint64_t fake_name(void);
void fake_unname(uint64_t name);
int fake_ask(struct request request, struct answer *answer);
/* A potentially unsafe call: it fails and ends captures, unless this thread stepped aside. */
CUresult fake_unsafe(void);
/* Use of a stream: the legacy one must not be used while a blocking stream of the context is captured. */
CUresult fake_use(CUstream stream);
/* Puts work on a stream: into its graph while that is captured. */
CUresult fake_run(uint64_t ns, CUstream stream);
uint64_t fake_stream(CUstream stream);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreen green);
/* The graph that a stream is captured into; NULL: none. */
CUgraph fake_captured(CUstream stream);
bool fake_is_graphics(CUstream stream);
uint64_t fake_event_name(CUevent event);
/* The graph of events that were last recorded into a capture. A query of such an event, or of a captured stream, ends the capture. */
extern CUgraph fake_captured_events[FAKE_EVENTS];
CUresult fake_ask_captured(CUgraph graph);
/* A node of an allocation, or of its end; a graph's memory ends by this as well (FAKE_OF_GRAPH). */
CUresult fake_graph_allocate(CUgraph graph, CUdevice device, uint64_t bytes, CUdeviceptr *pointer);
CUresult fake_graph_free(CUgraph graph, CUdeviceptr pointer);
void fake_graph_freed(uint64_t owner);
#define FAKE_OF_GRAPH (1ull << 63)
/* Facts of the memory at an address or of a handle. */
void fake_note(uint64_t key, uint64_t bytes, uint64_t other);
int fake_recall(uint64_t key, uint64_t *bytes, uint64_t *other, int forget);

#endif
