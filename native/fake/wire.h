/* Between the modelled card (fake/card.c) and the stand-ins for the driver: one request, at most one answer. */
#ifndef FAKE_WIRE_H
#define FAKE_WIRE_H

#include <stdint.h>

#define FAKE_SOCKET "FAKE_GPU_SOCKET" /* environment: path of the modelled cards' socket */
#define FAKE_INSTANT "instant"         /* in its place: no card, every call succeeds at once (for timing callers) */
#define FAKE_NEWER "FAKE_GPU_NEWER"    /* environment: the driver also answers a question of newer ones (a pool's place) */
#define FAKE_KEEPS "FAKE_GPU_KEEPS"    /* environment: a pool that had memory keeps some as long as it exists */
#define FAKE_FAULT "FAKE_GPU_FAULT"    /* environment: pools return this error, as after a kernel's fault */
#define FAKE_ENDLESS "FAKE_GPU_ENDLESS" /* environment: no stream accepts a mark by an event of even number, such as those of ends */
#define FAKE_SLOW "FAKE_GPU_SLOW"      /* environment: launches of graphs and ends of events return long after what they did */
#define FAKE_EVENTS 1024 /* of one client; an event is its number + FAKE_EVENTS * how often it was recorded */
#define FAKE_CARDS 4

enum request_kind {
    ASK_HELLO = 1,    /* a: client, b: pid                     -> a: cards */
    ASK_MEMORY_TAKE,  /* card, a: bytes                        -> result */
    ASK_MEMORY_GIVE,  /* card, a: bytes, b: name of it or 0     no answer */
    ASK_MEMORY_INFO,  /* card                                  -> a: total, b: used */
    ASK_CONTEXT_NEW,  /* card                                  -> a: context */
    ASK_CONTEXT_END,  /* context                               -> */
    ASK_KERNEL,       /* context, stream, a: ns, b: made at    no answer */
    ASK_MARK,         /* context, stream, a: event, b: made at no answer */
    ASK_EVENT,        /* a: event                              -> result, a: time */
    ASK_EVENT_WAIT,   /* a: event                              -> when it is over */
    ASK_STREAM,       /* context, stream                       -> result */
    ASK_STREAM_WAIT,  /* context, stream                       -> when it is empty */
    ASK_CONTEXT_WAIT, /* context                               -> when it is empty */
    ASK_SERVED,       /* card, a: pid                          -> a: device ns of the process, b: of all */
    ASK_PAUSE,        /* context, stream, a: ns, b: made at    no answer; the card does nothing for it meanwhile */
    ASK_AWAIT,        /* context, stream, a: event, b: made at no answer; until the event is over */
    ASK_MEMORY_OPEN,  /* card, a: bytes, b: name               no answer; it stays until it is closed, even if its owner gives it */
    ASK_MEMORY_CLOSE, /* card, b: name                         no answer */
};

struct request {
    uint32_t kind, card;
    uint64_t context, stream, a, b;
};

struct answer {
    int32_t result;
    uint32_t pad;
    uint64_t a, b;
};

#endif
