/* NVML's view of memory: the container's cap and use instead of the card's. */
#include "driver.h"
#include "memory.h"
#include <string.h>

static struct card *card_of_handle(nvmlDevice device)
{
    static void *_Atomic slot;
    char uuid[96] = "";
    nvmlReturn (*name)(nvmlDevice, char *, unsigned) =
        (nvmlReturn(*)(nvmlDevice, char *, unsigned))driver_function(&slot, NVML_SONAME, "nvmlDeviceGetUUID");
    if (!name || name(device, uuid, sizeof uuid) != NVML_SUCCESS) return NULL;
    uuid[sizeof uuid - 1] = 0;
    return card_named(uuid);
}

/*
 * True when the cap is to be shown: *used of *total. *free is at most the card's own, as in cuMemGetInfo: where the caps
 * of a card are more than its memory, neighbours may have taken what the cap leaves.
 */
static bool view(nvmlDevice device, unsigned long long *used, unsigned long long *free, unsigned long long *total)
{
    struct card *card = card_of_handle(device);
    uint64_t most, bytes;
    if (!card || !memory_view(card, &bytes, &most) || most >= *total) return false;
    *used = bytes;
    *total = most;
    if (most - bytes < *free) *free = most - bytes;
    return true;
}

EXPORT nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, nvmlMemory *memory)
{
    nvmlReturn (*real)(nvmlDevice, nvmlMemory *) = REAL(nvmlDeviceGetMemoryInfo);
    if (!real) return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn result = real(device, memory);
    unsigned long long used;
    if (result != NVML_SUCCESS || !memory || !view(device, &used, &memory->free, &memory->total)) return result;
    memory->used = memory->total - memory->free; /* what is in use and what is reserved, as the driver has it here */
    return result;
}

EXPORT nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, nvmlMemory2 *memory)
{
    nvmlReturn (*real)(nvmlDevice, nvmlMemory2 *) = REAL(nvmlDeviceGetMemoryInfo_v2);
    if (!real) return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn result = real(device, memory);
    if (result != NVML_SUCCESS || !memory || !view(device, &memory->used, &memory->free, &memory->total)) return result;
    memory->reserved = memory->total - memory->free - memory->used;
    return result;
}
