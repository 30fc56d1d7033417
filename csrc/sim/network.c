/* SPDX-License-Identifier: Apache-2.0 */
/* Packets on ports, links and switches.
 *
 * A link stores and forwards: a packet arrives when its last bit has. A port is looked at again
 * when it becomes free only if something waits there, so that a packet on an idle path costs one
 * event a hop.
 */
#include <assert.h> /* static_assert */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "encap.h"
#include "sim/sim.h"
#include "wire.h"

enum {
    RATE_FRACTION = 16,
    FRAME_MIN = 60, /* Ethernet's, without FCS */
    IPV6_AT = ENCAP_ETHERNET_SIZE,
    DESTINATION_AT = IPV6_AT + 24,
    UDP_AT = IPV6_AT + ENCAP_IPV6_SIZE,
    BTH_AT = UDP_AT + ENCAP_UDP_SIZE,
    PSN_AT = BTH_AT + 8, /* 24 bits, behind a byte of flags */
    TRIMMED_MAX = BTH_AT + WIRE_DATA_HEADERS_MAX,
};

/* ---- Packets ---- */

static_assert(offsetof(struct sim_packet, headers) <= SIM_CACHE_LINE, "a hop touches one line");
static_assert(sizeof(struct sim_port) == SIM_CACHE_LINE, "and one more");

struct sim_packet *sim_packet(const struct mrc_sim *sim, uint32_t index) {
    return &sim->slabs[index / SIM_SLAB][index % SIM_SLAB];
}

/* One more slab; false: no memory. */
static bool grow(struct mrc_sim *sim) {
    uint32_t room = sim->slab_room != 0 ? 2 * sim->slab_room : 64;
    void *slabs;

    if (sim->slab_count == sim->slab_room) {
        slabs = realloc(sim->slabs, room * sizeof(struct sim_packet *));
        if (slabs == NULL)
            return false;
        sim->slabs = slabs;
        sim->slab_room = room;
    }
    sim->slabs[sim->slab_count] =
        aligned_alloc(SIM_CACHE_LINE, SIM_SLAB * sizeof(struct sim_packet));
    if (sim->slabs[sim->slab_count] == NULL)
        return false;
    sim->slab_count++;
    return true;
}

/* SIM_NONE, and sim->has_failed: no memory. */
static uint32_t take(struct mrc_sim *sim) {
    uint32_t index = sim->free;

    if (index != SIM_NONE) {
        sim->free = sim_packet(sim, index)->next;
    } else {
        if (sim->packets_made == sim->slab_count * SIM_SLAB && !grow(sim)) {
            sim->has_failed = true;
            return SIM_NONE;
        }
        index = sim->packets_made++;
    }
    sim->totals.packets++;
    if (sim->totals.packets > sim->totals.packets_peak)
        sim->totals.packets_peak = sim->totals.packets;
    return index;
}

static void give(struct mrc_sim *sim, uint32_t index) {
    struct sim_packet *packet = sim_packet(sim, index);

    free(packet->bytes);
    packet->link = SIM_NONE;
    packet->next = sim->free;
    sim->free = index;
    sim->totals.packets--;
}

static void note(struct mrc_sim *sim, enum mrc_sim_what what, uint32_t port,
                 const struct sim_packet *packet) {
    mrc_sim_record record = {.what = what,
                             .subject = port,
                             .ev = packet->ev,
                             .psn = packet->psn,
                             .size = packet->size,
                             .code = packet->opcode};

    sim_log(sim, &record);
}

/* ---- Frames ---- */

static uint32_t mix(uint32_t hash) {
    hash = (hash ^ hash >> 16) * 0x7FEB352Du;
    hash = (hash ^ hash >> 15) * 0x846CA68Bu;
    return hash ^ hash >> 16;
}

static enum queue_class class_of(const struct mrc_sim *sim, uint8_t dscp, uint8_t opcode) {
    const mrc_config *config = &sim->setup.config;

    if (dscp == config->dscp_control)
        return QUEUE_CONTROL;
    return wire_is_write(opcode) &&
                   (dscp == config->dscp_trimmable || dscp == config->dscp_trimmable_retx)
               ? QUEUE_TRIMMABLE
               : QUEUE_NO_TRIM;
}

/* The whole frame; NULL: no memory. */
static uint8_t *copy(const mrc_frame_out *out) {
    uint8_t *bytes = malloc(out->size);
    size_t used = 0;

    for (uint32_t i = 0; bytes != NULL && i < out->slice_count; i++) {
        memcpy(bytes + used, out->slices[i].base, out->slices[i].size);
        used += out->slices[i].size;
    }
    return bytes;
}

/* What the network looks at, read off the headers that the endpoint wrote. */
static void read_headers(const struct mrc_sim *sim, uint32_t host, const mrc_frame_out *out,
                         struct sim_packet *packet) {
    const uint8_t *frame = out->slices[0].base;
    uint32_t word = get_be32(frame + IPV6_AT);
    uint8_t class = (uint8_t)(word >> 20);
    size_t headers = out->slices[0].size < SIM_HEADERS ? out->slices[0].size : SIM_HEADERS;

    memcpy(packet->headers, frame, headers);
    packet->header_size = (uint8_t)headers;
    packet->size = out->size;
    packet->to = get_be32(frame + DESTINATION_AT + 12);
    packet->ev = (word & 0xFFFF) << 16 | get_be16(frame + UDP_AT);
    packet->flow = mix(mix(mix(host) ^ packet->to) ^ packet->ev);
    packet->opcode = frame[BTH_AT];
    packet->psn = get_be32(frame + PSN_AT) & 0xFFFFFF;
    packet->class = (uint8_t)class_of(sim, class >> 2, packet->opcode);
    packet->is_capable = (class & 3) != ENCAP_ECN_NONE;
    packet->is_marked = false;
    packet->is_dead = false;
    packet->link = SIM_NONE;
    packet->trimmed = 0;
    packet->bytes = NULL;
}

/* ---- Ports ---- */

static void push(struct mrc_sim *sim, struct sim_fifo *fifo, uint32_t index) {
    sim_packet(sim, index)->next = SIM_NONE;
    if (fifo->head == SIM_NONE)
        fifo->head = index;
    else
        sim_packet(sim, fifo->tail)->next = index;
    fifo->tail = index;
}

static uint32_t pop(struct mrc_sim *sim, struct sim_fifo *fifo) {
    uint32_t index = fifo->head;

    fifo->head = sim_packet(sim, index)->next;
    return index;
}

static void lose(struct mrc_sim *sim, enum mrc_sim_what why, uint32_t port, uint32_t index) {
    note(sim, why, port, sim_packet(sim, index));
    sim->harm[port].dropped += why == MRC_SIM_DROPPED;
    sim->harm[port].lost += why != MRC_SIM_DROPPED;
    sim->totals.dropped += why == MRC_SIM_DROPPED;
    sim->totals.lost += why == MRC_SIM_LOST;
    sim->totals.dead += why == MRC_SIM_DEAD;
    give(sim, index);
}

/* A port to a host does not mark: trimming speaks there (MRC 1.0, Traffic classes). */
static void mark(struct mrc_sim *sim, uint32_t number, struct sim_packet *packet) {
    struct sim_port *port = &sim->ports[number];
    const struct queue_rules *rules = &sim->kinds[port->kind].rules;

    if (!packet->is_capable || packet->is_marked || port->depth.data <= rules->mark_from ||
        sim_is_host_port(sim, number) || sim_is_host_port(sim, port->peer))
        return;
    if (!queue_marks(rules, port->depth.data, prng_next(&sim->marks)))
        return;
    packet->is_marked = true;
    sim->harm[number].marked++;
    sim->totals.marked++;
    note(sim, MRC_SIM_MARKED, number, packet);
}

static uint32_t next_of(struct mrc_sim *sim, struct sim_port *port) {
    uint32_t index;

    if (queue_serves_control(&sim->kinds[port->kind].rules, &port->depth)) {
        index = pop(sim, &port->control);
        port->depth.control -= sim_packet(sim, index)->size;
        return index;
    }
    index = pop(sim, &port->data);
    port->depth.data -= sim_packet(sim, index)->size;
    return index;
}

static bool has_waiting(const struct sim_port *port) {
    return port->depth.data > 0 || port->depth.control > 0;
}

static void plan(struct mrc_sim *sim, uint32_t number) {
    struct sim_port *port = &sim->ports[number];

    port->is_pending = true;
    sim_schedule(sim, port->free_at, SIM_PORT_FREE, number);
}

/* SIM_NONE: no way. */
static uint32_t route(const struct sim_switch *at, const struct sim_packet *packet) {
    const mrc_sim_switch *routes = &at->routes;
    uint32_t below = packet->to - routes->first_host;
    uint32_t first = routes->up_first;
    uint32_t count = routes->up_count;

    if (below < routes->host_count) {
        first = routes->down_first + below / routes->group * routes->down_width;
        count = routes->down_width;
    }
    if (count < 2)
        return count == 1 ? first : SIM_NONE;
    return first + (uint32_t)((uint64_t)mix(packet->flow ^ at->salt) * count >> 32);
}

/* Where a packet on the link of this port will go: known before it arrives, so that the port can be
 * loaded in time. */
static uint32_t onwards(const struct mrc_sim *sim, const struct sim_port *port,
                        const struct sim_packet *packet) {
    if (port->next < sim->setup.host_count)
        return port->peer;
    return route(&sim->switches[port->next - sim->setup.host_count], packet);
}

/* Puts a packet on the link of a port that has just sent it. */
static void travel(struct mrc_sim *sim, uint32_t number, uint32_t index) {
    const struct sim_port *port = &sim->ports[number];
    const struct sim_kind *kind = &sim->kinds[port->kind];
    struct sim_packet *packet = sim_packet(sim, index);
    int64_t delay = kind->delay;

    if (kind->jitter > 0)
        delay += (int64_t)(prng_next(&sim->jitter) * (uint64_t)kind->jitter >> 32);
    packet->link = number;
    packet->port = onwards(sim, port, packet);
    sim_schedule(sim, port->free_at + delay, SIM_ARRIVAL, index);
}

/* A second one like it, as a link that was switched over delivers. */
static void duplicate(struct mrc_sim *sim, uint32_t number, uint32_t index) {
    const struct sim_packet *packet = sim_packet(sim, index);
    uint32_t twin = take(sim);
    struct sim_packet *copied;

    if (twin == SIM_NONE)
        return;
    copied = sim_packet(sim, twin);
    *copied = *packet;
    if (packet->bytes != NULL) {
        copied->bytes = malloc(packet->size);
        if (copied->bytes != NULL)
            memcpy(copied->bytes, packet->bytes, packet->size);
        sim->has_failed = sim->has_failed || copied->bytes == NULL;
    }
    sim->totals.duplicated++;
    travel(sim, number, twin);
}

/* The port is free and something waits: puts it on the link. */
static void start(struct mrc_sim *sim, uint32_t number) {
    struct sim_port *port = &sim->ports[number];
    const struct sim_kind *kind = &sim->kinds[port->kind];
    uint32_t index = next_of(sim, port);
    struct sim_packet *packet = sim_packet(sim, index);
    uint64_t size = (packet->size < FRAME_MIN ? FRAME_MIN : packet->size) + MRC_SIM_LINK_OVERHEAD;

    if (packet->class != QUEUE_CONTROL)
        mark(sim, number, packet);
    port->free_at = sim->now + (int64_t)(size * kind->ps_per_byte >> RATE_FRACTION);
    port->sent++;
    port->sent_bytes += packet->size;
    sim->totals.hops++;
    if (has_waiting(port))
        plan(sim, number);
    if (!port->is_up) {
        lose(sim, MRC_SIM_DEAD, number, index);
    } else if (kind->loss_ppm != 0 && prng_below(&sim->loss, 1000000) < kind->loss_ppm) {
        lose(sim, MRC_SIM_LOST, number, index);
    } else {
        travel(sim, number, index);
        if (kind->duplicate_ppm != 0 && prng_below(&sim->copies, 1000000) < kind->duplicate_ppm)
            duplicate(sim, number, index);
    }
}

/* Leaves the headers of a write, and what says where it was cut. */
static void trim(struct mrc_sim *sim, uint32_t number, struct sim_packet *packet) {
    bool is_last = sim_is_host_port(sim, sim->ports[number].peer);
    uint32_t headers = BTH_AT + (uint32_t)wire_headers_size(packet->opcode, false);

    packet->trimmed = is_last ? sim->setup.config.dscp_trimmed_lasthop
                              : sim->setup.config.dscp_trimmed;
    packet->size = headers;
    packet->class = QUEUE_CONTROL;
    sim->harm[number].trimmed++;
    sim->totals.trimmed++;
    note(sim, MRC_SIM_TRIMMED, number, packet);
}

static void enqueue(struct mrc_sim *sim, uint32_t number, uint32_t index) {
    struct sim_port *port = &sim->ports[number];
    struct sim_packet *packet = sim_packet(sim, index);
    const struct queue_rules *rules = &sim->kinds[port->kind].rules;
    enum queue_verdict verdict =
        queue_admit(rules, &port->depth, (enum queue_class)packet->class, packet->size);

    if (verdict == QUEUE_TRIMS) {
        trim(sim, number, packet);
        verdict = queue_admit(rules, &port->depth, QUEUE_CONTROL, packet->size);
    }
    if (verdict == QUEUE_DATA_FULL || verdict == QUEUE_CONTROL_FULL) {
        lose(sim, MRC_SIM_DROPPED, number, index);
        return;
    }
    if (verdict == QUEUE_JOINS_CONTROL) {
        push(sim, &port->control, index);
        port->depth.control += packet->size;
    } else {
        push(sim, &port->data, index);
        port->depth.data += packet->size;
        if (port->depth.data > port->waiting_peak)
            port->waiting_peak = port->depth.data;
    }
    if (port->is_pending)
        return;
    if (port->free_at <= sim->now)
        start(sim, number);
    else
        plan(sim, number);
}

void sim_on_port_free(struct mrc_sim *sim, uint32_t port) {
    sim->ports[port].is_pending = false;
    start(sim, port);
    if (sim_is_host_port(sim, port) && sim->ports[port].depth.data == 0)
        sim_on_room(sim, port);
}

/* ---- Events ---- */

void sim_on_arrival(struct mrc_sim *sim, uint32_t index) {
    struct sim_packet *packet = sim_packet(sim, index);
    uint32_t link = packet->link;
    uint32_t port = packet->port;

    packet->link = SIM_NONE;
    if (packet->is_dead) {
        lose(sim, MRC_SIM_DEAD, sim->ports[link].peer, index);
    } else if (port == SIM_NONE) {
        lose(sim, MRC_SIM_DROPPED, sim->ports[link].peer, index);
    } else if (sim_is_host_port(sim, port)) {
        sim->totals.packets_delivered++;
        note(sim, MRC_SIM_DELIVERED, port, packet);
        sim_deliver(sim, port, packet);
        give(sim, index);
        sim_service(sim, port / sim->setup.planes);
    } else {
        enqueue(sim, port, index);
    }
}

void sim_send(struct mrc_sim *sim, uint32_t host, const mrc_frame_out *out) {
    uint32_t port = host * sim->setup.planes + out->plane;
    uint32_t index = take(sim);
    struct sim_packet *packet;

    if (index == SIM_NONE)
        return;
    packet = sim_packet(sim, index);
    read_headers(sim, host, out, packet);
    if (sim->setup.payload) {
        packet->bytes = copy(out);
        sim->has_failed = sim->has_failed || packet->bytes == NULL;
    }
    sim->totals.packets_sent++;
    note(sim, MRC_SIM_SENT, port, packet);
    enqueue(sim, port, index);
}

/* What is on the link of a port is lost. */
static void kill_link(struct mrc_sim *sim, uint32_t port) {
    for (uint32_t i = 0; i < sim->packets_made; i++) {
        struct sim_packet *packet = sim_packet(sim, i);

        packet->is_dead = packet->is_dead || packet->link == port;
    }
}

void sim_on_fault(struct mrc_sim *sim, const mrc_sim_fault *fault) {
    uint32_t ends[2] = {fault->port, sim->ports[fault->port].peer};

    for (uint32_t i = 0; i < (fault->one_way ? 1 : 2); i++) {
        struct sim_port *port = &sim->ports[ends[i]];
        bool is_changed = port->is_up != fault->up;
        mrc_sim_record record = {
            .what = MRC_SIM_LINK, .subject = ends[i], .code = fault->up};

        port->is_up = fault->up;
        if (!fault->up)
            kill_link(sim, ends[i]);
        if (fault->kind != SIM_NONE)
            port->kind = (uint16_t)fault->kind;
        sim_log(sim, &record);
        if (is_changed && sim_is_host_port(sim, ends[i]))
            sim_on_port_changed(sim, ends[i]);
    }
}

/* In two rounds: what the second needs was asked for by the first. */
void sim_prefetch(const struct mrc_sim *sim, const struct event *events, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (sim_event_kind(events[i]) == SIM_ARRIVAL)
            __builtin_prefetch(sim_packet(sim, sim_event_index(events[i])), 1);
        else if (sim_event_kind(events[i]) == SIM_PORT_FREE)
            __builtin_prefetch(&sim->ports[sim_event_index(events[i])], 1);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (sim_event_kind(events[i]) == SIM_ARRIVAL) {
            uint32_t port = sim_packet(sim, sim_event_index(events[i]))->port;

            if (port != SIM_NONE)
                __builtin_prefetch(&sim->ports[port], 1);
        } else if (sim_event_kind(events[i]) == SIM_PORT_FREE) {
            const struct sim_port *port = &sim->ports[sim_event_index(events[i])];

            if (port->data.head != SIM_NONE)
                __builtin_prefetch(sim_packet(sim, port->data.head), 1);
        }
    }
}
