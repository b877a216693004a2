/*
 * A modelled card in virtual time: processes are coroutines, the driver is a table of functions, and nothing sleeps. The
 * library's own gate, batches and arbiter run over it unchanged, so results depend on them and not on this machine.
 *
 * Behaviour of a card that no document promises is a parameter, so that models can differ: whether streams overlap, the
 * cost of marks and changes of context, whether the legacy stream is a barrier, the room of a channel, the clocks' drift.
 */
#ifndef PARTAGE_MODEL_H
#define PARTAGE_MODEL_H

#include "../src/gate.h"

#define MODEL_CARDS 4
#define MODEL_STREAMS 24 /* of one context; 0 is the legacy stream */
#define MODEL_FLAGS 64   /* words for which kernels wait, and which they set */
#define MODEL_NEVER UINT64_MAX
#define MODEL_KEPT 512   /* bytes of thread-local variables of a process */
#define MODEL_MEMORY (80ull << 30) /* of a card */

struct model {
    const char *name;
    bool overlaps;      /* kernels of several streams run beside each other */
    bool legacy;        /* the legacy stream waits for the blocking ones, and they for it */
    uint64_t mark_ns;   /* time that an event takes on its stream */
    uint64_t switch_ns; /* time that a change of context takes on the card */
    uint64_t slice_ns;  /* a context's slice while another has work */
    uint64_t call_ns;   /* the host's time for a call of the driver */
    uint64_t flush_ns;  /* submitted work begins this much later, unless the program asks for it */
    uint32_t gathers;   /* or after so many submissions; 0: nothing else begins it */
    uint64_t wake_ns;   /* a sleeper wakes this much late, at most */
    uint32_t channel;   /* submissions that a context accepts before a call waits */
    uint32_t throttle;  /* work takes this much longer, in thousandths, at most, because clocks fall */
    int32_t drift;      /* the card's clock is fast by this, parts in a million */
    uint64_t alloc_ns;  /* the host's time for an allocation */
    uint64_t lazy_ns;   /* the host's time for a function's first launch, which loads its code */
    uint64_t lazy_bytes; /* memory of that code, which no call asked for */
    bool frees_wait;    /* freeing waits for the context's work */
    struct foreigner {
        uint64_t works_ns, every_ns;
    } display, client;  /* a context without the library that takes the card for so long, so often: a display; clients of MPS */
};

/* By name: optimistic, measured, crowded, hostile; NULL: no such model. */
const struct model *model_named(const char *name);

/* Time and threads. */
void world_open(const struct model *model, uint64_t seed);
const struct model *world_model(void);
uint64_t world_now(void);
uint64_t world_chance(uint64_t below);
/* Returns the new thread's local variables. */
void **world_thread(void (*body)(void *), void *argument);
/* Called before a thread continues; `kept`: its local variables, MODEL_KEPT bytes. */
void world_on_switch(void (*hook)(void **own, void *kept));
void world_sleep(uint64_t ns);
/* Waits until `ready` is true; false: `ns` passed before. */
bool world_until(bool (*ready)(void *), void *what, uint64_t ns);
/* Runs all threads until `until`; false: nothing more can happen although threads of `world_needs` wait. */
bool world_run(uint64_t until);
/* Two words of the running thread's own. */
void **world_own(void);
/* Marks the running thread as one that must continue: if such threads alone wait, and for ever, the program hangs. */
void world_needs(bool needs);

/* The card. */
struct channel; /* a context of one process on one card */
enum work { WORK_KERNEL, WORK_MARK, WORK_AWAIT, WORK_HOST, WORK_SPIN };
struct submission {
    enum work work;
    uint64_t ns;          /* of a kernel, or of a function of the host */
    uint32_t part;        /* of the card's processors, thousandths */
    uint32_t flag, sets;  /* a spinning kernel waits for `flag`; its end sets `sets`; 0: nothing */
    struct event *event;  /* of a mark, or awaited */
    bool (*host)(void *); /* a function of the host is over once this is true; NULL: after `ns` */
    void *data;
    uint64_t loading;     /* the call takes this much longer, as a first launch may */
    uint64_t late;        /* the host pauses for this after the submission, before the call returns */
};
struct channel *card_open(uint32_t card);
void card_close(struct channel *channel);
/* Puts work on a stream; waits while the channel is full. */
void card_submit(struct channel *channel, uint32_t stream, struct submission work);
bool card_is_idle(const struct channel *channel, uint32_t stream);
bool card_is_empty(const struct channel *channel);
void card_flush(struct channel *channel);
void card_set_blocking(struct channel *channel, uint32_t stream, bool blocking);
uint64_t card_served(const struct channel *channel);
uint64_t card_busy(uint32_t card);
void card_advance_all(uint64_t until);
uint64_t card_next_change(void);
void card_reset(const struct model *model);
struct event *event_new(void);
bool event_is_over(const struct event *event);
uint64_t event_time(const struct event *event);
void flag_set(uint32_t flag, bool on);
bool card_memory_take(uint32_t card, uint64_t bytes);
void card_memory_give(uint32_t card, uint64_t bytes);
uint64_t card_memory_used(uint32_t card);

/* A process of a tenant on the cards, with the library (a seat on each) or without. */
struct process {
    struct channel *channels[MODEL_CARDS];
    struct gate gates[MODEL_CARDS];
    struct card_books books[MODEL_CARDS];
    uint32_t cards, call;
    bool bare, whole, ended;
    uint64_t launches;
};
struct tenant_terms {
    enum policy policy;
    enum priority priority;
    uint32_t quota;
    bool bare;       /* the driver alone */
    uint64_t memory; /* bytes of each card; of processes with the whole library */
};
void process_open(struct process *process, uint32_t cards, uint32_t seat, struct tenant_terms terms);
/* cuLaunchKernel, or with `graph` cuGraphLaunch, through the gate or not. */
void process_launch(struct process *process, uint32_t card, uint32_t stream, uint64_t graph, uint64_t function,
                    struct submission work);
/* Ends a process: its seats are released and the agent's page omits them. Its threads launch nothing after that. */
void process_close(struct process *process);
/* Of no device time: a wait for an event, a function of the host. */
void process_part(struct process *process, uint32_t card, uint32_t stream, struct submission work);
void process_record(struct process *process, uint32_t card, uint32_t stream, struct event *event);
/* cuStreamSynchronize; stream MODEL_STREAMS: cuCtxSynchronize. */
void process_await(struct process *process, uint32_t card, uint32_t stream);
void process_await_event(struct process *process, uint32_t card, struct event *event);
/* Writes the agent's terms of a seat. */
void process_terms(uint32_t card, uint32_t seat, struct tenant_terms terms);

/* A seat for a process with the whole library. */
struct seat *process_seat(uint32_t card, uint32_t seat, struct tenant_terms terms);

#endif
