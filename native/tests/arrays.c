/*
 * Arrays without memory of their own, and memory mapped to them. For the modelled card.
 *
 * Usage: arrays HOW
 *   HOW  deferred mipmap   mapped as a whole, with one handle and then another
 *        sparse            two tiles, one of which is unmapped again
 *        failed            a mapping that the driver refuses
 *        context           in a context of its own, which is destroyed
 *        plain             an ordinary array of 64 MiB in a format of four channels of a byte
 *        flat              a mipmap of 32 MiB; as only its width halves, its other levels take as much again
 * Each handle has 128 MiB and is released after its mapping. Prints "used BYTES" after each step.
 */
#include "../tools/driver.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)
#define PIECE (128 * MIB)

static const struct driver *driver;
static CUcontext primary;

static int is(const char *how, const char *name) { return strcmp(how, name) == 0; }

static void show(void)
{
    size_t free, total;
    must(driver->info(&free, &total), "cuMemGetInfo");
    printf("used %zu\n", total - free);
}

/* Maps a new handle to a part of the array, which then is its only holder. */
static CUresult map(CUarray array, unsigned at)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUarrayMap one = {.resource.array = array, .subresource.sparseLevel.offsetX = at, .memOperationType = CU_ARRAY_MAP};
    must(driver->create(&one.memHandle, PIECE, &prop, 0), "cuMemCreate");
    CUresult result = driver->map_array(&one, 1, NULL);
    must(driver->release_handle(one.memHandle), "cuMemRelease");
    return result;
}

static void unmap(CUarray array, unsigned at)
{
    CUarrayMap one = {.resource.array = array, .subresource.sparseLevel.offsetX = at, .memOperationType = CU_ARRAY_UNMAP};
    must(driver->map_array(&one, 1, NULL), "cuMemMapArrayAsync");
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    CUarray3D shape = {16384, 16384, 0, 0x20, 1, is(how, "sparse") ? CU_ARRAY_SPARSE : CU_ARRAY_DEFERRED};
    CUcontext context = NULL;
    CUarray array;
    driver = driver_find("dlsym");
    if (!driver) return 4;
    must(driver->init(0), "cuInit");
    must(driver->retain(&primary, 0), "cuDevicePrimaryCtxRetain");
    must(driver->set_current(primary), "cuCtxSetCurrent");
    if (is(how, "context")) must(driver->make_context(&context, 0, 0), "cuCtxCreate");
    if (is(how, "plain")) shape = (CUarray3D){4096, 4096, 0, 0xc2, 4, 0};
    if (is(how, "flat")) shape = (CUarray3D){4096, 0, 512, 0x20, 4, CU_ARRAY_LAYERED};
    bool mipmap = is(how, "mipmap") || is(how, "flat");
    if (mipmap) must(driver->make_mipmap((CUmipmap *)&array, &shape, 13), "cuMipmappedArrayCreate");
    else must(driver->array(&array, &shape), "cuArray3DCreate");
    show();
    if (is(how, "failed")) {
        printf("failed %d\n", map(NULL, 0));
    } else if (!is(how, "plain") && !is(how, "flat")) {
        must(map(array, 0), "cuMemMapArrayAsync");
        must(map(array, is(how, "sparse") ? 512 : 0), "cuMemMapArrayAsync");
        show();
        if (is(how, "sparse")) unmap(array, 512);
    }
    show();
    if (context) must(driver->end_context(context), "cuCtxDestroy");
    else if (mipmap) must(driver->end_mipmap((CUmipmap)array), "cuMipmappedArrayDestroy");
    else must(driver->end_array(array), "cuArrayDestroy");
    must(driver->set_current(primary), "cuCtxSetCurrent");
    show();
    return 0;
}
