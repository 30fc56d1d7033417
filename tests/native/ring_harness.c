/* SPDX-License-Identifier: Apache-2.0 */
#include "ring_harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "ring.h"

struct ring_box {
    struct ring ring;
    uint64_t to_put; /* by the other thread */
    uint64_t *values;
};

struct ring_box *ring_box_new(uint32_t size, uint32_t first) {
    struct ring_box *box = aligned_alloc(64, (sizeof *box + 63) & ~(size_t)63);

    if (box == NULL)
        return NULL;
    box->values = calloc(size, sizeof *box->values);
    if (box->values == NULL) {
        free(box);
        return NULL;
    }
    ring_init(&box->ring, size);
    atomic_init(&box->ring.head, first);
    atomic_init(&box->ring.tail, first);
    return box;
}

void ring_box_free(struct ring_box *box) {
    free(box->values);
    free(box);
}

bool ring_box_put(struct ring_box *box, uint64_t value) {
    uint32_t slot;

    if (!ring_free(&box->ring, &slot))
        return false;
    box->values[slot] = value;
    ring_push(&box->ring);
    return true;
}

bool ring_box_take(struct ring_box *box, uint64_t *value) {
    uint32_t slot;

    if (!ring_next(&box->ring, &slot))
        return false;
    *value = box->values[slot];
    ring_pop(&box->ring);
    return true;
}

uint32_t ring_box_count(const struct ring_box *box) { return ring_count(&box->ring); }

static void *put_all(void *argument) {
    struct ring_box *box = argument;

    for (uint64_t value = 0; value < box->to_put; value++) {
        while (!ring_box_put(box, value))
            sched_yield();
    }
    return NULL;
}

uint64_t ring_box_race(struct ring_box *box, uint64_t count) {
    pthread_t producer;
    uint64_t wrong = 0;

    box->to_put = count;
    if (pthread_create(&producer, NULL, put_all, box) != 0)
        return count;
    for (uint64_t expected = 0; expected < count; expected++) {
        uint64_t value;

        while (!ring_box_take(box, &value))
            sched_yield();
        wrong += value != expected;
    }
    pthread_join(producer, NULL);
    return wrong;
}
