/* Stand-in for libcuda.so.1: arrays, mipmapped ones, and memory of other interfaces. */
#include "cuda.h"

static uint64_t array_size(size_t width, size_t height, size_t depth, unsigned channels)
{
    uint64_t bytes = (uint64_t)width * (height ? height : 1) * (depth ? depth : 1) * channels * 4;
    return (bytes + FAKE_GRANULE - 1) / FAKE_GRANULE * FAKE_GRANULE;
}
static CUresult make_array(void **array, uint64_t bytes)
{
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
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
    return make_array((void **)array, array_size(shape->Width, shape->Height, shape->Depth, shape->NumChannels));
}
CUresult cuMipmappedArrayCreate(CUmipmap *array, const CUarray3D *shape, unsigned levels)
{
    (void)levels;
    return make_array((void **)array, array_size(shape->Width, shape->Height, shape->Depth, shape->NumChannels) * 4 / 3);
}
static CUresult end_named(const void *object)
{
    CUresult result = fake_release((uint64_t)(uintptr_t)object);
    if (result == CUDA_SUCCESS) fake_unname((uint64_t)(uintptr_t)object);
    return result;
}
CUresult cuArrayDestroy(CUarray array) { return end_named(array); }
CUresult cuMipmappedArrayDestroy(CUmipmap array) { return end_named(array); }
CUresult cuImportExternalMemory(CUexternal *external, const CUexternalMemory *description)
{
    (void)description;
    return make_array((void **)external, 0);
}
CUresult cuDestroyExternalMemory(CUexternal external) { return end_named(external); }
