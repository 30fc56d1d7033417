/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: r_key -> region, and the one range check before anything is written.
 *
 * A hash table with linear probing in memory that the caller gave. Source: MRC 1.0, Responder.
 */
#ifndef MEMORY_TABLE_H
#define MEMORY_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct memory_region {
    uint8_t *base;
    uint64_t va;
    uint64_t size;
    uint32_t key;
    uint32_t domain;
    bool used;
};

struct memory_table {
    struct memory_region *slots;
    uint32_t slot_count; /* a power of two, more than max */
    uint32_t used;
    uint32_t max;
};

/* Slots needed for `max` regions. */
uint32_t memory_table_slots(uint32_t max);

void memory_table_init(struct memory_table *table, struct memory_region *slots, uint32_t max);

/* False: the key is taken, va + size overflows, or base is NULL with a size. The caller has
 * checked that used < max. */
bool memory_table_add(struct memory_table *table, const struct memory_region *region);

bool memory_table_remove(struct memory_table *table, uint32_t key);

/* Where `size` bytes at `va` are to be written: NULL unless the key is known, the region belongs
 * to the domain, and the whole range lies in it. Nothing of size 0 needs a region. */
uint8_t *memory_table_resolve(const struct memory_table *table, uint32_t key, uint32_t domain,
                              uint64_t va, uint64_t size);

#endif
