/* SPDX-License-Identifier: Apache-2.0 */
/* Plane, EV and probe events waiting to be polled: a bounded queue that counts what it cannot keep.
 *
 * Completions do not pass through here: they are kept with what completed and never dropped.
 */
#ifndef EVENTS_H
#define EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "mrc.h"

struct events {
    mrc_event *ring;
    uint32_t size;
    uint32_t head;
    uint32_t count;
    uint64_t dropped;
};

static inline void events_add(struct events *events, const mrc_event *event) {
    if (events->count == events->size) {
        events->dropped++;
        return;
    }
    events->ring[(events->head + events->count++) % events->size] = *event;
}

static inline bool events_take(struct events *events, mrc_event *event) {
    if (events->count == 0)
        return false;
    *event = events->ring[events->head];
    events->head = (events->head + 1) % events->size;
    events->count--;
    return true;
}

#endif
