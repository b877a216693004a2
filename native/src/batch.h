/* Batches of launches and what they cost in device time. The gate's lock is held in every call. */
#ifndef PARTAGE_BATCH_H
#define PARTAGE_BATCH_H

#include "gate.h"

#define GRAPH_KNOWN (UINT64_MAX - 1) /* in place of names: graphs of which it is known what they take, measured together */
/* Has a graph been measured? */
bool batch_knows(const struct gate *gate, uint64_t graph);
/* Of the per-thread stream: whose it is in this thread; of others 0. */
uint64_t batch_thread(CUstream stream);
/* Expected device ns of one launch. */
uint64_t batch_expect(const struct gate *gate, uint64_t graph, const struct function_cost *function);
/* The open batch of a stream, or a new one, which it is if `alone`; NULL when the table is full or events fail. */
struct batch *batch_open(struct gate *gate, CUcontext context, CUstream stream, uint64_t graph, bool alone, uint64_t now);
/* The making of a batch's first launch, begun with its mark, is over: how long did that keep the device idle? */
void batch_began(struct gate *gate, struct batch *batch, uint64_t called, uint64_t now);
/* Before a launch: those on the legacy stream that are being made are not to be marked after it. */
void batch_mix(struct gate *gate, CUcontext context, CUstream stream);
/* After a launch: marks the end where it has to be at once. False: it cannot be. */
bool batch_mark(const struct batch *batch);
/* Ends a batch: its end is marked on the stream, or estimated when the stream has run dry. */
void batch_close(struct gate *gate, struct batch *batch, uint64_t now);
/* Is this batch measured alone, to learn what one launch costs? */
bool batch_is_sample(const struct gate *gate);
/* Closes those that have been open for `age` ns. */
void batch_close_old(struct gate *gate, uint64_t age, uint64_t now);
/* How many more batches there can be. */
uint32_t batch_places(const struct gate *gate);
/* Counts the batches that are over. */
void batch_harvest(struct gate *gate, uint64_t now);
/* Does a kernel that stays run? */
bool batch_stay(const struct gate *gate);
/* Counts device time: measured, or expected where it cannot be. */
void batch_charge(struct gate *gate, uint64_t ns, uint64_t now);
/* Drops a batch without measuring it. */
void batch_drop(struct gate *gate, struct batch *batch);
/* Forgets what a graph took. */
void batch_forget_graph(struct gate *gate, uint64_t graph);
/* Lets go of a context's events, and of what its graphs took. */
void batch_forget_context(struct gate *gate, CUcontext context);

/* Captures in progress in this process; while there are any, own event calls step aside. */
extern _Atomic uint32_t captures;
void batch_forget(void);
/* A stream of this process waits for the legacy one, and it for that. */
extern _Atomic bool streams_join;

#endif
