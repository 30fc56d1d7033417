/* SPDX-License-Identifier: Apache-2.0 */
/* The way in: frame -> packets -> the queue pair or endpoint operation that each belongs to.
 *
 * Cheap checks come first, and nothing is trusted before the ICRC was found right; a packet of a
 * queue pair must also come from an address of its peer. Every drop has its counter.
 */
#include <string.h>

#include "endpoint.h"

#define MS ((int64_t)1000000)
#define REPEAT_INTERVAL (10 * MS) /* between answers of a lingering queue pair [choice] */
#define SILENCE_NOTED (20 * MS)   /* after which the peer's return is news [choice] */

static bool is_trim_mark(const struct mrc_endpoint *endpoint, uint8_t dscp) {
    return dscp == endpoint->config.dscp_trimmed || dscp == endpoint->config.dscp_trimmed_lasthop;
}

static void nack(struct mrc_endpoint *endpoint, struct qp *qp, const struct cause *cause,
                 uint8_t reason) {
    struct control control = {
        .kind = CONTROL_NACK, .qp = qp->number, .cause = *cause, .reason = reason};

    qp->responder.nacks_sent++;
    endpoint_control(endpoint, &control);
}

/* A frame while its packets are taken in. Most of them are of one queue pair: it is looked up, and
 * settled, once for all that follow one another. */
struct intake {
    struct arrival arrival;
    const struct encap *encap;
    bool is_trimmed; /* by its traffic class */
    struct qp *qp;   /* the last packet's, which is its peer's; NULL: none yet */
    bool is_heard;   /* its peer has been, by this frame */
    bool is_open;    /* data has come for it since it was settled */
};

/* ---- Packets of a queue pair ---- */

/* The peer is alive; after a silence its queue pairs do not wait for their timers. */
static void note_heard(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry) {
    int64_t silence = now - entry->peer.heard;

    entry->peer.heard = now;
    if (silence < SILENCE_NOTED)
        return;
    for (struct qp *qp = entry->qps; qp != NULL; qp = qp->same_peer) {
        if (qp->state != MRC_QP_RTS || qp->is_closed)
            continue;
        requestor_on_peer_heard(&qp->requestor, now);
        endpoint_wake_qp(endpoint, qp);
        endpoint_settle_qp(endpoint, now, qp);
    }
}

static void on_trimmed(struct mrc_endpoint *endpoint, struct qp *qp, const struct cause *cause,
                       uint8_t dscp) {
    if (!qp->local.trim_nack || !responder_needs(&qp->responder, cause->psn))
        return;
    nack(endpoint, qp, cause,
         dscp == endpoint->config.dscp_trimmed ? WIRE_NACK_TRIMMED : WIRE_NACK_TRIMMED_LASTHOP);
}

/* To be called when no more packets of intake->qp follow. */
static void settle(struct mrc_endpoint *endpoint, int64_t now, struct intake *intake) {
    struct qp *qp = intake->qp;

    if (!intake->is_open)
        return;
    intake->is_open = false;
    if (peer_on_received(qp->peer, now))
        endpoint_settle_peer(endpoint, now, endpoint_entry(endpoint, qp->peer));
    qp_queue_push(&endpoint->touched, QUEUE_TOUCHED, qp);
    endpoint_settle_qp(endpoint, now, qp);
}

static void on_data(struct mrc_endpoint *endpoint, int64_t now, struct intake *intake,
                    const struct packet *packet, const struct cause *cause) {
    const struct arrival *arrival = &intake->arrival;
    struct qp *qp = intake->qp;
    struct peer_plane *plane = &qp->peer->plane[arrival->plane];
    uint8_t reason = 0;

    switch (responder_on_data(&qp->responder, now, packet, cause, arrival->nominal, &reason)) {
    case RESPONDER_PLACED:
        plane->stats.bytes_received += packet->payload_size;
        break;
    case RESPONDER_DUPLICATE:
        break;
    case RESPONDER_DROPPED:
        endpoint->counters.drop_psn++;
        return;
    case RESPONDER_NACK:
        nack(endpoint, qp, cause, reason);
        return;
    case RESPONDER_FAILED:
        endpoint->counters.remote_access += qp->responder.error == MRC_ERROR_REMOTE_ACCESS;
        if (reason != 0)
            nack(endpoint, qp, cause, reason);
        endpoint_settle_qp(endpoint, now, qp);
        return;
    }
    plane->stats.packets_received++;
    intake->is_open = true;
    if (arrival->is_marked) {
        struct control control = {.kind = CONTROL_MARK, .qp = qp->number, .cause = *cause};

        endpoint_control(endpoint, &control);
    }
}

/* A lingering queue pair refuses what is new, or its peer would ask for ever; one that failed as
 * responder has a NAK to repeat instead. Answers to probes do not count: one before each packet
 * would keep the refusal back. */
static void refuse(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp,
                   const struct packet *packet, const struct cause *cause) {
    if (qp->responder.error != 0 || now - qp->refused < REPEAT_INTERVAL ||
        !responder_needs(&qp->responder, packet->psn))
        return;
    qp->refused = now;
    nack(endpoint, qp, cause, WIRE_NACK_UNEXP_EVENT);
}

/* A queue pair in ERROR, or closed, repeats what it last said; what is new it refuses. */
static void linger(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp,
                   const struct packet *packet, const struct cause *cause) {
    bool is_write = wire_is_write(packet->opcode);

    endpoint->counters.drop_state++;
    if (qp->peer == NULL || !(is_write || packet->opcode == WIRE_PROBE))
        return;
    if (is_write)
        refuse(endpoint, now, qp, packet, cause);
    if (now - qp->repeated < REPEAT_INTERVAL)
        return;
    qp->repeated = now;
    responder_repeat(&qp->responder);
    if (packet->opcode == WIRE_PROBE)
        responder_on_probe(&qp->responder, packet, cause);
}

/* One that sends little would find out by itself only one timeout after the other. Where switches
 * hash, the same EV of another queue pair is another path. */
static void share_dead_paths(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp) {
    struct requestor *teller = &qp->requestor;
    uint32_t count = teller->dead_count;

    teller->dead_count = 0;
    if (count == 0 || !peer_names_paths(qp->peer))
        return;
    for (struct qp *other = endpoint_entry(endpoint, qp->peer)->qps; other != NULL;
         other = other->same_peer) {
        if (other == qp || other->state != MRC_QP_RTS || other->is_closed)
            continue;
        for (uint32_t i = 0; i < count; i++)
            requestor_on_path_dead(&other->requestor, now, teller->dead_evs[i]);
        endpoint_settle_qp(endpoint, now, other);
    }
}

static struct cause cause_of(const struct arrival *arrival, const struct packet *packet) {
    return (struct cause){.plane = arrival->plane,
                          .ev = arrival->ev,
                          .psn = packet->psn,
                          .timestamp = packet->tx_timestamp};
}

/* A SACK, NACK or Transport ACK; false: it made no sense. */
static bool on_answer(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp,
                      const struct packet *packet) {
    bool makes_sense;

    if (packet->opcode == WIRE_SACK) {
        makes_sense = requestor_on_sack(&qp->requestor, now, packet);
        share_dead_paths(endpoint, now, qp);
    } else if (packet->opcode == WIRE_NACK) {
        makes_sense = requestor_on_nack(&qp->requestor, now, packet);
    } else {
        makes_sense = requestor_on_ack(&qp->requestor, now, packet);
    }
    endpoint_settle_qp(endpoint, now, qp);
    peer_on_answer(qp->peer, now);
    endpoint_wake_qp(endpoint, qp);
    endpoint_settle_peer(endpoint, now, endpoint_entry(endpoint, qp->peer));
    return makes_sense;
}

static void on_qp_packet(struct mrc_endpoint *endpoint, int64_t now, struct intake *intake,
                         const struct packet *packet) {
    struct qp *qp = intake->qp;
    struct cause cause = cause_of(&intake->arrival, packet);

    if (qp->state != MRC_QP_RTS || qp->is_closed) {
        linger(endpoint, now, qp, packet, &cause);
        endpoint_settle_qp(endpoint, now, qp);
        return;
    }
    if (!intake->is_heard)
        note_heard(endpoint, now, endpoint_entry(endpoint, qp->peer));
    intake->is_heard = true;
    if (wire_is_write(packet->opcode)) {
        on_data(endpoint, now, intake, packet, &cause);
    } else if (packet->opcode == WIRE_PROBE) {
        cause.psn = qp->responder.window.cack;
        responder_on_probe(&qp->responder, packet, &cause);
        endpoint_settle_qp(endpoint, now, qp);
    } else {
        endpoint->counters.drop_stale += !on_answer(endpoint, now, qp, packet);
    }
}

static bool is_from_peer(const struct qp *qp, const struct arrival *arrival) {
    const mrc_address *likely = &qp->peer->setup.addresses[arrival->plane];

    if (memcmp(likely, &arrival->source, sizeof *likely) == 0)
        return true;
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if (memcmp(&qp->peer->setup.addresses[i], &arrival->source, sizeof *likely) == 0)
            return true;
    }
    return false;
}

/* ---- Packets ---- */

/* Makes intake->qp the packet's; false: there is none, or it is not this peer's. */
static bool find_qp(struct mrc_endpoint *endpoint, int64_t now, struct intake *intake,
                    uint32_t number) {
    struct qp *qp = intake->qp;

    if (qp != NULL && qp->number == number)
        return true;
    settle(endpoint, now, intake);
    intake->qp = NULL;
    intake->is_heard = false;
    qp = endpoint_find_qp(endpoint, number);
    if (qp == NULL)
        endpoint->counters.drop_unknown_qp++;
    else if (qp->peer == NULL)
        endpoint->counters.drop_state++;
    else if (!is_from_peer(qp, &intake->arrival))
        endpoint->counters.drop_source++;
    else
        intake->qp = qp;
    return intake->qp != NULL;
}

static void on_packet(struct mrc_endpoint *endpoint, int64_t now, struct intake *intake,
                      const struct packet *packet, bool is_trimmed) {
    const struct qp *qp;

    if (packet->opcode == WIRE_ENDPOINT_REQUEST || packet->opcode == WIRE_ENDPOINT_RESPONSE) {
        if (packet->dest_qp != WIRE_QP_ENDPOINT)
            endpoint->counters.drop_unknown_qp++;
        else if (packet->opcode == WIRE_ENDPOINT_REQUEST)
            endpoint_on_request(endpoint, now, packet, &intake->arrival);
        else
            endpoint_on_response(endpoint, now, packet, &intake->arrival);
        return;
    }
    if (!find_qp(endpoint, now, intake, packet->dest_qp))
        return;
    qp = intake->qp;
    if (!is_trimmed) {
        on_qp_packet(endpoint, now, intake, packet);
    } else if (qp->state == MRC_QP_RTS && !qp->is_closed) {
        struct cause cause = cause_of(&intake->arrival, packet);

        on_trimmed(endpoint, intake->qp, &cause, intake->encap->dscp);
    }
}

static void count_error(struct mrc_endpoint *endpoint, enum wire_error error) {
    switch (error) {
    case WIRE_OK:
        break;
    case WIRE_ERROR_OPCODE:
    case WIRE_ERROR_FIELD:
        endpoint->counters.drop_opcode++;
        break;
    case WIRE_ERROR_SHORT:
    case WIRE_ERROR_LONG:
        endpoint->counters.drop_short++;
        break;
    }
}

static bool icrc_is_right(const struct mrc_endpoint *endpoint, const struct encap *encap,
                          uint32_t index, const uint8_t *data, size_t size) {
    uint32_t state = encap_icrc_start(&endpoint->icrc, encap->ip, index, size);

    state = icrc_bth(&endpoint->icrc, state, data);
    state = endpoint->icrc.update(state, data + WIRE_BTH_SIZE,
                                  size - WIRE_BTH_SIZE - WIRE_ICRC_SIZE);
    return ~state == icrc_load(data + size - WIRE_ICRC_SIZE);
}

static void on_segment(struct mrc_endpoint *endpoint, int64_t now, struct intake *intake,
                       uint32_t index, const uint8_t *data, size_t size) {
    struct packet packet;
    enum wire_error error;
    bool is_trimmed;

    endpoint->counters.packets_received++;
    if (intake->encap->cut && !intake->is_trimmed) {
        endpoint->counters.drop_short++;
        return;
    }
    error = wire_get(data, size, intake->is_trimmed, &packet);
    if (error != WIRE_OK) {
        count_error(endpoint, error);
        return;
    }
    is_trimmed = intake->is_trimmed && wire_is_write(packet.opcode); /* nothing else ever is */
    if (!is_trimmed && !endpoint->config.headers_only &&
        !icrc_is_right(endpoint, intake->encap, index, data, size)) {
        endpoint->counters.drop_icrc++;
        return;
    }
    intake->arrival.nominal = (uint32_t)size + ENCAP_UDP_SIZE + 40;
    on_packet(endpoint, now, intake, &packet, is_trimmed);
}

void mrc_endpoint_receive(mrc_endpoint *endpoint, int64_t now, const mrc_frame_in *frame) {
    struct encap encap;
    struct intake intake = {.encap = &encap};
    struct arrival *arrival = &intake.arrival;
    size_t left, each;
    const uint8_t *at;

    endpoint->counters.frames_received++;
    if (frame->plane >= MRC_PLANES || !endpoint->planes[frame->plane].is_present) {
        endpoint->counters.drop_plane++;
        return;
    }
    switch (encap_get(frame->data, frame->size, &encap)) {
    case ENCAP_OK:
        break;
    case ENCAP_ERROR_SHORT:
        endpoint->counters.drop_short++;
        return;
    case ENCAP_ERROR_PROTOCOL:
    case ENCAP_ERROR_LENGTH:
        endpoint->counters.drop_protocol++;
        return;
    }
    if (encap.udp_port != endpoint->config.udp_port) {
        endpoint->counters.drop_port++;
        return;
    }
    if (frame->segment_size != 0 && frame->segment_size < WIRE_BTH_SIZE + WIRE_ICRC_SIZE) {
        endpoint->counters.drop_short++; /* once: not for each of 65000 segments of a byte */
        return;
    }
    arrival->plane = frame->plane;
    arrival->ev = encap.ev;
    arrival->is_marked = encap.ecn == ENCAP_ECN_CE;
    arrival->source.version = encap.source.version;
    memcpy(arrival->source.bytes, encap.source.bytes, sizeof arrival->source.bytes);
    memcpy(arrival->source_mac, encap.source_mac, sizeof arrival->source_mac);
    intake.is_trimmed = is_trim_mark(endpoint, encap.dscp);
    left = encap.segments_size;
    at = encap.segments;
    each = frame->segment_size != 0 ? frame->segment_size : left;
    for (uint32_t index = 0; left > 0; index++) {
        size_t size = each < left ? each : left;

        on_segment(endpoint, now, &intake, index, at, size);
        at += size;
        left -= size;
    }
    settle(endpoint, now, &intake);
}

void mrc_endpoint_drained(mrc_endpoint *endpoint, int64_t now) {
    struct qp *qp;

    while ((qp = qp_queue_pop(&endpoint->touched, QUEUE_TOUCHED)) != NULL) {
        responder_report(&qp->responder);
        endpoint_settle_qp(endpoint, now, qp);
    }
}
