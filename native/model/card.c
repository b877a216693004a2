/* The modelled card itself: contexts in slices, streams inside them, marks, barriers, clocks. */
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHANNELS 96
#define THROTTLE_NS (10 * MS) /* the clock is set anew so often */

struct event {
    uint64_t round, over_round, time;
};

struct item {
    struct submission is;
    uint64_t left, order, visible, round, began;
};

struct stream {
    struct item *items;
    uint32_t first, count, room;
    bool free; /* a non-blocking one: it does not wait for the legacy stream */
};

struct channel {
    bool used;
    uint32_t card, count, gathered;
    uint32_t busy; /* a bit for each stream that has work */
    uint64_t served;
    struct stream streams[MODEL_STREAMS];
};

struct card_state {
    uint64_t time, busy, slice, switching, memory;
    uint32_t current;
};

static struct channel channels[CHANNELS];
static uint32_t opened; /* contexts below this index were used at some time */
static struct card_state cards[MODEL_CARDS];
static bool flags[MODEL_FLAGS];
static uint64_t orders;
static const struct model *model;

void card_reset(const struct model *of)
{
    for (uint32_t i = 0; i < CHANNELS; i++) card_close(&channels[i]);
    opened = 0;
    memset(cards, 0, sizeof cards);
    memset(flags, 0, sizeof flags);
    orders = 0;
    model = of;
}

struct event *event_new(void)
{
    struct event *event = calloc(1, sizeof *event);
    if (!event) abort();
    return event;
}

bool event_is_over(const struct event *event) { return event->over_round == event->round; }
uint64_t event_time(const struct event *event) { return event->time; }
void flag_set(uint32_t flag, bool on)
{
    flags[flag % MODEL_FLAGS] = on;
    if (on) card_advance_all(world_now()); /* kernels that spin for it end now */
}

bool card_memory_take(uint32_t card, uint64_t bytes)
{
    if (bytes > MODEL_MEMORY - cards[card].memory) return false;
    cards[card].memory += bytes;
    return true;
}

void card_memory_give(uint32_t card, uint64_t bytes) { cards[card].memory -= bytes; }
uint64_t card_memory_used(uint32_t card) { return cards[card].memory; }

struct channel *card_open(uint32_t card)
{
    for (uint32_t i = 0; i < CHANNELS; i++) {
        if (channels[i].used) continue;
        channels[i] = (struct channel){.used = true, .card = card};
        if (i >= opened) opened = i + 1;
        return &channels[i];
    }
    abort();
}

void card_close(struct channel *channel)
{
    for (uint32_t i = 0; i < MODEL_STREAMS; i++) free(channel->streams[i].items);
    memset(channel, 0, sizeof *channel);
}

static struct item *head(const struct stream *stream) { return stream->count ? &stream->items[stream->first] : NULL; }

static void drop(struct channel *channel, struct stream *stream)
{
    stream->first = (stream->first + 1) % stream->room;
    channel->count--;
    if (--stream->count == 0) channel->busy &= ~(1u << (stream - channel->streams));
}

/* Removes the first stream of a set, and returns it. */
static uint32_t take(uint32_t *set)
{
    uint32_t index = (uint32_t)__builtin_ctz(*set);
    *set &= *set - 1;
    return index;
}

_Static_assert(MODEL_STREAMS <= 32, "a bit for each");

static void push(struct stream *stream, struct item item)
{
    if (stream->count == stream->room) {
        uint32_t room = stream->room ? stream->room * 2 : 16;
        struct item *grown = calloc(room, sizeof *grown);
        if (!grown) abort();
        for (uint32_t i = 0; i < stream->count; i++) grown[i] = stream->items[(stream->first + i) % stream->room];
        free(stream->items);
        *stream = (struct stream){grown, 0, stream->count, room, stream->free};
    }
    stream->items[(stream->first + stream->count++) % stream->room] = item;
}

static bool has_room(void *what) { return ((struct channel *)what)->count < model->channel; }

void card_submit(struct channel *channel, uint32_t stream, struct submission work)
{
    world_until(has_room, channel, MODEL_NEVER);
    struct item item = {.is = work, .left = work.ns ? work.ns : 1, .order = ++orders,
                        .visible = world_now() + model->flush_ns};
    if (work.work == WORK_MARK) item.left = model->mark_ns;
    if (work.work == WORK_MARK) item.round = ++work.event->round;
    if (work.work == WORK_AWAIT) item.round = work.event->round;
    if (item.is.part == 0) item.is.part = 1000;
    channel->count++;
    channel->busy |= 1u << stream % MODEL_STREAMS;
    push(&channel->streams[stream % MODEL_STREAMS], item);
    if (model->gathers && ++channel->gathered >= model->gathers) card_flush(channel);
    card_advance_all(world_now());
}

bool card_is_idle(const struct channel *channel, uint32_t stream) { return channel->streams[stream].count == 0; }
bool card_is_empty(const struct channel *channel) { return channel->count == 0; }
void card_set_blocking(struct channel *channel, uint32_t stream, bool blocking) { channel->streams[stream].free = !blocking; }
uint64_t card_served(const struct channel *channel) { return channel->served; }
uint64_t card_busy(uint32_t card) { return cards[card].busy; }

void card_flush(struct channel *channel)
{
    channel->gathered = 0;
    for (uint32_t left = channel->busy; left;) {
        struct stream *stream = &channel->streams[take(&left)];
        for (uint32_t k = 0; k < stream->count; k++) stream->items[(stream->first + k) % stream->room].visible = 0;
    }
    card_advance_all(world_now());
}

/* A stream's first item, if nothing keeps it from running. */
static struct item *able(const struct channel *channel, uint32_t index, uint64_t time)
{
    struct item *item = head(&channel->streams[index]), *legacy = head(&channel->streams[0]);
    if (!item || item->visible > time) return NULL;
    if (!model->legacy || channel->streams[index].free) return item;
    if (index > 0) return legacy && legacy->order < item->order ? NULL : item;
    for (uint32_t left = channel->busy & ~1u; left;) {
        const struct stream *other = &channel->streams[take(&left)];
        if (!other->free && head(other)->order < item->order) return NULL;
    }
    return item;
}

static void end(struct channel *channel, struct stream *stream, struct item *item, uint64_t time)
{
    if (item->is.work == WORK_MARK && item->round == item->is.event->round) {
        item->is.event->over_round = item->round;
        item->is.event->time = time;
    }
    if (item->is.sets) flags[item->is.sets % MODEL_FLAGS] = true;
    drop(channel, stream);
}

/* Ends items that take no time of the card; true if there were any. */
static bool pass_free(struct channel *channel, uint64_t time)
{
    bool any = false;
    for (uint32_t left = channel->busy; left;) {
        uint32_t i = take(&left);
        struct item *item = able(channel, i, time);
        if (!item) continue;
        bool over = false;
        if (item->is.work == WORK_MARK) over = item->left == 0;
        if (item->is.work == WORK_AWAIT) over = item->is.event->round != item->round || event_is_over(item->is.event);
        if (item->is.work == WORK_SPIN) over = flags[item->is.flag % MODEL_FLAGS];
        if (item->is.work == WORK_HOST && !item->began) item->began = time + 1;
        if (item->is.work == WORK_HOST) over = item->is.host ? item->is.host(item->is.data) : time + 1 >= item->began + item->is.ns;
        if (over) end(channel, &channel->streams[i], item, time);
        any |= over;
    }
    return any;
}

static bool uses_card(const struct item *item) { return item && (item->is.work == WORK_KERNEL || item->is.work == WORK_SPIN || item->is.work == WORK_MARK); }

/* A context's running items: each stream's first, or only the one of these that was submitted first. */
static uint32_t running(const struct channel *channel, uint64_t time, struct item **list)
{
    uint32_t count = 0;
    for (uint32_t left = channel->busy; left;) {
        struct item *item = able(channel, take(&left), time);
        if (!uses_card(item)) continue;
        if (model->overlaps || count == 0) list[count++] = item;
        else if (item->order < list[0]->order) list[0] = item;
    }
    return count;
}

static struct channel *choose(uint32_t index, bool *shared)
{
    struct card_state *card = &cards[index];
    struct item *list[MODEL_STREAMS];
    struct channel *next = NULL;
    uint32_t ready = 0;
    bool runs = false;
    for (uint32_t i = 1; i <= opened; i++) {
        uint32_t at = (card->current + i) % opened;
        if (!channels[at].busy || channels[at].card != index || !running(&channels[at], card->time, list)) continue;
        ready++;
        runs |= at == card->current;
        if (!next) next = &channels[at];
    }
    *shared = ready > 1;
    if (runs && (ready == 1 || card->slice > 0)) return &channels[card->current];
    if (!next) return NULL;
    if ((uint32_t)(next - channels) != card->current) card->switching = model->switch_ns;
    card->current = (uint32_t)(next - channels);
    card->slice = model->slice_ns;
    return next;
}

static uint64_t rate(uint64_t time)
{
    if (!model->throttle) return 1000;
    return 1000 + (time / THROTTLE_NS * 0x9e3779b97f4a7c15ull >> 40) % (model->throttle + 1ull);
}

/* The time at which something off the card begins or ends by itself. */
static uint64_t next_free(uint32_t index, uint64_t time, uint64_t until)
{
    for (uint32_t i = 0; i < opened; i++) {
        if (index < MODEL_CARDS && channels[i].card != index) continue;
        for (uint32_t left = channels[i].busy; left;) {
            const struct item *item = head(&channels[i].streams[take(&left)]);
            if (item->visible > time && item->visible < until) until = item->visible;
            if (item->is.work == WORK_HOST && !item->is.host && item->began && item->began + item->is.ns - 1 > time &&
                item->began + item->is.ns - 1 < until)
                until = item->began + item->is.ns - 1;
        }
    }
    return until;
}

/* The time until the first of a context's running items ends, with all of them on the card. */
static uint64_t first_end(struct item **list, uint32_t count, uint64_t slow, uint64_t *whole)
{
    uint64_t parts = 0, least = MODEL_NEVER;
    for (uint32_t i = 0; i < count; i++) parts += list[i]->is.work == WORK_MARK ? 0 : list[i]->is.part;
    *whole = (parts > 1000 ? parts : 1000) * slow / 1000;
    for (uint32_t i = 0; i < count; i++) {
        if (list[i]->is.work == WORK_SPIN) continue;
        uint64_t span = (list[i]->left * *whole + 999) / 1000;
        if (span < least) least = span;
    }
    return least;
}

static void step(uint32_t index, uint64_t until)
{
    struct card_state *card = &cards[index];
    struct item *list[MODEL_STREAMS];
    bool shared;
    for (uint32_t i = 0; i < opened; i++)
        while (channels[i].busy && channels[i].card == index && pass_free(&channels[i], card->time)) {
        }
    struct channel *channel = choose(index, &shared);
    uint64_t next = next_free(index, card->time, until), whole, span = next - card->time;
    if (!channel) {
        card->time = next;
        return;
    }
    if (card->switching) {
        span = span < card->switching ? span : card->switching;
        card->switching -= span;
        card->time += span;
        return;
    }
    uint32_t count = running(channel, card->time, list);
    uint64_t least = first_end(list, count, rate(card->time), &whole);
    uint64_t clock = THROTTLE_NS - card->time % THROTTLE_NS;
    if (least < span) span = least;
    if (model->throttle && clock < span) span = clock;
    if (shared && card->slice < span) span = card->slice ? card->slice : 1;
    card->time += span;
    card->busy += span;
    channel->served += span;
    card->slice -= span < card->slice ? span : card->slice;
    for (uint32_t i = 0; i < count; i++) {
        if (list[i]->is.work == WORK_SPIN) continue;
        uint64_t done = span == least && (list[i]->left * whole + 999) / 1000 == least ? list[i]->left : span * 1000 / whole;
        list[i]->left -= done < list[i]->left ? done : list[i]->left;
    }
    for (uint32_t left = channel->busy; left;) {
        uint32_t i = take(&left);
        struct item *item = head(&channel->streams[i]);
        if (uses_card(item) && item->is.work != WORK_SPIN && item->left == 0 && able(channel, i, card->time))
            end(channel, &channel->streams[i], item, card->time);
    }
}

void card_advance_all(uint64_t until)
{
    bool any = true;
    for (uint32_t i = 0; i < MODEL_CARDS; i++)
        while (cards[i].time < until) step(i, until);
    /* One card may wait for a flag that another sets. */
    while (any) {
        any = false;
        for (uint32_t k = 0; k < opened; k++)
            if (channels[k].busy) any |= pass_free(&channels[k], cards[channels[k].card].time);
    }
}

uint64_t card_next_change(void)
{
    uint64_t next = next_free(MODEL_CARDS, world_now(), MODEL_NEVER);
    for (uint32_t i = 0; i < MODEL_CARDS; i++) {
        struct item *list[MODEL_STREAMS];
        for (uint32_t k = 0; k < opened; k++) {
            uint64_t whole, least;
            if (!channels[k].busy || channels[k].card != i) continue;
            least = first_end(list, running(&channels[k], cards[i].time, list), rate(cards[i].time), &whole);
            if (least != MODEL_NEVER && cards[i].time + least + cards[i].switching < next)
                next = cards[i].time + least + cards[i].switching;
        }
    }
    return next > world_now() || next == MODEL_NEVER ? next : world_now() + 1;
}
