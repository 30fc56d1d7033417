/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "frame.h"
#include "state.h"

enum { FRAME_MIN = 60 /* Ethernet's, without FCS */ };

static const uint64_t SECOND = 1000000000;

bool port_is_up(const struct fabric *fabric, const struct port *port) {
    const struct port *peer = &fabric->ports[port->config.peer];

    return port->is_up && !port->flapped && !fabric->nodes[port->config.node].rebooting &&
           !fabric->nodes[peer->config.node].rebooting;
}

static void set_timer(struct fabric *fabric, uint32_t index) {
    const struct port *port = &fabric->ports[index];
    bool waits = port->queues[CLASS_CONTROL].first || port->queues[CLASS_DATA].first;
    int64_t next = waits ? port->free_at : FABRIC_NEVER;

    if (port->link.first != NULL && port->link.first->due < next)
        next = port->link.first->due;
    if (port->late.first != NULL && port->late.first->due < next)
        next = port->late.first->due;
    timer_heap_set(&fabric->timers, index, next);
}

static void mark(struct fabric *fabric, uint32_t index, struct fabric_packet *packet) {
    struct port *port = &fabric->ports[index];

    if (!port->to_host &&
        queue_marks(&port->rules, port->depth.data, rules_mark_draw(fabric, index, packet)))
        port->counters.marked += frame_mark(packet);
}

/* When the port is free again after a frame that starts when it is free; exact in the long run. */
static void occupy(struct port *port, uint32_t size) {
    uint64_t bytes = (size < FRAME_MIN ? FRAME_MIN : size) + FABRIC_OVERHEAD;
    uint64_t work = bytes * 8 * SECOND + port->fraction;

    port->free_at += (int64_t)(work / port->config.rate);
    port->fraction = work % port->config.rate;
}

static void insert(struct packet_list *list, struct fabric_packet *packet) {
    struct fabric_packet **at = &list->first;

    while (*at != NULL && (*at)->due <= packet->due)
        at = &(*at)->next;
    packet->next = *at;
    *at = packet;
    if (packet->next == NULL)
        list->last = packet;
}

static void put_on_link(struct port *port, struct fabric_packet *packet, const struct fate *fate) {
    int64_t due = port->free_at + port->config.delay + fate->jitter;

    port->counters.sent++;
    port->counters.sent_bytes += packet->size;
    if (fate->reorder) {
        packet->due = due + fate->reorder_delay;
        port->counters.reordered++;
        insert(&port->late, packet);
        return;
    }
    port->last_due = due < port->last_due ? port->last_due : due; /* jitter keeps the order */
    packet->due = port->last_due;
    list_push(&port->link, packet);
}

static void duplicate(struct fabric *fabric, struct port *port,
                      const struct fabric_packet *packet) {
    struct fabric_packet *copy = pool_take(&fabric->pool);
    struct fate fate = {0};

    if (copy == NULL) {
        port->counters.not_duplicated++;
        return;
    }
    memcpy(copy, packet, sizeof *packet + packet->present);
    port->counters.duplicated++;
    occupy(port, copy->size);
    put_on_link(port, copy, &fate);
}

static void transmit(struct fabric *fabric, uint32_t index) {
    struct port *port = &fabric->ports[index];
    bool is_control = queue_serves_control(&port->rules, &port->depth);
    struct fabric_packet *packet =
        list_pop(&port->queues[is_control ? CLASS_CONTROL : CLASS_DATA]);
    struct fate fate;

    if (is_control) {
        port->depth.control -= packet->size;
    } else {
        port->depth.data -= packet->size;
        mark(fabric, index, packet);
    }
    fate = rules_fate(fabric, index, packet);
    occupy(port, packet->size);
    if (fate.lost) {
        fabric_drop_packet(fabric, port, packet, FABRIC_DROP_LOSS);
        return;
    }
    if (fate.corrupt) {
        frame_corrupt(packet, fate.corrupt_draw);
        port->counters.corrupted++;
    }
    put_on_link(port, packet, &fate);
    if (fate.duplicate)
        duplicate(fabric, port, packet);
}

static void transmit_due(struct fabric *fabric, uint32_t index, int64_t now) {
    struct port *port = &fabric->ports[index];

    while (port->free_at <= now &&
           (port->queues[CLASS_CONTROL].first || port->queues[CLASS_DATA].first))
        transmit(fabric, index);
}

static enum queue_class class_of(const struct fabric *fabric, const struct fabric_packet *packet) {
    const struct fabric_config *config = &fabric->config;
    uint8_t dscp = frame_dscp(packet);

    if (dscp == config->dscp_control || dscp == config->dscp_trimmed ||
        dscp == config->dscp_trimmed_lasthop)
        return QUEUE_CONTROL;
    return dscp == config->dscp_trimmable || dscp == config->dscp_trimmable_retx ? QUEUE_TRIMMABLE
                                                                                 : QUEUE_NO_TRIM;
}

/* What becomes of the packet, which is trimmed where that is the way out. */
static enum queue_verdict admit(struct fabric *fabric, struct port *port,
                                struct fabric_packet *packet) {
    const struct fabric_config *config = &fabric->config;
    uint8_t cut = port->to_host ? config->dscp_trimmed_lasthop : config->dscp_trimmed;
    enum queue_verdict verdict =
        queue_admit(&port->rules, &port->depth, class_of(fabric, packet), packet->size);

    if (verdict != QUEUE_TRIMS)
        return verdict;
    if (!frame_trim(packet, cut))
        return QUEUE_DATA_FULL;
    port->counters.trimmed++;
    return queue_admit(&port->rules, &port->depth, QUEUE_CONTROL, packet->size);
}

/* FABRIC_DROPS: it waits. */
static enum fabric_drop join(struct fabric *fabric, struct port *port,
                             struct fabric_packet *packet) {
    if (!port_is_up(fabric, port))
        return FABRIC_DROP_LINK_DOWN;
    switch (admit(fabric, port, packet)) {
    case QUEUE_JOINS_DATA:
        list_push(&port->queues[CLASS_DATA], packet);
        port->depth.data += packet->size;
        return FABRIC_DROPS;
    case QUEUE_JOINS_CONTROL:
        list_push(&port->queues[CLASS_CONTROL], packet);
        port->depth.control += packet->size;
        return FABRIC_DROPS;
    case QUEUE_CONTROL_FULL:
        return FABRIC_DROP_CONTROL_FULL;
    default:
        return FABRIC_DROP_DATA_FULL;
    }
}

void port_enqueue(struct fabric *fabric, uint32_t index, struct fabric_packet *packet,
                  int64_t now) {
    struct port *port = &fabric->ports[index];
    enum fabric_drop why = join(fabric, port, packet);

    if (why != FABRIC_DROPS) {
        fabric_drop_packet(fabric, port, packet, why);
        return;
    }
    if (port->free_at < now) {
        port->free_at = now;
        port->fraction = 0;
    }
    transmit_due(fabric, index, now);
    set_timer(fabric, index);
}

static void arrive(struct fabric *fabric, const struct port *port, struct fabric_packet *packet,
                   int64_t now) {
    if (port->config.sets_mac)
        memcpy(packet->frame, port->config.mac, sizeof port->config.mac);
    node_receive(fabric, port->config.peer, packet, now);
}

void port_run(struct fabric *fabric, uint32_t index, int64_t now) {
    struct port *port = &fabric->ports[index];

    transmit_due(fabric, index, now);
    while (port->link.first != NULL && port->link.first->due <= now)
        arrive(fabric, port, list_pop(&port->link), now);
    while (port->late.first != NULL && port->late.first->due <= now)
        arrive(fabric, port, list_pop(&port->late), now);
    set_timer(fabric, index);
}

static void empty(struct fabric *fabric, struct port *port, struct packet_list *list,
                  enum fabric_drop why) {
    struct fabric_packet *packet;

    while ((packet = list_pop(list)) != NULL)
        fabric_drop_packet(fabric, port, packet, why);
}

void port_empty_queues(struct fabric *fabric, uint32_t index, enum fabric_drop why) {
    struct port *port = &fabric->ports[index];

    for (int class = 0; class < CLASSES; class++)
        empty(fabric, port, &port->queues[class], why);
    port->depth.data = 0;
    port->depth.control = 0;
    set_timer(fabric, index);
}

void port_empty_link(struct fabric *fabric, uint32_t index, enum fabric_drop why) {
    struct port *port = &fabric->ports[index];

    empty(fabric, port, &port->link, why);
    empty(fabric, port, &port->late, why);
    set_timer(fabric, index);
}
