/*
 * What frameworks ask of the driver, step by step, as their public documentation describes it: not recorded from any of them.
 *
 * eager     PyTorch, training: many short kernels, a copy stream that compute waits for by events, a loss that is waited for
 * serving   vLLM, SGLang: a graph a layer captured for one size of batch, sampling kernels, the host between tokens; now and then
 *           a prompt of long kernels
 * engine    TensorRT: one graph for the whole model on each of two streams, two requests ahead, waited for by events
 * compiled  JAX: few long fused kernels, eight steps dispatched ahead, a function of the host now and then
 * ranks     NCCL: compute on two cards, then a collective on a stream of its own whose ranks spin for each other
 */
#include "model.h"
#include <string.h>

#define US 1000ull

static struct submission kernel(uint64_t ns, uint32_t part)
{
    return (struct submission){.ns = ns, .part = part};
}

static struct submission await(struct event *event)
{
    return (struct submission){.work = WORK_AWAIT, .event = event};
}

/* Of the host: data, schedulers, interpreters. */
static void host(uint64_t ns) { world_sleep(ns / 2 + world_chance(ns)); }

static void eager(struct program *self)
{
    struct process *process = self->process;
    struct event *copied = event_new(), *used = event_new();
    bool any = false;
    while (!program_is_over(self)) {
        /* The next batch comes on a stream of its own, when the last is no longer read. */
        if (any) process_part(process, 0, 2, await(used));
        card_submit(process->channels[0], 2, kernel(80 * US, 1));
        process_record(process, 0, 2, copied);
        process_part(process, 0, 1, await(copied));
        for (uint32_t i = 0; i < 24; i++) /* forward and backward */
            process_launch(process, 0, 1, 0, 0x1000 + i % 12 * 64, kernel((20 + i % 6 * 30) * US, i % 3 ? 1000 : 400));
        process_record(process, 0, 1, used);
        for (uint32_t i = 0; i < 8; i++) /* the optimizer */
            process_launch(process, 0, 1, 0, 0x8000 + i * 64, kernel(15 * US, 600));
        any = true;
        process_await(process, 0, 1);
        host(100 * US);
        program_step(self);
    }
}

static void serving(struct program *self)
{
    struct process *process = self->process;
    for (uint64_t i = 0; !program_is_over(self); i++) {
        uint64_t size = 1 + i / 5 % 4; /* the batch changes, and with it the set of graphs */
        if (i % 20 == 0)
            for (uint32_t k = 0; k < 4; k++) process_launch(process, 0, 1, 0, 0x9000 + k * 64, kernel(2 * MS, 1000));
        for (uint64_t layer = 0; layer < 16; layer++) {
            uint64_t graph = 0x7f0000000000ull + (size * 64 + layer) * 4096;
            process_launch(process, 0, 1, graph, graph, kernel((60 + 20 * size) * US, 900));
        }
        process_launch(process, 0, 1, 0, 0xa000, kernel(40 * US, 300));
        process_await(process, 0, 1);
        host(150 * US);
        program_step(self);
    }
}

static void engine(struct program *self)
{
    struct process *process = self->process;
    struct event *done[2] = {event_new(), event_new()};
    for (uint64_t i = 0; !program_is_over(self); i++) {
        uint32_t at = i % 2;
        if (i > 1) process_await_event(process, 0, done[at]);
        card_submit(process->channels[0], 1 + at, kernel(30 * US, 1));
        process_launch(process, 0, 1 + at, 0x7e0000000000ull + at * 4096, 0x7e0000000000ull + at * 4096, kernel(1500 * US, 700));
        process_record(process, 0, 1 + at, done[at]);
        host(80 * US);
        program_step(self);
    }
}

static void compiled(struct program *self)
{
    struct process *process = self->process;
    struct event *ends[8];
    for (uint32_t i = 0; i < 8; i++) ends[i] = event_new();
    for (uint64_t i = 0; !program_is_over(self); i++) {
        if (i >= 8) process_await_event(process, 0, ends[i % 8]);
        for (uint32_t k = 0; k < 3; k++) process_launch(process, 0, 1, 0, 0xb000 + k * 64, kernel((600 + k * 700) * US, 1000));
        if (i % 16 == 7) process_part(process, 0, 1, (struct submission){.work = WORK_HOST, .ns = 50 * US});
        process_record(process, 0, 1, ends[i % 8]);
        host(60 * US);
        program_step(self);
    }
}

static void ranks(struct program *self)
{
    struct process *process = self->process;
    uint32_t flags = 1 + self->index * 2;
    struct event *ready[2] = {event_new(), event_new()};
    while (!program_is_over(self)) {
        flag_set(flags, false), flag_set(flags + 1, false);
        for (uint32_t card = 0; card < 2; card++) {
            struct submission there = kernel(60 * US, 100), spin = kernel(0, 100);
            for (uint32_t i = 0; i < 4; i++) process_launch(process, card, 1, 0, 0xc000 + i * 64, kernel(150 * US, 1000));
            process_record(process, card, 1, ready[card]);
            process_part(process, card, 3, await(ready[card]));
            there.sets = flags + card;
            spin.work = WORK_SPIN;
            spin.flag = flags + 1 - card;
            process_launch(process, card, 3, 0, 0xd000, there);
            process_launch(process, card, 3, 0, 0xd040, spin);
        }
        for (uint32_t card = 0; card < 2; card++) process_await(process, card, MODEL_STREAMS);
        host(60 * US);
        program_step(self);
    }
}

const struct trace traces[TRACES] = {{"eager", 1, eager}, {"serving", 1, serving}, {"engine", 1, engine},
                                     {"compiled", 1, compiled}, {"ranks", 2, ranks}};

const struct trace *trace_named(const char *name)
{
    for (uint32_t i = 0; i < TRACES; i++)
        if (strcmp(traces[i].name, name) == 0) return &traces[i];
    return NULL;
}

void program_step(struct program *self) { self->steps++; }
bool program_is_over(const struct program *self) { return self->most && self->steps >= self->most; }

static void body(void *argument)
{
    struct program *self = argument;
    world_needs(self->most != 0);
    self->trace->play(self);
}

void program_start(struct program *self) { world_thread(body, self); }
