/* SPDX-License-Identifier: Apache-2.0 */
/* What an endpoint's owner asks for: memory, planes, peers, regions, queue pairs. */
#include "endpoint.h"

#include <assert.h>
#include <string.h>

#include "config.h"
#include "psn.h"
#include "srv6.h"

#define NUMBER_REST ((int64_t)30000000000) /* [choice] before a number is used again */

/* ---- Memory ---- */

/* Hands out one block piece by piece; without memory it only counts. */
struct arena {
    uint8_t *memory;
    size_t used;
};

static void *arena_take(struct arena *arena, size_t size) {
    void *here = arena->memory != NULL ? arena->memory + arena->used : NULL;

    arena->used += (size + 63) & ~(size_t)63;
    return here;
}

static uint32_t hash_slots(uint32_t max_qps) {
    uint32_t slots = 16;

    while (slots < 2 * max_qps)
        slots *= 2;
    return slots;
}

/* Lays everything out; the same walk sizes the block and fills it. */
static struct mrc_endpoint *lay_out(struct arena *arena, const mrc_config *config) {
    struct mrc_endpoint *endpoint = arena_take(arena, sizeof *endpoint);
    uint32_t owners = config->max_qps + config->max_peers + 1;
    uint32_t retired = 2 * config->max_qps + config->max_resting;
    struct peer_entry *peers = arena_take(arena, config->max_peers * sizeof *peers);
    struct qp *qps = arena_take(arena, config->max_qps * sizeof *qps);
    struct qp **by_number = arena_take(arena, hash_slots(config->max_qps) * sizeof *by_number);
    struct memory_region *regions =
        arena_take(arena, memory_table_slots(config->max_regions) * sizeof *regions);
    void *chunks = arena_take(arena, config->max_chunks * sizeof(struct sent_chunk));
    void *writes = arena_take(arena, config->max_writes * sizeof(struct write));
    void *immediates = arena_take(arena, config->max_immediates * sizeof(struct immediate));
    struct control *controls = arena_take(arena, config->max_controls * sizeof *controls);
    struct packet *packets = arena_take(arena, config->burst * sizeof *packets);
    mrc_event *events = arena_take(arena, config->max_events * sizeof *events);
    struct asked *asked = arena_take(arena, config->max_probes * sizeof *asked);
    struct retired *numbers = arena_take(arena, retired * sizeof *numbers);
    int64_t *deadlines = arena_take(arena, owners * sizeof *deadlines);
    uint32_t *positions = arena_take(arena, owners * sizeof *positions);
    uint32_t *heap = arena_take(arena, owners * sizeof *heap);

    if (endpoint == NULL)
        return NULL;
    memset(endpoint, 0, sizeof *endpoint);
    memset(peers, 0, config->max_peers * sizeof *peers);
    memset(qps, 0, config->max_qps * sizeof *qps);
    memset(by_number, 0, hash_slots(config->max_qps) * sizeof *by_number);
    memset(asked, 0, config->max_probes * sizeof *asked);
    memset(numbers, 0, retired * sizeof *numbers);
    endpoint->peers = peers;
    endpoint->qps = qps;
    endpoint->by_number = by_number;
    endpoint->by_number_count = hash_slots(config->max_qps);
    memory_table_init(&endpoint->memory, regions, config->max_regions);
    pool_init(&endpoint->chunks, chunks, sizeof(struct sent_chunk), config->max_chunks);
    pool_init(&endpoint->writes, writes, sizeof(struct write), config->max_writes);
    pool_init(&endpoint->immediates, immediates, sizeof(struct immediate), config->max_immediates);
    endpoint->controls = controls;
    endpoint->burst.packets = packets;
    endpoint->events.ring = events;
    endpoint->events.size = config->max_events;
    endpoint->asked = asked;
    endpoint->retired = numbers;
    endpoint->retired_count = retired;
    timer_heap_init(&endpoint->timers, deadlines, positions, heap, owners);
    return endpoint;
}

size_t mrc_endpoint_size(const mrc_config *config) {
    struct arena arena = {0};

    if (!config_is_valid(config))
        return 0;
    lay_out(&arena, config);
    return arena.used;
}

mrc_endpoint *mrc_endpoint_init(void *memory, const mrc_config *config, uint64_t seed) {
    struct arena arena = {.memory = memory};
    struct mrc_endpoint *endpoint;

    if (!config_is_valid(config))
        return NULL;
    endpoint = lay_out(&arena, config);
    endpoint->config = *config;
    endpoint->seed = seed;
    prng_init(&endpoint->prng, seed, 0);
    icrc_choose(&endpoint->icrc);
    for (uint32_t i = 0; i < config->max_qps; i++)
        endpoint->qps[i].index = i;
    return endpoint;
}

/* ---- Lists ---- */

void qp_queue_push(struct qp_queue *queue, enum qp_queue_kind kind, struct qp *qp) {
    if (qp->is_queued[kind])
        return;
    qp->is_queued[kind] = true;
    qp->next[kind] = NULL;
    if (queue->head == NULL)
        queue->head = qp;
    else
        queue->tail->next[kind] = qp;
    queue->tail = qp;
}

struct qp *qp_queue_pop(struct qp_queue *queue, enum qp_queue_kind kind) {
    struct qp *qp = queue->head;

    if (qp == NULL)
        return NULL;
    queue->head = qp->next[kind];
    qp->is_queued[kind] = false;
    return qp;
}

static void remove_from(struct qp_queue *queue, enum qp_queue_kind kind, struct qp *qp) {
    struct qp *before = NULL;

    if (!qp->is_queued[kind])
        return;
    for (struct qp *at = queue->head; at != qp; at = at->next[kind])
        before = at;
    if (before == NULL)
        queue->head = qp->next[kind];
    else
        before->next[kind] = qp->next[kind];
    if (queue->tail == qp)
        queue->tail = before;
    qp->is_queued[kind] = false;
}

void endpoint_wake_peer(struct mrc_endpoint *endpoint, struct peer_entry *entry) {
    if (entry->is_queued || (entry->ready.head == NULL && !entry->is_probing))
        return;
    entry->is_queued = true;
    entry->next = NULL;
    if (endpoint->ready_head == NULL)
        endpoint->ready_head = entry;
    else
        endpoint->ready_tail->next = entry;
    endpoint->ready_tail = entry;
}

void endpoint_wake_qp(struct mrc_endpoint *endpoint, struct qp *qp) {
    struct peer_entry *entry = endpoint_entry(endpoint, qp->peer);

    qp_queue_push(&entry->ready, QUEUE_READY, qp);
    endpoint_wake_peer(endpoint, entry);
}

/* ---- Finding ---- */

static struct qp **hash_of(const struct mrc_endpoint *endpoint, uint32_t number) {
    return &endpoint->by_number[number & (endpoint->by_number_count - 1)];
}

struct qp *endpoint_find_qp(const struct mrc_endpoint *endpoint, uint32_t number) {
    struct qp *qp = *hash_of(endpoint, number);

    while (qp != NULL && qp->number != number)
        qp = qp->same_hash;
    return qp;
}

/* One that its owner still has. */
static struct qp *find_open(const struct mrc_endpoint *endpoint, uint32_t number) {
    struct qp *qp = endpoint_find_qp(endpoint, number);

    return qp != NULL && !qp->is_closed ? qp : NULL;
}

struct peer_entry *endpoint_entry(struct mrc_endpoint *endpoint, const struct peer *peer) {
    return &endpoint->peers[peer->number];
}

struct peer_entry *endpoint_find_peer(struct mrc_endpoint *endpoint, const mrc_address *address,
                                      const struct peer_entry *after) {
    for (uint32_t i = after == NULL ? 0 : after->peer.number + 1; i < endpoint->peers_end; i++) {
        struct peer_entry *entry = &endpoint->peers[i];

        for (uint32_t plane = 0; entry->peer.is_used && plane < MRC_PLANES; plane++) {
            const mrc_address *known = &entry->peer.setup.addresses[plane];

            if (known->version == address->version && known->version != 0 &&
                memcmp(known->bytes, address->bytes, sizeof known->bytes) == 0)
                return entry;
        }
    }
    return NULL;
}

static struct peer_entry *peer_entry_at(struct mrc_endpoint *endpoint, uint32_t peer) {
    if (peer >= endpoint->peers_end || !endpoint->peers[peer].peer.is_used)
        return NULL;
    return &endpoint->peers[peer];
}

/* ---- Planes ---- */

static bool is_same_address(const mrc_address *a, const mrc_address *b) {
    return a->version == b->version && memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static bool is_address(const mrc_address *address) {
    return address->version == 0 || address->version == 4 || address->version == 6;
}

int mrc_endpoint_set_plane(mrc_endpoint *endpoint, int64_t now, uint32_t plane,
                           const mrc_plane *info) {
    struct plane *local;
    bool is_status_changed;

    if (plane >= MRC_PLANES || !is_address(&info->address))
        return MRC_ERROR_ARGUMENT;
    local = &endpoint->planes[plane];
    is_status_changed = !local->is_present || local->info.up != info->up ||
                        local->info.enabled != info->enabled ||
                        !is_same_address(&local->info.address, &info->address);
    local->info = *info;
    local->is_present = true;
    for (uint32_t i = 0; i < endpoint->peers_end; i++) {
        struct peer_entry *entry = &endpoint->peers[i];

        if (!entry->peer.is_used)
            continue;
        peer_on_facts(&entry->peer, now, plane);
        if (is_status_changed)
            peer_on_status_changed(&entry->peer, now);
        endpoint_settle_peer(endpoint, now, entry);
    }
    return MRC_OK;
}

void mrc_endpoint_set_busy(mrc_endpoint *endpoint, uint32_t plane, bool busy) {
    if (plane >= MRC_PLANES || endpoint->planes[plane].is_busy == busy)
        return;
    endpoint->planes[plane].is_busy = busy;
    for (uint32_t i = 0; !busy && i < endpoint->peers_end; i++) {
        if (endpoint->peers[i].peer.is_used)
            endpoint_wake_peer(endpoint, &endpoint->peers[i]);
    }
}

/* ---- Peers ---- */

static struct peer_entry *free_peer(struct mrc_endpoint *endpoint) {
    for (uint32_t i = 0; i < endpoint->config.max_peers; i++) {
        if (!endpoint->peers[i].peer.is_used)
            return &endpoint->peers[i];
    }
    return NULL;
}

static bool is_setup(const mrc_peer_setup *setup) {
    uint32_t planes = 1;

    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if (!is_address(&setup->addresses[i]) || setup->remote_planes[i] >= MRC_PLANES)
            return false;
        if (setup->addresses[i].version != 0)
            planes = i + 1;
    }
    return setup->ev_values <= PEER_EV_VALUES && srv6_is_valid(&setup->srv6, planes);
}

int mrc_peer_add(mrc_endpoint *endpoint, int64_t now, const mrc_peer_setup *setup) {
    struct peer_entry *entry;
    uint32_t number;

    if (!is_setup(setup))
        return MRC_ERROR_ARGUMENT;
    for (uint32_t i = 0; i < endpoint->peers_end; i++) {
        if (endpoint->peers[i].peer.is_used &&
            endpoint->peers[i].peer.setup.incarnation == setup->incarnation) {
            peer_on_setup(&endpoint->peers[i].peer, now, setup);
            endpoint_settle_peer(endpoint, now, &endpoint->peers[i]);
            return (int)i;
        }
    }
    entry = free_peer(endpoint);
    if (entry == NULL)
        return MRC_ERROR_FULL;
    number = (uint32_t)(entry - endpoint->peers);
    if (number >= endpoint->peers_end)
        endpoint->peers_end = number + 1;
    peer_init(&entry->peer, &endpoint->config, endpoint->planes, number, endpoint->seed, now,
              setup);
    endpoint_settle_peer(endpoint, now, entry);
    return (int)entry->peer.number;
}

int mrc_peer_set_address(mrc_endpoint *endpoint, int64_t now, uint32_t peer, uint32_t plane,
                         const mrc_address *address) {
    struct peer_entry *entry = peer_entry_at(endpoint, peer);

    if (entry == NULL)
        return MRC_ERROR_NOT_FOUND;
    if (plane >= MRC_PLANES || !is_address(address))
        return MRC_ERROR_ARGUMENT;
    entry->peer.setup.addresses[plane] = *address;
    peer_on_facts(&entry->peer, now, plane);
    endpoint_settle_peer(endpoint, now, entry);
    return MRC_OK;
}

int mrc_peer_set_neighbour(mrc_endpoint *endpoint, int64_t now, uint32_t peer, uint32_t plane,
                           const uint8_t *mac) {
    struct peer_entry *entry = peer_entry_at(endpoint, peer);
    struct peer_plane *at;

    if (entry == NULL)
        return MRC_ERROR_NOT_FOUND;
    if (plane >= MRC_PLANES)
        return MRC_ERROR_ARGUMENT;
    at = &entry->peer.plane[plane];
    if (mac != NULL)
        memcpy(at->mac, mac, sizeof at->mac);
    if (at->has_mac == (mac != NULL))
        return MRC_OK;
    at->has_mac = mac != NULL;
    peer_on_facts(&entry->peer, now, plane);
    endpoint_settle_peer(endpoint, now, entry);
    return MRC_OK;
}

int mrc_peer_fail(mrc_endpoint *endpoint, int64_t now, uint32_t peer, int status) {
    struct peer_entry *entry = peer_entry_at(endpoint, peer);

    if (entry == NULL)
        return MRC_ERROR_NOT_FOUND;
    if (status >= 0)
        return MRC_ERROR_ARGUMENT;
    endpoint_fail_peer(endpoint, now, entry, status);
    return MRC_OK;
}

int mrc_peer_check(mrc_endpoint *endpoint, int64_t now, uint32_t peer) {
    struct peer_entry *entry = peer_entry_at(endpoint, peer);

    if (entry == NULL)
        return MRC_ERROR_NOT_FOUND;
    peer_check(&entry->peer, now);
    endpoint_settle_peer(endpoint, now, entry);
    return MRC_OK;
}

int mrc_peer_remove(mrc_endpoint *endpoint, uint32_t peer) {
    struct peer_entry *entry = peer_entry_at(endpoint, peer);
    struct peer_entry *before = NULL;

    if (entry == NULL)
        return MRC_ERROR_NOT_FOUND;
    if (entry->qps != NULL)
        return MRC_ERROR_STATE;
    for (struct peer_entry *at = endpoint->ready_head; at != NULL; at = at->next) {
        if (at == entry && before == NULL)
            endpoint->ready_head = at->next;
        else if (at == entry)
            before->next = at->next;
        if (at == entry && endpoint->ready_tail == at)
            endpoint->ready_tail = before;
        before = at;
    }
    timer_heap_set(&endpoint->timers, endpoint_peer_timer(endpoint, &entry->peer), TIMER_NEVER);
    memset(entry, 0, sizeof *entry);
    while (endpoint->peers_end > 0 && !endpoint->peers[endpoint->peers_end - 1].peer.is_used)
        endpoint->peers_end--;
    return MRC_OK;
}

int mrc_peer_stats(const mrc_endpoint *endpoint, uint32_t peer, uint32_t plane,
                   mrc_plane_stats *stats) {
    const struct peer *from;
    const struct peer_plane *at;

    if (plane >= MRC_PLANES)
        return MRC_ERROR_ARGUMENT;
    if (peer >= endpoint->peers_end || !endpoint->peers[peer].peer.is_used)
        return MRC_ERROR_NOT_FOUND;
    from = &endpoint->peers[peer].peer;
    at = &from->plane[plane];
    *stats = at->stats;
    stats->state = at->path.state;
    stats->reason = at->path.reason;
    stats->changed = at->path.changed;
    stats->rtt = at->path.rtt;
    stats->rtt_min = at->path.rtt_min;
    stats->inflight = at->inflight;
    stats->cwnd = from->config->policy == MRC_POLICY_EQUAL ? from->nscc.cwnd : at->nscc.cwnd;
    stats->bursts = path_can_burst(&at->path);
    return MRC_OK;
}

/* ---- Memory regions ---- */

int mrc_endpoint_register(mrc_endpoint *endpoint, const mrc_region *region) {
    struct memory_region added = {
        .base = region->base,
        .va = region->va,
        .size = region->size,
        .key = region->key,
        .domain = region->domain,
    };

    if (endpoint->memory.used == endpoint->memory.max)
        return MRC_ERROR_FULL;
    return memory_table_add(&endpoint->memory, &added) ? MRC_OK : MRC_ERROR_ARGUMENT;
}

int mrc_endpoint_deregister(mrc_endpoint *endpoint, uint32_t key) {
    return memory_table_remove(&endpoint->memory, key) ? MRC_OK : MRC_ERROR_NOT_FOUND;
}

/* ---- Queue pairs ---- */

static bool is_retired(const struct mrc_endpoint *endpoint, int64_t now, uint32_t number) {
    for (uint32_t i = 0; i < endpoint->retired_count; i++) {
        if (endpoint->retired[i].number == number && endpoint->retired[i].until > now)
            return true;
    }
    return false;
}

/* A random number with our prefix that nobody has or had lately; 0 when too many are resting. */
static uint32_t draw_number(struct mrc_endpoint *endpoint, int64_t now) {
    if (endpoint->retired[endpoint->retired_next % endpoint->retired_count].until > now)
        return 0;
    for (;;) {
        uint32_t number = (uint32_t)endpoint->config.qp_prefix << 16 |
                          (prng_next(&endpoint->prng) & 0xFFFF);

        if (number > WIRE_QP_ENDPOINT && endpoint_find_qp(endpoint, number) == NULL &&
            !is_retired(endpoint, now, number))
            return number;
    }
}

static bool are_attributes(const mrc_qp_attributes *attributes) {
    static const uint32_t mtus[] = {256, 512, 1024, 2048, 4096, 8192};
    bool is_mtu = false;

    for (size_t i = 0; i < sizeof mtus / sizeof mtus[0]; i++)
        is_mtu = is_mtu || attributes->mtu == mtus[i];
    return is_mtu && attributes->mpr >= 1 && attributes->mpr <= PSN_WINDOW_MAX / 128 &&
           attributes->max_wimm >= 1 && attributes->max_wimm <= 255;
}

int mrc_qp_create(mrc_endpoint *endpoint, int64_t now, uint32_t domain, uint32_t first_psn,
                  mrc_qp_attributes *local) {
    struct qp *qp = NULL;
    uint32_t number;

    if (!are_attributes(local) || (first_psn > PSN_MASK && first_psn != UINT32_MAX))
        return MRC_ERROR_ARGUMENT;
    for (uint32_t i = 0; i < endpoint->config.max_qps && qp == NULL; i++)
        qp = endpoint->qps[i].is_used ? NULL : &endpoint->qps[i];
    if (qp == NULL)
        return MRC_ERROR_FULL;
    number = draw_number(endpoint, now);
    if (number == 0)
        return MRC_ERROR_FULL;
    local->number = number;
    local->psn = first_psn == UINT32_MAX ? prng_next(&endpoint->prng) & PSN_MASK : first_psn;
    memset(qp, 0, sizeof *qp);
    qp->index = (uint32_t)(qp - endpoint->qps);
    qp->is_used = true;
    qp->number = number;
    qp->state = MRC_QP_INIT;
    qp->domain = domain;
    qp->ends = INT64_MAX;
    qp->local = *local;
    qp->same_hash = *hash_of(endpoint, number);
    *hash_of(endpoint, number) = qp;
    endpoint->counters.qps++;
    return MRC_OK;
}

static uint32_t plane_mask(const struct mrc_endpoint *endpoint) {
    uint32_t mask = 0;

    for (uint32_t i = 0; i < MRC_PLANES; i++)
        mask |= (uint32_t)endpoint->planes[i].is_present << i;
    return mask;
}

int mrc_qp_connect(mrc_endpoint *endpoint, int64_t now, uint32_t number, uint32_t peer,
                   const mrc_qp_attributes *remote) {
    struct qp *qp = find_open(endpoint, number);
    struct peer_entry *entry = peer_entry_at(endpoint, peer);
    struct requestor_setup sending;
    struct responder_setup receiving;

    if (qp == NULL || entry == NULL)
        return MRC_ERROR_NOT_FOUND;
    if (qp->state != MRC_QP_INIT)
        return MRC_ERROR_STATE;
    if (!are_attributes(remote) || remote->psn > PSN_MASK || remote->number <= WIRE_QP_ENDPOINT ||
        remote->number > PSN_MASK)
        return MRC_ERROR_ARGUMENT;
    qp->remote = *remote;
    qp->peer = &entry->peer;
    sending = (struct requestor_setup){
        .config = &endpoint->config,
        .peer = qp->peer,
        .chunk_pool = &endpoint->chunks,
        .write_pool = &endpoint->writes,
        .done = &endpoint->done,
        .events = &endpoint->events,
        .seed = endpoint->seed ^ number,
        .plane_mask = plane_mask(endpoint),
        .local = &qp->local,
        .remote = &qp->remote,
    };
    receiving = (struct responder_setup){
        .config = &endpoint->config,
        .memory = &endpoint->memory,
        .immediate_pool = &endpoint->immediates,
        .received = &endpoint->received,
        .domain = qp->domain,
        .local = &qp->local,
        .remote = &qp->remote,
    };
    requestor_init(&qp->requestor, now, &sending);
    responder_init(&qp->responder, &receiving);
    qp->state = MRC_QP_RTS;
    qp->same_peer = entry->qps;
    entry->qps = qp;
    peer_on_qp(&entry->peer, now, qp->requestor.mtu);
    endpoint_settle_peer(endpoint, now, entry);
    endpoint_settle_qp(endpoint, now, qp);
    return MRC_OK;
}

static void unlink_qp(struct mrc_endpoint *endpoint, struct qp *qp) {
    struct qp **link = hash_of(endpoint, qp->number);

    while (*link != qp)
        link = &(*link)->same_hash;
    *link = qp->same_hash;
    if (qp->peer == NULL)
        return;
    link = &endpoint_entry(endpoint, qp->peer)->qps;
    while (*link != qp)
        link = &(*link)->same_peer;
    *link = qp->same_peer;
    qp->peer->qp_count--;
    remove_from(&endpoint_entry(endpoint, qp->peer)->ready, QUEUE_READY, qp);
}

void endpoint_free_qp(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp) {
    uint32_t place = endpoint->retired_next++ % endpoint->retired_count;
    struct retired *retired = &endpoint->retired[place];

    unlink_qp(endpoint, qp);
    remove_from(&endpoint->answering, QUEUE_ANSWERING, qp);
    remove_from(&endpoint->touched, QUEUE_TOUCHED, qp);
    remove_from(&endpoint->failed, QUEUE_FAILED, qp);
    remove_from(&endpoint->starved, QUEUE_STARVED, qp);
    retired->number = qp->number;
    retired->until = now + NUMBER_REST;
    timer_heap_set(&endpoint->timers, endpoint_qp_timer(qp), TIMER_NEVER);
    qp->is_used = false;
    endpoint->counters.qps--;
}

int mrc_qp_close(mrc_endpoint *endpoint, int64_t now, uint32_t number) {
    struct qp *qp = find_open(endpoint, number);

    if (qp == NULL)
        return MRC_ERROR_NOT_FOUND;
    remove_from(&endpoint->failed, QUEUE_FAILED, qp);
    qp->is_closed = true;
    if (qp->peer == NULL) {
        endpoint_free_qp(endpoint, now, qp);
        return MRC_OK;
    }
    if (qp->state == MRC_QP_RTS) {
        requestor_flush(&qp->requestor, MRC_ERROR_FLUSHED);
        /* What was not acknowledged yet is acknowledged once more before it goes quiet. */
        responder_report(&qp->responder);
        responder_flush(&qp->responder);
    }
    if (qp->ends == INT64_MAX)
        qp->ends = now + endpoint->config.linger;
    endpoint_settle_qp(endpoint, now, qp);
    endpoint_settle_peer(endpoint, now, endpoint_entry(endpoint, qp->peer));
    return MRC_OK;
}

int mrc_qp_write(mrc_endpoint *endpoint, int64_t now, const mrc_write *write) {
    struct qp *qp = find_open(endpoint, write->qp);
    int status;

    if (qp == NULL)
        return MRC_ERROR_NOT_FOUND;
    if (qp->state != MRC_QP_RTS)
        return MRC_ERROR_STATE;
    if (write->size > 1u << 30 || (write->size > 0 && write->data == NULL) ||
        (write->size > 0 && write->va + (write->size - 1) < write->va))
        return MRC_ERROR_ARGUMENT;
    status = requestor_post(&qp->requestor, now, write);
    if (status == MRC_OK)
        endpoint_wake_qp(endpoint, qp);
    return status;
}

int mrc_qp_post_receive(mrc_endpoint *endpoint, uint32_t number, uint32_t count) {
    struct qp *qp = find_open(endpoint, number);

    if (qp == NULL)
        return MRC_ERROR_NOT_FOUND;
    if (qp->state != MRC_QP_RTS)
        return MRC_ERROR_STATE;
    if (count > UINT32_MAX - qp->responder.receives)
        return MRC_ERROR_ARGUMENT;
    qp->responder.receives += count;
    return MRC_OK;
}

int mrc_qp_get_stats(const mrc_endpoint *endpoint, uint32_t number, mrc_qp_stats *stats) {
    const struct qp *qp = find_open(endpoint, number);
    const struct requestor *sending;
    const struct responder *receiving;

    if (qp == NULL)
        return MRC_ERROR_NOT_FOUND;
    sending = &qp->requestor;
    receiving = &qp->responder;
    memset(stats, 0, sizeof *stats);
    if (qp->peer != NULL) {
        *stats = sending->stats;
        stats->mtu = sending->mtu;
        stats->peer = qp->peer->number;
        stats->inflight = peer_inflight(qp->peer);
        stats->cwnd = peer_window(qp->peer);
        stats->rtt = peer_rtt(qp->peer);
        stats->window_packets = (sending->loss.next - sending->loss.first) & PSN_MASK;
        stats->wimm_outstanding = sending->wimm_outstanding;
        stats->evs_good = ev_profile_good(&sending->evs);
        stats->evs_bad = ev_profile_bad(&sending->evs);
        stats->bytes_received = receiving->bytes_received;
        stats->messages_received = receiving->msn;
        stats->packets_duplicate = receiving->duplicates;
        stats->sacks_sent = receiving->sacks_sent;
        stats->nacks_sent = receiving->nacks_sent;
        stats->receives_posted = receiving->receives;
    }
    stats->state = qp->state;
    stats->error = qp->error;
    return MRC_OK;
}

int mrc_qp_evs(const mrc_endpoint *endpoint, uint32_t number, mrc_ev_info *evs, uint32_t room) {
    const struct qp *qp = find_open(endpoint, number);
    uint32_t count = 0;
    uint32_t ev;
    enum ev_state state;

    if (qp == NULL)
        return MRC_ERROR_NOT_FOUND;
    if (qp->peer == NULL)
        return MRC_ERROR_STATE;
    while (ev_profile_get(&qp->requestor.evs, count, &ev, &state)) {
        if (count < room)
            evs[count] = (mrc_ev_info){.ev = ev, .plane = ev_plane(ev), .state = (uint32_t)state};
        count++;
    }
    return (int)count;
}

int mrc_qp_deny(mrc_endpoint *endpoint, int64_t now, uint32_t number, uint32_t ev, bool deny) {
    struct qp *qp = find_open(endpoint, number);

    if (qp == NULL)
        return MRC_ERROR_NOT_FOUND;
    if (qp->state != MRC_QP_RTS)
        return MRC_ERROR_STATE;
    if (!requestor_deny(&qp->requestor, ev, deny))
        return MRC_ERROR_NOT_FOUND;
    endpoint_wake_qp(endpoint, qp);
    endpoint_settle_qp(endpoint, now, qp);
    return MRC_OK;
}

void mrc_endpoint_counters(const mrc_endpoint *endpoint, mrc_counters *counters) {
    uint32_t peers = 0;

    for (uint32_t i = 0; i < endpoint->peers_end; i++)
        peers += endpoint->peers[i].peer.is_used;
    *counters = endpoint->counters;
    counters->events_full = endpoint->events.dropped;
    counters->peers = peers;
    counters->regions = endpoint->memory.used;
    counters->writes = endpoint->writes.used;
    counters->chunks = endpoint->chunks.used;
    counters->immediates = endpoint->immediates.used;
    counters->controls = endpoint->control_count;
}
