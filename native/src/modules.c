/* Modules and libraries: their memory is not known before, so it is measured. */
#include "cards.h"
#include "contexts.h"
#include "driver.h"
#include "ledger.h"
#include "memory.h"

#define MODULE_LOADS 3 /* a load is measured at most so often */

/* Device memory that a load took: the fall of free memory while it ran. */
static uint64_t fall_since(struct card *card, uint64_t before)
{
    uint64_t after = memory_free(card);
    return card && after < before ? before - after : 0;
}

/* Counts the apparent memory of a load, until the agent measures the process; false: past the cap. */
static bool charge_load(struct card *card, enum kind kind, void *key, uint64_t bytes)
{
    struct entry entry = {.key = (uint64_t)(uintptr_t)key, .bytes = bytes, .context = contexts_now(),
                          .card = card ? card->index : 0, .kind = (uint32_t)kind};
    if (bytes == 0) return true;
    if (!memory_estimate(card, bytes)) return false;
    if (ledger_put(entry)) return true;
    memory_unestimate(card, bytes);
    return false;
}

/*
 * Memory that neighbours take meanwhile is part of the same figure. So before a load is refused, or much is counted for
 * it, it is made again, and the least of the falls counts: no load takes less than it needs.
 */
#define LOADS(name, kind, type, unload, args, ...)                                                       \
    EXPORT CUresult name args                                                                            \
    {                                                                                                    \
        struct card *card = loaded ? card_current() : NULL;                                              \
        uint64_t least = UINT64_MAX;                                                                     \
        for (int i = 1;; i++) {                                                                          \
            uint64_t before = memory_free(card);                                                         \
            CUresult result = CALL(name, __VA_ARGS__);                                                   \
            if (result != CUDA_SUCCESS) return result;                                                   \
            uint64_t fall = fall_since(card, before);                                                    \
            least = fall < least ? fall : least;                                                         \
            if ((least <= MEASURED_MUCH || i == MODULE_LOADS) && charge_load(card, kind, *loaded, least))  \
                return result;                                                                           \
            int mode = driver_step_aside();                                                              \
            CALL(unload, *loaded);                                                                       \
            driver_step_back(mode);                                                                      \
            *loaded = (type)NULL;                                                                        \
            if (i == MODULE_LOADS) break;                                                                \
        }                                                                                                \
        memory_count_refusal(card);                                                                      \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                 \
    }

LOADS(cuModuleLoad, KIND_MODULE, CUmodule, cuModuleUnload, (CUmodule *loaded, const char *path), loaded, path)
LOADS(cuModuleLoadData, KIND_MODULE, CUmodule, cuModuleUnload, (CUmodule *loaded, const void *image), loaded, image)
LOADS(cuModuleLoadFatBinary, KIND_MODULE, CUmodule, cuModuleUnload, (CUmodule *loaded, const void *image), loaded,
      image)
LOADS(cuModuleLoadDataEx, KIND_MODULE, CUmodule, cuModuleUnload,
      (CUmodule *loaded, const void *image, unsigned count, void *options, void **values), loaded, image, count,
      options, values)
LOADS(cuLibraryLoadData, KIND_LIBRARY, CUlibrary, cuLibraryUnload,
      (CUlibrary *loaded, const void *code, void *jit, void **jit_values, unsigned jit_count, void *options,
       void **values, unsigned count),
      loaded, code, jit, jit_values, jit_count, options, values, count)
LOADS(cuLibraryLoadFromFile, KIND_LIBRARY, CUlibrary, cuLibraryUnload,
      (CUlibrary *loaded, const char *path, void *jit, void **jit_values, unsigned jit_count, void *options,
       void **values, unsigned count),
      loaded, path, jit, jit_values, jit_count, options, values, count)

EXPORT CUresult cuModuleUnload(CUmodule module) { ENDED(cuModuleUnload, KIND_MODULE, module); }

EXPORT CUresult cuLibraryUnload(CUlibrary library) { ENDED(cuLibraryUnload, KIND_LIBRARY, library); }
