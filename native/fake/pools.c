/* Stand-in for libcuda.so.1: memory in stream order, of pools. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct cu_pool default_pools[FAKE_CARDS] = {{.device = 0}, {.device = 1}, {.device = 2}, {.device = 3}};
static struct cu_pool host_pool = {.host = 1};
static CUpool current_pools[FAKE_CARDS]; /* NULL: the default */
FAKE_LOCK(lock)

static CUresult fault(void) { return getenv(FAKE_FAULT) ? atoi(getenv(FAKE_FAULT)) : CUDA_SUCCESS; }

CUresult cuDeviceGetDefaultMemPool(CUpool *pool, CUdevice device);
CUresult cuDeviceGetDefaultMemPool(CUpool *pool, CUdevice device)
{
    *pool = &default_pools[device];
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetMemPool(CUpool *pool, CUdevice device);
CUresult cuDeviceGetMemPool(CUpool *pool, CUdevice device)
{
    *pool = current_pools[device];
    return *pool ? CUDA_SUCCESS : cuDeviceGetDefaultMemPool(pool, device);
}
CUresult cuDeviceSetMemPool(CUdevice device, CUpool pool);
CUresult cuDeviceSetMemPool(CUdevice device, CUpool pool)
{
    current_pools[device] = pool;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolCreate(CUpool *pool, const CUpoolProps *props)
{
    *pool = calloc(1, sizeof **pool);
    (*pool)->host = props->location.type == CU_LOCATION_HOST;
    (*pool)->device = (*pool)->host ? 0 : props->location.id & 0xff;
    return CUDA_SUCCESS;
}
CUresult cuMemGetDefaultMemPool(CUpool *pool, CUlocation *location, int type);
CUresult cuMemGetDefaultMemPool(CUpool *pool, CUlocation *location, int type)
{
    if (type != 1 || location->type == CU_LOCATION_NONE) return CUDA_ERROR_INVALID_VALUE;
    *pool = location->type == CU_LOCATION_HOST ? &host_pool : &default_pools[location->id & 0xff];
    return CUDA_SUCCESS;
}
/* A destroyed pool keeps its memory until its last allocation is freed. */
void fake_unpool(CUpool pool, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool->used -= bytes;
    int over = pool->ended && pool->used == 0;
    pthread_mutex_unlock(&lock);
    if (!over) return;
    if (!pool->host) fake_give(pool->device, pool->reserved);
    free(pool);
}
CUresult cuMemPoolDestroy(CUpool pool)
{
    if (pool >= default_pools && pool < default_pools + FAKE_CARDS) return CUDA_ERROR_INVALID_VALUE;
    if (current_pools[pool->device] == pool) current_pools[pool->device] = NULL;
    pool->ended = 1;
    fake_unpool(pool, 0);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUpool pool, size_t keep)
{
    CUresult refused = fake_unsafe();
    if (refused) return refused;
    pthread_mutex_lock(&lock);
    uint64_t least = pool->used > keep ? pool->used : keep;
    if (getenv(FAKE_KEEPS) && least == 0 && pool->reserved) least = 1;
    least = (least + FAKE_POOL_STEP - 1) / FAKE_POOL_STEP * FAKE_POOL_STEP;
    if (least < pool->reserved) {
        if (!pool->host) fake_give(pool->device, pool->reserved - least);
        pool->reserved = least;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(CUpool pool, int attribute, void *value);
CUresult cuMemPoolGetAttribute(CUpool pool, int attribute, void *value)
{
    CUresult refused = fault() ? fault() : fake_unsafe();
    if (refused) return refused;
    pthread_mutex_lock(&lock);
    uint64_t result = attribute == CU_POOL_RESERVED_CURRENT ? pool->reserved : pool->used;
    pthread_mutex_unlock(&lock);
    int where = attribute == CU_POOL_LOCATION_ID ? pool->device : pool->host ? CU_LOCATION_HOST : CU_LOCATION_DEVICE;
    if (attribute >= CU_POOL_LOCATION_ID) {
        if (!getenv(FAKE_NEWER)) return CUDA_ERROR_INVALID_VALUE;
        memcpy(value, &where, sizeof where);
        return CUDA_SUCCESS;
    }
    memcpy(value, &result, sizeof result);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAttribute(CUpool pool, int attribute, void *value);
CUresult cuMemPoolSetAttribute(CUpool pool, int attribute, void *value)
{
    (void)pool, (void)attribute, (void)value; /* freed memory stays until a trim */
    return CUDA_SUCCESS;
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUpool pool, CUstream stream)
{
    uint64_t whole = (bytes + 511) / 512 * 512;
    CUresult result = fault();
    if (result != CUDA_SUCCESS) return result;
    if (fake_captured(stream)) return fake_graph_allocate(fake_captured(stream), pool->device, bytes, pointer);
    pthread_mutex_lock(&lock);
    uint64_t need = pool->used + whole > pool->reserved ? pool->used + whole - pool->reserved : 0;
    need = (need + FAKE_POOL_STEP - 1) / FAKE_POOL_STEP * FAKE_POOL_STEP;
    if (need && !pool->host) result = fake_take(pool->device, need);
    if (result == CUDA_SUCCESS) {
        pool->reserved += need;
        pool->used += whole;
        *pointer = fake_address(whole);
    }
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS) fake_note(*pointer, whole, (uint64_t)(uintptr_t)pool);
    return result;
}
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    CUpool pool;
    CUcontext context;
    if (cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
    cuDeviceGetMemPool(&pool, context->device);
    return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return cuMemAllocAsync(pointer, bytes, stream ? stream : CU_STREAM_PER_THREAD);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUpool pool, CUstream stream)
{
    return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream ? stream : CU_STREAM_PER_THREAD);
}
/* Plain memory is free once its stream reaches the free; the process's next request of memory notices that. */
#define LATER 256
static struct { CUdeviceptr pointer; CUevent event; } later[LATER];
FAKE_LOCK(later_lock)
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);

void fake_free_reached(void)
{
    CUdeviceptr over[LATER];
    int count = 0, mode = fake_capture_mode;
    fake_capture_mode = CU_CAPTURE_RELAXED;
    pthread_mutex_lock(&later_lock);
    for (int i = 0; i < LATER; i++) {
        if (!later[i].pointer || cuEventQuery(later[i].event) == CUDA_ERROR_NOT_READY) continue;
        cuEventDestroy_v2(later[i].event);
        over[count++] = later[i].pointer;
        later[i].pointer = 0;
    }
    pthread_mutex_unlock(&later_lock);
    fake_capture_mode = mode;
    while (count) fake_release(over[--count]);
}

static CUresult free_later(CUdeviceptr pointer, CUstream stream)
{
    CUevent event;
    int at = 0, mode = fake_capture_mode;
    fake_free_reached();
    fake_capture_mode = CU_CAPTURE_RELAXED;
    CUresult result = cuEventCreate(&event, 0);
    if (result == CUDA_SUCCESS) result = cuEventRecord(event, stream);
    fake_capture_mode = mode;
    if (result != CUDA_SUCCESS) return fake_release(pointer);
    pthread_mutex_lock(&later_lock);
    while (at < LATER && later[at].pointer) at++;
    if (at < LATER) later[at].pointer = pointer, later[at].event = event;
    pthread_mutex_unlock(&later_lock);
    return at < LATER ? CUDA_SUCCESS : fake_release(pointer);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    if (fake_is_opened(pointer)) return cuIpcCloseMemHandle(pointer);
    if (fake_captured(stream)) return fake_graph_free(fake_captured(stream), pointer);
    return fake_is_plain(pointer) ? free_later(pointer, stream) : fake_release(pointer);
}
/* A pointer of another process: its address, size and pid. */
CUresult cuMemPoolExportPointer(CUpoolPointer *shared, CUdeviceptr pointer)
{
    uint64_t values[4] = {pointer, 0, (uint64_t)getpid()}, other;
    if (!fake_recall(pointer, &values[1], &other, 0)) return CUDA_ERROR_INVALID_VALUE;
    values[3] = (uint64_t)fake_device_of(other);
    memset(shared, 0, sizeof *shared);
    memcpy(shared, values, sizeof values);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolImportFromShareableHandle(CUpool *pool, void *shared, int type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUpool *pool, void *shared, int type, unsigned long long flags)
{
    (void)shared, (void)type, (void)flags;
    *pool = calloc(1, sizeof **pool);
    return CUDA_SUCCESS;
}
/* The same data give the same address, and need as many frees; data of a made-up address give a new one each time. */
CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUpool pool, CUpoolPointer *shared)
{
    CUipcMem handle = {{0}};
    uint64_t values[4];
    (void)pool;
    memcpy(values, shared, sizeof values);
    memcpy(&handle, shared, sizeof values);
    if (values[0] % FAKE_GRANULE == 0) return cuIpcOpenMemHandle_v2(pointer, handle, 0);
    *pointer = fake_address(values[1]);
    fake_note(*pointer, 0, values[1] >> 20 << 32 | values[3]);
    return CUDA_SUCCESS;
}
