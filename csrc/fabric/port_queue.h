/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a switch port: who gets in, who is cut, who is marked, who is next.
 *
 * Knows neither bytes nor time: the owner keeps two first-in first-out queues, control and data,
 * and asks. Source: MRC 1.0, What a switch does.
 */
#ifndef FABRIC_PORT_QUEUE_H
#define FABRIC_PORT_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

/* Shared by all ports of a kind. Sizes are bytes. */
struct queue_rules {
    uint32_t data_limit;    /* that may wait; UINT32_MAX: any */
    uint32_t control_limit; /* the same */
    /* CE at dequeue: never while at most mark_from of data wait, always from mark_to on, with a
     * chance that rises between; mark_to 0: never. */
    uint32_t mark_from;
    uint32_t mark_to;
    uint32_t control_weight; /* control packets for each data packet; 0: control strictly first */
    bool trim;               /* what finds the data queue full is cut, if it may be */
};

/* What waits at one port. */
struct queue_depth {
    uint32_t data; /* bytes */
    uint32_t control;
    uint32_t served; /* control packets that data has let pass */
};

enum queue_class { QUEUE_CONTROL, QUEUE_TRIMMABLE, QUEUE_NO_TRIM };

enum queue_verdict {
    QUEUE_JOINS_DATA,
    QUEUE_JOINS_CONTROL,
    QUEUE_TRIMS, /* to be cut to its headers, which then ask as QUEUE_CONTROL */
    QUEUE_DATA_FULL,
    QUEUE_CONTROL_FULL,
};

static inline bool queue_has_room(uint32_t limit, uint32_t depth, uint32_t size) {
    return limit == UINT32_MAX || (size <= limit && depth <= limit - size);
}

static inline enum queue_verdict queue_admit(const struct queue_rules *rules,
                                             const struct queue_depth *depth,
                                             enum queue_class class, uint32_t size) {
    if (class == QUEUE_CONTROL)
        return queue_has_room(rules->control_limit, depth->control, size) ? QUEUE_JOINS_CONTROL
                                                                          : QUEUE_CONTROL_FULL;
    if (queue_has_room(rules->data_limit, depth->data, size))
        return QUEUE_JOINS_DATA;
    return rules->trim && class == QUEUE_TRIMMABLE ? QUEUE_TRIMS : QUEUE_DATA_FULL;
}

/* Which queue is served next, of a port where something waits. */
static inline bool queue_serves_control(const struct queue_rules *rules,
                                        struct queue_depth *depth) {
    bool is_datas_turn = rules->control_weight > 0 && depth->served >= rules->control_weight;
    bool is_control = depth->control > 0 && (depth->data == 0 || !is_datas_turn);

    if (!is_control)
        depth->served = 0;
    else if (depth->data > 0 && rules->control_weight > 0)
        depth->served++;
    return is_control;
}

/* Whether a data packet that leaves `waiting` bytes of data behind is marked. `draw`: 32 random
 * bits, looked at on the ramp alone. */
static inline bool queue_marks(const struct queue_rules *rules, uint32_t waiting, uint32_t draw) {
    if (rules->mark_to == 0 || waiting <= rules->mark_from)
        return false;
    if (waiting >= rules->mark_to)
        return true;
    return ((uint64_t)draw * (rules->mark_to - rules->mark_from)) >> 32 <
           waiting - rules->mark_from;
}

#endif
