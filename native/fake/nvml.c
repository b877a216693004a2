/* Stand-in for libnvidia-ml.so.1: names and memory of the modelled cards. */
#include "../include/abi.h"
#include "link.h"
#include <stdio.h>

nvmlReturn nvmlInit_v2(void);
nvmlReturn nvmlShutdown(void);
nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice *device);
nvmlReturn nvmlDeviceGetUUID(nvmlDevice device, char *uuid, unsigned length);
nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, nvmlMemory *memory);
nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, nvmlMemory2 *memory);

nvmlReturn nvmlInit_v2(void) { return NVML_SUCCESS; }

nvmlReturn nvmlShutdown(void) { return NVML_SUCCESS; }

nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice *device)
{
    *device = (nvmlDevice)(uintptr_t)(index + 1);
    return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetUUID(nvmlDevice device, char *uuid, unsigned length)
{
    unsigned char bytes[16];
    unsigned at = 0;
    if (length < 41) return 7;
    link_uuid((uint32_t)(uintptr_t)device - 1, bytes);
    at += (unsigned)sprintf(uuid, "GPU-");
    for (int i = 0; i < 16; i++)
        at += (unsigned)sprintf(uuid + at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
    return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, nvmlMemory *memory)
{
    struct answer answer;
    struct request request = {.kind = ASK_MEMORY_INFO, .card = (uint32_t)(uintptr_t)device - 1};
    if (!link_ask(&request, &answer)) return 999;
    *memory = (nvmlMemory){answer.a, answer.a - answer.b, answer.b};
    return NVML_SUCCESS;
}

nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, nvmlMemory2 *memory)
{
    nvmlMemory plain;
    nvmlReturn result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result == NVML_SUCCESS) *memory = (nvmlMemory2){memory->version, plain.total, 0, plain.free, plain.used};
    return result;
}
