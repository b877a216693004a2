/* Launches of kernels and graphs, the capture of graphs, and waiting for the device. */
#include "launch.h"
#include "batch.h"
#include "cards.h"
#include "container.h"
#include "contexts.h"
#include "driver.h"
#include "graphs.h"
#include "ledger.h"
#include "memory.h"
#include <stdatomic.h>

enum { TO_GRAPH, TO_GRAPHICS }; /* entry.other of a capture */

static _Atomic uint32_t graphics; /* captures into lists of the graphics driver: their streams do not show it */

/* The key of a capture: its stream, and for the per-thread one the thread. */
static uint64_t name_of(CUstream stream)
{
    uint64_t thread = batch_thread(stream);
    return thread ? thread : (uint64_t)(uintptr_t)stream;
}

static CUstream used_stream(CUstream stream, bool per_thread)
{
    if (!stream && per_thread) return CU_STREAM_PER_THREAD;
    return stream == CU_STREAM_LEGACY ? NULL : stream;
}

static bool is_ungated(CUstream stream)
{
    struct entry entry;
    int status = 0;
    if (atomic_load_explicit(&captures, memory_order_acquire) == 0) return false;
    if (atomic_load(&graphics) && ledger_find(KIND_CAPTURE, name_of(stream), &entry) && entry.other == TO_GRAPHICS)
        return true;
    CUresult result = ASK((CUstream, int *), cuStreamIsCapturing, stream, &status);
    return result != CUDA_SUCCESS || status != 0;
}

/* The gate of the thread's context; NULL if its launches are free. */
static struct gate *current_gate(CUcontext *context)
{
    static __thread CUcontext known __attribute__((tls_model("initial-exec")));
    static __thread struct card *card __attribute__((tls_model("initial-exec")));
    static __thread uint64_t since __attribute__((tls_model("initial-exec")));
    uint64_t made = atomic_load_explicit(&contexts_made, memory_order_acquire);
    if (ASK((CUcontext *), cuCtxGetCurrent, context) != CUDA_SUCCESS || !*context) return NULL;
    /* A context may have the name of a destroyed one of another card. */
    if (known != *context || since != made || !card) {
        card = card_current();
        known = *context;
        since = made;
    }
    return card && card->gate.open ? &card->gate : NULL;
}

static void end_batches(void)
{
    struct container *all = container_get();
    for (uint32_t i = 0; all && i < all->limits.count; i++) gate_settle(&all->cards[i].gate);
}

/*
 * The first stream that waits for the legacy one, as blocking streams do. From now on the end of work on the legacy
 * stream is marked right after it. A later mark would make work launched meanwhile wait for each other.
 */
static void joins(unsigned flags)
{
    if (flags & CU_STREAM_NON_BLOCKING || atomic_exchange(&streams_join, true)) return;
    end_batches();
}

/* Before a launch on `stream`; events are recorded on the stream that the driver will use. */
void launch_enter(struct ticket *ticket, CUstream stream, bool per_thread, uint64_t graph, uint64_t what)
{
    CUcontext context = NULL;
    struct gate *gate = current_gate(&context);
    ticket->gate = NULL;
    ticket->batch = NULL;
    stream = used_stream(stream, per_thread);
    if (stream == CU_STREAM_PER_THREAD && !atomic_load_explicit(&streams_join, memory_order_relaxed)) joins(0);
    if (gate && !is_ungated(stream)) gate_enter(gate, ticket, context, stream, graph, what);
}

bool launch_is_gated(void)
{
    CUcontext context = NULL;
    return current_gate(&context) != NULL;
}

CUresult launch_leave(struct ticket *ticket, CUresult result)
{
    if (ticket->gate) gate_leave(ticket, result == CUDA_SUCCESS);
    return result;
}

#define SHAPE function, gx, gy, gz, bx, by, bz, shared, stream, params
#define CONFIG (const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
#define CONFIG_STREAM (config ? config->hStream : NULL)

GATED(cuLaunch, (CUfunction function), NULL, false, function, function)
GATED(cuLaunchGrid, (CUfunction function, int width, int height), NULL, false, function, function, width, height)
GATED(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream), stream, false, function, function,
      width, height, stream)
GATED(cuLaunchKernel, (LAUNCH_ARGS, void **extra), stream, false, function, SHAPE, extra)
GATED(cuLaunchKernel_ptsz, (LAUNCH_ARGS, void **extra), stream, true, function, SHAPE, extra)
GATED(cuLaunchKernelEx, CONFIG, CONFIG_STREAM, false, function, config, function, params, extra)
GATED(cuLaunchKernelEx_ptsz, CONFIG, CONFIG_STREAM, true, function, config, function, params, extra)
GATED(cuLaunchCooperativeKernel, (LAUNCH_ARGS), stream, false, function, SHAPE)
GATED(cuLaunchCooperativeKernel_ptsz, (LAUNCH_ARGS), stream, true, function, SHAPE)

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
    struct graphs_hold kept = {0};
    CUstream used = used_stream(stream, per_thread);
    /* A launch into a capture becomes part of another graph, and is measured with that. */
    if (!is_ungated(used) && !graphs_admit(graph, used, &kept)) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t name = (uint64_t)(uintptr_t)graph;
    launch_enter(&ticket, stream, per_thread, name, name);
    CUresult result = per_thread ? CALL(cuGraphLaunch_ptsz, graph, stream) : CALL(cuGraphLaunch, graph, stream);
    graphs_settle(&kept);
    return launch_leave(&ticket, result);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream, false); }

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream, true); }

void launch_capture_ended(const struct entry *entry)
{
    if (entry->other == TO_GRAPHICS) atomic_fetch_sub(&graphics, 1);
    atomic_fetch_sub(&captures, 1);
}

/*
 * Counted before the driver begins, after all open batches have ended: an end marked later would become part of the
 * capture, or be refused on the legacy stream and end it. This takes each gate's lock, so a thread that called the
 * driver for the library without stepping aside has finished.
 */
static void begins(void)
{
    atomic_fetch_add(&captures, 1);
    end_batches();
}

static CUresult began(CUstream stream, uint64_t to, CUresult result)
{
    struct entry entry = {.key = name_of(stream), .other = to, .kind = KIND_CAPTURE}, before;
    if (result == CUDA_SUCCESS) {
        /* A known capture of this name does not exist any more. */
        if (ledger_take(KIND_CAPTURE, entry.key, &before)) launch_capture_ended(&before);
        entry.context = contexts_now();
        atomic_fetch_add(&graphics, to == TO_GRAPHICS);
        ledger_put(entry);
    } else {
        atomic_fetch_sub(&captures, 1);
    }
    return result;
}

#define BEGIN(name, per_thread, to, args, ...)                                                           \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        begins();                                                                                        \
        return began(used_stream(stream, per_thread), to, CALL(name, __VA_ARGS__));                      \
    }
#define INTO_GRAPH                                                                                       \
    (CUstream stream, CUgraph graph, const void *needs, const void *edges, size_t count, int mode)
#define AGAIN (CUstream stream, int mode, CUgraph graph, void *callback, void *data)

BEGIN(cuStreamBeginCapture, false, TO_GRAPH, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_ptsz, true, TO_GRAPH, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_v2, false, TO_GRAPH, (CUstream stream, int mode), stream, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, true, TO_GRAPH, (CUstream stream, int mode), stream, mode)
BEGIN(cuStreamBeginCaptureToGraph, false, TO_GRAPH, INTO_GRAPH, stream, graph, needs, edges, count, mode)
BEGIN(cuStreamBeginCaptureToGraph_ptsz, true, TO_GRAPH, INTO_GRAPH, stream, graph, needs, edges, count, mode)
BEGIN(cuStreamBeginRecaptureToGraph, false, TO_GRAPH, AGAIN, stream, mode, graph, callback, data)
BEGIN(cuStreamBeginRecaptureToGraph_ptsz, true, TO_GRAPH, AGAIN, stream, mode, graph, callback, data)
BEGIN(cuStreamBeginCaptureToCig, false, TO_GRAPHICS, (CUstream stream, void *params), stream, params)
BEGIN(cuStreamBeginCaptureToCig_ptsz, true, TO_GRAPHICS, (CUstream stream, void *params), stream, params)

/*
 * Did this end the known capture of a stream? A successful end does. So does a refused one if the driver then
 * reports that the stream is not captured any more: it had been invalidated. An end that is refused because another
 * thread or another stream has to make it ends nothing.
 */
static bool is_over(CUstream stream, uint64_t to, CUresult result)
{
    int status = 1;
    if (result == CUDA_SUCCESS || to == TO_GRAPHICS) return result == CUDA_SUCCESS;
    return ASK((CUstream, int *), cuStreamIsCapturing, stream, &status) == CUDA_SUCCESS && status == 0;
}

/* Its entry is out of the ledger before the stream may be captured again. */
#define END(name, per_thread, to, args, ...)                                                             \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct entry entry;                                                                              \
        CUstream used = used_stream(stream, per_thread);                                                 \
        bool known = ledger_take(KIND_CAPTURE, name_of(used), &entry);                                   \
        CUresult result = CALL(name, __VA_ARGS__);                                                       \
        if (known && entry.other == (to) && is_over(used, to, result)) launch_capture_ended(&entry);            \
        else if (known) ledger_put(entry);                                                               \
        return result;                                                                                   \
    }

END(cuStreamEndCapture, false, TO_GRAPH, (CUstream stream, CUgraph *graph), stream, graph)
END(cuStreamEndCapture_ptsz, true, TO_GRAPH, (CUstream stream, CUgraph *graph), stream, graph)
END(cuStreamEndCaptureToCig, false, TO_GRAPHICS, (CUstream stream), stream)
END(cuStreamEndCaptureToCig_ptsz, true, TO_GRAPHICS, (CUstream stream), stream)

static void await_gate(void)
{
    CUcontext context = NULL;
    struct gate *gate = current_gate(&context);
    if (gate) gate_await(gate);
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    await_gate();
    return CALL(cuStreamSynchronize, stream);
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    await_gate();
    return CALL(cuStreamSynchronize_ptsz, stream);
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    await_gate();
    return CALL(cuEventSynchronize, event);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    await_gate();
    return CALL(cuCtxSynchronize);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    end_batches(); /* it may not be the thread's own */
    return CALL(cuCtxSynchronize_v2, context);
}

/* Before an operation that later launches on a stream wait for, but that is no work of the card. */
static void part(CUstream stream, bool hosted)
{
    CUcontext context = NULL;
    struct gate *gate = current_gate(&context);
    if (gate && !is_ungated(stream)) gate_part(gate, context, stream, hosted);
}

/* Without a context, or with more parts than it accepts (256), the driver refuses the list unread. */
static bool has_wait(const CUbatchOp *list, unsigned parts)
{
    CUcontext context = NULL;
    if (!list || parts > 256 || !current_gate(&context)) return false;
    for (unsigned i = 0; i < parts; i++)
        if (list[i].operation == CU_OP_WAIT_32 || list[i].operation == CU_OP_WAIT_64) return true;
    return false;
}

#define PARTED_IF(waits, hosted, name, args, ...)                                                                \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        if (waits) part(used_stream(stream, false), hosted);                                                     \
        return CALL(name, __VA_ARGS__);                                                                  \
    }                                                                                                    \
    EXPORT CUresult name##_ptsz args                                                                     \
    {                                                                                                    \
        if (waits) part(used_stream(stream, true), hosted);                                                      \
        return CALL(name##_ptsz, __VA_ARGS__);                                                           \
    }
#define PARTED(...) PARTED_IF(true, false, __VA_ARGS__)
#define HOSTED(...) PARTED_IF(true, true, __VA_ARGS__)
#define VALUE(bits) (CUstream stream, CUdeviceptr at, uint##bits##_t value, unsigned flags)
#define OPERATIONS (CUstream stream, unsigned parts, CUbatchOp *list, unsigned flags)

PARTED(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), stream, event, flags)
PARTED(cuStreamWaitValue32, VALUE(32), stream, at, value, flags)
PARTED(cuStreamWaitValue32_v2, VALUE(32), stream, at, value, flags)
PARTED(cuStreamWaitValue64, VALUE(64), stream, at, value, flags)
PARTED(cuStreamWaitValue64_v2, VALUE(64), stream, at, value, flags)
PARTED_IF(has_wait(list, parts), false, cuStreamBatchMemOp, OPERATIONS, stream, parts, list, flags)
PARTED_IF(has_wait(list, parts), false, cuStreamBatchMemOp_v2, OPERATIONS, stream, parts, list, flags)
HOSTED(cuStreamAddCallback, (CUstream stream, void *callback, void *data, unsigned flags), stream, callback, data, flags)
HOSTED(cuLaunchHostFunc, (CUstream stream, void *function, void *data), stream, function, data)
HOSTED(cuLaunchHostFunc_v2, (CUstream stream, void *function, void *data, unsigned mode), stream, function, data, mode)
PARTED(cuWaitExternalSemaphoresAsync, (const void *list, const void *params, unsigned parts, CUstream stream), list, params,
       parts, stream)

/* All later work of a context waits; it may not be the thread's own. */
EXPORT CUresult cuCtxWaitEvent(CUcontext context, CUevent event)
{
    end_batches();
    return CALL(cuCtxWaitEvent, context, event);
}

EXPORT CUresult cuGreenCtxWaitEvent(CUgreen green, CUevent event)
{
    end_batches();
    return CALL(cuGreenCtxWaitEvent, green, event);
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    joins(flags);
    return CALL(cuStreamCreate, stream, flags);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    joins(flags);
    return CALL(cuStreamCreateWithPriority, stream, flags, priority);
}

/* On any card: a stream may be destroyed while another card's context is current. */
static void forget_stream(CUstream stream)
{
    struct container *all = container_get();
    for (uint32_t i = 0; all && i < all->limits.count; i++) gate_forget(&all->cards[i].gate, NULL, stream, false);
}

/* A capture ends with the stream that it began on. */
EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    forget_stream(stream);
    ENDED(cuStreamDestroy, KIND_CAPTURE, stream);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    forget_stream(stream);
    ENDED(cuStreamDestroy_v2, KIND_CAPTURE, stream);
}
