/* Stand-in for libcuda.so.1: arrays, mipmapped ones, and memory of other interfaces. */
#include "cuda.h"

static uint64_t array_size(size_t width, size_t height, size_t depth, unsigned channels)
{
    return (uint64_t)width * (height ? height : 1) * (depth ? depth : 1) * channels * 4;
}
static uint64_t own_size(const CUarray3D *shape)
{
    if (shape->Flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED)) return 0;
    return array_size(shape->Width, shape->Height, shape->Depth, shape->NumChannels);
}
static CUresult make_array(void **array, uint64_t bytes)
{
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    bytes = (bytes + FAKE_GRANULE - 1) / FAKE_GRANULE * FAKE_GRANULE;
    CUresult result = fake_take(fake_current->device, bytes);
    if (result != CUDA_SUCCESS) return result;
    uint64_t name = fake_name();
    fake_note(name, bytes, (uint64_t)fake_current->device);
    *array = (void *)(uintptr_t)name;
    return CUDA_SUCCESS;
}
CUresult cuArrayCreate_v2(CUarray *array, const CUarrayShape *shape)
{
    return make_array((void **)array, array_size(shape->Width, shape->Height, 1, shape->NumChannels));
}
CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3D *shape)
{
    return make_array((void **)array, own_size(shape));
}
CUresult cuMipmappedArrayCreate(CUmipmap *array, const CUarray3D *shape, unsigned levels)
{
    size_t width = shape->Width, height = shape->Height, depth = shape->Depth;
    uint64_t bytes = own_size(shape);
    for (unsigned i = 1; bytes && i < levels && (width > 1 || height > 1); i++) {
        width = width > 1 ? width / 2 : width;
        height = height > 1 ? height / 2 : height;
        if (!(shape->Flags & CU_ARRAY_LAYERED)) depth = depth > 1 ? depth / 2 : depth;
        bytes += array_size(width, height, depth, shape->NumChannels);
    }
    return make_array((void **)array, bytes);
}
/* What is mapped to an array holds the memory, until it is unmapped there or the array is gone. */
#define MOST 64
static struct { CUarray array; unsigned at; CUmemHandle handle; } maps[MOST];
FAKE_LOCK(lock)
CUresult cuMemMapArrayAsync(CUarrayMap *list, unsigned count, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    (void)stream;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        int at = 0, into = list[i].memOperationType == CU_ARRAY_MAP;
        unsigned where = list[i].subresource.sparseLevel.offsetX;
        while (at < MOST && maps[at].array && !(maps[at].array == list[i].resource.array && maps[at].at == where)) at++;
        if (at == MOST || !list[i].resource.array || (!into && !maps[at].array)) result = CUDA_ERROR_INVALID_VALUE;
        else if (into) result = fake_refer(list[i].memHandle, 1);
        if (result != CUDA_SUCCESS) break;
        if (maps[at].array) fake_refer(maps[at].handle, -1);
        maps[at].array = into ? list[i].resource.array : NULL;
        maps[at].at = where;
        maps[at].handle = list[i].memHandle;
    }
    pthread_mutex_unlock(&lock);
    return result;
}
static void unmap_all(const void *array)
{
    pthread_mutex_lock(&lock);
    for (int at = 0; at < MOST; at++) {
        if (!array || maps[at].array != array) continue;
        fake_refer(maps[at].handle, -1);
        maps[at].array = NULL;
    }
    pthread_mutex_unlock(&lock);
}
static CUresult end_named(const void *object)
{
    CUresult result = fake_release((uint64_t)(uintptr_t)object);
    if (result == CUDA_SUCCESS) fake_unname((uint64_t)(uintptr_t)object);
    return result;
}
CUresult cuArrayDestroy(CUarray array)
{
    unmap_all(array);
    return end_named(array);
}
CUresult cuMipmappedArrayDestroy(CUmipmap array)
{
    unmap_all(array);
    return end_named(array);
}
CUresult cuImportExternalMemory(CUexternal *external, const CUexternalMemory *description)
{
    (void)description;
    return make_array((void **)external, 0);
}
CUresult cuDestroyExternalMemory(CUexternal external) { return end_named(external); }
