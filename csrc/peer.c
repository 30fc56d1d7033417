/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <assert.h>
#include <string.h>

#define MS ((int64_t)1000000)
#define WORK_MEMORY (1000 * MS)       /* a peer counts as busy that long after it worked [choice] */
#define RECEIVING_MEMORY (100 * MS)   /* and as sending to us that long [choice] */
#define REFRESH (10 * MS)             /* [choice] of the reverse EV set; else an RTT */
#define IDLE_REFRESH (1000 * MS)      /* the same: when idle */
#define REORDER_MEMORY (1000 * MS)    /* the window's scale halves after that long without cause */
#define STATUS_FIRST (5 * MS)         /* Port Status Update: first repetition, doubling [choice] */
#define REPLY_MARGIN MS               /* beyond REPLY_FACTOR times the least RTT [choice] */
#define RATE_UNKNOWN 10000000000ull   /* of a link that does not tell its speed [choice] */

enum {
    REORDER_SCALE_MAX = 4,
    REPLY_FACTOR = 4, /* [choice] */
    HOST_PAUSE_MS = 10, /* that a software host may not be running [choice] */
    FRAME_BYTES = 65000, /* [choice] most of a burst: an IP length has 16 bits */
    HEADERS = 40 + 8 + 12 + 4 + 16 + 4 + 4, /* IPv6 UDP BTH METH RETH ImmDt ICRC */
    TSETH = 4,
    IPV4_LESS = 20,
    OUTER_IPV6 = 40, /* SRv6 */
    OUTER_SRH = 24,
    NOMINAL_EXTRA = 40 /* nominal size is UDP length + 40 */
};

void peer_init(struct peer *peer, const mrc_config *config, const struct plane *planes,
               uint32_t number, uint64_t seed, int64_t now, const mrc_peer_setup *setup) {
    memset(peer, 0, sizeof *peer);
    peer->config = config;
    peer->planes = planes;
    peer->setup = *setup;
    peer->number = number;
    peer->is_used = true;
    peer->reorder_scale = 1;
    peer->added = now;
    peer->heard = peer->answered = now;
    peer->worked = now;
    peer->received = now - RECEIVING_MEMORY;
    peer->status_at = INT64_MAX;
    prng_init(&peer->prng, seed, setup->incarnation);
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        path_init(&peer->plane[i].path, now);
        peer->told[i] = planes[i].info.address;
        peer_on_facts(peer, now, i);
    }
}

void peer_on_setup(struct peer *peer, int64_t now, const mrc_peer_setup *setup) {
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if (setup->addresses[i].version == 0)
            continue;
        peer->setup.addresses[i] = setup->addresses[i];
        peer->setup.remote_planes[i] = setup->remote_planes[i];
        peer->told[i] = peer->planes[i].info.address;
        peer_on_facts(peer, now, i);
    }
    peer->setup.srv6 = setup->srv6;
    peer->setup.ev_values = setup->ev_values;
}

/* Whether a plane has the address that the peer knows it by: from another it takes nothing. */
static bool has_told_address(const struct peer *peer, uint32_t plane) {
    const mrc_address *told = &peer->told[plane];
    const mrc_address *now = &peer->planes[plane].info.address;

    return now->version != 0 && now->version == told->version &&
           memcmp(now->bytes, told->bytes, sizeof now->bytes) == 0;
}

static bool has_srv6(const struct peer *peer) { return peer->setup.srv6.block_size > 0; }

/* The kernel refuses a frame of several packets with an outer IPv6 header (ENOMEM). */
static bool may_burst(const struct peer *peer) {
    return peer->config->burst > 1 && !has_srv6(peer);
}

bool peer_names_paths(const struct peer *peer) {
    return has_srv6(peer) || peer->setup.ev_values != 0;
}

uint32_t peer_ways(const struct peer *peer) {
    if (has_srv6(peer))
        return peer->setup.srv6.uplinks;
    return peer->setup.ev_values ? peer->setup.ev_values : PEER_EV_VALUES;
}

uint32_t peer_packet_size(const struct peer *peer, uint32_t plane, uint32_t mtu) {
    bool is_ipv4 = peer->setup.addresses[plane].version == 4;
    uint32_t outer = !has_srv6(peer) || is_ipv4 ? 0 : OUTER_IPV6;

    if (outer > 0 && peer->setup.srv6.srh)
        outer += OUTER_SRH;
    return mtu + HEADERS + TSETH + outer - (is_ipv4 ? IPV4_LESS : 0);
}

static uint32_t needed(const struct peer *peer, uint32_t plane) {
    return peer->mtu ? peer_packet_size(peer, plane, peer->mtu) : 0;
}

static enum mrc_plane_reason blocked(const struct peer *peer, uint32_t plane) {
    const struct plane *local = &peer->planes[plane];

    if (!local->info.enabled)
        return MRC_REASON_DISABLED;
    if (!local->info.up)
        return MRC_REASON_LINK;
    if (!has_told_address(peer, plane) || !peer->plane[plane].has_mac ||
        local->info.address.version != peer->setup.addresses[plane].version)
        return MRC_REASON_ADDRESS;
    if (local->info.mtu < needed(peer, plane))
        return MRC_REASON_MTU;
    return MRC_REASON_NONE;
}

void peer_on_facts(struct peer *peer, int64_t now, uint32_t plane) {
    struct path_facts facts = {
        .is_paired = peer->planes[plane].is_present && peer->setup.addresses[plane].version != 0,
    };

    if (facts.is_paired) {
        facts.blocked = blocked(peer, plane);
        if (plane >= peer->plane_end)
            peer->plane_end = plane + 1;
    }
    path_on_facts(&peer->plane[plane].path, peer->config, now, &facts);
}

static uint64_t plane_rate(const struct peer *peer, uint32_t plane) {
    uint64_t rate = peer->planes[plane].info.rate_bps;
    uint64_t count = 0;

    if (peer->config->rate_bps == 0)
        return rate ? rate : RATE_UNKNOWN;
    for (uint32_t i = 0; i < peer->plane_end; i++)
        count += peer->plane[i].path.state != MRC_PLANE_ABSENT;
    return peer->config->rate_bps / (count ? count : 1) + 1;
}

static bool is_up(const struct peer *peer, uint32_t plane) {
    return peer->plane[plane].path.state == MRC_PLANE_UP;
}

bool peer_is_cut_off(const struct peer *peer) {
    for (uint32_t i = 0; i < peer->plane_end; i++) {
        if (is_up(peer, i))
            return false;
    }
    return true;
}

bool peer_can_ask(const struct peer *peer) {
    for (uint32_t i = 0; i < peer->plane_end; i++) {
        if (peer->plane[i].path.probe_at != INT64_MAX)
            return true;
    }
    return false;
}

static uint64_t total_rate(const struct peer *peer) {
    uint64_t rate = 0;

    for (uint32_t i = 0; i < peer->plane_end; i++)
        rate += is_up(peer, i) ? plane_rate(peer, i) : 0;
    return rate;
}

/* What a packet takes on the longest of the planes that are up, when they are empty. */
int64_t peer_longest_way(const struct peer *peer) {
    int64_t most = 0;

    for (uint32_t i = 0; i < peer->plane_end; i++) {
        if (is_up(peer, i) && peer->plane[i].path.rtt_full > most)
            most = peer->plane[i].path.rtt_full;
    }
    return most;
}

/* [choice] With one window for all planes a longer one would look like a queue: every sample counts
 * as if its plane were as long as the longest. */
static int64_t evened_rtt(const struct peer *peer, uint32_t plane, int64_t rtt) {
    return rtt - peer->plane[plane].path.rtt_full + peer_longest_way(peer);
}

/* What a host that was not running for a while has to have under way. Where the rate is known, no
 * more than the links take meanwhile: it would only stand in their queues. */
static uint64_t window_floor(const mrc_config *config, uint64_t rate, uint32_t nominal,
                             uint32_t planes) {
    uint64_t floor = (uint64_t)config->window_floor_packets * nominal * planes;
    uint64_t pause = rate / 8 * HOST_PAUSE_MS / 1000;

    return config->rate_bps != 0 && pause < floor ? pause : floor;
}

static void start_nscc(const struct peer *peer, struct nscc *nscc, int64_t now, uint64_t rate,
                       int64_t rtt, uint32_t planes) {
    const mrc_config *config = peer->config;
    uint32_t nominal = peer->mtu + HEADERS;
    struct nscc_config settings = {
        .rate_bps = rate,
        .mtu = nominal,
        .trimming = config->trimming,
        .base_rtt_floor = config->base_rtt_floor,
        .target_delay_floor = config->target_delay_floor,
        .window_floor = window_floor(config, rate, nominal, planes),
    };

    nscc_init(nscc, &settings, now, rtt);
    /* [choice] A software host does not know its links' true rates: it starts with a quarter of
     * the floor and finds out. */
    if (config->window_floor_packets != 0 && settings.window_floor / 4 < nscc->cwnd)
        nscc->cwnd = settings.window_floor / 4;
}

/* It does not catch up on what it missed. */
void peer_level(struct peer *peer, uint32_t plane) {
    uint64_t *dealt = &peer->plane[plane].dealt;

    for (uint32_t i = 0; i < peer->plane_end; i++) {
        if (peer->plane[i].dealt > *dealt)
            *dealt = peer->plane[i].dealt;
    }
}

static void start_plane(struct peer *peer, int64_t now, uint32_t plane) {
    struct peer_plane *to = &peer->plane[plane];
    uint32_t count = 0;

    for (uint32_t i = 0; i < peer->plane_end; i++)
        count += is_up(peer, i);
    peer_level(peer, plane);
    to->is_limited = false;
    start_nscc(peer, &to->nscc, now, plane_rate(peer, plane), to->path.rtt_full, 1);
    if (!peer->has_nscc)
        start_nscc(peer, &peer->nscc, now, total_rate(peer), peer_longest_way(peer), count);
    peer->has_nscc = true;
    nscc_set_way(&peer->nscc, total_rate(peer), peer_longest_way(peer));
}

uint32_t peer_take_changes(struct peer *peer, int64_t now) {
    uint32_t changed = 0;

    for (uint32_t i = 0; i < peer->plane_end; i++) {
        struct peer_plane *plane = &peer->plane[i];

        if (!plane->path.is_changed)
            continue;
        plane->path.is_changed = false;
        changed |= 1u << i;
        if (plane->is_carrying == is_up(peer, i))
            continue;
        plane->is_carrying = is_up(peer, i);
        if (!plane->is_carrying)
            plane->stats.outages++;
        else if (plane->stats.outages > 0)
            plane->stats.recoveries++;
        if (plane->is_carrying)
            start_plane(peer, now, i);
        else if (peer->has_nscc && total_rate(peer) > 0)
            nscc_set_way(&peer->nscc, total_rate(peer), peer_longest_way(peer));
    }
    return changed;
}

void peer_on_qp(struct peer *peer, int64_t now, uint32_t mtu) {
    peer->qp_count++;
    peer->worked = now;
    if (mtu <= peer->mtu)
        return;
    peer->mtu = mtu;
    for (uint32_t i = 0; i < peer->plane_end; i++) {
        peer_on_facts(peer, now, i);
        path_on_needed(&peer->plane[i].path, now, needed(peer, i));
    }
}

static bool is_equal(const struct peer *peer) {
    return peer->config->policy == MRC_POLICY_EQUAL;
}

uint64_t peer_window(const struct peer *peer) {
    uint64_t sum = 0;

    if (is_equal(peer))
        return peer->has_nscc ? peer->nscc.cwnd : 0;
    for (uint32_t i = 0; i < peer->plane_end; i++)
        sum += is_up(peer, i) ? peer->plane[i].nscc.cwnd : 0;
    return sum;
}

/* Whether plane a should get the next packet rather than b. */
static bool is_better(const struct peer *peer, uint32_t a, uint32_t b) {
    const struct peer_plane *left = &peer->plane[a];
    const struct peer_plane *right = &peer->plane[b];

    if (is_equal(peer))
        return left->dealt < right->dealt;
    /* Windows are below 2^38, so that the products fit. */
    return (left->inflight >> 6) * (right->nscc.cwnd >> 6) <
           (right->inflight >> 6) * (left->nscc.cwnd >> 6);
}

static bool has_room(const struct peer *peer, uint32_t plane, uint32_t nominal) {
    const struct peer_plane *to = &peer->plane[plane];

    if (nominal == 0)
        return true; /* a probe: what is to end a standstill must not wait for room */
    if (is_equal(peer))
        return nscc_has_room(&peer->nscc, peer_inflight(peer), nominal);
    return nscc_has_room(&to->nscc, to->inflight, nominal);
}

/* Policy equal picks the plane whose turn it is and waits for it; adaptive looks only at planes
 * that can take the packet now. */
int peer_pick(struct peer *peer, uint32_t usable, uint32_t nominal, uint32_t avoid) {
    int best = PEER_NO_PLANE;
    /* Among equals in turn; with nothing in flight, with the answers: one system call for both. */
    uint32_t first = peer_inflight(peer) == 0 ? peer->replies : peer->rotation++;
    uint32_t plane = peer->plane_end == 0 ? 0 : first % peer->plane_end;

    for (uint32_t left = peer->plane_end; left > 0;
         left--, plane = plane + 1 == peer->plane_end ? 0 : plane + 1) {
        if (!is_up(peer, plane) || !(usable >> plane & 1))
            continue;
        if (!is_equal(peer) && (peer->planes[plane].is_busy || !has_room(peer, plane, nominal))) {
            peer->plane[plane].is_limited = true;
            best = best == PEER_NO_PLANE ? PEER_NO_ROOM : best;
        } else if (best < 0 || (uint32_t)best == avoid ||
                   (plane != avoid && is_better(peer, plane, (uint32_t)best))) {
            best = (int)plane;
        }
    }
    if (best < 0 || !is_equal(peer))
        return best;
    if (peer->planes[best].is_busy || !has_room(peer, (uint32_t)best, nominal)) {
        peer->plane[best].is_limited = true;
        return PEER_NO_ROOM;
    }
    return best;
}

bool peer_has_another(const struct peer *peer, uint32_t usable, uint32_t plane) {
    for (uint32_t i = 0; i < peer->plane_end; i++) {
        if (i != plane && is_up(peer, i) && (usable >> i & 1))
            return true;
    }
    return false;
}

uint32_t peer_burst(const struct peer *peer, uint32_t plane, uint32_t packet_size) {
    uint32_t planes = 0;
    uint64_t most;
    uint64_t fair;

    if (!may_burst(peer) || !path_can_burst(&peer->plane[plane].path))
        return 1;
    for (uint32_t i = 0; i < peer->plane_end; i++)
        planes += is_up(peer, i);
    most = FRAME_BYTES / packet_size;
    fair = peer_window(peer) / (2ull * (planes ? planes : 1) * packet_size);
    most = fair < most ? fair : most;
    most = most < peer->config->burst ? most : peer->config->burst;
    return most > 1 ? (uint32_t)most : 1;
}

void peer_on_sent(struct peer *peer, int64_t now, const struct peer_sent *sent) {
    struct peer_plane *to = &peer->plane[sent->plane];

    if (to->inflight == 0)
        nscc_on_begin(&to->nscc, now);
    if (to->inflight == 0 && peer_inflight(peer) == 0)
        nscc_on_begin(&peer->nscc, now);
    to->inflight += sent->nominal;
    peer->inflight += sent->nominal;
    to->dealt += sent->nominal;
    to->stats.packets_sent += sent->packets;
    to->stats.bytes_sent += sent->payload;
    if (sent->is_retransmission)
        to->stats.packets_retransmitted += sent->packets;
    peer->worked = now;
    path_on_sent(&to->path, now);
}

static void leave(struct peer *peer, uint32_t plane, uint64_t nominal) {
    assert(peer->plane[plane].inflight >= nominal && peer->inflight >= nominal);
    peer->plane[plane].inflight -= nominal;
    peer->inflight -= nominal;
}

static void take_tally(struct peer *peer, int64_t now, const struct loss_tally *tally) {
    for (uint32_t planes = tally->planes; planes != 0; planes &= planes - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(planes);
        struct peer_plane *plane = &peer->plane[i];
        const struct loss_tally_plane *said = &tally->plane[i];

        leave(peer, i, said->left);
        plane->stats.packets_acked += said->packets;
        plane->stats.bytes_acked += said->payload;
        if (said->left > 0)
            path_on_acked(&plane->path, now);
    }
}

static void feed_plane(struct peer *peer, int64_t now, uint32_t i, const struct peer_sack *sack) {
    struct peer_plane *plane = &peer->plane[i];
    const struct loss_tally_plane *said = &sack->tally->plane[i];
    bool has_tally = sack->tally->planes >> i & 1;
    struct nscc_sack feed = {
        .now = now,
        .new_bytes = has_tally ? said->nominal : 0,
        .rtt = sack->plane == i ? sack->rtt : -1,
        .least_rtt = plane->path.rtt_full,
        .inflight = plane->inflight,
        .limited = plane->is_limited,
        .marked = sack->is_marked && sack->plane == i,
        .penalty = sack->penalty,
        .restore = sack->restore,
    };

    if (is_equal(peer) || !is_up(peer, i))
        return;
    plane->is_limited = false;
    nscc_on_sack(&plane->nscc, &feed);
}

/* A plane is judged by what the others did meanwhile. */
static void check_silence(struct peer *peer, int64_t now) {
    for (uint32_t i = 0; i < peer->plane_end; i++)
        path_check_silence(&peer->plane[i].path, peer->config, now, peer->hindsight.proved);
}

void peer_on_sack(struct peer *peer, int64_t now, const struct peer_sack *sack) {
    uint32_t planes = sack->tally->planes | (sack->plane < MRC_PLANES ? 1u << sack->plane : 0);
    bool is_limited = false;

    take_tally(peer, now, sack->tally);
    if (sack->plane < MRC_PLANES && sack->rtt >= 0)
        path_on_data_rtt(&peer->plane[sack->plane].path, sack->rtt, sack->size >= peer->mtu);
    if (sack->is_marked && sack->plane < MRC_PLANES)
        peer->plane[sack->plane].stats.ce_marks++;
    for (uint32_t rest = planes; rest != 0; rest &= rest - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(rest);

        is_limited = is_limited || peer->plane[i].is_limited;
        feed_plane(peer, now, i, sack);
    }
    if (is_equal(peer) && peer->has_nscc) {
        struct nscc_sack feed = {
            .now = now,
            .new_bytes = sack->new_bytes,
            .rtt = sack->plane < MRC_PLANES && sack->rtt >= 0
                       ? evened_rtt(peer, sack->plane, sack->rtt)
                       : -1,
            .least_rtt = peer_longest_way(peer),
            .inflight = peer_inflight(peer),
            .limited = is_limited,
            .marked = sack->is_marked,
            .penalty = sack->penalty,
            .restore = sack->restore,
        };

        for (uint32_t i = 0; i < peer->plane_end; i++)
            peer->plane[i].is_limited = false;
        nscc_on_sack(&peer->nscc, &feed);
    }
    check_silence(peer, now);
}

void peer_on_left(struct peer *peer, uint32_t plane, uint64_t nominal) {
    leave(peer, plane, nominal);
}

void peer_on_refused(struct peer *peer, int64_t now, uint32_t plane, uint64_t nominal) {
    leave(peer, plane, nominal);
    path_on_acked(&peer->plane[plane].path, now); /* the path is not to blame */
}

void peer_on_path(struct peer *peer, uint32_t plane, uint32_t ev, bool works) {
    struct path *path = &peer->plane[plane].path;

    if (works)
        path_note_reverse(path, ev);
    else
        path_forget_reverse(path, ev);
}

void peer_on_lost(struct peer *peer, int64_t now, uint32_t plane, uint64_t nominal) {
    struct peer_plane *from = &peer->plane[plane];

    leave(peer, plane, nominal);
    from->stats.packets_lost++;
    path_on_lost(&from->path, now, 1);
    if (is_equal(peer) && peer->has_nscc)
        nscc_on_loss(&peer->nscc, now, (uint32_t)nominal, peer_inflight(peer));
    else if (is_up(peer, plane))
        nscc_on_loss(&from->nscc, now, (uint32_t)nominal, from->inflight);
}

void peer_on_trimmed(struct peer *peer, int64_t now, uint32_t plane, uint32_t nominal,
                     bool is_last_hop) {
    struct peer_plane *from = &peer->plane[plane];

    leave(peer, plane, nominal);
    from->stats.trims++;
    path_on_acked(&from->path, now); /* the path answers; it is only full */
    if (is_equal(peer) && peer->has_nscc)
        nscc_on_trim(&peer->nscc, now, nominal, peer_inflight(peer), is_last_hop);
    else if (is_up(peer, plane))
        nscc_on_trim(&from->nscc, now, nominal, from->inflight, is_last_hop);
}

void peer_on_answer(struct peer *peer, int64_t now) {
    peer->answered = now;
    peer->asked = 0;
}

int64_t peer_on_arrival(struct peer *peer, int64_t now, int64_t sent) {
    return hindsight_add(&peer->hindsight, now, sent);
}

void peer_on_spurious(struct peer *peer, int64_t now) {
    if (now - peer->reorder_changed < peer_rtt(peer))
        return;
    if (peer->reorder_scale < REORDER_SCALE_MAX)
        peer->reorder_scale *= 2;
    peer->reorder_changed = now;
}

/* Least and mean RTT over the planes that are up; 0 when there is none. */
static int64_t least_rtt(const struct peer *peer) {
    int64_t least = 0;

    for (uint32_t i = 0; i < peer->plane_end; i++) {
        const struct path *path = &peer->plane[i].path;

        if (path->state == MRC_PLANE_UP && path->rtt != 0 && (least == 0 || path->rtt < least))
            least = path->rtt;
    }
    return least;
}

int64_t peer_rtt(const struct peer *peer) {
    int64_t sum = 0;
    int64_t count = 0;

    for (uint32_t i = 0; i < peer->plane_end; i++) {
        if (!is_up(peer, i))
            continue;
        sum += peer->plane[i].path.rtt;
        count++;
    }
    return count ? sum / count : 0;
}

int64_t peer_answer_time(const struct peer *peer) {
    int64_t most = 0;

    for (uint32_t i = 0; i < peer->plane_end; i++) {
        const struct path *path = &peer->plane[i].path;
        int64_t time = path->rtt + 4 * path->rtt_var;

        if (path->state == MRC_PLANE_UP && time > most)
            most = time;
    }
    return most;
}

/* A packet of plane p that was sent before one that has arrived may be later than it by the
 * difference of the two paths' delays and their spread. */
int64_t peer_reorder_windows(const struct peer *peer, int64_t now, int64_t windows[MRC_PLANES]) {
    int64_t least = least_rtt(peer);
    /* A quarter of an RTT; a software host, which has a floor, is late by as much [choice]. */
    int64_t hiccup = peer->config->base_rtt_floor / 5;
    int64_t floor = least / 4 > hiccup ? least / 4 : hiccup;
    int64_t scale = peer->reorder_scale;
    int64_t quiet = now - peer->reorder_changed;

    while (scale > 1 && quiet > REORDER_MEMORY) {
        scale /= 2;
        quiet -= REORDER_MEMORY;
    }
    for (uint32_t i = 0; i < peer->plane_end; i++) {
        const struct path *path = &peer->plane[i].path;
        int64_t spread = path->rtt - least + 4 * path->rtt_var;

        /* Windows may put that much more into one plane's queue than into another's. */
        if (spread < peer->config->target_delay_floor)
            spread = peer->config->target_delay_floor;
        windows[i] = (spread > floor ? spread : floor) * scale;
    }
    return floor * scale;
}

/* Answers rotate over the planes that bring them in time: a slow one would have them wait. */
static bool can_reply(const struct peer *peer, uint32_t plane, int64_t least) {
    const struct path *path = &peer->plane[plane].path;

    return path->state == MRC_PLANE_UP && path->reverse_count > 0 &&
           !peer->planes[plane].is_busy && path->rtt <= REPLY_FACTOR * least + REPLY_MARGIN;
}

void peer_reply_path(struct peer *peer, bool is_next, uint32_t *plane, uint32_t *ev) {
    int64_t least = least_rtt(peer);

    for (uint32_t i = 0; i < peer->plane_end; i++) {
        uint32_t candidate = (peer->replies + is_next + i) % peer->plane_end;
        const struct path *path = &peer->plane[candidate].path;

        if (!can_reply(peer, candidate, least))
            continue;
        peer->replies = candidate;
        *plane = candidate;
        *ev = path->reverse_evs[prng_next(&peer->prng) % path->reverse_count];
        return;
    }
}

/* ---- Port status ---- */

void peer_on_port_status(struct peer *peer, int64_t now, uint32_t mask) {
    for (uint32_t i = 0; i < peer->plane_end; i++) {
        if (peer->setup.addresses[i].version != 0)
            path_on_peer_says(&peer->plane[i].path, peer->config, now,
                              mask >> peer->setup.remote_planes[i] & 1);
    }
}

uint32_t peer_status_mask(const struct peer *peer) {
    uint32_t mask = 0;

    for (uint32_t i = 0; i < peer->plane_end; i++) {
        const mrc_plane *info = &peer->planes[i].info;

        if (peer->planes[i].is_present && info->up && info->enabled && has_told_address(peer, i))
            mask |= 1u << i;
    }
    return mask;
}

void peer_on_status_changed(struct peer *peer, int64_t now) {
    peer->status_at = now;
    peer->status_wait = STATUS_FIRST;
}

/* ---- Probes ---- */

static void plan_probes(struct peer *peer, int64_t now, uint32_t i) {
    struct peer_plane *plane = &peer->plane[i];
    uint32_t size = needed(peer, i);
    uint32_t pairs = 0;
    bool is_receiving = now - peer->received < RECEIVING_MEMORY;
    struct path_plan plan = {
        .has_work = now - peer->worked < WORK_MEMORY || peer_inflight(peer) > 0,
        .needed = size,
    };
    bool is_fresh = now - plane->path.proven < REFRESH && plane->path.proven != 0;

    for (uint32_t k = 0; k < peer->plane_end; k++)
        pairs += is_up(peer, k);
    /* The refresh is the peer's, not the plane's: with many planes each is asked less often. */
    plan.interval = peer_rtt(peer) > REFRESH ? peer_rtt(peer) : REFRESH;
    plan.interval = is_receiving ? plan.interval * (pairs ? pairs : 1) : IDLE_REFRESH;
    if (plan.has_work && plane->path.unanswered > 0)
        plan.interval = peer->config->plane_probe;
    if (plane->path.state == MRC_PLANE_UP && is_fresh && plane->path.unanswered == 0 &&
        plane->path.losses == 0 &&
        !path_wants_burst(&plane->path, size) && plane->path.probe_at <= now) {
        plane->path.probe_at = now + plan.interval; /* data proves it */
        return;
    }
    plane->due |= 1u << PEER_PROBE_SMALL;
    if (plane->path.state != MRC_PLANE_UP)
        plane->due |= 1u << PEER_PROBE_SECOND;
    if (path_wants_full(&plane->path, size) || path_wants_samples(&plane->path, peer->config))
        plane->due |= 1u << PEER_PROBE_FULL;
    /* A plane that loses packets is asked by packets like them. */
    if (plane->path.state == MRC_PLANE_UP && plane->path.losses > 0)
        plane->due = 1u << PEER_PROBE_FULL | 1u << PEER_PROBE_FULL_SECOND;
    if (path_wants_burst(&plane->path, size) && may_burst(peer))
        plane->due |= 1u << PEER_PROBE_BURST;
    path_on_probed(&plane->path, peer->config, now, &plan);
    peer->asked++;
}

bool peer_on_received(struct peer *peer, int64_t now) {
    bool has_begun = now - peer->received >= RECEIVING_MEMORY;

    peer->received = now;
    for (uint32_t i = 0; has_begun && i < peer->plane_end; i++) {
        struct path *path = &peer->plane[i].path;

        if (path->state == MRC_PLANE_UP && path->probe_at > now + REFRESH)
            path->probe_at = now + REFRESH;
    }
    return has_begun;
}

bool peer_on_timeout(struct peer *peer, int64_t now) {
    bool is_due = false;

    check_silence(peer, now);
    for (uint32_t i = 0; i < peer->plane_end; i++) {
        if (peer->plane[i].path.probe_at <= now)
            plan_probes(peer, now, i);
        if (peer->status_at <= now && is_up(peer, i))
            peer->plane[i].due |= 1u << PEER_PORT_STATUS;
        is_due = is_due || peer->plane[i].due != 0;
    }
    if (peer->status_at <= now) {
        peer->status_at = now + peer->status_wait;
        if (peer->status_wait < peer->config->probe_max)
            peer->status_wait *= 2;
    }
    return is_due;
}

int64_t peer_deadline(const struct peer *peer) {
    int64_t deadline = peer->status_at;

    for (uint32_t i = 0; i < peer->plane_end; i++) {
        const struct path *path = &peer->plane[i].path;

        if (path->probe_at < deadline)
            deadline = path->probe_at;
    }
    return deadline;
}

void peer_check(struct peer *peer, int64_t now) {
    for (uint32_t i = 0; i < peer->plane_end; i++) {
        if (peer->plane[i].path.probe_at != INT64_MAX)
            peer->plane[i].path.probe_at = now;
    }
    peer->worked = now;
}

static bool is_full(uint32_t kind) {
    return kind == PEER_PROBE_FULL || kind == PEER_PROBE_FULL_SECOND || kind == PEER_PROBE_BURST;
}

bool peer_take_probe(struct peer *peer, struct peer_probe *probe) {
    for (uint32_t i = 0; i < peer->plane_end; i++) {
        struct peer_plane *plane = &peer->plane[i];
        const struct path *path = &plane->path;
        uint32_t kind;

        if (plane->due == 0)
            continue;
        kind = (uint32_t)__builtin_ctz(plane->due);
        plane->due &= plane->due - 1;
        probe->plane = i;
        probe->kind = (enum peer_probe_kind)kind;
        probe->size = is_full(kind) ? needed(peer, i) : 0;
        probe->ev = prng_next(&peer->prng) & 0xFFFF0000u;
        probe->ev |= i << 12 | prng_below(&peer->prng, peer_ways(peer));
        /* One of those that answers take, unless it may be what has died: then another is tried. */
        if (kind == PEER_PROBE_SMALL && path->state == MRC_PLANE_UP && path->reverse_count > 0 &&
            path->unanswered == 0)
            probe->ev = path->reverse_evs[prng_next(&peer->prng) % path->reverse_count];
        return true;
    }
    return false;
}
