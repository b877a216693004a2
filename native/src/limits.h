/*
 * The limits file: the amounts of a container, written by the agent, read-only in the container.
 *
 *     partage-limits 2
 *     container 9f86d081884c7d65          a number that identifies the container on its cards, hexadecimal
 *     account account                     file beside this one
 *     card GPU-8d0a3b6e-…                 one block a card
 *     seats card-0                        folder beside this one: the seats of all tenants of the card
 *     slot 3                              its own seat, 0 to 62
 *     memory 4294967296                   bytes; 0 is no cap
 *     core 300                            thousandths of the card
 *     policy fixed-share                  best-effort, burst-share or none
 *     priority ordinary                   online or offline
 *     swap 0                              bytes that may be served from host memory beyond `memory`
 *     context 536870912                   upper estimate of one context's bytes
 *     end
 *
 * Every key is required, in this order; a line is a key, one blank and a value. Anything else is a fault:
 * a file that cannot be trusted closes the card and never opens it.
 */
#ifndef PARTAGE_LIMITS_H
#define PARTAGE_LIMITS_H

#include "page.h"
#include <stdbool.h>
#include <stddef.h>

#define LIMITS_BYTES 16384
#define NAME_BYTES 64

struct card_limits {
    char uuid[NAME_BYTES];
    char seats[NAME_BYTES];
    uint32_t slot;
    uint64_t memory;
    uint32_t core;
    enum policy policy;
    enum priority priority;
    uint64_t swap;
    uint64_t context;
};

struct limits {
    uint64_t container;
    char account[NAME_BYTES];
    uint32_t count;
    struct card_limits cards[CARDS];
};

/* Reads `text`; on a fault returns the number of the line (from 1) and sets *why to constant text. */
uint32_t limits_parse(const char *text, size_t length, struct limits *limits, const char **why);

#endif
