/*
 * Contexts and their settings: their memory, and the objects that end with them. For the modelled card.
 *
 * Usage: contexts HOW
 *   HOW  stack printf heap depth   raises a limit of cuCtxSetLimit step by step until it is refused, then sets it back
 *        gl gl-old vdpau vdpau-old contexts for graphics and video, until one is refused
 *        measured contexts made after a line was read, until one is refused
 *        pooled   a context whose memory a pool keeps unused
 *        again    contexts made and ended by several threads at once, whose names the driver uses again
 *        attach   a context with three users, which detach one after the other
 *        reset    the primary context, retained twice, reset, retained once more, released as often
 *        green    memory of a green context, which outlives it and ends with the primary one
 * Prints "refused CODE COUNT" and "used BYTES" after each step.
 */
#include "../tools/driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)

static const struct driver *driver;
static CUcontext primary;

static int is(const char *how, const char *name) { return strcmp(how, name) == 0; }

static void show(void)
{
    size_t free, total;
    must(driver->info(&free, &total), "cuMemGetInfo");
    printf("used %zu\n", total - free);
}

static void open_card(void)
{
    driver = driver_find("dlsym");
    if (!driver) exit(4);
    must(driver->init(0), "cuInit");
    must(driver->retain(&primary, 0), "cuDevicePrimaryCtxRetain");
    must(driver->set_current(primary), "cuCtxSetCurrent");
}

static int raise_limit(int limit, size_t usual, size_t step)
{
    CUresult result;
    size_t count = 0;
    open_card();
    /* Asks for a little less than a step: the driver rounds stacks up. */
    while ((result = driver->set_limit(limit, usual + (count + 1) * step - (limit == CU_LIMIT_STACK_SIZE))) == CUDA_SUCCESS) count++;
    printf("refused %d %zu\n", result, count);
    show();
    must(driver->set_limit(limit, usual + step), "cuCtxSetLimit");
    show();
    must(driver->set_limit(limit, usual), "cuCtxSetLimit");
    show();
    return 0;
}

static int make_for(const char *how)
{
    __typeof__(&cuGLCtxCreate) gl;
    __typeof__(&cuVDPAUCtxCreate) video;
    CUcontext context;
    CUresult result = CUDA_SUCCESS;
    int count = 0;
    open_card();
    gl = (__typeof__(gl))dlsym(RTLD_DEFAULT, is(how, "gl") ? "cuGLCtxCreate_v2" : "cuGLCtxCreate");
    video = (__typeof__(video))dlsym(RTLD_DEFAULT, is(how, "vdpau") ? "cuVDPAUCtxCreate_v2" : "cuVDPAUCtxCreate");
    while (count < 16 && result == CUDA_SUCCESS) {
        result = how[0] == 'g' ? gl(&context, 0, 0) : video(&context, 0, 0, 0, NULL);
        count += result == CUDA_SUCCESS;
    }
    printf("refused %d %d\n", result, count);
    return 0;
}

/* Contexts of a process that the agent measures meanwhile: made until one is refused, then released with the primary one. */
static int make_measured(void)
{
    CUcontext made[16];
    CUresult result;
    int count = 0;
    open_card();
    puts("ready");
    fflush(stdout);
    getchar();
    while ((result = driver->make_context(&made[count], 0, 0)) == CUDA_SUCCESS && count < 15) count++;
    printf("refused %d %d\n", result, count);
    must(driver->set_current(primary), "cuCtxSetCurrent");
    show();
    while (count-- > 0) must(driver->end_context(made[count]), "cuCtxDestroy");
    must(driver->set_current(primary), "cuCtxSetCurrent");
    show();
    must(driver->release(0), "cuDevicePrimaryCtxRelease");
    puts("released");
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}

/* A pool releases unused memory to make room for a context. */
static int make_beside_a_pool(void)
{
    CUdeviceptr pointer;
    CUcontext context;
    open_card();
    must(driver->alloc_async(&pointer, 700 * MIB, NULL), "cuMemAllocAsync");
    must(driver->free_async(pointer, NULL), "cuMemFreeAsync");
    must(driver->make_context(&context, 0, 0), "cuCtxCreate");
    show();
    return 0;
}

static void *turn_over(void *data)
{
    CUcontext context;
    CUdeviceptr pointer;
    (void)data;
    for (int i = 0; i < 60; i++) {
        must(driver->make_context(&context, 0, 0), "cuCtxCreate");
        must(driver->alloc(&pointer, 4 * MIB), "cuMemAlloc");
        must(driver->set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 12 * MIB), "cuCtxSetLimit");
        must(driver->end_context(context), "cuCtxDestroy");
    }
    return NULL;
}

static int give_again(void)
{
    pthread_t threads[4];
    open_card();
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, turn_over, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    show();
    return 0;
}

static int attach_and_detach(void)
{
    __typeof__(&cuCtxAttach) attach;
    __typeof__(&cuCtxDetach) detach;
    CUcontext context, same;
    CUdeviceptr pointer;
    open_card();
    attach = (__typeof__(attach))dlsym(RTLD_DEFAULT, "cuCtxAttach");
    detach = (__typeof__(detach))dlsym(RTLD_DEFAULT, "cuCtxDetach");
    must(driver->make_context(&context, 0, 0), "cuCtxCreate");
    must(driver->alloc(&pointer, 100 * MIB), "cuMemAlloc");
    for (int i = 0; i < 2; i++) must(attach(&same, 0), "cuCtxAttach");
    for (int i = 0; i < 3; i++) {
        show();
        must(detach(context), "cuCtxDetach");
    }
    must(driver->set_current(primary), "cuCtxSetCurrent");
    show();
    printf("detached %d\n", detach(context));
    return 0;
}

static int reset_primary(void)
{
    __typeof__(&cuDevicePrimaryCtxReset_v2) reset;
    CUcontext other;
    CUdeviceptr pointer;
    open_card();
    reset = (__typeof__(reset))dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxReset_v2");
    must(driver->retain(&primary, 0), "cuDevicePrimaryCtxRetain");
    must(driver->make_context(&other, 0, 0), "cuCtxCreate"); /* to ask in */
    must(driver->set_current(primary), "cuCtxSetCurrent");
    must(driver->alloc(&pointer, 100 * MIB), "cuMemAlloc");
    must(driver->set_current(other), "cuCtxSetCurrent");
    show();
    must(reset(0), "cuDevicePrimaryCtxReset");
    show();
    must(driver->retain(&primary, 0), "cuDevicePrimaryCtxRetain");
    for (int i = 0; i < 3; i++) {
        show();
        must(driver->release(0), "cuDevicePrimaryCtxRelease");
    }
    show();
    printf("released %d\n", driver->release(0));
    return 0;
}

static int use_green(void)
{
    CUcontext other, context;
    CUdeviceptr pointer;
    CUgreen green;
    driver = driver_find("dlsym");
    if (!driver) return 4;
    must(driver->init(0), "cuInit");
    must(driver->make_context(&other, 0, 0), "cuCtxCreate"); /* to ask in */
    must(driver->make_green(&green, NULL, 0, 1), "cuGreenCtxCreate");
    must(driver->of_green(&context, green), "cuCtxFromGreenCtx");
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->alloc(&pointer, 100 * MIB), "cuMemAlloc");
    must(driver->retain(&primary, 0), "cuDevicePrimaryCtxRetain");
    must(driver->set_current(other), "cuCtxSetCurrent");
    show();
    must(driver->end_green(green), "cuGreenCtxDestroy");
    show();
    must(driver->release(0), "cuDevicePrimaryCtxRelease");
    show();
    return 0;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    if (is(how, "stack")) return raise_limit(CU_LIMIT_STACK_SIZE, 1024, 1024);
    if (is(how, "printf")) return raise_limit(CU_LIMIT_PRINTF_SIZE, 1 * MIB, 32 * MIB);
    if (is(how, "heap")) return raise_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB, 32 * MIB);
    if (is(how, "depth")) return raise_limit(CU_LIMIT_SYNC_DEPTH, 2, 1);
    if (how[0] == 'g' && how[1] == 'l') return make_for(how);
    if (how[0] == 'v') return make_for(how);
    if (is(how, "measured")) return make_measured();
    if (is(how, "pooled")) return make_beside_a_pool();
    if (is(how, "again")) return give_again();
    if (is(how, "attach")) return attach_and_detach();
    if (is(how, "reset")) return reset_primary();
    if (is(how, "green")) return use_green();
    return 2;
}
