/* SPDX-License-Identifier: Apache-2.0 */
#include "requestor.h"

#include <assert.h>
#include <string.h>

#include "psn.h"

#define MS ((int64_t)1000000)
#define ACK_TIMEOUT_FLOOR (5 * MS)   /* [choice] least timeout */
#define BACKOFF_MAX (1000 * MS)      /* longest wait between tries [choice] */
#define PROBE_MARGIN (MS / 5)        /* what an answer may take at the peer: twice its SACK timer */
#define MAX_PACKET_AGE (1000 * MS)   /* MRC 1.0, Queue pair */
#define SUSPECT_INTERVAL (20 * MS)   /* between probes of suspect EVs of a queue pair [choice] */

enum {
    AGE_PSNS = 1 << 22, /* MRC 1.0, Queue pair */
    FOR_EVER = 25,      /* exp_cnt that means no end */
    WINDOW_UNIT = 128,
    MPR_MAX = 32,
    NOMINAL_FIXED = 40 + 8 + 4, /* nominal size: UDP length + 40; UDP header, ICRC */
};

void requestor_init(struct requestor *requestor, int64_t now, const struct requestor_setup *setup) {
    const mrc_config *config = setup->config;

    memset(requestor, 0, sizeof *requestor);
    requestor->config = config;
    requestor->peer = setup->peer;
    requestor->write_pool = setup->write_pool;
    requestor->done = setup->done;
    requestor->events = setup->events;
    requestor->number = setup->local->number;
    requestor->remote = setup->remote->number;
    requestor->mtu = setup->remote->mtu;
    if (setup->local->mtu < setup->remote->mtu)
        requestor->mtu = setup->local->mtu;
    requestor->window_packets = setup->remote->mpr * WINDOW_UNIT;
    requestor->is_window_dynamic = setup->local->dynamic_mpr && setup->remote->dynamic_mpr;
    requestor->max_wimm = setup->remote->max_wimm;
    requestor->trim_nack = setup->remote->trim_nack;
    requestor->deadline = INT64_MAX;
    requestor->suspect_at = INT64_MAX;
    requestor->resume_at = INT64_MAX;
    requestor->probe_plane = MRC_PLANES;
    requestor->age_start = now;
    loss_init(&requestor->loss, setup->local->psn, setup->chunk_pool);
    requestor->acked = psn_add(setup->local->psn, -1);
    ev_profile_init(&requestor->evs, &(struct ev_profile_setup){
                                         .seed = setup->seed,
                                         .plane_mask = setup->plane_mask,
                                         .ways = peer_ways(setup->peer),
                                         .count = config->ev_count,
                                         .backup = config->ev_backup,
                                         .min_active = config->ev_min_active,
                                     });
    suspects_init(&requestor->suspects);
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if ((setup->plane_mask >> i & 1) && setup->peer->plane[i].path.state != MRC_PLANE_UP)
            ev_profile_plane_out(&requestor->evs, i);
    }
}

/* ---- Timers ---- */

static bool has_work(const struct requestor *requestor) { return requestor->head != NULL; }

static int64_t ack_timeout(const struct requestor *requestor) {
    int64_t timeout = requestor->config->ack_timeout;

    if (timeout != 0)
        return timeout;
    timeout = peer_answer_time(requestor->peer);
    return timeout > ACK_TIMEOUT_FLOOR ? timeout : ACK_TIMEOUT_FLOOR;
}

/* When nothing has come back by then, the next probe goes out: first after about an RTT, then
 * linear, then exponential. */
static void arm(struct requestor *requestor) {
    uint32_t tries = requestor->tries;
    int64_t wait = ack_timeout(requestor);
    int64_t answer = peer_answer_time(requestor->peer) + PROBE_MARGIN;

    if (!has_work(requestor) || requestor->head->sent_packets == 0) {
        requestor->deadline = INT64_MAX;
        return;
    }
    if (tries == 0 && answer < wait)
        wait = answer;
    for (; tries > requestor->config->linear_cnt && wait < BACKOFF_MAX; tries--)
        wait *= 2;
    if (requestor->config->ack_timeout == 0 && wait > BACKOFF_MAX)
        wait = BACKOFF_MAX;
    requestor->deadline = requestor->progress + wait;
}

static void on_progress(struct requestor *requestor, int64_t now) {
    requestor->progress = now;
    requestor->tries = 0;
    arm(requestor);
}

int64_t requestor_deadline(const struct requestor *requestor) {
    int64_t next = requestor->deadline < requestor->suspect_at ? requestor->deadline
                                                               : requestor->suspect_at;

    return next < requestor->resume_at ? next : requestor->resume_at;
}

/* ---- Posting and completing ---- */

int requestor_post(struct requestor *requestor, int64_t now, const mrc_write *work) {
    struct write *write = pool_take(requestor->write_pool);
    uint64_t packets = (work->size + requestor->mtu - 1) / requestor->mtu;

    if (write == NULL)
        return MRC_ERROR_FULL;
    memset(write, 0, sizeof *write);
    write->work = *work;
    write->packets = packets ? (uint32_t)packets : 1;
    if (requestor->head == NULL)
        requestor->head = write;
    else
        requestor->tail->next = write;
    requestor->tail = write;
    if (requestor->unsent == NULL)
        requestor->unsent = write;
    requestor->stats.writes_posted++;
    requestor->stats.bytes_posted += work->size;
    requestor->peer->worked = now;
    return MRC_OK;
}

static void complete(struct requestor *requestor, int status) {
    struct write *write = requestor->head;

    requestor->head = write->next;
    if (requestor->head == NULL)
        requestor->tail = NULL;
    if (requestor->unsent == write)
        requestor->unsent = write->next;
    write->status = status;
    write->next = NULL;
    if (requestor->done->head == NULL)
        requestor->done->head = write;
    else
        requestor->done->tail->next = write;
    requestor->done->tail = write;
    if (write->work.has_immediate && write->sent_packets > 0)
        requestor->wimm_outstanding--;
    if (status == MRC_OK) {
        requestor->stats.writes_completed++;
        requestor->stats.bytes_completed += write->work.size;
    }
}

void requestor_flush(struct requestor *requestor, int status) {
    uint32_t base = requestor->loss.first;
    uint32_t chunk;
    uint64_t lost;

    while (loss_sweep(&requestor->loss, &base, LOSS_PLANES, INT64_MAX, &chunk, &lost)) {
        for (; lost != 0; lost &= lost - 1) {
            uint32_t psn = psn_add(chunk, __builtin_ctzll(lost));
            const struct sent *record = loss_record(&requestor->loss, psn);

            peer_on_left(requestor->peer, ev_plane(record->ev), record->nominal);
        }
    }
    loss_clear(&requestor->loss);
    while (requestor->head != NULL)
        complete(requestor, status);
    requestor->unsent = NULL;
    requestor->wants_probe = false;
    requestor->deadline = INT64_MAX;
    requestor->suspect_at = INT64_MAX;
    requestor->resume_at = INT64_MAX;
}

/* ---- Sending ---- */

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
        on_progress(requestor, now);
}

/* Chooses plane and EV. REQUESTOR_SENT: chosen. */
static enum requestor_state choose(struct requestor *requestor, uint32_t nominal, uint32_t avoid,
                                   struct burst *burst) {
    uint32_t avoid_plane = avoid == EV_NONE ? MRC_PLANES : ev_plane(avoid);
    int plane = peer_pick(requestor->peer, nominal, avoid_plane);

    if (plane == PEER_NO_PLANE)
        return REQUESTOR_WAITING;
    if (plane == PEER_NO_ROOM)
        return REQUESTOR_BLOCKED;
    burst->plane = (uint32_t)plane;
    if (!ev_profile_pick(&requestor->evs, burst->plane, avoid, &burst->ev))
        return REQUESTOR_WAITING;
    /* The last EV of a plane is not tried twice in a row while there is another plane. */
    if (burst->ev == avoid && nominal > 0 && peer_has_another(requestor->peer, burst->plane))
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

static bool is_used_up(const struct requestor *requestor, uint32_t tries) {
    const mrc_config *config = requestor->config;

    return config->exp_cnt < FOR_EVER && tries > config->linear_cnt + config->exp_cnt;
}

static enum requestor_state resend(struct requestor *requestor, int64_t now, uint32_t psn,
                                   struct burst *burst) {
    struct sent *record = loss_record(&requestor->loss, psn);
    struct peer_sent sent = {0};
    enum requestor_state state = choose(requestor, record->nominal, record->ev, burst);

    if (state != REQUESTOR_SENT)
        return state;
    if (is_used_up(requestor, record->tries)) {
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

/* ---- What comes back ---- */

static void publish(struct requestor *requestor, int64_t now, uint32_t ev,
                    enum mrc_ev_state state) {
    mrc_event event = {.type = MRC_EVENT_EV,
                       .qp = requestor->number,
                       .peer = requestor->peer->number,
                       .plane = ev_plane(ev),
                       .ev = ev,
                       .state = state,
                       .time = now};

    events_add(requestor->events, &event);
}

static void path_failed(struct requestor *requestor, int64_t now, uint32_t ev) {
    if (!ev_profile_on_lost(&requestor->evs, ev))
        return;
    publish(requestor, now, ev, MRC_EV_ASSUMED_BAD);
    if (requestor->suspect_at == INT64_MAX)
        requestor->suspect_at = now + SUSPECT_INTERVAL;
}

static void on_judged(struct requestor *requestor, int64_t now, uint32_t base, uint64_t lost) {
    for (; lost != 0; lost &= lost - 1) {
        uint32_t psn = psn_add(base, __builtin_ctzll(lost));
        const struct sent *record = loss_record(&requestor->loss, psn);

        peer_on_lost(requestor->peer, now, ev_plane(record->ev), record->nominal);
        path_failed(requestor, now, record->ev);
    }
}

/* The EV of a SACK or NACK names the last attempt; IPv4 brings only its low half. */
static bool is_ev(const struct requestor *requestor, uint32_t said, uint32_t ev) {
    bool is_ipv4 = requestor->peer->setup.addresses[ev_plane(ev)].version == 4;

    return is_ipv4 ? (said & 0xFFFF) == (ev & 0xFFFF) : said == ev;
}

/* The record of the PSN that a SACK is for, if it says which attempt it was: NULL if ambiguous. */
static const struct sent *cause_of(const struct requestor *requestor, const struct packet *sack) {
    uint32_t psn = psn_add(sack->cack_psn, sack->ack_psn_offset);
    const struct sent *record;

    /* One that was called lost and has come after all tells as much. */
    if (sack->pr ||
        (!loss_is_outstanding(&requestor->loss, psn) && !loss_is_lost(&requestor->loss, psn)))
        return NULL;
    record = loss_record(&requestor->loss, psn);
    return record->tries <= 2 && is_ev(requestor, sack->entropy, record->ev) ? record : NULL;
}

/* Judges what the SACK speaks about: its stretch above cack, and cack + 1, which is missing by
 * definition when anything after it has come. */
static void judge(struct requestor *requestor, int64_t now, const struct packet *sack,
                  const struct loss_evidence *evidence) {
    uint32_t base = psn_add(sack->cack_psn, sack->sack_offset);
    uint32_t hole = psn_add(sack->cack_psn, 1);
    int32_t below = psn_diff(hole, base);
    uint64_t covered = below <= 0 ? ~0ull : below >= 64 ? 0 : ~0ull << below;

    if (base % 64 == 0)
        on_judged(requestor, now, base,
                  loss_judge(&requestor->loss, base, covered, sack->sack_bitmap, evidence));
    if (sack->ooo_count > 0 && !psn_in(hole, base, 64))
        on_judged(requestor, now, hole & ~63u,
                  loss_judge(&requestor->loss, hole & ~63u, 1ull << (hole % 64), 0, evidence));
}

/* An answer to our probe: when all its SACKs together show everything that has arrived, all that
 * is missing is known, whichever stretch it is in. */
static void on_probe_answer(struct requestor *requestor, int64_t now, const struct packet *sack,
                            const struct loss_evidence *evidence) {
    uint32_t base = psn_add(sack->cack_psn, sack->sack_offset);
    int32_t below = psn_diff(psn_add(sack->cack_psn, 1), base);
    uint64_t above = below <= 0 ? ~0ull : below >= 64 ? 0 : ~0ull << below;

    if (requestor->probe_cack == UINT32_MAX)
        requestor->probe_cack = sack->cack_psn;
    if (requestor->probe_cack == sack->cack_psn)
        requestor->probe_seen += (uint32_t)__builtin_popcountll(sack->sack_bitmap & above);
    if (requestor->probe_cack != sack->cack_psn || requestor->probe_seen < sack->ooo_count)
        return;
    requestor->is_probing = false;
    for (uint32_t chunk = requestor->loss.first & ~63u;
         psn_diff(chunk, requestor->loss.next) < 0; chunk = psn_add(chunk, 64))
        on_judged(requestor, now, chunk, loss_judge(&requestor->loss, chunk, ~0ull, 0, evidence));
}

/* The lowest PSN outstanding should have come, but no SACK speaks about it: ask, on its own plane
 * first, where the probe itself overtakes nothing. */
static void ask_about_suspects(struct requestor *requestor, int64_t now) {
    const struct path *path;
    const struct sent *record;
    uint32_t psn;

    if (requestor->is_probing && now - requestor->probe_sent < peer_answer_time(requestor->peer))
        return;
    if (!loss_first_outstanding(&requestor->loss, &psn))
        return;
    record = loss_record(&requestor->loss, psn);
    path = &requestor->peer->plane[ev_plane(record->ev)].path;
    if (now - record->time <= path->rtt + 4 * path->rtt_var + PROBE_MARGIN)
        return;
    requestor->probe_plane = requestor->is_probing ? MRC_PLANES : ev_plane(record->ev);
    requestor->wants_probe = true;
}

static uint64_t newly_received(struct requestor *requestor, const struct packet *sack) {
    uint32_t distance = (sack->rcvd_bytes - requestor->rcvd_bytes) & 0xFFFFFF;
    bool is_newer = distance != 0 && distance < 0x800000;

    if (!is_newer)
        return 0;
    requestor->rcvd_bytes = sack->rcvd_bytes;
    return (uint64_t)distance * 256;
}

static void take_arrivals(struct requestor *requestor, int64_t now, const struct packet *sack,
                          struct loss_tally *tally) {
    struct loss *loss = &requestor->loss;
    uint32_t base = psn_add(sack->cack_psn, sack->sack_offset);
    uint32_t psn = psn_add(sack->cack_psn, sack->ack_psn_offset);

    tally->planes = 0;
    tally->spurious = 0;
    tally->cleared_count = 0;
    tally->answerable = now - peer_rtt(requestor->peer) / 4;
    if (psn_diff(sack->cack_psn, loss->first) >= 0)
        loss_on_cumulative(loss, sack->cack_psn, tally);
    loss_on_bitmap(loss, base, sack->sack_bitmap, tally);
    if (!sack->pr)
        loss_on_bitmap(loss, psn & ~63u, 1ull << (psn % 64), tally);
    requestor->stats.packets_spurious += tally->spurious;
    if (tally->spurious > 0)
        peer_on_spurious(requestor->peer, now);
    for (uint32_t i = 0; i < tally->cleared_count; i++) {
        if (ev_profile_on_revived(&requestor->evs, tally->cleared[i], false))
            publish(requestor, now, tally->cleared[i], MRC_EV_GOOD);
    }
}

/* Both ends of the window hold: a cack that was never sent to, or a bitmap beyond, is a lie. */
static bool is_plausible(const struct requestor *requestor, const struct packet *sack) {
    const struct loss *loss = &requestor->loss;
    int32_t cack = psn_diff(sack->cack_psn, loss->next);

    return cack < 0 && cack >= -(int32_t)(1 << 22);
}

static void gather_evidence(struct requestor *requestor, int64_t now, const struct packet *sack,
                            struct loss_evidence *evidence) {
    uint32_t base = psn_add(sack->cack_psn, sack->sack_offset);
    bool is_answer = sack->pr && requestor->is_probing &&
                     (uint16_t)sack->ack_psn_offset == requestor->probe_id;

    evidence->plane_window =
        peer_reorder_windows(requestor->peer, now, evidence->reorder_window);
    if (base % 64 == 0)
        loss_gather(&requestor->loss, base, sack->sack_bitmap, evidence);
    if (is_answer) {
        evidence->has_ev = true;
        evidence->ev = requestor->probe_ev;
        evidence->order = requestor->probe_order;
        loss_evidence_add(evidence, requestor->probe_ev, requestor->probe_sent);
    }
}

bool requestor_on_sack(struct requestor *requestor, int64_t now, const struct packet *sack) {
    struct loss_tally tally;
    struct loss_evidence evidence = {0};
    const struct sent *cause;
    struct peer_sack said = {
        .tally = &tally,
        .rtt = -1,
        .plane = ev_plane(sack->entropy),
        .is_marked = sack->m == WIRE_MARK_SKIP_ONCE,
        .restore = sack->r_c,
        .penalty = sack->rcv_cwnd_pen,
    };

    requestor->stats.sacks_received++;
    if (!is_plausible(requestor, sack))
        return false;
    cause = cause_of(requestor, sack);
    if (cause != NULL) {
        said.rtt = now - cause->time;
        loss_evidence_add(&evidence, cause->ev, cause->time);
    }
    take_arrivals(requestor, now, sack, &tally);
    gather_evidence(requestor, now, sack, &evidence);
    said.new_bytes = newly_received(requestor, sack);
    if (sack->mpr != 0 && requestor->is_window_dynamic)
        requestor->window_packets = (sack->mpr < MPR_MAX ? sack->mpr : MPR_MAX) * WINDOW_UNIT;
    if (sack->m == WIRE_MARK_SKIP_ONCE)
        ev_profile_on_congested(&requestor->evs, sack->entropy);
    else if (sack->m == WIRE_MARK_ALWAYS_SKIP)
        path_failed(requestor, now, sack->entropy);
    judge(requestor, now, sack, &evidence);
    if (evidence.has_ev)
        on_probe_answer(requestor, now, sack, &evidence);
    peer_on_sack(requestor->peer, now, &said);
    ask_about_suspects(requestor, now);
    on_progress(requestor, now);
    return true;
}

static int nak_status(uint8_t syndrome) {
    if (syndrome == WIRE_SYNDROME_REMOTE_ACCESS)
        return MRC_ERROR_REMOTE_ACCESS;
    if (syndrome == WIRE_SYNDROME_REMOTE_OPERATION)
        return MRC_ERROR_REMOTE_OPERATION;
    return MRC_ERROR_INVALID_REQUEST;
}

/* Whether a packet that ends the queue pair may be the peer's: it names a PSN that was sent and not
 * executed, or the last one executed, which who forges it would have to guess. */
static bool is_current(const struct requestor *requestor, uint32_t psn) {
    return psn_diff(psn, requestor->acked) >= 0 && psn_diff(psn, requestor->loss.next) < 0;
}

bool requestor_on_ack(struct requestor *requestor, int64_t now, const struct packet *ack) {
    struct loss *loss = &requestor->loss;
    struct loss_tally tally = {.answerable = now};
    struct peer_sack said = {.tally = &tally, .rtt = -1, .plane = MRC_PLANES};

    if (ack->syndrome != WIRE_SYNDROME_ACK) {
        if (!is_current(requestor, ack->psn))
            return false;
        requestor->error = nak_status(ack->syndrome);
        return true;
    }
    if (psn_diff(ack->psn, loss->next) >= 0)
        return false;
    if (psn_diff(ack->psn, requestor->acked) > 0)
        requestor->acked = ack->psn;
    if (psn_diff(ack->psn, loss->first) >= 0)
        loss_on_cumulative(loss, ack->psn, &tally);
    while (requestor->head != NULL && requestor->head->sent_packets == requestor->head->packets) {
        struct write *write = requestor->head;
        uint32_t last = psn_add(write->first_psn, (int32_t)write->packets - 1);

        if (psn_diff(last, ack->psn) > 0)
            break;
        complete(requestor, MRC_OK);
    }
    peer_on_sack(requestor->peer, now, &said);
    on_progress(requestor, now);
    return true;
}

bool requestor_on_nack(struct requestor *requestor, int64_t now, const struct packet *nack) {
    bool is_trim =
        nack->reason == WIRE_NACK_TRIMMED || nack->reason == WIRE_NACK_TRIMMED_LASTHOP;
    const struct sent *record;

    requestor->stats.nacks_received++;
    if (nack->reason == WIRE_NACK_UNEXP_EVENT) {
        if (!is_current(requestor, nack->nack_psn))
            return false;
        requestor->error = MRC_ERROR_REMOTE_OPERATION;
        return true;
    }
    if (nack->reason == WIRE_NACK_TRIMMED)
        ev_profile_on_congested(&requestor->evs, nack->entropy);
    if (!loss_is_outstanding(&requestor->loss, nack->nack_psn))
        return is_trim;
    record = loss_record(&requestor->loss, nack->nack_psn);
    if (!is_ev(requestor, nack->entropy, record->ev))
        return is_trim;
    if (is_trim)
        peer_on_trimmed(requestor->peer, now, ev_plane(record->ev), record->nominal);
    else
        peer_on_refused(requestor->peer, now, ev_plane(record->ev), record->nominal);
    loss_on_lost(&requestor->loss, nack->nack_psn);
    on_progress(requestor, now);
    return true;
}

/* ---- Planes ---- */

void requestor_on_plane_out(struct requestor *requestor, int64_t now, uint32_t plane) {
    uint32_t base = requestor->loss.first;
    uint32_t chunk;
    uint64_t lost;

    ev_profile_plane_out(&requestor->evs, plane);
    while (loss_sweep(&requestor->loss, &base, plane, INT64_MAX, &chunk, &lost)) {
        for (; lost != 0; lost &= lost - 1) {
            uint32_t psn = psn_add(chunk, __builtin_ctzll(lost));

            peer_on_lost(requestor->peer, now, plane,
                         loss_record(&requestor->loss, psn)->nominal);
        }
    }
}

void requestor_on_plane_up(struct requestor *requestor, int64_t now, uint32_t plane) {
    ev_profile_plane_back(&requestor->evs, plane);
    requestor_on_peer_heard(requestor, now);
}

void requestor_on_peer_heard(struct requestor *requestor, int64_t now) {
    if (!has_work(requestor) || requestor->tries == 0)
        return;
    requestor->wants_probe = true;
    on_progress(requestor, now);
}

void requestor_on_suspect_answered(struct requestor *requestor, int64_t now, uint32_t ev) {
    const mrc_config *config = requestor->config;

    if (suspects_on_answer(&requestor->suspects, now, ev, config->probes_to_revive,
                           config->revive_spread) &&
        ev_profile_on_revived(&requestor->evs, ev, false))
        publish(requestor, now, ev, MRC_EV_GOOD);
}

/* ---- Timeouts ---- */

/* Rule (e): the timer of what was sent before `before` has run out. */
static void expire(struct requestor *requestor, int64_t now, int64_t before) {
    uint32_t base = requestor->loss.first;
    uint32_t chunk;
    uint64_t lost;

    requestor->stats.timeouts++;
    while (loss_sweep(&requestor->loss, &base, LOSS_PLANES, before, &chunk, &lost))
        on_judged(requestor, now, chunk, lost);
}

void requestor_on_timeout(struct requestor *requestor, int64_t now, uint32_t *suspect) {
    *suspect = EV_NONE;
    if (requestor->resume_at <= now)
        requestor->resume_at = INT64_MAX; /* the caller asks for what is to be sent */
    if (requestor->suspect_at <= now) {
        bool has_any = suspects_next(&requestor->suspects, &requestor->evs, suspect);

        requestor->suspect_at =
            has_any && ev_profile_bad(&requestor->evs) > 0 ? now + SUSPECT_INTERVAL : INT64_MAX;
    }
    if (requestor->deadline > now)
        return;
    if (is_used_up(requestor, requestor->tries)) {
        requestor->error = MRC_ERROR_RETRY_EXCEEDED;
        requestor->deadline = INT64_MAX;
        return;
    }
    if (requestor->tries > 0)
        expire(requestor, now, now - ack_timeout(requestor));
    requestor->tries++;
    requestor->progress = now;
    requestor->wants_probe = true;
    arm(requestor);
}
