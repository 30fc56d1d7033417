/* SPDX-License-Identifier: Apache-2.0 */
/* The earliest of many deadlines: a binary heap with one deadline for each owner.
 *
 * Owners are numbers 0 .. max - 1. Memory is the caller's. Times are ns, TIMER_NEVER is none.
 */
#ifndef TIMER_HEAP_H
#define TIMER_HEAP_H

#include <stdint.h>

#define TIMER_NEVER INT64_MAX

struct timer_heap {
    int64_t *deadline;  /* of each owner */
    uint32_t *position; /* of each owner in the heap */
    uint32_t *heap;     /* owners, earliest first */
    uint32_t count;     /* owners that have a deadline */
    uint32_t max;
};

/* Three arrays of `max` elements each. */
void timer_heap_init(struct timer_heap *timers, int64_t *deadline, uint32_t *position,
                     uint32_t *heap, uint32_t max);

/* Sets, moves or (TIMER_NEVER) takes away the deadline of an owner. */
void timer_heap_set(struct timer_heap *timers, uint32_t owner, int64_t deadline);

/* The earliest deadline; TIMER_NEVER when there is none. */
int64_t timer_heap_deadline(const struct timer_heap *timers);

/* The owner of the earliest deadline. There is one. */
uint32_t timer_heap_owner(const struct timer_heap *timers);

#endif
