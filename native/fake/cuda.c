/* Stand-in for libcuda.so.1: devices, contexts, streams, events, kernels and modules. */
#include "cuda.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <string.h>

__thread CUcontext fake_current;
static __thread CUcontext stack[8];
static __thread int depth;
static _Atomic uint64_t serial = 1;
static struct cu_context primaries[FAKE_CARDS];
FAKE_LOCK(primary_lock)
static _Atomic unsigned char event_used[FAKE_EVENTS];
static _Atomic uint64_t event_round[FAKE_EVENTS]; /* how often each was recorded */
static _Atomic uint64_t event_time[FAKE_EVENTS]; /* of events known to be over; 0: ask the card */

uint64_t fake_serial(void) { return atomic_fetch_add(&serial, 1); }

int fake_ask(struct request request, struct answer *answer)
{
    struct answer none = {0};
    if (!answer) return link_ask(&request, NULL) ? 0 : 999;
    *answer = none;
    return link_ask(&request, answer) ? answer->result : 999;
}

CUresult cuInit(unsigned flags)
{
    struct answer answer;
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_ask((struct request){.kind = ASK_MEMORY_INFO}, &answer);
}

CUresult cuDriverGetVersion(int *version);
CUresult cuDriverGetVersion(int *version) { *version = 12080; return CUDA_SUCCESS; }

CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetCount(int *count)
{
    struct answer answer;
    int result = fake_ask((struct request){.kind = ASK_MEMORY_INFO}, &answer);
    *count = 0;
    for (uint32_t i = 0; i < FAKE_CARDS && result == 0; i++) {
        fake_ask((struct request){.kind = ASK_MEMORY_INFO, .card = i}, &answer);
        *count += answer.a > 0;
    }
    return result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    link_uuid((uint32_t)device, uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
CUresult cuDeviceGetName(char *name, int room, CUdevice device);
CUresult cuDeviceGetName(char *name, int room, CUdevice device)
{
    snprintf(name, (size_t)room, "modelled card %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    (void)device;
    *value = attribute == CU_DEVICE_PROCESSORS ? FAKE_PROCESSORS : attribute == CU_DEVICE_THREADS_EACH ? FAKE_THREADS
             : fake_attribute(attribute);
    return CUDA_SUCCESS;
}

static const size_t usual_limits[FAKE_LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048};

static CUresult open_context(CUcontext context, CUdevice device)
{
    struct answer answer;
    if (fake_take(device, FAKE_CONTEXT_BYTES) != CUDA_SUCCESS) return CUDA_ERROR_OUT_OF_MEMORY;
    int result = fake_ask((struct request){.kind = ASK_CONTEXT_NEW, .card = (uint32_t)device}, &answer);
    uint32_t retained = context->retained;
    *context = (struct cu_context){.id = answer.a, .device = device, .retained = retained, .users = 1, .active = 1};
    memcpy(context->limits, usual_limits, sizeof usual_limits);
    return result;
}

static void end_context(CUcontext context)
{
    struct answer answer;
    fake_ask((struct request){.kind = ASK_CONTEXT_END, .context = context->id}, &answer);
    fake_give(context->device, FAKE_CONTEXT_BYTES + context->taken);
    fake_forget_blocks(context);
    context->active = 0;
}

/* A context has the lowest free name, and a name is free some time before the call that ended its context returns. */
#define CONTEXTS 256
static struct cu_context contexts[CONTEXTS];
static unsigned char context_used[CONTEXTS];
FAKE_LOCK(context_lock)

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    int i = 0;
    (void)flags;
    pthread_mutex_lock(&context_lock);
    while (i < CONTEXTS - 1 && context_used[i]) i++;
    context_used[i] = 1;
    pthread_mutex_unlock(&context_lock);
    CUresult result = open_context(&contexts[i], device);
    if (result != CUDA_SUCCESS) {
        context_used[i] = 0;
        return result;
    }
    *context = fake_current = &contexts[i];
    return CUDA_SUCCESS;
}
CUresult cuGLCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}
CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}
CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned flags, CUdevice device, uint32_t video, void *find)
{
    (void)video, (void)find;
    return cuCtxCreate_v2(context, flags, device);
}
CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device, uint32_t video, void *find)
{
    return cuVDPAUCtxCreate(context, flags, device, video, find);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (context < contexts || context >= contexts + CONTEXTS) return CUDA_ERROR_INVALID_CONTEXT;
    end_context(context);
    if (fake_current == context) fake_current = NULL;
    pthread_mutex_lock(&context_lock);
    context_used[context - contexts] = 0;
    pthread_mutex_unlock(&context_lock);
    usleep(50);
    return CUDA_SUCCESS;
}
CUresult cuCtxAttach(CUcontext *context, unsigned flags)
{
    if (!fake_current || flags) return CUDA_ERROR_INVALID_CONTEXT;
    fake_current->users++;
    *context = fake_current;
    return CUDA_SUCCESS;
}
CUresult cuCtxDetach(CUcontext context)
{
    if (context != fake_current || !context) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->users > 1) context->users--;
    else return cuCtxDestroy_v2(context);
    return CUDA_SUCCESS;
}

CUcontext fake_primary(CUdevice device) { return &primaries[device]; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&primary_lock);
    if (!primaries[device].active) result = open_context(&primaries[device], device);
    primaries[device].retained += result == CUDA_SUCCESS;
    *context = &primaries[device];
    pthread_mutex_unlock(&primary_lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&primary_lock);
    if (primaries[device].retained == 0) result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--primaries[device].retained == 0 && primaries[device].active) end_context(&primaries[device]);
    pthread_mutex_unlock(&primary_lock);
    return result;
}

/* A green context is a part of the primary one under another name; the model does not tell their work apart. */
struct cu_green { struct cu_context context; };
CUresult cuGreenCtxCreate(CUgreen *green, void *resources, CUdevice device, unsigned flags)
{
    CUcontext context;
    (void)resources, (void)flags;
    CUresult result = cuDevicePrimaryCtxRetain(&context, device);
    if (result != CUDA_SUCCESS) return result;
    *green = calloc(1, sizeof **green);
    (*green)->context = *context;
    return CUDA_SUCCESS;
}
CUresult cuGreenCtxDestroy(CUgreen green)
{
    CUresult result = cuDevicePrimaryCtxRelease_v2(green->context.device);
    if (fake_current == &green->context) fake_current = NULL;
    free(green);
    return result;
}
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreen green)
{
    *context = &green->context;
    return CUDA_SUCCESS;
}

/* Ends the context's objects; its holders still have to release it. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    pthread_mutex_lock(&primary_lock);
    if (primaries[device].active) end_context(&primaries[device]);
    pthread_mutex_unlock(&primary_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxGetCurrent(CUcontext *context) { *context = fake_current; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context) { fake_current = context; return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    stack[depth++ % 8] = fake_current;
    fake_current = context;
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (context) *context = fake_current;
    fake_current = stack[--depth % 8];
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxGetDevice(CUdevice *device)
{
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    *device = fake_current->device;
    return CUDA_SUCCESS;
}
/* Memory that a context's limits take beyond the usual ones. */
static uint64_t limits_cost(const size_t *limits)
{
    uint64_t deeper = limits[CU_LIMIT_STACK_SIZE] - usual_limits[CU_LIMIT_STACK_SIZE];
    uint64_t levels = limits[CU_LIMIT_SYNC_DEPTH] - usual_limits[CU_LIMIT_SYNC_DEPTH], bytes = 0;
    for (int i = CU_LIMIT_PRINTF_SIZE; i <= CU_LIMIT_MALLOC_HEAP_SIZE; i++)
        if (limits[i] > usual_limits[i]) bytes += limits[i] - usual_limits[i];
    if (limits[CU_LIMIT_STACK_SIZE] > usual_limits[CU_LIMIT_STACK_SIZE]) bytes += deeper * FAKE_PROCESSORS * FAKE_THREADS;
    if (limits[CU_LIMIT_SYNC_DEPTH] > usual_limits[CU_LIMIT_SYNC_DEPTH]) bytes += levels * FAKE_DEPTH_BYTES;
    return bytes;
}
CUresult cuCtxSetLimit(int limit, size_t value)
{
    size_t limits[FAKE_LIMITS];
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    if (limit < 0 || limit >= FAKE_LIMITS) return CUDA_ERROR_INVALID_VALUE;
    memcpy(limits, fake_current->limits, sizeof limits);
    limits[limit] = limit == CU_LIMIT_STACK_SIZE ? (value + 1023) / 1024 * 1024 : value; /* rounded up, as hardware does */
    uint64_t bytes = limits_cost(limits);
    if (bytes > fake_current->taken && fake_take(fake_current->device, bytes - fake_current->taken) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes < fake_current->taken) fake_give(fake_current->device, fake_current->taken - bytes);
    fake_current->taken = bytes;
    fake_current->limits[limit] = limits[limit];
    return CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(size_t *value, int limit);
CUresult cuCtxGetLimit(size_t *value, int limit)
{
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    *value = limit < 0 || limit >= FAKE_LIMITS ? 0 : fake_current->limits[limit];
    return CUDA_SUCCESS;
}

static CUresult about_stream(uint32_t kind, CUstream stream)
{
    struct answer answer;
    CUresult refused = fake_unsafe();
    if (!refused) refused = fake_use(stream);
    if (!refused && fake_captured(stream)) refused = fake_ask_captured(fake_captured(stream));
    if (refused) return refused;
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    return fake_ask((struct request){.kind = kind, .context = fake_current->id, .stream = fake_stream(stream)}, &answer);
}

CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamQuery(CUstream stream) { return about_stream(ASK_STREAM, stream); }
CUresult cuStreamSynchronize(CUstream stream) { return about_stream(ASK_STREAM_WAIT, stream); }
CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return about_stream(ASK_STREAM_WAIT, stream ? stream : CU_STREAM_PER_THREAD);
}
CUresult cuCtxSynchronize(void) { return about_stream(ASK_CONTEXT_WAIT, NULL); }
CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CUcontext before = fake_current;
    fake_current = context ? context : before;
    CUresult result = cuCtxSynchronize();
    fake_current = before;
    return result;
}

CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    CUresult refused = fake_unsafe();
    if (refused) return refused;
    for (uintptr_t i = 1; i < FAKE_EVENTS; i++) {
        if (atomic_exchange(&event_used[i], 1)) continue;
        *event = (CUevent)i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventDestroy_v2(CUevent event)
{
    atomic_store(&event_used[(uintptr_t)event % FAKE_EVENTS], 0);
    if (getenv(FAKE_SLOW)) usleep(200);
    return CUDA_SUCCESS;
}
uint64_t fake_event_name(CUevent event)
{
    uint64_t i = (uintptr_t)event % FAKE_EVENTS;
    return i + FAKE_EVENTS * atomic_load(&event_round[i]);
}

CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CUresult refused = fake_captured(stream) ? CUDA_SUCCESS : fake_unsafe();
    uint64_t i = (uintptr_t)event % FAKE_EVENTS;
    if (!refused) refused = fake_use(stream);
    if (!refused && i % 2 == 0 && getenv(FAKE_ENDLESS)) refused = CUDA_ERROR_OUT_OF_MEMORY;
    if (refused) return refused;
    fake_captured_events[i] = fake_captured(stream);
    if (fake_is_graphics(stream)) {
        if ((uintptr_t)stream >= 16) stream->graphics = 2; /* spoilt */
        return 900;
    }
    if (fake_captured(stream)) return CUDA_SUCCESS; /* no mark: later work of the capture may wait for it */
    atomic_store(&event_time[i], link_is_instant() ? link_instant() : 0);
    uint64_t name = i + FAKE_EVENTS * (atomic_fetch_add(&event_round[i], 1) + 1);
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    return fake_ask((struct request){.kind = ASK_MARK, .context = fake_current->id, .stream = fake_stream(stream),
                                     .a = name, .b = link_now()}, NULL);
}
static CUresult about_event(uint32_t kind, CUevent event, uint64_t *time)
{
    struct answer answer;
    CUresult refused = fake_unsafe();
    uint64_t i = (uintptr_t)event % FAKE_EVENTS, name = fake_event_name(event);
    _Atomic uint64_t *known = &event_time[i];
    if (!refused && fake_captured_events[i]) refused = fake_ask_captured(fake_captured_events[i]);
    if (refused) return refused;
    if (time && (*time = atomic_load(known)) != 0) return CUDA_SUCCESS;
    CUresult result = fake_ask((struct request){.kind = kind, .a = name}, &answer);
    if (result == CUDA_SUCCESS) atomic_store(known, answer.a);
    if (time) *time = answer.a;
    return result;
}
CUresult cuEventQuery(CUevent event);
CUresult cuEventQuery(CUevent event) { return about_event(ASK_EVENT, event, NULL); }
CUresult cuEventSynchronize(CUevent event) { return about_event(ASK_EVENT_WAIT, event, NULL); }
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to);
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    uint64_t a, b;
    CUresult result = about_event(ASK_EVENT, from, &a);
    if (result == CUDA_SUCCESS) result = about_event(ASK_EVENT, to, &b);
    if (result == CUDA_SUCCESS) *ms = (float)((double)((int64_t)(b - a)) / 1e6);
    return result;
}

CUresult fake_run(uint64_t ns, CUstream stream)
{
    CUgraph graph = fake_captured(stream);
    CUresult refused = fake_use(stream);
    if (!fake_current || refused) return refused ? refused : CUDA_ERROR_INVALID_CONTEXT;
    if (graph) {
        graph->ns += ns;
        graph->kernels++;
        return CUDA_SUCCESS;
    }
    if (fake_is_graphics(stream)) return CUDA_SUCCESS; /* in a list of the graphics driver now */
    return fake_ask((struct request){.kind = ASK_KERNEL, .context = fake_current->id, .stream = fake_stream(stream),
                                     .a = ns, .b = link_now()}, NULL);
}

/* A kernel's first parameter is how long it runs, in ns. */
static uint64_t duration(void **params)
{
    uint64_t ns = 1000;
    if (params && params[0]) memcpy(&ns, params[0], sizeof ns);
    return ns;
}

#define UNUSED_SHAPE (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared
CUresult cuLaunchKernel(LAUNCH_ARGS, void **extra)
{
    UNUSED_SHAPE, (void)extra;
    return fake_run(duration(params), stream);
}
CUresult cuLaunchKernel_ptsz(LAUNCH_ARGS, void **extra)
{
    UNUSED_SHAPE, (void)extra;
    return fake_run(duration(params), stream ? stream : CU_STREAM_PER_THREAD);
}
CUresult cuLaunchCooperativeKernel(LAUNCH_ARGS)
{
    UNUSED_SHAPE;
    return fake_run(duration(params), stream);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    (void)function, (void)extra;
    return fake_run(duration(params), config->hStream);
}

/* An image may name its module's memory, and a neighbour's during the first load of the process ("8+500"). */
CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    static _Atomic int loads;
    uint64_t bytes = FAKE_MODULE_BYTES;
    const char *text = image;
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    if (text && *text >= '0' && *text <= '9') {
        char *end;
        bytes = strtoull(text, &end, 10) << 20;
        if (*end == '+' && atomic_fetch_add(&loads, 1) == 0) fake_take(fake_current->device, strtoull(end, NULL, 10) << 20);
    }
    if (fake_take(fake_current->device, bytes) != CUDA_SUCCESS) return CUDA_ERROR_OUT_OF_MEMORY;
    *module = (CUmodule)(uintptr_t)fake_name();
    fake_note((uint64_t)(uintptr_t)*module, bytes, (uint64_t)fake_current->device);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module)
{
    uint64_t bytes, device;
    CUresult refused = fake_unsafe();
    if (refused) return refused;
    if (!fake_recall((uint64_t)(uintptr_t)module, &bytes, &device, 1)) return CUDA_ERROR_INVALID_VALUE;
    fake_give((CUdevice)device, bytes);
    fake_unname((uint64_t)(uintptr_t)module);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    (void)name;
    *function = (CUfunction)module;
    return CUDA_SUCCESS;
}
