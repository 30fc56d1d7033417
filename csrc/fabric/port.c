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
    bool waits = port->queues[CLASS_CONTROL].list.first || port->queues[CLASS_DATA].list.first;
    int64_t next = waits ? port->free_at : FABRIC_NEVER;

    if (port->link.first != NULL && port->link.first->due < next)
        next = port->link.first->due;
    if (port->late.first != NULL && port->late.first->due < next)
        next = port->late.first->due;
    timer_heap_set(&fabric->timers, index, next);
}

/* Control first, or `control_weight` of them to one data packet when both wait. */
static struct queue *pick(struct port *port) {
    struct queue *control = &port->queues[CLASS_CONTROL];
    struct queue *data = &port->queues[CLASS_DATA];
    uint32_t weight = port->config.control_weight;
    bool is_datas_turn = weight > 0 && port->control_served >= weight;

    if (control->list.first == NULL || (data->list.first != NULL && is_datas_turn)) {
        port->control_served = 0;
        return data;
    }
    if (data->list.first != NULL && weight > 0)
        port->control_served++;
    return control;
}

static void mark(struct fabric *fabric, uint32_t index, struct fabric_packet *packet) {
    struct port *port = &fabric->ports[index];
    uint32_t waiting = port->queues[CLASS_DATA].bytes;
    uint32_t from = port->config.mark_from;
    uint32_t to = port->config.mark_to;

    if (port->to_host || to == 0 || waiting <= from)
        return;
    if (waiting >= to || rules_mark(fabric, index, packet, waiting - from, to - from))
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
    struct queue *queue = pick(port);
    struct fabric_packet *packet = list_pop(&queue->list);
    struct fate fate;

    queue->bytes -= packet->size;
    if (queue == &port->queues[CLASS_DATA])
        mark(fabric, index, packet);
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
           (port->queues[CLASS_CONTROL].list.first || port->queues[CLASS_DATA].list.first))
        transmit(fabric, index);
}

static bool is_control(const struct fabric *fabric, uint8_t dscp) {
    return dscp == fabric->config.dscp_control || dscp == fabric->config.dscp_trimmed ||
           dscp == fabric->config.dscp_trimmed_lasthop;
}

static bool is_trimmable(const struct fabric *fabric, uint8_t dscp) {
    return dscp == fabric->config.dscp_trimmable || dscp == fabric->config.dscp_trimmable_retx;
}

static bool has_room(const struct queue *queue, uint32_t limit, uint32_t size) {
    return size <= limit && queue->bytes <= limit - size;
}

/* Which queue the packet joins, trimmed where that is the way out; NULL when there is none. */
static struct queue *admit(struct fabric *fabric, struct port *port, struct fabric_packet *packet,
                           enum fabric_drop *why) {
    const struct fabric_config *config = &fabric->config;
    uint8_t cut = port->to_host ? config->dscp_trimmed_lasthop : config->dscp_trimmed;
    uint8_t dscp = frame_dscp(packet);

    if (!is_control(fabric, dscp)) {
        if (has_room(&port->queues[CLASS_DATA], port->config.data_limit, packet->size))
            return &port->queues[CLASS_DATA];
        *why = FABRIC_DROP_DATA_FULL;
        if (!port->config.trim || !is_trimmable(fabric, dscp) ||
            !frame_trim(packet, cut))
            return NULL;
        port->counters.trimmed++;
    }
    *why = FABRIC_DROP_CONTROL_FULL;
    if (!has_room(&port->queues[CLASS_CONTROL], port->config.control_limit, packet->size))
        return NULL;
    return &port->queues[CLASS_CONTROL];
}

void port_enqueue(struct fabric *fabric, uint32_t index, struct fabric_packet *packet,
                  int64_t now) {
    struct port *port = &fabric->ports[index];
    enum fabric_drop why = FABRIC_DROP_LINK_DOWN;
    struct queue *queue = port_is_up(fabric, port) ? admit(fabric, port, packet, &why) : NULL;

    if (queue == NULL) {
        fabric_drop_packet(fabric, port, packet, why);
        return;
    }
    list_push(&queue->list, packet);
    queue->bytes += packet->size;
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

    for (int class = 0; class < CLASSES; class++) {
        empty(fabric, port, &port->queues[class].list, why);
        port->queues[class].bytes = 0;
    }
    set_timer(fabric, index);
}

void port_empty_link(struct fabric *fabric, uint32_t index, enum fabric_drop why) {
    struct port *port = &fabric->ports[index];

    empty(fabric, port, &port->link, why);
    empty(fabric, port, &port->late, why);
    set_timer(fabric, index);
}
