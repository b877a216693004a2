/*
 * The seats of one card as this process sees them: its container's own, mapped, and the others', copied.
 *
 * Another container may cut its seat's file short at any time, and a load from it would then end this process.
 * So no instruction of ours ever touches another's page: the kernel copies it (process_vm_readv from our own
 * mapping, or a read of the file where that call is not allowed) and says so where there is nothing to copy.
 * A seat's next tenant has another file, which is mapped in place of the former one as soon as the agent says so.
 * No file stays open: a program may close every descriptor it has and get the number for a file of its own.
 */
#ifndef PARTAGE_SEATS_H
#define PARTAGE_SEATS_H

#include "arbiter.h"

#define FOLDER_BYTES 1024
#define SCAN_NS (10 * MS)   /* seats that none had are looked at so often */
#define REOPEN_NS (100 * MS) /* and those that could not be opened */

struct seats {
    struct seat *own;             /* mapped; `apart` while it cannot be opened */
    struct seat apart;            /* what it says then, unheard */
    struct seat view[SEATS];      /* as last copied; what could not be is zero */
    const struct seat *maps[SEATS]; /* others' pages: for the kernel alone */
    const struct terms_page *said;  /* the agent's, for the kernel as well */
    struct { uint64_t terms[SEATS], files[SEATS]; } page; /* its copy */
    uint64_t mapped[SEATS];         /* which of its files a seat had when it was mapped */
    bool known[SEATS];            /* it is taken, or was */
    bool by_file;                 /* the kernel does not copy from mappings here */
    uint32_t index;
    uint64_t seen, scanned, opened; /* when it was last done, ns */
    char folder[FOLDER_BYTES];    /* of all seats of the card */
};

/* Opens the seats in a folder; false where the own one is not what the agent made. */
bool seats_open(struct seats *seats, const char *folder, uint32_t index);
/* For an arbiter with `eyes` of this kind: copies the seats unless that was done after `since`. */
void seats_see(struct arbiter *arbiter, uint64_t since);
/* Sleeps until a seat's bell is no longer `seen` or is rung, or `ns` are over. */
void seats_wait(const struct seats *seats, uint32_t whose, uint32_t seen, uint64_t ns);

#endif
