#include "link.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static __thread int file_plus_one;
static __thread pid_t made_in;

static void close_file(void *value) { close((int)(intptr_t)value - 1); }

static void make_key(void) { pthread_key_create(&key, close_file); }

uint64_t link_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static bool transfer(int file, const struct request *request, struct answer *answer)
{
    if (send(file, request, sizeof *request, MSG_NOSIGNAL) != (ssize_t)sizeof *request) return false;
    return !answer || recv(file, answer, sizeof *answer, 0) == (ssize_t)sizeof *answer;
}

static int connect_cards(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv(FAKE_SOCKET);
    struct answer answer;
    struct request hello = {.kind = ASK_HELLO, .a = (uint64_t)getpid(), .b = (uint64_t)getpid()};
    if (!path || strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (file < 0) return -1;
    if (connect(file, (struct sockaddr *)&address, sizeof address) == 0 && transfer(file, &hello, &answer)) return file;
    close(file);
    return -1;
}

static _Atomic uint64_t instant_ns = 1; /* sum of launched work on an instant card */

uint64_t link_instant(void) { return atomic_load(&instant_ns); }

bool link_is_instant(void)
{
    const char *path = getenv(FAKE_SOCKET);
    return path && strcmp(path, FAKE_INSTANT) == 0;
}

bool link_ask(const struct request *request, struct answer *answer)
{
    if (link_is_instant()) {
        bool absent = request->kind == ASK_MEMORY_INFO && request->card > 0;
        if (request->kind == ASK_KERNEL) atomic_fetch_add(&instant_ns, request->a);
        if (answer) *answer = (struct answer){.a = absent ? 0 : link_instant()};
        return true;
    }
    if (file_plus_one == 0 || made_in != getpid()) {
        pthread_once(&once, make_key);
        made_in = getpid();
        file_plus_one = connect_cards() + 1;
        pthread_setspecific(key, (void *)(intptr_t)file_plus_one);
    }
    return file_plus_one > 0 && transfer(file_plus_one - 1, request, answer);
}

void link_uuid(uint32_t card, unsigned char bytes[16])
{
    memset(bytes, 0xfa, 16);
    bytes[15] = (unsigned char)card;
}
