/* What stands before and after a call that puts work on the card. */
#ifndef PARTAGE_LAUNCH_H
#define PARTAGE_LAUNCH_H

#include "container.h"
#include "ledger.h"

/*
 * Before a launch on `stream`, which may wait; none is gated that is captured. `graph` names a graph, or is 0; `what` is
 * loaded at its first launch, or is 0.
 */
void launch_enter(struct ticket *ticket, CUstream stream, bool per_thread, uint64_t graph, uint64_t what);
/* After it. */
CUresult launch_leave(struct ticket *ticket, CUresult result);
/* Are launches of this thread's context gated at all? */
bool launch_is_gated(void);

/* A capture that is over: with its stream's or its context's end, too. */
void launch_capture_ended(const struct entry *entry);

/* Defines NAME as the driver's own call between the two, where `when` holds. */
#define GATED_WHEN(when, name, args, stream, per_thread, what, ...)                                      \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct ticket ticket = {0};                                                                      \
        if (when) launch_enter(&ticket, stream, per_thread, 0, (uint64_t)(uintptr_t)(what));             \
        return launch_leave(&ticket, CALL(name, __VA_ARGS__));                                           \
    }
#define GATED(...) GATED_WHEN(true, __VA_ARGS__)

#endif
