/* Arrays and mipmapped arrays: counted by estimate first, then by what the driver says they need. */
#include "memory.h"
#include "driver.h"

static uint64_t element_bytes(int format)
{
    switch (format) {
    case 0x01: case 0x08: return 1;
    case 0x02: case 0x09: case 0x10: return 2;
    default: return 4;
    }
}

static uint64_t array_bytes(const CUarray3D *shape)
{
    uint64_t channels = shape->NumChannels ? shape->NumChannels : 1;
    uint64_t row = (shape->Width * element_bytes(shape->Format) * channels + 63) / 64 * 64;
    uint64_t rows = shape->Height ? (shape->Height + 7) / 8 * 8 : 1;
    uint64_t layers = shape->Depth ? shape->Depth : 1, bytes;
    if (shape->Width > 1u << 20 || rows > 1u << 20 || layers > 1u << 20) return UINT64_MAX / 4;
    return __builtin_mul_overflow(row * rows, layers, &bytes) ? UINT64_MAX / 4 : bytes;
}

static bool note(struct card *card, enum kind kind, uint64_t key, uint64_t counted, uint64_t need)
{
    /* The driver's own figure replaces the estimate; what it took already cannot be refused. */
    need = need ? whole_granules(need) : counted;
    if (need > counted) memory_force(card, need - counted);
    else memory_return(card, counted - need);
    struct entry entry = {.key = key, .bytes = need, .context = context_now(), .card = card->index,
                          .kind = (uint32_t)kind};
    return ledger_put(entry);
}

static bool reserve(struct card *card, uint64_t bytes)
{
    if (memory_reserve(card, bytes)) return true;
    memory_count_refusal(card);
    return false;
}

static CUresult keep_array(struct card *card, CUresult result, CUarray *array, uint64_t bytes)
{
    CUarrayNeed need = {0};
    if (result != CUDA_SUCCESS) {
        memory_return(card, bytes);
        return result;
    }
    ASK((CUarrayNeed *, CUarray, CUdevice), cuArrayGetMemoryRequirements, &need, *array, card->device);
    note(card, KIND_ARRAY, (uint64_t)(uintptr_t)*array, bytes, need.size);
    return result;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUarrayShape *shape)
{
    struct card *card = array && shape ? card_current() : NULL;
    if (!card) return CALL(cuArrayCreate_v2, array, shape);
    CUarray3D full = {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0};
    uint64_t bytes = whole_granules(array_bytes(&full));
    if (!reserve(card, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    return keep_array(card, CALL(cuArrayCreate_v2, array, shape), array, bytes);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3D *shape)
{
    struct card *card = array && shape ? card_current() : NULL;
    if (!card) return CALL(cuArray3DCreate_v2, array, shape);
    uint64_t bytes = whole_granules(array_bytes(shape));
    if (!reserve(card, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    return keep_array(card, CALL(cuArray3DCreate_v2, array, shape), array, bytes);
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmap *array, const CUarray3D *shape, unsigned levels)
{
    struct card *card = array && shape ? card_current() : NULL;
    if (!card) return CALL(cuMipmappedArrayCreate, array, shape, levels);
    CUarrayNeed need = {0};
    uint64_t base = array_bytes(shape), bytes = whole_granules(levels > 1 ? base / 3 * 4 + base / 8 : base);
    if (!reserve(card, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL(cuMipmappedArrayCreate, array, shape, levels);
    if (result != CUDA_SUCCESS) {
        memory_return(card, bytes);
        return result;
    }
    ASK((CUarrayNeed *, CUmipmap, CUdevice), cuMipmappedArrayGetMemoryRequirements, &need, *array, card->device);
    note(card, KIND_MIPMAP, (uint64_t)(uintptr_t)*array, bytes, need.size);
    return result;
}

EXPORT CUresult cuArrayDestroy(CUarray array) { ENDED(cuArrayDestroy, KIND_ARRAY, array); }

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmap array) { ENDED(cuMipmappedArrayDestroy, KIND_MIPMAP, array); }
