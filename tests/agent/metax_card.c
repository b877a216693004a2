/* Stand-in for libmxsml.so: two cards and one part of a card. FAKE_METAX_BROKEN
 * makes the library refuse to start. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct info {
    unsigned device, kind; char bus[32]; unsigned gpu, node; char uuid[96]; unsigned brand, mode; char name[32];
};
struct memory { long visible, visible_used, total, used, other, other_used; };

unsigned mxSmlInit(void) { return getenv("FAKE_METAX_BROKEN") ? 7 : 0; }
unsigned mxSmlGetDeviceCount(void) { return 3; }
unsigned mxSmlGetDeviceInfo(unsigned index, struct info *info)
{
    memset(info, 0, sizeof *info);
    info->device = index;
    info->mode = index == 2 ? 2 : 0;
    snprintf(info->bus, sizeof info->bus, "0000:%02x:00.0", 0x38 + index);
    snprintf(info->uuid, sizeof info->uuid, "89033010-2354-0000-0000-00000000000%u", index);
    snprintf(info->name, sizeof info->name, "MetaX C500");
    return 0;
}
unsigned mxSmlGetMemoryInfo(unsigned index, struct memory *memory)
{
    *memory = (struct memory){.total = index == 1 ? -5 : 64L << 20};
    return 0;
}
