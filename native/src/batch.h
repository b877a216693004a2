/* Batches of launches and their device time. The caller holds the gate's lock in every call. */
#ifndef PARTAGE_BATCH_H
#define PARTAGE_BATCH_H

#include "gate.h"

#define GRAPH_KNOWN (UINT64_MAX - 1) /* in place of names: graphs with known times, measured together */
/* Has a graph been measured? */
bool batch_knows(const struct gate *gate, uint64_t graph);
/* The owner of the per-thread stream in this thread; 0 for other streams. */
uint64_t batch_thread(CUstream stream);
/* Expected device ns of one launch. */
uint64_t batch_expect(const struct gate *gate, uint64_t graph, const struct function_cost *function);
/* The open batch of a stream, or a new one, always if `alone`; NULL when the table is full or events fail. */
struct batch *batch_open(struct gate *gate, CUcontext context, CUstream stream, uint64_t graph, bool alone, uint64_t now);
/* The first launch of a batch, which began with its mark, was made: how long did that keep the device idle? */
void batch_began(struct gate *gate, struct batch *batch, uint64_t called, uint64_t now);
/* Before a launch: launches on the legacy stream in progress must not be marked after it. */
void batch_mix(struct gate *gate, CUcontext context, CUstream stream);
/* After a launch: marks the end if this is needed at once. False: it cannot be marked. */
bool batch_mark(const struct batch *batch);
/* Ends a batch: its end is marked on the stream, or estimated if the stream has run dry. */
void batch_close(struct gate *gate, struct batch *batch, uint64_t now);
/* Is this batch measured alone, to learn the cost of one launch? */
bool batch_is_sample(const struct gate *gate);
/* Closes batches that have been open for `age` ns. */
void batch_close_old(struct gate *gate, uint64_t age, uint64_t now);
/* The number of free places for batches. */
uint32_t batch_places(const struct gate *gate);
/* Counts finished batches. */
void batch_harvest(struct gate *gate, uint64_t now);
/* Is a kernel running that stays? */
bool batch_stay(const struct gate *gate);
/* Counts device time: measured, or expected where it cannot be. */
void batch_charge(struct gate *gate, uint64_t ns, uint64_t now);
/* Ends a batch that cannot be measured: its expected time counts. */
void batch_lose(struct gate *gate, struct batch *batch, uint64_t now);
/* Drops a batch of which nothing was launched. */
void batch_drop(struct gate *gate, struct batch *batch);
/* Forgets the time of a graph. */
void batch_forget_graph(struct gate *gate, uint64_t graph);
/* Before the end of a context: counts its batches, destroys its events, and forgets the times of its graphs. */
void batch_forget_context(struct gate *gate, CUcontext context, uint64_t now);

/* Captures in progress in this process; while there are any, the library's own event calls step aside. */
extern _Atomic uint32_t captures;
void batch_forget(void);
/* A stream of this process waits for the legacy one, and the legacy one for it. */
extern _Atomic bool streams_join;

#endif
