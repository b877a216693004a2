/*
 * Symbols of the objects loaded in this process, read from their own tables.
 *
 * The library replaces dlsym and must run without a loaded libdl, so it cannot call dlsym itself.
 */
#ifndef PARTAGE_SYMBOLS_H
#define PARTAGE_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

/* Address of `name`, default version, in the loaded object whose soname is `soname`; NULL if absent. */
void *symbols_of(const char *soname, const char *name);
/* The same in any C library object (libc, libdl, libpthread) that defines it. */
void *symbols_of_libc(const char *name);
/* Does `address` lie in the object named `soname`, or with NULL in one of the C library? */
bool symbols_is_from(const char *soname, const void *address);
/* Path of the object that contains `address`, by the loader; false if it is unknown or too long. */
bool symbols_home(const void *address, char *path, size_t room);

/* Around a fork: in its parent before and after it, and in the child. */
void symbols_before_fork(void);
void symbols_after_fork(void);
void symbols_forget(void);

#endif
