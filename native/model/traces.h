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
    uint64_t steps, most;    /* done; after so many it ends, 0: never */
    uint64_t refusals, refused; /* allocations that did not fit, and those that did not after what was kept was released */
    uint64_t most_counted;   /* bytes, of one card */
    uint64_t among;          /* the driver alone: tenants, each of which reserves its part of what it sees free; 0: all is its own */
    uint64_t uncounted, too_many; /* bytes that the card had given and the library had not counted, and the other way, at worst */
    CUcontext contexts[MODEL_CARDS];
    bool over;
};
extern const struct trace traces[TRACES];
const struct trace *trace_named(const char *name);
void program_start(struct program *program);

#endif
