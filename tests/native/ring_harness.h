/* SPDX-License-Identifier: Apache-2.0 */
/* A ring with its elements, for the tests of ring.h. */
#ifndef RING_HARNESS_H
#define RING_HARNESS_H

#include <stdbool.h>
#include <stdint.h>

struct ring_box;

/* A ring of `size` elements whose indices begin at `first`; NULL: no memory. */
struct ring_box *ring_box_new(uint32_t size, uint32_t first);
void ring_box_free(struct ring_box *box);
bool ring_box_put(struct ring_box *box, uint64_t value);
bool ring_box_take(struct ring_box *box, uint64_t *value);
uint32_t ring_box_count(const struct ring_box *box);

/* One thread puts 0 .. count-1 while the caller takes them. Returns how many were not the one that
 * comes next. */
uint64_t ring_box_race(struct ring_box *box, uint64_t count);

#endif
