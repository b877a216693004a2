/*
 * The gate before the device: holds launches back until the quota and the turn allow them, and measures what
 * they cost in device time by events around batches of launches.
 *
 * A batch is a run of launches on one stream; its event pair is read once it is over. Busy time is the union
 * of batches: they are counted in the order in which they ended, each without what others were counted for.
 */
#ifndef PARTAGE_GATE_H
#define PARTAGE_GATE_H

#include "abi.h"
#include "arbiter.h"
#include "lock.h"
#include "seats.h"

#define BATCHES 64
#define FUNCTIONS 8192      /* that are known to have been launched */
#define BATCH_MOST 64       /* launches of a batch, while what is launched ahead is bounded */
#define UNKNOWN_NS (4 * MS) /* expected of a launch that was not measured yet: few are made until it is */

struct batch {
    enum { BATCH_FREE, BATCH_OPEN, BATCH_FLYING } state;
    CUcontext context;
    CUstream stream;
    uint64_t thread; /* of which thread, where `stream` is each thread's own; else 0 */
    CUevent start, end;
    uint64_t opened, last; /* when the first and the last launch were made */
    uint64_t lead;         /* idle time since the start's mark that does not count */
    uint64_t began;        /* when that launch had been made */
    uint64_t counted;      /* device ns since its start that other batches were counted for */
    uint64_t expected;     /* device ns that its launches are expected to take */
    uint64_t gaps;         /* between launches, in which the stream may have been dry */
    uint32_t count, busy;  /* launches; launches being made right now */
    bool alone;            /* a first launch of its function, which no other joins */
    bool marks;            /* its end is marked after each launch: no other thread can, or later would be too late */
    bool passed;           /* something that came after it is over */
    bool stays;            /* it is late too, or its function was: none waits for its end */
    bool awaited;          /* the program waits for its end, or did */
    bool mixed;            /* another stream was launched on while one of its launches was made: that end is not marked */
    uint64_t graph;        /* of which graph, or 0 for kernels */
    uint32_t known;        /* of its launches so many are below: which functions they are of, by their place */
    uint16_t functions[BATCH_MOST];
};

/* What graphs took when they were last measured: as many as the program has. */
struct graph_costs {
    struct graph_cost {
        uint64_t graph, ns; /* graph 0: free */
    } *slots;
    uint32_t room, used; /* room is a power of two */
    uint64_t mean_ns;    /* of all that were measured: expected of one that was not; 0: none was */
};

struct function_cost {
    uint64_t function, ns; /* what a launch of it took; 0: not known */
    bool stays;            /* its latest ended after what came later, and was late once: the host ends it */
};

struct gate {
    struct lock lock;
    _Atomic bool open;      /* set up; false: launches pass */
    _Atomic uint64_t free_until; /* the driver shares the card: launches pass unseen until then */
    bool wanting;           /* has work */
    bool backlog;           /* more runs than is launched ahead beside others: it was launched while there were none */
    bool alone;             /* until `go_until`: no quota holds and none waits, so what is launched ahead has no bound */
    uint32_t waiters;       /* threads that are held back */
    uint64_t go_until;      /* launches pass without asking until then */
    uint64_t pending;       /* expected device ns of batches not yet counted */
    uint64_t kernel_ns;     /* expected device ns of one launch */
    uint64_t single_ns;     /* what one launch took, by batches of one: with no time between launches in it */
    uint32_t estimated; /* batches that were, since one of a single launch was marked to be measured */
    uint64_t batches_made, batches_learnt, singles_learnt;
    uint64_t oldest;        /* when the oldest batch that still flies was opened; 0: none does */
    uint64_t last_work;     /* when work was last launched, seen running or ended */
    uint64_t last_launch;   /* when work was last launched on an idle device */
    uint64_t last_end;      /* when the latest batch that was counted ended, by what it took */
    uint64_t hosted_at;     /* when a function of the host came that may not be over, and want a lock of who launches; 0: none */
    CUcontext hosted_context; /* and where the latest is */
    CUstream hosted_stream;
    uint64_t lingers_since; /* since when launches pass without a turn, so that a kernel that stays comes to its end; 0: none does */
    uint64_t held_since;    /* since when launches wait, nothing ended and none went by; 0 is not */
    struct ticket *oldest_waiter; /* and those after it, by when their launches began to wait */
    const _Atomic uint64_t *granted; /* what `quota` is to be now, by the agent's word; NULL: it stays */
    uint32_t quota;         /* thousandths; enforced as a cap when `capped` */
    bool capped, has_inner;
    struct arbiter outer, inner;
    struct seats seats; /* of the card, for `outer` */
    _Atomic uint64_t inner_clock;
    struct card_books *books;
    struct batch batches[BATCHES];
    uint64_t open_batches; /* a bit for each of them that is open */
    struct graph_costs graphs;
    struct function_cost functions[FUNCTIONS];
};

struct ticket {
    struct gate *gate;
    struct batch *batch;
    uint64_t expected;
    uint64_t passed;     /* when the gate let it pass */
    uint64_t called;     /* the start was marked then, for a launch that may leave the device idle after it; 0: for none */
    uint64_t begun;      /* when it came to the gate */
    bool stays;          /* of a function whose kernels stay */
    struct ticket *next; /* of those that wait */
};

/*
 * Before a launch; may wait, and leaves the ticket empty where the driver shares the card. `graph` names the graph, or is 0; `function` what is launched for the first time when its name is
 * new, or is 0. The driver's capture must not be active.
 */
void gate_enter(struct gate *gate, struct ticket *ticket, CUcontext context, CUstream stream, uint64_t graph,
                uint64_t function);
/* After it. */
void gate_leave(struct ticket *ticket, bool launched);
/* Closes what is open. */
void gate_settle(struct gate *gate);
/* Before the caller waits for the device. */
void gate_await(struct gate *gate);
/* Before something on a stream that takes no device time, but may keep later launches from beginning; `hosted`: the host does it. */
void gate_part(struct gate *gate, CUcontext context, CUstream stream, bool hosted);
/* Before a stream (or, with stream NULL and `all`, a context) goes away. */
void gate_forget(struct gate *gate, CUcontext context, CUstream stream, bool all);
/* A graph ended, or is another now: what it took says nothing of the next of its name. */
void gate_forget_graph(struct gate *gate, uint64_t graph);
/* One round of the watch: counts what ended, rests, passes or renews the turn. ns until the next; 0: there is no work. */
uint64_t gate_watch(struct gate *gate);
/* The process ends: releases its turns. */
void gate_shut(struct gate *gate);

#endif
