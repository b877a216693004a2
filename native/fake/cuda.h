/* Inside the stand-in for libcuda.so.1: shared by its parts. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "../src/hooks.h"
#include "link.h"

#define FAKE_GRANULE (2ull << 20)
#define FAKE_CONTEXT_BYTES (300ull << 20) /* what a context costs */
#define FAKE_MODULE_BYTES (8ull << 20)    /* what a module costs */
#define FAKE_POOL_STEP (32ull << 20)      /* a pool grows by this */

struct cu_context { uint64_t id; CUdevice device; uint32_t retained; };
struct cu_stream { uint64_t id; CUgraph graph; int mode; int broken; };
struct cu_graph { uint64_t ns, kernels, memory; };
struct cu_graph_exec { uint64_t ns, memory; CUdevice device; };
struct cu_module { CUdevice device; };

extern __thread CUcontext fake_current;
extern __thread int fake_capture_mode;
/* Takes memory of the current (or given) device; false: none is left. */
CUresult fake_take(CUdevice device, uint64_t bytes);
void fake_give(CUdevice device, uint64_t bytes);
uint64_t fake_address(uint64_t bytes);
uint64_t fake_serial(void);
int fake_ask(struct request request, struct answer *answer);
/* While a capture is active elsewhere, a thread that did not step aside ends it. */
CUresult fake_unsafe(void);
/* Remembers and recalls what lies at an address or behind a handle. */
void fake_note(uint64_t key, uint64_t bytes, uint64_t other);
int fake_recall(uint64_t key, uint64_t *bytes, uint64_t *other, int forget);

#endif
