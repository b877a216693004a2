/*
 * Ways to a driver function other than a direct call: dlsym, dlvsym and cuGetProcAddress.
 *
 * The C library's dlsym reads its return address to serve RTLD_NEXT. So a call that the library does not answer is
 * passed on by a jump, with the caller's return address and arguments unchanged.
 */
#include "container.h"
#include "driver.h"
#include "symbols.h"
#include <string.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the entry of dlsym is written for x86-64 and aarch64"
#endif

typedef void *lookup(void *handle, const char *name);
typedef void *versioned_lookup(void *handle, const char *name, const char *version);

static void *_Atomic libc_dlsym, *_Atomic libc_dlvsym;

static void *own_libc(void *_Atomic *slot, const char *name)
{
    void *found = atomic_load_explicit(slot, memory_order_acquire);
    if (found) return found;
    found = symbols_of_libc(name);
    atomic_store_explicit(slot, found, memory_order_release);
    return found;
}

extern char own_dlsym[], own_dlvsym[], own_dlopen[]; /* the entries below, whatever else defines these names */

/*
 * A program may ask for the lookup itself: by a handle of the C library, by RTLD_NEXT, by a version, or by a private
 * name of a C library older than 2.34. It gets ours, or its next question would bypass all limits.
 */
static void *own_lookup(const char *name)
{
    static const struct { const char *name; void *ours; } lookups[] = {
        {"dlsym", own_dlsym},         {"__libc_dlsym", own_dlsym},   {"_dl_sym", own_dlsym},
        {"dlvsym", own_dlvsym},       {"__libc_dlvsym", own_dlvsym}, {"_dl_vsym", own_dlvsym},
        {"dlopen", own_dlopen},       {"__libc_dlopen_mode", own_dlopen},
    };
    if (name[0] != 'd' && name[0] != '_') return NULL;
    for (size_t i = 0; i < sizeof lookups / sizeof *lookups; i++)
        if (strcmp(name, lookups[i].name) == 0) return lookups[i].ours;
    return NULL;
}

static bool is_of_interest(const char *name)
{
    return name && ((name[0] == 'c' && name[1] == 'u') || strncmp(name, "nvml", 4) == 0 || own_lookup(name));
}

/* Our function in place of what the C library found; NULL: its answer stays. */
static void *replaced(const char *name, void *found)
{
    void *ours = own_lookup(name);
    if (ours) return symbols_is_from(NULL, found) ? ours : NULL;
    ours = driver_standin(name, found);
    return ours == found ? NULL : ours;
}

/* The target of the jump below: NULL in *result means no answer, and the jump goes to the returned address. */
__attribute__((used, visibility("hidden"))) void *lookup_choose(void *handle, const char *name, void **result)
{
    lookup *real = (lookup *)own_libc(&libc_dlsym, "dlsym");
    *result = NULL;
    if (real && is_of_interest(name)) {
        void *found = real(handle, name);
        if (found) *result = replaced(name, found);
    }
    return (void *)real;
}

__attribute__((used, visibility("hidden"))) void *lookup_choose_versioned(void *handle, const char *name,
                                                                          const char *version, void **result)
{
    versioned_lookup *real = (versioned_lookup *)own_libc(&libc_dlvsym, "dlvsym");
    *result = NULL;
    if (real && is_of_interest(name)) {
        void *found = real(handle, name, version);
        if (found) *result = replaced(name, found);
    }
    return (void *)real;
}

/* Keeps the arguments, calls lookup_choose, then returns its answer or jumps on. */
#ifdef __x86_64__
__asm__(".text\n"
        ".globl dlsym\n.type dlsym,@function\n.globl own_dlsym\n.hidden own_dlsym\n"
        "dlsym:\nown_dlsym:\n"
        "    push %rdi\n    push %rsi\n    sub $24, %rsp\n"
        "    lea 8(%rsp), %rdx\n"
        "    call lookup_choose\n"
        "    mov 8(%rsp), %rcx\n"
        "    add $24, %rsp\n    pop %rsi\n    pop %rdi\n"
        "    test %rcx, %rcx\n    jnz 1f\n"
        "    test %rax, %rax\n    jz 2f\n"
        "    jmp *%rax\n"
        "1:  mov %rcx, %rax\n"
        "2:  ret\n"
        ".size dlsym,.-dlsym\n"
        ".globl dlvsym\n.type dlvsym,@function\n.globl own_dlvsym\n.hidden own_dlvsym\n"
        "dlvsym:\nown_dlvsym:\n"
        "    push %rdi\n    push %rsi\n    push %rdx\n    sub $16, %rsp\n"
        "    lea 8(%rsp), %rcx\n"
        "    call lookup_choose_versioned\n"
        "    mov 8(%rsp), %rcx\n"
        "    add $16, %rsp\n    pop %rdx\n    pop %rsi\n    pop %rdi\n"
        "    test %rcx, %rcx\n    jnz 1f\n"
        "    test %rax, %rax\n    jz 2f\n"
        "    jmp *%rax\n"
        "1:  mov %rcx, %rax\n"
        "2:  ret\n"
        ".size dlvsym,.-dlvsym\n");
#else
__asm__(".text\n"
        ".globl dlsym\n.type dlsym,%function\n.globl own_dlsym\n.hidden own_dlsym\n"
        "dlsym:\nown_dlsym:\n"
        "    stp x29, x30, [sp, #-48]!\n    mov x29, sp\n    stp x0, x1, [sp, #16]\n"
        "    add x2, sp, #32\n"
        "    bl lookup_choose\n"
        "    mov x16, x0\n    ldr x17, [sp, #32]\n"
        "    ldp x0, x1, [sp, #16]\n    ldp x29, x30, [sp], #48\n"
        "    cbnz x17, 1f\n    cbz x16, 1f\n"
        "    br x16\n"
        "1:  mov x0, x17\n    ret\n"
        ".size dlsym,.-dlsym\n"
        ".globl dlvsym\n.type dlvsym,%function\n.globl own_dlvsym\n.hidden own_dlvsym\n"
        "dlvsym:\nown_dlvsym:\n"
        "    stp x29, x30, [sp, #-64]!\n    mov x29, sp\n    stp x0, x1, [sp, #16]\n    str x2, [sp, #32]\n"
        "    add x3, sp, #40\n"
        "    bl lookup_choose_versioned\n"
        "    mov x16, x0\n    ldr x17, [sp, #40]\n"
        "    ldr x2, [sp, #32]\n    ldp x0, x1, [sp, #16]\n    ldp x29, x30, [sp], #64\n"
        "    cbnz x17, 1f\n    cbz x16, 1f\n"
        "    br x16\n"
        "1:  mov x0, x17\n    ret\n"
        ".size dlvsym,.-dlvsym\n");
#endif

/*
 * A library that is opened with RTLD_DEEPBIND searches its own dependencies first, among them the C library's dlsym and
 * the driver: its calls would bypass all limits. So it is opened without the flag, which can change only names that two
 * libraries have. The C library reads its caller's address here too (search paths, namespaces), so this jumps on too.
 */
#define DEEPBIND 8
typedef void *opening(const char *path, int mode);

static void *_Atomic libc_dlopen;

/* The target of the jump below; *mode is the mode to pass. */
__attribute__((used, visibility("hidden"))) void *lookup_open(const char *path, int *mode)
{
    opening *real = (opening *)own_libc(&libc_dlopen, "dlopen");
    if (path && *mode & DEEPBIND) *mode &= ~DEEPBIND;
    return (void *)real;
}

#ifdef __x86_64__
__asm__(".text\n"
        ".globl dlopen\n.type dlopen,@function\n.globl own_dlopen\n.hidden own_dlopen\n"
        "dlopen:\nown_dlopen:\n"
        "    push %rdi\n    push %rsi\n    sub $8, %rsp\n"
        "    lea 8(%rsp), %rsi\n"
        "    call lookup_open\n"
        "    add $8, %rsp\n    pop %rsi\n    pop %rdi\n"
        "    test %rax, %rax\n    jz 1f\n"
        "    jmp *%rax\n"
        "1:  ret\n"
        ".size dlopen,.-dlopen\n");
#else
__asm__(".text\n"
        ".globl dlopen\n.type dlopen,%function\n.globl own_dlopen\n.hidden own_dlopen\n"
        "dlopen:\nown_dlopen:\n"
        "    stp x29, x30, [sp, #-32]!\n    mov x29, sp\n    stp x0, x1, [sp, #16]\n"
        "    add x1, sp, #24\n"
        "    bl lookup_open\n"
        "    mov x16, x0\n"
        "    ldp x0, x1, [sp, #16]\n    ldp x29, x30, [sp], #32\n"
        "    cbz x16, 1f\n"
        "    br x16\n"
        "1:  mov x0, xzr\n    ret\n"
        ".size dlopen,.-dlopen\n");
#endif

EXPORT CUresult cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags)
{
    CUresult result = CALL(cuGetProcAddress, symbol, address, version, flags);
    if (result == CUDA_SUCCESS && symbol && address && *address)
        *address = driver_standin_versioned(symbol, version, (flags & CU_PROC_PER_THREAD_STREAM) != 0, *address);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status)
{
    CUresult result = CALL(cuGetProcAddress_v2, symbol, address, version, flags, status);
    if (result == CUDA_SUCCESS && symbol && address && *address)
        *address = driver_standin_versioned(symbol, version, (flags & CU_PROC_PER_THREAD_STREAM) != 0, *address);
    return result;
}
