/* The card of an object: asked of the driver, since it may differ from the card of the thread's context. */
#include "cards.h"
#include "driver.h"

struct card *card_at(const CUlocation *location)
{
    if (location->type == CU_LOCATION_DEVICE) return card_of(location->id);
    /* A part of a device's memory: the lowest byte is the device. */
    if (location->type == CU_LOCATION_DOMAIN) return card_of(location->id & 0xff);
    return NULL;
}

struct card *card_current(void)
{
    CUdevice device;
    if (ASK((CUdevice *), cuCtxGetDevice, &device) != CUDA_SUCCESS) return NULL;
    return card_of(device);
}

static struct card *card_of_context(CUcontext context)
{
    CUcontext popped;
    if (ASK((CUcontext), cuCtxPushCurrent_v2, context) != CUDA_SUCCESS) return NULL;
    struct card *card = card_current();
    ASK((CUcontext *), cuCtxPopCurrent_v2, &popped);
    return card;
}

struct card *card_of_stream(CUstream stream)
{
    struct container *all = container_get();
    struct card *card = card_current();
    CUcontext of = NULL, now = NULL;
    /* The special streams are those of the thread's context; any other belongs to one even if the thread has none. */
    if (!all || (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD) return card;
    if (card && all->limits.count == 1) return card;
    if (ASK((CUstream, CUcontext *), cuStreamGetCtx, stream, &of) != CUDA_SUCCESS) return card;
    ASK((CUcontext *), cuCtxGetCurrent, &now);
    return of == now ? card : card_of_context(of);
}

struct card *card_of_pointer(CUdeviceptr pointer)
{
    struct container *all = container_get();
    struct card *card = NULL;
    int device = -1;
    if (all && all->limits.count > 1 &&
        ASK((void *, int, CUdeviceptr), cuPointerGetAttribute, &device, CU_POINTER_DEVICE_ORDINAL, pointer) == CUDA_SUCCESS)
        card = card_of(device);
    return card ? card : card_current();
}
