/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/event_queue.h"

#include <stdlib.h>
#include <string.h>

enum { ARITY = 4, ROOM = 1024 };

/* ---- Heap ---- */

static bool is_before(struct event a, struct event b) {
    return a.time != b.time ? a.time < b.time : a.what < b.what;
}

static bool grow(void **items, uint32_t *room, size_t size) {
    uint32_t wanted = *room != 0 ? 2 * *room : ROOM;
    void *larger = wanted > *room ? realloc(*items, wanted * size) : NULL;

    if (larger == NULL)
        return false;
    *items = larger;
    *room = wanted;
    return true;
}

static bool heap_push(struct event_heap *heap, struct event event) {
    void *events = heap->events;
    uint32_t at;

    if (heap->count == heap->room) {
        if (!grow(&events, &heap->room, sizeof *heap->events))
            return false;
        heap->events = events;
    }
    at = heap->count++;
    while (at > 0 && is_before(event, heap->events[(at - 1) / ARITY])) {
        heap->events[at] = heap->events[(at - 1) / ARITY];
        at = (at - 1) / ARITY;
    }
    heap->events[at] = event;
    return true;
}

static void heap_pop(struct event_heap *heap) {
    struct event last = heap->events[--heap->count];
    uint32_t at = 0;

    for (uint32_t child = 1; child < heap->count; child = ARITY * at + 1) {
        uint32_t end = child + ARITY < heap->count ? child + ARITY : heap->count;
        uint32_t least = child;

        for (uint32_t i = child + 1; i < end; i++)
            least = is_before(heap->events[i], heap->events[least]) ? i : least;
        if (!is_before(heap->events[least], last))
            break;
        heap->events[at] = heap->events[least];
        at = least;
    }
    heap->events[at] = last;
}

/* ---- Buckets ---- */

static uint32_t bucket_of(const struct event_queue *queue, int64_t time) {
    return (uint32_t)(time >> queue->shift) % EVENT_BUCKETS;
}

static int64_t year(const struct event_queue *queue) {
    return (int64_t)EVENT_BUCKETS << queue->shift;
}

static bool bucket_push(struct event_queue *queue, struct event event) {
    uint32_t bucket = bucket_of(queue, event.time);
    uint32_t node = queue->free;
    void *nodes = queue->nodes;

    if (node != 0) {
        queue->free = queue->nodes[node - 1].next;
    } else {
        if (queue->node_count == queue->node_room) {
            if (!grow(&nodes, &queue->node_room, sizeof *queue->nodes))
                return false;
            queue->nodes = nodes;
        }
        node = ++queue->node_count;
    }
    queue->nodes[node - 1] = (struct event_node){event.time, event.what, queue->buckets[bucket]};
    queue->buckets[bucket] = node;
    queue->filled[bucket / 64] |= 1ull << bucket % 64;
    queue->in_buckets++;
    return true;
}

/* The first filled bucket from `from` on, round the year; there is one. */
static uint32_t first_filled(const struct event_queue *queue, uint32_t from) {
    uint32_t word = from / 64;
    uint64_t bits = queue->filled[word] & ~0ull << from % 64;

    while (bits == 0) {
        word = (word + 1) % (EVENT_BUCKETS / 64);
        bits = queue->filled[word];
    }
    return word * 64 + (uint32_t)__builtin_ctzll(bits);
}

static void pour(struct event_queue *queue, uint32_t bucket) {
    uint32_t node = queue->buckets[bucket];

    queue->buckets[bucket] = 0;
    queue->filled[bucket / 64] &= ~(1ull << bucket % 64);
    while (node != 0) {
        struct event_node *at = &queue->nodes[node - 1];
        uint32_t next = at->next;

        if (!heap_push(&queue->near, (struct event){at->time, at->what}))
            queue->has_failed = true;
        at->next = queue->free;
        queue->free = node;
        queue->in_buckets--;
        node = next;
    }
}

static void put(struct event_queue *queue, struct event event) {
    bool has_room;

    if (event.time < queue->horizon)
        has_room = heap_push(&queue->near, event);
    else if (event.time < queue->horizon + year(queue))
        has_room = bucket_push(queue, event);
    else
        has_room = heap_push(&queue->far, event);
    queue->has_failed = queue->has_failed || !has_room;
}

/* `near` is empty: the calendar turns to the next bucket that has something. */
static void turn(struct event_queue *queue) {
    int64_t width = (int64_t)1 << queue->shift;
    uint32_t bucket;

    queue->turns++;
    if (queue->in_buckets == 0) {
        queue->horizon = (queue->far.events[0].time >> queue->shift << queue->shift) + width;
    } else {
        uint32_t now = bucket_of(queue, queue->horizon);

        bucket = first_filled(queue, now);
        queue->horizon += (int64_t)((bucket - now) % EVENT_BUCKETS + 1) << queue->shift;
        pour(queue, bucket);
    }
    while (queue->far.count > 0 && queue->far.events[0].time < queue->horizon + year(queue)) {
        struct event event = queue->far.events[0];

        heap_pop(&queue->far);
        put(queue, event);
    }
}

/* ---- The queue ---- */

void event_queue_init(struct event_queue *queue, uint32_t shift) {
    memset(queue, 0, sizeof *queue);
    queue->shift = shift;
}

void event_queue_free(struct event_queue *queue) {
    free(queue->near.events);
    free(queue->far.events);
    free(queue->nodes);
}

uint64_t event_queue_bytes(const struct event_queue *queue) {
    return ((uint64_t)queue->near.room + queue->far.room) * sizeof *queue->near.events +
           (uint64_t)queue->node_room * sizeof *queue->nodes;
}

void event_queue_push(struct event_queue *queue, int64_t time, uint32_t what) {
    put(queue, (struct event){time, what});
}

bool event_queue_peek(struct event_queue *queue, struct event *event) {
    while (queue->near.count == 0) {
        if (queue->in_buckets == 0 && queue->far.count == 0)
            return false;
        turn(queue);
    }
    *event = queue->near.events[0];
    return true;
}

void event_queue_pop(struct event_queue *queue) { heap_pop(&queue->near); }
