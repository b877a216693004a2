/* The driver behind the hooks: what is called when a call is let through, and what the library asks itself. */
#ifndef PARTAGE_DRIVER_H
#define PARTAGE_DRIVER_H

#include "hooks.h"

#define EXPORT __attribute__((visibility("default")))
#define CUDA_SONAME "libcuda.so.1"
#define NVML_SONAME "libnvidia-ml.so.1"

#define HOOK_NAME(name, base, since, per_thread, library) HOOK_##name,
enum hook { HOOKS(HOOK_NAME) HOOK_COUNT };
#undef HOOK_NAME

/* The driver's own function of a hook; NULL if this driver has none. */
void *driver_hooked(enum hook hook);
/* Any other function of the driver, for the library's own questions; NULL if it has none. `slot` keeps the answer. */
void *driver_function(void *_Atomic *slot, const char *soname, const char *name);
/* The process ends: from now on the library asks the driver nothing of its own accord. */
void driver_leave(void);
/* The function of ours that stands in for `found`, which the driver gave for `name`; `found` if none does. */
void *driver_standin(const char *name, void *found);
void *driver_standin_versioned(const char *base, int version, int per_thread, void *found);

/*
 * Calls that the library makes by itself and that the program would not: a thread that steps aside is not forbidden
 * them by a capture, and ends none. step_back takes what step_aside answered.
 */
int driver_step_aside(void);
void driver_step_back(int mode);

#define REAL(name) ((__typeof__(&name))driver_hooked(HOOK_##name))
/* Calls the driver's own function, or says that there is none. */
#define CALL(name, ...)                                                                                  \
    ({                                                                                                   \
        __typeof__(&name) real_ = REAL(name);                                                            \
        real_ ? real_(__VA_ARGS__) : (CUresult)CUDA_ERROR_NOT_SUPPORTED;                                 \
    })
/* Calls a function of the driver that is not hooked: ASK((types), name, arguments). */
#define ASK(types, name, ...)                                                                            \
    ({                                                                                                   \
        static void *_Atomic slot_;                                                                      \
        CUresult(*real_) types = (CUresult(*) types)driver_function(&slot_, CUDA_SONAME, #name);         \
        real_ ? real_(__VA_ARGS__) : (CUresult)CUDA_ERROR_NOT_SUPPORTED;                                 \
    })

#endif
