/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts, the event heap, the loop around the five verbs, connections. See vnet.h. */
#include "vnet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vnet_internal.h"

enum {
    DOMAIN = 7,
    SPINS_MAX = 1000,
    FRAMES_MAX = 100000, /* that one host may send at one moment */
    GUARD_BYTE = 0xA5,
    FILL_BYTE = 0x5A,
};

#define START ((int64_t)1000000000)
#define REGION_VA 0x7F0000001000ull

void *vnet_memory(size_t size) {
    void *memory = aligned_alloc(64, (size + 64) & ~(size_t)63);

    if (memory == NULL)
        abort();
    return memory;
}

static void *zeroed(size_t size) { return memset(vnet_memory(size), 0, size); }

/* ---- The event heap ---- */

static bool is_before(const struct vnet_timer *a, const struct vnet_timer *b) {
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

void vnet_schedule(struct vnet *net, int64_t time, enum vnet_kind kind, uint32_t host,
                   uint32_t plane, struct vnet_frame *frame) {
    struct vnet_timer timer = {time, net->order++, kind, host, plane, frame};
    uint32_t at = net->heap_count++;

    if (net->heap_count > net->heap_room) {
        net->heap_room = 2 * net->heap_room + 1024;
        net->heap = realloc(net->heap, net->heap_room * sizeof *net->heap);
        if (net->heap == NULL)
            abort();
    }
    for (; at > 0 && is_before(&timer, &net->heap[(at - 1) / 2]); at = (at - 1) / 2)
        net->heap[at] = net->heap[(at - 1) / 2];
    net->heap[at] = timer;
    net->under_way += frame != NULL;
}

static struct vnet_timer take_timer(struct vnet *net) {
    struct vnet_timer first = net->heap[0];
    struct vnet_timer last = net->heap[--net->heap_count];
    uint32_t at = 0;

    for (uint32_t child = 1; child < net->heap_count; child = 2 * at + 1) {
        if (child + 1 < net->heap_count && is_before(&net->heap[child + 1], &net->heap[child]))
            child++;
        if (!is_before(&net->heap[child], &last))
            break;
        net->heap[at] = net->heap[child];
        at = child;
    }
    net->heap[at] = last;
    return first;
}

void vnet_wake(struct vnet *net, uint32_t host, int64_t time) {
    struct vnet_host *to = &net->hosts[host];

    if (time < to->paused_until)
        time = to->paused_until;
    if (time >= to->wake_at)
        return;
    to->wake_at = time;
    vnet_schedule(net, time, VNET_WAKE, host, 0, NULL);
}

void vnet_kick(vnet *net, uint32_t host) { vnet_wake(net, host, net->now); }

/* ---- Hosts ---- */

static mrc_address address_of(const struct vnet *net, uint32_t host, uint32_t plane) {
    mrc_address address = {.version = 6};

    if (net->options.ipv4_planes >> plane & 1) {
        address.version = 4;
        address.bytes[0] = 10;
        address.bytes[1] = (uint8_t)plane;
        address.bytes[3] = (uint8_t)(host + 1);
    } else {
        address.bytes[0] = 0xFD;
        address.bytes[7] = (uint8_t)plane;
        address.bytes[15] = (uint8_t)(host + 1);
    }
    return address;
}

static void mac_of(uint32_t host, uint32_t plane, uint8_t *mac) {
    memset(mac, 0, 6);
    mac[0] = 2;
    mac[4] = (uint8_t)plane;
    mac[5] = (uint8_t)(host + 1);
}

static void init_memory(struct vnet *net, struct vnet_host *host, uint32_t number) {
    size_t size = net->options.region_bytes;
    mrc_region region = {.va = REGION_VA, .size = size, .domain = DOMAIN};
    struct prng prng;

    host->block = vnet_memory(size + 2 * VNET_GUARD);
    host->model = vnet_memory(size);
    host->source = vnet_memory(size);
    memset(host->block, GUARD_BYTE, size + 2 * VNET_GUARD);
    memset(vnet_region_of(host), FILL_BYTE, size);
    memset(host->model, FILL_BYTE, size);
    prng_init(&prng, net->options.seed, 1000 + number);
    for (size_t i = 0; i < size; i++)
        host->source[i] = (uint8_t)prng_next(&prng);
    host->key = prng_next(&prng) | 1;
    region.base = vnet_region_of(host);
    region.key = host->key;
    if (mrc_endpoint_register(host->endpoint, &region) != MRC_OK)
        abort();
}

static void init_ports(struct vnet *net, struct vnet_host *host, uint32_t number,
                       const vnet_link *links) {
    for (uint32_t i = 0; i < net->options.planes; i++) {
        struct vnet_port *port = &host->ports[i];

        port->link = links[i];
        port->is_up = true;
        port->info = (mrc_plane){.address = address_of(net, number, i),
                                 .mtu = net->options.plane_mtu,
                                 .rate_bps = links[i].rate_bps,
                                 .up = true,
                                 .enabled = true};
        mac_of(number, i, port->info.mac);
        mrc_endpoint_set_plane(host->endpoint, net->now, i, &port->info);
    }
}

static bool init_host(struct vnet *net, uint32_t number, const vnet_link *links) {
    struct vnet_host *host = &net->hosts[number];
    mrc_config config = net->config;
    size_t size;

    config.incarnation = 0x1000 + number;
    config.qp_prefix = (uint8_t)(0x20 + number);
    size = mrc_endpoint_size(&config);
    if (size == 0)
        return false;
    host->memory = vnet_memory(size);
    host->endpoint = mrc_endpoint_init(host->memory, &config, net->options.seed * 31 + number);
    host->by_number = zeroed(65536 * sizeof *host->by_number);
    host->wake_at = INT64_MAX;
    init_memory(net, host, number);
    init_ports(net, host, number, links);
    return true;
}

vnet *vnet_new(const vnet_options *options, const mrc_config *config, const vnet_link *links) {
    struct vnet *net = zeroed(sizeof *net);

    net->options = *options;
    net->config = *config;
    net->now = START;
    net->hash = 0xCBF29CE484222325u;
    prng_init(&net->prng, options->seed, 0);
    net->records = zeroed(VNET_RECORDS * sizeof *net->records);
    net->events = zeroed(VNET_EVENTS * sizeof *net->events);
    net->hosts = zeroed(options->hosts * sizeof *net->hosts);
    for (uint32_t i = 0; i < options->hosts; i++) {
        if (!init_host(net, i, links + (size_t)i * options->planes)) {
            vnet_free(net);
            return NULL;
        }
    }
    return net;
}

void vnet_free(vnet *net) {
    for (uint32_t i = 0; i < net->heap_count; i++)
        free(net->heap[i].frame);
    for (uint32_t i = 0; i < net->side_count; i++)
        free(net->sides[i]->posted);
    for (uint32_t i = 0; i < net->side_count; i += 2)
        free(net->sides[i] < net->sides[i + 1] ? net->sides[i] : net->sides[i + 1]);
    for (uint32_t i = 0; i < net->options.hosts; i++) {
        struct vnet_host *host = &net->hosts[i];

        for (uint32_t k = 0; k < host->inbox_count; k++)
            free(host->inbox[k]);
        free(host->inbox);
        free(host->by_number);
        free(host->memory);
        free(host->block);
        free(host->model);
        free(host->source);
    }
    for (uint32_t i = 0; i < net->kept_count; i++)
        free(net->kept[i]);
    free(net->kept);
    free(net->heap);
    free(net->sides);
    free(net->hosts);
    free(net->records);
    free(net->events);
    free(net->violation);
    free(net);
}

const char *vnet_violation(const vnet *net) { return net->violation ? net->violation : ""; }
int64_t vnet_now(const vnet *net) { return net->now; }
mrc_endpoint *vnet_endpoint(vnet *net, uint32_t host) { return net->hosts[host].endpoint; }
uint32_t vnet_key(const vnet *net, uint32_t host) { return net->hosts[host].key; }
uint8_t *vnet_region(vnet *net, uint32_t host) { return vnet_region_of(&net->hosts[host]); }

const vnet_counts *vnet_get_counts(const vnet *net, uint32_t host, uint32_t plane) {
    return &net->hosts[host].ports[plane].counts;
}

/* ---- The loop ---- */

static void keep(struct vnet *net, const struct vnet_frame *frame) {
    size_t size = sizeof *frame + frame->size;

    if (net->kept_count == net->kept_room)
        return;
    net->kept[net->kept_count++] = memcpy(vnet_memory(size), frame, size);
}

/* Hands the frames of these planes to the endpoint; the others stay. */
static void take_in(struct vnet *net, struct vnet_host *host, uint32_t planes) {
    uint32_t left = 0;

    for (uint32_t i = 0; i < host->inbox_count; i++) {
        struct vnet_frame *frame = host->inbox[i];
        mrc_frame_in in = {.plane = frame->plane, .size = frame->size, .data = frame->data};

        if (!(planes >> frame->plane & 1)) {
            host->inbox[left++] = frame;
            continue;
        }
        if (frame->packets > 1)
            in.segment_size = frame->segment_size;
        if (!frame->is_forged) {
            vnet_check_delivered(net, frame);
            keep(net, frame);
        }
        mrc_endpoint_receive(host->endpoint, net->now, &in);
        free(frame);
    }
    net->under_way -= host->inbox_count - left;
    host->inbox_count = left;
}

static void send_out(struct vnet *net, uint32_t number) {
    struct vnet_host *host = &net->hosts[number];

    for (uint32_t sent = 0; mrc_endpoint_transmit(host->endpoint, net->now, &net->out); sent++) {
        if (sent == FRAMES_MAX) {
            vnet_fail(net, "host %u never stops sending", number);
            return;
        }
        vnet_transmit(net, number, &net->out);
    }
}

/* Lends one again for the one that was used. */
static void post_receive(struct vnet *net, uint32_t number, uint32_t qp) {
    mrc_endpoint *endpoint = net->hosts[number].endpoint;
    mrc_qp_stats stats;

    if (mrc_qp_post_receive(endpoint, qp, 1) < 0 &&
        mrc_qp_get_stats(endpoint, qp, &stats) == MRC_OK && stats.state == MRC_QP_RTS)
        vnet_fail(net, "host %u cannot post the receive that was used", number);
}

static void take_events(struct vnet *net, uint32_t number) {
    struct vnet_host *host = &net->hosts[number];
    mrc_event event;

    while (!host->is_held && mrc_endpoint_poll(host->endpoint, &event)) {
        uint32_t at = (net->event_first + net->event_count) % VNET_EVENTS;

        vnet_check_event(net, number, &event);
        if (event.type == MRC_EVENT_RECEIVE)
            post_receive(net, number, event.qp);
        net->events[at] = (vnet_event){number, event};
        if (net->event_count < VNET_EVENTS)
            net->event_count++;
        else
            net->event_first = (net->event_first + 1) % VNET_EVENTS;
    }
}

static void service(struct vnet *net, uint32_t number) {
    struct vnet_host *host = &net->hosts[number];
    bool is_spinning = host->inbox_count == 0 && host->serviced == net->now;
    int64_t deadline;

    host->spins = is_spinning ? host->spins + 1 : 0;
    host->serviced = net->now;
    if (host->spins > SPINS_MAX)
        vnet_fail(net, "host %u is due again and again at one moment", number);
    take_in(net, host, ~host->read);
    if (net->options.drained)
        mrc_endpoint_drained(host->endpoint, net->now);
    if (mrc_endpoint_deadline(host->endpoint) <= net->now)
        mrc_endpoint_timeout(host->endpoint, net->now);
    take_events(net, number);
    send_out(net, number);
    take_events(net, number);
    vnet_check_host(net, number);
    deadline = host->read != 0 ? net->now : mrc_endpoint_deadline(host->endpoint);
    host->read = 0;
    if (deadline != INT64_MAX)
        vnet_wake(net, number, deadline > net->now ? deadline : net->now);
}

static void arrive(struct vnet *net, uint32_t number, struct vnet_frame *frame) {
    struct vnet_host *host = &net->hosts[number];

    if (!host->ports[frame->plane].is_up && !frame->is_forged) {
        vnet_note(net, VNET_DEAD, frame);
        free(frame);
        net->under_way--;
        return;
    }
    if (host->inbox_count == host->inbox_room) {
        host->inbox_room = 2 * host->inbox_room + 64;
        host->inbox = realloc(host->inbox, host->inbox_room * sizeof *host->inbox);
        if (host->inbox == NULL)
            abort();
    }
    host->inbox[host->inbox_count++] = frame;
    vnet_wake(net, number, net->now + net->options.batch);
}

static void step(struct vnet *net) {
    struct vnet_timer timer = take_timer(net);
    struct vnet_host *host = &net->hosts[timer.host];

    net->now = timer.time;
    switch (timer.kind) {
    case VNET_ARRIVAL:
        arrive(net, timer.host, timer.frame);
        break;
    case VNET_WAKE:
        if (timer.time != host->wake_at)
            break; /* an earlier one was asked for meanwhile, and looked */
        host->wake_at = INT64_MAX;
        service(net, timer.host);
        break;
    case VNET_PORT_FREE:
        host->ports[timer.plane].is_busy = false;
        mrc_endpoint_set_busy(host->endpoint, timer.plane, false);
        vnet_wake(net, timer.host, net->now);
        break;
    }
}

void vnet_pause(vnet *net, uint32_t host, int64_t duration, uint32_t read) {
    struct vnet_host *of = &net->hosts[host];

    take_in(net, of, read);
    of->read = read;
    of->paused_until = net->now + duration;
    of->wake_at = INT64_MAX;
    vnet_wake(net, host, of->paused_until);
}

bool vnet_is_idle(const vnet *net) {
    for (uint32_t i = 0; i < net->side_count; i++) {
        if (net->sides[i]->completed != net->sides[i]->posted_count)
            return false;
    }
    return true;
}

bool vnet_run(vnet *net, int64_t until, bool until_idle) {
    while (net->violation == NULL && !(until_idle && vnet_is_idle(net))) {
        if (net->heap_count == 0 || net->heap[0].time > until) {
            net->now = until;
            break;
        }
        step(net);
    }
    if (net->violation == NULL && vnet_is_idle(net))
        vnet_check_idle(net);
    return vnet_is_idle(net);
}

bool vnet_take_event(vnet *net, vnet_event *event) {
    if (net->event_count == 0)
        return false;
    *event = net->events[net->event_first];
    net->event_first = (net->event_first + 1) % VNET_EVENTS;
    net->event_count--;
    return true;
}

/* ---- Connections ---- */

/* Every host has a T0 of its own; uSIDs are those of tests/topologies.py. */
static mrc_srv6_template template_of(const vnet_setup *setup, uint32_t host, uint32_t to) {
    return (mrc_srv6_template){
        .block = {0xFC},
        .block_size = 4,
        .usid_count = 4,
        .uplink_hop = 1,
        .srh = setup->srh,
        .uplinks = setup->uplinks,
        .plane_stride = 0x1000,
        .usids = {(uint16_t)(0x100 + host), 0x200, (uint16_t)(0x100 + to), (uint16_t)(0x300 + to)},
    };
}

static int add_peer(struct vnet *net, const vnet_setup *connection, uint32_t which) {
    uint32_t host = connection->host[which];
    uint32_t to = connection->host[!which];
    mrc_peer_setup setup = {.incarnation = 0x1000 + to};
    int peer;

    if (connection->uplinks > 0)
        setup.srv6 = template_of(connection, host, to);
    for (uint32_t i = 0; i < net->options.planes; i++) {
        setup.remote_planes[i] = (uint8_t)i;
        if (connection->planes >> i & 1)
            setup.addresses[i] = address_of(net, to, i);
    }
    peer = mrc_peer_add(net->hosts[host].endpoint, net->now, &setup);
    for (uint32_t i = 0; peer >= 0 && i < net->options.planes; i++) {
        uint8_t mac[6];

        mac_of(to, i, mac);
        mrc_peer_set_neighbour(net->hosts[host].endpoint, net->now, (uint32_t)peer, i, mac);
    }
    return peer;
}

static int make_side(struct vnet *net, const vnet_setup *setup, uint32_t which,
                     struct vnet_side *side) {
    mrc_endpoint *endpoint = net->hosts[setup->host[which]].endpoint;
    int peer = add_peer(net, setup, which);
    int status;

    if (peer < 0)
        return peer;
    side->host = setup->host[which];
    side->peer = (uint32_t)peer;
    side->works_since = INT64_MAX;
    side->progressed = net->now;
    side->local = (mrc_qp_attributes){.mtu = setup->mtu[which],
                                      .mpr = setup->mpr[which],
                                      .max_wimm = setup->max_wimm[which],
                                      .trim_nack = setup->trim_nack,
                                      .dynamic_mpr = setup->dynamic_mpr};
    status = mrc_qp_create(endpoint, net->now, DOMAIN, setup->first_psn[which], &side->local);
    if (status < 0)
        return status;
    side->next_psn = side->local.psn;
    side->cack = (side->local.psn - 1) & 0xFFFFFF;
    net->hosts[side->host].by_number[side->local.number & 0xFFFF] = side;
    return MRC_OK;
}

static int join_side(struct vnet *net, const struct vnet_side *side, uint32_t receives) {
    mrc_endpoint *endpoint = net->hosts[side->host].endpoint;
    int status = mrc_qp_connect(endpoint, net->now, side->local.number, side->peer,
                                &side->other->local);

    return status < 0 ? status : mrc_qp_post_receive(endpoint, side->local.number, receives);
}

int vnet_connect(vnet *net, const vnet_setup *setup) {
    struct vnet_side *sides = zeroed(2 * sizeof *sides);
    int status = MRC_OK;

    for (uint32_t i = 0; i < 2 && status >= 0; i++) {
        sides[i].other = &sides[!i];
        status = make_side(net, setup, i, &sides[i]);
    }
    for (uint32_t i = 0; i < 2 && status >= 0; i++)
        status = join_side(net, &sides[i], setup->receives[i]);
    if (status < 0) {
        for (uint32_t i = 0; i < 2; i++)
            net->hosts[setup->host[i]].by_number[sides[i].local.number & 0xFFFF] = NULL;
        free(sides);
        return status;
    }
    net->sides = realloc(net->sides, (net->side_count + 2) * sizeof *net->sides);
    if (net->sides == NULL)
        abort();
    for (uint32_t i = 0; i < 2; i++) {
        net->sides[net->side_count++] = &sides[i];
        vnet_wake(net, sides[i].host, net->now);
    }
    vnet_check_paths(net);
    return (int)net->side_count / 2 - 1;
}

static struct vnet_side *side_of(const vnet *net, int connection, uint32_t side) {
    return net->sides[2 * (uint32_t)connection + side];
}

uint32_t vnet_qp(const vnet *net, int connection, uint32_t side) {
    return side_of(net, connection, side)->local.number;
}

uint32_t vnet_peer(const vnet *net, int connection, uint32_t side) {
    return side_of(net, connection, side)->peer;
}

int vnet_close(vnet *net, int connection, uint32_t side) {
    struct vnet_side *from = side_of(net, connection, side);
    int status = mrc_qp_close(net->hosts[from->host].endpoint, net->now, from->local.number);

    if (status == MRC_OK) {
        take_events(net, from->host); /* what it flushed still counts as its own */
        from->is_closed = true;
    }
    vnet_wake(net, from->host, net->now);
    return status;
}

void vnet_hold(vnet *net, uint32_t host, bool held) {
    net->hosts[host].is_held = held;
    take_events(net, host);
    vnet_wake(net, host, net->now);
}

/* Whether the plane of an EV has none left that may be used. */
static bool is_barred(const struct vnet *net, const struct vnet_side *side, uint32_t ev) {
    mrc_ev_info evs[512];
    int count = mrc_qp_evs(net->hosts[side->host].endpoint, side->local.number, evs, 512);

    for (int i = 0; i < count; i++) {
        if (evs[i].plane == (ev >> 12 & 15) && evs[i].state != MRC_EV_DENIED)
            return false;
    }
    return true;
}

int vnet_deny(vnet *net, int connection, uint32_t side, uint32_t ev, bool deny) {
    struct vnet_side *from = side_of(net, connection, side);
    mrc_endpoint *endpoint = net->hosts[from->host].endpoint;
    int status = mrc_qp_deny(endpoint, net->now, from->local.number, ev, deny);
    uint32_t kept = 0;

    if (status < 0)
        return status;
    for (uint32_t i = 0; i < from->denied_count; i++) {
        if (from->denied[i] != ev)
            from->denied[kept++] = from->denied[i];
    }
    from->denied_count = kept;
    if (deny && kept < VNET_EVS_DENIED)
        from->denied[from->denied_count++] = ev;
    if (deny && is_barred(net, from, ev))
        net->hosts[from->host].is_uneven = true;
    vnet_wake(net, from->host, net->now);
    return status;
}

static uint64_t place_for(struct vnet *net, struct vnet_host *to, uint64_t size) {
    uint64_t offset;

    if (to->used + size > net->options.region_bytes)
        to->used = 0;
    offset = to->used;
    to->used += size + size % 7; /* a gap, which must stay as it is */
    return offset;
}

static void note_posted(struct vnet_side *from, const struct vnet_posted *posted) {
    if (from->posted_count == from->posted_room) {
        from->posted_room = 2 * from->posted_room + 64;
        from->posted = realloc(from->posted, from->posted_room * sizeof *from->posted);
        if (from->posted == NULL)
            abort();
    }
    from->posted[from->posted_count++] = *posted;
}

int vnet_write(vnet *net, int connection, uint32_t side, uint64_t size, uint64_t immediate,
               uint64_t offset, uint32_t key) {
    struct vnet_side *from = side_of(net, connection, side);
    struct vnet_host *host = &net->hosts[from->host];
    struct vnet_host *to = &net->hosts[from->other->host];
    bool is_free = offset == UINT64_MAX;
    uint64_t at = is_free ? place_for(net, to, size) : offset;
    bool is_inside = at <= net->options.region_bytes && size <= net->options.region_bytes - at;
    struct vnet_posted posted = {at, size, immediate, is_inside && key == 0};
    mrc_write write = {.qp = from->local.number,
                       .key = key != 0 ? key : to->key,
                       .va = REGION_VA + at,
                       .data = host->source + (is_inside ? at : 0),
                       .size = size,
                       .tag = from->posted_count,
                       .immediate = (uint32_t)immediate,
                       .has_immediate = immediate != UINT64_MAX};
    int status = mrc_qp_write(host->endpoint, net->now, &write);

    if (status < 0)
        return status;
    if (posted.is_checked)
        memcpy(to->model + at, host->source + at, size);
    if (from->completed == from->posted_count)
        from->progressed = net->now;
    note_posted(from, &posted);
    vnet_wake(net, from->host, net->now);
    return MRC_OK;
}
