/* Stand-in for libcuda.so.1: memory by address and handle, and the lookup of functions. */
#include "cuda.h"
#include "../src/symbols.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOTES 65536
#define PLAIN (1ull << 59) /* marks the entry with the size of a plain allocation */

static struct { uint64_t key, bytes, other; } notes[NOTES];
FAKE_LOCK(lock)
static _Atomic uint64_t next_address = 0x7f0000000000ull;

bool fake_is_opened(CUdeviceptr pointer)
{
    uint64_t again, none;
    return fake_recall(pointer | 1ull << 60, &again, &none, 0);
}

bool fake_is_plain(CUdeviceptr pointer)
{
    uint64_t size, none;
    return fake_recall(pointer | PLAIN, &size, &none, 0);
}

CUresult fake_take(CUdevice device, uint64_t bytes)
{
    struct answer answer;
    return fake_ask((struct request){.kind = ASK_MEMORY_TAKE, .card = (uint32_t)device, .a = bytes}, &answer);
}

void fake_give(CUdevice device, uint64_t bytes)
{
    fake_ask((struct request){.kind = ASK_MEMORY_GIVE, .card = (uint32_t)device, .a = bytes}, NULL);
}

/* The card's name of an allocation of a process: its address there, and the process. */
static uint64_t name_of(CUdeviceptr pointer, uint64_t pid) { return pointer | pid << 48; }

static void tell_memory(uint32_t kind, CUdevice device, uint64_t bytes, uint64_t name)
{
    fake_ask((struct request){.kind = kind, .card = (uint32_t)device, .a = bytes, .b = name}, NULL);
}

uint64_t fake_address(uint64_t bytes)
{
    return atomic_fetch_add(&next_address, (bytes + FAKE_GRANULE - 1) / FAKE_GRANULE * FAKE_GRANULE);
}

void fake_note(uint64_t key, uint64_t bytes, uint64_t other)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < NOTES; i++) {
        if (notes[i].key && notes[i].key != key) continue;
        notes[i].key = key, notes[i].bytes = bytes, notes[i].other = other;
        break;
    }
    pthread_mutex_unlock(&lock);
}

int fake_recall(uint64_t key, uint64_t *bytes, uint64_t *other, int forget)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < NOTES && !found; i++) {
        if (notes[i].key != key) continue;
        *bytes = notes[i].bytes;
        *other = notes[i].other;
        if (forget) notes[i].key = 0;
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

#define NAMES 4096
#define NAME_AT 0x600000000000ull
static unsigned char named[NAMES];

uint64_t fake_name(void)
{
    uint64_t i = 0;
    pthread_mutex_lock(&lock);
    while (i < NAMES - 1 && named[i]) i++;
    named[i] = 1;
    pthread_mutex_unlock(&lock);
    return NAME_AT + i * 64;
}

void fake_unname(uint64_t name)
{
    pthread_mutex_lock(&lock);
    named[(name - NAME_AT) / 64] = 0;
    pthread_mutex_unlock(&lock);
    usleep(50);
}

/*
 * As a driver does (seen on an H200 with 580.159): an allocation of up to half a granule goes to the first block of its
 * context with room for it. The rest of a larger one's last block is such room. A block returns to the card when it is
 * empty.
 */
#define BLOCKS 4096
#define UNIT 512
#define UNITS (FAKE_GRANULE / UNIT)
static struct block { uint64_t at; CUcontext context; uint32_t used; unsigned char is_used[UNITS]; } *blocks;
FAKE_LOCK(block_lock)

static void fill(struct block *block, uint64_t from, uint64_t units, int used)
{
    memset(block->is_used + from, used, units);
    if (used) block->used += (uint32_t)units;
    else block->used -= (uint32_t)units;
}

static struct block *open_block(uint64_t at)
{
    if (!blocks) blocks = calloc(BLOCKS, sizeof *blocks);
    for (uint32_t i = 0; blocks && i < BLOCKS; i++) {
        if (blocks[i].used) continue;
        blocks[i] = (struct block){.at = at, .context = fake_current};
        return &blocks[i];
    }
    abort();
}

static uint64_t in_block(uint64_t units)
{
    for (uint32_t i = 0; blocks && i < BLOCKS; i++) {
        struct block *block = &blocks[i];
        if (block->context != fake_current || !block->used || UNITS - block->used < units) continue;
        for (uint64_t from = 0, run = 0; from < UNITS; from++) {
            run = block->is_used[from] ? 0 : run + 1;
            if (run < units) continue;
            fill(block, from + 1 - units, units, 1);
            return block->at + (from + 1 - units) * UNIT;
        }
    }
    return 0;
}

/* Returned bytes of the memory at an address. */
static uint64_t out_of_blocks(uint64_t pointer, uint64_t size)
{
    uint64_t end = pointer + size, whole = size / FAKE_GRANULE * FAKE_GRANULE, at = pointer + whole;
    for (uint32_t i = 0; blocks && at < end && i < BLOCKS; i++) {
        if (!blocks[i].used || at < blocks[i].at || at >= blocks[i].at + FAKE_GRANULE) continue;
        fill(&blocks[i], (at - blocks[i].at) / UNIT, (end - at) / UNIT, 0);
        return whole + (blocks[i].used ? 0 : FAKE_GRANULE);
    }
    return whole;
}

void fake_forget_blocks(CUcontext context)
{
    pthread_mutex_lock(&block_lock);
    for (uint32_t i = 0; blocks && i < BLOCKS; i++)
        if (blocks[i].context == context) blocks[i].used = 0;
    pthread_mutex_unlock(&block_lock);
}

static CUresult allocate(CUdeviceptr *pointer, uint64_t bytes)
{
    CUresult refused = fake_unsafe(), result = CUDA_SUCCESS;
    if (refused) return refused;
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > 1ull << 46) return CUDA_ERROR_OUT_OF_MEMORY;
    fake_free_reached();
    uint64_t whole = (bytes + FAKE_GRANULE - 1) / FAKE_GRANULE * FAKE_GRANULE, size = (bytes + UNIT - 1) / UNIT * UNIT;
    pthread_mutex_lock(&block_lock);
    uint64_t at = size <= FAKE_GRANULE / 2 ? in_block(size / UNIT) : 0;
    if (!at) {
        result = fake_take(fake_current->device, whole);
        if (result == CUDA_SUCCESS) at = fake_address(whole);
        uint64_t rest = size % FAKE_GRANULE;
        if (at && rest) fill(open_block(at + size - rest), 0, rest / UNIT, 1);
    }
    pthread_mutex_unlock(&block_lock);
    if (result != CUDA_SUCCESS) return result;
    *pointer = at;
    fake_note(at, whole, (uint64_t)fake_current->device);
    fake_note(at | PLAIN, size, 0);
    return CUDA_SUCCESS;
}

static uint64_t returned(uint64_t pointer, uint64_t bytes)
{
    uint64_t size, none;
    if (!fake_recall(pointer | PLAIN, &size, &none, 1)) return bytes;
    pthread_mutex_lock(&block_lock);
    bytes = out_of_blocks(pointer, size);
    pthread_mutex_unlock(&block_lock);
    return bytes;
}

CUresult fake_release(uint64_t key)
{
    uint64_t bytes, device;
    if (!fake_recall(key, &bytes, &device, 1)) return CUDA_ERROR_INVALID_VALUE;
    bytes = returned(key, bytes);
    if (device & FAKE_OF_GRAPH) fake_graph_freed(device);
    else if (bytes && device >= FAKE_CARDS) fake_unpool((CUpool)(uintptr_t)device, bytes);
    else tell_memory(ASK_MEMORY_GIVE, (CUdevice)device, bytes, name_of(key, (uint64_t)getpid()));
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) { return allocate(pointer, bytes); }
CUresult cuMemAlloc(unsigned *pointer, unsigned bytes) { (void)bytes; *pointer = 16; return CUDA_SUCCESS; }
CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    CUresult refused = fake_unsafe();
    if (pointer && !refused && fake_is_opened(pointer)) return cuIpcCloseMemHandle(pointer);
    return pointer && !refused ? fake_release(pointer) : refused;
}
CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)element;
    if (width > 1ull << 40 || height > 1ull << 40) return CUDA_ERROR_OUT_OF_MEMORY;
    *pitch = (width + 511) / 512 * 512;
    return allocate(pointer, *pitch > (1ull << 46) / height ? UINT64_MAX : *pitch * height);
}
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    if (!fake_current || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    *pointer = fake_address(bytes);
    fake_note(*pointer, 0, (uint64_t)fake_current->device); /* pages stay on the host until touched */
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUresult refused = fake_unsafe();
    if (refused) return refused;
    struct answer answer;
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    fake_free_reached();
    fake_ask((struct request){.kind = ASK_MEMORY_INFO, .card = (uint32_t)fake_current->device}, &answer);
    *total = answer.a;
    *free = answer.a - answer.b;
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    struct answer answer;
    fake_ask((struct request){.kind = ASK_MEMORY_INFO, .card = (uint32_t)device}, &answer);
    *bytes = answer.a;
    return CUDA_SUCCESS;
}
/* The allocation that an address lies in: the address itself, or one of the granules before it. */
static bool lies_in(CUdeviceptr *pointer, uint64_t *bytes, uint64_t *other)
{
    CUdeviceptr at = *pointer;
    for (int i = 0; i < 4096; i++) {
        if (fake_recall(at, bytes, other, 0) && (at == *pointer || *pointer - at < *bytes)) return *pointer = at, true;
        at = at % FAKE_GRANULE ? at - at % FAKE_GRANULE : at - FAKE_GRANULE;
    }
    return false;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    uint64_t bytes, other;
    if (!lies_in(&pointer, &bytes, &other)) return CUDA_ERROR_INVALID_VALUE;
    *base = pointer;
    *size = other >> 32 ? other >> 32 << 20 : bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags)
{
    (void)flags;
    if (bytes % FAKE_GRANULE) return CUDA_ERROR_INVALID_VALUE;
    CUdevice device = prop->location.id & 0xff;
    bool host = prop->location.type == CU_LOCATION_HOST;
    CUresult result = host ? CUDA_SUCCESS : fake_take(device, bytes);
    if (result != CUDA_SUCCESS) return result;
    *handle = fake_serial() | 1ull << 62;
    fake_note(*handle, host ? 0 : bytes, (uint64_t)device | 1ull << 32); /* one reference */
    return CUDA_SUCCESS;
}

CUresult fake_refer(uint64_t handle, int64_t by)
{
    uint64_t bytes, other;
    if (!fake_recall(handle, &bytes, &other, 1)) return CUDA_ERROR_INVALID_VALUE;
    int64_t left = (int64_t)(other >> 32) + by;
    if (left > 0) fake_note(handle, bytes, (other & 0xffffffff) | (uint64_t)left << 32);
    else fake_give((CUdevice)(other & 0xffffffff), bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemHandle handle) { return fake_refer(handle, -1); }
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long flags)
{
    (void)offset, (void)flags;
    CUresult result = fake_refer(handle, 1);
    if (result == CUDA_SUCCESS) fake_note(pointer | 1ull << 63, bytes, handle);
    return result;
}
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    uint64_t size, handle;
    for (CUdeviceptr at = pointer; at < pointer + bytes; at += size) {
        if (!fake_recall(at | 1ull << 63, &size, &handle, 1)) return CUDA_ERROR_INVALID_VALUE;
        fake_refer(handle, -1);
    }
    return CUDA_SUCCESS;
}
CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address)
{
    uint64_t size, found;
    if (!fake_recall((uint64_t)(uintptr_t)address | 1ull << 63, &size, &found, 0)) return CUDA_ERROR_INVALID_VALUE;
    *handle = found;
    return fake_refer(found, 1);
}
/*
 * Memory bound to a multicast object stays as long as it is bound. No binding succeeds before all its devices were
 * added; the first number of its properties is their count, and 0 needs none.
 */
static _Atomic unsigned devices_missing;
/* The model makes no checkpoints. */
CUresult cuCheckpointProcessRestore(int pid, const CUrestoreArgs *args)
{
    (void)args;
    return pid > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastCreate(CUmemHandle *many, const void *prop);
CUresult cuMulticastCreate(CUmemHandle *many, const void *prop)
{
    *many = fake_serial() << 32 | 1ull << 61;
    atomic_store(&devices_missing, prop ? *(const unsigned *)prop : 0);
    return CUDA_SUCCESS;
}
CUresult cuMulticastAddDevice(CUmemHandle many, CUdevice device);
CUresult cuMulticastAddDevice(CUmemHandle many, CUdevice device)
{
    (void)many, (void)device;
    atomic_fetch_sub(&devices_missing, 1);
    return CUDA_SUCCESS;
}
CUresult cuMulticastBindMem(CUmemHandle many, size_t many_offset, CUmemHandle handle, size_t offset, size_t bytes,
                            unsigned long long flags)
{
    (void)offset, (void)flags;
    while (atomic_load(&devices_missing)) usleep(1000);
    CUresult result = fake_refer(handle, 1);
    if (result == CUDA_SUCCESS) fake_note(many + many_offset, bytes, handle);
    return result;
}
CUresult cuMulticastBindAddr(CUmemHandle many, size_t many_offset, CUdeviceptr pointer, size_t bytes,
                             unsigned long long flags)
{
    uint64_t size, handle;
    if (!fake_recall(pointer | 1ull << 63, &size, &handle, 0)) return CUDA_ERROR_INVALID_VALUE;
    return cuMulticastBindMem(many, many_offset, handle, 0, bytes, flags);
}
CUresult cuMulticastBindMem_v2(CUmemHandle many, CUdevice device, size_t many_offset, CUmemHandle handle, size_t offset,
                               size_t bytes, unsigned long long flags)
{
    (void)device;
    return cuMulticastBindMem(many, many_offset, handle, offset, bytes, flags);
}
CUresult cuMulticastBindAddr_v2(CUmemHandle many, CUdevice device, size_t many_offset, CUdeviceptr pointer, size_t bytes,
                                unsigned long long flags)
{
    (void)device;
    return cuMulticastBindAddr(many, many_offset, pointer, bytes, flags);
}
CUresult cuMulticastUnbind(CUmemHandle many, CUdevice device, size_t many_offset, size_t bytes)
{
    uint64_t size, handle;
    (void)device, (void)bytes;
    if (!fake_recall(many + many_offset, &size, &handle, 1)) return CUDA_ERROR_INVALID_VALUE;
    return fake_refer(handle, -1);
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUallocationProp *prop, CUmemHandle handle);
CUresult cuMemGetAllocationPropertiesFromHandle(CUallocationProp *prop, CUmemHandle handle)
{
    uint64_t bytes, other;
    if (!fake_recall(handle, &bytes, &other, 0)) return CUDA_ERROR_INVALID_VALUE;
    *prop = (CUallocationProp){.type = 1, .location = {CU_LOCATION_DEVICE, (int)(other & 0xffffffff)}};
    return CUDA_SUCCESS;
}
/* A shared handle is a number: the device that its memory lies on. */
CUresult cuMemImportFromShareableHandle(CUmemHandle *handle, void *shared, int type)
{
    (void)type;
    *handle = fake_serial() | 1ull << 62;
    fake_note(*handle, 0, (uint64_t)(uintptr_t)shared | 1ull << 32);
    return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t align, CUdeviceptr wish, unsigned long long flags);
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t align, CUdeviceptr wish, unsigned long long flags)
{
    (void)align, (void)wish, (void)flags;
    *pointer = fake_address(bytes);
    return CUDA_SUCCESS;
}

CUdevice fake_device_of(uint64_t other)
{
    return other >> 32 && other < 1ull << 48 && (other & 0xffffffff) >= FAKE_CARDS ? ((CUpool)(uintptr_t)other)->device
                                                                                  : (CUdevice)(other & 0xff);
}
CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer);
CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer)
{
    uint64_t bytes, other;
    if (!fake_recall(pointer, &bytes, &other, 0)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute != CU_POINTER_DEVICE_ORDINAL && attribute != CU_POINTER_MEMORY_TYPE) return CUDA_ERROR_INVALID_VALUE;
    int told = attribute == CU_POINTER_MEMORY_TYPE ? CU_MEMORY_DEVICE : fake_device_of(other);
    memcpy(value, &told, sizeof told);
    return CUDA_SUCCESS;
}

/* Handles of memory in another process: its address and size, the process and its device, and bytes like any others. */
CUresult cuIpcGetMemHandle(CUipcMem *handle, CUdeviceptr pointer)
{
    uint64_t bytes, other;
    if (!lies_in(&pointer, &bytes, &other)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t mixed = (pointer ^ pointer >> 21) * 0x9e3779b97f4a7c15ull;
    uint64_t values[5] = {pointer, bytes, (uint64_t)getpid(), 0, mixed ^ mixed >> 29};
    values[3] = (uint64_t)fake_device_of(other);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, values, sizeof values);
    return CUDA_SUCCESS;
}
/* The same handle gives the same address, and needs as many closes; a handle of a made-up address gives a new one each time. */
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMem handle, unsigned flags)
{
    uint64_t values[4];
    (void)flags;
    memcpy(values, &handle, sizeof values);
    uint64_t again = values[0] | values[2] << 48 | 1ull << 62, at, times;
    if (values[0] % FAKE_GRANULE == 0 && fake_recall(again, &at, &times, 0)) {
        fake_note(again, at, times + 1); /* opened before: the same address, which needs one close more */
        *pointer = at;
        return CUDA_SUCCESS;
    }
    *pointer = fake_address(values[1]);
    fake_note(*pointer, 0, values[1] >> 20 << 32 | values[3]);
    if (values[0] % FAKE_GRANULE == 0) {
        fake_note(again, *pointer, 1);
        fake_note(*pointer | 1ull << 60, again, name_of(values[0], values[2]));
        tell_memory(ASK_MEMORY_OPEN, (CUdevice)values[3], values[1], name_of(values[0], values[2]));
    }
    return CUDA_SUCCESS;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    uint64_t again, at, times, name;
    if (fake_recall(pointer | 1ull << 60, &again, &name, 0) && fake_recall(again, &at, &times, 1)) {
        if (times > 1) {
            fake_note(again, at, times - 1);
            return CUDA_SUCCESS;
        }
        fake_recall(pointer | 1ull << 60, &again, &name, 1);
        tell_memory(ASK_MEMORY_CLOSE, 0, 0, name);
    }
    return fake_release(pointer);
}

/* Newer names first: a driver returns the newest that the asked version knows. */
CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status)
{
    static const char *const endings[] = {"_v2", "", NULL};
    char name[128];
    *address = NULL;
    int first = (strncmp(symbol, "cuMulticastBind", 15) == 0 && version < 13010) ||
                (strcmp(symbol, "cuCtxSynchronize") == 0 && version < 13000) ||
                (strcmp(symbol, "cuGetProcAddress") == 0 && version < 12000);
    fake_asked(symbol, version, flags);
    for (int i = first; endings[i] && !*address; i++) {
        snprintf(name, sizeof name, "%s%s%s", symbol, endings[i], flags & CU_PROC_PER_THREAD_STREAM ? "_ptsz" : "");
        *address = symbols_of("libcuda.so.1", name);
        snprintf(name, sizeof name, "%s%s", symbol, endings[i]);
        if (!*address) *address = symbols_of("libcuda.so.1", name);
    }
    if (status) *status = *address ? 0 : 1;
    return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
