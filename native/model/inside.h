/* Between a modelled process and its own copy of the library. */
#ifndef PARTAGE_INSIDE_H
#define PARTAGE_INSIDE_H

#include "../include/page.h"
#include "../src/limits.h"

extern __thread char inside_own;

struct inside_world {
    uint32_t cards;
    struct card_limits limits;         /* equal on all cards */
    struct seat *seats[CARDS];         /* its own, by card */
    void *(*driver)(const char *name); /* a function of the process's driver; NULL: it has none */
};

/* Opens the limits; before the program's first call. */
void inside_open(const struct inside_world *world);
/* A round of the watch; true: a gate has work. */
bool inside_watch(void);
/* Bytes that count against the cap, and device time that was charged. */
uint64_t inside_counted(uint32_t card);
uint64_t inside_served(uint32_t card);
/* The library's end with its process. */
void inside_end(void);

#endif
