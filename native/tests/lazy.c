/*
 * Launches of ever new functions among old ones, as a program's first steps are: the modelled driver loads a function while its
 * first launch is made (FAKE_GPU_LOADING_US of the host each).
 *
 * Usage: lazy FUNCTIONS EACH DEPTH NS     launches each of so many functions so often, NS of the card each, and waits after
 *                                         every DEPTH launches (0: at the end); prints "done COUNT NS"
 */
#include "../tools/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

int main(int argc, char **argv)
{
    const struct driver *driver = driver_find("dlsym");
    uint64_t number[4] = {0};
    CUcontext context;
    CUstream stream;
    if (!driver) return 4;
    for (int i = 0; i < 4 && i + 1 < argc; i++) number[i] = strtoull(argv[i + 1], NULL, 10);
    void *params[] = {&number[3], NULL};
    must(driver->init(0), "cuInit");
    must(driver->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(driver->set_current(context), "cuCtxSetCurrent");
    must(driver->make_stream(&stream, 1), "cuStreamCreate");
    uint64_t began = now(), count = 0;
    for (uint64_t i = 0; i < number[0]; i++) {
        for (uint64_t k = 0; k < number[1]; k++) {
            CUfunction function = (CUfunction)(uintptr_t)(0x10000 + 64 * (k ? 0 : i));
            must(driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
            if (number[2] && ++count % number[2] == 0) must(driver->stream_wait(stream), "cuStreamSynchronize");
        }
    }
    must(driver->stream_wait(stream), "cuStreamSynchronize");
    printf("done %llu %llu\n", (unsigned long long)(number[0] * number[1]), (unsigned long long)(now() - began));
    return 0;
}
