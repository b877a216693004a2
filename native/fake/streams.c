/*
 * Stand-in for libcuda.so.1: streams and their captures.
 *
 * By the documentation of cuThreadExchangeStreamCaptureMode, a thread in global mode must make no potentially unsafe
 * call while it captures, or while another thread captures in global mode. A thread in thread-local mode must make none
 * while it captures. A relaxed thread may, and captures in relaxed mode forbid nothing. Where the documentation leaves it
 * open, a call counts as unsafe here: queries, waits, and all calls that allocate, free or measure memory outside a
 * stream. A forbidden call fails, and with it the captures that it could have invalidated.
 */
#include "cuda.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64
enum { INVALIDATED = 901, UNMATCHED = 903, ISOLATION = 905, IMPLICIT = 906, CAPTURED_EVENT = 907, WRONG_THREAD = 908,
       UNSAFE = 900 };

__thread int fake_capture_mode;
CUgraph fake_captured_events[FAKE_EVENTS];
static __thread struct cu_stream own; /* the per-thread stream */
static CUstream captured[MOST];       /* the captured ones: those where a capture began, and those that joined */
static _Atomic uint32_t count;
static _Atomic uint64_t asked;
FAKE_LOCK(lock)

static CUstream real(CUstream stream)
{
    if (stream != CU_STREAM_PER_THREAD && (uintptr_t)stream < 16) return NULL;
    if (stream != CU_STREAM_PER_THREAD && !stream->over) return stream;
    if (stream != CU_STREAM_PER_THREAD) fputs("fake driver: a stream is used that was destroyed\n", stderr), abort();
    if (!own.id) own.id = fake_serial() + 16;
    return &own;
}

uint64_t fake_stream(CUstream stream)
{
    CUstream at = real(stream);
    return at ? at->id : 0;
}

CUgraph fake_captured(CUstream stream)
{
    CUstream at = real(stream);
    return at ? at->graph : NULL;
}

bool fake_is_graphics(CUstream stream)
{
    CUstream at = real(stream);
    return at && at->graphics;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    *stream = calloc(1, sizeof **stream);
    if (!*stream) return CUDA_ERROR_OUT_OF_MEMORY;
    (*stream)->id = fake_serial() + 16;
    (*stream)->flags = flags;
    (*stream)->context = fake_current;
    return CUDA_SUCCESS;
}

/* The special streams are those of the thread's context. */
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    *context = (uintptr_t)stream < 16 ? fake_current : stream->context;
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* Ends the capture that began on a stream, also for the streams that joined it. The lock is held. */
static void end(CUstream first)
{
    uint32_t kept = 0, all = atomic_load(&count);
    for (uint32_t i = 0; i < all; i++) {
        CUstream stream = captured[i];
        if (stream->first != first) captured[kept++] = stream;
        else stream->graph = NULL, stream->first = NULL, stream->broken = 0;
    }
    atomic_store(&count, kept);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    pthread_mutex_lock(&lock);
    if (stream->first) end(stream->first);
    pthread_mutex_unlock(&lock);
    stream->over = 1; /* not freed: a later use is an error */
    return CUDA_SUCCESS;
}

CUresult fake_unsafe(void)
{
    CUresult refused = CUDA_SUCCESS;
    if (atomic_load(&count) == 0 || fake_capture_mode == CU_CAPTURE_RELAXED) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < atomic_load(&count); i++) {
        CUstream stream = captured[i];
        if (stream->first != stream || stream->mode == CU_CAPTURE_RELAXED) continue;
        bool mine = pthread_equal(stream->thread, pthread_self());
        if (!mine && (stream->mode != 0 || fake_capture_mode != 0)) continue;
        stream->broken = 1;
        refused = UNSAFE;
    }
    pthread_mutex_unlock(&lock);
    return refused;
}

static CUresult implicit(CUstream stream, bool breaks)
{
    CUresult refused = CUDA_SUCCESS;
    if (atomic_load(&count) == 0 || real(stream)) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < atomic_load(&count); i++) {
        if (captured[i]->flags & 1 || captured[i]->context != fake_current) continue;
        captured[i]->first->broken |= breaks;
        refused = IMPLICIT;
    }
    pthread_mutex_unlock(&lock);
    return refused;
}

CUresult fake_use(CUstream stream)
{
    CUstream at = real(stream);
    if (at && at->first && at->first->broken) return INVALIDATED;
    return implicit(stream, true);
}

static CUresult spoil(CUgraph graph, CUresult why)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < atomic_load(&count); i++)
        if (captured[i]->graph == graph) captured[i]->first->broken = 1;
    pthread_mutex_unlock(&lock);
    return why;
}

CUresult fake_ask_captured(CUgraph graph) { return spoil(graph, CAPTURED_EVENT); }

CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    int old = fake_capture_mode;
    fake_capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    CUstream at = real(stream);
    atomic_fetch_add(&asked, 1);
    *status = 0;
    if (at && atomic_load(&count)) {
        pthread_mutex_lock(&lock); /* another thread's call may end the capture at this moment */
        if (at->first) *status = 1 + at->first->broken;
        pthread_mutex_unlock(&lock);
    }
    return implicit(stream, false);
}

/* The number of these questions: the library in front of the driver asks some by itself. */
uint64_t fake_times_asked(void);
uint64_t fake_times_asked(void) { return atomic_load(&asked); }

static CUresult join(CUstream stream, CUstream first, CUgraph graph)
{
    if (atomic_load(&count) == MOST) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->graph = graph;
    stream->first = first;
    if (stream == &own) stream->context = fake_current;
    captured[atomic_load(&count)] = stream;
    atomic_fetch_add(&count, 1);
    return CUDA_SUCCESS;
}

static CUresult begin(CUstream stream, CUgraph graph, int mode)
{
    CUstream at = real(stream);
    if (!at || at->first || at->graphics) return CUDA_ERROR_INVALID_VALUE;
    if (!graph) graph = calloc(1, sizeof *graph);
    pthread_mutex_lock(&lock);
    at->mode = mode;
    at->thread = pthread_self();
    CUresult result = join(at, at, graph);
    pthread_mutex_unlock(&lock);
    return result;
}

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
#define INTO (CUstream stream, CUgraph graph, const void *needs, const void *edges, size_t parts, int mode)
#define AGAIN (CUstream stream, int mode, CUgraph graph, void *callback, void *data)

CUresult cuStreamBeginCapture(CUstream stream) { return begin(stream, NULL, 0); }
CUresult cuStreamBeginCapture_ptsz(CUstream stream) { return begin(OWN(stream), NULL, 0); }
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { return begin(stream, NULL, mode); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { return begin(OWN(stream), NULL, mode); }
CUresult cuStreamBeginCaptureToGraph INTO { return (void)needs, (void)edges, (void)parts, begin(stream, graph, mode); }
CUresult cuStreamBeginCaptureToGraph_ptsz INTO
{
    return (void)needs, (void)edges, (void)parts, begin(OWN(stream), graph, mode);
}
CUresult cuStreamBeginRecaptureToGraph AGAIN { return (void)callback, (void)data, begin(stream, graph, mode); }
CUresult cuStreamBeginRecaptureToGraph_ptsz AGAIN { return (void)callback, (void)data, begin(OWN(stream), graph, mode); }

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CUstream at = real(stream);
    CUresult result = CUDA_SUCCESS;
    *graph = NULL;
    if (!at || !at->first) return CUDA_ERROR_INVALID_VALUE;
    if (at->first != at) return spoil(at->graph, UNMATCHED);
    if (at->mode != CU_CAPTURE_RELAXED && !pthread_equal(at->thread, pthread_self())) return WRONG_THREAD;
    pthread_mutex_lock(&lock);
    if (at->broken) result = INVALIDATED;
    else *graph = at->graph;
    end(at);
    pthread_mutex_unlock(&lock);
    return result;
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) { return cuStreamEndCapture(OWN(stream), graph); }

/* Into a list of the graphics driver: the stream does not report that it is captured. */
CUresult cuStreamBeginCaptureToCig(CUstream stream, void *params)
{
    CUstream at = real(stream);
    if (!at || !params || at->graphics || at->first) return CUDA_ERROR_INVALID_VALUE;
    at->graphics = 1;
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *params)
{
    return cuStreamBeginCaptureToCig(OWN(stream), params);
}
CUresult cuStreamEndCaptureToCig(CUstream stream)
{
    CUstream at = real(stream);
    if (!at || !at->graphics) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = at->graphics > 1 ? INVALIDATED : CUDA_SUCCESS;
    at->graphics = 0;
    return result;
}
CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream) { return cuStreamEndCaptureToCig(OWN(stream)); }

/* A stream's wait is modelled by its time in ns, which the value, the data or the parameters contain. */
static CUresult pause_for(CUstream stream, uint64_t ns)
{
    CUresult refused = fake_use(stream);
    if (!fake_current || refused) return refused ? refused : CUDA_ERROR_INVALID_CONTEXT;
    if (fake_captured(stream)) return CUDA_SUCCESS;
    return fake_ask((struct request){.kind = ASK_PAUSE, .context = fake_current->id, .stream = fake_stream(stream),
                                     .a = ns, .b = link_now()}, NULL);
}

static CUresult await(CUcontext context, CUstream stream, CUevent event)
{
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    return fake_ask((struct request){.kind = ASK_AWAIT, .context = context->id, .stream = fake_stream(stream),
                                     .a = fake_event_name(event), .b = link_now()}, NULL);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    CUgraph graph = fake_captured_events[(uintptr_t)event % FAKE_EVENTS];
    CUstream at = real(stream);
    CUresult result = fake_use(stream);
    (void)flags;
    if (result) return result;
    if (!graph) return fake_captured(stream) ? spoil(fake_captured(stream), ISOLATION) : await(fake_current, stream, event);
    if (fake_captured(stream) == graph) return CUDA_SUCCESS;
    if (!at || fake_captured(stream)) return spoil(graph, ISOLATION);
    pthread_mutex_lock(&lock);
    result = CAPTURED_EVENT;
    for (uint32_t i = 0; i < atomic_load(&count) && result == CAPTURED_EVENT; i++)
        if (captured[i]->graph == graph) result = join(at, captured[i]->first, graph);
    pthread_mutex_unlock(&lock);
    return result;
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
    return cuStreamWaitEvent(OWN(stream), event, flags);
}
CUresult cuCtxWaitEvent(CUcontext context, CUevent event) { return await(context, NULL, event); }
CUresult cuGreenCtxWaitEvent(CUgreen green, CUevent event)
{
    CUcontext context = NULL;
    cuCtxFromGreenCtx(&context, green);
    return await(context, NULL, event);
}

static uint64_t waits_of(const CUbatchOp *list, unsigned parts)
{
    uint64_t ns = 0;
    for (unsigned i = 0; i < parts; i++)
        if (list[i].operation == CU_OP_WAIT_32 || list[i].operation == CU_OP_WAIT_64) ns += list[i].value;
    return ns;
}

#define PAUSES(name, args, ns)                                                                           \
    CUresult name args { return UNUSED, pause_for(stream, ns); }                                          \
    CUresult name##_ptsz args { return UNUSED, pause_for(OWN(stream), ns); }
#define UNUSED (void)at, (void)flags
PAUSES(cuStreamWaitValue32, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags), value)
PAUSES(cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags), value)
PAUSES(cuStreamWaitValue64, (CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags), value)
PAUSES(cuStreamWaitValue64_v2, (CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags), value)
#undef UNUSED
#define UNUSED (void)flags
PAUSES(cuStreamBatchMemOp, (CUstream stream, unsigned parts, CUbatchOp *list, unsigned flags), waits_of(list, parts))
PAUSES(cuStreamBatchMemOp_v2, (CUstream stream, unsigned parts, CUbatchOp *list, unsigned flags), waits_of(list, parts))
#undef UNUSED
#define UNUSED (void)function, (void)flags
PAUSES(cuStreamAddCallback, (CUstream stream, void *function, void *data, unsigned flags), (uint64_t)(uintptr_t)data)
PAUSES(cuLaunchHostFunc_v2, (CUstream stream, void *function, void *data, unsigned flags), (uint64_t)(uintptr_t)data)
#undef UNUSED
#define UNUSED (void)function
PAUSES(cuLaunchHostFunc, (CUstream stream, void *function, void *data), (uint64_t)(uintptr_t)data)
#undef UNUSED
#define UNUSED (void)list, (void)parts
PAUSES(cuWaitExternalSemaphoresAsync, (const void *list, const void *params, unsigned parts, CUstream stream),
       *(const uint64_t *)params)
