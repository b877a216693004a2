#include "account.h"
#include "kernel.h"
#include "lock.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FOREIGN_NS 60000000000ull /* a process in another pid namespace is known only by its beat */

static char *put_number(char *to, uint64_t value)
{
    char digits[20];
    int count = 0;
    do digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    while (count) *to++ = digits[--count];
    return to;
}

/* From a process's stat line. */
struct line {
    char state;
    uint64_t number, threads, start, stack; /* stack: 0 if the kernel does not show it to this user */
};

/* False if a process has no such line, or it cannot be read. */
static bool read_stat(const char *path, struct line *line)
{
    char text[1024];
    int file = kernel_open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t size = kernel_read(file, text, sizeof text - 1);
    kernel_close(file);
    text[size > 0 ? size : 0] = 0;
    const char *at = strrchr(text, ')'); /* the name may contain anything */
    if (!at || at[1] != ' ') return false;
    line->state = at[2];
    uint64_t values[29] = {0};
    int field = 2;
    line->number = 0;
    for (const char *digit = text; *digit >= '0' && *digit <= '9'; digit++)
        line->number = line->number * 10 + (uint64_t)(*digit - '0');
    for (at += 1; *at && field < 29; at++) {
        if (*at == ' ') field++;
        else if (*at >= '0' && *at <= '9') values[field] = values[field] * 10 + (uint64_t)(*at - '0');
    }
    line->threads = values[20];
    line->start = values[22];
    line->stack = values[28];
    return field > 22;
}

static bool read_stat_of(uint64_t pid, struct line *line)
{
    char path[48] = "/proc/";
    strcpy(put_number(path + 6, pid), "/stat");
    return read_stat(path, line);
}

static uint64_t pid_space(void)
{
    char text[64];
    ssize_t size = readlink("/proc/self/ns/pid", text, sizeof text);
    uint64_t space = 0;
    for (ssize_t i = 0; i < size; i++)
        if (text[i] >= '0' && text[i] <= '9') space = space * 10 + (uint64_t)(text[i] - '0');
    return space ? space : 1;
}

bool self_read(struct self *self)
{
    struct line line;
    uint64_t pid = (uint64_t)syscall(SYS_getpid);
    if (!read_stat("/proc/self/stat", &line)) return false;
    self->identity = identity_pack(pid, line.start);
    self->strange = line.number != pid;
    self->space = pid_space();
    self->image = line.stack;
    self->file = 0; /* a parent's stays open for its sake */
    return true;
}

/* `image`: the program that it ran; 0 is any. */
static bool is_running(uint64_t identity, uint64_t image, const struct self *self)
{
    struct line line;
    uint64_t pid = identity_pid(identity);
    /* At the limit of descriptors, and after chroot, no file opens: the kernel still shows whether the pid is used. */
    if (self->strange || !read_stat_of(pid, &line))
        return pid != 0 && (kill((pid_t)pid, 0) == 0 || errno != ESRCH);
    if (line.start != identity_start(identity)) return false;
    if (image && line.stack && line.stack != image) return false;
    return (line.state != 'Z' && line.state != 'X') || line.threads > 1;
}

/*
 * A forked child has the driver's files of its parent open, and the memory stays on the card until both have ended. The
 * child also has the parent's description of the account, and with it the lock: the kernel drops it with the last of them,
 * whatever their namespaces are and whether they run or are stopped.
 */
static long lock_of(const struct self *self, int command, uint64_t identity, struct flock *lock)
{
    uint64_t head = 0;
    /* A program may have closed all descriptors: the number is a file of its own then. */
    if (self->file <= 0 || kernel_read_start(self->file, &head, sizeof head) != sizeof head || head != ACCOUNT_MAGIC)
        return -1;
    *lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(identity >> 1), .l_len = 1};
    return syscall(SYS_fcntl, self->file, command, lock);
}

static bool is_held(uint64_t identity, const struct self *self)
{
    struct flock lock;
    return lock_of(self, F_OFD_GETLK, identity, &lock) == 0 && lock.l_type != F_UNLCK;
}

void self_hold(struct self *self, const char *account)
{
    struct flock lock;
    int file = kernel_open(account, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return;
    /* Away from the numbers that programs give to files of theirs. */
    self->file = (int)syscall(SYS_fcntl, file, F_DUPFD_CLOEXEC, 200L);
    if (self->file < 0) self->file = (int)syscall(SYS_fcntl, file, F_DUPFD_CLOEXEC, 3L);
    kernel_close(file);
    lock_of(self, F_OFD_SETLK, self->identity, &lock);
}

static bool is_there(const struct place *place, uint64_t owner, const struct self *self, uint64_t now)
{
    uint64_t space = atomic_load(&place->space), beat = atomic_load(&place->beat);
    bool settling = owner & IDENTITY_SETTLING; /* its namespace may not be written yet */
    bool beats = beat > now || now - beat < FOREIGN_NS;
    if (space != self->space && !settling) return beats;
    /* If only numbers are known, another process may have this one by now. */
    return (beats || settling || !self->strange) && is_running(owner, settling ? 0 : atomic_load(&place->image), self);
}

bool place_is_alive(const struct place *place, const struct self *self, uint64_t now)
{
    uint64_t owner = atomic_load(&place->owner);
    return owner != 0 && (is_there(place, owner, self, now) || is_held(owner, self));
}

static bool occupy(struct place *place, uint64_t seen, const struct self *self, uint64_t now)
{
    uint64_t settling = self->identity | IDENTITY_SETTLING;
    if (!atomic_compare_exchange_strong(&place->owner, &seen, settling)) return false;
    for (uint32_t i = 0; i < CARDS; i++) {
        atomic_store(&place->cards[i].counted, 0);
        atomic_store(&place->cards[i].allowance, 0);
        atomic_store(&place->cards[i].overhead, 0);
        atomic_store(&place->cards[i].swapped, 0);
    }
    atomic_store(&place->state, 0);
    atomic_store(&place->beat, now);
    atomic_store(&place->space, self->space);
    atomic_store(&place->image, self->image);
    return atomic_compare_exchange_strong(&place->owner, &settling, self->identity);
}

/* Of no process, since none has the number 0. The mark is not freed, because a search for another ends at a free one. */
#define ENDED_EXPORT IDENTITY_SETTLING

/* Drops the account of this process's former program (before exec): number and start are equal, its memory is gone. */
static void leave_former(struct account *account, const struct self *self)
{
    uint64_t used = atomic_load(&account->used_places);
    if (is_held(self->identity, self)) return; /* by a child of the former program */
    for (uint32_t i = 0; i < EXPORTS; i++) {
        uint64_t mine = self->identity;
        atomic_compare_exchange_strong(&account->exports[i].owner, &mine, ENDED_EXPORT);
    }
    for (uint32_t i = 0; i < PLACES && i < used; i++) {
        struct place *place = &account->places[i];
        if (atomic_load(&place->space) == self->space) place_leave(place, self);
    }
}

struct place *place_take(struct account *account, const struct self *self, uint64_t now)
{
    leave_former(account, self);
    for (uint32_t i = 0; i < PLACES; i++) {
        struct place *place = &account->places[i];
        uint64_t seen = atomic_load(&place->owner);
        if (seen != 0 && place_is_alive(place, self, now)) continue;
        if (!occupy(place, seen, self, now)) continue;
        uint64_t used = atomic_load(&account->used_places);
        while (used < i + 1 && !atomic_compare_exchange_weak(&account->used_places, &used, i + 1)) {
        }
        return place;
    }
    return NULL;
}

void place_leave(struct place *place, const struct self *self)
{
    uint64_t mine = self->identity;
    atomic_compare_exchange_strong(&place->owner, &mine, 0);
}

static uint64_t added(uint64_t a, uint64_t b) { return a > UINT64_MAX / 2 - b ? UINT64_MAX / 2 : a + b; }

static uint64_t clamped(uint64_t value) { return value > UINT64_MAX / 4 ? UINT64_MAX / 4 : value; }

static uint64_t held(struct place *place, uint32_t card)
{
    struct holding *holding = &place->cards[card];
    uint64_t allowance = atomic_load(&holding->allowance), overhead = atomic_load(&holding->overhead);
    uint64_t base = clamped(overhead ? overhead : allowance); /* measured, else estimated */
    return added(clamped(atomic_load(&holding->counted)), base);
}

static uint64_t sum(struct account *account, uint32_t card, const struct self *self, uint64_t now, bool alive)
{
    uint64_t total = 0, used = atomic_load(&account->used_places);
    for (uint32_t i = 0; i < PLACES && i < used; i++) {
        struct place *place = &account->places[i];
        uint64_t owner = atomic_load(&place->owner), bytes = held(place, card);
        if (owner == 0 || owner & IDENTITY_SETTLING || bytes == 0) continue;
        if (alive && owner != self->identity && !place_is_alive(place, self, now)) continue;
        total = added(total, bytes);
    }
    return total;
}

uint64_t memory_used(struct account *account, uint32_t card, const struct self *self, uint64_t now)
{
    return sum(account, card, self, now, true);
}

bool memory_take(struct account *account, struct place *place, uint32_t card, uint64_t bytes, const _Atomic uint64_t *cap,
                 const struct self *self, uint64_t now)
{
    _Atomic uint64_t *counted = &place->cards[card].counted;
    uint64_t first = atomic_load(cap);
    /* An impossible amount is not counted even for a moment: several such together would wrap around. */
    if (bytes > UINT64_MAX / 4 || (first && bytes > first)) return false;
    /* First count, then check: of two at once both may be refused, but never both accepted. */
    for (uint64_t attempt = 0; attempt < 3; attempt++) {
        atomic_fetch_add(counted, bytes);
        /* The cap is read after that: code that lowers it reads the count afterwards, so one sees the other. */
        uint64_t most = atomic_load(cap);
        if (most == 0 || sum(account, card, self, now, false) <= most) return true;
        if (sum(account, card, self, now, true) <= most) return true;
        memory_give(counted, bytes);
        struct timespec pause = {0, (long)((self->identity >> 42) % 7 + 1) * 20000};
        if (attempt < 2 && bytes <= most && sum(account, card, self, now, true) <= most - bytes)
            kernel_sleep(&pause); /* another's attempt interfered */
        else if (attempt < 2) break;
    }
    return false;
}

void memory_give(_Atomic uint64_t *counted, uint64_t bytes)
{
    uint64_t seen = atomic_load(counted);
    while (!atomic_compare_exchange_weak(counted, &seen, seen > bytes ? seen - bytes : 0)) {
    }
}

uint64_t handle_hash(const void *bytes, size_t length)
{
    const unsigned char *byte = bytes;
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < length; i++) hash = (hash ^ byte[i]) * 0x100000001b3ull;
    return hash ? hash : 1;
}

/* The mark of a handle, or a free one: marks are never freed, so the search ends there. NULL: all are in use. */
static struct export_mark *mark_of(struct account *account, uint64_t handle)
{
    for (uint64_t i = 0; i < EXPORTS; i++) {
        struct export_mark *mark = &account->exports[(handle + i) % EXPORTS];
        if (atomic_load(&mark->owner) == 0 || atomic_load(&mark->handle) == handle) return mark;
    }
    return NULL;
}

/* The mark to replace when none is free: near its own, and of an ended process if there is one. */
static struct export_mark *mark_to_replace(struct account *account, uint64_t handle, const struct self *self)
{
    for (uint64_t i = 0; i < EXPORTS / 32; i++) {
        struct export_mark *mark = &account->exports[(handle + i) % EXPORTS];
        if (!is_running(atomic_load(&mark->owner), 0, self)) return mark;
    }
    return &account->exports[handle % EXPORTS];
}

void export_note(struct account *account, uint64_t handle, const struct self *self)
{
    struct export_mark *mark;
    uint64_t none;
    do {
        none = 0;
        mark = mark_of(account, handle);
    } while (mark && !atomic_compare_exchange_strong(&mark->owner, &none, self->identity) &&
             atomic_load(&mark->handle) != handle); /* another process was faster */
    if (!mark) mark = mark_to_replace(account, handle, self);
    atomic_store(&mark->owner, self->identity);
    atomic_store(&mark->handle, handle);
}

void export_end(struct account *account, uint64_t handle, const struct self *self)
{
    struct export_mark *mark = mark_of(account, handle);
    uint64_t mine = self->identity;
    if (mark && atomic_load(&mark->handle) == handle) atomic_compare_exchange_strong(&mark->owner, &mine, ENDED_EXPORT);
}

bool export_is_ours(struct account *account, uint64_t handle, const struct self *self, uint64_t now)
{
    struct export_mark *mark = mark_of(account, handle);
    uint64_t owner = mark ? atomic_load(&mark->owner) : 0, used = atomic_load(&account->used_places);
    if (owner == 0 || atomic_load(&mark->handle) != handle) return false;
    if (owner == self->identity) return true;
    for (uint32_t i = 0; i < PLACES && i < used; i++) { /* it pays as long as its place counts: exec ends that too */
        const struct place *place = &account->places[i];
        if (atomic_load(&place->owner) == owner) return place_is_alive(place, self, now);
    }
    return false;
}
