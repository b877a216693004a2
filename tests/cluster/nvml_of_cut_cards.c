/* Stand-in for libnvidia-ml.so.1 whose cards can be cut as Hopper's can: see ../agent/nvml_card.c.
 * The file named by FAKE_NVML has a line a profile too: "profile id kind slices size most multiprocessors MiB copy decoder encoder jpeg ofa name start,...".
 * The file FAKE_NVML.cut keeps the instances beyond the program, as a driver does:
 * "mode card" for each card in MIG mode, "instance card number profile start size uuid" for each GPU instance, with - before it has a compute instance. */
#define nvmlInitWithFlags of_one_card_init
#define nvmlSystemGetDriverVersion of_one_card_version
#define nvmlDeviceGetArchitecture of_one_card_architecture
#define nvmlDeviceGetMigMode of_one_card_mode
#define nvmlDeviceGetGpuInstanceById of_one_card_instance
#define nvmlGpuInstanceGetInfo of_one_card_info
#include "../agent/nvml_card.c"
#undef nvmlInitWithFlags
#undef nvmlSystemGetDriverVersion
#undef nvmlDeviceGetArchitecture
#undef nvmlDeviceGetMigMode
#undef nvmlDeviceGetGpuInstanceById
#undef nvmlGpuInstanceGetInfo

enum { INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, IN_USE = 19, INSUFFICIENT = 23, MOST = 16 };
struct place { unsigned start, size; };
struct profile { unsigned id, kind, slices, size, most, processors, mib, engines[5], starts[16], places; char name[40]; };
struct cut { unsigned card, number, profile; struct place place; struct card device; };
struct profile_info { unsigned version, id, peers, slices, most, processors, engines[5]; unsigned long long mib; char name[96]; };
struct cut_info { struct card *card; unsigned id, profile; struct place place; };
struct compute_profile { unsigned version, id, slices, most, processors, engines[5]; char name[96]; };
struct compute_info { struct card *device; struct cut *inside; unsigned id, profile; struct place place; };
static struct profile profiles[32];
static struct cut cuts[MOST]; /* without a size: free */
static unsigned known, modes[MOST], uuids;

static const char *kept(const char *suffix)
{
    static char path[400];
    snprintf(path, sizeof path, "%s.cut%s", getenv("FAKE_NVML"), suffix);
    return path;
}

__attribute__((constructor)) static void begin(void)
{
    FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");
    char line[400], starts[100];
    load(); /* once: so threads that cut cards do not wait for a search */
    while (file && known < 32 && fgets(line, sizeof line, file)) {
        struct profile *p = &profiles[known];
        unsigned *e = p->engines;
        if (sscanf(line, "profile %u %u %u %u %u %u %u %u %u %u %u %u %39s %99s", &p->id, &p->kind, &p->slices, &p->size, &p->most,
                   &p->processors, &p->mib, e, e + 1, e + 2, e + 3, e + 4, p->name, starts) != 14)
            continue;
        for (char *one = strtok(starts, ","); one && p->places < 16; one = strtok(NULL, ","))
            p->starts[p->places++] = (unsigned)atoi(one);
        known++;
    }
    if (file) fclose(file);
    file = fopen(kept(""), "r");
    for (unsigned i = 0, card; file && i < MOST && fgets(line, sizeof line, file);) {
        struct cut *c = &cuts[i];
        if (sscanf(line, "mode %u", &card) == 1) modes[card % MOST] = 1;
        if (sscanf(line, "instance %u %u %u %u %u %79s", &c->card, &c->number, &c->profile, &c->place.start, &c->place.size, c->device.uuid) == 6) i++;
        if (sscanf(line, "uuids %u", &card) == 1) uuids = card;
    }
    if (file) fclose(file);
}

static int keep(void)
{
    char before[400];
    FILE *file = fopen(strcpy(before, kept(".new")), "w");
    fprintf(file, "uuids %u\n", uuids);
    for (unsigned i = 0; i < MOST; i++)
        if (modes[i]) fprintf(file, "mode %u\n", i);
    for (struct cut *c = cuts; c < cuts + MOST; c++)
        if (c->place.size)
            fprintf(file, "instance %u %u %u %u %u %s\n", c->card, c->number, c->profile, c->place.start, c->place.size, c->device.uuid);
    fclose(file);
    return rename(before, kept(""));
}

static struct profile *by_id(unsigned id)
{
    for (struct profile *p = profiles; p < profiles + known; p++)
        if (p->id == id) return p;
    return NULL;
}
static unsigned number_of(struct card *c) { return (unsigned)(c - cards); }
static int whole(struct cut *c) { return c->device.uuid[0] != '-'; }

int nvmlInitWithFlags(unsigned flags) { return flags || !count ? 9 : 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "580.82.07"); return 0; }
int nvmlDeviceGetArchitecture(struct card *c, unsigned *n) { (void)c; *n = 9; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, struct card **out)
{
    for (*out = cards; *out < cards + count; ++*out)
        if (!strcmp((*out)->uuid, uuid)) return 0;
    return NOT_FOUND;
}
int nvmlDeviceGetMigMode(struct card *c, unsigned *now, unsigned *next) { *now = *next = modes[number_of(c)]; return 0; }
int nvmlDeviceSetMigMode(struct card *c, unsigned on, unsigned *status)
{
    for (struct cut *one = cuts; one < cuts + MOST; one++)
        if (one->place.size && one->card == number_of(c)) return IN_USE;
    modes[number_of(c)] = on;
    *status = 0;
    return keep();
}
int nvmlDeviceGetGpuInstanceProfileInfoV(struct card *c, unsigned kind, struct profile_info *out)
{
    (void)c;
    for (struct profile *p = profiles; p < profiles + known; p++) {
        if (p->kind != kind) continue;
        *out = (struct profile_info){out->version, p->id, 0, p->slices, p->most, p->processors, {0}, p->mib, ""};
        memcpy(out->engines, p->engines, sizeof p->engines);
        snprintf(out->name, sizeof out->name, "MIG %s", p->name);
        return 0;
    }
    return NOT_SUPPORTED;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct card *c, unsigned id, struct place *out, unsigned *n)
{
    struct profile *p = by_id(id);
    (void)c;
    if (!p) return NOT_SUPPORTED;
    for (*n = 0; *n < p->places; ++*n) out[*n] = (struct place){p->starts[*n], p->size};
    return 0;
}
int nvmlDeviceGetGpuInstances(struct card *c, unsigned id, struct cut **out, unsigned *n)
{
    *n = 0;
    for (struct cut *one = cuts; one < cuts + MOST; one++)
        if (one->place.size && one->card == number_of(c) && one->profile == id) out[(*n)++] = one;
    return 0;
}
int nvmlDeviceGetGpuInstanceById(struct card *c, unsigned number, struct cut **out)
{
    for (*out = cuts; *out < cuts + MOST; ++*out)
        if ((*out)->place.size && (*out)->card == number_of(c) && (*out)->number == number) return 0;
    return NOT_FOUND;
}
int nvmlGpuInstanceGetInfo(struct cut *one, struct cut_info *out)
{
    *out = (struct cut_info){&cards[one->card], one->number, one->profile, one->place};
    return 0;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(struct card *c, unsigned id, const struct place *at, struct cut **out)
{
    struct profile *p = by_id(id);
    unsigned legal = 0, alike = 0, slices = 0, taken = 0;
    if (!p || !modes[number_of(c)]) return NOT_SUPPORTED;
    for (unsigned i = 0; i < p->places; i++) legal |= p->starts[i] == at->start && p->size == at->size;
    if (!legal) return INVALID;
    *out = NULL;
    for (struct cut *one = cuts; one < cuts + MOST; one++) {
        if (!one->place.size) { *out = *out ? *out : one; continue; }
        if (one->card != number_of(c)) continue;
        if (one->place.start < at->start + at->size && at->start < one->place.start + one->place.size) return INSUFFICIENT;
        alike += one->profile == id;
        slices += by_id(one->profile)->slices;
        taken |= 1u << one->number;
    }
    if (!*out || alike >= p->most || slices + p->slices > 7) return INSUFFICIENT;
    **out = (struct cut){number_of(c), 1, id, *at, {.uuid = "-"}};
    while (taken & 1u << (*out)->number) (*out)->number++; /* numbers are used again */
    return keep();
}
int nvmlGpuInstanceDestroy(struct cut *one)
{
    if (whole(one)) return IN_USE;
    one->place.size = 0;
    return keep();
}
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct cut *one, unsigned kind, unsigned engines, struct compute_profile *out)
{
    static const unsigned slices[] = {1, 2, 3, 4, 7};
    if (engines || kind > 4 || slices[kind] > by_id(one->profile)->slices) return NOT_SUPPORTED;
    *out = (struct compute_profile){out->version, kind, slices[kind], 1, 0, {0}, ""};
    return 0;
}
int nvmlGpuInstanceCreateComputeInstance(struct cut *one, unsigned profile, struct cut **out)
{
    (void)profile;
    if (whole(one)) return INSUFFICIENT;
    snprintf(one->device.uuid, sizeof one->device.uuid, "MIG-00000000-0000-4000-8000-%012u", ++uuids); /* never used again */
    *out = one;
    return keep();
}
int nvmlGpuInstanceGetComputeInstances(struct cut *one, unsigned profile, struct cut **out, unsigned *n)
{
    static const unsigned slices[] = {1, 2, 3, 4, 7};
    *n = whole(one) && slices[profile] == by_id(one->profile)->slices;
    *out = one;
    return 0;
}
int nvmlGpuInstanceGetComputeInstanceById(struct cut *one, unsigned number, struct cut **out) { *out = one; return whole(one) && !number ? 0 : NOT_FOUND; }
int nvmlComputeInstanceGetInfo_v2(struct cut *one, struct compute_info *out)
{
    *out = (struct compute_info){&one->device, one, 0, 0, {0, 0}};
    return 0;
}
int nvmlComputeInstanceDestroy(struct cut *one)
{
    strcpy(one->device.uuid, "-");
    return keep();
}
