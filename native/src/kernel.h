/*
 * System calls without the cancellation points of the C library's functions. A thread that is cancelled within one
 * keeps its locks, and its counts remain until the process ends.
 */
#ifndef PARTAGE_KERNEL_H
#define PARTAGE_KERNEL_H

#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static inline int kernel_open(const char *path, int flags) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags); }

static inline ssize_t kernel_read(int file, void *bytes, size_t room) { return syscall(SYS_read, file, bytes, room); }

/* From the beginning of a file. */
static inline ssize_t kernel_read_start(int file, void *bytes, size_t room)
{
    return syscall(SYS_pread64, file, bytes, room, 0L);
}

static inline ssize_t kernel_write(int file, const void *bytes, size_t size) { return syscall(SYS_write, file, bytes, size); }

static inline void kernel_close(int file) { syscall(SYS_close, file); }

static inline void kernel_sleep(const struct timespec *span)
{
#ifdef PARTAGE_VIRTUAL
    nanosleep(span, NULL);
#else
    syscall(SYS_nanosleep, span, NULL);
#endif
}

#endif
