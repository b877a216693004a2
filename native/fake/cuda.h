/* Inside the stand-in for libcuda.so.1: shared by its parts. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "../src/hooks.h"
#include "link.h"
#include <pthread.h>

/* A lock that is free in a child, whichever thread held it at the fork: a driver is not what a child may hang in. */
#define FAKE_LOCK(name)                                                                                  \
    static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                                             \
    static void name##_renew(void) { pthread_mutex_init(&name, NULL); }                                  \
    __attribute__((constructor)) static void name##_watch(void) { pthread_atfork(NULL, NULL, name##_renew); }

#define FAKE_GRANULE (2ull << 20)
#define FAKE_CONTEXT_BYTES (300ull << 20) /* what a context costs */
#define FAKE_MODULE_BYTES (8ull << 20)    /* what a module costs */
#define FAKE_POOL_STEP (32ull << 20)      /* a pool grows by this */

#define FAKE_PROCESSORS 16                /* of a card, each with so many threads at a time: */
#define FAKE_THREADS 2048
#define FAKE_DEPTH_BYTES (64ull << 20)    /* what a level of CU_LIMIT_SYNC_DEPTH takes */
#define FAKE_LIMITS 11

struct cu_context {
    uint64_t id;
    CUdevice device;
    uint32_t retained, users, active;
    uint64_t taken; /* by its limits, which are: */
    size_t limits[FAKE_LIMITS];
};
struct cu_pool { CUdevice device; uint64_t reserved, used; int ended, host; };
/* graph: what it is captured into; first: of a stream that joined a capture, the one that this began on. */
struct cu_stream { uint64_t id; unsigned flags; CUcontext context; CUgraph graph; CUstream first; int mode, broken, graphics, over;
                   pthread_t thread; };
struct cu_graph_node { int type, ended; CUmemAllocNode params; CUgraph child; CUgraphNode next; };
struct cu_graph { uint64_t ns, kernels; CUgraphNode first; };

extern __thread CUcontext fake_current;
extern __thread int fake_capture_mode;
/* The primary context of a device, retained or not. */
CUcontext fake_primary(CUdevice device);
/* What else a runtime asks about the card. */
int fake_attribute(int attribute);
/* Notes what cuGetProcAddress was asked for, where FAKE_ASKED names a file. */
void fake_asked(const char *symbol, int version, uint64_t flags);
/* Takes memory of the current (or given) device; false: none is left. */
CUresult fake_take(CUdevice device, uint64_t bytes);
void fake_give(CUdevice device, uint64_t bytes);
uint64_t fake_address(uint64_t bytes);
/* A context ended, and what lay in its blocks. */
void fake_forget_blocks(CUcontext context);
/* Releases what is noted under a key; takes it from its pool. */
CUresult fake_release(uint64_t key);
/* One reference to a handle more or less. */
CUresult fake_refer(uint64_t handle, int64_t by);
/* Does plain memory lie at an address? */
bool fake_is_plain(CUdeviceptr pointer);
/* Was it opened by a handle that gives the same address each time? */
bool fake_is_opened(CUdeviceptr pointer);
/* Returns what streams have freed meanwhile. */
void fake_free_reached(void);
void fake_unpool(CUpool pool, uint64_t bytes);
/* On which device memory lies: of a pool, or as noted. */
CUdevice fake_device_of(uint64_t other);
uint64_t fake_serial(void);
/* Names of objects: the lowest that is free, and free some time before the call that ended it returns. */
uint64_t fake_name(void);
void fake_unname(uint64_t name);
int fake_ask(struct request request, struct answer *answer);
/* A call that is potentially unsafe: refused, and the end of captures, unless this thread stepped aside of them. */
CUresult fake_unsafe(void);
/* Use of a stream: none of the legacy one may be made while a blocking stream of the context is captured. */
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
/* Of events that were last recorded into a capture: its graph. To ask for one, or for a captured stream, spoils it. */
extern CUgraph fake_captured_events[FAKE_EVENTS];
CUresult fake_ask_captured(CUgraph graph);
/* A node of an allocation, or of its end; what a graph allocated ends with this as well (FAKE_OF_GRAPH). */
CUresult fake_graph_allocate(CUgraph graph, CUdevice device, uint64_t bytes, CUdeviceptr *pointer);
CUresult fake_graph_free(CUgraph graph, CUdeviceptr pointer);
void fake_graph_freed(uint64_t owner);
#define FAKE_OF_GRAPH (1ull << 63)
/* Remembers and recalls what lies at an address or behind a handle. */
void fake_note(uint64_t key, uint64_t bytes, uint64_t other);
int fake_recall(uint64_t key, uint64_t *bytes, uint64_t *other, int forget);

#endif
