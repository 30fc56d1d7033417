/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_table.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

uint32_t memory_table_slots(uint32_t max) {
    uint32_t slots = 4;

    while (slots < 2 * max)
        slots *= 2;
    return slots;
}

void memory_table_init(struct memory_table *table, struct memory_region *slots, uint32_t max) {
    table->slots = slots;
    table->slot_count = memory_table_slots(max);
    table->used = 0;
    table->max = max;
    memset(slots, 0, table->slot_count * sizeof *slots);
}

/* Keys are random already; the multiplication is for those that tests choose. */
static uint32_t home(const struct memory_table *table, uint32_t key) {
    return (uint32_t)(key * 0x9E3779B1u >> 7) & (table->slot_count - 1);
}

/* The slot that holds the key, or the free one where it would go. */
static struct memory_region *find(const struct memory_table *table, uint32_t key) {
    uint32_t i = home(table, key);

    while (table->slots[i].used && table->slots[i].key != key)
        i = (i + 1) & (table->slot_count - 1);
    return &table->slots[i];
}

bool memory_table_add(struct memory_table *table, const struct memory_region *region) {
    struct memory_region *slot = find(table, region->key);

    assert(table->used < table->max);
    if (slot->used || region->va + region->size < region->va)
        return false;
    if (region->base == NULL && region->size > 0)
        return false;
    *slot = *region;
    slot->used = true;
    table->used++;
    return true;
}

bool memory_table_remove(struct memory_table *table, uint32_t key) {
    uint32_t mask = table->slot_count - 1;
    struct memory_region *slot = find(table, key);
    uint32_t hole = (uint32_t)(slot - table->slots);

    if (!slot->used)
        return false;
    slot->used = false;
    table->used--;
    /* Close the gap: whatever probed past the hole moves back into it. */
    for (uint32_t i = (hole + 1) & mask; table->slots[i].used; i = (i + 1) & mask) {
        uint32_t wanted = home(table, table->slots[i].key);

        if (((i - wanted) & mask) < ((i - hole) & mask))
            continue;
        table->slots[hole] = table->slots[i];
        table->slots[i].used = false;
        hole = i;
    }
    return true;
}

uint8_t *memory_table_resolve(const struct memory_table *table, uint32_t key, uint32_t domain,
                              uint64_t va, uint64_t size) {
    const struct memory_region *region = find(table, key);

    if (!region->used || region->domain != domain || va < region->va)
        return NULL;
    if (va - region->va > region->size || size > region->size - (va - region->va))
        return NULL;
    return region->base + (va - region->va);
}
