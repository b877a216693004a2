/*
 * The functions that the library replaces. One row each:
 *     HOOK(exported name, name asked of cuGetProcAddress, first CUDA version, per-thread stream, library)
 * The exported name is also the name of our own definition, so a direct call arrives here too.
 */
#ifndef PARTAGE_HOOKS_H
#define PARTAGE_HOOKS_H

#include "abi.h"

#define HOOKS(HOOK)                                                                                   \
    HOOK(cuInit, "cuInit", 2000, 0, CUDA)                                                              \
    HOOK(cuGetProcAddress, "cuGetProcAddress", 11030, 0, CUDA)                                         \
    HOOK(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0, CUDA)                                      \
    HOOK(cuMemAlloc_v2, "cuMemAlloc", 3020, 0, CUDA)                                                   \
    HOOK(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0, CUDA)                                         \
    HOOK(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0, CUDA)                                        \
    HOOK(cuMemFree_v2, "cuMemFree", 3020, 0, CUDA)                                                     \
    HOOK(cuMemAlloc, "cuMemAlloc", 2000, 0, CUDA)                                                      \
    HOOK(cuMemAllocPitch, "cuMemAllocPitch", 2000, 0, CUDA)                                            \
    HOOK(cuMemFree, "cuMemFree", 2000, 0, CUDA)                                                        \
    HOOK(cuMemGetInfo, "cuMemGetInfo", 2000, 0, CUDA)                                                  \
    HOOK(cuArrayCreate, "cuArrayCreate", 2000, 0, CUDA)                                                \
    HOOK(cuArray3DCreate, "cuArray3DCreate", 2000, 0, CUDA)                                            \
    HOOK(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0, CUDA)                                               \
    HOOK(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 0, CUDA)                                       \
    HOOK(cuMemCreate, "cuMemCreate", 10020, 0, CUDA)                                                   \
    HOOK(cuMemRelease, "cuMemRelease", 10020, 0, CUDA)                                                 \
    HOOK(cuMemMap, "cuMemMap", 10020, 0, CUDA)                                                         \
    HOOK(cuMemUnmap, "cuMemUnmap", 10020, 0, CUDA)                                                     \
    HOOK(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0, CUDA)                   \
    HOOK(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, 0, CUDA)             \
    HOOK(cuMulticastBindMem, "cuMulticastBindMem", 12010, 0, CUDA)                                      \
    HOOK(cuMulticastBindAddr, "cuMulticastBindAddr", 12010, 0, CUDA)                                    \
    HOOK(cuMulticastBindMem_v2, "cuMulticastBindMem", 13010, 0, CUDA)                                   \
    HOOK(cuMulticastBindAddr_v2, "cuMulticastBindAddr", 13010, 0, CUDA)                                 \
    HOOK(cuMulticastUnbind, "cuMulticastUnbind", 12010, 0, CUDA)                                        \
    HOOK(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0, CUDA)                                           \
    HOOK(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 1, CUDA)                                      \
    HOOK(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0, CUDA)                           \
    HOOK(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, 1, CUDA)                      \
    HOOK(cuMemPoolCreate, "cuMemPoolCreate", 11020, 0, CUDA)                                           \
    HOOK(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0, CUDA)                                         \
    HOOK(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 0, CUDA)                                           \
    HOOK(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020, 0, CUDA)                              \
    HOOK(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, 0, CUDA)                              \
    HOOK(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0, CUDA)                                              \
    HOOK(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 1, CUDA)                                         \
    HOOK(cuArrayCreate_v2, "cuArrayCreate", 3020, 0, CUDA)                                             \
    HOOK(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0, CUDA)                                         \
    HOOK(cuArrayDestroy, "cuArrayDestroy", 2000, 0, CUDA)                                              \
    HOOK(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, 0, CUDA)                              \
    HOOK(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, 0, CUDA)                            \
    HOOK(cuMemMapArrayAsync, "cuMemMapArrayAsync", 11010, 0, CUDA)                                     \
    HOOK(cuMemMapArrayAsync_ptsz, "cuMemMapArrayAsync", 11010, 1, CUDA)                                \
    HOOK(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 0, CUDA)                                        \
    HOOK(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, 0, CUDA)                                  \
    HOOK(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, 0, CUDA)                                      \
    HOOK(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, 0, CUDA)                                    \
    HOOK(cuImportExternalMemory, "cuImportExternalMemory", 10000, 0, CUDA)                             \
    HOOK(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000, 0, CUDA)                           \
    HOOK(cuCtxCreate, "cuCtxCreate", 2000, 0, CUDA)                                                    \
    HOOK(cuCtxCreate_v2, "cuCtxCreate", 3020, 0, CUDA)                                                 \
    HOOK(cuCtxCreate_v3, "cuCtxCreate", 11040, 0, CUDA)                                                \
    HOOK(cuCtxCreate_v4, "cuCtxCreate", 12050, 0, CUDA)                                                \
    HOOK(cuCtxDestroy, "cuCtxDestroy", 2000, 0, CUDA)                                                  \
    HOOK(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0, CUDA)                                               \
    HOOK(cuCtxAttach, "cuCtxAttach", 2000, 0, CUDA)                                                    \
    HOOK(cuCtxDetach, "cuCtxDetach", 2000, 0, CUDA)                                                    \
    HOOK(cuGLCtxCreate, "cuGLCtxCreate", 2000, 0, CUDA)                                                \
    HOOK(cuGLCtxCreate_v2, "cuGLCtxCreate", 3020, 0, CUDA)                                             \
    HOOK(cuVDPAUCtxCreate, "cuVDPAUCtxCreate", 3010, 0, CUDA)                                          \
    HOOK(cuVDPAUCtxCreate_v2, "cuVDPAUCtxCreate", 3020, 0, CUDA)                                       \
    HOOK(cuCtxSetLimit, "cuCtxSetLimit", 3010, 0, CUDA)                                                \
    HOOK(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0, CUDA)                          \
    HOOK(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0, CUDA)                        \
    HOOK(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0, CUDA)                    \
    HOOK(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0, CUDA)                            \
    HOOK(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0, CUDA)                        \
    HOOK(cuCheckpointProcessRestore, "cuCheckpointProcessRestore", 12080, 0, CUDA)                      \
    HOOK(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, 0, CUDA)                                          \
    HOOK(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, 0, CUDA)                                        \
    HOOK(cuModuleLoad, "cuModuleLoad", 2000, 0, CUDA)                                                  \
    HOOK(cuModuleLoadData, "cuModuleLoadData", 2000, 0, CUDA)                                          \
    HOOK(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010, 0, CUDA)                                      \
    HOOK(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000, 0, CUDA)                                \
    HOOK(cuModuleUnload, "cuModuleUnload", 2000, 0, CUDA)                                              \
    HOOK(cuLibraryLoadData, "cuLibraryLoadData", 12000, 0, CUDA)                                       \
    HOOK(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000, 0, CUDA)                               \
    HOOK(cuLibraryUnload, "cuLibraryUnload", 12000, 0, CUDA)                                           \
    HOOK(cuLaunch, "cuLaunch", 2000, 0, CUDA)                                                          \
    HOOK(cuLaunchGrid, "cuLaunchGrid", 2000, 0, CUDA)                                                  \
    HOOK(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, 0, CUDA)                                        \
    HOOK(cuLaunchKernel, "cuLaunchKernel", 4000, 0, CUDA)                                              \
    HOOK(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, 1, CUDA)                                         \
    HOOK(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, 0, CUDA)                                         \
    HOOK(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, 1, CUDA)                                    \
    HOOK(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, 0, CUDA)                        \
    HOOK(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000, 1, CUDA)                   \
    HOOK(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000, 0, CUDA)  \
    HOOK(cuMemsetD8_v2, "cuMemsetD8", 3020, 0, CUDA)                                                  \
    HOOK(cuMemsetD8_v2_ptds, "cuMemsetD8", 7000, 1, CUDA)                                             \
    HOOK(cuMemsetD8Async, "cuMemsetD8Async", 3020, 0, CUDA)                                           \
    HOOK(cuMemsetD8Async_ptsz, "cuMemsetD8Async", 7000, 1, CUDA)                                      \
    HOOK(cuMemsetD16_v2, "cuMemsetD16", 3020, 0, CUDA)                                                \
    HOOK(cuMemsetD16_v2_ptds, "cuMemsetD16", 7000, 1, CUDA)                                           \
    HOOK(cuMemsetD16Async, "cuMemsetD16Async", 3020, 0, CUDA)                                         \
    HOOK(cuMemsetD16Async_ptsz, "cuMemsetD16Async", 7000, 1, CUDA)                                    \
    HOOK(cuMemsetD32_v2, "cuMemsetD32", 3020, 0, CUDA)                                                \
    HOOK(cuMemsetD32_v2_ptds, "cuMemsetD32", 7000, 1, CUDA)                                           \
    HOOK(cuMemsetD32Async, "cuMemsetD32Async", 3020, 0, CUDA)                                         \
    HOOK(cuMemsetD32Async_ptsz, "cuMemsetD32Async", 7000, 1, CUDA)                                    \
    HOOK(cuMemsetD2D8_v2, "cuMemsetD2D8", 3020, 0, CUDA)                                              \
    HOOK(cuMemsetD2D8_v2_ptds, "cuMemsetD2D8", 7000, 1, CUDA)                                         \
    HOOK(cuMemsetD2D8Async, "cuMemsetD2D8Async", 3020, 0, CUDA)                                       \
    HOOK(cuMemsetD2D8Async_ptsz, "cuMemsetD2D8Async", 7000, 1, CUDA)                                  \
    HOOK(cuMemsetD2D16_v2, "cuMemsetD2D16", 3020, 0, CUDA)                                            \
    HOOK(cuMemsetD2D16_v2_ptds, "cuMemsetD2D16", 7000, 1, CUDA)                                       \
    HOOK(cuMemsetD2D16Async, "cuMemsetD2D16Async", 3020, 0, CUDA)                                     \
    HOOK(cuMemsetD2D16Async_ptsz, "cuMemsetD2D16Async", 7000, 1, CUDA)                                \
    HOOK(cuMemsetD2D32_v2, "cuMemsetD2D32", 3020, 0, CUDA)                                            \
    HOOK(cuMemsetD2D32_v2_ptds, "cuMemsetD2D32", 7000, 1, CUDA)                                       \
    HOOK(cuMemsetD2D32Async, "cuMemsetD2D32Async", 3020, 0, CUDA)                                     \
    HOOK(cuMemsetD2D32Async_ptsz, "cuMemsetD2D32Async", 7000, 1, CUDA)                                \
    HOOK(cuMemcpyDtoD_v2, "cuMemcpyDtoD", 3020, 0, CUDA)                                              \
    HOOK(cuMemcpyDtoD_v2_ptds, "cuMemcpyDtoD", 7000, 1, CUDA)                                         \
    HOOK(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020, 0, CUDA)                                    \
    HOOK(cuMemcpyDtoDAsync_v2_ptsz, "cuMemcpyDtoDAsync", 7000, 1, CUDA)                               \
    HOOK(cuMemcpyDtoA_v2, "cuMemcpyDtoA", 3020, 0, CUDA)                                              \
    HOOK(cuMemcpyDtoA_v2_ptds, "cuMemcpyDtoA", 7000, 1, CUDA)                                         \
    HOOK(cuMemcpyAtoD_v2, "cuMemcpyAtoD", 3020, 0, CUDA)                                              \
    HOOK(cuMemcpyAtoD_v2_ptds, "cuMemcpyAtoD", 7000, 1, CUDA)                                         \
    HOOK(cuMemcpyAtoA_v2, "cuMemcpyAtoA", 3020, 0, CUDA)                                              \
    HOOK(cuMemcpyAtoA_v2_ptds, "cuMemcpyAtoA", 7000, 1, CUDA)                                         \
    HOOK(cuMemcpy, "cuMemcpy", 4000, 0, CUDA)                                                         \
    HOOK(cuMemcpy_ptds, "cuMemcpy", 7000, 1, CUDA)                                                    \
    HOOK(cuMemcpyAsync, "cuMemcpyAsync", 4000, 0, CUDA)                                               \
    HOOK(cuMemcpyAsync_ptsz, "cuMemcpyAsync", 7000, 1, CUDA)                                          \
    HOOK(cuMemcpyWithAttributesAsync, "cuMemcpyWithAttributesAsync", 13020, 0, CUDA)                  \
    HOOK(cuMemcpyWithAttributesAsync_ptsz, "cuMemcpyWithAttributesAsync", 13020, 1, CUDA)             \
    HOOK(cuMemcpy2D_v2, "cuMemcpy2D", 3020, 0, CUDA)                                                  \
    HOOK(cuMemcpy2D_v2_ptds, "cuMemcpy2D", 7000, 1, CUDA)                                             \
    HOOK(cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", 3020, 0, CUDA)                                \
    HOOK(cuMemcpy2DUnaligned_v2_ptds, "cuMemcpy2DUnaligned", 7000, 1, CUDA)                           \
    HOOK(cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", 3020, 0, CUDA)                                        \
    HOOK(cuMemcpy2DAsync_v2_ptsz, "cuMemcpy2DAsync", 7000, 1, CUDA)                                   \
    HOOK(cuMemcpy3D_v2, "cuMemcpy3D", 3020, 0, CUDA)                                                  \
    HOOK(cuMemcpy3D_v2_ptds, "cuMemcpy3D", 7000, 1, CUDA)                                             \
    HOOK(cuMemcpy3DAsync_v2, "cuMemcpy3DAsync", 3020, 0, CUDA)                                        \
    HOOK(cuMemcpy3DAsync_v2_ptsz, "cuMemcpy3DAsync", 7000, 1, CUDA)                                   \
    HOOK(cuMemcpyPeer, "cuMemcpyPeer", 4000, 0, CUDA)                                                 \
    HOOK(cuMemcpyPeer_ptds, "cuMemcpyPeer", 7000, 1, CUDA)                                            \
    HOOK(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000, 0, CUDA)                                       \
    HOOK(cuMemcpyPeerAsync_ptsz, "cuMemcpyPeerAsync", 7000, 1, CUDA)                                  \
    HOOK(cuMemcpy3DPeer, "cuMemcpy3DPeer", 4000, 0, CUDA)                                             \
    HOOK(cuMemcpy3DPeer_ptds, "cuMemcpy3DPeer", 7000, 1, CUDA)                                        \
    HOOK(cuMemcpy3DPeerAsync, "cuMemcpy3DPeerAsync", 4000, 0, CUDA)                                   \
    HOOK(cuMemcpy3DPeerAsync_ptsz, "cuMemcpy3DPeerAsync", 7000, 1, CUDA)                              \
    HOOK(cuMemcpyBatchAsync, "cuMemcpyBatchAsync", 12080, 0, CUDA)                                    \
    HOOK(cuMemcpyBatchAsync_ptsz, "cuMemcpyBatchAsync", 12080, 1, CUDA)                               \
    HOOK(cuMemcpyBatchAsync_v2, "cuMemcpyBatchAsync", 13000, 0, CUDA)                                 \
    HOOK(cuMemcpyBatchAsync_v2_ptsz, "cuMemcpyBatchAsync", 13000, 1, CUDA)                            \
    HOOK(cuMemcpy3DBatchAsync, "cuMemcpy3DBatchAsync", 12080, 0, CUDA)                                \
    HOOK(cuMemcpy3DBatchAsync_ptsz, "cuMemcpy3DBatchAsync", 12080, 1, CUDA)                           \
    HOOK(cuMemcpy3DBatchAsync_v2, "cuMemcpy3DBatchAsync", 13000, 0, CUDA)                             \
    HOOK(cuMemcpy3DBatchAsync_v2_ptsz, "cuMemcpy3DBatchAsync", 13000, 1, CUDA)                        \
    HOOK(cuMemcpy3DWithAttributesAsync, "cuMemcpy3DWithAttributesAsync", 13020, 0, CUDA)              \
    HOOK(cuMemcpy3DWithAttributesAsync_ptsz, "cuMemcpy3DWithAttributesAsync", 13020, 1, CUDA)         \
    HOOK(cuGraphLaunch, "cuGraphLaunch", 10000, 0, CUDA)                                               \
    HOOK(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, 1, CUDA)                                          \
    HOOK(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040, 0, CUDA)                             \
    HOOK(cuGraphAddNode, "cuGraphAddNode", 12020, 0, CUDA)                                              \
    HOOK(cuGraphAddNode_v2, "cuGraphAddNode", 12030, 0, CUDA)                                           \
    HOOK(cuGraphAddNode_v3, "cuGraphAddNode", 13040, 0, CUDA)                                         \
    HOOK(cuGraphInstantiate, "cuGraphInstantiate", 10000, 0, CUDA)                                      \
    HOOK(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, 0, CUDA)                                   \
    HOOK(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, 0, CUDA)                    \
    HOOK(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000, 0, CUDA)                  \
    HOOK(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000, 1, CUDA)             \
    HOOK(cuGraphUpload, "cuGraphUpload", 11010, 0, CUDA)                                                \
    HOOK(cuGraphUpload_ptsz, "cuGraphUpload", 11010, 1, CUDA)                                           \
    HOOK(cuGraphExecUpdate, "cuGraphExecUpdate", 10020, 0, CUDA)                                        \
    HOOK(cuGraphExecUpdate_v2, "cuGraphExecUpdate", 12000, 0, CUDA)                                     \
    HOOK(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, 0, CUDA)                                     \
    HOOK(cuStreamBeginCapture, "cuStreamBeginCapture", 10000, 0, CUDA)                                 \
    HOOK(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, 1, CUDA)                            \
    HOOK(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 0, CUDA)                              \
    HOOK(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, 1, CUDA)                         \
    HOOK(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, 0, CUDA)                   \
    HOOK(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030, 1, CUDA)              \
    HOOK(cuStreamBeginRecaptureToGraph, "cuStreamBeginRecaptureToGraph", 13030, 0, CUDA)              \
    HOOK(cuStreamBeginRecaptureToGraph_ptsz, "cuStreamBeginRecaptureToGraph", 13030, 1, CUDA)         \
    HOOK(cuStreamBeginCaptureToCig, "cuStreamBeginCaptureToCig", 13010, 0, CUDA)                      \
    HOOK(cuStreamBeginCaptureToCig_ptsz, "cuStreamBeginCaptureToCig", 13010, 1, CUDA)                 \
    HOOK(cuStreamEndCaptureToCig, "cuStreamEndCaptureToCig", 13010, 0, CUDA)                          \
    HOOK(cuStreamEndCaptureToCig_ptsz, "cuStreamEndCaptureToCig", 13010, 1, CUDA)                     \
    HOOK(cuStreamEndCapture, "cuStreamEndCapture", 10000, 0, CUDA)                                     \
    HOOK(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000, 1, CUDA)                                \
    HOOK(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, 0, CUDA)                                        \
    HOOK(cuStreamWaitEvent_ptsz, "cuStreamWaitEvent", 7000, 1, CUDA)                                   \
    HOOK(cuStreamWaitValue32, "cuStreamWaitValue32", 8000, 0, CUDA)                                    \
    HOOK(cuStreamWaitValue32_ptsz, "cuStreamWaitValue32", 8000, 1, CUDA)                               \
    HOOK(cuStreamWaitValue32_v2, "cuStreamWaitValue32", 11070, 0, CUDA)                                \
    HOOK(cuStreamWaitValue32_v2_ptsz, "cuStreamWaitValue32", 11070, 1, CUDA)                           \
    HOOK(cuStreamWaitValue64, "cuStreamWaitValue64", 9000, 0, CUDA)                                    \
    HOOK(cuStreamWaitValue64_ptsz, "cuStreamWaitValue64", 9000, 1, CUDA)                               \
    HOOK(cuStreamWaitValue64_v2, "cuStreamWaitValue64", 11070, 0, CUDA)                                \
    HOOK(cuStreamWaitValue64_v2_ptsz, "cuStreamWaitValue64", 11070, 1, CUDA)                           \
    HOOK(cuStreamAddCallback, "cuStreamAddCallback", 5000, 0, CUDA)                                    \
    HOOK(cuStreamAddCallback_ptsz, "cuStreamAddCallback", 7000, 1, CUDA)                               \
    HOOK(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, 0, CUDA)                                         \
    HOOK(cuLaunchHostFunc_ptsz, "cuLaunchHostFunc", 10000, 1, CUDA)                                    \
    HOOK(cuLaunchHostFunc_v2, "cuLaunchHostFunc", 13010, 0, CUDA)                                      \
    HOOK(cuLaunchHostFunc_v2_ptsz, "cuLaunchHostFunc", 13010, 1, CUDA)                                 \
    HOOK(cuStreamBatchMemOp, "cuStreamBatchMemOp", 8000, 0, CUDA)                                     \
    HOOK(cuStreamBatchMemOp_ptsz, "cuStreamBatchMemOp", 8000, 1, CUDA)                                \
    HOOK(cuStreamBatchMemOp_v2, "cuStreamBatchMemOp", 11070, 0, CUDA)                                 \
    HOOK(cuStreamBatchMemOp_v2_ptsz, "cuStreamBatchMemOp", 11070, 1, CUDA)                            \
    HOOK(cuWaitExternalSemaphoresAsync, "cuWaitExternalSemaphoresAsync", 10000, 0, CUDA)              \
    HOOK(cuWaitExternalSemaphoresAsync_ptsz, "cuWaitExternalSemaphoresAsync", 10000, 1, CUDA)         \
    HOOK(cuCtxWaitEvent, "cuCtxWaitEvent", 12050, 0, CUDA)                                            \
    HOOK(cuGreenCtxWaitEvent, "cuGreenCtxWaitEvent", 12040, 0, CUDA)                                  \
    HOOK(cuStreamCreate, "cuStreamCreate", 2000, 0, CUDA)                                              \
    HOOK(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, 0, CUDA)                      \
    HOOK(cuStreamDestroy, "cuStreamDestroy", 2000, 0, CUDA)                                            \
    HOOK(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0, CUDA)                                         \
    HOOK(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0, CUDA)                                    \
    HOOK(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, 1, CUDA)                               \
    HOOK(cuEventSynchronize, "cuEventSynchronize", 2000, 0, CUDA)                                      \
    HOOK(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0, CUDA)                                          \
    HOOK(cuCtxSynchronize_v2, "cuCtxSynchronize", 13000, 0, CUDA)                                     \
    HOOK(nvmlDeviceGetMemoryInfo, "", 0, 0, NVML)                                                      \
    HOOK(nvmlDeviceGetMemoryInfo_v2, "", 0, 0, NVML)

CUresult cuInit(unsigned flags);
CUresult cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemAlloc(unsigned *pointer, unsigned bytes);
CUresult cuMemAllocPitch(unsigned *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element);
CUresult cuMemFree(unsigned pointer);
CUresult cuMemGetInfo(unsigned *free, unsigned *total);
CUresult cuArrayCreate(CUarray *array, const void *shape);
CUresult cuArray3DCreate(CUarray *array, const void *shape);
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags);
CUresult cuMemRelease(CUmemHandle handle);
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes);
CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address);
CUresult cuMemImportFromShareableHandle(CUmemHandle *handle, void *shared, int type);
CUresult cuMulticastBindMem(CUmemHandle many, size_t many_offset, CUmemHandle handle, size_t offset, size_t bytes,
                            unsigned long long flags);
CUresult cuMulticastBindAddr(CUmemHandle many, size_t many_offset, CUdeviceptr pointer, size_t bytes,
                             unsigned long long flags);
CUresult cuMulticastBindMem_v2(CUmemHandle many, CUdevice device, size_t many_offset, CUmemHandle handle, size_t offset,
                               size_t bytes, unsigned long long flags);
CUresult cuMulticastBindAddr_v2(CUmemHandle many, CUdevice device, size_t many_offset, CUdeviceptr pointer, size_t bytes,
                                unsigned long long flags);
CUresult cuMulticastUnbind(CUmemHandle many, CUdevice device, size_t many_offset, size_t bytes);
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUpool pool, CUstream stream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUpool pool, CUstream stream);
CUresult cuMemPoolCreate(CUpool *pool, const CUpoolProps *props);
CUresult cuMemPoolDestroy(CUpool pool);
CUresult cuMemPoolTrimTo(CUpool pool, size_t keep);
CUresult cuMemPoolExportPointer(CUpoolPointer *shared, CUdeviceptr pointer);
CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUpool pool, CUpoolPointer *shared);
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);
CUresult cuArrayCreate_v2(CUarray *array, const CUarrayShape *shape);
CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3D *shape);
CUresult cuArrayDestroy(CUarray array);
CUresult cuMipmappedArrayCreate(CUmipmap *array, const CUarray3D *shape, unsigned levels);
CUresult cuMipmappedArrayDestroy(CUmipmap array);
CUresult cuMemMapArrayAsync(CUarrayMap *list, unsigned count, CUstream stream);
CUresult cuMemMapArrayAsync_ptsz(CUarrayMap *list, unsigned count, CUstream stream);
CUresult cuIpcGetMemHandle(CUipcMem *handle, CUdeviceptr pointer);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMem handle, unsigned flags);
CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMem handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer);
CUresult cuImportExternalMemory(CUexternal *external, const CUexternalMemory *description);
CUresult cuDestroyExternalMemory(CUexternal external);
CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v3(CUcontext *context, void *params, int count, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags, CUdevice device);
CUresult cuCtxDestroy(CUcontext context);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxAttach(CUcontext *context, unsigned flags);
CUresult cuCtxDetach(CUcontext context);
CUresult cuGLCtxCreate(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned flags, CUdevice device, uint32_t video, void *find);
CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device, uint32_t video, void *find);
CUresult cuCtxSetLimit(int limit, size_t value);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCheckpointProcessRestore(int pid, const CUrestoreArgs *args);
CUresult cuGreenCtxCreate(CUgreen *green, void *resources, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(CUgreen green);
CUresult cuModuleLoad(CUmodule *module, const char *path);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, void *options, void **values);
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, void *jit, void **jit_values, unsigned jit_count,
                           void *options, void **values, unsigned count);
CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *jit, void **jit_values,
                               unsigned jit_count, void *options, void **values, unsigned count);
CUresult cuLibraryUnload(CUlibrary library);
CUresult cuLaunch(CUfunction function);
CUresult cuLaunchGrid(CUfunction function, int width, int height);
CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream);
#define LAUNCH_ARGS                                                                                       \
    CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,    \
        unsigned shared, CUstream stream, void **params
CUresult cuLaunchKernel(LAUNCH_ARGS, void **extra);
CUresult cuLaunchKernel_ptsz(LAUNCH_ARGS, void **extra);
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **params, void **extra);
CUresult cuLaunchCooperativeKernel(LAUNCH_ARGS);
CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_ARGS);
CUresult cuLaunchCooperativeKernelMultiDevice(void *list, unsigned count, unsigned flags);
#define FILL_2D(type) (CUdeviceptr at, size_t pitch, type value, size_t width, size_t height)
#define FILL_2D_ON(type) (CUdeviceptr at, size_t pitch, type value, size_t width, size_t height, CUstream stream)
CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t count);
CUresult cuMemsetD8_v2_ptds(CUdeviceptr at, unsigned char value, size_t count);
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t count, CUstream stream);
CUresult cuMemsetD8Async_ptsz(CUdeviceptr at, unsigned char value, size_t count, CUstream stream);
CUresult cuMemsetD16_v2(CUdeviceptr at, unsigned short value, size_t count);
CUresult cuMemsetD16_v2_ptds(CUdeviceptr at, unsigned short value, size_t count);
CUresult cuMemsetD16Async(CUdeviceptr at, unsigned short value, size_t count, CUstream stream);
CUresult cuMemsetD16Async_ptsz(CUdeviceptr at, unsigned short value, size_t count, CUstream stream);
CUresult cuMemsetD32_v2(CUdeviceptr at, unsigned value, size_t count);
CUresult cuMemsetD32_v2_ptds(CUdeviceptr at, unsigned value, size_t count);
CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream stream);
CUresult cuMemsetD32Async_ptsz(CUdeviceptr at, unsigned value, size_t count, CUstream stream);
CUresult cuMemsetD2D8_v2 FILL_2D(unsigned char);
CUresult cuMemsetD2D8_v2_ptds FILL_2D(unsigned char);
CUresult cuMemsetD2D8Async FILL_2D_ON(unsigned char);
CUresult cuMemsetD2D8Async_ptsz FILL_2D_ON(unsigned char);
CUresult cuMemsetD2D16_v2 FILL_2D(unsigned short);
CUresult cuMemsetD2D16_v2_ptds FILL_2D(unsigned short);
CUresult cuMemsetD2D16Async FILL_2D_ON(unsigned short);
CUresult cuMemsetD2D16Async_ptsz FILL_2D_ON(unsigned short);
CUresult cuMemsetD2D32_v2 FILL_2D(unsigned);
CUresult cuMemsetD2D32_v2_ptds FILL_2D(unsigned);
CUresult cuMemsetD2D32Async FILL_2D_ON(unsigned);
CUresult cuMemsetD2D32Async_ptsz FILL_2D_ON(unsigned);
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoA_v2(CUarray to, size_t at, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoA_v2_ptds(CUarray to, size_t at, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t at, size_t bytes);
CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t at, size_t bytes);
CUresult cuMemcpyAtoA_v2(CUarray to, size_t at, CUarray from, size_t from_at, size_t bytes);
CUresult cuMemcpyAtoA_v2_ptds(CUarray to, size_t at, CUarray from, size_t from_at, size_t bytes);
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *how, CUstream stream);
CUresult cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *how, CUstream stream);
CUresult cuMemcpy2D_v2(const CUcopy2D *copy);
CUresult cuMemcpy2D_v2_ptds(const CUcopy2D *copy);
CUresult cuMemcpy2DUnaligned_v2(const CUcopy2D *copy);
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUcopy2D *copy);
CUresult cuMemcpy2DAsync_v2(const CUcopy2D *copy, CUstream stream);
CUresult cuMemcpy2DAsync_v2_ptsz(const CUcopy2D *copy, CUstream stream);
CUresult cuMemcpy3D_v2(const CUcopy3D *copy);
CUresult cuMemcpy3D_v2_ptds(const CUcopy3D *copy);
CUresult cuMemcpy3DAsync_v2(const CUcopy3D *copy, CUstream stream);
CUresult cuMemcpy3DAsync_v2_ptsz(const CUcopy3D *copy, CUstream stream);
#define PEERS (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes)
#define PEERS_ON (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream stream)
#define COPY_LIST                                                                                         \
    CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *how, size_t *which, size_t ways
CUresult cuMemcpyPeer PEERS;
CUresult cuMemcpyPeer_ptds PEERS;
CUresult cuMemcpyPeerAsync PEERS_ON;
CUresult cuMemcpyPeerAsync_ptsz PEERS_ON;
CUresult cuMemcpy3DPeer(const CUcopyPeer *copy);
CUresult cuMemcpy3DPeer_ptds(const CUcopyPeer *copy);
CUresult cuMemcpy3DPeerAsync(const CUcopyPeer *copy, CUstream stream);
CUresult cuMemcpy3DPeerAsync_ptsz(const CUcopyPeer *copy, CUstream stream);
CUresult cuMemcpyBatchAsync(COPY_LIST, size_t *fault, CUstream stream);
CUresult cuMemcpyBatchAsync_ptsz(COPY_LIST, size_t *fault, CUstream stream);
CUresult cuMemcpyBatchAsync_v2(COPY_LIST, CUstream stream);
CUresult cuMemcpyBatchAsync_v2_ptsz(COPY_LIST, CUstream stream);
CUresult cuMemcpy3DBatchAsync(size_t count, CUcopyPart *list, size_t *fault, unsigned long long flags, CUstream stream);
CUresult cuMemcpy3DBatchAsync_ptsz(size_t count, CUcopyPart *list, size_t *fault, unsigned long long flags,
                                   CUstream stream);
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUcopyPart *list, unsigned long long flags, CUstream stream);
CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUcopyPart *list, unsigned long long flags, CUstream stream);
CUresult cuMemcpy3DWithAttributesAsync(CUcopyPart *copy, unsigned long long flags, CUstream stream);
CUresult cuMemcpy3DWithAttributesAsync_ptsz(CUcopyPart *copy, unsigned long long flags, CUstream stream);
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream);
CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                CUmemAllocNode *params);
CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count, CUnodeParams *params);
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, const void *edges, size_t count,
                           CUnodeParams *params);
CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, const void *edges, size_t count,
                           CUnodeParams *params);
CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *fault, char *log, size_t room);
CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *fault, char *log, size_t room);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUinstantiateParams *params);
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUinstantiateParams *params);
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream);
CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream);
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *fault, int *why);
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *info);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuStreamBeginCapture(CUstream stream);
CUresult cuStreamBeginCapture_ptsz(CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode);
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const void *needs, const void *edges,
                                     size_t count, int mode);
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const void *needs, const void *edges,
                                          size_t count, int mode);
CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *callback, void *data);
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *callback, void *data);
CUresult cuStreamBeginCaptureToCig(CUstream stream, void *params);
CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *params);
CUresult cuStreamEndCaptureToCig(CUstream stream);
CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags);
CUresult cuStreamWaitValue32_ptsz(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags);
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags);
CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags);
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags);
CUresult cuStreamWaitValue64_ptsz(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags);
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags);
CUresult cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags);
CUresult cuStreamAddCallback(CUstream stream, void *callback, void *data, unsigned flags);
CUresult cuStreamAddCallback_ptsz(CUstream stream, void *callback, void *data, unsigned flags);
CUresult cuLaunchHostFunc(CUstream stream, void *function, void *data);
CUresult cuLaunchHostFunc_ptsz(CUstream stream, void *function, void *data);
CUresult cuLaunchHostFunc_v2(CUstream stream, void *function, void *data, unsigned mode);
CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, void *function, void *data, unsigned mode);
CUresult cuStreamBatchMemOp(CUstream stream, unsigned parts, CUbatchOp *list, unsigned flags);
CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned parts, CUbatchOp *list, unsigned flags);
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned parts, CUbatchOp *list, unsigned flags);
CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned parts, CUbatchOp *list, unsigned flags);
CUresult cuWaitExternalSemaphoresAsync(const void *list, const void *params, unsigned parts, CUstream stream);
CUresult cuWaitExternalSemaphoresAsync_ptsz(const void *list, const void *params, unsigned parts, CUstream stream);
CUresult cuCtxWaitEvent(CUcontext context, CUevent event);
CUresult cuGreenCtxWaitEvent(CUgreen green, CUevent event);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize_v2(CUcontext context);
nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, nvmlMemory *memory);
nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, nvmlMemory2 *memory);

#endif
