/* Launches of kernels and graphs, the capture of graphs, and waiting for the device. */
#include "container.h"
#include "driver.h"
#include "memory.h"
#include <stdatomic.h>

static bool is_captured(CUstream stream)
{
    int status = 0;
    if (atomic_load_explicit(&captures, memory_order_acquire) == 0) return false;
    CUresult result = ASK((CUstream, int *), cuStreamIsCapturing, stream, &status);
    return result != CUDA_SUCCESS || status != 0;
}

/* The gate of the thread's context; NULL when launches on it are free. */
static struct gate *current_gate(CUcontext *context)
{
    static __thread CUcontext known __attribute__((tls_model("initial-exec")));
    static __thread struct card *card __attribute__((tls_model("initial-exec")));
    if (ASK((CUcontext *), cuCtxGetCurrent, context) != CUDA_SUCCESS || !*context) return NULL;
    if (known != *context || !card) {
        card = card_current();
        known = *context;
    }
    return card && card->gate.open ? &card->gate : NULL;
}

/* Before a launch on `stream`; the stream that events are recorded on is the one the driver will use. */
static void enter(struct ticket *ticket, CUstream stream, bool per_thread, uint64_t graph)
{
    CUcontext context = NULL;
    struct gate *gate = current_gate(&context);
    ticket->gate = NULL;
    ticket->batch = NULL;
    if (per_thread && !stream) stream = CU_STREAM_PER_THREAD;
    if (gate && !is_captured(stream)) gate_enter(gate, ticket, context, stream, graph);
}

static CUresult leave(struct ticket *ticket, CUresult result)
{
    if (ticket->gate) gate_leave(ticket, result == CUDA_SUCCESS);
    return result;
}

/* Defines NAME as the driver's own call between enter and leave. */
#define GATED(name, args, stream, per_thread, graph, ...)                                                \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct ticket ticket;                                                                            \
        enter(&ticket, stream, per_thread, graph);                                                       \
        return leave(&ticket, CALL(name, __VA_ARGS__));                                                  \
    }

#define SHAPE function, gx, gy, gz, bx, by, bz, shared, stream, params
#define CONFIG (const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
#define CONFIG_STREAM (config ? config->hStream : NULL)

GATED(cuLaunch, (CUfunction function), NULL, false, 0, function)
GATED(cuLaunchGrid, (CUfunction function, int width, int height), NULL, false, 0, function, width, height)
GATED(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream), stream, false, 0, function,
      width, height, stream)
GATED(cuLaunchKernel, (LAUNCH_ARGS, void **extra), stream, false, 0, SHAPE, extra)
GATED(cuLaunchKernel_ptsz, (LAUNCH_ARGS, void **extra), stream, true, 0, SHAPE, extra)
GATED(cuLaunchKernelEx, CONFIG, CONFIG_STREAM, false, 0, config, function, params, extra)
GATED(cuLaunchKernelEx_ptsz, CONFIG, CONFIG_STREAM, true, 0, config, function, params, extra)
GATED(cuLaunchCooperativeKernel, (LAUNCH_ARGS), stream, false, 0, SHAPE)
GATED(cuLaunchCooperativeKernel_ptsz, (LAUNCH_ARGS), stream, true, 0, SHAPE)

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(void *list, unsigned count, unsigned flags)
{
    /* One call on several devices cannot be measured by one pair of events; it was withdrawn in CUDA 13. */
    struct container *all = container_get();
    for (uint32_t i = 0; all && i < all->limits.count; i++)
        if (all->cards[i].gate.open) return CUDA_ERROR_NOT_SUPPORTED;
    return CALL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
}

static CUresult launch_graph(CUgraphExec graph, CUstream stream, bool per_thread)
{
    struct ticket ticket;
    struct graph_hold kept = {0};
    CUstream used = per_thread && !stream ? CU_STREAM_PER_THREAD : stream;
    /* Launched into a capture it becomes part of another graph, and is weighed with that. */
    if (!is_captured(used) && !graph_admit(graph, used, &kept)) return CUDA_ERROR_OUT_OF_MEMORY;
    enter(&ticket, stream, per_thread, (uint64_t)(uintptr_t)graph);
    CUresult result = per_thread ? CALL(cuGraphLaunch_ptsz, graph, stream) : CALL(cuGraphLaunch, graph, stream);
    graph_settle(&kept);
    return leave(&ticket, result);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream, false); }

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream, true); }

static CUresult began(CUresult result)
{
    if (result != CUDA_SUCCESS) atomic_fetch_sub(&captures, 1);
    return result;
}

/* Counted before the driver begins, so that the watch is aside when it does. */
#define BEGIN(name, args, ...)                                                                           \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        atomic_fetch_add(&captures, 1);                                                                  \
        return began(CALL(name, __VA_ARGS__));                                                           \
    }
#define INTO_GRAPH                                                                                       \
    (CUstream stream, CUgraph graph, const void *needs, const void *edges, size_t count, int mode)

BEGIN(cuStreamBeginCapture, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, int mode), stream, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), stream, mode)
BEGIN(cuStreamBeginCaptureToGraph, INTO_GRAPH, stream, graph, needs, edges, count, mode)
BEGIN(cuStreamBeginCaptureToGraph_ptsz, INTO_GRAPH, stream, graph, needs, edges, count, mode)

static CUresult ended(CUstream stream, CUresult result)
{
    uint32_t seen = atomic_load(&captures);
    int status = 0;
    /* An end that was refused because nothing was captured ends nothing. */
    if (result != CUDA_SUCCESS && ASK((CUstream, int *), cuStreamIsCapturing, stream, &status) == CUDA_SUCCESS &&
        status == 1)
        return result;
    while (seen > 0 && !atomic_compare_exchange_weak(&captures, &seen, seen - 1)) {
    }
    return result;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return ended(stream, CALL(cuStreamEndCapture, stream, graph));
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return ended(stream, CALL(cuStreamEndCapture_ptsz, stream, graph));
}

static void settle(void)
{
    CUcontext context = NULL;
    struct gate *gate = current_gate(&context);
    if (gate) gate_settle(gate);
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    settle();
    return CALL(cuStreamSynchronize, stream);
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    settle();
    return CALL(cuStreamSynchronize_ptsz, stream);
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    settle();
    return CALL(cuEventSynchronize, event);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    settle();
    return CALL(cuCtxSynchronize);
}

/* Before something that later launches on the stream wait for, but that is no work of the card. */
static void part(CUstream stream)
{
    CUcontext context = NULL;
    struct gate *gate = current_gate(&context);
    if (gate && !is_captured(stream)) gate_part(gate, context, stream);
}

/* Per-thread streams need none: a batch of theirs is one launch. */
#define PARTED(name, args, ...)                                                                          \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        part(stream);                                                                                    \
        return CALL(name, __VA_ARGS__);                                                                  \
    }                                                                                                    \
    EXPORT CUresult name##_ptsz args                                                                     \
    {                                                                                                    \
        if (stream) part(stream);                                                                        \
        return CALL(name##_ptsz, __VA_ARGS__);                                                           \
    }
#define VALUE(bits) (CUstream stream, CUdeviceptr at, uint##bits##_t value, unsigned flags)

PARTED(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), stream, event, flags)
PARTED(cuStreamWaitValue32, VALUE(32), stream, at, value, flags)
PARTED(cuStreamWaitValue32_v2, VALUE(32), stream, at, value, flags)
PARTED(cuStreamWaitValue64, VALUE(64), stream, at, value, flags)
PARTED(cuStreamWaitValue64_v2, VALUE(64), stream, at, value, flags)
PARTED(cuStreamAddCallback, (CUstream stream, void *callback, void *data, unsigned flags), stream, callback, data, flags)
PARTED(cuLaunchHostFunc, (CUstream stream, void *function, void *data), stream, function, data)
PARTED(cuLaunchHostFunc_v2, (CUstream stream, void *function, void *data, unsigned mode), stream, function, data, mode)

static void forget_stream(CUstream stream)
{
    CUcontext context = NULL;
    struct gate *gate = current_gate(&context);
    if (gate) gate_forget(gate, context, stream, false);
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    forget_stream(stream);
    return CALL(cuStreamDestroy, stream);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    forget_stream(stream);
    return CALL(cuStreamDestroy_v2, stream);
}
