#include "seats.h"
#include "kernel.h"
#include "lock.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#define SLACK_NS 200000ull /* a shorter sleep must be exact */
#define THE_TERMS SEATS /* in place of a seat's number */

static void path_of(const struct seats *seats, uint32_t i, char path[FOLDER_BYTES + 16])
{
    size_t length = strlen(seats->folder);
    memcpy(path, seats->folder, length);
    strcpy(path + length, i == THE_TERMS ? "/terms" : "/seat-");
    if (i == THE_TERMS) return;
    length += 6;
    if (i >= 10) path[length++] = (char)('0' + i / 10);
    path[length++] = (char)('0' + i % 10);
    path[length] = 0;
}

/* Never waits: another's lease on the file would block a waiting open. */
static int open_seat(const struct seats *seats, uint32_t i, int flags)
{
    char path[FOLDER_BYTES + 16];
    path_of(seats, i, path);
    return kernel_open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* True: mapped, or it may be later. False: it is not the agent's file. */
static bool open_own(struct seats *seats)
{
    int file = open_seat(seats, seats->index, O_RDWR);
    if (file < 0) return errno == EWOULDBLOCK;
    /* Pipes and devices have no end at a page. Not fstat, which is a symbol of GLIBC_2.33 only. */
    bool good = lseek(file, 0, SEEK_END) == SEAT_BYTES;
    void *memory = good ? mmap(NULL, SEAT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    kernel_close(file);
    if (memory == MAP_FAILED) return false;
    seats->own = memory;
    return true;
}

/* Maps a file in place of `before`, which another thread may be using. NULL: the mapping stays. */
static const void *open_other(const struct seats *seats, uint32_t i, const void *before)
{
    int file = open_seat(seats, i, O_RDONLY);
    if (file < 0) return NULL;
    int how = MAP_SHARED | (before ? MAP_FIXED : 0);
    void *memory = mmap((void *)(uintptr_t)before, SEAT_BYTES, PROT_READ, how, file, 0);
    kernel_close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Reads the agent's page; until then all count as tenants without terms. */
static void read_terms(struct seats *seats)
{
    if (!seats->said) seats->said = open_other(seats, THE_TERMS, NULL);
    struct iovec to = {&seats->page, sizeof seats->page}, from = {(void *)(uintptr_t)seats->said, sizeof seats->page};
    long size = -1;
    if (seats->said && !seats->by_file)
        size = syscall(SYS_process_vm_readv, syscall(SYS_getpid), &to, 1ul, &from, 1ul, 0ul);
    if (size != (long)sizeof seats->page) {
        int file = open_seat(seats, THE_TERMS, O_RDONLY);
        if (file >= 0) size = kernel_read_start(file, &seats->page, sizeof seats->page);
        if (file >= 0) kernel_close(file);
    }
    for (uint32_t i = 0; i < SEATS && size != (long)sizeof seats->page; i++)
        seats->page.terms[i] = terms_pack(POLICY_BEST_EFFORT, PRIORITY_ORDINARY, 0);
}

/* Maps the seats with a new file; those that could not be opened too if `missing` is true. */
static void open_others(struct seats *seats, bool missing)
{
    for (uint32_t i = 0; i < SEATS; i++) {
        if (i == seats->index || (seats->maps[i] ? seats->mapped[i] == seats->page.files[i] : !missing)) continue;
        const void *memory = open_other(seats, i, seats->maps[i]);
        if (!memory) continue;
        seats->maps[i] = memory;
        seats->mapped[i] = seats->page.files[i];
    }
}

bool seats_open(struct seats *seats, const char *folder, uint32_t index)
{
    size_t length = strlen(folder);
    memset(seats, 0, sizeof *seats);
    if (length >= sizeof seats->folder) return false;
    memcpy(seats->folder, folder, length + 1);
    seats->index = index;
    seats->own = &seats->apart;
    if (!open_own(seats)) return false;
    read_terms(seats);
    open_others(seats, true);
    seats->opened = clock_now();
    return true;
}

static void copied(struct seats *seats, uint32_t i)
{
    if (atomic_load(&seats->view[i].magic)) seats->known[i] = true;
    atomic_store(&seats->view[i].terms, seats->page.terms[i]);
}

static void is_gone(struct seats *seats, uint32_t i) { memset(&seats->view[i], 0, sizeof seats->view[i]); }

static void read_file(struct seats *seats, uint32_t i)
{
    struct seat fresh;
    int file = open_seat(seats, i, O_RDONLY);
    bool good = file >= 0 && kernel_read_start(file, &fresh, sizeof fresh) == (ssize_t)sizeof fresh;
    if (file >= 0) kernel_close(file);
    if (good) memcpy(&seats->view[i], &fresh, sizeof fresh);
    else is_gone(seats, i);
    copied(seats, i);
}

/* Copies the seats of a list; a missing one ends a call, and the next continues behind it. */
static void read_mapped(struct seats *seats, const uint32_t *list, uint32_t count)
{
    struct iovec to[SEATS], from[SEATS];
    for (uint32_t i = 0; i < count; i++) {
        to[i] = (struct iovec){&seats->view[list[i]], sizeof(struct seat)};
        from[i] = (struct iovec){(void *)(uintptr_t)seats->maps[list[i]], sizeof(struct seat)};
    }
    for (uint32_t done = 0; done < count; done++) {
        uint32_t left = count - done;
        long size = syscall(SYS_process_vm_readv, syscall(SYS_getpid), to + done, (unsigned long)left, from + done,
                            (unsigned long)left, 0ul);
        if (size < 0 && errno != EFAULT) {
            seats->by_file = true; /* a filter of system calls forbids it */
            for (; done < count; done++) read_file(seats, list[done]);
            return;
        }
        uint32_t whole = size > 0 ? (uint32_t)((size_t)size / sizeof(struct seat)) : 0;
        for (uint32_t i = 0; i < whole && done < count; i++, done++) copied(seats, list[done]);
        if (done < count) is_gone(seats, list[done]);
    }
}

void seats_see(struct arbiter *arbiter, uint64_t since)
{
    struct seats *seats = arbiter->eyes;
    if (seats->seen >= since) return;
    uint64_t now = clock_now();
    uint32_t list[SEATS], count = 0;
    bool reopen = now - seats->opened > REOPEN_NS;
    if (reopen) {
        seats->opened = now;
        if (seats->own == &seats->apart) open_own(seats);
        __atomic_store_n(&arbiter->own, seats->own, __ATOMIC_RELEASE); /* arbiter_live reads it without the lock */
    }
    bool all = reopen || now - seats->scanned > SCAN_NS;
    if (all) {
        seats->scanned = now;
        read_terms(seats);
        open_others(seats, reopen);
    }
    for (uint32_t i = 0; i < SEATS; i++) {
        if (i == seats->index || !seats->maps[i] || !(all || seats->known[i])) continue;
        if (seats->by_file) read_file(seats, i);
        else list[count++] = i;
    }
    read_mapped(seats, list, count);
    seats->seen = now;
}

void seats_wait(const struct seats *seats, uint32_t whose, uint32_t seen, uint64_t ns)
{
    struct timespec span = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    const struct seat *seat = whose == seats->index ? seats->own : whose < SEATS ? seats->maps[whose] : NULL;
    /* The kernel may end a thread's sleep late by its slack: 50 us, unless less was requested. */
    long slack = ns < SLACK_NS ? prctl(PR_GET_TIMERSLACK) : 0;
    if (slack > 1) prctl(PR_SET_TIMERSLACK, 1ul);
    /* The kernel reads the word, and reports if it cannot. */
    if (!seat || (syscall(SYS_futex, &seat->bell, FUTEX_WAIT, seen, &span, NULL, 0) < 0 && errno == EFAULT))
        kernel_sleep(&span);
    if (slack > 1) prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
}
