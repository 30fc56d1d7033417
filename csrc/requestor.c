/* SPDX-License-Identifier: Apache-2.0 */
#include "requestor.h"

#include <string.h>

#include "psn.h"

#define MS ((int64_t)1000000)
#define ACK_TIMEOUT_FLOOR (5 * MS)   /* [choice] least timeout */
#define PAUSE_MAX (100 * MS)         /* [choice] a host may not be running for so long */
#define BACKOFF_MAX (1000 * MS)      /* longest wait between tries [choice] */
#define SUSPECT_INTERVAL (20 * MS)   /* between probes of suspect EVs of a queue pair [choice] */

enum {
    FOR_EVER = 25, /* exp_cnt that means no end */
    WINDOW_UNIT = 128,
    MPR_MAX = 32,
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
    requestor->refused_at = INT64_MAX;
    requestor->probe_plane = MRC_PLANES;
    requestor->probe_order = UINT32_MAX;
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

/* What an answer to a probe may take beyond the way: twice the SACK timer of its peer. */
static int64_t probe_margin(const struct requestor *requestor) {
    return 2 * requestor->config->sack_delay;
}

/* How long to wait after so many vain tries: first about an RTT, then linear, then exponential. */
static int64_t patience(const struct requestor *requestor, uint32_t tries) {
    int64_t wait = ack_timeout(requestor);
    int64_t answer = peer_answer_time(requestor->peer) + probe_margin(requestor);

    if (tries == 0 && answer < wait)
        wait = answer;
    for (; tries > requestor->config->linear_cnt && wait < BACKOFF_MAX; tries--)
        wait *= 2;
    if (requestor->config->ack_timeout == 0 && wait > BACKOFF_MAX)
        wait = BACKOFF_MAX;
    return wait;
}

/* Twice the longest empty way, and what an answer may take. */
static int64_t tail_deadline(const struct requestor *requestor) {
    return requestor->sent + 2 * peer_longest_way(requestor->peer) + probe_margin(requestor);
}

/* Nothing has followed what was sent last, not even a probe, that could show its loss: there is no
 * more, or no room for it. */
static bool has_tail(const struct requestor *requestor) {
    const struct loss *loss = &requestor->loss;

    return requestor->tries == 0 && loss->outstanding_count > 0 && !requestor->wants_probe &&
           loss->order != requestor->probe_order + 1;
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

/* When nothing has come back by then, the next probe goes out. Where all that is left was refused,
 * sending it again is as good as a probe. Behind a tail one goes out sooner: it waits in the same
 * queues, so that the loss is known when they have let it pass, and not a round trip later. */
void requestor_arm(struct requestor *requestor) {
    const struct loss *loss = &requestor->loss;
    bool is_refused = loss->refused_count > 0 && loss->outstanding_count + loss->lost_count == 0;

    requestor->deadline = requestor->progress + patience(requestor, requestor->tries);
    if (!has_work(requestor) || requestor->head->sent_packets == 0 || is_refused)
        requestor->deadline = INT64_MAX;
    else if (has_tail(requestor))
        requestor->deadline = earlier(requestor->deadline, tail_deadline(requestor));
}

void requestor_on_progress(struct requestor *requestor, int64_t now) {
    requestor->progress = now;
    requestor->answered = now;
    requestor->tries = 0;
    requestor_arm(requestor);
}

bool requestor_is_used_up(const struct requestor *requestor, uint32_t tries) {
    const mrc_config *config = requestor->config;

    return config->exp_cnt < FOR_EVER && tries > config->linear_cnt + config->exp_cnt;
}

int64_t requestor_deadline(const struct requestor *requestor) {
    return earlier(earlier(requestor->deadline, requestor->suspect_at),
                   earlier(requestor->resume_at, requestor->refused_at));
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

/* Attempts that are given up, whatever became of them. */
static void let_go(struct requestor *requestor, uint32_t base, uint64_t given_up) {
    for (; given_up != 0; given_up &= given_up - 1) {
        uint32_t psn = psn_add(base, __builtin_ctzll(given_up));
        const struct sent *record = loss_record(&requestor->loss, psn);

        peer_on_left(requestor->peer, ev_plane(record->ev), record->nominal);
    }
}

void requestor_flush(struct requestor *requestor, int status) {
    uint32_t base = requestor->loss.first;
    uint32_t chunk;
    uint64_t lost;

    while (loss_sweep(&requestor->loss, &base, LOSS_PLANES, INT64_MAX, &chunk, &lost))
        let_go(requestor, chunk, lost);
    loss_clear(&requestor->loss);
    while (requestor->head != NULL)
        complete(requestor, status);
    requestor->unsent = NULL;
    requestor->wants_probe = false;
    requestor->deadline = INT64_MAX;
    requestor->suspect_at = INT64_MAX;
    requestor->resume_at = INT64_MAX;
    requestor->refused_at = INT64_MAX;
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

static void note_dead(struct requestor *requestor, uint32_t ev) {
    for (uint32_t i = 0; i < requestor->dead_count; i++) {
        if (requestor->dead_evs[i] == ev)
            return;
    }
    if (requestor->dead_count < REQUESTOR_DEAD)
        requestor->dead_evs[requestor->dead_count++] = ev;
}

static void path_failed(struct requestor *requestor, int64_t now, uint32_t ev, bool is_dead) {
    if (is_dead)
        note_dead(requestor, ev);
    if (!ev_profile_on_lost(&requestor->evs, ev, is_dead))
        return;
    publish(requestor, now, ev, MRC_EV_ASSUMED_BAD);
    if (requestor->suspect_at == INT64_MAX)
        requestor->suspect_at = now + SUSPECT_INTERVAL;
}

void requestor_on_path_dead(struct requestor *requestor, int64_t now, uint32_t ev) {
    path_failed(requestor, now, ev, true);
    requestor->dead_count = 0; /* whoever told us tells all */
}

/* Judges a stretch of 64 PSNs (loss_judge). */
static void judge_stretch(struct requestor *requestor, int64_t now, uint32_t base,
                          uint64_t covered, uint64_t arrived,
                          const struct loss_evidence *evidence) {
    struct loss_verdict verdict =
        loss_judge(&requestor->loss, base, covered, arrived, evidence);

    for (; verdict.lost != 0; verdict.lost &= verdict.lost - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(verdict.lost);
        const struct sent *record = loss_record(&requestor->loss, psn_add(base, (int32_t)i));

        peer_on_lost(requestor->peer, now, ev_plane(record->ev), record->nominal);
        peer_on_path(requestor->peer, ev_plane(record->ev), record->ev, false);
        if (verdict.blamed >> i & 1)
            path_failed(requestor, now, record->ev,
                        loss_is_path_dead(&requestor->loss, psn_add(base, (int32_t)i),
                                          ev_profile_is_bad(&requestor->evs, record->ev)));
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
        judge_stretch(requestor, now, base, covered, sack->sack_bitmap, evidence);
    if (sack->ooo_count > 0 && !psn_in(hole, base, 64))
        judge_stretch(requestor, now, hole & ~63u, 1ull << (hole % 64), 0, evidence);
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
        judge_stretch(requestor, now, chunk, ~0ull, 0, evidence);
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
    if (now - record->time <= path->rtt + 4 * path->rtt_var + probe_margin(requestor))
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
    evidence->proved = peer_on_arrival(requestor->peer, now, evidence->latest);
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
        said.size = cause->size;
        loss_evidence_add(&evidence, cause->ev, cause->time);
        peer_on_path(requestor->peer, ev_plane(cause->ev), cause->ev, true);
    }
    take_arrivals(requestor, now, sack, &tally);
    gather_evidence(requestor, now, sack, &evidence);
    said.new_bytes = newly_received(requestor, sack);
    if (sack->mpr != 0 && requestor->is_window_dynamic)
        requestor->window_packets = (sack->mpr < MPR_MAX ? sack->mpr : MPR_MAX) * WINDOW_UNIT;
    if (sack->m == WIRE_MARK_SKIP_ONCE)
        ev_profile_on_congested(&requestor->evs, sack->entropy, EV_TURNS_MARKED);
    else if (sack->m == WIRE_MARK_ALWAYS_SKIP)
        path_failed(requestor, now, sack->entropy, false);
    judge(requestor, now, sack, &evidence);
    if (evidence.has_ev)
        on_probe_answer(requestor, now, sack, &evidence);
    peer_on_sack(requestor->peer, now, &said);
    ask_about_suspects(requestor, now);
    requestor_on_progress(requestor, now);
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
    requestor_on_progress(requestor, now);
    return true;
}

/* When a PSN that was refused is sent again: each has its own budget, which lasts as long as that
 * of one which is never answered. */
static int64_t refused_until(const struct requestor *requestor, const struct sent *record) {
    return record->time + patience(requestor, sent_in_vain(record) - 1u);
}

/* The peer has no room, perhaps for long: its application may be slow. Nothing has come of the
 * packet, so the timer of the others goes on. */
static void on_refused(struct requestor *requestor, int64_t now, uint32_t psn,
                       const struct sent *record) {
    peer_on_refused(requestor->peer, now, ev_plane(record->ev), record->nominal);
    loss_on_refused(&requestor->loss, psn);
    requestor->refused_at = earlier(requestor->refused_at, refused_until(requestor, record));
    requestor_arm(requestor);
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
        ev_profile_on_congested(&requestor->evs, nack->entropy, EV_TURNS_TRIMMED);
    if (!loss_is_outstanding(&requestor->loss, nack->nack_psn))
        return is_trim;
    record = loss_record(&requestor->loss, nack->nack_psn);
    if (!is_ev(requestor, nack->entropy, record->ev))
        return is_trim;
    if (!is_trim) {
        on_refused(requestor, now, nack->nack_psn, record);
        return true;
    }
    peer_on_trimmed(requestor->peer, now, ev_plane(record->ev), record->nominal,
                    nack->reason == WIRE_NACK_TRIMMED_LASTHOP);
    loss_on_trimmed(&requestor->loss, nack->nack_psn);
    requestor_on_progress(requestor, now);
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
    requestor_on_progress(requestor, now);
}

void requestor_on_suspect_answered(struct requestor *requestor, int64_t now, uint32_t ev) {
    const mrc_config *config = requestor->config;

    if (suspects_on_answer(&requestor->suspects, now, ev, config->probes_to_revive,
                           config->revive_spread) &&
        ev_profile_on_revived(&requestor->evs, ev, false))
        publish(requestor, now, ev, MRC_EV_GOOD);
}

bool requestor_deny(struct requestor *requestor, uint32_t ev, bool is_denied) {
    uint32_t before = ev_profile_planes(&requestor->evs);

    if (!ev_profile_deny(&requestor->evs, ev, is_denied))
        return false;
    if (ev_profile_planes(&requestor->evs) & ~before)
        peer_level(requestor->peer, ev_plane(ev));
    return true;
}

/* ---- Timeouts ---- */

/* What ran out of time says nothing of its path as long as nothing comes by any. Where the plane
 * has answered a probe since, the way that this one took is to blame: a queue pair that knows no
 * other would send on it for ever. */
static void blame_path(struct requestor *requestor, int64_t now, uint32_t psn) {
    const struct sent *record = loss_record(&requestor->loss, psn);
    uint32_t plane = ev_plane(record->ev);

    if (peer_answered(requestor->peer, plane) > record->time + ack_timeout(requestor))
        path_failed(requestor, now, record->ev, false);
}

/* Rule (e): the timer of what was sent before `before` has run out. It is sent again. */
static void expire(struct requestor *requestor, int64_t now, int64_t before) {
    uint32_t base = requestor->loss.first;
    uint32_t chunk;
    uint64_t lost;

    requestor->stats.timeouts++;
    while (loss_sweep(&requestor->loss, &base, LOSS_PLANES, before, &chunk, &lost)) {
        let_go(requestor, chunk, lost);
        for (; lost != 0; lost &= lost - 1)
            blame_path(requestor, now, psn_add(chunk, __builtin_ctzll(lost)));
    }
}

/* Those that have been refused for long enough are to be sent again. */
static void try_refused(struct requestor *requestor, int64_t now) {
    struct loss *loss = &requestor->loss;

    requestor->refused_at = INT64_MAX;
    for (uint32_t psn = loss->first; loss_next_refused(loss, &psn); psn = psn_add(psn, 1)) {
        int64_t until = refused_until(requestor, loss_record(loss, psn));

        if (until <= now)
            loss_release(loss, psn);
        else
            requestor->refused_at = earlier(requestor->refused_at, until);
    }
}

static void ask_behind_tail(struct requestor *requestor, int64_t now) {
    uint32_t psn;

    requestor->progress = now; /* its answer is waited for like any other */
    if (loss_first_outstanding(&requestor->loss, &psn))
        requestor->probe_plane = ev_plane(loss_record(&requestor->loss, psn)->ev);
    requestor->wants_probe = true;
}

void requestor_on_timeout(struct requestor *requestor, int64_t now, uint32_t *suspect) {
    *suspect = EV_NONE;
    if (requestor->refused_at <= now)
        try_refused(requestor, now);
    if (requestor->resume_at <= now)
        requestor->resume_at = INT64_MAX; /* the caller asks for what is to be sent */
    if (requestor->suspect_at <= now) {
        bool has_any = suspects_next(&requestor->suspects, &requestor->evs, suspect);

        requestor->suspect_at =
            has_any && ev_profile_bad(&requestor->evs) > 0 ? now + SUSPECT_INTERVAL : INT64_MAX;
    }
    if (requestor->deadline > now)
        return;
    if (has_tail(requestor) && now < requestor->progress + patience(requestor, 0)) {
        if (tail_deadline(requestor) <= now)
            ask_behind_tail(requestor, now);
        requestor_arm(requestor); /* more may have been sent since it was armed */
        return;
    }
    if (requestor_is_used_up(requestor, requestor->tries)) {
        requestor->error = MRC_ERROR_RETRY_EXCEEDED;
        requestor->deadline = INT64_MAX;
        return;
    }
    if (requestor->tries > 0 && now - requestor->answered >= PAUSE_MAX)
        expire(requestor, now, now - ack_timeout(requestor));
    requestor->tries++;
    requestor->progress = now;
    requestor->wants_probe = true;
    requestor_arm(requestor);
}
