/* The driver behind the hooks: its functions for calls that pass, and for the library's own questions. */
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
/* The process ends: from now on the library calls the driver only for the program. */
void driver_leave(void);
/* Our function that replaces `found`, the driver's answer for `name`; `found` if there is none. */
void *driver_standin(const char *name, void *found);
void *driver_standin_versioned(const char *base, int version, int per_thread, void *found);

/*
 * For calls that only the library makes: a capture does not forbid them in a thread that steps aside, and they
 * end no capture. step_back takes the result of step_aside.
 */
int driver_step_aside(void);
void driver_step_back(int mode);

#define REAL(name) ((__typeof__(&name))driver_hooked(HOOK_##name))
/* Calls the driver's own function, or reports that there is none. */
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
