/* Physical memory by handle. */
#ifndef PARTAGE_PHYSICAL_H
#define PARTAGE_PHYSICAL_H

#include "container.h"
#include "ledger.h"

/* Counts memory opened by a handle, unless the container exported it itself; false: past the cap. */
bool physical_import(const CUdeviceptr *pointer, uint64_t handle, uint64_t context);
/* Keeps a handle's memory counted as a mapping does, also without the handle; false: it is not counted. */
bool physical_borrow(CUmemHandle handle, struct entry *entry);
void physical_give_up(CUmemHandle handle);
/* In a child after fork: the parent's objects do not exist, and its lock is free. */
void physical_forget(void);

#endif
