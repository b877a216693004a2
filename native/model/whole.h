/* A modelled process with the whole library: the calls of programs (traces.c), and the state that tests read. */
#ifndef PARTAGE_WHOLE_H
#define PARTAGE_WHOLE_H

#include "../fake/link.h"
#include "../src/hooks.h"
#include "model.h"

#define MODEL_WHOLE 16
#define MODEL_CONTEXT (300ull << 20) /* memory of the stand-in's context */

/* Functions of the driver that programs call and the library does not replace. */
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuDeviceGetDefaultMemPool(CUpool *pool, CUdevice device);
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t align, CUdeviceptr wish, unsigned long long flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);

#define WHOLE_CALLS(CALL)                                                                                \
    CALL(cuInit) CALL(cuDevicePrimaryCtxRetain) CALL(cuDevicePrimaryCtxRelease_v2) CALL(cuCtxSetCurrent)  \
    CALL(cuCtxGetDevice) CALL(cuMemGetInfo_v2) CALL(cuMemAlloc_v2) CALL(cuMemFree_v2)                     \
    CALL(cuMemAllocAsync) CALL(cuMemFreeAsync) CALL(cuMemPoolCreate) CALL(cuMemPoolDestroy)               \
    CALL(cuMemAllocFromPoolAsync) CALL(cuMemPoolTrimTo) CALL(cuDeviceGetDefaultMemPool)                   \
    CALL(cuMemCreate) CALL(cuMemRelease) CALL(cuMemMap) CALL(cuMemUnmap) CALL(cuMemAddressReserve)         \
    CALL(cuModuleLoadData) CALL(cuModuleUnload) CALL(cuStreamCreate) CALL(cuStreamBeginCapture_v2)         \
    CALL(cuStreamEndCapture) CALL(cuGraphInstantiateWithFlags) CALL(cuGraphLaunch)                        \
    CALL(cuGraphExecUpdate_v2) CALL(cuGraphExecDestroy) CALL(cuGraphDestroy) CALL(cuEventCreate)          \
    CALL(cuEventRecord) CALL(cuEventQuery) CALL(cuEventSynchronize) CALL(cuStreamWaitEvent)               \
    CALL(cuStreamSynchronize) CALL(cuCtxSynchronize) CALL(cuLaunchKernel) CALL(cuLaunchHostFunc)           \
    CALL(cuMemcpyDtoDAsync_v2) CALL(cuThreadExchangeStreamCaptureMode)

#define WHOLE_MEMBER(name) __typeof__(&name) name;
struct calls { WHOLE_CALLS(WHOLE_MEMBER) };

/* A kernel's second parameter: its properties beside its time. */
struct shape {
    uint32_t part;       /* of the card's processors, thousandths */
    uint32_t flag, sets; /* it spins until `flag` is set, and sets `sets` at its end; 0: nothing */
};

struct whole {
    struct process process; /* its first member */
    void *driver, *library;
    struct calls calls, real; /* calls by the program, and the driver's own functions */
    struct {
        bool (*watch)(void);
        uint64_t (*counted)(uint32_t card);
        uint64_t (*served)(uint32_t card);
        void (*end)(void);
    } inside;
    struct { void *at; size_t size; } own[2];
    void *last; /* the thread whose local variables are in place */
    struct event *events[FAKE_EVENTS];
    uint64_t streams[MODEL_CARDS][MODEL_STREAMS];
    uint64_t taken[MODEL_CARDS], lazy[MODEL_CARDS]; /* memory taken by calls, and by the driver itself */
    struct shape next;
    uint32_t on; /* the card of the program's context */
    CUfunction loaded[256];
    uint32_t loaded_count;
};

/* Loads copies for so many processes. Each is used once, so one run of many is made in a fork. */
void whole_prepare(const char *program, uint32_t count);
struct whole *whole_at(uint32_t index);
void whole_open(struct whole *whole, uint32_t cards, uint32_t seat, struct tenant_terms terms);
/* A copy from the host. */
void whole_copy(struct whole *whole, CUstream stream, uint64_t ns);
/* A thread of the program. */
void whole_thread(struct whole *whole, void (*body)(void *), void *argument);

#endif
