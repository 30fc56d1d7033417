/* SPDX-License-Identifier: Apache-2.0 */
/* What happens next: a calendar of events in order of (time, what).
 *
 * An event is a number that its owner understands. Two at one time come out in order of their
 * numbers, never of their arrival, so that a run does not depend on who was scheduled first.
 * Nearest events stand in a heap, those within the calendar's year in its buckets, the rest in a
 * second heap. Measured against one 4-ary heap: csrc/README.md.
 */
#ifndef SIM_EVENT_QUEUE_H
#define SIM_EVENT_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

enum { EVENT_BUCKETS = 8192 };

struct event {
    int64_t time; /* ps, not negative */
    uint32_t what;
};

/* A 4-ary heap: the four children of one share a cache line. */
struct event_heap {
    struct event *events;
    uint32_t count;
    uint32_t room;
};

/* An event of a bucket. */
struct event_node {
    int64_t time;
    uint32_t what;
    uint32_t next; /* index plus one; 0: last */
};

struct event_queue {
    struct event_heap near; /* before `horizon` */
    struct event_heap far;  /* from a year after it on */
    int64_t horizon;        /* end of the bucket that was poured into `near`; a multiple of width */
    uint32_t shift;         /* a bucket is 2^shift ps wide */
    uint64_t turns;         /* of the calendar: `near` was empty before each */
    uint32_t in_buckets;
    uint32_t buckets[EVENT_BUCKETS]; /* by time >> shift; first node plus one */
    uint64_t filled[EVENT_BUCKETS / 64];
    struct event_node *nodes;
    uint32_t node_count;
    uint32_t node_room;
    uint32_t free; /* first free node plus one */
    bool has_failed; /* memory ran out: events were lost */
};

/* Empty, at time 0. */
void event_queue_init(struct event_queue *queue, uint32_t shift);
void event_queue_free(struct event_queue *queue);

/* Bytes that it has taken. */
uint64_t event_queue_bytes(const struct event_queue *queue);

/* `time` is not before the last event that came out. */
void event_queue_push(struct event_queue *queue, int64_t time, uint32_t what);

/* The earliest event stays; false when there is none. */
bool event_queue_peek(struct event_queue *queue, struct event *event);

/* Takes the event that event_queue_peek showed last. */
void event_queue_pop(struct event_queue *queue);

#endif
