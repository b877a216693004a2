/*
 * Modelled cards, shared by all processes that load the stand-in driver.
 *
 * A card has memory and runs kernels of given durations. Contexts that have work take slices of two
 * milliseconds in turn, as a real card's time-slicing does; a context runs its work in order. Time is the
  * machine's monotonic clock, and the model computes all times: a kernel's duration does not depend on how quickly this
 * process is scheduled. When the last connection of a client closes, its work and memory end.
 *
 * With "work" as the last argument, marks show the time in which the card had work, or waited for something on a
 * stream. Time without either, because a program launches late, shows in no mark. So a busy machine adds nothing.
 *
 * Usage: fake-card SOCKET [CARDS [MEMORY_BYTES [work]]]
 */
#include "../include/abi.h"
#include "wire.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS 512
#define CONTEXTS 640
#define LINKS 2048
#define OPENINGS 256
#define NAME_SHIFT 48 /* of the owner's number in a name of memory */
#define EVENTS FAKE_EVENTS
#define NO_CLIENT UINT32_MAX
#define SLICE 2000000ull

/* until: the end of a pause that began; awaited: an event of any context of the client that must be over first */
struct item { uint64_t left, stream, event, until, awaited; bool pause; };

struct context {
    bool used;
    uint32_t card, client;
    struct item *items;
    uint32_t first, count, room;
};

struct client { uint64_t name, pid, served[FAKE_CARDS], memory[FAKE_CARDS]; uint32_t links; };

struct card { uint64_t time, idle, total, used, served, slice; uint32_t current; };

struct link { int file; uint32_t client; struct request waiting; };

struct event { uint64_t time, round; bool over; }; /* round: how often it was recorded */

/* Memory that a client has open beside its owner; left: its owner gave it, or has ended */
struct opening { uint64_t name, bytes; uint32_t client, card; bool left; };

static struct opening openings[OPENINGS];
static struct client clients[CLIENTS];
static struct context contexts[CONTEXTS];
static struct card cards[FAKE_CARDS];
static struct link links[LINKS];
static struct event events[CLIENTS][EVENTS];
static uint32_t card_count = 1, link_count;
static bool pauses, awaits; /* any was made: without one the search is left out */
static bool by_work;        /* marks show the card's time with work only */

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static struct event *event_of(uint32_t client, uint64_t name) { return &events[client][name % EVENTS]; }

static uint64_t round_of(uint64_t name) { return name / EVENTS; }

static struct item *first_item(struct context *context)
{
    return context->count ? &context->items[context->first] : NULL;
}

static void drop_first(struct context *context)
{
    context->first = (context->first + 1) % context->room;
    context->count--;
}

static void push(struct context *context, struct item item)
{
    if (context->count == context->room) {
        struct item *grown = calloc(context->room ? context->room * 2 : 64, sizeof *grown);
        if (!grown) abort();
        for (uint32_t i = 0; i < context->count; i++) grown[i] = context->items[(context->first + i) % context->room];
        free(context->items);
        context->items = grown;
        context->first = 0;
        context->room = context->room ? context->room * 2 : 64;
    }
    context->items[(context->first + context->count++) % context->room] = item;
}

/* Passes marks and pauses that are over at the head of a context's work; true when a kernel is next. */
static bool has_kernel(struct context *context, uint64_t time)
{
    struct item *item;
    while ((item = first_item(context)) != NULL && (item->event || item->pause || item->awaited)) {
        if (item->awaited) {
            struct event *event = event_of(context->client, item->awaited);
            if (event->round == round_of(item->awaited) && round_of(item->awaited) && !event->over) return false;
            drop_first(context);
            continue;
        }
        if (item->pause) {
            if (item->until == 0) item->until = time + item->left;
            if (time < item->until) return false;
            drop_first(context);
            continue;
        }
        struct event *event = event_of(context->client, item->event);
        event->time = time - (by_work ? cards[context->card].idle : 0);
        event->over = event->round == round_of(item->event);
        drop_first(context);
    }
    return item != NULL;
}

/* The context to run next: the current one while its slice lasts or it is alone. */
static struct context *choose(uint32_t index, bool *shared)
{
    struct card *card = &cards[index];
    struct context *next = NULL;
    uint32_t able = 0;
    /* First end the event that another context awaits, then look at that context. */
    for (uint32_t i = 0; awaits && i < CONTEXTS; i++)
        if (contexts[i].used && contexts[i].card == index) has_kernel(&contexts[i], card->time);
    for (uint32_t i = 1; i <= CONTEXTS; i++) {
        struct context *context = &contexts[(card->current + i) % CONTEXTS];
        if (!context->used || context->card != index || !has_kernel(context, card->time)) continue;
        able++;
        if (!next) next = context;
    }
    struct context *current = &contexts[card->current];
    *shared = able > 1;
    bool runs = current->used && current->card == index && has_kernel(current, card->time);
    if (runs && (able == 1 || card->slice > 0)) return current;
    if (next) {
        card->current = (uint32_t)(next - contexts);
        card->slice = SLICE;
    }
    return next;
}

/* The earliest end of a pause before `until`. */
static uint64_t first_end(uint32_t index, uint64_t until)
{
    for (uint32_t i = 0; pauses && i < CONTEXTS; i++) {
        const struct item *item = contexts[i].used && contexts[i].card == index ? first_item(&contexts[i]) : NULL;
        if (item && item->pause && item->until && item->until < until) until = item->until;
    }
    return until;
}

/* Is the card without work, waiting work included? */
static bool is_idle(uint32_t index)
{
    for (uint32_t i = 0; i < CONTEXTS; i++)
        if (contexts[i].used && contexts[i].card == index && contexts[i].count) return false;
    return true;
}

static void advance(uint32_t index, uint64_t until)
{
    struct card *card = &cards[index];
    while (card->time < until) {
        bool shared;
        struct context *context = choose(index, &shared);
        uint64_t next = first_end(index, until);
        if (!context) {
            if (by_work && is_idle(index)) card->idle += next - card->time;
            card->time = next;
            continue;
        }
        struct item *item = first_item(context);
        uint64_t span = next - card->time;
        if (item->left < span) span = item->left;
        if (shared && card->slice < span) span = card->slice;
        card->time += span;
        card->served += span;
        clients[context->client].served[index] += span;
        card->slice -= span < card->slice ? span : card->slice;
        item->left -= span;
        if (item->left == 0) drop_first(context);
    }
    for (uint32_t i = 0; i < CONTEXTS; i++)
        if (contexts[i].used && contexts[i].card == index) has_kernel(&contexts[i], card->time);
}

static bool is_empty(const struct context *context, uint64_t stream, bool any)
{
    for (uint32_t i = 0; i < context->count; i++) {
        const struct item *item = &context->items[(context->first + i) % context->room];
        if (any || item->stream == stream) return false;
    }
    return true;
}

static void end_context(struct context *context)
{
    free(context->items);
    memset(context, 0, sizeof *context);
}

/* Whether any client has this memory open; from then on those who have it open keep it. */
static bool leave_open(uint64_t name)
{
    bool any = false;
    for (uint32_t i = 0; i < OPENINGS; i++)
        if (name && openings[i].name == name) any = openings[i].left = true;
    return any;
}

static void close_memory(struct opening *opening)
{
    struct opening closed = *opening;
    opening->name = 0;
    if (closed.left && !leave_open(closed.name)) cards[closed.card].used -= closed.bytes;
}

static void end_client(uint32_t index)
{
    struct client *client = &clients[index];
    for (uint32_t i = 0; i < OPENINGS; i++) {
        struct opening *one = &openings[i];
        if (one->name && one->client == index) close_memory(one);
        if (!one->name || one->left || one->name >> NAME_SHIFT != (client->pid & 0xffff)) continue;
        leave_open(one->name);
        client->memory[one->card] -= one->bytes;
    }
    for (uint32_t i = 0; i < FAKE_CARDS; i++) cards[i].used -= client->memory[i];
    for (uint32_t i = 0; i < CONTEXTS; i++)
        if (contexts[i].used && contexts[i].client == index) end_context(&contexts[i]);
    memset(client, 0, sizeof *client);
    memset(events[index], 0, sizeof events[index]);
}

static uint32_t client_named(uint64_t name, uint64_t pid)
{
    uint32_t vacant = CLIENTS;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (clients[i].name == name) return i;
        if (clients[i].name == 0 && vacant == CLIENTS) vacant = i;
    }
    if (vacant == CLIENTS) abort();
    clients[vacant] = (struct client){.name = name, .pid = pid};
    return vacant;
}

static void reply(int file, int32_t result, uint64_t a, uint64_t b)
{
    struct answer answer = {result, 0, a, b};
    if (send(file, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

static void take_memory(struct link *link, const struct request *request)
{
    struct card *card = &cards[request->card];
    bool fits = request->a <= card->total - card->used;
    if (fits) {
        card->used += request->a;
        clients[link->client].memory[request->card] += request->a;
    }
    reply(link->file, fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
}

static void give_memory(struct link *link, const struct request *request)
{
    uint64_t *held = &clients[link->client].memory[request->card];
    uint64_t bytes = request->a < *held ? request->a : *held;
    *held -= bytes;
    if (!leave_open(request->b)) cards[request->card].used -= bytes;
}

static void open_memory(struct link *link, const struct request *request)
{
    uint32_t i = 0;
    while (i < OPENINGS && openings[i].name) i++;
    if (i == OPENINGS) abort();
    openings[i] = (struct opening){request->b, request->a, link->client, request->card, false};
}

static struct opening *opening_of(const struct link *link, uint64_t name)
{
    for (uint32_t i = 0; i < OPENINGS; i++)
        if (name && openings[i].name == name && openings[i].client == link->client) return &openings[i];
    return NULL;
}

static void new_context(struct link *link, const struct request *request)
{
    for (uint32_t i = 1; i < CONTEXTS; i++) {
        if (contexts[i].used) continue;
        contexts[i] = (struct context){.used = true, .card = request->card, .client = link->client};
        reply(link->file, CUDA_SUCCESS, i, 0);
        return;
    }
    reply(link->file, CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
}

/* Work begins at the time it was made, unless the model is past it. */
static void enqueue(struct link *link, const struct request *request)
{
    struct context *context = &contexts[request->context % CONTEXTS];
    uint64_t latest = now();
    if (!context->used || context->client != link->client) return;
    advance(context->card, request->b < latest ? request->b : latest);
    struct item item = {.stream = request->stream, .left = request->a ? request->a : 1,
                        .pause = request->kind == ASK_PAUSE};
    if (request->kind == ASK_AWAIT) item.awaited = request->a, item.left = 50000;
    if (request->kind == ASK_MARK) {
        struct event *event = event_of(link->client, request->a);
        item.event = request->a;
        event->round = round_of(request->a);
        event->over = false;
    }
    pauses |= item.pause;
    awaits |= item.awaited != 0;
    push(context, item);
    has_kernel(context, cards[context->card].time);
}

/* Answers a question about work; false: the asker has to wait. */
static bool settle(struct link *link, const struct request *request)
{
    struct context *context = &contexts[request->context % CONTEXTS];
    bool waits = request->kind == ASK_EVENT_WAIT || request->kind == ASK_STREAM_WAIT || request->kind == ASK_CONTEXT_WAIT;
    if (request->kind == ASK_EVENT || request->kind == ASK_EVENT_WAIT) {
        struct event *event = event_of(link->client, request->a);
        bool over = round_of(request->a) == 0 || (event->over && event->round == round_of(request->a));
        if (!over && waits) return false;
        reply(link->file, over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY, event->time, 0);
        return true;
    }
    bool empty = !context->used || is_empty(context, request->stream, request->kind == ASK_CONTEXT_WAIT);
    if (!empty && waits) return false;
    reply(link->file, empty ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY, 0, 0);
    return true;
}

static void tell_served(struct link *link, const struct request *request)
{
    uint64_t served = 0;
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (clients[i].name && clients[i].pid == request->a) served += clients[i].served[request->card];
    reply(link->file, CUDA_SUCCESS, served, cards[request->card].served);
}

static void serve(struct link *link, const struct request *request)
{
    struct request checked = *request;
    checked.card %= FAKE_CARDS;
    if (link->client == NO_CLIENT && request->kind != ASK_HELLO) return;
    if (request->kind != ASK_KERNEL && request->kind != ASK_MARK && request->kind != ASK_PAUSE &&
        request->kind != ASK_AWAIT)
        for (uint32_t i = 0; i < card_count; i++) advance(i, now());
    switch (request->kind) {
    case ASK_HELLO:
        link->client = client_named(request->a, request->b);
        clients[link->client].links++;
        reply(link->file, CUDA_SUCCESS, card_count, 0);
        break;
    case ASK_MEMORY_TAKE: take_memory(link, &checked); break;
    case ASK_MEMORY_GIVE: give_memory(link, &checked); break;
    case ASK_MEMORY_OPEN: open_memory(link, &checked); break;
    case ASK_MEMORY_CLOSE:
        if (opening_of(link, request->b)) close_memory(opening_of(link, request->b));
        break;
    case ASK_MEMORY_INFO: reply(link->file, 0, cards[checked.card].total, cards[checked.card].used); break;
    case ASK_CONTEXT_NEW: new_context(link, &checked); break;
    case ASK_CONTEXT_END:
        if (contexts[request->context % CONTEXTS].client == link->client) end_context(&contexts[request->context % CONTEXTS]);
        reply(link->file, CUDA_SUCCESS, 0, 0);
        break;
    case ASK_KERNEL: case ASK_MARK: case ASK_PAUSE: case ASK_AWAIT: enqueue(link, request); break;
    case ASK_SERVED: tell_served(link, &checked); break;
    default:
        if (!settle(link, request)) link->waiting = *request;
    }
}

static void close_link(uint32_t i)
{
    struct link *link = &links[i];
    close(link->file);
    if (link->client != NO_CLIENT && --clients[link->client].links == 0) end_client(link->client);
    links[i] = links[--link_count];
}

/* The time of the model's next change; -1: no client waits. */
static int64_t next_change(void)
{
    int64_t least = -1;
    bool waited = false;
    for (uint32_t i = 0; i < link_count; i++) waited |= links[i].waiting.kind != 0;
    for (uint32_t i = 0; waited && i < CONTEXTS; i++) {
        struct item *item = contexts[i].used ? first_item(&contexts[i]) : NULL;
        if (item && (least < 0 || (int64_t)item->left < least)) least = (int64_t)item->left;
    }
    return waited && least < 0 ? 1000000 : least > (int64_t)SLICE ? (int64_t)SLICE : least;
}

static void receive(uint32_t i)
{
    struct request request;
    for (int burst = 0; burst < 64; burst++) {
        ssize_t size = recv(links[i].file, &request, sizeof request, MSG_DONTWAIT);
        if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (size != sizeof request) {
            close_link(i);
            return;
        }
        serve(&links[i], &request);
    }
}

static void wake_waiting(void)
{
    for (uint32_t i = 0; i < card_count; i++) advance(i, now());
    for (uint32_t i = 0; i < link_count; i++)
        if (links[i].waiting.kind && settle(&links[i], &links[i].waiting)) links[i].waiting.kind = 0;
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (file < 0 || strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    unlink(path);
    if (bind(file, (struct sockaddr *)&address, sizeof address) != 0 || listen(file, 1024) != 0) return -1;
    return file;
}

int main(int argc, char **argv)
{
    static struct pollfd files[LINKS + 1];
    if (argc < 2) return fprintf(stderr, "usage: fake-card SOCKET [CARDS [MEMORY_BYTES [work]]]\n"), 2;
    int listening = listen_at(argv[1]);
    if (listening < 0) return perror("fake-card: socket"), 1;
    if (argc > 2) card_count = (uint32_t)strtoul(argv[2], NULL, 10);
    if (card_count < 1 || card_count > FAKE_CARDS) return fprintf(stderr, "fake-card: 1 to %d cards\n", FAKE_CARDS), 2;
    for (uint32_t i = 0; i < card_count; i++)
        cards[i] = (struct card){.time = now(), .total = argc > 3 ? strtoull(argv[3], NULL, 10) : 16ull << 30};
    by_work = argc > 4 && strcmp(argv[4], "work") == 0;
    puts("ready");
    fflush(stdout);
    for (;;) {
        uint32_t count = link_count;
        for (uint32_t i = 0; i < count; i++) files[i] = (struct pollfd){.fd = links[i].file, .events = POLLIN};
        files[count] = (struct pollfd){.fd = listening, .events = link_count < LINKS ? POLLIN : 0};
        int64_t wait = next_change();
        struct timespec span = {wait / 1000000000, wait % 1000000000};
        if (ppoll(files, count + 1, wait < 0 ? NULL : &span, NULL) < 0 && errno != EINTR) return 1;
        for (uint32_t i = count; i-- > 0;)
            if (files[i].revents) receive(i);
        if (files[count].revents & POLLIN) {
            int file = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
            if (file >= 0) links[link_count++] = (struct link){.file = file, .client = NO_CLIENT};
        }
        wake_waiting();
    }
}
