/* SPDX-License-Identifier: Apache-2.0 */
/* The way out: what is to be said next -> one frame.
 *
 * Control packets first, then answers, probes, retransmissions and data. A frame is a list of
 * slices: headers and trailers in the frame's own scratch, payload where the application has it.
 */
#include <assert.h>
#include <string.h>

#include "endpoint.h"
#include "srv6.h"

enum {
    PADDING_MAX = 9216, /* of a full-size probe */
    BUSY_BYTES = 16384, /* mrc_endpoint_is_busy */
};

/* Zero bytes behind an Endpoint Request. */
static const uint8_t padding[PADDING_MAX];

/* Where a frame goes and how. */
struct route {
    struct flow flow;
    uint32_t plane;
    uint32_t ev;
    uint8_t dscp;
    uint8_t ecn;
};

/* ---- Frames ---- */

static void copy_address(struct address *to, const mrc_address *from) {
    to->version = from->version;
    memcpy(to->bytes, from->bytes, sizeof to->bytes);
}

/* False: the plane cannot be used for this now. */
static bool route_to(const struct mrc_endpoint *endpoint, uint32_t plane,
                     const mrc_address *destination, const uint8_t *mac, struct route *route) {
    const mrc_plane *info = &endpoint->planes[plane].info;

    if (!endpoint->planes[plane].is_present || info->address.version == 0 ||
        info->address.version != destination->version)
        return false;
    route->plane = plane;
    copy_address(&route->flow.source, &info->address);
    copy_address(&route->flow.destination, destination);
    memcpy(route->flow.source_mac, info->mac, sizeof info->mac);
    memcpy(route->flow.destination_mac, mac, sizeof info->mac);
    route->flow.udp_port = endpoint->config.udp_port;
    return true;
}

/* SRv6: the route's EV says which way to the peer. The plane is the one that the packet leaves by,
 * also for an answer whose EV came by another. */
static void steer(const struct peer *peer, struct route *route) {
    const mrc_srv6_template *path = &peer->setup.srv6;

    if (path->block_size == 0 || route->flow.destination.version != 6)
        return;
    route->flow.carrier.version = 6;
    route->flow.has_srh = path->srh;
    srv6_address(path, (route->ev & ~0xF000u) | route->plane << 12, route->flow.carrier.bytes);
}

static bool route_to_peer(const struct mrc_endpoint *endpoint, const struct peer *peer,
                          uint32_t plane, struct route *route) {
    if (!peer->plane[plane].has_mac || !route_to(endpoint, plane, &peer->setup.addresses[plane],
                                                 peer->plane[plane].mac, route))
        return false;
    steer(peer, route);
    return true;
}

/* The slices of a frame while it is written. */
struct writer {
    mrc_frame_out *frame;
    uint8_t *at;    /* in scratch */
    uint8_t *start; /* of the slice being written */
};

static void add_slice(struct writer *writer, const uint8_t *base, size_t size) {
    mrc_frame_out *frame = writer->frame;

    assert(frame->slice_count < MRC_FRAME_SLICES);
    frame->slices[frame->slice_count++] = (mrc_slice){base, size};
}

/* What has been written since the last slice. */
static void close_slice(struct writer *writer) {
    add_slice(writer, writer->start, (size_t)(writer->at - writer->start));
    writer->start = writer->at;
}

static uint32_t transport_size(const struct packet *packet) {
    return (uint32_t)wire_headers_size(packet->opcode, packet->ts) + packet->payload_size +
           wire_pad(packet->payload_size) + WIRE_ICRC_SIZE;
}

/* Of the packet whose headers, `size` bytes, stand at `bth`, as if the frame had been cut. */
static uint32_t icrc_of(const struct icrc *icrc, const struct packet *packet, uint32_t index,
                        const mrc_frame_out *frame, const uint8_t *bth, uint32_t size) {
    static const uint8_t pad[3];
    const uint8_t *ip = frame->scratch + frame->header_size - ENCAP_UDP_SIZE -
                        (frame->ip_version == 4 ? ENCAP_IPV4_SIZE : ENCAP_IPV6_SIZE);
    uint32_t state = encap_icrc_start(icrc, ip, index, transport_size(packet));

    state = icrc_bth(icrc, state, bth);
    state = icrc->update(state, bth + WIRE_BTH_SIZE, size - WIRE_BTH_SIZE);
    if (packet->payload_size > 0)
        state = icrc->update(state, packet->payload, packet->payload_size);
    return icrc->update(state, pad, wire_pad(packet->payload_size));
}

/* Appends one transport packet. */
static void put_packet(const struct mrc_endpoint *endpoint, struct writer *writer,
                       const struct packet *packet, uint32_t index) {
    uint32_t size = (uint32_t)wire_put(packet, writer->at);
    uint32_t icrc = ~0u; /* stored as 0 */

    if (!endpoint->config.headers_only)
        icrc = icrc_of(&endpoint->icrc, packet, index, writer->frame, writer->at, size);
    writer->at += size;
    if (packet->payload_size > 0) {
        close_slice(writer);
        add_slice(writer, packet->payload, packet->payload_size);
    }
    for (uint32_t pad = wire_pad(packet->payload_size); pad > 0; pad--)
        *writer->at++ = 0;
    icrc_store(icrc, writer->at);
    writer->at += WIRE_ICRC_SIZE;
}

/* Packets of equal size, but for a shorter last one. */
static void put_frame(struct mrc_endpoint *endpoint, const struct route *route,
                      const struct packet *packets, uint32_t count, mrc_frame_out *frame) {
    uint32_t each = transport_size(&packets[0]);
    uint32_t total = (count - 1) * each + transport_size(&packets[count - 1]);
    struct writer writer = {.frame = frame, .start = frame->scratch};

    frame->plane = route->plane;
    frame->packets = count;
    frame->segment_size = each;
    frame->slice_count = 0;
    frame->ip_version = route->flow.source.version;
    frame->header_size = (uint32_t)encap_put(&route->flow, route->ev, route->dscp, route->ecn,
                                             total, count, frame->scratch);
    frame->size = frame->header_size + total;
    writer.at = frame->scratch + frame->header_size;
    for (uint32_t i = 0; i < count; i++)
        put_packet(endpoint, &writer, &packets[i], i);
    close_slice(&writer);
    assert(writer.at <= frame->scratch + MRC_FRAME_SCRATCH);
    endpoint->counters.frames_sent++;
    endpoint->counters.packets_sent += count;
}

/* ---- Answers and endpoint operations ---- */

/* Answers take a way known to work, else the one that the question came by. */
static bool route_answer(struct mrc_endpoint *endpoint, struct peer *peer,
                         const struct cause *cause, const struct packet *packet,
                         struct route *route) {
    uint32_t plane = cause->plane;

    *route = (struct route){.ev = cause->ev, .dscp = endpoint->config.dscp_control};
    peer_reply_path(peer, packet->opcode != WIRE_ACK, &plane, &route->ev);
    if (route_to_peer(endpoint, peer, plane, route))
        return true;
    endpoint->counters.controls_full++;
    return false;
}

static bool put_answer(struct mrc_endpoint *endpoint, struct peer *peer, const struct cause *cause,
                       const struct packet *packet, mrc_frame_out *frame) {
    struct route route;

    if (!route_answer(endpoint, peer, cause, packet, &route))
        return false;
    put_frame(endpoint, &route, packet, 1, frame);
    return true;
}

static bool put_nack(struct mrc_endpoint *endpoint, const struct control *control,
                     mrc_frame_out *frame) {
    struct qp *qp = endpoint_find_qp(endpoint, control->qp);
    struct packet packet = {
        .opcode = WIRE_NACK,
        .psn = control->cause.psn,
        .nack_psn = control->cause.psn,
        .reason = control->reason,
        .entropy = control->cause.ev,
        .tx_timestamp = control->cause.timestamp,
        .cc_type = 2, /* MRC 1.0, NETH 16 */
    };

    if (qp == NULL || qp->peer == NULL)
        return false;
    packet.dest_qp = qp->remote.number;
    packet.spdcid = (uint16_t)qp->number;
    packet.dpdcid = (uint16_t)qp->remote.number;
    return put_answer(endpoint, qp->peer, &control->cause, &packet, frame);
}

static bool put_mark(struct mrc_endpoint *endpoint, const struct control *control,
                     mrc_frame_out *frame) {
    struct qp *qp = endpoint_find_qp(endpoint, control->qp);
    struct packet packet;

    if (qp == NULL || qp->peer == NULL)
        return false;
    responder_mark(&qp->responder, &control->cause, &packet);
    return put_answer(endpoint, qp->peer, &control->cause, &packet, frame);
}

/* False: the plane cannot be used now. */
static bool route_operation(struct mrc_endpoint *endpoint, const struct control *control,
                            struct route *route) {
    uint32_t plane = control->cause.plane;
    const struct peer_entry *entry;

    if (control->kind == CONTROL_ROUND_TRIP) {
        copy_address(&route->flow.carrier, &control->destination);
        copy_address(&route->flow.next_carrier, &control->next_carrier);
        return route_to(endpoint, plane, &endpoint->planes[plane].info.address,
                        control->destination_mac, route);
    }
    if (!route_to(endpoint, plane, &control->destination, control->destination_mac, route))
        return false;
    entry = endpoint_find_peer(endpoint, &control->destination, NULL);
    if (entry != NULL)
        steer(&entry->peer, route);
    return true;
}

static bool put_operation(struct mrc_endpoint *endpoint, const struct control *control,
                          mrc_frame_out *frame) {
    bool is_request = control->kind == CONTROL_REQUEST;
    bool is_ours = control->kind != CONTROL_RESPONSE;
    struct route route = {
        .ev = control->cause.ev,
        .dscp = is_ours ? control->dscp : endpoint->config.dscp_control,
        .ecn = is_ours ? ENCAP_ECN_ECT0 : ENCAP_ECN_NONE,
    };
    struct packet packet = {
        .opcode = is_request ? WIRE_ENDPOINT_REQUEST : WIRE_ENDPOINT_RESPONSE,
        .dest_qp = WIRE_QP_ENDPOINT,
        .psn = control->id,
        .op = control->op,
        .tx_timestamp = control->cause.timestamp,
        .port_status_mask = control->mask,
        .ftype = 1,
    };
    struct packet packets[2];
    uint32_t fixed;

    if (!route_operation(endpoint, control, &route))
        return false;
    fixed = (uint32_t)wire_headers_size(packet.opcode, false) + WIRE_ICRC_SIZE + ENCAP_UDP_SIZE +
            (route.flow.source.version == 4 ? ENCAP_IPV4_SIZE : ENCAP_IPV6_SIZE);
    if (route.flow.carrier.version != 0)
        fixed += ENCAP_IPV6_SIZE;
    if (route.flow.has_srh || route.flow.next_carrier.version != 0)
        fixed += ENCAP_SRH_SIZE;
    if (control->size > fixed) {
        packet.payload_size = (control->size - fixed) & ~3u;
        if (packet.payload_size > PADDING_MAX)
            packet.payload_size = PADDING_MAX;
        packet.payload = padding;
    }
    packets[0] = packet;
    packets[1] = packet;
    put_frame(endpoint, &route, packets, is_request ? control->count : 1, frame);
    return true;
}

static bool take_control(struct mrc_endpoint *endpoint, mrc_frame_out *frame) {
    while (endpoint->control_count > 0) {
        const struct control *control = &endpoint->controls[endpoint->control_head];
        bool is_done = false;

        endpoint->control_head = (endpoint->control_head + 1) % endpoint->config.max_controls;
        endpoint->control_count--;
        switch (control->kind) {
        case CONTROL_NACK:
            is_done = put_nack(endpoint, control, frame);
            break;
        case CONTROL_MARK:
            is_done = put_mark(endpoint, control, frame);
            break;
        case CONTROL_RESPONSE:
        case CONTROL_REQUEST:
        case CONTROL_ROUND_TRIP:
            is_done = put_operation(endpoint, control, frame);
            break;
        }
        if (is_done)
            return true;
    }
    return false;
}

/* A Transport ACK rides behind the last SACK, where the plane takes bursts: it is the shorter one,
 * and half of what a small message costs is the way of its answers through the kernel. */
static uint32_t add_ack(struct qp *qp, const struct route *route, struct packet packets[2]) {
    struct cause cause;
    bool has_room = packets[0].opcode == WIRE_SACK &&
                    peer_burst(qp->peer, route->plane, transport_size(&packets[0])) > 1;

    if (!has_room || !responder_owes_only_ack(&qp->responder))
        return 1;
    return responder_next(&qp->responder, &packets[1], &cause) ? 2 : 1;
}

static bool take_answer(struct mrc_endpoint *endpoint, mrc_frame_out *frame) {
    struct qp *qp;

    while ((qp = qp_queue_pop(&endpoint->answering, QUEUE_ANSWERING)) != NULL) {
        struct packet packets[2];
        struct cause cause;
        struct route route;

        while (responder_next(&qp->responder, &packets[0], &cause)) {
            if (!route_answer(endpoint, qp->peer, &cause, &packets[0], &route))
                continue;
            put_frame(endpoint, &route, packets, add_ack(qp, &route, packets), frame);
            if (responder_is_due(&qp->responder))
                qp_queue_push(&endpoint->answering, QUEUE_ANSWERING, qp);
            return true;
        }
    }
    return false;
}

/* ---- Data ---- */

static void put_burst(struct mrc_endpoint *endpoint, const struct qp *qp,
                      const struct burst *burst, mrc_frame_out *frame) {
    const mrc_config *config = &endpoint->config;
    bool is_trimmable = config->trimming && qp->remote.trim_nack;
    struct route route = {.ev = burst->ev, .ecn = ENCAP_ECN_ECT0};
    bool has_route = route_to_peer(endpoint, qp->peer, burst->plane, &route);

    assert(has_route); /* a plane that is up has both addresses and a neighbour */
    (void)has_route;
    route.dscp = !is_trimmable            ? config->dscp_no_trim
                 : burst->is_retransmission ? config->dscp_trimmable_retx
                                            : config->dscp_trimmable;
    put_frame(endpoint, &route, burst->packets, burst->count, frame);
}

static bool take_data(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry,
                      mrc_frame_out *frame) {
    struct qp *qp;

    while ((qp = qp_queue_pop(&entry->ready, QUEUE_READY)) != NULL) {
        enum requestor_state state;

        if (qp->state != MRC_QP_RTS || qp->is_closed)
            continue;
        state = requestor_next(&qp->requestor, now, &endpoint->burst);
        endpoint_settle_qp(endpoint, now, qp);
        if (state == REQUESTOR_SENT) {
            put_burst(endpoint, qp, &endpoint->burst, frame);
            qp_queue_push(&entry->ready, QUEUE_READY, qp);
            return true;
        }
        if (state == REQUESTOR_BLOCKED) {
            /* The peer has no room for the others either; what makes some wakes it. */
            qp_queue_push(&entry->ready, QUEUE_READY, qp);
            endpoint->is_blocked = true;
            return false;
        }
        if (state == REQUESTOR_STARVED)
            qp_queue_push(&endpoint->starved, QUEUE_STARVED, qp);
    }
    return false;
}

/* Chunks were given back: whoever went without asks again. */
static void feed_starved(struct mrc_endpoint *endpoint) {
    struct qp_queue starved = endpoint->starved;
    struct qp *qp;

    if (endpoint->chunks.used == endpoint->chunks.count)
        return;
    endpoint->starved = (struct qp_queue){0};
    while ((qp = qp_queue_pop(&starved, QUEUE_STARVED)) != NULL)
        endpoint_wake_qp(endpoint, qp);
}

static void take_probes(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry) {
    struct peer_probe probe;

    while (endpoint->control_count < endpoint->config.max_controls) {
        if (!peer_take_probe(&entry->peer, &probe)) {
            entry->is_probing = false;
            return;
        }
        endpoint_send_peer_probe(endpoint, now, entry, &probe);
    }
}

/* Peers take turns, frame by frame. */
static bool take_peer(struct mrc_endpoint *endpoint, int64_t now, mrc_frame_out *frame) {
    if (endpoint->ready_head != NULL)
        endpoint->is_blocked = false;
    while (endpoint->ready_head != NULL) {
        struct peer_entry *entry = endpoint->ready_head;

        endpoint->ready_head = entry->next;
        entry->is_queued = false;
        if (entry->is_probing) {
            take_probes(endpoint, now, entry);
            endpoint_wake_peer(endpoint, entry);
            if (take_control(endpoint, frame))
                return true;
            continue;
        }
        if (take_data(endpoint, now, entry, frame)) {
            endpoint_wake_peer(endpoint, entry);
            return true;
        }
    }
    return false;
}

bool mrc_endpoint_is_busy(const mrc_endpoint *endpoint) {
    for (uint32_t i = 0; i < endpoint->peers_end; i++) {
        const struct peer *peer = &endpoint->peers[i].peer;

        if (peer->is_used && peer_inflight(peer) > BUSY_BYTES)
            return true;
    }
    return endpoint->is_blocked;
}

bool mrc_endpoint_transmit(mrc_endpoint *endpoint, int64_t now, mrc_frame_out *frame) {
    feed_starved(endpoint);
    return take_control(endpoint, frame) || take_answer(endpoint, frame) ||
           take_peer(endpoint, now, frame);
}
