/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoint operations: EV probes and Port Status Updates, asked and answered.
 *
 * Connectionless, queue pair number 2. An answer counts only if id, time stamp and source are those
 * of a request that is out: 32 bits that a stranger would have to guess, on the right plane.
 * Source: MRC 1.0, Endpoint operations.
 */
#include <assert.h>
#include <string.h>

#include "endpoint.h"

#define ANSWERS_TO_STRANGERS 1000 /* a second, to all of them: rate-limited [choice] */
#define ANSWERS_TO_A_PEER 20000   /* a second, to each: none uses up what others need [choice] */
#define BUCKET_DEPTH ((int64_t)100000000) /* ns that may be saved up: a tenth of the rate at once */
#define SECOND ((int64_t)1000000000)

void endpoint_control(struct mrc_endpoint *endpoint, const struct control *control) {
    uint32_t size = endpoint->config.max_controls;

    if (endpoint->control_count == size) {
        endpoint->counters.controls_full++;
        return;
    }
    endpoint->controls[(endpoint->control_head + endpoint->control_count++) % size] = *control;
}

static bool is_same(const mrc_address *a, const mrc_address *b) {
    return a->version == b->version && memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

/* Takes one token; tokens come back at `rate` a second. */
static bool bucket_take(struct bucket *bucket, int64_t now, int64_t rate) {
    int64_t cost = SECOND / rate;

    bucket->tokens_ns += bucket->has_started ? now - bucket->last : BUCKET_DEPTH;
    bucket->has_started = true;
    bucket->last = now;
    if (bucket->tokens_ns > BUCKET_DEPTH)
        bucket->tokens_ns = BUCKET_DEPTH;
    if (bucket->tokens_ns < cost)
        return false;
    bucket->tokens_ns -= cost;
    return true;
}

/* ---- Answering ---- */

/* Whether the source of a request may have another answer now. */
static bool may_answer(struct mrc_endpoint *endpoint, int64_t now, const mrc_address *source) {
    struct peer_entry *entry = endpoint_find_peer(endpoint, source, NULL);

    if (entry == NULL)
        return bucket_take(&endpoint->strangers, now, ANSWERS_TO_STRANGERS);
    for (; entry != NULL; entry = endpoint_find_peer(endpoint, source, entry)) {
        if (bucket_take(&entry->answers, now, ANSWERS_TO_A_PEER))
            return true;
    }
    return false;
}

void endpoint_on_request(struct mrc_endpoint *endpoint, int64_t now, const struct packet *packet,
                         const struct arrival *arrival) {
    struct peer_entry *entry = endpoint_find_peer(endpoint, &arrival->source, NULL);
    struct control control = {
        .kind = CONTROL_RESPONSE,
        .cause = {.plane = arrival->plane, .ev = arrival->ev, .timestamp = packet->tx_timestamp},
        .op = packet->op,
        .id = (uint16_t)packet->psn,
        .destination = arrival->source,
    };

    if (packet->op != WIRE_OP_EV_PROBE && packet->op != WIRE_OP_PORT_STATUS) {
        endpoint->counters.drop_opcode++;
        return;
    }
    if (entry == NULL && packet->op == WIRE_OP_PORT_STATUS) {
        endpoint->counters.drop_source++;
        return;
    }
    if (!may_answer(endpoint, now, &arrival->source)) {
        endpoint->counters.drop_rate++;
        return;
    }
    memcpy(control.destination_mac, arrival->source_mac, sizeof control.destination_mac);
    endpoint->counters.probes_answered++;
    endpoint_control(endpoint, &control);
    for (; entry != NULL; entry = endpoint_find_peer(endpoint, &arrival->source, entry)) {
        entry->peer.heard = now;
        if (packet->op == WIRE_OP_PORT_STATUS)
            peer_on_port_status(&entry->peer, now, packet->port_status_mask);
        endpoint_settle_peer(endpoint, now, entry);
    }
}

/* ---- Asking ---- */

/* A place for a request, instead of the oldest one that no user waits for. */
static struct asked *ask(struct mrc_endpoint *endpoint, int64_t now) {
    for (uint32_t i = 0; i < endpoint->config.max_probes; i++) {
        uint32_t index = endpoint->asked_next++ % endpoint->config.max_probes;
        struct asked *asked = &endpoint->asked[index];

        if (asked->kind == ASKED_BY_USER)
            continue;
        memset(asked, 0, sizeof *asked);
        asked->id = (uint16_t)(index | (prng_next(&endpoint->prng) & 0xFFFF) *
                                           endpoint->config.max_probes);
        asked->timestamp = (uint16_t)(now / 128);
        asked->sent = now;
        return asked;
    }
    return NULL;
}

static void request(struct mrc_endpoint *endpoint, const struct asked *asked, uint8_t dscp,
                    const uint8_t *mac, uint32_t mask) {
    struct control control = {
        .kind = CONTROL_REQUEST,
        .cause = {.plane = asked->plane, .ev = asked->ev, .timestamp = asked->timestamp},
        .op = asked->kind == ASKED_STATUS ? WIRE_OP_PORT_STATUS : WIRE_OP_EV_PROBE,
        .dscp = dscp,
        .id = asked->id,
        .mask = mask,
        .size = asked->size,
        .count = asked->kind == ASKED_PATH && asked->probe == PATH_PROBE_BURST ? 2 : 1,
        .destination = asked->destination,
    };

    memcpy(control.destination_mac, mac, sizeof control.destination_mac);
    endpoint_control(endpoint, &control);
}

/* From us to us: what leaves is the answer itself. */
static void go_round(struct mrc_endpoint *endpoint, const struct asked *asked,
                     const mrc_probe *probe) {
    struct control control = {
        .kind = CONTROL_ROUND_TRIP,
        .cause = {.plane = asked->plane, .ev = asked->ev, .timestamp = asked->timestamp},
        .op = WIRE_OP_EV_PROBE,
        .dscp = probe->dscp,
        .id = asked->id,
        .size = asked->size,
        .destination = probe->carrier,
        .next_carrier = probe->next_carrier,
    };

    memcpy(control.destination_mac, probe->destination_mac, sizeof control.destination_mac);
    endpoint_control(endpoint, &control);
}

static uint8_t probe_dscp(const struct mrc_endpoint *endpoint) {
    return endpoint->config.trimming ? endpoint->config.dscp_trimmable
                                     : endpoint->config.dscp_no_trim;
}

void endpoint_send_peer_probe(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry,
                              const struct peer_probe *probe) {
    struct peer_plane *plane = &entry->peer.plane[probe->plane];
    struct asked *asked = ask(endpoint, now);
    static const enum path_probe kinds[PEER_PROBE_KINDS] = {
        [PEER_PROBE_SMALL] = PATH_PROBE_SMALL,   [PEER_PROBE_FULL] = PATH_PROBE_FULL,
        [PEER_PROBE_BURST] = PATH_PROBE_BURST,   [PEER_PROBE_SECOND] = PATH_PROBE_SMALL,
        [PEER_PORT_STATUS] = PATH_PROBE_SMALL,   [PEER_PROBE_FULL_SECOND] = PATH_PROBE_FULL,
    };

    if (asked == NULL)
        return;
    asked->kind = probe->kind == PEER_PORT_STATUS ? ASKED_STATUS : ASKED_PATH;
    asked->plane = probe->plane;
    asked->ev = probe->ev;
    asked->peer = entry->peer.number;
    asked->size = probe->size;
    asked->probe = (uint8_t)kinds[probe->kind];
    asked->destination = entry->peer.setup.addresses[probe->plane];
    plane->stats.probes_sent++;
    request(endpoint, asked,
            asked->kind == ASKED_STATUS ? endpoint->config.dscp_control : probe_dscp(endpoint),
            plane->mac, peer_status_mask(&entry->peer));
}

void endpoint_send_suspect_probe(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp,
                                 uint32_t ev) {
    struct asked *asked = ask(endpoint, now);
    struct peer_plane *plane = &qp->peer->plane[ev_plane(ev)];

    if (asked == NULL)
        return;
    asked->kind = ASKED_SUSPECT;
    asked->plane = ev_plane(ev);
    asked->ev = ev;
    asked->peer = qp->peer->number;
    asked->qp = qp->number;
    asked->destination = qp->peer->setup.addresses[asked->plane];
    plane->stats.probes_sent++;
    request(endpoint, asked, probe_dscp(endpoint), plane->mac, 0);
}

int mrc_endpoint_probe(mrc_endpoint *endpoint, int64_t now, const mrc_probe *probe) {
    bool is_round_trip = probe->carrier.version != 0;
    const mrc_plane *info;
    struct asked *asked;

    if (probe->plane >= MRC_PLANES || !endpoint->planes[probe->plane].is_present)
        return MRC_ERROR_ARGUMENT;
    info = &endpoint->planes[probe->plane].info;
    if (info->address.version == 0 || probe->timeout <= 0 || probe->dscp > 63 ||
        probe->size > info->mtu ||
        (is_round_trip ? probe->carrier.version != 6 || info->address.version != 6
                       : probe->destination.version != info->address.version) ||
        (probe->next_carrier.version != 0 &&
         (probe->next_carrier.version != 6 || !is_round_trip)))
        return MRC_ERROR_ARGUMENT;
    if (endpoint->asked_by_user >= endpoint->config.max_probes / 2)
        return MRC_ERROR_FULL;
    asked = ask(endpoint, now);
    if (asked == NULL)
        return MRC_ERROR_FULL;
    asked->kind = ASKED_BY_USER;
    asked->plane = probe->plane;
    asked->ev = probe->ev;
    asked->size = probe->size;
    asked->deadline = now + probe->timeout;
    asked->tag = probe->tag;
    asked->destination = is_round_trip ? info->address : probe->destination;
    endpoint->asked_by_user++;
    if (is_round_trip)
        go_round(endpoint, asked, probe);
    else
        request(endpoint, asked, probe->dscp, probe->destination_mac, 0);
    endpoint_expire_probes(endpoint, now);
    return MRC_OK;
}

/* ---- Answers ---- */

static void end_user_probe(struct mrc_endpoint *endpoint, int64_t now, struct asked *asked,
                           int status) {
    mrc_event event = {.type = MRC_EVENT_PROBE,
                       .status = status,
                       .plane = asked->plane,
                       .ev = asked->ev,
                       .tag = asked->tag,
                       .rtt = now - asked->sent,
                       .time = now};

    events_add(&endpoint->events, &event);
    asked->kind = ASKED_FREE;
    endpoint->asked_by_user--;
}

static void on_path_answered(struct mrc_endpoint *endpoint, int64_t now,
                             const struct asked *asked) {
    struct peer_entry *entry = &endpoint->peers[asked->peer];
    struct peer *peer = &entry->peer;
    struct peer_plane *plane = &peer->plane[asked->plane];
    uint32_t needed = peer->mtu ? peer_packet_size(peer, asked->plane, peer->mtu) : 0;
    struct qp *qp;

    if (!peer->is_used)
        return;
    peer->heard = now;
    peer_on_answer(peer, now);
    plane->stats.probes_answered++;
    peer_on_arrival(peer, now, asked->sent);
    if (asked->kind == ASKED_STATUS) {
        peer->status_at = INT64_MAX;
        path_on_acked(&plane->path, now);
    } else if (asked->kind == ASKED_PATH) {
        if (peer_is_cut_off(peer)) /* a plane that flaps is better than none */
            path_forgive(&plane->path, &endpoint->config);
        path_on_answer(&plane->path, &endpoint->config, now, (enum path_probe)asked->probe,
                       asked->sent, asked->ev, asked->size, needed);
        if (asked->probe == PATH_PROBE_FULL &&
            path_wants_samples(&plane->path, &endpoint->config)) {
            plane->due |= 1u << PEER_PROBE_FULL;
            entry->is_probing = true;
        }
    } else if ((qp = endpoint_find_qp(endpoint, asked->qp)) != NULL && qp->peer == peer &&
               qp->state == MRC_QP_RTS) {
        requestor_on_suspect_answered(&qp->requestor, now, asked->ev);
    }
    endpoint_settle_peer(endpoint, now, entry);
}

void endpoint_on_response(struct mrc_endpoint *endpoint, int64_t now, const struct packet *packet,
                          const struct arrival *arrival) {
    struct asked *asked = &endpoint->asked[packet->psn % endpoint->config.max_probes];
    uint16_t id = (uint16_t)packet->psn;
    uint8_t op = asked->kind == ASKED_STATUS ? WIRE_OP_PORT_STATUS : WIRE_OP_EV_PROBE;

    if (asked->kind == ASKED_FREE || asked->id != id ||
        packet->tx_timestamp != asked->timestamp || packet->op != op ||
        asked->plane != arrival->plane || !is_same(&asked->destination, &arrival->source)) {
        endpoint->counters.drop_stale++;
        return;
    }
    if (asked->kind == ASKED_BY_USER) {
        end_user_probe(endpoint, now, asked, MRC_OK);
        endpoint_expire_probes(endpoint, now);
        return;
    }
    on_path_answered(endpoint, now, asked);
    /* The two probes of a burst have one id and are both counted. */
    if (asked->kind != ASKED_PATH || asked->probe != PATH_PROBE_BURST)
        asked->kind = ASKED_FREE;
}

void endpoint_expire_probes(struct mrc_endpoint *endpoint, int64_t now) {
    int64_t next = TIMER_NEVER;

    for (uint32_t i = 0; i < endpoint->config.max_probes && endpoint->asked_by_user > 0; i++) {
        struct asked *asked = &endpoint->asked[i];

        if (asked->kind != ASKED_BY_USER)
            continue;
        if (asked->deadline <= now)
            end_user_probe(endpoint, now, asked, MRC_ERROR_PEER_SILENT);
        else if (asked->deadline < next)
            next = asked->deadline;
    }
    timer_heap_set(&endpoint->timers, endpoint_probe_timer(endpoint), next);
}
