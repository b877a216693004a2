#include "kernel.h"
#include "symbols.h"
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

struct object {
    uintptr_t base;
    const ElfW(Sym) *symbols;
    const char *strings;
    const ElfW(Half) *versions;
    const uint32_t *gnu, *sysv;
    const char *soname;
};

static const void *located(uintptr_t base, ElfW(Addr) address)
{
    /* glibc relocates these in place, other loaders do not */
    return (const void *)(address < base ? base + address : address);
}

static bool open_object(const struct dl_phdr_info *info, struct object *object)
{
    const ElfW(Dyn) *entry = NULL;
    ElfW(Addr) soname = 0;
    memset(object, 0, sizeof *object);
    object->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    if (!entry) return false;
    for (; entry->d_tag != DT_NULL; entry++) {
        const void *at = located(object->base, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB) object->symbols = at;
        else if (entry->d_tag == DT_STRTAB) object->strings = at;
        else if (entry->d_tag == DT_VERSYM) object->versions = at;
        else if (entry->d_tag == DT_GNU_HASH) object->gnu = at;
        else if (entry->d_tag == DT_HASH) object->sysv = at;
        else if (entry->d_tag == DT_SONAME) soname = entry->d_un.d_val;
    }
    object->soname = object->strings && soname ? object->strings + soname : "";
    return object->symbols && object->strings;
}

static void *checked(const struct object *object, uint32_t i, const char *name)
{
    const ElfW(Sym) *symbol = &object->symbols[i];
    bool hidden = object->versions && object->versions[i] & 0x8000;
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || hidden) return NULL;
    if (strcmp(object->strings + symbol->st_name, name) != 0) return NULL;
    void *at = (void *)(object->base + symbol->st_value);
    if (ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC) return ((void *(*)(void))at)();
    return at;
}

static void *find_gnu(const struct object *object, const char *name)
{
    uint32_t hash = 5381, buckets = object->gnu[0], first = object->gnu[1], words = object->gnu[2];
    const ElfW(Addr) *bloom = (const void *)(object->gnu + 4);
    const uint32_t *bucket = (const void *)(bloom + words), *chain = bucket + buckets;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) hash = hash * 33 + *c;
    uint32_t i = buckets ? bucket[hash % buckets] : 0;
    if (i < first || i == 0) return NULL;
    for (;; i++) {
        uint32_t seen = chain[i - first];
        void *found = (seen | 1) == (hash | 1) ? checked(object, i, name) : NULL;
        if (found || seen & 1) return found;
    }
}

static void *find_sysv(const struct object *object, const char *name)
{
    uint32_t hash = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        hash = (hash << 4) + *c;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    const uint32_t *bucket = object->sysv + 2, *chain = bucket + object->sysv[0];
    for (uint32_t i = bucket[hash % object->sysv[0]]; i; i = chain[i]) {
        void *found = checked(object, i, name);
        if (found) return found;
    }
    return NULL;
}

struct question {
    const char *soname; /* NULL: any object of the C library */
    const char *name;   /* NULL: which object holds `address`? */
    uintptr_t address;
    void *answer;
    char *path;
    size_t room;
};

static bool is_libc(const char *soname)
{
    return strcmp(soname, "libc.so.6") == 0 || strcmp(soname, "libdl.so.2") == 0 ||
           strcmp(soname, "libpthread.so.0") == 0;
}

static bool holds(const struct dl_phdr_info *info, uintptr_t address)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && address >= from && address < from + part->p_memsz) return true;
    }
    return false;
}

static int ask(struct dl_phdr_info *info, size_t size, void *data)
{
    struct question *question = data;
    struct object object;
    (void)size;
    if (question->path) {
        if (!holds(info, question->address)) return 0;
        size_t length = info->dlpi_name ? strlen(info->dlpi_name) : 0;
        if (length > 0 && length < question->room) {
            memcpy(question->path, info->dlpi_name, length + 1);
            question->answer = question->path;
        }
        return 1;
    }
    if (!open_object(info, &object)) return 0;
    if (question->soname ? strcmp(object.soname, question->soname) != 0 : !is_libc(object.soname)) return 0;
    if (!question->name) {
        if (!holds(info, question->address)) return 0;
        question->answer = data;
    } else if (object.gnu) {
        question->answer = find_gnu(&object, question->name);
    } else if (object.sysv) {
        question->answer = find_sysv(&object, question->name);
    }
    return question->answer != NULL;
}

/*
 * In a child after fork the loader's lock for this walk stays taken (seen with glibc 2.36): a child of a process with a
 * thread in a walk waits for ever at its own first walk. So walks and forks exclude each other, for a bounded time: a
 * fork from a signal during a walk continues, and so does a walk during a fork that takes long.
 */
static _Atomic uint32_t walking, forking;

static void await_none(_Atomic uint32_t *count)
{
    struct timespec pause = {0, 50000};
    for (int i = 0; i < 2000 && atomic_load(count); i++) kernel_sleep(&pause);
}

void symbols_before_fork(void)
{
    atomic_fetch_add(&forking, 1);
    await_none(&walking);
}

void symbols_after_fork(void) { atomic_fetch_sub(&forking, 1); }

void symbols_forget(void)
{
    atomic_store(&walking, 0);
    atomic_store(&forking, 0);
}

static void walk(struct question *question)
{
    atomic_fetch_add(&walking, 1);
    for (int i = 0; i < 4 && atomic_load(&forking); i++) {
        atomic_fetch_sub(&walking, 1);
        await_none(&forking);
        atomic_fetch_add(&walking, 1);
    }
    dl_iterate_phdr(ask, question);
    atomic_fetch_sub(&walking, 1);
}

void *symbols_of(const char *soname, const char *name)
{
    struct question question = {.soname = soname, .name = name};
    walk(&question);
    return question.answer;
}

void *symbols_of_libc(const char *name)
{
    struct question question = {.name = name};
    walk(&question);
    return question.answer;
}

bool symbols_is_from(const char *soname, const void *address)
{
    struct question question = {.soname = soname, .address = (uintptr_t)address};
    walk(&question);
    return question.answer != NULL;
}

bool symbols_home(const void *address, char *path, size_t room)
{
    struct question question = {.address = (uintptr_t)address, .path = path, .room = room};
    walk(&question);
    return question.answer != NULL;
}
