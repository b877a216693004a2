/* Code before and after a call that puts work on the card. */
#ifndef PARTAGE_LAUNCH_H
#define PARTAGE_LAUNCH_H

#include "container.h"
#include "ledger.h"

/*
 * Before a launch on `stream`; it may wait, except for a captured launch. `graph` names a graph, or is 0; `what` is
 * loaded at its first launch, or is 0.
 */
void launch_enter(struct ticket *ticket, CUstream stream, bool per_thread, uint64_t graph, uint64_t what);
/* After it. */
CUresult launch_leave(struct ticket *ticket, CUresult result);
/* Are launches of this thread's context gated at all? */
bool launch_is_gated(void);

/* A capture has ended, also by the end of its stream or its context. */
void launch_capture_ended(const struct entry *entry);

/* Defines NAME as the driver's own call between the two, if `when` holds. */
#define GATED_WHEN(when, name, args, stream, per_thread, what, ...)                                      \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct ticket ticket = {0};                                                                      \
        if (when) launch_enter(&ticket, stream, per_thread, 0, (uint64_t)(uintptr_t)(what));             \
        return launch_leave(&ticket, CALL(name, __VA_ARGS__));                                           \
    }
#define GATED(...) GATED_WHEN(true, __VA_ARGS__)

#endif
