#include "limits.h"
#include <string.h>

struct reader {
    const char *at, *end;
    uint32_t line;
    const char *why;
};

/* Reads "key value\n"; copies the value. False, with `why`, if the line is anything else. */
static bool field(struct reader *reader, const char *key, char *value, size_t room)
{
    size_t length = strlen(key);
    const char *stop = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
    reader->line++;
    reader->why = "the line is missing or has another key";
    if (!stop || (size_t)(stop - reader->at) < length + 2) return false;
    if (memcmp(reader->at, key, length) != 0 || reader->at[length] != ' ') return false;
    const char *from = reader->at + length + 1;
    size_t size = (size_t)(stop - from);
    reader->why = "the value is too long";
    if (size >= room) return false;
    for (size_t i = 0; i < size; i++) {
        reader->why = "the value has a blank or a control character";
        if (from[i] <= ' ' || from[i] > '~') return false;
        value[i] = from[i];
    }
    value[size] = 0;
    reader->at = stop + 1;
    return true;
}

static bool number(struct reader *reader, const char *key, uint64_t most, uint64_t *result)
{
    char text[24];
    uint64_t value = 0;
    if (!field(reader, key, text, sizeof text)) return false;
    reader->why = "the number is malformed or out of range";
    if (text[0] == '0' && text[1] != 0) return false;
    for (const char *digit = text; *digit; digit++) {
        if (*digit < '0' || *digit > '9') return false;
        uint64_t next = (uint64_t)(*digit - '0');
        if (value > (UINT64_MAX - next) / 10) return false;
        value = value * 10 + next;
    }
    *result = value;
    return value <= most;
}

static bool name(struct reader *reader, const char *key, char *value)
{
    if (!field(reader, key, value, NAME_BYTES)) return false;
    reader->why = "the file name must not begin with a dot or have a slash";
    return value[0] != '.' && strchr(value, '/') == NULL;
}

static bool choice(struct reader *reader, const char *key, const char *const *names, uint32_t *result)
{
    char text[NAME_BYTES];
    if (!field(reader, key, text, sizeof text)) return false;
    reader->why = "the word is not one that this key allows";
    for (*result = 0; names[*result]; ++*result)
        if (strcmp(names[*result], text) == 0) return true;
    return false;
}

static bool identity(struct reader *reader, uint64_t *result)
{
    char text[24];
    if (!field(reader, "container", text, sizeof text)) return false;
    reader->why = "the container's number must have 1 to 16 hexadecimal digits and must not be zero";
    *result = 0;
    if (strlen(text) > 16) return false;
    for (const char *digit = text; *digit; digit++) {
        const char *known = strchr("0123456789abcdef", *digit);
        if (!known) return false;
        *result = *result << 4 | (uint64_t)(known - "0123456789abcdef");
    }
    return *result != 0;
}

static bool card(struct reader *reader, struct card_limits *card)
{
    static const char *const policies[] = {"best-effort", "fixed-share", "burst-share", "none", NULL};
    static const char *const priorities[] = {"offline", "ordinary", "online", NULL};
    uint64_t slot = 0, core = 0;
    uint32_t policy = 0, priority = 0;
    bool good = field(reader, "card", card->uuid, sizeof card->uuid) && name(reader, "seats", card->seats) &&
                number(reader, "slot", SEATS - 1, &slot) &&
                number(reader, "memory", UINT64_MAX / 4, &card->memory) &&
                number(reader, "core", 1000, &core) && choice(reader, "policy", policies, &policy) &&
                choice(reader, "priority", priorities, &priority) &&
                number(reader, "swap", UINT64_MAX / 4, &card->swap) &&
                number(reader, "context", UINT64_MAX / 4, &card->context);
    if (!good) return false;
    card->slot = (uint32_t)slot;
    card->core = (uint32_t)core;
    card->policy = (enum policy)policy;
    card->priority = (enum priority)priority;
    reader->why = "a quota of zero needs the policy best-effort or none";
    return core > 0 || policy == POLICY_BEST_EFFORT || policy == POLICY_NONE;
}

static bool at_end(struct reader *reader)
{
    return reader->end - reader->at == 4 && memcmp(reader->at, "end\n", 4) == 0;
}

static bool whole(struct reader *reader, struct limits *limits)
{
    char version[8];
    if (!field(reader, "partage-limits", version, sizeof version)) return false;
    reader->why = "the library reads version 2 only";
    if (strcmp(version, "2") != 0) return false;
    if (!identity(reader, &limits->container) || !name(reader, "account", limits->account)) return false;
    while (!at_end(reader)) {
        reader->why = "the file names more cards than a container can have";
        if (limits->count == CARDS) return false;
        struct card_limits *next = &limits->cards[limits->count];
        if (!card(reader, next)) return false;
        for (uint32_t i = 0; i < limits->count; i++) {
            reader->why = "the file names a card twice";
            if (strcmp(limits->cards[i].uuid, next->uuid) == 0) return false;
        }
        limits->count++;
    }
    return true;
}

uint32_t limits_parse(const char *text, size_t length, struct limits *limits, const char **why)
{
    struct reader reader = {text, text + length, 0, "the file is empty"};
    memset(limits, 0, sizeof *limits);
    *why = NULL;
    if (length <= LIMITS_BYTES && whole(&reader, limits)) return 0;
    *why = length <= LIMITS_BYTES ? reader.why : "the file is too long";
    memset(limits, 0, sizeof *limits);
    return reader.line ? reader.line : 1;
}
