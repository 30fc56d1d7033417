/* SPDX-License-Identifier: Apache-2.0 */
#include "timer_heap.h"

#include <assert.h>

void timer_heap_init(struct timer_heap *timers, int64_t *deadline, uint32_t *position,
                     uint32_t *heap, uint32_t max) {
    timers->deadline = deadline;
    timers->position = position;
    timers->heap = heap;
    timers->count = 0;
    timers->max = max;
    for (uint32_t i = 0; i < max; i++)
        deadline[i] = TIMER_NEVER;
}

static void place(struct timer_heap *timers, uint32_t index, uint32_t owner) {
    timers->heap[index] = owner;
    timers->position[owner] = index;
}

static void rise(struct timer_heap *timers, uint32_t index, uint32_t owner) {
    while (index > 0) {
        uint32_t parent = (index - 1) / 2;

        if (timers->deadline[timers->heap[parent]] <= timers->deadline[owner])
            break;
        place(timers, index, timers->heap[parent]);
        index = parent;
    }
    place(timers, index, owner);
}

static void sink(struct timer_heap *timers, uint32_t index, uint32_t owner) {
    for (;;) {
        uint32_t child = 2 * index + 1;

        if (child >= timers->count)
            break;
        if (child + 1 < timers->count && timers->deadline[timers->heap[child + 1]] <
                                             timers->deadline[timers->heap[child]])
            child++;
        if (timers->deadline[owner] <= timers->deadline[timers->heap[child]])
            break;
        place(timers, index, timers->heap[child]);
        index = child;
    }
    place(timers, index, owner);
}

static void take_out(struct timer_heap *timers, uint32_t index) {
    uint32_t moved = timers->heap[--timers->count];

    if (index == timers->count)
        return;
    /* The one that fills the gap may belong above or below it. */
    rise(timers, index, moved);
    sink(timers, timers->position[moved], moved);
}

void timer_heap_set(struct timer_heap *timers, uint32_t owner, int64_t deadline) {
    int64_t before = timers->deadline[owner];

    assert(owner < timers->max);
    if (deadline == before)
        return;
    timers->deadline[owner] = deadline;
    if (deadline == TIMER_NEVER)
        take_out(timers, timers->position[owner]);
    else if (before == TIMER_NEVER)
        rise(timers, timers->count++, owner);
    else if (deadline < before)
        rise(timers, timers->position[owner], owner);
    else
        sink(timers, timers->position[owner], owner);
}

int64_t timer_heap_deadline(const struct timer_heap *timers) {
    return timers->count ? timers->deadline[timers->heap[0]] : TIMER_NEVER;
}

uint32_t timer_heap_owner(const struct timer_heap *timers) {
    assert(timers->count > 0);
    return timers->heap[0];
}
