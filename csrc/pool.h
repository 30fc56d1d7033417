/* SPDX-License-Identifier: Apache-2.0 */
/* A fixed number of equal elements in memory that the caller gave: take one, give it back.
 *
 * An empty pool is back-pressure for whoever asked, never an error. An element's first bytes hold
 * the list of free ones while it is free.
 */
#ifndef POOL_H
#define POOL_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct pool {
    void *free; /* first free element; each one starts with a pointer to the next */
    uint32_t used;
    uint32_t count;
};

/* `memory` has room for count elements of `size` bytes each, a multiple of a pointer's. */
static inline void pool_init(struct pool *pool, void *memory, size_t size, uint32_t count) {
    pool->free = NULL;
    pool->used = 0;
    pool->count = count;
    assert(size % sizeof(void *) == 0);
    for (uint32_t i = count; i-- > 0;) {
        void *element = (uint8_t *)memory + (size_t)i * size;

        memcpy(element, &pool->free, sizeof pool->free);
        pool->free = element;
    }
}

/* An element with arbitrary content; NULL when all are taken. */
static inline void *pool_take(struct pool *pool) {
    void *element = pool->free;

    if (element == NULL)
        return NULL;
    memcpy(&pool->free, element, sizeof pool->free);
    pool->used++;
    return element;
}

static inline void pool_give(struct pool *pool, void *element) {
    assert(pool->used > 0);
    memcpy(element, &pool->free, sizeof pool->free);
    pool->free = element;
    pool->used--;
}

#endif
