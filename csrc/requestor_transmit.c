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

/* The same for `count` packets of equal size, of which only the last may end the message. */
static void fill_run(const struct requestor *requestor, const struct write *write, uint32_t psn,
                     uint32_t count, struct packet *packets) {
    fill(requestor, write, psn, packets);
    for (uint32_t i = 1; i < count; i++) {
        packets[i] = packets[i - 1];
        packets[i].opcode = WIRE_WRITE_MIDDLE;
        packets[i].psn = psn_add(psn, (int32_t)i);
        packets[i].va += requestor->mtu;
        packets[i].payload += requestor->mtu;
    }
    packets[count - 1].opcode = opcode_of(write, write->sent_packets + count - 1);
}

static uint32_t nominal_of(uint8_t opcode, uint32_t payload) {
    return NOMINAL_FIXED + (uint32_t)wire_headers_size(opcode, false) + payload +
           wire_pad(payload);
}

static struct attempt attempt_of(int64_t now, struct write *write, uint32_t ev,
                                 const struct packet *packet) {
    return (struct attempt){.time = now,
                            .write = write,
                            .ev = ev,
                            .nominal = (uint16_t)nominal_of(packet->opcode, packet->payload_size),
                            .size = (uint16_t)packet->payload_size};
}

static void add_sent(struct peer_sent *sent, uint32_t count, const struct attempt *attempt) {
    sent->packets += count;
    sent->payload += (uint64_t)count * attempt->size;
    sent->nominal += (uint64_t)count * attempt->nominal;
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
    requestor->sent = now;
    if (requestor->stats.packets_sent == burst->count || requestor->deadline == INT64_MAX)
        requestor_on_progress(requestor, now);
    else if (requestor->loss.order - burst->count == requestor->probe_order + 1)
        requestor_arm(requestor); /* the first one behind a probe */
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
    const struct sent *record = loss_record(&requestor->loss, psn);
    struct write *write = record->write;
    struct peer_sent sent = {0};
    struct attempt attempt;
    enum requestor_state state = choose(requestor, record->nominal, record->ev, burst);

    if (state != REQUESTOR_SENT)
        return state;
    if (requestor_is_used_up(requestor, sent_in_vain(record))) {
        requestor->error = MRC_ERROR_RETRY_EXCEEDED;
        return REQUESTOR_WAITING;
    }
    fill(requestor, write, psn, &burst->packets[0]);
    burst->packets[0].rtx = true;
    burst->count = 1;
    burst->is_retransmission = true;
    attempt = attempt_of(now, write, burst->ev, &burst->packets[0]);
    loss_on_resent(&requestor->loss, psn, &attempt);
    add_sent(&sent, 1, &attempt);
    requestor->stats.packets_retransmitted++;
    finish(requestor, now, burst, &sent);
    return REQUESTOR_SENT;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Whether PSN loss.next may be used now: the peer's window, the age limit and a record for it.
 * REQUESTOR_SENT: it may, and *room - 1 more. */
static enum requestor_state has_window(struct requestor *requestor, int64_t now, uint32_t *room) {
    struct loss *loss = &requestor->loss;
    uint32_t outstanding = (uint32_t)psn_diff(loss->next, loss->first);

    if (outstanding >= requestor->window_packets)
        return REQUESTOR_WAITING;
    if (now - requestor->age_start >= MAX_PACKET_AGE) {
        requestor->age_start = now;
        requestor->age_psns = 0;
    }
    if (requestor->age_psns >= AGE_PSNS) {
        requestor->resume_at = requestor->age_start + MAX_PACKET_AGE;
        return REQUESTOR_WAITING;
    }
    *room = least(requestor->window_packets - outstanding, AGE_PSNS - requestor->age_psns);
    *room = least(*room, loss_prepare(loss));
    return *room > 0 ? REQUESTOR_SENT : REQUESTOR_STARVED;
}

/* How many packets of equal size come next of a write; one with an immediate comes alone. */
static uint32_t next_run(const struct requestor *requestor, const struct write *write) {
    uint32_t left = write->packets - write->sent_packets;
    bool is_last_alike = payload_of(requestor, write, write->packets - 1) == requestor->mtu &&
                         !write->work.has_immediate;

    return left > 1 && !is_last_alike ? left - 1 : left;
}

/* How many packets of the first unsent write may be sent now, of equal size; sets it up. */
static uint32_t may_send(struct requestor *requestor, int64_t now) {
    struct write *write = requestor->unsent;
    uint32_t room;

    if (has_window(requestor, now, &room) != REQUESTOR_SENT)
        return 0;
    room = least(room, next_run(requestor, write));
    if (write->sent_packets > 0)
        return room;
    if (write->work.has_immediate) {
        if (requestor->wimm_outstanding >= requestor->max_wimm)
            return 0;
        requestor->wimm_outstanding++;
        requestor->rqmsn++;
    }
    write->first_psn = requestor->loss.next;
    write->rqmsn = requestor->rqmsn;
    write->msn = requestor->msn++;
    return room;
}

/* Whether the next packet may follow in a frame whose packets have `size` bytes of payload. */
static bool fits(const struct burst *burst, const struct requestor *requestor, uint32_t size) {
    const struct write *write = requestor->unsent;
    uint32_t index = write->sent_packets;

    if (burst->count == 0)
        return true;
    return payload_of(requestor, write, index) <= size &&
           !wire_has_immediate(opcode_of(write, index));
}

/* Takes the next `count` packets of the first unsent write, which are of equal size. */
static void take_run(struct requestor *requestor, int64_t now, uint32_t count,
                     struct burst *burst, struct peer_sent *sent) {
    struct write *write = requestor->unsent;
    struct packet *packets = &burst->packets[burst->count];
    struct attempt attempt;

    fill_run(requestor, write, requestor->loss.next, count, packets);
    attempt = attempt_of(now, write, burst->ev, packets);
    loss_on_sent(&requestor->loss, count, &attempt);
    add_sent(sent, count, &attempt);
    burst->count += count;
    requestor->age_psns += count;
    write->sent_packets += count;
    if (write->sent_packets == write->packets)
        requestor->unsent = write->next;
}

static enum requestor_state send_new(struct requestor *requestor, int64_t now,
                                     struct burst *burst) {
    struct peer_sent sent = {0};
    const struct write *write = requestor->unsent;
    uint32_t first = payload_of(requestor, write, write->sent_packets);
    uint8_t opcode = opcode_of(write, write->sent_packets);
    uint32_t nominal = nominal_of(opcode, first);
    uint32_t most = 1;
    enum requestor_state state = choose(requestor, nominal, EV_NONE, burst);

    if (state != REQUESTOR_SENT)
        return state;
    burst->count = 0;
    burst->is_retransmission = false;
    if (!wire_has_immediate(opcode))
        most = peer_burst(requestor->peer, burst->plane, nominal);
    while (burst->count < most && requestor->unsent != NULL && fits(burst, requestor, first)) {
        uint32_t count = least(may_send(requestor, now), most - burst->count);

        if (count == 0)
            break;
        take_run(requestor, now, count, burst, &sent);
        if (burst->packets[burst->count - 1].payload_size < first)
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
    uint32_t psn, room;

    if (requestor->error != 0)
        return REQUESTOR_WAITING;
    if (requestor->wants_probe)
        return send_probe(requestor, now, burst);
    if (loss_first_lost(&requestor->loss, &psn))
        return resend(requestor, now, psn, burst);
    if (requestor->unsent == NULL)
        return REQUESTOR_WAITING;
    state = has_window(requestor, now, &room);
    return state == REQUESTOR_SENT ? send_new(requestor, now, burst) : state;
}
