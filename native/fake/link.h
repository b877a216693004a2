/* A thread's connection to the modelled cards. */
#ifndef FAKE_LINK_H
#define FAKE_LINK_H

#include "wire.h"
#include <stdbool.h>

/* Sends a request; with `answer`, waits for it. False: there are no modelled cards. */
bool link_ask(const struct request *request, struct answer *answer);
/* Is the card instant: is every call over at once? */
bool link_is_instant(void);
/* Time on an instant card: the sum of work launched there. */
uint64_t link_instant(void);
uint64_t link_now(void);
/* Name of a card; the same in the driver and in NVML. */
void link_uuid(uint32_t card, unsigned char bytes[16]);

#endif
