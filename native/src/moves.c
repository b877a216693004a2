/*
 * Fills, and copies within the card.
 *
 * A fill runs as a kernel of the driver. A copy within the card runs as one too, or on a copy engine, by the driver's
 * choice (a hint can keep it off the multiprocessors, so by default it may use them). Either way it competes with the
 * holder of the turn for the card's memory. So both are launches of the gate. Copies from and to the host are not: the
 * link bounds them, and they are meant to run beside work.
 */
#include "driver.h"
#include "launch.h"

#define FILLS(name, type)                                                                                \
    GATED(name##_v2, (CUdeviceptr at, type value, size_t count), NULL, false, 0, at, value, count)       \
    GATED(name##_v2_ptds, (CUdeviceptr at, type value, size_t count), NULL, true, 0, at, value, count)   \
    GATED(name##Async, (CUdeviceptr at, type value, size_t count, CUstream stream), stream, false, 0, at, value, count,   \
          stream)                                                                                        \
    GATED(name##Async_ptsz, (CUdeviceptr at, type value, size_t count, CUstream stream), stream, true, 0, at, value,      \
          count, stream)
#define FILLS_2D(name, type)                                                                             \
    GATED(name##_v2, FILL_2D(type), NULL, false, 0, at, pitch, value, width, height)                     \
    GATED(name##_v2_ptds, FILL_2D(type), NULL, true, 0, at, pitch, value, width, height)                 \
    GATED(name##Async, FILL_2D_ON(type), stream, false, 0, at, pitch, value, width, height, stream)      \
    GATED(name##Async_ptsz, FILL_2D_ON(type), stream, true, 0, at, pitch, value, width, height, stream)

FILLS(cuMemsetD8, unsigned char)
FILLS(cuMemsetD16, unsigned short)
FILLS(cuMemsetD32, unsigned)
FILLS_2D(cuMemsetD2D8, unsigned char)
FILLS_2D(cuMemsetD2D16, unsigned short)
FILLS_2D(cuMemsetD2D32, unsigned)

static bool is_on_card(CUdeviceptr pointer)
{
    unsigned type = 0;
    return ASK((void *, int, CUdeviceptr), cuPointerGetAttribute, &type, CU_POINTER_MEMORY_TYPE, pointer) == CUDA_SUCCESS &&
           type == CU_MEMORY_DEVICE;
}

/* For calls that let the driver find out. */
static bool is_within(CUdeviceptr to, CUdeviceptr from)
{
    return launch_is_gated() && is_on_card(to) && is_on_card(from);
}

static bool end_is_on_card(int type, CUdeviceptr pointer)
{
    return type == CU_MEMORY_UNIFIED ? is_on_card(pointer) : type != CU_MEMORY_HOST;
}

static bool is_within_2d(const CUcopy2D *copy)
{
    return copy && launch_is_gated() && end_is_on_card(copy->dst.type, copy->dst.device) &&
           end_is_on_card(copy->src.type, copy->src.device);
}

static bool is_within_3d(const CUcopy3D *copy)
{
    return copy && launch_is_gated() && end_is_on_card(copy->dst.type, copy->dst.device) &&
           end_is_on_card(copy->src.type, copy->src.device);
}

static int device_at(CUdeviceptr pointer)
{
    int device = -1;
    return is_on_card(pointer) &&
                   ASK((void *, int, CUdeviceptr), cuPointerGetAttribute, &device, CU_POINTER_DEVICE_ORDINAL, pointer) == CUDA_SUCCESS
               ? device
               : -1;
}

/* A copy between contexts may be one within their card. */
static bool is_within_peers(CUdeviceptr to, CUdeviceptr from)
{
    int device = launch_is_gated() ? device_at(to) : -1;
    return device >= 0 && device == device_at(from);
}

/* The driver does not report an array's card: between contexts, such a copy counts as one within the card. */
static bool is_within_peers_3d(const CUcopyPeer *copy)
{
    if (!copy || !launch_is_gated() || copy->src.type == CU_MEMORY_HOST || copy->dst.type == CU_MEMORY_HOST) return false;
    int from = copy->src.type == CU_MEMORY_ARRAY ? -1 : device_at(copy->src.device);
    int to = copy->dst.type == CU_MEMORY_ARRAY ? -1 : device_at(copy->dst.device);
    bool told = (from >= 0 || copy->src.type == CU_MEMORY_ARRAY) && (to >= 0 || copy->dst.type == CU_MEMORY_ARRAY);
    return told && (from < 0 || to < 0 || from == to);
}

/* One copy of a list within the card makes the list a launch. */
static bool is_any_within(const CUdeviceptr *to, const CUdeviceptr *from, size_t count)
{
    bool any = false;
    for (size_t i = 0; to && from && launch_is_gated() && i < count && !any; i++)
        any = is_on_card(to[i]) && is_on_card(from[i]);
    return any;
}

static bool part_is_on_card(const CUcopyEnd *end)
{
    return end->type == CU_COPY_ARRAY || (end->type == CU_COPY_POINTER && is_on_card(end->pointer.at));
}

static bool is_any_part_within(const CUcopyPart *list, size_t count)
{
    bool any = false;
    for (size_t i = 0; list && launch_is_gated() && i < count && !any; i++)
        any = part_is_on_card(&list[i].dst) && part_is_on_card(&list[i].src);
    return any;
}

#define POINTERS (CUdeviceptr to, CUdeviceptr from, size_t bytes)
#define POINTERS_ON (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
#define TO_ARRAY (CUarray to, size_t at, CUdeviceptr from, size_t bytes)
#define FROM_ARRAY (CUdeviceptr to, CUarray from, size_t at, size_t bytes)
#define ARRAYS (CUarray to, size_t at, CUarray from, size_t from_at, size_t bytes)

GATED(cuMemcpyDtoD_v2, POINTERS, NULL, false, 0, to, from, bytes)
GATED(cuMemcpyDtoD_v2_ptds, POINTERS, NULL, true, 0, to, from, bytes)
GATED(cuMemcpyDtoDAsync_v2, POINTERS_ON, stream, false, 0, to, from, bytes, stream)
GATED(cuMemcpyDtoDAsync_v2_ptsz, POINTERS_ON, stream, true, 0, to, from, bytes, stream)
GATED(cuMemcpyDtoA_v2, TO_ARRAY, NULL, false, 0, to, at, from, bytes)
GATED(cuMemcpyDtoA_v2_ptds, TO_ARRAY, NULL, true, 0, to, at, from, bytes)
GATED(cuMemcpyAtoD_v2, FROM_ARRAY, NULL, false, 0, to, from, at, bytes)
GATED(cuMemcpyAtoD_v2_ptds, FROM_ARRAY, NULL, true, 0, to, from, at, bytes)
GATED(cuMemcpyAtoA_v2, ARRAYS, NULL, false, 0, to, at, from, from_at, bytes)
GATED(cuMemcpyAtoA_v2_ptds, ARRAYS, NULL, true, 0, to, at, from, from_at, bytes)
GATED_WHEN(is_within(to, from), cuMemcpy, POINTERS, NULL, false, 0, to, from, bytes)
GATED_WHEN(is_within(to, from), cuMemcpy_ptds, POINTERS, NULL, true, 0, to, from, bytes)
GATED_WHEN(is_within(to, from), cuMemcpyAsync, POINTERS_ON, stream, false, 0, to, from, bytes, stream)
GATED_WHEN(is_within(to, from), cuMemcpyAsync_ptsz, POINTERS_ON, stream, true, 0, to, from, bytes, stream)
GATED_WHEN(is_within(to, from), cuMemcpyWithAttributesAsync,
           (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *how, CUstream stream), stream, false, 0, to, from, bytes, how,
           stream)
GATED_WHEN(is_within(to, from), cuMemcpyWithAttributesAsync_ptsz,
           (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *how, CUstream stream), stream, true, 0, to, from, bytes, how,
           stream)
GATED_WHEN(is_within_2d(copy), cuMemcpy2D_v2, (const CUcopy2D *copy), NULL, false, 0, copy)
GATED_WHEN(is_within_2d(copy), cuMemcpy2D_v2_ptds, (const CUcopy2D *copy), NULL, true, 0, copy)
GATED_WHEN(is_within_2d(copy), cuMemcpy2DUnaligned_v2, (const CUcopy2D *copy), NULL, false, 0, copy)
GATED_WHEN(is_within_2d(copy), cuMemcpy2DUnaligned_v2_ptds, (const CUcopy2D *copy), NULL, true, 0, copy)
GATED_WHEN(is_within_2d(copy), cuMemcpy2DAsync_v2, (const CUcopy2D *copy, CUstream stream), stream, false, 0, copy, stream)
GATED_WHEN(is_within_2d(copy), cuMemcpy2DAsync_v2_ptsz, (const CUcopy2D *copy, CUstream stream), stream, true, 0, copy, stream)
GATED_WHEN(is_within_3d(copy), cuMemcpy3D_v2, (const CUcopy3D *copy), NULL, false, 0, copy)
GATED_WHEN(is_within_3d(copy), cuMemcpy3D_v2_ptds, (const CUcopy3D *copy), NULL, true, 0, copy)
GATED_WHEN(is_within_3d(copy), cuMemcpy3DAsync_v2, (const CUcopy3D *copy, CUstream stream), stream, false, 0, copy, stream)
GATED_WHEN(is_within_3d(copy), cuMemcpy3DAsync_v2_ptsz, (const CUcopy3D *copy, CUstream stream), stream, true, 0, copy, stream)
GATED_WHEN(is_within_peers(to, from), cuMemcpyPeer, PEERS, NULL, false, 0, to, there, from, here, bytes)
GATED_WHEN(is_within_peers(to, from), cuMemcpyPeer_ptds, PEERS, NULL, true, 0, to, there, from, here, bytes)
GATED_WHEN(is_within_peers(to, from), cuMemcpyPeerAsync, PEERS_ON, stream, false, 0, to, there, from, here, bytes, stream)
GATED_WHEN(is_within_peers(to, from), cuMemcpyPeerAsync_ptsz, PEERS_ON, stream, true, 0, to, there, from, here, bytes, stream)
GATED_WHEN(is_within_peers_3d(copy), cuMemcpy3DPeer, (const CUcopyPeer *copy), NULL, false, 0, copy)
GATED_WHEN(is_within_peers_3d(copy), cuMemcpy3DPeer_ptds, (const CUcopyPeer *copy), NULL, true, 0, copy)
GATED_WHEN(is_within_peers_3d(copy), cuMemcpy3DPeerAsync, (const CUcopyPeer *copy, CUstream stream), stream, false, 0, copy, stream)
GATED_WHEN(is_within_peers_3d(copy), cuMemcpy3DPeerAsync_ptsz, (const CUcopyPeer *copy, CUstream stream), stream, true, 0, copy,
           stream)

#define LISTS(name, per_thread)                                                                          \
    GATED_WHEN(is_any_within(to, from, count), name, (COPY_LIST, size_t *fault, CUstream stream), stream, per_thread, 0, \
               to, from, bytes, count, how, which, ways, fault, stream)
#define LISTS_V2(name, per_thread)                                                                       \
    GATED_WHEN(is_any_within(to, from, count), name, (COPY_LIST, CUstream stream), stream, per_thread, 0, to, from, bytes, \
               count, how, which, ways, stream)
#define PARTS(name, per_thread)                                                                          \
    GATED_WHEN(is_any_part_within(list, count), name,                                                    \
               (size_t count, CUcopyPart *list, size_t *fault, unsigned long long flags, CUstream stream), stream, per_thread, \
               0, count, list, fault, flags, stream)
#define PARTS_V2(name, per_thread)                                                                       \
    GATED_WHEN(is_any_part_within(list, count), name,                                                    \
               (size_t count, CUcopyPart *list, unsigned long long flags, CUstream stream), stream, per_thread, 0, count, list, \
               flags, stream)
#define PART(name, per_thread)                                                                           \
    GATED_WHEN(is_any_part_within(copy, 1), name, (CUcopyPart *copy, unsigned long long flags, CUstream stream), stream, \
               per_thread, 0, copy, flags, stream)

LISTS(cuMemcpyBatchAsync, false)
LISTS(cuMemcpyBatchAsync_ptsz, true)
LISTS_V2(cuMemcpyBatchAsync_v2, false)
LISTS_V2(cuMemcpyBatchAsync_v2_ptsz, true)
PARTS(cuMemcpy3DBatchAsync, false)
PARTS(cuMemcpy3DBatchAsync_ptsz, true)
PARTS_V2(cuMemcpy3DBatchAsync_v2, false)
PARTS_V2(cuMemcpy3DBatchAsync_v2_ptsz, true)
PART(cuMemcpy3DWithAttributesAsync, false)
PART(cuMemcpy3DWithAttributesAsync_ptsz, true)
