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

/* True when the cap is to be shown: *used of *total. */
static bool view(nvmlDevice device, unsigned long long *used, unsigned long long *total)
{
    struct card *card = card_of_handle(device);
    uint64_t most, bytes;
    if (!card || !memory_view(card, &bytes, &most) || most >= *total) return false;
    *used = bytes;
    *total = most;
    return true;
}

EXPORT nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, nvmlMemory *memory)
{
    nvmlReturn (*real)(nvmlDevice, nvmlMemory *) = REAL(nvmlDeviceGetMemoryInfo);
    if (!real) return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn result = real(device, memory);
    unsigned long long used;
    if (result != NVML_SUCCESS || !memory || !view(device, &used, &memory->total)) return result;
    memory->used = used;
    memory->free = memory->total - used;
    return result;
}

EXPORT nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, nvmlMemory2 *memory)
{
    nvmlReturn (*real)(nvmlDevice, nvmlMemory2 *) = REAL(nvmlDeviceGetMemoryInfo_v2);
    if (!real) return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn result = real(device, memory);
    unsigned long long used;
    if (result != NVML_SUCCESS || !memory || !view(device, &used, &memory->total)) return result;
    memory->reserved = 0;
    memory->used = used;
    memory->free = memory->total - used;
    return result;
}
