#include "batch.h"
#include "driver.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LATE_HOST_NS 20000ull /* a launch on an idle device takes less, unless it loads or the host is busy */
#define LEAST_NS 1000      /* counted for a batch whose launches took as long to make as it was on the device */
#define ESTIMATES 4        /* estimated batches until one with a single launch is measured */
#define STAYS_NS (20 * MS)  /* a kernel that others pass is late by this much */
#define GAPS_NS 20000ull /* up to this much time between launches is counted with them before the driver is asked */

#define GRAPH_GONE UINT64_MAX /* replaces the name of a graph that ended while it ran */

_Atomic uint32_t captures;
_Atomic bool streams_join;

void batch_forget(void) { atomic_store(&captures, 0); }

/* Own driver calls must not end another's capture, and need the batch's context in any thread. */
struct aside {
    int mode;
    bool pushed;
};

static struct aside step_aside(CUcontext context)
{
    struct aside aside = {.mode = -1};
    CUcontext current = NULL;
    int mode = CU_CAPTURE_RELAXED;
    ASK((CUcontext *), cuCtxGetCurrent, &current);
    if (current != context) aside.pushed = ASK((CUcontext), cuCtxPushCurrent_v2, context) == CUDA_SUCCESS;
    if (atomic_load_explicit(&captures, memory_order_acquire) == 0) return aside;
    if (ASK((int *), cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS) aside.mode = mode;
    return aside;
}

static void step_back(struct aside aside)
{
    CUcontext popped;
    if (aside.mode >= 0) ASK((int *), cuThreadExchangeStreamCaptureMode, &aside.mode);
    if (aside.pushed) ASK((CUcontext *), cuCtxPopCurrent_v2, &popped);
}

static CUresult record(const struct batch *batch, CUevent event)
{
    struct aside aside = step_aside(batch->context);
    CUresult result = ASK((CUevent, CUstream), cuEventRecord, event, batch->stream);
    step_back(aside);
    return result;
}

static bool is_over(const struct batch *batch, CUevent event)
{
    struct aside aside = step_aside(batch->context);
    CUresult result = ASK((CUevent), cuEventQuery, event);
    step_back(aside);
    return result != CUDA_ERROR_NOT_READY;
}

static bool elapsed(CUcontext context, CUevent from, CUevent to, int64_t *ns)
{
    float ms = 0;
    struct aside aside = step_aside(context);
    CUresult result = ASK((float *, CUevent, CUevent), cuEventElapsedTime, &ms, from, to);
    step_back(aside);
    if (result != CUDA_SUCCESS || !(ms > -1e9f && ms < 1e9f)) return false;
    *ns = (int64_t)((double)ms * 1e6);
    return true;
}

static uint32_t home(const struct graph_costs *costs, uint64_t graph)
{
    return (uint32_t)(graph * 0x9e3779b97f4a7c15ull >> 32) & (costs->room - 1);
}

/* The place of a graph, or a free place for it; there is always one. */
static struct graph_cost *place_of(const struct graph_costs *costs, uint64_t graph)
{
    uint32_t i = home(costs, graph);
    while (costs->slots[i].graph && costs->slots[i].graph != graph) i = (i + 1) & (costs->room - 1);
    return &costs->slots[i];
}

static bool grow(struct graph_costs *costs)
{
    struct graph_costs grown = {.room = costs->room ? costs->room * 2 : 64, .used = costs->used, .mean_ns = costs->mean_ns};
    grown.slots = calloc(grown.room, sizeof *grown.slots);
    if (!grown.slots) return false;
    for (uint32_t i = 0; i < costs->room; i++)
        if (costs->slots[i].graph) *place_of(&grown, costs->slots[i].graph) = costs->slots[i];
    free(costs->slots);
    *costs = grown;
    return true;
}

static void keep(struct graph_costs *costs, uint64_t graph, uint64_t ns)
{
    costs->mean_ns = costs->mean_ns ? (costs->mean_ns * 7 + ns) / 8 + 1 : ns;
    if (costs->used + 1 > costs->room / 2 && !grow(costs)) return; /* without memory the mean is expected */
    struct graph_cost *at = place_of(costs, graph);
    costs->used += at->graph == 0;
    *at = (struct graph_cost){graph, ns};
}

void batch_forget_graph(struct gate *gate, uint64_t graph)
{
    for (uint32_t i = 0; i < BATCHES; i++)
        if (gate->batches[i].graph == graph) gate->batches[i].graph = GRAPH_GONE;
    struct graph_costs *costs = &gate->graphs;
    struct graph_cost *at = costs->room ? place_of(costs, graph) : NULL;
    if (!at || at->graph != graph) return;
    uint32_t mask = costs->room - 1, hole = (uint32_t)(at - costs->slots);
    costs->used--;
    /* Entries behind it that could no longer be found move up. */
    for (uint32_t i = (hole + 1) & mask; costs->slots[i].graph; i = (i + 1) & mask) {
        if (((i - home(costs, costs->slots[i].graph)) & mask) < ((i - hole) & mask)) continue;
        costs->slots[hole] = costs->slots[i];
        hole = i;
    }
    costs->slots[hole].graph = 0;
}

uint64_t batch_expect(const struct gate *gate, uint64_t graph, const struct function_cost *function)
{
    const struct graph_costs *costs = &gate->graphs;
    if (graph == 0) return function && function->ns ? function->ns : gate->kernel_ns;
    const struct graph_cost *cost = costs->room ? place_of(costs, graph) : NULL;
    if (cost && cost->graph) return cost->ns;
    return costs->mean_ns ? costs->mean_ns : UNKNOWN_NS;
}

bool batch_knows(const struct gate *gate, uint64_t graph)
{
    return gate->graphs.room && place_of(&gate->graphs, graph)->graph;
}

/*
 * Learns the times of each function's launches. The time of a batch of one is measured. Of several only the sum is, so
 * each is corrected by the error of the sum, in small steps: all of them together move an eighth of the way.
 */
static void learn_functions(struct gate *gate, const struct batch *batch, uint64_t fresh)
{
    uint64_t each = fresh / batch->count + 1, parts = 8ull * batch->count;
    uint64_t off = batch->expected ? fresh * 1000 / batch->expected : 1000;
    off = off < 250 ? 250 : off > 4000 ? 4000 : off;
    for (uint32_t i = 0; i < batch->known; i++) {
        uint64_t *ns = &gate->functions[batch->functions[i]].ns;
        if (batch->count == 1) *ns = *ns ? (*ns * 3 + each) / 4 + 1 : each;
        else if (*ns) *ns = *ns * (parts * 1000 - 1000 + off) / (parts * 1000) + 1;
        else *ns = each;
    }
}

/* A graph is expected to take its last time; kernels the time that they added beside others. */
static void learn(struct gate *gate, const struct batch *batch, uint64_t whole, uint64_t fresh)
{
    if (batch->graph == GRAPH_GONE || batch->graph == GRAPH_KNOWN) return;
    if (batch->graph) {
        keep(&gate->graphs, batch->graph, whole);
        return;
    }
    uint64_t each = fresh / (batch->count ? batch->count : 1) + 1;
    if (batch->count) learn_functions(gate, batch, fresh);
    if (batch->count == 1) {
        uint64_t before = gate->singles_learnt++ ? gate->single_ns : each;
        gate->single_ns = (before * 7 + each) / 8 + 1;
    }
    uint64_t old = gate->batches_learnt++ ? gate->kernel_ns : each;
    gate->kernel_ns = gate->batches_learnt < 8 ? (old + each) / 2 + 1 : (old * 7 + each) / 8 + 1;
}

static bool make_events(struct batch *batch)
{
    /* Events stay with their slot as long as the context is the same. */
    if (batch->start && batch->end) return true;
    struct aside aside = step_aside(batch->context);
    if (!batch->start) ASK((CUevent *, unsigned), cuEventCreate, &batch->start, CU_EVENT_DEFAULT);
    if (!batch->end) ASK((CUevent *, unsigned), cuEventCreate, &batch->end, CU_EVENT_DEFAULT);
    step_back(aside);
    return batch->start && batch->end;
}

static void free_events(struct batch *batch)
{
    if (batch->start) ASK((CUevent), cuEventDestroy_v2, batch->start);
    if (batch->end) ASK((CUevent), cuEventDestroy_v2, batch->end);
    batch->start = batch->end = NULL;
}

static struct batch *free_slot(struct gate *gate, CUcontext context)
{
    struct batch *other = NULL;
    for (uint32_t i = 0; i < BATCHES; i++) {
        struct batch *batch = &gate->batches[i];
        if (batch->state != BATCH_FREE) continue;
        if (batch->context == context || (!batch->start && !batch->end)) return batch;
        other = batch;
    }
    if (other) free_events(other);
    return other;
}

uint32_t batch_places(const struct gate *gate)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < BATCHES; i++) count += gate->batches[i].state == BATCH_FREE;
    return count;
}

void batch_charge(struct gate *gate, uint64_t ns, uint64_t now)
{
    arbiter_charge(&gate->outer, ns, now);
    if (gate->has_inner) arbiter_charge(&gate->inner, ns, now);
    if (gate->capped) quota_charge(&gate->books->paid, ns, gate->quota, now);
    atomic_fetch_add(&gate->books->served, ns);
}

static uint64_t expected_of_one(const struct batch *batch) { return batch->expected / (batch->count ? batch->count : 1); }

/* Notes which batches are open, so that a launch visits only these. */
static void set_state(struct gate *gate, struct batch *batch, uint32_t state)
{
    uint64_t bit = 1ull << (batch - gate->batches);
    batch->state = state;
    gate->open_batches = state == BATCH_OPEN ? gate->open_batches | bit : gate->open_batches & ~bit;
}

static void count_batch(struct gate *gate, struct batch *batch, uint64_t ns, uint64_t now)
{
    gate->pending -= batch->expected < gate->pending ? batch->expected : gate->pending;
    set_state(gate, batch, BATCH_FREE);
    if (gate->pending == 0) gate->backlog = false;
    /* Work after a host function on its stream has ended, and so has the function. */
    if (batch->opened > gate->hosted_at && batch->context == gate->hosted_context && batch->stream == gate->hosted_stream)
        gate->hosted_at = 0;
    gate->held_since = 0; /* work ended: patience starts again */
    if (ns) batch_charge(gate, ns, now);
}

/*
 * One in sixteen, spread so that no rhythm of the program always meets the same launch; and one for every four
 * estimated ones, so that the time of single launches stays current.
 */
bool batch_is_sample(const struct gate *gate)
{
    return gate->estimated >= ESTIMATES || gate->batches_made == 1 || (gate->batches_made * 0x9e3779b97f4a7c15ull) >> 60 == 0;
}

uint64_t batch_thread(CUstream stream)
{
    static __thread char mine __attribute__((tls_model("initial-exec")));
    return stream == CU_STREAM_PER_THREAD ? (uint64_t)(uintptr_t)&mine : 0;
}

static bool is_dry(const struct batch *batch)
{
    if (batch->marks) return is_over(batch, batch->end); /* a thread's own stream is a different one in every thread */
    struct aside aside = step_aside(batch->context);
    CUresult result = ASK((CUstream), cuStreamQuery, batch->stream);
    step_back(aside);
    return result == CUDA_SUCCESS;
}

/*
 * Did the stream run dry since the latest launch? A batch that continues would count that time as well. The driver is
 * asked only after the gaps between launches together are long enough to be worth the cost of asking.
 */
static bool ran_dry(const struct gate *gate, struct batch *batch, uint64_t now)
{
    uint64_t apart = now > batch->last ? now - batch->last : 0;
    uint64_t gap = apart > gate->single_ns ? apart - gate->single_ns : 0;
    if (batch->busy || (!gap && !batch->awaited)) return false;
    if (!batch->awaited && batch->gaps + gap < GAPS_NS) {
        batch->gaps += gap;
        return false;
    }
    if (is_dry(batch)) return true; /* and the code assumes that it was dry in the gaps before */
    batch->gaps = 0;                /* it had work all the time */
    batch->awaited = false;
    return false;
}

/*
 * Ends a batch whose stream is dry. An end marked now would include the idle time since. The launches' own span counts
 * instead, without the time counted for others meanwhile; batches that started earlier receive this time.
 */
static void estimate(struct gate *gate, struct batch *batch, uint64_t now)
{
    gate->estimated++;
    /* No function gives the time of fills and copies. */
    bool unnamed = !batch->graph && batch->known < batch->count && gate->singles_learnt;
    uint64_t each = unnamed ? gate->single_ns : expected_of_one(batch), least = batch->count * each;
    uint64_t most = now - batch->opened, span = batch->last - batch->opened + each;
    uint64_t other_time = batch->gaps + batch->counted;
    span = span > other_time ? span - other_time : 0;
    if (span < least) span = least;
    if (span > most) span = most;
    for (uint32_t i = 0; i < BATCHES; i++) {
        struct batch *other = &gate->batches[i];
        if (other == batch || other->state == BATCH_FREE || other->context != batch->context) continue;
        /* An earlier batch on its stream had ended when it began. */
        if (other->stream == batch->stream && other->thread == batch->thread) continue;
        if (other->opened <= batch->opened) other->counted += span;
    }
    count_batch(gate, batch, span, now);
}

struct batch *batch_open(struct gate *gate, CUcontext context, CUstream stream, uint64_t graph, bool alone, uint64_t now)
{
    for (uint64_t left = gate->open_batches; left; left &= left - 1) {
        struct batch *batch = &gate->batches[__builtin_ctzll(left)];
        if (batch->stream != stream || batch->context != context) continue;
        if (batch->thread != batch_thread(stream)) continue;
        bool apart = ran_dry(gate, batch, now);
        if (apart && !batch->marks) estimate(gate, batch, now);
        else if (apart) batch->lead += batch->gaps, batch_close(gate, batch, now);
        else if (!alone && !batch->alone && graph == batch->graph && (graph == 0 || graph == GRAPH_KNOWN) &&
                 now - batch->last < MS)
            return batch;
        else if (batch->busy == 0) batch_close(gate, batch, now);
    }
    struct batch *fresh = free_slot(gate, context);
    if (!fresh) return NULL;
    fresh->context = context;
    fresh->stream = stream;
    fresh->thread = batch_thread(stream);
    if (!make_events(fresh) || record(fresh, fresh->start) != CUDA_SUCCESS) return NULL;
    set_state(gate, fresh, BATCH_OPEN);
    fresh->graph = graph;
    fresh->alone = alone;
    fresh->opened = fresh->last = now;
    fresh->count = fresh->busy = fresh->known = 0;
    fresh->marks = fresh->thread || (!stream && atomic_load_explicit(&streams_join, memory_order_relaxed));
    fresh->mixed = fresh->awaited = fresh->passed = fresh->stays = false;
    fresh->expected = fresh->lead = fresh->gaps = fresh->counted = 0;
    fresh->number = ++gate->batches_made;
    return fresh;
}

void batch_drop(struct gate *gate, struct batch *batch) { count_batch(gate, batch, 0, 0); }

void batch_lose(struct gate *gate, struct batch *batch, uint64_t now)
{
    if (batch->state != BATCH_FREE) count_batch(gate, batch, batch->expected, now);
}

void batch_mix(struct gate *gate, CUcontext context, CUstream stream)
{
    for (uint64_t left = gate->open_batches; left; left &= left - 1) {
        struct batch *batch = &gate->batches[__builtin_ctzll(left)];
        if (!batch->marks || !batch->busy) continue;
        if (batch->context == context && !batch->stream && stream) batch->mixed = true;
    }
}

bool batch_mark(const struct batch *batch)
{
    return !batch->marks || batch->mixed || record(batch, batch->end) == CUDA_SUCCESS;
}

void batch_close(struct gate *gate, struct batch *batch, uint64_t now)
{
    if (batch->mixed) {
        batch_lose(gate, batch, now);
        return;
    }
    if (!batch->marks && now - batch->last > expected_of_one(batch) && is_dry(batch)) {
        estimate(gate, batch, now);
        return;
    }
    if (batch->count == 1) gate->estimated = 0; /* it will be measured: the next need not be */
    set_state(gate, batch, BATCH_FLYING);
    if (!batch->marks && record(batch, batch->end) != CUDA_SUCCESS) batch_lose(gate, batch, now);
}

void batch_close_old(struct gate *gate, uint64_t age, uint64_t now)
{
    for (uint64_t left = gate->open_batches; left; left &= left - 1) {
        struct batch *batch = &gate->batches[__builtin_ctzll(left)];
        if (batch->busy) continue;
        if (batch->count && now - batch->opened >= age) batch_close(gate, batch, now);
    }
}

/* The time of an ended batch that was not counted for others; begun and uncounted ones receive it. */
static uint64_t fresh_time(struct gate *gate, struct batch *batch, uint64_t *whole)
{
    int64_t span, since;
    *whole = 0;
    if (!elapsed(batch->context, batch->start, batch->end, &span) || span < 0) return batch->expected;
    /* The host may notice the start of work late, most of all with few processors: the time of a launch counts. */
    int64_t rest = span - (int64_t)batch->lead;
    int64_t least = batch->lead > LATE_HOST_NS && gate->single_ns > LEAST_NS ? (int64_t)gate->single_ns : LEAST_NS;
    if (batch->lead) span = rest > least ? rest : least < span ? least : span;
    /* A host that stood still after the launch leaves nothing: the least is counted, and a guess is not learnt. */
    if (rest >= least || batch->lead <= LATE_HOST_NS) *whole = (uint64_t)span;
    /* Others may have run while it was made. */
    uint64_t counted = batch->counted > batch->lead ? batch->counted - batch->lead : 0;
    uint64_t fresh = (uint64_t)span > counted ? (uint64_t)span - counted : 0;
    for (uint32_t i = 0; i < BATCHES; i++) {
        struct batch *other = &gate->batches[i];
        if (other == batch || other->state == BATCH_FREE || other->context != batch->context) continue;
        /* The next on the same stream begins after this one's end. */
        if (other->stream == batch->stream && other->thread == batch->thread) continue;
        if (!elapsed(batch->context, other->start, batch->end, &since) || since <= 0) continue;
        if (since > span) other->counted += fresh;                                      /* it began before this one */
        else if ((uint64_t)since > other->counted) other->counted = (uint64_t)since; /* within: no gap remains */
    }
    return fresh;
}

struct over {
    struct batch *batch;
    int64_t end; /* since the start of the one that was found first */
};

/* Inserts an ended batch by its end; `first` is the one that was found first. */
static void insert(struct over *list, uint32_t count, struct batch *batch, const struct batch *first)
{
    int64_t end = 0;
    if (batch->context != first->context || !elapsed(first->context, first->start, batch->end, &end))
        end = (int64_t)(batch->last - first->opened);
    for (; count > 0 && list[count - 1].end > end; count--) list[count] = list[count - 1];
    list[count] = (struct over){batch, end};
}

bool batch_stay(const struct gate *gate)
{
    for (uint32_t i = 0; i < BATCHES; i++)
        if (gate->batches[i].state != BATCH_FREE && gate->batches[i].stays) return true;
    return false;
}

/* Others on its stream wait for it, so only one of them can stay. */
static bool has_one_that_stays(const struct gate *gate, const struct batch *batch)
{
    for (uint32_t i = 0; i < BATCHES; i++) {
        const struct batch *other = &gate->batches[i];
        if (other->state != BATCH_FREE && other->stays && other->context == batch->context && other->stream == batch->stream &&
            other->thread == batch->thread)
            return true;
    }
    return false;
}

/*
 * A kernel that stays until the host ends it is recognised when it is late and later work has ended: from then on
 * nothing waits for it. Work that only takes long makes later work wait too.
 */
static void pass_by(struct gate *gate, struct batch *batch, uint64_t now)
{
    if (!batch->passed || batch->stays || now - batch->opened < batch->expected + STAYS_NS) return;
    if (has_one_that_stays(gate, batch)) return;
    batch->stays = true;
    if (batch->known) gate->functions[batch->functions[batch->known - 1]].stays = true;
    gate->pending -= batch->expected < gate->pending ? batch->expected : gate->pending;
    batch->expected = 0;
}

void batch_harvest(struct gate *gate, uint64_t now)
{
    struct over list[BATCHES];
    const struct batch *first = NULL;
    uint32_t count = 0;
    uint64_t eldest = UINT64_MAX; /* when the first was opened of those that fly on, or stayed until now */
    gate->oldest = 0;
    for (uint32_t i = 0; i < BATCHES; i++) {
        struct batch *batch = &gate->batches[i];
        if (batch->state != BATCH_FLYING) continue;
        if (batch->stays && batch->opened < eldest) eldest = batch->opened;
        if (is_over(batch, batch->end)) {
            insert(list, count++, batch, first ? first : (first = batch));
            continue;
        }
        gate->last_work = now;
        pass_by(gate, batch, now);
        if (!batch->stays && (gate->oldest == 0 || batch->opened < gate->oldest)) gate->oldest = batch->opened;
        if (batch->opened < eldest) eldest = batch->opened;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct batch *batch = list[i].batch;
        uint64_t whole, fresh = fresh_time(gate, batch, &whole);
        /* It ended before this was noticed: work that follows other work ends its own time after that. */
        uint64_t begun = gate->last_end > gate->last_launch ? gate->last_end : gate->last_launch;
        uint64_t end = (batch->lead && batch->began > begun ? batch->began : begun) + fresh;
        gate->last_end = end < now ? end : now;
        if (gate->last_end > gate->last_work) gate->last_work = gate->last_end;
        if (batch->stays && !batch->passed && batch->known) gate->functions[batch->functions[batch->known - 1]].stays = false;
        /* One that later work passed may have stayed without being recognised: that is no time which its function takes. */
        if (whole && !batch->stays && !batch->passed) learn(gate, batch, whole, fresh);
        for (uint32_t j = 0; eldest < batch->opened && j < BATCHES; j++)
            gate->batches[j].passed |= gate->batches[j].opened < batch->opened;
        count_batch(gate, batch, fresh, now);
    }
}

void batch_began(struct gate *gate, struct batch *batch, uint64_t called, uint64_t now)
{
    /* If its mark has not passed, the device has had other work all the time. */
    if (gate->pending > batch->expected) {
        if (!is_over(batch, batch->start)) return;
        batch_harvest(gate, now);
    }
    uint64_t idle_since = gate->last_end > called ? gate->last_end : called;
    batch->lead = now > idle_since ? now - idle_since : 0;
    batch->began = now;
}

void batch_forget_context(struct gate *gate, CUcontext context, uint64_t now)
{
    batch_harvest(gate, now);
    for (uint32_t i = 0; i < BATCHES; i++) {
        struct batch *batch = &gate->batches[i];
        if (batch->context != context) continue;
        batch_lose(gate, batch, now); /* also because the driver may refuse to end the context */
        free_events(batch);
        batch->context = NULL;
    }
    if (gate->hosted_context == context) gate->hosted_at = 0;
    /* Its graphs end with it; those of another context are measured again. */
    free(gate->graphs.slots);
    gate->graphs = (struct graph_costs){.mean_ns = gate->graphs.mean_ns};
}
