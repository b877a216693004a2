/* Physical memory by handle. */
#ifndef PARTAGE_PHYSICAL_H
#define PARTAGE_PHYSICAL_H

#include "container.h"
#include "ledger.h"

/*
 * Counts memory opened at an address by a handle; an error: it may not stay open. `context`: it ends with that one; 0: with
 * none.
 */
CUresult physical_import(CUdeviceptr pointer, uint64_t handle, uint64_t context);
/* One opening less; false: it is not known. entry->kind is 0 if others are left. physical_reopen: the close failed. */
bool physical_close(CUdeviceptr pointer, struct entry *entry);
void physical_reopen(CUdeviceptr pointer);
/* An address of such memory ended. */
void physical_import_ended(const struct entry *entry);
/* Notes that memory at an address was exported by a handle of this name: its container counts it already. */
void physical_export(CUdeviceptr pointer, uint64_t name);
/* Memory that was exported is freed here: who has it open pays for it. */
void physical_unexport(CUdeviceptr pointer);
/* For the watch: counts borrowed memory whose lender has ended; ns until it should ask again, 0 if none is borrowed. */
uint64_t physical_watch(void);
/* Is the size of a handle's memory known? */
bool physical_has_size(const struct entry *entry);
/* Keeps a handle's memory counted as a mapping does, also without the handle; false: it is not counted. */
bool physical_borrow(CUmemHandle handle, struct entry *entry);
void physical_give_up(CUmemHandle handle);
/* In a child after fork: the parent's objects do not exist, and its lock is free. */
void physical_forget(void);

#endif
