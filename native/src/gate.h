/*
 * The gate before the device: delays launches until the quota and the turn allow them, and measures
 * their device time by events around batches of launches.
 *
 * A batch is a run of launches on one stream; its event pair is read when it has ended. Busy time is the union
 * of batches: they are counted in the order of their ends, each without the time counted for others.
 */
#ifndef PARTAGE_GATE_H
#define PARTAGE_GATE_H

#include "abi.h"
#include "arbiter.h"
#include "lock.h"
#include "seats.h"

#define BATCHES 64
#define FUNCTIONS 8192      /* with a known launch */
#define BATCH_MOST 64       /* launches of a batch, while launches ahead are bounded */
#define UNKNOWN_NS (3 * MS) /* expected of a launch that was not measured yet: two are let ahead, and one does not fill the shortest turn */

struct batch {
    enum { BATCH_FREE, BATCH_OPEN, BATCH_FLYING } state;
    CUcontext context;
    CUstream stream;
    uint64_t thread; /* its thread, if `stream` is each thread's own; else 0 */
    uint64_t number; /* of all batches of the gate: another one may have its place later */
    CUevent start, end;
    uint64_t opened, last; /* times of the first and the last launch */
    uint64_t lead;         /* idle time since the start's mark that does not count */
    uint64_t began;        /* time when the first launch had been made */
    uint64_t counted;      /* device ns since its start that were counted for other batches */
    uint64_t expected;     /* device ns that its launches are expected to take */
    uint64_t gaps;         /* time between launches, in which the stream may have been dry */
    uint32_t count, busy;  /* launches; launches being made right now */
    bool alone;            /* a first launch of its function; no other launch joins it */
    bool marks;            /* its end is marked after each launch: no other thread can, or later is too late */
    bool passed;           /* later work has ended */
    bool stays;            /* it is late too, or its function was: nothing waits for its end */
    bool awaited;          /* the program waits for its end, or did */
    bool mixed;            /* a launch on another stream was made during one of its launches: that end is not marked */
    uint64_t graph;        /* its graph, or 0 for kernels */
    uint32_t known;        /* number of its launches with a known function, listed below by place */
    uint16_t functions[BATCH_MOST];
};

/* Times of graphs by their last measurement: as many as the program has. */
struct graph_costs {
    struct graph_cost {
        uint64_t graph, ns; /* graph 0: free */
    } *slots;
    uint32_t room, used; /* room is a power of two */
    uint64_t mean_ns;    /* of all measured graphs: expected of an unmeasured one; 0: none was measured */
};

struct function_cost {
    uint64_t function, ns; /* time of one launch; 0: unknown */
    bool stays;            /* its latest launch ended after later work, and was late once: the host ends it */
};

struct gate {
    struct lock lock;
    _Atomic bool open;      /* ready; false: launches pass */
    _Atomic uint64_t free_until; /* the driver shares the card: launches pass uncounted until then */
    bool wanting;           /* has work */
    bool backlog;           /* more runs than others allow ahead: it was launched while there were none */
    bool alone;             /* until `go_until`: no quota holds and none waits, so launches ahead have no bound */
    uint32_t waiters;       /* threads that wait */
    uint64_t go_until;      /* launches pass without asking until then */
    uint64_t pending;       /* expected device ns of batches not yet counted */
    uint64_t kernel_ns;     /* expected device ns of one launch */
    uint64_t single_ns;     /* time of one launch, by batches of one: it contains no time between launches */
    uint32_t estimated; /* batches estimated since a batch with a single launch was marked for measurement */
    uint64_t batches_made, batches_learnt, singles_learnt;
    uint64_t oldest;        /* time when the oldest flying batch was opened; 0: none flies */
    uint64_t last_work;     /* time when work was last launched, or seen running or ended */
    uint64_t last_launch;   /* time of the last launch on an idle device */
    uint64_t last_end;      /* time when the latest counted batch ended, by its measured time */
    uint64_t hosted_at;     /* time of the latest host function that may run and need a launching thread's lock; else 0 */
    CUcontext hosted_context; /* and its place */
    CUstream hosted_stream;
    uint64_t lingers_since; /* start of passing without a turn, so that a kernel that stays can end; else 0 */
    uint64_t held_since;    /* time since which launches wait, nothing ended and none passed by; 0 is not */
    struct ticket *oldest_waiter; /* and those after it, by the start of their wait */
    const _Atomic uint64_t *granted; /* the current `quota`, by the agent's page; NULL: it stays */
    uint32_t quota;         /* thousandths; enforced as a cap when `capped` */
    bool capped, has_inner;
    struct arbiter outer, inner;
    struct seats seats; /* of the card, for `outer` */
    _Atomic uint64_t inner_clock;
    struct card_books *books;
    struct batch batches[BATCHES];
    uint64_t open_batches; /* a bit for each open one */
    struct graph_costs graphs;
    struct function_cost functions[FUNCTIONS];
};

struct ticket {
    struct gate *gate;
    struct batch *batch;
    uint64_t number;     /* of that batch */
    uint64_t expected;
    uint64_t passed;     /* time when the gate let it pass */
    uint64_t called;     /* time of the start's mark, if the launch may leave the device idle after it; else 0 */
    uint64_t begun;      /* time when it arrived at the gate */
    bool stays;          /* of a function whose kernels stay */
    struct ticket *next; /* of the waiting ones */
};

/*
 * Before a launch; may wait, and leaves the ticket empty if the driver shares the card. `graph` names the graph,
 * or is 0. `function` names the function of a possible first launch, or is 0. The driver's capture must not be active.
 */
void gate_enter(struct gate *gate, struct ticket *ticket, CUcontext context, CUstream stream, uint64_t graph,
                uint64_t function);
/* After it. */
void gate_leave(struct ticket *ticket, bool launched);
/* Closes all open batches. */
void gate_settle(struct gate *gate);
/* Before the caller waits for the device. */
void gate_await(struct gate *gate);
/* Before work on a stream that takes no device time, but may delay later launches; `hosted`: the host does it. */
void gate_part(struct gate *gate, CUcontext context, CUstream stream, bool hosted);
/* Before the end of a stream (or, with stream NULL and `all`, of a context). */
void gate_forget(struct gate *gate, CUcontext context, CUstream stream, bool all);
/* A graph ended or changed: its time is no estimate for the next of its name. */
void gate_forget_graph(struct gate *gate, uint64_t graph);
/* One round of the watch: counts ended work, rests, passes or renews the turn. ns until the next; 0: no work. */
uint64_t gate_watch(struct gate *gate);
/* The process ends: releases its turns. */
void gate_shut(struct gate *gate);

#endif
