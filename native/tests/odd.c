/*
 * Corners of one process: what NVML shows, a fork, memory passed within the container. For the modelled card.
 *
 * Usage: odd nvml | fork | fork-after | ipc-parent FILE | ipc-child FILE
 */
#include "../tools/driver.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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
    open_card();
    must(driver->alloc(&pointer, 100 * MIB), "cuMemAlloc");
    if (!handle || handle(0, &device) || first(device, &plain) || second(device, &more)) return 5;
    printf("nvml %llu %llu %llu\n", plain.total, plain.used, plain.free);
    printf("nvml %llu %llu %llu\n", more.total, more.used, more.free);
    return 0;
}

/* A child made before the parent touched the card uses it for itself; one made after owns nothing of it. */
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

static int pass_memory(const char *path, int parent)
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
        while (getchar() != EOF) {}
        return 0;
    }
    if (fread(&handle, sizeof handle, 1, file) != 1) return 6;
    must(driver->import_memory(&pointer, handle, 1), "cuIpcOpenMemHandle");
    must(driver->info(&free, &total), "cuMemGetInfo");
    printf("used %zu\n", total - free);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "nvml") == 0) return show_nvml();
    if (strcmp(what, "fork") == 0) return fork_child(0);
    if (strcmp(what, "fork-after") == 0) return fork_child(1);
    if (argc > 2 && strncmp(what, "ipc", 3) == 0) return pass_memory(argv[2], strcmp(what, "ipc-parent") == 0);
    return 2;
}
