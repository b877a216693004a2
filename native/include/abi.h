/*
 * The parts of the CUDA driver API and of NVML that the library uses, by their public documentation:
 * names, signatures, values and the offsets of the few fields that are read.
 */
#ifndef PARTAGE_ABI_H
#define PARTAGE_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemHandle; /* CUmemGenericAllocationHandle */
typedef struct cu_context *CUcontext;
typedef struct cu_stream *CUstream;
typedef struct cu_event *CUevent;
typedef struct cu_function *CUfunction;
typedef struct cu_module *CUmodule;
typedef struct cu_library *CUlibrary;
typedef struct cu_graph *CUgraph;
typedef struct cu_graph_exec *CUgraphExec;
typedef struct cu_graph_node *CUgraphNode;
typedef struct cu_array *CUarray;
typedef struct cu_mipmap *CUmipmap;
typedef struct cu_pool *CUpool;
typedef struct cu_external *CUexternal;
typedef struct cu_green *CUgreen;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
};

typedef struct { unsigned char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMem;

typedef struct {
    size_t Width, Height;
    int Format;
    unsigned NumChannels;
} CUarrayShape;

typedef struct {
    size_t Width, Height, Depth;
    int Format;
    unsigned NumChannels, Flags;
} CUarray3D;

enum { CU_ARRAY_LAYERED = 0x1, CU_ARRAY_CUBEMAP = 0x4, CU_ARRAY_SPARSE = 0x40, CU_ARRAY_DEFERRED = 0x80 };

typedef struct {
    int resourceType;
    union { CUarray array; CUmipmap mipmap; } resource;
    int subresourceType; /* 0: of a level, 1: of the tail of the small ones */
    union {
        struct { unsigned level, layer, offsetX, offsetY, offsetZ, extentWidth, extentHeight, extentDepth; } sparseLevel;
        struct { unsigned layer; unsigned long long offset, size; } miptail;
    } subresource;
    int memOperationType, memHandleType;
    CUmemHandle memHandle;
    unsigned long long offset;
    unsigned deviceBitMask, flags, reserved[2];
} CUarrayMap;
enum { CU_ARRAY_MAP = 1, CU_ARRAY_UNMAP = 2 };

typedef struct {
    int type;
    int id;       /* of a domain: its device in the lowest byte, itself in the next */
} CUlocation;
enum { CU_LOCATION_NONE = 0, CU_LOCATION_DEVICE = 1, CU_LOCATION_HOST = 2, CU_LOCATION_DOMAIN = 6 };

typedef struct {
    int type, requestedHandleTypes;
    CUlocation location;
    void *win32HandleMetaData;
    struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; unsigned char reserved[4]; } allocFlags;
} CUallocationProp;

typedef struct {
    int allocType, handleTypes;
    CUlocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUpoolProps;

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

typedef struct {
    int type;
    union { int fd; struct { void *handle; const void *name; } win32; const void *nvSci; } handle;
    unsigned long long size;
    unsigned flags, reserved[16];
} CUexternalMemory;

typedef struct {
    CUpoolProps poolProps;
    const void *accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    CUdeviceptr dptr;
} CUmemAllocNode;

typedef struct {
    int type, reserved0[3];
    union {
        long long reserved1[29];
        CUmemAllocNode alloc;
        struct { CUdeviceptr dptr; } free;
        struct { CUgraph graph; int ownership; } graph;
    };
    long long reserved2;
} CUnodeParams;

typedef struct {
    unsigned long long flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    int result_out;
} CUinstantiateParams;

typedef struct { unsigned char reserved[64]; } CUpoolPointer;

typedef struct { CUuuid before, after; } CUcardPair;

typedef struct {
    const CUcardPair *pairs;
    unsigned count;
    char reserved[52];
} CUrestoreArgs; /* CUcheckpointRestoreArgs; without pairs before CUDA 13.0 */

typedef struct {
    struct { size_t x, y; int type; const void *host; CUdeviceptr device; CUarray array; size_t pitch; } src, dst;
    size_t width, height;
} CUcopy2D; /* CUDA_MEMCPY2D_v2 */

typedef struct {
    struct {
        size_t x, y, z, level;
        int type;
        const void *host;
        CUdeviceptr device;
        CUarray array;
        void *reserved;
        size_t pitch, height;
    } src, dst;
    size_t width, height, depth;
} CUcopy3D; /* CUDA_MEMCPY3D_v2 */

typedef CUcopy3D CUcopyPeer; /* CUDA_MEMCPY3D_PEER: each end's context in place of the reserved word */

typedef struct {
    int type;
    union {
        struct { CUdeviceptr at; size_t row, layer; CUlocation hint; } pointer;
        struct { CUarray array; size_t x, y, z; } array;
    };
} CUcopyEnd; /* CUmemcpy3DOperand */

typedef struct {
    CUcopyEnd src, dst;
    size_t width, height, depth;
    int order;
    unsigned flags;
} CUcopyPart; /* CUDA_MEMCPY3D_BATCH_OP */
enum { CU_COPY_POINTER = 1, CU_COPY_ARRAY = 2 };

typedef struct {
    int operation;
    CUdeviceptr address;
    uint64_t value; /* of a wait or a write */
    unsigned flags;
    uint64_t others[2];
} CUbatchOp; /* CUstreamBatchMemOpParams */
enum { CU_OP_WAIT_32 = 1, CU_OP_WAIT_64 = 4 };

enum { CU_POOL_RELEASE_THRESHOLD = 4, CU_POOL_RESERVED_CURRENT = 5, CU_POOL_USED_CURRENT = 7, CU_POOL_LOCATION_ID = 11,
       CU_POOL_LOCATION_TYPE = 12 };
enum { CU_ALLOCATION_MANAGED = 2 };
enum { CU_GRAPH_MEM_USED_CURRENT = 0, CU_GRAPH_MEM_RESERVED_CURRENT = 2 };
enum { CU_NODE_KERNEL = 0, CU_NODE_GRAPH = 4, CU_NODE_MEM_ALLOC = 10, CU_NODE_MEM_FREE = 11 };
enum { CU_INSTANTIATE_AUTO_FREE = 1, CU_INSTANTIATE_UPLOAD = 2 };
enum {
    CU_LIMIT_STACK_SIZE = 0,
    CU_LIMIT_PRINTF_SIZE = 1,
    CU_LIMIT_MALLOC_HEAP_SIZE = 2,
    CU_LIMIT_SYNC_DEPTH = 3,
    CU_LIMIT_PENDING_LAUNCHES = 4,
    CU_LIMIT_BLOCK_MEMORY = 10,
};
enum { CU_DEVICE_PROCESSORS = 16, CU_DEVICE_THREADS_EACH = 39 };
enum { CU_POINTER_MEMORY_TYPE = 2, CU_POINTER_DEVICE_ORDINAL = 9, CU_POINTER_RANGE_SIZE = 11 };
enum { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2, CU_MEMORY_ARRAY = 3, CU_MEMORY_UNIFIED = 4 };
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_CAPTURE_THREAD_LOCAL = 1, CU_CAPTURE_RELAXED = 2 };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_PROC_PER_THREAD_STREAM = 2 };
enum { CU_MEM_ATTACH_GLOBAL = 1 };
#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

typedef int nvmlReturn;
typedef struct nvml_device *nvmlDevice;
typedef struct { unsigned long long total, free, used; } nvmlMemory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory2;
enum { NVML_SUCCESS = 0, NVML_ERROR_FUNCTION_NOT_FOUND = 13 };

#endif
