/*
 * Stand-in for libcuda.so.1: fills and copies. Those within the card take its time: a fill 1 ns for each 1000 bytes, a copy
 * twice that. Copies from and to the host run on an engine that is not modelled.
 */
#include "cuda.h"

#define FILL_NS(bytes) ((uint64_t)(bytes) / 1000)
#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

#define FILLS(name, type)                                                                                \
    CUresult name##_v2(CUdeviceptr at, type value, size_t count)                                         \
    {                                                                                                    \
        return (void)at, (void)value, fake_run(FILL_NS(count * sizeof value), NULL);                     \
    }                                                                                                    \
    CUresult name##_v2_ptds(CUdeviceptr at, type value, size_t count)                                    \
    {                                                                                                    \
        return (void)at, (void)value, fake_run(FILL_NS(count * sizeof value), CU_STREAM_PER_THREAD);     \
    }                                                                                                    \
    CUresult name##Async(CUdeviceptr at, type value, size_t count, CUstream stream)                      \
    {                                                                                                    \
        return (void)at, (void)value, fake_run(FILL_NS(count * sizeof value), stream);                   \
    }                                                                                                    \
    CUresult name##Async_ptsz(CUdeviceptr at, type value, size_t count, CUstream stream)                 \
    {                                                                                                    \
        return (void)at, (void)value, fake_run(FILL_NS(count * sizeof value), OWN(stream));              \
    }
#define AREA FILL_NS(width * height * sizeof value)
#define FILLS_2D(name, type)                                                                             \
    CUresult name##_v2 FILL_2D(type) { return (void)at, (void)pitch, fake_run(AREA, NULL); }             \
    CUresult name##_v2_ptds FILL_2D(type) { return (void)at, (void)pitch, fake_run(AREA, CU_STREAM_PER_THREAD); } \
    CUresult name##Async FILL_2D_ON(type) { return (void)at, (void)pitch, fake_run(AREA, stream); }      \
    CUresult name##Async_ptsz FILL_2D_ON(type) { return (void)at, (void)pitch, fake_run(AREA, OWN(stream)); }

FILLS(cuMemsetD8, unsigned char)
FILLS(cuMemsetD16, unsigned short)
FILLS(cuMemsetD32, unsigned)
FILLS_2D(cuMemsetD2D8, unsigned char)
FILLS_2D(cuMemsetD2D16, unsigned short)
FILLS_2D(cuMemsetD2D32, unsigned)

static bool is_known(CUdeviceptr pointer)
{
    uint64_t bytes, other;
    return fake_recall(pointer, &bytes, &other, 0);
}

static CUresult copy_between(bool within, uint64_t bytes, CUstream stream)
{
    return within ? fake_run(2 * FILL_NS(bytes), stream) : fake_use(stream);
}

/* Both forms of a copy: on the context's or thread's stream, or on a given one. */
#define COPIES(name, args, within, bytes)                                                                \
    CUresult name args { return copy_between(within, bytes, NULL); }                                     \
    CUresult name##_ptds args { return copy_between(within, bytes, CU_STREAM_PER_THREAD); }
#define COPIES_ON(name, args, within, bytes)                                                             \
    CUresult name args { return copy_between(within, bytes, stream); }                                   \
    CUresult name##_ptsz args { return copy_between(within, bytes, OWN(stream)); }
#define POINTERS (CUdeviceptr to, CUdeviceptr from, size_t bytes)
#define POINTERS_ON (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
#define KNOWN (is_known(to) && is_known(from))
#define END(end) ((end).type == CU_MEMORY_UNIFIED ? is_known((end).device) : (end).type != CU_MEMORY_HOST)
#define ENDS (END(copy->src) && END(copy->dst))

COPIES(cuMemcpyDtoD_v2, POINTERS, ((void)to, (void)from, true), bytes)
COPIES_ON(cuMemcpyDtoDAsync_v2, POINTERS_ON, ((void)to, (void)from, true), bytes)
COPIES(cuMemcpyDtoA_v2, (CUarray to, size_t at, CUdeviceptr from, size_t bytes), ((void)to, (void)at, (void)from, true), bytes)
COPIES(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t at, size_t bytes), ((void)to, (void)at, (void)from, true), bytes)
COPIES(cuMemcpyAtoA_v2, (CUarray to, size_t at, CUarray from, size_t from_at, size_t bytes),
       ((void)to, (void)at, (void)from, (void)from_at, true), bytes)
COPIES(cuMemcpy, POINTERS, KNOWN, bytes)
COPIES_ON(cuMemcpyAsync, POINTERS_ON, KNOWN, bytes)
COPIES_ON(cuMemcpyWithAttributesAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *how, CUstream stream),
          ((void)how, KNOWN), bytes)
COPIES(cuMemcpy2D_v2, (const CUcopy2D *copy), ENDS, copy->width * copy->height)
COPIES(cuMemcpy2DUnaligned_v2, (const CUcopy2D *copy), ENDS, copy->width * copy->height)
COPIES_ON(cuMemcpy2DAsync_v2, (const CUcopy2D *copy, CUstream stream), ENDS, copy->width * copy->height)
COPIES(cuMemcpy3D_v2, (const CUcopy3D *copy), ENDS, copy->width * copy->height * copy->depth)
COPIES_ON(cuMemcpy3DAsync_v2, (const CUcopy3D *copy, CUstream stream), ENDS, copy->width * copy->height * copy->depth)
COPIES(cuMemcpyPeer, PEERS, ((void)there, (void)here, KNOWN), bytes)
COPIES_ON(cuMemcpyPeerAsync, PEERS_ON, ((void)there, (void)here, KNOWN), bytes)
COPIES(cuMemcpy3DPeer, (const CUcopyPeer *copy), ENDS, copy->width * copy->height * copy->depth)
COPIES_ON(cuMemcpy3DPeerAsync, (const CUcopyPeer *copy, CUstream stream), ENDS, copy->width * copy->height * copy->depth)

/* The time of a list's copies within the card. */
static uint64_t listed(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += is_known(to[i]) && is_known(from[i]) ? bytes[i] : 0;
    return sum;
}

static bool part_is_known(const CUcopyEnd *end) { return end->type == CU_COPY_ARRAY || is_known(end->pointer.at); }

static uint64_t parts(const CUcopyPart *list, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        if (part_is_known(&list[i].src) && part_is_known(&list[i].dst)) sum += list[i].width * list[i].height * list[i].depth;
    return sum;
}

COPIES_ON(cuMemcpyBatchAsync, (COPY_LIST, size_t *fault, CUstream stream),
          ((void)how, (void)which, (void)ways, (void)fault, listed(to, from, bytes, count) > 0), listed(to, from, bytes, count))
COPIES_ON(cuMemcpyBatchAsync_v2, (COPY_LIST, CUstream stream),
          ((void)how, (void)which, (void)ways, listed(to, from, bytes, count) > 0), listed(to, from, bytes, count))
COPIES_ON(cuMemcpy3DBatchAsync, (size_t count, CUcopyPart *list, size_t *fault, unsigned long long flags, CUstream stream),
          ((void)fault, (void)flags, parts(list, count) > 0), parts(list, count))
COPIES_ON(cuMemcpy3DBatchAsync_v2, (size_t count, CUcopyPart *list, unsigned long long flags, CUstream stream),
          ((void)flags, parts(list, count) > 0), parts(list, count))
COPIES_ON(cuMemcpy3DWithAttributesAsync, (CUcopyPart *copy, unsigned long long flags, CUstream stream),
          ((void)flags, parts(copy, 1) > 0), parts(copy, 1))
