/*
 * Processes with the whole library: each has a copy of it and one of the stand-in driver, with variables of their own. So
 * memory, pools, captures and graphs run as in a program. Below the driver is the modelled card in place of a socket.
 */
#include "whole.h"
#include "inside.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LOADED 256 /* functions that a process has launched */

static struct whole *mine(void) { return (struct whole *)world_own()[1]; }

/* Copies: the loader gives a file under another name variables of its own. */
static char home[512];

static void *copy_of(const char *name)
{
    char path[600], at[64], buffer[1 << 16];
    snprintf(path, sizeof path, "%s/%s", home, name);
    int from = open(path, O_RDONLY | O_CLOEXEC), to = memfd_create(name, MFD_CLOEXEC);
    ssize_t size = 0;
    while (from >= 0 && (size = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, (size_t)size) != size) abort();
    close(from);
    snprintf(at, sizeof at, "/proc/self/fd/%d", to);
    void *copy = dlopen(at, RTLD_NOW | RTLD_LOCAL);
    if (!copy) fprintf(stderr, "replay: %s\n", dlerror()), exit(1);
    return copy; /* its file stays open, so that the next has another name */
}

/* Thread-local variables: one real thread plays all threads of a process, so they are exchanged with each switch. */
struct own_words {
    uintptr_t base;
    void *at;
    size_t size;
};

static int find_own(struct dl_phdr_info *info, size_t size, void *data)
{
    struct own_words *own = data;
    (void)size;
    if (info->dlpi_addr != own->base) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS) own->at = info->dlpi_tls_data, own->size = info->dlpi_phdr[i].p_memsz;
    return 1;
}

static void learn_own(struct whole *whole, void *copy, uint32_t i, const char *one)
{
    struct link_map *map;
    if (!dlsym(copy, one)) abort(); /* makes the loader allocate them */
    if (dlinfo(copy, RTLD_DI_LINKMAP, &map) != 0) abort();
    struct own_words own = {.base = map->l_addr};
    dl_iterate_phdr(find_own, &own);
    if (own.size && !own.at) abort();
    whole->own[i].at = own.at;
    whole->own[i].size = own.size;
    if (whole->own[0].size + whole->own[1].size > MODEL_KEPT) abort();
}

static void on_switch(void **own, void *kept)
{
    struct whole *whole = own[1];
    if (!whole || !whole->process.whole || whole->last == kept) return;
    for (uint32_t i = 0, at = 0; i < 2; at += (uint32_t)whole->own[i].size, i++) {
        if (whole->last) memcpy((char *)whole->last + at, whole->own[i].at, whole->own[i].size);
        memcpy(whole->own[i].at, (char *)kept + at, whole->own[i].size);
    }
    whole->last = kept;
}

/* The cost of the driver's calls, and effects that the stand-in does not have. */
static CUresult launch(LAUNCH_ARGS, void **extra)
{
    struct whole *whole = mine();
    const struct shape *shape = params[1];
    uint32_t i = 0;
    while (i < whole->loaded_count && whole->loaded[i] != function) i++;
    if (i == whole->loaded_count && i < LOADED) {
        /* Its first launch loads its code, which takes memory that no call asked for. */
        whole->loaded[whole->loaded_count++] = function;
        if (world_model()->lazy_bytes && !card_memory_take((uint32_t)whole->on, world_model()->lazy_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
        whole->lazy[whole->on] += world_model()->lazy_bytes;
        if (world_model()->lazy_ns) world_sleep(world_model()->lazy_ns);
    }
    whole->next = *shape;
    return whole->real.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

static CUresult launch_graph(CUgraphExec graph, CUstream stream)
{
    mine()->next = (struct shape){.part = 900};
    return mine()->real.cuGraphLaunch(graph, stream);
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes)
{
    world_sleep(world_model()->alloc_ns);
    return mine()->real.cuMemAlloc_v2(pointer, bytes);
}

static bool is_empty(void *channel) { return card_is_empty(channel); }

/* May wait for all work of the context, as NVIDIA's documentation allows it. */
static CUresult release(CUdeviceptr pointer)
{
    struct whole *whole = mine();
    struct channel *channel = whole->process.channels[whole->on];
    if (world_model()->frees_wait && channel) {
        card_flush(channel);
        world_until(is_empty, channel, MODEL_NEVER);
    }
    return whole->real.cuMemFree_v2(pointer);
}

static CUresult load_module(CUmodule *module, const void *image)
{
    world_sleep(world_model()->lazy_ns * 4);
    return mine()->real.cuModuleLoadData(module, image);
}

static CUresult set_current(CUcontext context)
{
    CUdevice device = 0;
    CUresult result = mine()->real.cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS && context && mine()->real.cuCtxGetDevice(&device) == CUDA_SUCCESS) mine()->on = (uint32_t)device;
    return result;
}

static void *driver_of(const char *name)
{
    static const struct { const char *name; void *function; } costs[] = {
        {"cuLaunchKernel", (void *)launch}, {"cuGraphLaunch", (void *)launch_graph}, {"cuMemAlloc_v2", (void *)allocate},
        {"cuMemFree_v2", (void *)release}, {"cuModuleLoadData", (void *)load_module}, {"cuCtxSetCurrent", (void *)set_current}};
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (strcmp(costs[i].name, name) == 0) return costs[i].function;
    return dlsym(mine()->driver, name);
}

/* The stand-in's questions to its card (fake/link.h). */
static bool is_over(void *event) { return event_is_over(event); }

static uint32_t stream_of(struct whole *whole, uint32_t card, uint64_t id)
{
    uint64_t *ids = whole->streams[card];
    for (uint32_t i = 1; id && i < MODEL_STREAMS; i++) {
        if (ids[i] && ids[i] != id) continue;
        ids[i] = id;
        return i;
    }
    return 0;
}

struct awaited_stream {
    const struct channel *channel;
    uint32_t stream;
};

static bool is_idle(void *what)
{
    const struct awaited_stream *awaited = what;
    return card_is_idle(awaited->channel, awaited->stream);
}

/* Work, and questions about it; `context` is the card's index and one more. */
static int32_t about_work(struct whole *whole, const struct request *request, struct answer *answer)
{
    uint32_t card = (uint32_t)request->context - 1;
    struct channel *channel = request->context ? whole->process.channels[card] : whole->process.channels[0];
    struct event **event = &whole->events[request->a % FAKE_EVENTS];
    struct submission work = {.work = WORK_KERNEL};
    if (!channel) return CUDA_ERROR_INVALID_CONTEXT;
    uint32_t stream = request->context ? stream_of(whole, card, request->stream) : 0;
    if (!*event) *event = event_new();
    switch (request->kind) {
    case ASK_KERNEL:
        work.ns = request->a, work.part = whole->next.part;
        work.flag = whole->next.flag, work.sets = whole->next.sets;
        if (work.flag) work.work = WORK_SPIN;
        whole->next = (struct shape){.part = 1000};
        card_submit(channel, stream, work);
        return CUDA_SUCCESS;
    case ASK_MARK:
        world_sleep(world_model()->call_ns / 2);
        card_submit(channel, stream, (struct submission){.work = WORK_MARK, .event = *event});
        return CUDA_SUCCESS;
    case ASK_AWAIT:
        card_submit(channel, stream, (struct submission){.work = WORK_AWAIT, .event = *event});
        return CUDA_SUCCESS;
    case ASK_PAUSE:
        card_submit(channel, stream, (struct submission){.work = WORK_HOST, .ns = request->a});
        return CUDA_SUCCESS;
    case ASK_EVENT_WAIT:
    case ASK_EVENT:
        if (!event_is_over(*event))
            for (uint32_t i = 0; i < whole->process.cards; i++) card_flush(whole->process.channels[i]);
        if (request->kind == ASK_EVENT_WAIT) world_until(is_over, *event, MODEL_NEVER);
        answer->a = event_time(*event) + event_time(*event) / 1000000 * (uint64_t)world_model()->drift;
        return event_is_over(*event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    case ASK_CONTEXT_WAIT:
        card_flush(channel);
        world_until(is_empty, channel, MODEL_NEVER);
        return CUDA_SUCCESS;
    default:
        card_flush(channel);
        struct awaited_stream awaited = {channel, stream};
        if (request->kind == ASK_STREAM_WAIT) world_until(is_idle, &awaited, MODEL_NEVER);
        return is_idle(&awaited) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    }
}

bool link_ask(const struct request *request, struct answer *answer)
{
    struct whole *whole = mine();
    struct answer none, *to = answer ? answer : &none;
    uint32_t card = request->card;
    *to = (struct answer){0};
    switch (request->kind) {
    case ASK_MEMORY_TAKE:
        if (!card_memory_take(card, request->a)) to->result = CUDA_ERROR_OUT_OF_MEMORY;
        else whole->taken[card] += request->a;
        break;
    case ASK_MEMORY_GIVE:
        card_memory_give(card, request->a);
        whole->taken[card] -= request->a;
        break;
    case ASK_MEMORY_INFO:
        to->a = card < whole->process.cards ? MODEL_MEMORY : 0;
        to->b = card_memory_used(card);
        break;
    case ASK_CONTEXT_NEW:
        whole->process.channels[card] = card_open(card);
        to->a = card + 1;
        break;
    case ASK_CONTEXT_END:
        card_close(whole->process.channels[request->context - 1]);
        whole->process.channels[request->context - 1] = NULL;
        break;
    default: to->result = about_work(whole, request, to);
    }
    return true;
}

bool link_is_instant(void) { return false; }
uint64_t link_instant(void) { return 0; }
uint64_t link_now(void) { return world_now(); }
void link_uuid(uint32_t card, unsigned char bytes[16])
{
    memset(bytes, 0xfa, 16);
    bytes[15] = (unsigned char)card;
}

/* Sleeps of the library and of the stand-in. */
int model_usleep(unsigned us) { return world_sleep(us * 1000ull), 0; }
int model_nanosleep(const struct timespec *span, struct timespec *left)
{
    (void)left;
    return world_sleep((uint64_t)span->tv_sec * 1000000000ull + (uint64_t)span->tv_nsec), 0;
}

/* The watch of a copy. */
static bool is_called(void *process) { return ((struct process *)process)->call != 0; }

static void watch(void *argument)
{
    struct whole *whole = argument;
    int mode = CU_CAPTURE_RELAXED;
    whole->real.cuThreadExchangeStreamCaptureMode(&mode);
    while (!whole->process.ended) {
        whole->process.call = 0;
        if (whole->inside.watch()) world_sleep(MS + world_chance(world_model()->wake_ns + 1));
        else world_until(is_called, &whole->process, MODEL_NEVER);
    }
}

void watch_stop(void)
{
    mine()->process.ended = true;
    mine()->process.call++;
}

static struct whole copies[MODEL_WHOLE];
static uint32_t copies_made;

void whole_prepare(const char *program, uint32_t count)
{
    snprintf(home, sizeof home, "%s", program);
    char *end = strrchr(home, '/');
    if (end) *end = 0;
    else strcpy(home, ".");
    for (; copies_made < count; copies_made++) {
        struct whole *whole = &copies[copies_made];
        whole->driver = copy_of("modelled-driver.so");
        whole->library = copy_of("modelled-library.so");
    }
    world_on_switch(on_switch);
}

struct whole *whole_at(uint32_t index) { return &copies[index]; }

#define OF_DRIVER(name) whole->real.name = (__typeof__(whole->real.name))dlsym(whole->driver, #name);
#define OF_PROGRAM(name)                                                                                 \
    whole->calls.name = (__typeof__(whole->calls.name))(bare ? NULL : dlsym(whole->library, #name));       \
    if (!whole->calls.name) whole->calls.name = (__typeof__(whole->calls.name))driver_of(#name);

void whole_open(struct whole *whole, uint32_t cards, uint32_t seat, struct tenant_terms terms)
{
    bool bare = terms.bare;
    struct inside_world inside = {.cards = cards, .driver = driver_of};
    whole->process.cards = cards;
    whole->process.bare = bare;
    whole->process.whole = true;
    world_own()[1] = whole;
    learn_own(whole, whole->driver, 0, "fake_current");
    learn_own(whole, whole->library, 1, "inside_own");
    WHOLE_CALLS(OF_DRIVER)
    WHOLE_CALLS(OF_PROGRAM)
    if (bare) return;
    inside.limits = (struct card_limits){.slot = seat, .memory = terms.memory, .core = terms.quota, .policy = terms.policy,
                                         .priority = terms.priority, .context = MODEL_CONTEXT};
    for (uint32_t i = 0; i < cards; i++) inside.seats[i] = process_seat(i, seat, terms);
    whole->inside.watch = (bool (*)(void))dlsym(whole->library, "inside_watch");
    whole->inside.counted = (uint64_t (*)(uint32_t))dlsym(whole->library, "inside_counted");
    whole->inside.served = (uint64_t (*)(uint32_t))dlsym(whole->library, "inside_served");
    whole->inside.end = (void (*)(void))dlsym(whole->library, "inside_end");
    ((__typeof__(&inside_open))dlsym(whole->library, "inside_open"))(&inside);
    world_own()[1] = NULL;
    world_thread(watch, whole)[1] = whole;
}

/* By an engine that the library leaves alone. */
void whole_copy(struct whole *whole, CUstream stream, uint64_t ns)
{
    uint64_t id = ((uint64_t (*)(CUstream))dlsym(whole->driver, "fake_stream"))(stream);
    world_sleep(world_model()->call_ns);
    card_submit(whole->process.channels[whole->on], stream_of(whole, whole->on, id), (struct submission){.ns = ns, .part = 1});
}

void whole_thread(struct whole *whole, void (*body)(void *), void *argument) { world_thread(body, argument)[1] = whole; }
