/*
 * Stand-in for libcuda.so.1: functions that NVIDIA's own runtime library (libcudart) needs beside documented ones.
 *
 * The runtime takes some functions from tables that have a number for a name (cuGetExportTable). Open projects found
 * the ones in this file. Runtimes of CUDA 11 and later also read a table by which a driver proves that it is NVIDIA's.
 * That one is absent here, so they end with an error after they have asked for the driver's functions.
 */
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 64

static struct { CUcontext context; const void *key; void *value; } kept[KEPT];
FAKE_LOCK(lock)

/* Values that the runtime keeps with a context: the current one if it names none. */
static CUresult keep(CUcontext context, const void *key, void *value, void *end)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    (void)end;
    if (!context) context = fake_current;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KEPT && result != CUDA_SUCCESS; i++) {
        if (kept[i].key && (kept[i].key != key || kept[i].context != context)) continue;
        kept[i].context = context, kept[i].key = key, kept[i].value = value;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult forget(CUcontext context, const void *key)
{
    if (!context) context = fake_current;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KEPT; i++)
        if (kept[i].key == key && kept[i].context == context) kept[i].value = NULL;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult recall(void **value, CUcontext context, const void *key)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (!context) context = fake_current;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KEPT; i++) {
        if (kept[i].key != key || kept[i].context != context || !kept[i].value) continue;
        *value = kept[i].value;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The primary context by name; it begins to exist when it is retained. */
static CUresult primary(CUcontext *context, CUdevice device)
{
    *context = fake_primary(device);
    return CUDA_SUCCESS;
}

static CUresult module(CUmodule *loaded, const void *image) { return cuModuleLoadData(loaded, image); }

static CUresult module_as(CUmodule *loaded, const void *image, void *options, void *values, unsigned count)
{
    (void)options, (void)values, (void)count;
    return cuModuleLoadData(loaded, image);
}

static char buffers[2][1024];
static void buffer_a(void **at, size_t *size) { *at = buffers[0], *size = sizeof buffers[0]; }
static void buffer_b(void **at, size_t *size) { *at = buffers[1], *size = 14; }

static CUresult nothing(void) { return CUDA_SUCCESS; }
static CUresult unknown(void) { return CUDA_ERROR_NOT_SUPPORTED; }

#define SIZE(n) (void *)((n) * sizeof(void *))
static const void *const runtime[] = {SIZE(13), module,  primary, unknown, unknown, unknown, module_as,
                                      unknown,  unknown, unknown, unknown, unknown, nothing};
static const void *const storage[] = {keep, forget, recall, NULL};
static const void *const callbacks[] = {SIZE(7), unknown, buffer_a, unknown, unknown, unknown, buffer_b};
static const void *const tools[] = {SIZE(4), unknown, unknown, unknown};

CUresult cuGetExportTable(const void **table, const CUuuid *name);
CUresult cuGetExportTable(const void **table, const CUuuid *name)
{
    static const struct { unsigned char first[4]; const void *const *table; } known[] = {
        {{0x6b, 0xd5, 0xfb, 0x6c}, runtime}, {{0xc6, 0x93, 0x33, 0x6e}, storage}, {{0xa0, 0x94, 0x79, 0x8c}, callbacks},
        {{0x42, 0xd8, 0x5a, 0x81}, tools},
    };
    *table = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known && !*table; i++)
        if (memcmp(name->bytes, known[i].first, 4) == 0) *table = known[i].table;
    return *table ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetLoadingMode(int *mode);
CUresult cuModuleGetLoadingMode(int *mode) { *mode = 2; /* lazily */ return CUDA_SUCCESS; }

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *fault, char *log, size_t room)
{
    return cuGraphInstantiate_v2(exec, graph, fault, log, room);
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }
CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

/* Attributes of a card of compute capability 8.0; all others are 0. */
int fake_attribute(int attribute)
{
    static const struct { int attribute, value; } known[] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
        {10, 32}, {12, 65536}, {13, 1410000}, {14, 512}, {15, 1}, {31, 1}, {36, 1215000}, {37, 5120}, {38, 41943040},
        {40, 3}, {41, 1}, {75, 8}, {76, 0}, {81, 167936}, {82, 65536}, {83, 1}, {115, 1},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute) return known[i].value;
    return 0;
}

void fake_asked(const char *symbol, int version, uint64_t flags)
{
    const char *path = getenv("FAKE_ASKED");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %d %llu\n", symbol, version, (unsigned long long)flags);
    fclose(file);
}

CUresult cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, address, version, flags, NULL);
}
