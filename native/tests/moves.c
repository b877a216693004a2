/*
 * Fills and copies, by each entry point: ten calls that each take 2 ms of the modelled card if they run on it.
 *
 * NAME is the exported function. A second word gives the ends of copies whose calls do not name them: card,
 * unified (the same, but the driver has to find out), host.
 *
 * Usage: moves NAME card|unified|host | moves captured
 */
#include "../tools/driver.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES 2000000000ull /* of a fill of 2 ms */

static const struct driver *driver;
static void *library;
static CUstream stream;
static CUdeviceptr to, from;
static CUarray array;

static void *named(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "the driver has no %s\n", name), exit(4);
    return found;
}

static bool ends(const char *name, const char *with)
{
    size_t all = strlen(name), part = strlen(with);
    return all >= part && strcmp(name + all - part, with) == 0;
}

static CUresult fill(const char *name)
{
    void *call = named(name);
    bool on = strstr(name, "Async") != NULL, area = strstr(name, "2D") != NULL;
    uint64_t bits = strstr(name, "D16") ? 16 : strstr(name, "D32") ? 32 : 8, count = BYTES / (bits / 8);
    if (area && on) return ((CUresult(*)(CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream))call)(to, 1000, 7, 1000, count / 1000, stream);
    if (area) return ((CUresult(*)(CUdeviceptr, size_t, unsigned, size_t, size_t))call)(to, 1000, 7, 1000, count / 1000);
    if (on) return ((CUresult(*)(CUdeviceptr, unsigned, size_t, CUstream))call)(to, 7, count, stream);
    return ((CUresult(*)(CUdeviceptr, unsigned, size_t))call)(to, 7, count);
}

#define FORM(name) ((__typeof__(&name))call)

static CUresult copy(const char *name, const char *where)
{
    int type = where[0] == 'c' ? CU_MEMORY_DEVICE : where[0] == 'u' ? CU_MEMORY_UNIFIED : CU_MEMORY_HOST;
    CUdeviceptr source = where[0] == 'h' ? (CUdeviceptr)(uintptr_t)&source : from;
    CUcopy2D flat = {.src = {.type = type, .device = source}, .dst = {.type = CU_MEMORY_DEVICE, .device = to}, .width = 1000,
                     .height = BYTES / 2000};
    CUcopy3D deep = {.src = {.type = type, .device = source}, .dst = {.type = CU_MEMORY_ARRAY, .array = array}, .width = 1000,
                     .height = BYTES / 20000, .depth = 10};
    CUcopyPeer peers = {.src = {.type = type, .device = source}, .dst = {.type = CU_MEMORY_DEVICE, .device = to}, .width = 1000,
                        .height = BYTES / 20000, .depth = 10};
    CUdeviceptr sources[] = {(CUdeviceptr)(uintptr_t)&source, source}, ends[] = {to, to};
    size_t sizes[] = {BYTES / 2, BYTES / 2};
    CUcopyPart parts[2];
    for (int i = 0; i < 2; i++)
        parts[i] = (CUcopyPart){.src = {.type = CU_COPY_POINTER, .pointer = {.at = sources[i]}},
                                .dst = {.type = CU_COPY_ARRAY, .array = {.array = array}}, .width = 1000,
                                .height = BYTES / 20000, .depth = 10};
    void *call = named(name);
    bool on = strstr(name, "Async") != NULL, second = strstr(name, "_v2") != NULL;
    if (strstr(name, "3DPeer")) return on ? FORM(cuMemcpy3DPeerAsync)(&peers, stream) : FORM(cuMemcpy3DPeer)(&peers);
    if (strstr(name, "Peer"))
        return on ? FORM(cuMemcpyPeerAsync)(to, NULL, source, NULL, BYTES / 2, stream)
                  : FORM(cuMemcpyPeer)(to, NULL, source, NULL, BYTES / 2);
    if (strstr(name, "3DBatch"))
        return second ? FORM(cuMemcpy3DBatchAsync_v2)(2, parts, 0, stream)
                      : FORM(cuMemcpy3DBatchAsync)(2, parts, NULL, 0, stream);
    if (strstr(name, "Batch"))
        return second ? FORM(cuMemcpyBatchAsync_v2)(ends, sources, sizes, 2, NULL, NULL, 0, stream)
                      : FORM(cuMemcpyBatchAsync)(ends, sources, sizes, 2, NULL, NULL, 0, NULL, stream);
    if (strstr(name, "3DWith")) return FORM(cuMemcpy3DWithAttributesAsync)(&parts[1], 0, stream);
    if (strstr(name, "2D")) return on ? FORM(cuMemcpy2DAsync_v2)(&flat, stream) : FORM(cuMemcpy2D_v2)(&flat);
    if (strstr(name, "3D")) return on ? FORM(cuMemcpy3DAsync_v2)(&deep, stream) : FORM(cuMemcpy3D_v2)(&deep);
    if (strstr(name, "Attributes")) return FORM(cuMemcpyWithAttributesAsync)(to, source, BYTES / 2, NULL, stream);
    if (strstr(name, "DtoA")) return FORM(cuMemcpyDtoA_v2)(array, 0, from, BYTES / 2);
    if (strstr(name, "AtoD")) return FORM(cuMemcpyAtoD_v2)(to, array, 0, BYTES / 2);
    if (strstr(name, "AtoA")) return FORM(cuMemcpyAtoA_v2)(array, 0, array, 0, BYTES / 2);
    return on ? FORM(cuMemcpyAsync)(to, source, BYTES / 2, stream) : FORM(cuMemcpy)(to, source, BYTES / 2);
}

/* A call into a capture launches nothing, so the library must launch nothing either. */
static void capture(void)
{
    CUgraph graph;
    CUgraphExec exec;
    must(driver->begin(stream, 0), "cuStreamBeginCapture");
    must(fill("cuMemsetD32Async"), "cuMemsetD32Async");
    must(copy("cuMemcpyDtoDAsync_v2", "card"), "cuMemcpyDtoDAsync");
    must(copy("cuMemcpyAsync", "unified"), "cuMemcpyAsync");
    must(driver->end(stream, &graph), "cuStreamEndCapture");
    must(driver->instantiate(&exec, graph, 0), "cuGraphInstantiate");
    for (int i = 0; i < 3; i++) must(driver->launch_graph(exec, stream), "cuGraphLaunch");
    must(driver->stream_wait(stream), "cuStreamSynchronize");
}

int main(int argc, char **argv)
{
    CUarray3D shape = {64, 64, 0, 0x20, 1, 0};
    CUcontext context;
    driver = driver_find("dlsym");
    if (!driver || argc < 2) return 4;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    must(driver->init(0), "cuInit");
    must(driver->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->alloc(&to, 1 << 20), "cuMemAlloc");
    must(driver->alloc(&from, 1 << 20), "cuMemAlloc");
    must(driver->array(&array, &shape), "cuArray3DCreate");
    if (!ends(argv[1], "_ptsz")) must(driver->make_stream(&stream, 1), "cuStreamCreate");
    if (strcmp(argv[1], "captured") == 0) capture();
    for (int i = 0; i < 10 && argc > 2; i++) {
        must(strstr(argv[1], "Memset") ? fill(argv[1]) : copy(argv[1], argv[2]), argv[1]);
        must(driver->context_wait(), "cuCtxSynchronize");
    }
    usleep(20000); /* until the last was counted */
    return 0;
}
