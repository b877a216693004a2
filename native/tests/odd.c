/*
 * Rare cases of one process: NVML's view, a fork, memory passed within the container, pools of others, bindings,
 * green contexts, a card whose events are all in use, waits of a stream between launches. For the modelled card.
 *
 * Usage: odd nvml | fork | fork-after | clone | ipc-parent FILE | ipc-child FILE | pool-parent FILE | pool-child FILE |
 *            import | many HOW | early | green | restore | eventless | endless | mistaken | pools |
 *            load IMAGE | names | often | ordered | behind | freed-often | twice HOW | kept [FILE] |
 *            sizeless | imported HOW | unused-pool | faulty | late | both | mixed | waits HOW |
 *            large THREADS | cancelled | much-parent FILE | much-child FILE | ipc-parent FILE PROGRAM... | idle | kept-inside
 */
#include "../tools/driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)

static const struct driver *driver;

static void open_card(void)
{
    CUcontext context;
    driver = driver_find("dlsym");
    if (!driver) exit(4);
    must(driver->init(0), "cuInit");
    must(driver->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(driver->set_current(context), "cuCtxSetCurrent");
}

static int show_nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    nvmlReturn (*handle)(unsigned, nvmlDevice *) = (nvmlReturn(*)(unsigned, nvmlDevice *))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    __typeof__(&nvmlDeviceGetMemoryInfo) first = (__typeof__(first))dlsym(library, "nvmlDeviceGetMemoryInfo");
    __typeof__(&nvmlDeviceGetMemoryInfo_v2) second = (__typeof__(second))dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
    nvmlDevice device;
    nvmlMemory plain;
    nvmlMemory2 more = {.version = 2};
    CUdeviceptr pointer;
    size_t free, total;
    open_card();
    must(driver->alloc(&pointer, 100 * MIB), "cuMemAlloc");
    must(driver->info(&free, &total), "cuMemGetInfo");
    printf("info %zu %zu\n", total, free);
    if (!handle || handle(0, &device) || first(device, &plain) || second(device, &more)) return 5;
    printf("nvml %llu %llu %llu\n", plain.total, plain.used, plain.free);
    printf("nvml %llu %llu %llu\n", more.total, more.used, more.free);
    printf("reserved %llu\n", more.reserved);
    return 0;
}

/* A child made before the parent used the card uses it by itself; a later child owns none of the parent's objects. */
static int fork_child(int after)
{
    CUdeviceptr pointer;
    int status = 0;
    if (after) {
        open_card();
        must(driver->alloc(&pointer, 64 * MIB), "cuMemAlloc");
    }
    pid_t child = fork();
    if (child == 0) {
        size_t free, total;
        open_card();
        must(driver->alloc(&pointer, 128 * MIB), "cuMemAlloc");
        must(driver->info(&free, &total), "cuMemGetInfo");
        printf("child %zu\n", total - free);
        fflush(stdout);
        exit(0);
    }
    waitpid(child, &status, 0);
    if (!after) open_card();
    size_t free, total;
    must(driver->info(&free, &total), "cuMemGetInfo");
    printf("parent %zu\n", total - free);
    return status != 0;
}

/* A child of a bare clone, which runs no fork handler, ends as programs do. */
static int clone_child(void)
{
    CUdeviceptr pointer;
    int status = 0;
    open_card();
    must(driver->alloc(&pointer, 64 * MIB), "cuMemAlloc");
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) exit(0);
    waitpid((pid_t)child, &status, 0);
    size_t free, total;
    must(driver->info(&free, &total), "cuMemGetInfo");
    printf("parent %zu\n", total - free);
    return child < 0 || status != 0;
}

/* The parent of a program starts it at the first line that it reads. */
static int pass_memory(const char *path, int parent, char **program)
{
    CUipcMem handle;
    CUdeviceptr pointer;
    size_t free, total;
    FILE *file = fopen(path, parent ? "w" : "r");
    open_card();
    if (!file) return 6;
    if (parent) {
        must(driver->alloc(&pointer, 256 * MIB), "cuMemAlloc");
        must(driver->export_memory(&handle, pointer), "cuIpcGetMemHandle");
        if (fwrite(&handle, sizeof handle, 1, file) != 1 || fclose(file)) return 6;
        puts("passed");
        fflush(stdout);
        while (getchar() != EOF)
            if (*program) return execvp(*program, program);
        return 0;
    }
    if (fread(&handle, sizeof handle, 1, file) != 1) return 6;
    must(driver->import_memory(&pointer, handle, 1), "cuIpcOpenMemHandle");
    must(driver->info(&free, &total), "cuMemGetInfo");
    printf("used %zu\n", total - free);
    return 0;
}

static size_t used(void);

/* Each by a handle of its own. */
static int pass_much(const char *path, int parent)
{
    FILE *file = fopen(path, parent ? "w" : "r");
    open_card();
    for (int i = 0; file && i < 100; i++) {
        CUipcMem handle;
        CUdeviceptr pointer;
        if (parent) {
            must(driver->alloc(&pointer, 2 * MIB), "cuMemAlloc");
            must(driver->export_memory(&handle, pointer), "cuIpcGetMemHandle");
            if (fwrite(&handle, sizeof handle, 1, file) != 1) return 6;
        } else {
            if (fread(&handle, sizeof handle, 1, file) != 1) return 6;
            must(driver->import_memory(&pointer, handle, 1), "cuIpcOpenMemHandle");
        }
    }
    if (!file || fclose(file)) return 6;
    printf("used %zu\n", used());
    fflush(stdout);
    while (parent && getchar() != EOF) {}
    return 0;
}

static size_t used(void)
{
    size_t free, total;
    must(driver->info(&free, &total), "cuMemGetInfo");
    return total - free;
}

static int pass_pool(const char *path, int parent)
{
    CUpoolPointer shared;
    CUdeviceptr pointer;
    CUpool pool;
    FILE *file = fopen(path, parent ? "w" : "r");
    open_card();
    if (!file) return 6;
    if (parent) {
        must(driver->alloc_async(&pointer, 256 * MIB, NULL), "cuMemAllocAsync");
        must(driver->export_pointer(&shared, pointer), "cuMemPoolExportPointer");
        if (fwrite(&shared, sizeof shared, 1, file) != 1 || fclose(file)) return 6;
        puts("passed");
        fflush(stdout);
        while (getchar() != EOF) {}
        return 0;
    }
    if (fread(&shared, sizeof shared, 1, file) != 1) return 6;
    must(driver->import_pool(&pool, NULL, 1, 0), "cuMemPoolImportFromShareableHandle");
    must(driver->import_pointer(&pointer, pool, &shared), "cuMemPoolImportPointer");
    printf("used %zu\n", used());
    return 0;
}

/* Pointers of another container's pool, until they are refused; freed in both ways. */
static int import_foreign(void)
{
    CUdeviceptr pointers[64];
    uint64_t foreign[8] = {0x1000, 128 * MIB, 1};
    CUpoolPointer shared;
    CUpool pool;
    int count = 0, result;
    open_card();
    must(driver->import_pool(&pool, NULL, 1, 0), "cuMemPoolImportFromShareableHandle");
    for (;; count++) {
        foreign[0]++;
        memcpy(&shared, foreign, sizeof shared);
        if ((result = driver->import_pointer(&pointers[count], pool, &shared)) != CUDA_SUCCESS || count == 63) break;
    }
    printf("refused %d\nused %zu\n", result, used());
    while (count-- > 0) {
        if (count % 2) must(driver->release_memory(pointers[count]), "cuMemFree");
        else must(driver->free_async(pointers[count], NULL), "cuMemFreeAsync");
    }
    printf("used %zu\n", used());
    return 0;
}

/* One pointer of another container's pool twice, at one address or at two; freed in both ways. */
static int import_twice(int apart)
{
    CUdeviceptr pointers[2];
    uint64_t foreign[8] = {0x40000000 | (apart ? 1 : 0), 128 * MIB, 1};
    CUpoolPointer shared;
    CUpool pool;
    open_card();
    memcpy(&shared, foreign, sizeof shared);
    must(driver->import_pool(&pool, NULL, 1, 0), "cuMemPoolImportFromShareableHandle");
    for (int i = 0; i < 2; i++) must(driver->import_pointer(&pointers[i], pool, &shared), "cuMemPoolImportPointer");
    printf("apart %d\nused %zu\n", pointers[0] != pointers[1], used());
    must(driver->release_memory(pointers[0]), "cuMemFree");
    printf("used %zu\n", used());
    must(driver->free_async(pointers[1], NULL), "cuMemFreeAsync");
    printf("used %zu\n", used());
    return 0;
}

/* Waits until the count is so high. */
static void await_used(size_t bytes)
{
    for (int i = 0; i < 3000 && used() != bytes; i++) usleep(10000);
    printf("used %zu\n", used());
}

static int idle(void)
{
    open_card();
    printf("idle %zu\n", used());
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}

/* Memory of this container that its owner frees, or whose owner ends, while it is open here. */
static int keep_open(const char *path, uint64_t inside)
{
    CUdeviceptr own = 0, opened;
    CUipcMem handle;
    FILE *file = path ? fopen(path, "r") : NULL;
    open_card();
    if (path) {
        if (!file || fread(&handle, sizeof handle, 1, file) != 1) return 6;
    } else {
        must(driver->alloc(&own, 256 * MIB), "cuMemAlloc");
        must(driver->export_memory(&handle, own + inside), "cuIpcGetMemHandle");
    }
    must(driver->import_memory(&opened, handle, 1), "cuIpcOpenMemHandle");
    printf("used %zu\n", used());
    fflush(stdout);
    if (path) getchar();
    else must(driver->release_memory(own), "cuMemFree");
    await_used(256 * MIB);
    must(driver->end_import(opened), "cuIpcCloseMemHandle");
    printf("used %zu\n", used());
    return 0;
}

/* The same of a pool whose memory has returned to the card. */
static int keep_pool_open(void)
{
    CUpoolPointer shared;
    CUdeviceptr own, opened;
    CUpool pool, other;
    open_card();
    must(driver->own_pool(&pool, 0), "cuDeviceGetMemPool");
    for (int i = 1; i <= 3; i++) {
        must(driver->alloc_async(&own, 64 * MIB, NULL), "cuMemAllocAsync");
        must(driver->export_pointer(&shared, own), "cuMemPoolExportPointer");
        must(driver->import_pool(&other, NULL, 1, 0), "cuMemPoolImportFromShareableHandle");
        must(driver->import_pointer(&opened, other, &shared), "cuMemPoolImportPointer");
        if (i % 2) must(driver->free_async(own, NULL), "cuMemFreeAsync");
        else must(driver->release_memory(own), "cuMemFree");
        must(driver->context_wait(), "cuCtxSynchronize");
        must(driver->trim_pool(pool, 0), "cuMemPoolTrimTo");
        await_used((size_t)i * 64 * MIB);
    }
    return 0;
}

/* A handle whose size the driver does not report. */
static int open_sizeless(void)
{
    uint64_t foreign[8] = {0x1000, 0, 1};
    CUdeviceptr pointer;
    CUipcMem handle;
    open_card();
    memcpy(&handle, foreign, sizeof handle);
    printf("refused %d\n", driver->import_memory(&pointer, handle, 1));
    printf("used %zu\n", used());
    return 0;
}

/* Memory of another container by a handle of unknown size: bound to a multicast object, or mapped to an array. */
static int use_imported(const char *how)
{
    CUarray3D shape = {16384, 16384, 0, 0x20, 1, CU_ARRAY_DEFERRED};
    CUarrayMap map = {.memOperationType = CU_ARRAY_MAP};
    CUmemHandle many, handle;
    CUresult result;
    open_card();
    must(driver->import_handle(&handle, NULL, 1), "cuMemImportFromShareableHandle");
    if (strcmp(how, "many") == 0) {
        must(driver->make_many(&many, NULL), "cuMulticastCreate");
        result = driver->bind(many, 0, handle, 64 * MIB, 64 * MIB, 0);
    } else {
        must(driver->array(&map.resource.array, &shape), "cuArray3DCreate");
        map.memHandle = handle;
        result = driver->map_array(&map, 1, NULL);
    }
    printf("result %d\nused %zu\n", result, used());
    must(driver->release_handle(handle), "cuMemRelease");
    if (result == CUDA_SUCCESS) must(driver->unbind(many, 0, 0, 64 * MIB), "cuMulticastUnbind");
    printf("used %zu\n", used());
    return 0;
}

/* Memory that was not allocated in stream order, a piece or a part of one, but freed in it. */
static int free_in_order(void)
{
    CUdeviceptr large, small;
    open_card();
    must(driver->alloc(&large, 128 * MIB), "cuMemAlloc");
    must(driver->alloc(&small, 4096), "cuMemAlloc");
    printf("used %zu\n", used());
    must(driver->free_async(large, NULL), "cuMemFreeAsync");
    must(driver->free_async(small, NULL), "cuMemFreeAsync");
    printf("used %zu\n", used());
    return 0;
}

/*
 * Memory freed in stream order behind a kernel of two seconds: it counts and is not allocated again until the kernel has
 * ended. The last allocation waits for that. Where the kernel ends before the count was read, all of it begins again.
 */
static int free_behind_work(void)
{
    CUdeviceptr large, pointer;
    CUmodule module;
    CUfunction function;
    CUstream stream;
    uint64_t ns = 2000000000ull;
    void *params[] = {&ns, NULL};
    size_t before;
    bool kept;
    open_card();
    must(driver->load(&module, ""), "cuModuleLoadData");
    must(driver->function(&function, module, "spin"), "cuModuleGetFunction");
    must(driver->make_stream(&stream, 1), "cuStreamCreate");
    do {
        must(driver->alloc(&large, 800 * MIB), "cuMemAlloc");
        before = used();
        must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
        must(driver->free_async(large, stream), "cuMemFreeAsync");
        kept = used() == before;
    } while (driver->stream_query(stream) == CUDA_SUCCESS);
    printf("kept %d\n", kept);
    fflush(stdout);
    must(driver->alloc(&pointer, 400 * MIB), "cuMemAlloc");
    printf("ended %d\n", driver->stream_query(stream) == CUDA_SUCCESS);
    printf("used %zu\n", before - used());
    return 0;
}

/* Very many frees, each over at once: a driver would run out of events. */
static int free_often(void)
{
    CUdeviceptr pointer;
    open_card();
    for (int i = 0; i < 3000; i++) {
        must(driver->alloc(&pointer, 4096), "cuMemAlloc");
        must(driver->free_async(pointer, NULL), "cuMemFreeAsync");
    }
    printf("used %zu\n", used());
    return 0;
}

/* A module of so many MiB, and of a neighbour's that came meanwhile, as the modelled driver reads it. */
static int load_module(const char *image)
{
    CUmodule module;
    open_card();
    CUresult result = driver->load(&module, image);
    printf("loaded %d\nused %zu\n", result, used());
    if (result == CUDA_SUCCESS) must(driver->unload(module), "cuModuleUnload");
    printf("used %zu\n", used());
    return 0;
}

/* Objects made and ended by several threads at once, whose names the driver uses again as soon as it can. */
static void *turn_over(void *data)
{
    CUarray3D shape = {1024, 1024, 0, 0x20, 1, 0};
    CUexternalMemory description = {.size = 4 * MIB};
    CUarray array;
    CUmipmap mipmap;
    CUexternal external;
    must(driver->set_current(data), "cuCtxSetCurrent");
    for (int i = 0; i < 60; i++) {
        must(driver->array(&array, &shape), "cuArray3DCreate");
        must(driver->end_array(array), "cuArrayDestroy");
        must(driver->make_mipmap(&mipmap, &shape, 1), "cuMipmappedArrayCreate");
        must(driver->end_mipmap(mipmap), "cuMipmappedArrayDestroy");
        must(driver->take_external(&external, &description), "cuImportExternalMemory");
        must(driver->end_external(external), "cuDestroyExternalMemory");
    }
    return NULL;
}

/* Memory of the shared pool and of one that is destroyed with it, by handle, and in pieces, by several threads at once. */
static void *mix(void *data)
{
    CUpoolProps props = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUdeviceptr first, second, plain, at;
    CUmemHandle handle;
    CUpool pool;
    must(driver->set_current(data), "cuCtxSetCurrent");
    for (int i = 0; i < 40; i++) {
        must(driver->new_pool(&pool, &props), "cuMemPoolCreate");
        must(driver->alloc_async(&first, 3 * MIB, NULL), "cuMemAllocAsync");
        must(driver->alloc_from(&second, 3 * MIB, pool, NULL), "cuMemAllocFromPoolAsync");
        must(driver->end_pool(pool), "cuMemPoolDestroy");
        must(driver->alloc(&plain, 4096), "cuMemAlloc");
        must(driver->create(&handle, 4 * MIB, &prop, 0), "cuMemCreate");
        must(driver->reserve(&at, 4 * MIB, 0, 0, 0), "cuMemAddressReserve");
        must(driver->map(at, 4 * MIB, 0, handle, 0), "cuMemMap");
        must(driver->release_handle(handle), "cuMemRelease");
        must(driver->free_async(first, NULL), "cuMemFreeAsync");
        must(driver->free_async(plain, NULL), "cuMemFreeAsync");
        must(driver->release_memory(second), "cuMemFree");
        must(driver->unmap(at, 4 * MIB), "cuMemUnmap");
        used();
    }
    return NULL;
}

static int by_threads(void *(*work)(void *))
{
    pthread_t threads[4];
    CUcontext context;
    CUpool pool;
    open_card();
    must(driver->get_current(&context), "cuCtxGetCurrent");
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, context);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    must(driver->own_pool(&pool, 0), "cuDeviceGetMemPool");
    must(driver->trim_pool(pool, 0), "cuMemPoolTrimTo");
    printf("used %zu\n", used());
    return 0;
}

/* A handle of another container opened three times, and closed as often. */
static int open_often(void)
{
    uint64_t foreign[8] = {0x40000000, 128 * MIB, 1};
    CUdeviceptr pointers[3];
    CUipcMem handle;
    open_card();
    memcpy(&handle, foreign, sizeof handle);
    for (int i = 0; i < 3; i++) must(driver->import_memory(&pointers[i], handle, 1), "cuIpcOpenMemHandle");
    printf("used %zu\n", used());
    for (int i = 0; i < 3; i++) {
        must(driver->end_import(pointers[i]), "cuIpcCloseMemHandle");
        printf("used %zu\n", used());
    }
    printf("closed %d\nused %zu\n", driver->end_import(pointers[0]), used());
    return 0;
}

/* Pools destroyed with an allocation of 300 MiB in each, until that is refused; the card's own pool in the end. */
static int destroy_pools(void)
{
    CUpoolProps props = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUdeviceptr pointers[16], another;
    CUpool pool, own;
    int count = 0, result;
    open_card();
    must(driver->own_pool(&own, 0), "cuDeviceGetMemPool");
    for (;;) {
        must(driver->new_pool(&pool, &props), "cuMemPoolCreate");
        must(driver->set_pool(0, pool), "cuDeviceSetMemPool");
        result = driver->alloc_async(&pointers[count], 300 * MIB, NULL);
        must(driver->end_pool(pool), "cuMemPoolDestroy");
        if (result != CUDA_SUCCESS || count == 15) break;
        count++;
    }
    must(driver->own_pool(&pool, 0), "cuDeviceGetMemPool");
    printf("refused %d\nown %d\ncount %d\nused %zu\n", result, pool == own, count, used());
    must(driver->free_async(pointers[--count], NULL), "cuMemFreeAsync");
    printf("used %zu\n", used());
    must(driver->alloc(&another, 300 * MIB), "cuMemAlloc");
    must(driver->release_memory(another), "cuMemFree");
    while (count-- > 0) must(driver->release_memory(pointers[count]), "cuMemFree");
    printf("used %zu\n", used());
    return 0;
}

/* How long an unused pool still counts after it was destroyed. Where that was looked at late, it begins again. */
static int destroy_unused_pool(void)
{
    CUpoolProps props = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 0}};
    struct timespec from, now;
    CUdeviceptr pointer;
    CUpool pool;
    size_t first;
    open_card();
    do {
        while (used() > 0) usleep(20000);
        must(driver->new_pool(&pool, &props), "cuMemPoolCreate");
        must(driver->alloc_from(&pointer, 300 * MIB, pool, NULL), "cuMemAllocFromPoolAsync");
        clock_gettime(CLOCK_MONOTONIC, &from);
        must(driver->end_pool(pool), "cuMemPoolDestroy");
        must(driver->free_async(pointer, NULL), "cuMemFreeAsync");
        first = used();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - from.tv_sec > 1);
    printf("used %zu\n", first);
    do {
        usleep(20000);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (used() > 0 && now.tv_sec - from.tv_sec < 200);
    printf("used %zu\nseconds %ld\n", used(), (long)(now.tv_sec - from.tv_sec));
    return 0;
}

/* Allocations in stream order after a kernel's fault. */
static int allocate_after_a_fault(void)
{
    CUdeviceptr pointer;
    CUpool pool;
    CUpoolProps props = {.allocType = 1, .location = {CU_LOCATION_DEVICE, 0}};
    open_card();
    must(driver->new_pool(&pool, &props), "cuMemPoolCreate");
    must(driver->alloc_from(&pointer, MIB, pool, NULL), "cuMemAllocFromPoolAsync");
    setenv("FAKE_GPU_FAULT", "700", 1);
    CUresult own = driver->alloc_async(&pointer, MIB, NULL);
    printf("result %d %d\n", own, driver->alloc_from(&pointer, MIB, pool, NULL));
    return 0;
}

/* Memory that is released after the library's handler of the process's end. */
static CUdeviceptr last;

static void give_late(void)
{
    puts("left");
    fflush(stdout);
    while (getchar() != EOF) {}
    must(driver->release_memory(last), "cuMemFree");
}

static int end_with_memory(void)
{
    atexit(give_late); /* runs after handlers that are registered later */
    open_card();
    must(driver->alloc(&last, 512 * MIB), "cuMemAlloc");
    return 0;
}

/* Memory of the host and of the card side by side, mapped each and unmapped at once. */
static int map_both(void)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_HOST, 0}};
    CUmemHandle handle;
    CUdeviceptr at;
    open_card();
    must(driver->reserve(&at, 128 * MIB, 0, 0, 0), "cuMemAddressReserve");
    for (int i = 0; i < 2; i++) {
        must(driver->create(&handle, 64 * MIB, &prop, 0), "cuMemCreate");
        must(driver->map(at + (CUdeviceptr)i * 64 * MIB, 64 * MIB, 0, handle, 0), "cuMemMap");
        must(driver->release_handle(handle), "cuMemRelease");
        prop.location.type = CU_LOCATION_DEVICE;
    }
    printf("used %zu\n", used());
    must(driver->unmap(at, 128 * MIB), "cuMemUnmap");
    printf("used %zu\n", used());
    return 0;
}

/* Memory without a handle that is bound to a multicast object: by handle or address, in both forms. */
static int bind_many(const char *how)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUmemHandle many, handle;
    CUdeviceptr at = 0;
    open_card();
    __typeof__(&cuMulticastBindMem_v2) bind = (__typeof__(bind))dlsym(RTLD_DEFAULT, "cuMulticastBindMem_v2");
    __typeof__(&cuMulticastBindAddr_v2) bind_address = (__typeof__(bind_address))dlsym(RTLD_DEFAULT, "cuMulticastBindAddr_v2");
    must(driver->make_many(&many, NULL), "cuMulticastCreate");
    must(driver->create(&handle, 128 * MIB, &prop, 0), "cuMemCreate");
    if (how[0] == 'a') {
        must(driver->reserve(&at, 128 * MIB, 0, 0, 0), "cuMemAddressReserve");
        must(driver->map(at, 128 * MIB, 0, handle, 0), "cuMemMap");
    }
    if (strcmp(how, "a") == 0) must(driver->bind_address(many, 0, at, 128 * MIB, 0), "cuMulticastBindAddr");
    else if (strcmp(how, "a2") == 0) must(bind_address(many, 0, 0, at, 128 * MIB, 0), "cuMulticastBindAddr_v2");
    else if (strcmp(how, "m2") == 0) must(bind(many, 0, 0, handle, 0, 128 * MIB, 0), "cuMulticastBindMem_v2");
    else must(driver->bind(many, 0, handle, 0, 128 * MIB, 0), "cuMulticastBindMem");
    if (at) must(driver->unmap(at, 128 * MIB), "cuMemUnmap");
    must(driver->release_handle(handle), "cuMemRelease");
    printf("used %zu\n", used());
    must(driver->unbind(many, 0, 0, 128 * MIB), "cuMulticastUnbind");
    printf("used %zu\n", used());
    return 0;
}

struct waiting { CUmemHandle many, handle; };

static void *bind_early(void *data)
{
    struct waiting *waiting = data;
    must(driver->bind(waiting->many, 0, waiting->handle, 0, 64 * MIB, 0), "cuMulticastBindMem");
    return NULL;
}

/* One thread waits in a bind for a device. The other adds that device after it has allocated and freed memory of its own. */
static int bind_before_all_are_added(void)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    unsigned devices[8] = {1};
    struct waiting waiting;
    CUmemHandle handle;
    pthread_t thread;
    alarm(200); /* ends a program that hangs */
    open_card();
    must(driver->make_many(&waiting.many, devices), "cuMulticastCreate");
    must(driver->create(&waiting.handle, 64 * MIB, &prop, 0), "cuMemCreate");
    pthread_create(&thread, NULL, bind_early, &waiting);
    usleep(100000);
    must(driver->create(&handle, 64 * MIB, &prop, 0), "cuMemCreate");
    must(driver->release_handle(handle), "cuMemRelease");
    must(driver->add_device(waiting.many, 0), "cuMulticastAddDevice");
    pthread_join(thread, NULL);
    must(driver->release_handle(waiting.handle), "cuMemRelease");
    printf("used %zu\n", used());
    return 0;
}

/* Without a primary context of its own a program still has one. */
static int make_green(void)
{
    CUgreen green[2];
    CUcontext context;
    driver = driver_find("dlsym");
    if (!driver) return 4;
    must(driver->init(0), "cuInit");
    for (int i = 0; i < 2; i++) must(driver->make_green(&green[i], NULL, 0, 1), "cuGreenCtxCreate");
    must(driver->of_green(&context, green[1]), "cuCtxFromGreenCtx");
    must(driver->set_current(context), "cuCtxSetCurrent");
    printf("used %zu\n", used());
    must(driver->end_green(green[0]), "cuGreenCtxDestroy");
    printf("used %zu\n", used());
    must(driver->end_green(green[1]), "cuGreenCtxDestroy");
    must(driver->make_context(&context, 0, 0), "cuCtxCreate"); /* to ask in */
    printf("used %zu\n", used());
    return 0;
}

/* A second of launches of a millisecond. `spent`: all events are in use. `ends`: after each a refused end of its context. */
static int without_times(bool spent, bool ends)
{
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CUevent event;
    struct timespec from, now;
    uint64_t ns = MIB, count = 0, span = 0;
    void *params[] = {&ns, NULL};
    open_card();
    must(driver->load(&module, ""), "cuModuleLoadData");
    must(driver->function(&function, module, "spin"), "cuModuleGetFunction");
    must(driver->make_stream(&stream, 1), "cuStreamCreate");
    while (spent && driver->make_event(&event, 0) == CUDA_SUCCESS) {}
    must(driver->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (; span < 1000000000; count++) {
        must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
        if (ends && driver->end_context(context) == CUDA_SUCCESS) return 5;
        must(driver->stream_wait(stream), "cuStreamSynchronize");
        clock_gettime(CLOCK_MONOTONIC, &now);
        span = (uint64_t)(now.tv_sec - from.tv_sec) * 1000000000ull + (uint64_t)now.tv_nsec - (uint64_t)from.tv_nsec;
    }
    printf("done %llu %llu\n", (unsigned long long)(count * ns / 1000000), (unsigned long long)span);
    return 0;
}

#define PAUSE 180000ull

struct between {
    CUstream stream, other; /* other: in another context, for whose work this one waits */
    CUcontext here, there;
    CUevent event;
    CUgreen green;
    void *library;
};

static void *named(const struct between *between, const char *name)
{
    void *found = dlsym(between->library, name);
    if (!found) fprintf(stderr, "the driver has no %s\n", name), exit(4);
    return found;
}

/* Delays a stream for 180 us by the entry point `how`; a + chooses its form for per-thread streams. */
static CUresult keep_stream(const struct between *between, const char *how)
{
    CUstream stream = between->stream;
    int own = strchr(how, '+') != NULL;
    uint64_t pause = PAUSE;
    void *data = (void *)(uintptr_t)pause;
    CUbatchOp list[3] = {{.operation = 2, .value = 1}, {.operation = CU_OP_WAIT_64, .value = PAUSE}, {.operation = 6}};
#define FORM(name) ((__typeof__(&name))named(between, own ? #name "_ptsz" : #name))
#define IS(word) (strncmp(how, word, sizeof word - 1) == 0)
    if (IS("host2")) return FORM(cuLaunchHostFunc_v2)(stream, &pause, data, 0);
    if (IS("host")) return FORM(cuLaunchHostFunc)(stream, &pause, data);
    if (IS("legacy")) return FORM(cuLaunchHostFunc)(CU_STREAM_LEGACY, &pause, data);
    if (IS("callback")) return FORM(cuStreamAddCallback)(stream, &pause, data, 0);
    if (IS("value32_v2")) return FORM(cuStreamWaitValue32_v2)(stream, 0, (uint32_t)pause, 0);
    if (IS("value32")) return FORM(cuStreamWaitValue32)(stream, 0, (uint32_t)pause, 0);
    if (IS("value64_v2")) return FORM(cuStreamWaitValue64_v2)(stream, 0, pause, 0);
    if (IS("value64")) return FORM(cuStreamWaitValue64)(stream, 0, pause, 0);
    if (IS("batch_v2")) return FORM(cuStreamBatchMemOp_v2)(stream, 3, list, 0);
    if (IS("batch")) return FORM(cuStreamBatchMemOp)(stream, 3, list, 0);
    if (IS("semaphore")) return FORM(cuWaitExternalSemaphoresAsync)(NULL, &pause, 1, stream);
    must(driver->set_current(between->there), "cuCtxSetCurrent");
    must(driver->host(between->other, &pause, data), "cuLaunchHostFunc");
    must(driver->record(between->event, between->other), "cuEventRecord");
    must(driver->set_current(between->here), "cuCtxSetCurrent");
    if (IS("context")) return FORM(cuCtxWaitEvent)(between->here, between->event);
    if (IS("green")) return FORM(cuGreenCtxWaitEvent)(between->green, between->event);
    return FORM(cuStreamWaitEvent)(stream, between->event, 0);
}

/* 1,500 launches of 20 us, each followed by a wait of the stream for 180 us. */
static int between_waits(const char *how)
{
    struct between between;
    CUmodule module;
    CUfunction function;
    uint64_t ns = 20000, count = 0;
    void *params[] = {&ns, NULL};
    open_card();
    between.library = dlopen("libcuda.so.1", RTLD_NOW);
    must(driver->get_current(&between.here), "cuCtxGetCurrent");
    must(driver->make_context(&between.there, 0, 0), "cuCtxCreate");
    must(driver->make_stream(&between.other, 1), "cuStreamCreate");
    must(driver->make_event(&between.event, 0), "cuEventCreate");
    must(driver->make_green(&between.green, NULL, 0, 1), "cuGreenCtxCreate");
    must(driver->set_current(between.here), "cuCtxSetCurrent");
    must(driver->load(&module, ""), "cuModuleLoadData");
    must(driver->function(&function, module, "spin"), "cuModuleGetFunction");
    must(driver->make_stream(&between.stream, 0), "cuStreamCreate");
    for (; count < 1500; count++) {
        CUstream stream = strncmp(how, "host.", 5) == 0 ? NULL : between.stream;
        must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
        must(keep_stream(&between, how), how);
        if (count % 16 == 15) must(driver->stream_wait(stream), "cuStreamSynchronize");
    }
    must(driver->stream_wait(between.stream), "cuStreamSynchronize");
    printf("done %llu\n", (unsigned long long)count);
    return 0;
}

static _Atomic int ended;
static _Atomic uint64_t small_launches;

/* Launches of 100 us without end. */
static void *launch_small(void *data)
{
    CUfunction function = data;
    CUstream stream;
    uint64_t ns = 100000;
    void *params[] = {&ns, NULL};
    open_card();
    must(driver->make_stream(&stream, 1), "cuStreamCreate");
    while (!atomic_load(&ended)) {
        must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
        atomic_fetch_add(&small_launches, 1);
    }
    return NULL;
}

static void *ask_beyond_the_cap(void *data)
{
    CUdeviceptr pointer;
    must(driver->set_current(data), "cuCtxSetCurrent");
    for (;; pthread_testcancel()) driver->alloc(&pointer, 64 * MIB);
    return NULL;
}

/* Threads are cancelled while they ask for memory that another process of the container has: the count before and after. */
static int cancel_threads(void)
{
    CUcontext context;
    int ready[2], over[2];
    char byte;
    if (pipe(ready) || pipe(over)) return 6;
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr pointer;
        close(over[1]);
        open_card();
        must(driver->alloc(&pointer, 64 * MIB), "cuMemAlloc");
        return write(ready[1], "", 1) < 0 || read(over[0], &byte, 1) < 0;
    }
    if (read(ready[0], &byte, 1) < 1) return 6;
    open_card();
    must(driver->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    size_t before = used();
    for (int i = 0; i < 200; i++) {
        struct timespec pause = {0, i * 5000};
        pthread_t thread;
        pthread_create(&thread, NULL, ask_beyond_the_cap, context);
        nanosleep(&pause, NULL);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    printf("used %llu %llu\n", (unsigned long long)(before / MIB), (unsigned long long)(used() / MIB));
    close(over[1]);
    return waitpid(child, NULL, 0) != child;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The number of small launches that pass each of forty graphs of 20 ms before it is launched: the median, and the most. */
static int large_beside_small(int threads)
{
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    pthread_t thread[8];
    uint64_t ns = 20000000, passed[40];
    void *params[] = {&ns, NULL};
    open_card();
    must(driver->load(&module, ""), "cuModuleLoadData");
    must(driver->function(&function, module, "spin"), "cuModuleGetFunction");
    must(driver->make_stream(&stream, 1), "cuStreamCreate");
    must(driver->begin(stream, 0), "cuStreamBeginCapture");
    must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
    must(driver->end(stream, &graph), "cuStreamEndCapture");
    must(driver->instantiate(&exec, graph, 0), "cuGraphInstantiate");
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, launch_small, function);
    for (int i = 0; i < 40; i++) {
        uint64_t before = atomic_load(&small_launches);
        must(driver->launch_graph(exec, stream), "cuGraphLaunch");
        passed[i] = atomic_load(&small_launches) - before;
        must(driver->stream_wait(stream), "cuStreamSynchronize");
    }
    atomic_store(&ended, 1);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    qsort(passed, 40, sizeof *passed, by_size);
    printf("passed %llu %llu\n", (unsigned long long)passed[20], (unsigned long long)passed[39]);
    return 0;
}

/* After a checkpoint: on the same card, on another one, and as before CUDA 13. */
static int restore(void)
{
    CUcardPair pairs[2] = {{{{1}}, {{1}}}, {{{2}}, {{2}}}};
    CUrestoreArgs args = {.pairs = pairs, .count = 2}, none = {0};
    open_card();
    __typeof__(&cuCheckpointProcessRestore) go_on = (__typeof__(go_on))dlsym(RTLD_DEFAULT, "cuCheckpointProcessRestore");
    printf("stays %d %d %d\n", go_on(7, &args), go_on(7, &none), go_on(7, NULL));
    pairs[1].after.bytes[15] = 9;
    printf("moves %d\n", go_on(7, &args));
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "nvml") == 0) return show_nvml();
    if (strcmp(what, "fork") == 0) return fork_child(0);
    if (strcmp(what, "fork-after") == 0) return fork_child(1);
    if (strcmp(what, "clone") == 0) return clone_child();
    if (argc > 2 && strncmp(what, "ipc", 3) == 0) return pass_memory(argv[2], strcmp(what, "ipc-parent") == 0, argv + 3);
    if (argc > 2 && strncmp(what, "pool-", 5) == 0) return pass_pool(argv[2], strcmp(what, "pool-parent") == 0);
    if (argc > 2 && strncmp(what, "much-", 5) == 0) return pass_much(argv[2], strcmp(what, "much-parent") == 0);
    if (argc > 2 && strcmp(what, "load") == 0) return load_module(argv[2]);
    if (strcmp(what, "ordered") == 0) return free_in_order();
    if (argc > 2 && strcmp(what, "twice") == 0) return import_twice(strcmp(argv[2], "apart") == 0);
    if (strcmp(what, "kept-pool") == 0) return keep_pool_open();
    if (strcmp(what, "kept") == 0) return keep_open(argc > 2 ? argv[2] : NULL, 0);
    if (strcmp(what, "kept-inside") == 0) return keep_open(NULL, 5 * MIB);
    if (strcmp(what, "idle") == 0) return idle();
    if (strcmp(what, "sizeless") == 0) return open_sizeless();
    if (argc > 2 && strcmp(what, "imported") == 0) return use_imported(argv[2]);
    if (strcmp(what, "behind") == 0) return free_behind_work();
    if (strcmp(what, "freed-often") == 0) return free_often();
    if (strcmp(what, "often") == 0) return open_often();
    if (strcmp(what, "names") == 0) return by_threads(turn_over);
    if (strcmp(what, "pools") == 0) return destroy_pools();
    if (strcmp(what, "unused-pool") == 0) return destroy_unused_pool();
    if (strcmp(what, "faulty") == 0) return allocate_after_a_fault();
    if (strcmp(what, "mixed") == 0) return by_threads(mix);
    if (strcmp(what, "both") == 0) return map_both();
    if (strcmp(what, "late") == 0) return end_with_memory();
    if (strcmp(what, "import") == 0) return import_foreign();
    if (argc > 2 && strcmp(what, "many") == 0) return bind_many(argv[2]);
    if (strcmp(what, "early") == 0) return bind_before_all_are_added();
    if (strcmp(what, "restore") == 0) return restore();
    if (strcmp(what, "green") == 0) return make_green();
    if (strcmp(what, "eventless") == 0) return without_times(true, false);
    if (strcmp(what, "endless") == 0) return without_times(false, false);
    if (strcmp(what, "mistaken") == 0) return without_times(false, true);
    if (argc > 2 && strcmp(what, "large") == 0) return large_beside_small(atoi(argv[2]));
    if (strcmp(what, "cancelled") == 0) return cancel_threads();
    if (argc > 2 && strcmp(what, "waits") == 0) return between_waits(argv[2]);
    return 2;
}
