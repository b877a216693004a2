/* Programs as frameworks run them. */
#ifndef PARTAGE_TRACES_H
#define PARTAGE_TRACES_H

#include "whole.h"

#define TRACES 6

struct program;
struct trace {
    const char *name;
    uint32_t cards;
    void (*play)(struct program *);
};
struct program {
    const struct trace *trace;
    struct whole *whole;
    uint32_t index;          /* of the tenant */
    uint64_t steps, most;    /* done; after `most` it ends, 0: never */
    uint64_t refusals, refused; /* allocations that did not fit, and those that did not fit even after kept memory was released */
    uint64_t most_counted;   /* bytes, of one card */
    uint64_t among;          /* with the driver alone: tenants, each of which reserves its part of the visible free memory; 0: it takes all */
    uint64_t uncounted, too_many; /* at worst: bytes that the card had allocated and the library had not counted, and the reverse */
    CUcontext contexts[MODEL_CARDS];
    bool over;
};
extern const struct trace traces[TRACES];
const struct trace *trace_named(const char *name);
void program_start(struct program *program);

#endif
