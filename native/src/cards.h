/* The card of an object of the driver. */
#ifndef PARTAGE_CARDS_H
#define PARTAGE_CARDS_H

#include "container.h"

/* The card of the thread's context; NULL: no limits are set for it. */
struct card *card_current(void);
/* The card of a memory location; NULL: of none, such as the host's. */
struct card *card_at(const CUlocation *location);
/* The cards of a stream's work, and of memory; the context's if the driver does not report one. */
struct card *card_of_stream(CUstream stream);
struct card *card_of_pointer(CUdeviceptr pointer);

#endif
