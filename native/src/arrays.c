/*
 * Arrays and mipmapped arrays: counted by estimate, since the driver does not report their memory.
 *
 * A sparse array and one with a deferred mapping have no memory of their own. Memory mapped to them is memory by
 * handle, which is already counted, and they hold it as a mapping does.
 */
#include "cards.h"
#include "contexts.h"
#include "driver.h"
#include "ledger.h"
#include "memory.h"
#include "physical.h"
#include <stdlib.h>

/* Of one channel. */
static uint64_t element_bytes(int format)
{
    switch (format) {
    case 0x01: case 0x08: case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8: return 1;
    case 0x02: case 0x09: case 0x10: case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb: return 2;
    default: return 4;
    }
}

static uint64_t array_bytes(const CUarray3D *shape)
{
    uint64_t channels = shape->NumChannels ? shape->NumChannels : 1;
    uint64_t row = (shape->Width * element_bytes(shape->Format) * channels + 63) / 64 * 64;
    uint64_t rows = shape->Height ? (shape->Height + 7) / 8 * 8 : 1;
    uint64_t layers = shape->Depth ? shape->Depth : 1, bytes;
    if (shape->Flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED)) return 0;
    if (shape->Width > 1u << 20 || rows > 1u << 20 || layers > 1u << 20) return UINT64_MAX / 4;
    return __builtin_mul_overflow(row * rows, layers, &bytes) ? UINT64_MAX / 4 : bytes;
}

static size_t halved(size_t size) { return size > 1 ? size / 2 : size; }

/*
 * All levels of a mipmap, the first of which is the array. They shrink to a quarter each only while the array has two
 * sides to halve: the levels of a flat one take as much again as the first. Layers are not halved.
 */
static uint64_t mipmap_bytes(const CUarray3D *shape, unsigned levels)
{
    CUarray3D level = *shape;
    bool layers = shape->Flags & (CU_ARRAY_LAYERED | CU_ARRAY_CUBEMAP);
    uint64_t bytes = array_bytes(&level);
    for (unsigned i = 1; i < levels && bytes < UINT64_MAX / 4; i++) {
        if (level.Width <= 1 && level.Height <= 1 && (layers || level.Depth <= 1)) break; /* the driver makes no more */
        level.Width = halved(level.Width);
        level.Height = halved(level.Height);
        if (!layers) level.Depth = halved(level.Depth);
        bytes += array_bytes(&level);
    }
    return bytes;
}

static bool reserve(struct card *card, uint64_t bytes)
{
    if (bytes == 0 || memory_reserve(card, bytes)) return true;
    memory_count_refusal(card);
    return false;
}

/* Records a created array, or releases the bytes counted for it. */
static CUresult keep(struct card *card, enum kind kind, CUresult result, uint64_t key, uint64_t bytes, unsigned flags)
{
    if (result != CUDA_SUCCESS) {
        memory_return(card, bytes);
        return result;
    }
    ledger_put((struct entry){.key = key, .bytes = bytes, .other = flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED),
                              .context = contexts_now(), .card = card->index, .kind = (uint32_t)kind});
    return result;
}

#define KEY(array) (result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*(array) : 0)

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUarrayShape *shape)
{
    struct card *card = array && shape ? card_current() : NULL;
    if (!card) return CALL(cuArrayCreate_v2, array, shape);
    CUarray3D full = {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0};
    uint64_t bytes = whole_granules(array_bytes(&full));
    if (!reserve(card, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL(cuArrayCreate_v2, array, shape);
    return keep(card, KIND_ARRAY, result, KEY(array), bytes, 0);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3D *shape)
{
    struct card *card = array && shape ? card_current() : NULL;
    if (!card) return CALL(cuArray3DCreate_v2, array, shape);
    uint64_t bytes = whole_granules(array_bytes(shape));
    if (!reserve(card, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL(cuArray3DCreate_v2, array, shape);
    return keep(card, KIND_ARRAY, result, KEY(array), bytes, shape->Flags);
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmap *array, const CUarray3D *shape, unsigned levels)
{
    struct card *card = array && shape ? card_current() : NULL;
    if (!card) return CALL(cuMipmappedArrayCreate, array, shape, levels);
    uint64_t bytes = whole_granules(mipmap_bytes(shape, levels));
    if (!reserve(card, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL(cuMipmappedArrayCreate, array, shape, levels);
    return keep(card, KIND_MIPMAP, result, KEY(array), bytes, shape->Flags);
}

/* Mappings of an array end with it. */
#define DESTROYS(name, kind, type)                                                                       \
    EXPORT CUresult name(type array)                                                                     \
    {                                                                                                    \
        struct entry entry, *tiles = NULL;                                                               \
        bool known = ledger_take(kind, (uint64_t)(uintptr_t)array, &entry);                              \
        uint32_t count = known && entry.other ? ledger_take_tiles(entry.key, &tiles) : 0;                 \
        CUresult result = CALL(name, array);                                                             \
        if (known && result == CUDA_SUCCESS) memory_release(&entry);                                     \
        else if (known) ledger_put(entry);                                                               \
        for (uint32_t i = 0; i < count; i++) {                                                           \
            if (result == CUDA_SUCCESS) memory_release(&tiles[i]);                                       \
            else ledger_put(tiles[i]);                                                                   \
        }                                                                                                \
        free(tiles);                                                                                     \
        return result;                                                                                   \
    }

DESTROYS(cuArrayDestroy, KIND_ARRAY, CUarray)
DESTROYS(cuMipmappedArrayDestroy, KIND_MIPMAP, CUmipmap)

/* The place and the handle of a mapping; a deferred array is mapped as a whole. False: the array is unknown. */
static bool tile_of(const CUarrayMap *map, struct entry *tile)
{
    struct entry array;
    uint64_t of = (uint64_t)(uintptr_t)map->resource.array, words[10] = {of};
    if (!ledger_find(KIND_ARRAY, of, &array) && !ledger_find(KIND_MIPMAP, of, &array)) return false;
    if (!(array.other & CU_ARRAY_DEFERRED)) words[1] = 1 + (uint64_t)map->subresourceType;
    if (words[1] == 1) {
        const unsigned *parts = &map->subresource.sparseLevel.level;
        for (int i = 0; i < 8; i++) words[2 + i] = parts[i];
    } else if (words[1]) {
        words[2] = map->subresource.miptail.layer;
        words[3] = map->subresource.miptail.offset;
        words[4] = map->subresource.miptail.size;
    }
    *tile = (struct entry){.key = handle_hash(words, sizeof words), .bytes = of, .other = map->memHandle,
                           .context = array.context, .kind = KIND_TILE};
    return true;
}

/* The handles are held before the driver maps them; replaced or unmapped ones are released after it. */
static void note_maps(const CUarrayMap *list, unsigned count, const bool *held, bool good)
{
    for (unsigned i = 0; i < count; i++) {
        struct entry tile, old;
        bool known = good && tile_of(&list[i], &tile);
        if (known && ledger_take(KIND_TILE, tile.key, &old)) memory_release(&old);
        if (held[i] && !(known && ledger_put(tile))) physical_give_up(list[i].memHandle);
    }
}

#define MAPS(name)                                                                                       \
    EXPORT CUresult name(CUarrayMap *list, unsigned count, CUstream stream)                              \
    {                                                                                                    \
        struct entry entry;                                                                              \
        struct container *all = container_get();                                                         \
        /* Before its cuInit the driver reads no list. */                                                \
        bool *held = list && all && all->place ? calloc(count + 1, sizeof *held) : NULL;                 \
        bool sized = true;                                                                               \
        for (unsigned i = 0; held && i < count; i++) {                                                   \
            held[i] = list[i].memOperationType == CU_ARRAY_MAP && physical_borrow(list[i].memHandle, &entry); \
            sized &= !held[i] || physical_has_size(&entry);                                              \
        }                                                                                                \
        /* Imported memory that was never mapped to an address cannot be counted. */                     \
        CUresult result = sized ? CALL(name, list, count, stream) : CUDA_ERROR_NOT_SUPPORTED;            \
        if (held) note_maps(list, count, held, result == CUDA_SUCCESS);                                  \
        free(held);                                                                                      \
        return result;                                                                                   \
    }

MAPS(cuMemMapArrayAsync)
MAPS(cuMemMapArrayAsync_ptsz)
