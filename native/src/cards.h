/* Which card something of the driver is on. */
#ifndef PARTAGE_CARDS_H
#define PARTAGE_CARDS_H

#include "container.h"

/* The card of the thread's context; NULL: no limits are set for it. */
struct card *card_current(void);
/* The card that memory at a location is of; NULL: of none, as the host's. */
struct card *card_at(const CUlocation *location);
/* The card that a stream's work runs on, and the one that memory lies on; the context's where the driver does not say. */
struct card *card_of_stream(CUstream stream);
struct card *card_of_pointer(CUdeviceptr pointer);

#endif
