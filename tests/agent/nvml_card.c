/* Stand-in for libnvidia-ml.so.1. The file named by FAKE_NVML has a line a card:
 *   index minor uuid name memory bus mig lost id
 * with the product id in hexadecimal, or left out, _ for a space in the name, and lines "xid index number", each reported once a load;
 * mig is 0 or 1, or, for a card that does not report its mode, the error's code less one;
 * "process index pid bytes" (bytes 0: the driver does not report), "time index pid percent stamp" (a card in MIG mode does not report);
 * "instance index number uuid start size busy cycles" (busy: those of all cycles in which multiprocessors worked) with "gpm 1";
 * without that line the driver has no counters of instances (0: the card has none);
 * the driver's version is FAKE_DRIVER, or 550.54.15; cards 0 and 1 are joined by two NVLinks, or every card is joined to each NVSwitch of a line "switch address". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct card { unsigned minor, mig, lost, id; char uuid[80], name[80], bus[32]; unsigned long long memory; };
struct memory { unsigned long long total, free, used; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };
struct event { struct card *card; unsigned long long kind, data; unsigned gi, ci; };
struct process { unsigned pid; unsigned long long used; unsigned gi, ci; };
static struct { unsigned card; struct process one; } processes[64];
static unsigned running;
struct sample { unsigned pid; unsigned long long stamp; unsigned sm, memory, encoder, decoder; };
static struct { unsigned card; struct sample one; } samples[64];
static unsigned sampled;
static struct card cards[16], mig_devices[64];
static struct instance { unsigned card, number, start, size; unsigned long long busy, cycles; } instances[64];
static unsigned made, gpm, switches;
static char switched[6][32];
struct instance_info { void *device; unsigned id, profile, start, size; };
struct counters { unsigned long long busy, cycles; };
struct metric { unsigned id; int status; double value; const char *names[3]; };
struct metrics { unsigned version, asked; struct counters *before, *after; struct metric metrics[1]; };
struct support { unsigned version, there; };
static int samples_out;
static unsigned count, xids[64][2], pending, taken, listening[16];

static void load(void)
{
    FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");
    char line[400];
    unsigned seen = 0;
    count = running = sampled = made = switches = 0;
    gpm = 2;
    while (file && fgets(line, sizeof line, file)) {
        unsigned index, number, percent;
        unsigned long long bytes;
        if (sscanf(line, "process %u %u %llu", &index, &number, &bytes) == 3) {
            if (running < 64) {
                processes[running].card = index;
                processes[running++].one = (struct process){number, bytes ? bytes : ~0ull, 0, 0};
            }
        } else if (sscanf(line, "time %u %u %u %llu", &index, &number, &percent, &bytes) == 4) {
            if (sampled < 64) {
                samples[sampled].card = index;
                samples[sampled++].one = (struct sample){number, bytes, percent, 0, 0, 0};
            }
        } else if (switches < 6 && sscanf(line, "switch %31s", switched[switches]) == 1) {
            switches++;
        } else if (sscanf(line, "gpm %u", &number) == 1) {
            gpm = number;
        } else if (sscanf(line, "instance %u %u", &index, &number) == 2) {
            struct instance *i = &instances[made];
            if (made < 64 && sscanf(line, "instance %u %u %79s %u %u %llu %llu", &i->card, &i->number,
                                    mig_devices[made].uuid, &i->start, &i->size, &i->busy, &i->cycles) == 7)
                made++;
        } else if (sscanf(line, "xid %u %u", &index, &number) == 2) {
            if (seen++ >= pending) { xids[pending][0] = index; xids[pending++][1] = number; }
        } else if (count < 16) {
            struct card *c = &cards[count];
            c->id = 0;
            if (sscanf(line, "%u %u %79s %79s %llu %31s %u %u %x", &index, &c->minor, c->uuid, c->name,
                       &c->memory, c->bus, &c->mig, &c->lost, &c->id) >= 8) {
                for (char *p = c->name; *p; p++) if (*p == '_') *p = ' ';
                count++;
            }
        }
    }
    if (file) fclose(file);
}

int nvmlInitWithFlags(unsigned flags) { memset(listening, 0, sizeof listening); load(); return flags || !count ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
void fake_reset(void) { pending = taken = 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "refused"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { load(); snprintf(text, n, "%s", getenv("FAKE_DRIVER") ? getenv("FAKE_DRIVER") : "550.54.15"); return count ? 0 : 9; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct card **c) { *c = &cards[i]; return i < count ? 0 : 2; }
int nvmlDeviceGetUUID(struct card *c, char *text, unsigned n) { snprintf(text, n, "%s", c->uuid); return c->lost ? 15 : 0; }
int nvmlDeviceGetName(struct card *c, char *text, unsigned n) { snprintf(text, n, "%s", c->name); return 0; }
int nvmlDeviceGetArchitecture(struct card *c, unsigned *n) { (void)c; *n = 7; return 0; }
int nvmlDeviceGetMinorNumber(struct card *c, unsigned *n) { *n = c->minor; return 0; }
int nvmlDeviceGetMemoryInfo(struct card *c, struct memory *m) { *m = (struct memory){c->memory, c->memory, 0}; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(struct card *c, unsigned *n, struct process *out)
{
    unsigned room = *n;
    *n = 0;
    for (unsigned i = 0; i < running; i++) {
        if (processes[i].card != (unsigned)(c - cards)) continue;
        if (*n < room) out[*n] = processes[i].one;
        ++*n;
    }
    return *n > room ? 7 : 0;
}
int nvmlDeviceGetProcessUtilization(struct card *c, struct sample *out, unsigned *n, unsigned long long since)
{
    unsigned room = *n;
    *n = 0;
    if (c->mig) return 3;
    for (unsigned i = 0; i < sampled; i++) {
        if (samples[i].card != (unsigned)(c - cards) || samples[i].one.stamp <= since) continue;
        if (out && *n < room) out[*n] = samples[i].one;
        ++*n;
    }
    return !*n ? 6 : *n > room ? 7 : 0;
}
int nvmlDeviceGetPciInfo_v3(struct card *c, struct pci *p) { memset(p, 0, sizeof *p); strcpy(p->address, c->bus); p->id = c->id; return 0; }
int nvmlDeviceGetMigMode(struct card *c, unsigned *now, unsigned *next) { *now = *next = c->mig; return c->mig > 1 ? (int)c->mig + 1 : 0; }
int nvmlDeviceGetNvLinkState(struct card *c, unsigned link, unsigned *on)
{
    *on = link < (switches ? switches : 2);
    return (switches || c - cards < 2) && link < 4 ? 0 : 2;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(struct card *c, unsigned link, unsigned *kind)
{
    (void)c; (void)link;
    *kind = switches ? 2 : 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct card *c, unsigned link, struct pci *p)
{
    if (!switches) return nvmlDeviceGetPciInfo_v3(&cards[1 - (c - cards)], p);
    memset(p, 0, sizeof *p);
    strcpy(p->address, switched[link]);
    return 0;
}
int nvmlEventSetCreate(void **set) { *set = cards; return 0; }
int nvmlEventSetFree(void *set) { (void)set; return 0; }
int nvmlDeviceRegisterEvents(struct card *c, unsigned long long kinds, void *set) { (void)kinds; (void)set; listening[c - cards] = 1; return 0; }
int nvmlEventSetWait_v2(void *set, struct event *e, unsigned wait)
{
    (void)set; (void)wait;
    while (taken < pending && !listening[xids[taken][0]]) taken++;
    if (taken >= pending) return 10;
    *e = (struct event){&cards[xids[taken][0]], 8, xids[taken][1], 0, 0};
    taken++;
    return 0;
}
static struct instance *instance_of(struct card *c, unsigned number)
{
    for (unsigned i = 0; i < made; i++)
        if (instances[i].card == (unsigned)(c - cards) && instances[i].number == number) return &instances[i];
    return NULL;
}
int nvmlDeviceGetMaxMigDeviceCount(struct card *c, unsigned *n) { *n = c->mig ? 7 : 0; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(struct card *c, unsigned index, struct card **out)
{
    for (unsigned i = 0; i < made; i++)
        if (instances[i].card == (unsigned)(c - cards) && index-- == 0) { *out = &mig_devices[i]; return 0; }
    return 6;
}
int nvmlDeviceGetGpuInstanceId(struct card *device, unsigned *number) { *number = instances[device - mig_devices].number; return 0; }
int nvmlDeviceGetGpuInstanceById(struct card *c, unsigned number, struct instance **out)
{
    *out = instance_of(c, number);
    return *out ? 0 : 6;
}
int nvmlGpuInstanceGetInfo(struct instance *i, struct instance_info *out)
{
    *out = (struct instance_info){&cards[i->card], i->number, 0, i->start, i->size};
    return 0;
}
int nvmlGpmQueryDeviceSupport(struct card *c, struct support *out)
{
    (void)c;
    out->there = gpm;
    return out->version != 1 ? 25 : gpm == 2 ? 3 : 0;
}
int nvmlGpmSampleAlloc(struct counters **out) { samples_out++; return (*out = calloc(1, sizeof **out)) ? 0 : 20; }
int nvmlGpmSampleFree(struct counters *one) { samples_out--; free(one); return 0; }
int fake_samples(void) { return samples_out; }
int nvmlGpmMigSampleGet(struct card *c, unsigned number, struct counters *out)
{
    struct instance *i = instance_of(c, number);
    if (!i) return 6;
    *out = (struct counters){i->busy, i->cycles};
    return 0;
}
int nvmlGpmMetricsGet(struct metrics *m)
{
    struct counters *a = m->before, *b = m->after;
    if (m->version != 1 || m->asked != 1 || m->metrics[0].id != 2) return 2;
    m->metrics[0].status = b->cycles <= a->cycles ? 999 : 0;
    m->metrics[0].value = m->metrics[0].status ? 0 : 100.0 * (double)(b->busy - a->busy) / (double)(b->cycles - a->cycles);
    return 0;
}
