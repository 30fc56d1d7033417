/* SPDX-License-Identifier: Apache-2.0 */
/* What a fabric is made of; each file of this folder owns the rules about one part of it. */
#ifndef FABRIC_STATE_H
#define FABRIC_STATE_H

#include "fabric.h"
#include "pool.h"
#include "port_queue.h"
#include "timer_heap.h"

enum { CLASS_CONTROL, CLASS_DATA, CLASSES };

struct packet_list {
    struct fabric_packet *first, *last;
};

struct port {
    struct fabric_port_config config;
    struct queue_rules rules;
    struct queue_depth depth;
    struct packet_list queues[CLASSES];
    struct packet_list link; /* in order of arrival */
    struct packet_list late; /* reordered ones, in order of arrival */
    int64_t free_at;         /* when the last one put on the link has left */
    uint64_t fraction;       /* of a ns, in units of 1 / rate, that it left later */
    int64_t last_due;        /* no packet on the link arrives later */
    bool to_host;            /* the other end is a host's */
    bool is_up;              /* as fabric_link_set says */
    bool flapped;            /* down by fabric_link_flap */
    int64_t flap_period, flap_down_for;
    struct fabric_counters counters;
};

struct node {
    struct fabric_node_config config;
    bool silent;
    bool rebooting;
};

/* A packet that was lost: the next attempt with that identity draws anew. */
struct lost {
    uint64_t identity;
    uint32_t times;
};

enum { LOST_SLOTS = 16384 };

struct fabric {
    struct fabric_config config; /* its arrays are copies of ours */
    int64_t now;
    struct port *ports;
    struct node *nodes;
    struct fabric_route *routes; /* in order of node, prefix size and prefix */
    uint32_t *choices;
    struct fabric_rule *rules;
    uint32_t rules_used; /* slots up to the last that was ever set */
    struct lost *lost;
    struct pool pool;
    struct timer_heap timers; /* one for each port, then for each port's flap, then for each node */
    struct packet_list delivered;
};

static inline void list_push(struct packet_list *list, struct fabric_packet *packet) {
    packet->next = NULL;
    if (list->first == NULL)
        list->first = packet;
    else
        list->last->next = packet;
    list->last = packet;
}

static inline struct fabric_packet *list_pop(struct packet_list *list) {
    struct fabric_packet *packet = list->first;

    if (packet != NULL)
        list->first = packet->next;
    return packet;
}

/* fabric.c */
void fabric_drop_packet(struct fabric *fabric, struct port *port, struct fabric_packet *packet,
                        enum fabric_drop why);

/* port.c: queues and the link behind them. */
void port_enqueue(struct fabric *fabric, uint32_t index, struct fabric_packet *packet, int64_t now);
void port_run(struct fabric *fabric, uint32_t index, int64_t now); /* its timer is due */
void port_empty_queues(struct fabric *fabric, uint32_t index, enum fabric_drop why);
void port_empty_link(struct fabric *fabric, uint32_t index, enum fabric_drop why);
bool port_is_up(const struct fabric *fabric, const struct port *port);

/* node.c: a packet has come to the end of a link, or enters at a host. */
void node_receive(struct fabric *fabric, uint32_t port, struct fabric_packet *packet, int64_t now);

/* route.c */
void route_sort(struct fabric *fabric);
/* The port to leave a node by; false: there is none. */
bool route_find(const struct fabric *fabric, uint32_t node, const struct fabric_packet *packet,
                uint32_t *port);

/* rules.c: what chance does to a packet that leaves by a port. */
struct fate {
    bool lost, corrupt, duplicate, reorder;
    uint32_t corrupt_draw;
    int64_t jitter, reorder_delay;
};
struct fate rules_fate(struct fabric *fabric, uint32_t port, const struct fabric_packet *packet);
/* 32 random bits for the marking ramp. */
uint32_t rules_mark_draw(const struct fabric *fabric, uint32_t port,
                         const struct fabric_packet *packet);

#endif
