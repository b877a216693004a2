/* The driver as an ordinary program finds it: by dlsym, by cuGetProcAddress or by direct calls. */
#ifndef TOOL_DRIVER_H
#define TOOL_DRIVER_H

#include "../src/hooks.h"

CUresult cuDeviceGetCount(int *count);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamQuery(CUstream stream);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t align, CUdeviceptr wish,
                             unsigned long long flags);

CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                               CUdeviceptr pointer);
CUresult cuDeviceGraphMemTrim(CUdevice device);
CUresult cuDeviceGetMemPool(CUpool *pool, CUdevice device);
CUresult cuDeviceSetMemPool(CUdevice device, CUpool pool);
CUresult cuMemGetDefaultMemPool(CUpool *pool, CUlocation *location, int type);
CUresult cuMemPoolImportFromShareableHandle(CUpool *pool, void *shared, int type, unsigned long long flags);
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreen green);
CUresult cuMulticastCreate(CUmemHandle *many, const void *prop);
CUresult cuMulticastAddDevice(CUmemHandle many, CUdevice device);

/* X(name in the table, exported name, name asked of cuGetProcAddress) */
#define USED(X)                                                                                          \
    X(init, cuInit, "cuInit")                                                                            \
    X(count, cuDeviceGetCount, "cuDeviceGetCount")                                                       \
    X(total, cuDeviceTotalMem_v2, "cuDeviceTotalMem")                                                    \
    X(retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                                      \
    X(release, cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease")                                \
    X(make_context, cuCtxCreate_v2, "cuCtxCreate")                                                       \
    X(end_context, cuCtxDestroy_v2, "cuCtxDestroy")                                                      \
    X(get_current, cuCtxGetCurrent, "cuCtxGetCurrent")                                                   \
    X(set_current, cuCtxSetCurrent, "cuCtxSetCurrent")                                                   \
    X(context_wait, cuCtxSynchronize, "cuCtxSynchronize")                                                \
    X(set_limit, cuCtxSetLimit, "cuCtxSetLimit")                                                         \
    X(load, cuModuleLoadData, "cuModuleLoadData")                                                        \
    X(unload, cuModuleUnload, "cuModuleUnload")                                                          \
    X(function, cuModuleGetFunction, "cuModuleGetFunction")                                              \
    X(make_stream, cuStreamCreate, "cuStreamCreate")                                                     \
    X(end_stream, cuStreamDestroy_v2, "cuStreamDestroy")                                                 \
    X(stream_wait, cuStreamSynchronize, "cuStreamSynchronize")                                           \
    X(make_event, cuEventCreate, "cuEventCreate")                                                        \
    X(record, cuEventRecord, "cuEventRecord")                                                            \
    X(elapsed, cuEventElapsedTime, "cuEventElapsedTime")                                                 \
    X(launch, cuLaunchKernel, "cuLaunchKernel")                                                          \
    X(launch_together, cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel")                           \
    X(launch_config, cuLaunchKernelEx, "cuLaunchKernelEx")                                               \
    X(begin, cuStreamBeginCapture_v2, "cuStreamBeginCapture")                                            \
    X(end, cuStreamEndCapture, "cuStreamEndCapture")                                                     \
    X(instantiate, cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags")                           \
    X(launch_graph, cuGraphLaunch, "cuGraphLaunch")                                                      \
    X(info, cuMemGetInfo_v2, "cuMemGetInfo")                                                             \
    X(alloc, cuMemAlloc_v2, "cuMemAlloc")                                                                \
    X(alloc_pitch, cuMemAllocPitch_v2, "cuMemAllocPitch")                                                \
    X(alloc_managed, cuMemAllocManaged, "cuMemAllocManaged")                                             \
    X(release_memory, cuMemFree_v2, "cuMemFree")                                                         \
    X(create, cuMemCreate, "cuMemCreate")                                                                \
    X(release_handle, cuMemRelease, "cuMemRelease")                                                      \
    X(reserve, cuMemAddressReserve, "cuMemAddressReserve")                                               \
    X(map, cuMemMap, "cuMemMap")                                                                         \
    X(unmap, cuMemUnmap, "cuMemUnmap")                                                                   \
    X(alloc_async, cuMemAllocAsync, "cuMemAllocAsync")                                                   \
    X(free_async, cuMemFreeAsync, "cuMemFreeAsync")                                                      \
    X(array, cuArray3DCreate_v2, "cuArray3DCreate")                                                      \
    X(end_array, cuArrayDestroy, "cuArrayDestroy")                                                       \
    X(export_memory, cuIpcGetMemHandle, "cuIpcGetMemHandle")                                             \
    X(import_memory, cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle")                                        \
    X(end_import, cuIpcCloseMemHandle, "cuIpcCloseMemHandle")

/* The same; a driver may lack these, and a program that uses one has checked. */
#define NEWER(X)                                                                                         \
    X(stream_query, cuStreamQuery, "cuStreamQuery")                                                      \
    X(new_graph, cuGraphCreate, "cuGraphCreate")                                                         \
    X(end_graph, cuGraphDestroy, "cuGraphDestroy")                                                       \
    X(add_alloc, cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode")                                       \
    X(add_free, cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode")                                          \
    X(add_node, cuGraphAddNode_v2, "cuGraphAddNode")                                                     \
    X(instantiate_old, cuGraphInstantiate_v2, "cuGraphInstantiate")                                      \
    X(instantiate_with, cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams")                    \
    X(upload, cuGraphUpload, "cuGraphUpload")                                                            \
    X(end_exec, cuGraphExecDestroy, "cuGraphExecDestroy")                                                \
    X(trim_graphs, cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim")                                         \
    X(own_pool, cuDeviceGetMemPool, "cuDeviceGetMemPool")                                                \
    X(set_pool, cuDeviceSetMemPool, "cuDeviceSetMemPool")                                                \
    X(pool_at, cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool")                                         \
    X(import_handle, cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle")                   \
    X(new_pool, cuMemPoolCreate, "cuMemPoolCreate")                                                      \
    X(end_pool, cuMemPoolDestroy, "cuMemPoolDestroy")                                                    \
    X(trim_pool, cuMemPoolTrimTo, "cuMemPoolTrimTo")                                                     \
    X(alloc_from, cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync")                                    \
    X(export_pointer, cuMemPoolExportPointer, "cuMemPoolExportPointer")                                  \
    X(import_pool, cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle")             \
    X(import_pointer, cuMemPoolImportPointer, "cuMemPoolImportPointer")                                  \
    X(make_green, cuGreenCtxCreate, "cuGreenCtxCreate")                                                  \
    X(of_green, cuCtxFromGreenCtx, "cuCtxFromGreenCtx")                                                  \
    X(end_green, cuGreenCtxDestroy, "cuGreenCtxDestroy")                                                 \
    X(make_mipmap, cuMipmappedArrayCreate, "cuMipmappedArrayCreate")                                     \
    X(end_mipmap, cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy")                                    \
    X(map_array, cuMemMapArrayAsync, "cuMemMapArrayAsync")                                               \
    X(take_external, cuImportExternalMemory, "cuImportExternalMemory")                                   \
    X(end_external, cuDestroyExternalMemory, "cuDestroyExternalMemory")                                  \
    X(fill, cuMemsetD8Async, "cuMemsetD8Async")                                                          \
    X(move, cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync")                                                   \
    X(host, cuLaunchHostFunc, "cuLaunchHostFunc")                                                        \
    X(make_many, cuMulticastCreate, "cuMulticastCreate")                                                 \
    X(add_device, cuMulticastAddDevice, "cuMulticastAddDevice")                                          \
    X(bind, cuMulticastBindMem, "cuMulticastBindMem")                                                    \
    X(bind_address, cuMulticastBindAddr, "cuMulticastBindAddr")                                          \
    X(unbind, cuMulticastUnbind, "cuMulticastUnbind")

#define MEMBER(name, exported, asked) __typeof__(&exported) name;
struct driver { USED(MEMBER) NEWER(MEMBER) };
#undef MEMBER

/* `way`: "dlsym", "proc" or, in programs linked with the driver, "linked"; the variable TOOL_WAY goes first. NULL with a message if it fails. */
const struct driver *driver_find(const char *way);
/* Ends the program with the call's name and the driver's code unless it is 0. */
void must(CUresult result, const char *call);

#endif
