/* SPDX-License-Identifier: Apache-2.0 */
/* A ring between one producer and one consumer, without locks.
 *
 * Holds the two indices only; the elements are an array of the owner's, of a power of two. Indices
 * run freely and are taken modulo the size.
 */
#ifndef RING_H
#define RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ring {
    _Alignas(64) _Atomic uint32_t head; /* next to be taken; the consumer's */
    _Alignas(64) _Atomic uint32_t tail; /* next to be filled; the producer's */
    uint32_t size;
};

static inline void ring_init(struct ring *ring, uint32_t size) {
    atomic_init(&ring->head, 0);
    atomic_init(&ring->tail, 0);
    ring->size = size;
}

/* Producer: the slot to fill; false when the ring is full. ring_push makes it visible. */
static inline bool ring_free(const struct ring *ring, uint32_t *slot) {
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    if (tail - atomic_load_explicit(&ring->head, memory_order_acquire) == ring->size)
        return false;
    *slot = tail & (ring->size - 1);
    return true;
}

static inline void ring_push(struct ring *ring) {
    atomic_fetch_add_explicit(&ring->tail, 1, memory_order_release);
}

/* Consumer: the slot to read; false when the ring is empty. ring_pop frees it. */
static inline bool ring_next(const struct ring *ring, uint32_t *slot) {
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    if (head == atomic_load_explicit(&ring->tail, memory_order_acquire))
        return false;
    *slot = head & (ring->size - 1);
    return true;
}

static inline void ring_pop(struct ring *ring) {
    atomic_fetch_add_explicit(&ring->head, 1, memory_order_release);
}

static inline uint32_t ring_count(const struct ring *ring) {
    return atomic_load_explicit(&ring->tail, memory_order_acquire) -
           atomic_load_explicit(&ring->head, memory_order_acquire);
}

#endif
