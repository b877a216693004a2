/*
 * The seats of one card in this process: its container's own, mapped, and copies of the others'.
 *
 * Another container may truncate its seat's file at any time, and a load from it would then end this process.
 * So no instruction of ours touches another's page. The kernel copies it (process_vm_readv from our own
 * mapping, or a read of the file if that call is not allowed) and reports a missing page.
 * A seat's next tenant has another file, which replaces the former mapping once the agent's page changes.
 * No file stays open: a program may close every descriptor it has and get the number for a file of its own.
 */
#ifndef PARTAGE_SEATS_H
#define PARTAGE_SEATS_H

#include "arbiter.h"

#define FOLDER_BYTES 1024
#define SCAN_NS (10 * MS)   /* interval for seats that were never taken */
#define REOPEN_NS (100 * MS) /* and for those that could not be opened */

struct seats {
    struct seat *own;             /* mapped; `apart` while it cannot be opened */
    struct seat apart;            /* its own words then, which no other reads */
    struct seat view[SEATS];      /* as last copied; zero if that failed */
    const struct seat *maps[SEATS]; /* others' pages: only the kernel reads them */
    const struct terms_page *said;  /* the agent's page, also only for the kernel */
    struct { uint64_t terms[SEATS], files[SEATS]; } page; /* its copy */
    uint64_t mapped[SEATS];         /* the number of a seat's file when it was mapped */
    bool known[SEATS];            /* it is taken, or was */
    bool by_file;                 /* the kernel does not copy from mappings here */
    uint32_t index;
    uint64_t seen, scanned, opened; /* times of the last ones, ns */
    char folder[FOLDER_BYTES];    /* of all seats of the card */
};

/* Opens the seats in a folder; false if its own one is not the agent's. */
bool seats_open(struct seats *seats, const char *folder, uint32_t index);
/* For an arbiter with `eyes` of this kind: copies the seats unless they were copied after `since`. */
void seats_see(struct arbiter *arbiter, uint64_t since);
/* Sleeps until a seat's bell is no longer `seen` or is rung, or `ns` have passed. */
void seats_wait(const struct seats *seats, uint32_t whose, uint32_t seen, uint64_t ns);

#endif
