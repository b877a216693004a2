/* Processes over the modelled card: the driver for the library, seats, the watch, and the calls of programs. */
#include "model.h"
#include "../src/batch.h"
#include "../src/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST 16 /* below it are the names of special streams */

static struct seat shared[MODEL_CARDS][SEATS];
static uint64_t said[MODEL_CARDS][SEATS];

/* Of the running thread: its context and its process. */
#define bound (*(struct channel **)&world_own()[0])
#define mine (*(struct process **)&world_own()[1])

/* The driver. */
static struct channel *channel_of(CUcontext context) { return (struct channel *)context; }
static uint32_t index_of(CUstream stream) { return stream ? (uint32_t)((uintptr_t)stream - FIRST) : 0; }

static CUresult get_current(CUcontext *context) { return *context = (CUcontext)bound, CUDA_SUCCESS; }
static CUresult push(CUcontext context) { return bound = channel_of(context), CUDA_SUCCESS; }
static CUresult pop(CUcontext *context) { return *context = (CUcontext)bound, CUDA_SUCCESS; }
static CUresult create(CUevent *event, unsigned flags)
{
    (void)flags;
    return *event = (CUevent)event_new(), CUDA_SUCCESS;
}
static CUresult destroy(CUevent event) { return (void)event, CUDA_SUCCESS; }

static CUresult record(CUevent event, CUstream stream)
{
    struct channel *channel = bound;
    card_submit(channel, index_of(stream), (struct submission){.work = WORK_MARK, .event = (struct event *)event});
    return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    if (!event_is_over((struct event *)event)) card_flush(bound);
    return event_is_over((struct event *)event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult ask(CUstream stream)
{
    card_flush(bound);
    return card_is_idle(bound, index_of(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed(float *ms, CUevent from, CUevent to)
{
    if (!event_is_over((struct event *)from) || !event_is_over((struct event *)to)) return CUDA_ERROR_NOT_READY;
    double ns = (double)(int64_t)(event_time((struct event *)to) - event_time((struct event *)from));
    return *ms = (float)(ns * (1 + world_model()->drift / 1e6) / 1e6), CUDA_SUCCESS;
}

void *driver_function(void *_Atomic *slot, const char *soname, const char *name)
{
    static const struct { const char *name; void *function; } known[] = {
        {"cuCtxGetCurrent", (void *)get_current}, {"cuCtxPushCurrent_v2", (void *)push},
        {"cuCtxPopCurrent_v2", (void *)pop}, {"cuEventCreate", (void *)create}, {"cuEventDestroy_v2", (void *)destroy},
        {"cuEventRecord", (void *)record}, {"cuEventQuery", (void *)query}, {"cuStreamQuery", (void *)ask},
        {"cuEventElapsedTime", (void *)elapsed}};
    (void)slot, (void)soname;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) return known[i].function;
    return NULL;
}

/* Seats without files; reading them takes no time. */
void seats_see(struct arbiter *arbiter, uint64_t since)
{
    struct seats *seats = arbiter->eyes;
    uint64_t now = clock_now();
    if (seats->seen >= since && seats->seen == now) return;
    uint32_t card = (uint32_t)(seats->own - &shared[0][0]) / SEATS;
    memcpy(seats->view, shared[card], sizeof seats->view);
    for (uint32_t i = 0; i < SEATS; i++) seats->view[i].terms = said[card][i];
    seats->seen = now;
}

struct rung {
    const struct seat *seat;
    uint32_t seen;
};

static bool is_rung(void *what)
{
    const struct rung *rung = what;
    return rung->seat && rung->seat->bell != rung->seen;
}

void seats_wait(const struct seats *seats, uint32_t whose, uint32_t seen, uint64_t ns)
{
    uint32_t card = (uint32_t)(seats->own - &shared[0][0]) / SEATS;
    struct rung rung = {whose < SEATS ? &shared[card][whose] : NULL, seen};
    world_until(is_rung, &rung, ns);
    world_sleep(world_chance(world_model()->wake_ns + 1));
}

/* The watch, as in watch.c; it is one thread of each process. */
void watch_wake(void)
{
    if (mine) mine->call++;
}

static bool is_called(void *what) { return ((struct process *)what)->call != 0; }

static void watch(void *argument)
{
    struct process *process = argument;
    mine = process;
    for (;;) {
        uint64_t soonest = 0;
        process->call = 0;
        for (uint32_t i = 0; i < process->cards; i++) {
            bound = process->channels[i];
            uint64_t again = gate_watch(&process->gates[i]);
            if (again && (!soonest || again < soonest)) soonest = again;
        }
        if (soonest) world_sleep(soonest + world_chance(world_model()->wake_ns + 1));
        else world_until(is_called, process, MODEL_NEVER);
    }
}

void process_terms(uint32_t card, uint32_t seat, struct tenant_terms terms)
{
    said[card][seat] = terms_pack(terms.policy, terms.priority, terms.quota);
}

struct seat *process_seat(uint32_t card, uint32_t seat, struct tenant_terms terms)
{
    memset(&shared[card][seat], 0, sizeof shared[card][seat]);
    process_terms(card, seat, terms);
    return &shared[card][seat];
}

static void open_gate(struct process *process, uint32_t card, uint32_t seat, struct tenant_terms terms)
{
    struct gate *gate = &process->gates[card];
    memset(gate, 0, sizeof *gate);
    gate->seats.own = process_seat(card, seat, terms);
    gate->seats.index = seat;
    gate->books = &process->books[card];
    gate->quota = terms.quota;
    gate->capped = terms.policy == POLICY_FIXED_SHARE && terms.quota < 1000;
    gate->kernel_ns = UNKNOWN_NS;
    gate->outer = (struct arbiter){.own = gate->seats.own, .seats = gate->seats.view, .see = seats_see,
                                   .eyes = &gate->seats, .promised = true, .clock = &gate->books->clock, .index = seat,
                                   .tenant = seat + 1, .terms = said[card][seat]};
    gate->open = true;
}

void process_open(struct process *process, uint32_t cards, uint32_t seat, struct tenant_terms terms)
{
    memset(process, 0, sizeof *process);
    process->cards = cards;
    process->bare = terms.bare;
    for (uint32_t i = 0; i < cards; i++) {
        process->channels[i] = card_open(i);
        if (!terms.bare) open_gate(process, i, seat, terms);
    }
    if (!terms.bare) world_thread(watch, process);
}

void process_close(struct process *process)
{
    for (uint32_t i = 0; i < process->cards && !process->bare; i++) {
        struct seat *seat = process->gates[i].seats.own;
        uint32_t at = process->gates[i].seats.index;
        gate_shut(&process->gates[i]);
        memset(seat, 0, sizeof *seat);
        said[i][at] = 0;
    }
}

static CUstream name_of(uint32_t stream) { return stream ? (CUstream)(uintptr_t)(stream + FIRST) : NULL; }

static struct gate *gate_of(struct process *process, uint32_t card)
{
    bound = process->channels[card];
    mine = process;
    return process->bare ? NULL : &process->gates[card];
}

void process_launch(struct process *process, uint32_t card, uint32_t stream, uint64_t graph, uint64_t function,
                    struct submission work)
{
    struct ticket ticket = {0};
    struct gate *gate = gate_of(process, card);
    world_sleep(world_model()->call_ns);
    if (gate) gate_enter(gate, &ticket, (CUcontext)process->channels[card], name_of(stream), graph, function);
    if (work.loading) world_sleep(work.loading);
    card_submit(process->channels[card], stream, work);
    if (work.late) world_sleep(work.late);
    if (gate && ticket.gate) gate_leave(&ticket, true);
    process->launches++;
}

void process_part(struct process *process, uint32_t card, uint32_t stream, struct submission work)
{
    struct gate *gate = gate_of(process, card);
    if (gate) gate_part(gate, (CUcontext)process->channels[card], name_of(stream), work.work == WORK_HOST);
    card_submit(process->channels[card], stream, work);
    world_sleep(world_model()->call_ns);
}

void process_record(struct process *process, uint32_t card, uint32_t stream, struct event *event)
{
    card_submit(process->channels[card], stream, (struct submission){.work = WORK_MARK, .event = event});
    world_sleep(world_model()->call_ns);
}

struct awaited {
    struct channel *channel;
    uint32_t stream;
};

static bool is_done(void *what)
{
    const struct awaited *awaited = what;
    return awaited->stream < MODEL_STREAMS ? card_is_idle(awaited->channel, awaited->stream) : card_is_empty(awaited->channel);
}

static bool has_come(void *event) { return event_is_over(event); }

static void settle(struct process *process, uint32_t card)
{
    struct gate *gate = gate_of(process, card);
    if (gate) gate_await(gate);
    card_flush(process->channels[card]);
}

void process_await(struct process *process, uint32_t card, uint32_t stream)
{
    struct awaited awaited = {process->channels[card], stream};
    settle(process, card);
    world_until(is_done, &awaited, MODEL_NEVER);
    world_sleep(world_model()->call_ns);
}

void process_await_event(struct process *process, uint32_t card, struct event *event)
{
    settle(process, card);
    world_until(has_come, event, MODEL_NEVER);
    world_sleep(world_model()->call_ns);
}
