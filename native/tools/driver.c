#include "driver.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct driver driver;

#ifdef LINKED
/* Weak: a program linked with all of them still starts if the driver lacks one. */
#define WEAK(name, exported, asked) extern __typeof__(exported) exported __attribute__((weak));
NEWER(WEAK)
#undef WEAK
#endif

void must(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: driver error %d\n", call, result);
    exit(3);
}

static void *missing(const char *name)
{
    fprintf(stderr, "the driver has no %s\n", name);
    return NULL;
}

static const struct driver *by_dlsym(void *library)
{
#define FIND(name, exported, asked)                                                                      \
    driver.name = (__typeof__(driver.name))dlsym(library, #exported);                                    \
    if (!driver.name) return missing(#exported);
    USED(FIND)
#undef FIND
#define FIND(name, exported, asked) driver.name = (__typeof__(driver.name))dlsym(library, #exported);
    NEWER(FIND)
#undef FIND
    return &driver;
}

static const struct driver *by_address(void *library)
{
    __typeof__(&cuGetProcAddress_v2) find = (__typeof__(find))dlsym(library, "cuGetProcAddress_v2");
    int status;
    if (!find) return missing("cuGetProcAddress_v2");
#define FIND(name, exported, asked)                                                                      \
    if (find(asked, (void **)&driver.name, 12080, 0, &status) != CUDA_SUCCESS || !driver.name)           \
        return missing(asked);
    USED(FIND)
#undef FIND
#define FIND(name, exported, asked)                                                                      \
    if (find(asked, (void **)&driver.name, 12080, 0, &status) != CUDA_SUCCESS) driver.name = NULL;
    NEWER(FIND)
#undef FIND
    return &driver;
}

const struct driver *driver_find(const char *way)
{
    if (getenv("TOOL_WAY")) way = getenv("TOOL_WAY");
#ifdef LINKED
#define FIND(name, exported, asked) driver.name = exported;
    if (strcmp(way, "linked") == 0) {
        USED(FIND)
        NEWER(FIND)
        return &driver;
    }
#undef FIND
#endif
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), NULL;
    return strcmp(way, "proc") == 0 ? by_address(library) : by_dlsym(library);
}
