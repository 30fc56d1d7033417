/* SPDX-License-Identifier: Apache-2.0 */
/* What a queue pair sends next: a probe, else what is lost, else new data; and on which path. */
#include <string.h>

#include "psn.h"
#include "requestor.h"

#define MAX_PACKET_AGE ((int64_t)1000000000) /* MRC 1.0, Queue pair */

enum {
    AGE_PSNS = 1 << 22,         /* MRC 1.0, Queue pair */
    NOMINAL_FIXED = 40 + 8 + 4, /* nominal size: UDP length + 40; UDP header, ICRC */
};

static uint32_t payload_of(const struct requestor *requestor, const struct write *write,
                           uint32_t index) {
    uint64_t offset = (uint64_t)index * requestor->mtu;
    uint64_t left = write->work.size - offset;

    return left < requestor->mtu ? (uint32_t)left : requestor->mtu;
}

static uint8_t opcode_of(const struct write *write, uint32_t index) {
    bool is_first = index == 0;
    bool is_last = index + 1 == write->packets;

    if (is_first && is_last)
        return write->work.has_immediate ? WIRE_WRITE_ONLY_IMM : WIRE_WRITE_ONLY;
    if (is_last)
        return write->work.has_immediate ? WIRE_WRITE_LAST_IMM : WIRE_WRITE_LAST;
    return is_first ? WIRE_WRITE_FIRST : WIRE_WRITE_MIDDLE;
}

static void fill(const struct requestor *requestor, const struct write *write, uint32_t psn,
                 struct packet *packet) {
    uint32_t index = (uint32_t)psn_diff(psn, write->first_psn);
    uint64_t offset = (uint64_t)index * requestor->mtu;

    memset(packet, 0, sizeof *packet);
    packet->opcode = opcode_of(write, index);
    packet->dest_qp = requestor->remote;
    packet->psn = psn;
    packet->rqmsn = (uint16_t)write->rqmsn;
    packet->msn = write->msn & 0xFFFF;
    packet->va = write->work.va + offset;
    packet->r_key = write->work.key;
    packet->dma_length = (uint32_t)write->work.size;
    packet->immediate = write->work.immediate;
    packet->payload_size = payload_of(requestor, write, index);
    if (packet->payload_size > 0)
        packet->payload = (const uint8_t *)write->work.data + offset;
}

static uint32_t nominal_of(uint8_t opcode, uint32_t payload) {
    return NOMINAL_FIXED + (uint32_t)wire_headers_size(opcode, false) + payload +
           wire_pad(payload);
}

static void note(struct requestor *requestor, int64_t now, struct write *write, uint32_t ev,
                 const struct packet *packet, struct peer_sent *sent) {
    struct sent *record = loss_on_sent(&requestor->loss, packet->psn, now, ev);

    record->write = write;
    record->size = (uint16_t)packet->payload_size;
    record->nominal = (uint16_t)nominal_of(packet->opcode, packet->payload_size);
    sent->packets++;
    sent->payload += record->size;
    sent->nominal += record->nominal;
}

static void finish(struct requestor *requestor, int64_t now, struct burst *burst,
                   struct peer_sent *sent) {
    struct packet *last = &burst->packets[burst->count - 1];
    uint64_t window = peer_window(requestor->peer);
    uint64_t inflight;

    sent->plane = burst->plane;
    sent->is_retransmission = burst->is_retransmission;
    peer_on_sent(requestor->peer, now, sent);
    inflight = peer_inflight(requestor->peer);
    if (inflight + requestor->mtu > window || window < requestor->config->sack_threshold ||
        (wire_ends_message(last->opcode) && requestor->unsent == NULL))
        last->ack_request = true;
    requestor->stats.packets_sent += burst->count;
    if (requestor->stats.packets_sent == burst->count || requestor->deadline == INT64_MAX)
        requestor_on_progress(requestor, now);
}

/* Chooses plane and EV. REQUESTOR_SENT: chosen. */
static enum requestor_state choose(struct requestor *requestor, uint32_t nominal, uint32_t avoid,
                                   struct burst *burst) {
    uint32_t usable = ev_profile_planes(&requestor->evs);
    uint32_t avoid_plane = avoid == EV_NONE ? MRC_PLANES : ev_plane(avoid);
    int plane = peer_pick(requestor->peer, usable, nominal, avoid_plane);

    if (plane == PEER_NO_PLANE)
        return REQUESTOR_WAITING;
    if (plane == PEER_NO_ROOM)
        return REQUESTOR_BLOCKED;
    burst->plane = (uint32_t)plane;
    if (!ev_profile_pick(&requestor->evs, burst->plane, avoid, &burst->ev))
        return REQUESTOR_WAITING;
    /* The last EV of a plane is not tried twice in a row while there is another plane. */
    if (burst->ev == avoid && nominal > 0 &&
        peer_has_another(requestor->peer, usable, burst->plane))
        return REQUESTOR_BLOCKED;
    return REQUESTOR_SENT;
}

static enum requestor_state send_probe(struct requestor *requestor, int64_t now,
                                       struct burst *burst) {
    struct packet *packet = &burst->packets[0];
    enum requestor_state state = REQUESTOR_SENT;

    burst->plane = requestor->probe_plane;
    if (burst->plane == MRC_PLANES ||
        requestor->peer->plane[burst->plane].path.state != MRC_PLANE_UP ||
        !ev_profile_pick(&requestor->evs, burst->plane, requestor->probe_ev, &burst->ev))
        state = choose(requestor, 0, requestor->probe_ev, burst);
    if (state != REQUESTOR_SENT)
        return state;
    requestor->probe_plane = MRC_PLANES;
    memset(packet, 0, sizeof *packet);
    packet->opcode = WIRE_PROBE;
    packet->dest_qp = requestor->remote;
    packet->probe_id = ++requestor->probe_id;
    packet->spdcid = (uint16_t)requestor->number;
    packet->dpdcid = (uint16_t)requestor->remote;
    packet->tx_timestamp = (uint16_t)(now / 128);
    packet->ftype = 1;
    burst->count = 1;
    burst->is_retransmission = false;
    requestor->wants_probe = false;
    requestor->is_probing = true;
    requestor->probe_sent = now;
    requestor->probe_ev = burst->ev;
    requestor->probe_order = requestor->loss.order++;
    requestor->probe_seen = 0;
    requestor->probe_cack = UINT32_MAX;
    requestor->stats.probes_sent++;
    path_on_sent(&requestor->peer->plane[burst->plane].path, now);
    return REQUESTOR_SENT;
}

static enum requestor_state resend(struct requestor *requestor, int64_t now, uint32_t psn,
                                   struct burst *burst) {
    struct sent *record = loss_record(&requestor->loss, psn);
    struct peer_sent sent = {0};
    enum requestor_state state = choose(requestor, record->nominal, record->ev, burst);

    if (state != REQUESTOR_SENT)
        return state;
    if (requestor_is_used_up(requestor, sent_in_vain(record))) {
        requestor->error = MRC_ERROR_RETRY_EXCEEDED;
        return REQUESTOR_WAITING;
    }
    fill(requestor, record->write, psn, &burst->packets[0]);
    burst->packets[0].rtx = true;
    burst->count = 1;
    burst->is_retransmission = true;
    note(requestor, now, record->write, burst->ev, &burst->packets[0], &sent);
    requestor->stats.packets_retransmitted++;
    finish(requestor, now, burst, &sent);
    return REQUESTOR_SENT;
}

/* Whether PSN loss.next may be used now: the peer's window, the age limit and a record for it.
 * REQUESTOR_SENT: it may. */
static enum requestor_state has_window(struct requestor *requestor, int64_t now) {
    struct loss *loss = &requestor->loss;

    if ((uint32_t)psn_diff(loss->next, loss->first) >= requestor->window_packets)
        return REQUESTOR_WAITING;
    if (now - requestor->age_start >= MAX_PACKET_AGE) {
        requestor->age_start = now;
        requestor->age_psns = 0;
    }
    if (requestor->age_psns >= AGE_PSNS) {
        requestor->resume_at = requestor->age_start + MAX_PACKET_AGE;
        return REQUESTOR_WAITING;
    }
    return loss_prepare(loss) ? REQUESTOR_SENT : REQUESTOR_STARVED;
}

/* Whether the next packet of the first unsent write may be sent; sets the write up. */
static bool may_send(struct requestor *requestor, int64_t now) {
    struct write *write = requestor->unsent;

    if (has_window(requestor, now) != REQUESTOR_SENT)
        return false;
    if (write->sent_packets > 0)
        return true;
    if (write->work.has_immediate) {
        if (requestor->wimm_outstanding >= requestor->max_wimm)
            return false;
        requestor->wimm_outstanding++;
        requestor->rqmsn++;
    }
    write->first_psn = requestor->loss.next;
    write->rqmsn = requestor->rqmsn;
    write->msn = requestor->msn++;
    return true;
}

/* Whether `packet` may follow in a frame whose packets have `size` bytes of payload. */
static bool fits(const struct burst *burst, const struct requestor *requestor, uint32_t size) {
    const struct write *write = requestor->unsent;
    uint32_t index = write->sent_packets;

    if (burst->count == 0)
        return true;
    return payload_of(requestor, write, index) <= size &&
           !wire_has_immediate(opcode_of(write, index));
}

static enum requestor_state send_new(struct requestor *requestor, int64_t now,
                                     struct burst *burst) {
    struct peer_sent sent = {0};
    struct write *write = requestor->unsent;
    uint32_t first = payload_of(requestor, write, write->sent_packets);
    uint8_t opcode = opcode_of(write, write->sent_packets);
    uint32_t most = 1;
    enum requestor_state state = choose(requestor, nominal_of(opcode, first), EV_NONE, burst);

    if (state != REQUESTOR_SENT)
        return state;
    burst->count = 0;
    burst->is_retransmission = false;
    if (!wire_has_immediate(opcode))
        most = peer_burst(requestor->peer, burst->plane, nominal_of(opcode, first));
    while (burst->count < most && requestor->unsent != NULL && fits(burst, requestor, first) &&
           may_send(requestor, now)) {
        struct packet *packet = &burst->packets[burst->count];

        write = requestor->unsent;
        fill(requestor, write, requestor->loss.next, packet);
        burst->count++;
        requestor->age_psns++;
        if (++write->sent_packets == write->packets)
            requestor->unsent = write->next;
        note(requestor, now, write, burst->ev, packet, &sent);
        if (packet->payload_size < first)
            break; /* only the last one of a frame may be shorter */
    }
    if (burst->count == 0)
        return REQUESTOR_WAITING;
    finish(requestor, now, burst, &sent);
    return REQUESTOR_SENT;
}

enum requestor_state requestor_next(struct requestor *requestor, int64_t now,
                                    struct burst *burst) {
    enum requestor_state state;
    uint32_t psn;

    if (requestor->error != 0)
        return REQUESTOR_WAITING;
    if (requestor->wants_probe)
        return send_probe(requestor, now, burst);
    if (loss_first_lost(&requestor->loss, &psn))
        return resend(requestor, now, psn, burst);
    if (requestor->unsent == NULL)
        return REQUESTOR_WAITING;
    state = has_window(requestor, now);
    return state == REQUESTOR_SENT ? send_new(requestor, now, burst) : state;
}
