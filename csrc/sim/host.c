/* SPDX-License-Identifier: Apache-2.0 */
/* The loop around an endpoint's five verbs.
 *
 * A host takes in each packet as it comes, as a NIC does: SACKs follow sack_threshold and
 * sack_delay. Its port holds one packet on the link and one that waits; then the plane is busy.
 */
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "encap.h"
#include "sim/sim.h"

enum {
    LINK_MTU = 9216,
    IPV6_AT = ENCAP_ETHERNET_SIZE,
    CLASS_SHIFT = 20, /* of the traffic class in the first word */
    CONTROLS = 8, /* emptied after every packet, as */
    EVENTS = 16,
    CHUNK_PACKETS = 64,
};

/* ---- The verbs ---- */

static void set_busy(struct sim_host *host, uint32_t plane, bool is_busy) {
    if ((host->busy >> plane & 1) == is_busy)
        return;
    host->busy ^= 1u << plane;
    mrc_endpoint_set_busy(host->endpoint, plane, is_busy);
}

static void rearm(struct mrc_sim *sim, uint32_t number) {
    struct sim_host *host = &sim->hosts[number];
    int64_t deadline = mrc_endpoint_deadline(host->endpoint);
    int64_t time = deadline == INT64_MAX ? SIM_NEVER : sim_time_of(deadline);

    if (time >= host->wake_at)
        return; /* an earlier look plans the next one */
    host->wake_at = time < sim->now ? sim->now : time;
    sim_schedule(sim, host->wake_at, SIM_WAKE, number);
}

static void poll_events(struct mrc_sim *sim, uint32_t number) {
    mrc_event event;

    while (mrc_endpoint_poll(sim->hosts[number].endpoint, &event))
        sim_on_event(sim, number, &event);
}

void sim_service(struct mrc_sim *sim, uint32_t number) {
    struct sim_host *host = &sim->hosts[number];

    while (mrc_endpoint_transmit(host->endpoint, sim_clock(sim), &sim->out)) {
        uint32_t plane = sim->out.plane;

        sim_send(sim, number, &sim->out);
        if (sim->ports[number * sim->setup.planes + plane].depth.data > 0)
            set_busy(host, plane, true);
    }
    poll_events(sim, number);
    rearm(sim, number);
}

void sim_on_wake(struct mrc_sim *sim, uint32_t number) {
    struct sim_host *host = &sim->hosts[number];

    if (host->wake_at != sim->now)
        return; /* an earlier one was planned meanwhile, and looked */
    host->wake_at = SIM_NEVER;
    mrc_endpoint_timeout(host->endpoint, sim_clock(sim));
    sim_service(sim, number);
}

void sim_on_room(struct mrc_sim *sim, uint32_t port) {
    uint32_t host = port / sim->setup.planes;

    set_busy(&sim->hosts[host], port % sim->setup.planes, false);
    sim_service(sim, host);
}

/* Writes what the network did to the packet into its headers. */
static void stamp(const struct sim_packet *packet, uint8_t *frame) {
    uint32_t word = get_be32(frame + IPV6_AT);

    if (packet->is_marked)
        word |= (uint32_t)ENCAP_ECN_CE << CLASS_SHIFT;
    if (packet->trimmed != 0)
        word = (word & ~(0xFCu << CLASS_SHIFT)) | (uint32_t)packet->trimmed << (CLASS_SHIFT + 2);
    put_be32(frame + IPV6_AT, word);
}

void sim_deliver(struct mrc_sim *sim, uint32_t port, const struct sim_packet *packet) {
    mrc_endpoint *endpoint = sim->hosts[port / sim->setup.planes].endpoint;
    mrc_frame_in in = {
        .plane = port % sim->setup.planes, .size = packet->size, .data = sim->frame};

    if (packet->bytes != NULL)
        memcpy(sim->frame, packet->bytes, packet->size);
    else
        memcpy(sim->frame, packet->headers, packet->header_size);
    if (packet->is_marked || packet->trimmed != 0)
        stamp(packet, sim->frame);
    mrc_endpoint_receive(endpoint, sim_clock(sim), &in);
}

/* ---- Set-up ---- */

static mrc_address address_of(uint32_t host, uint32_t plane) {
    mrc_address address = {.version = 6, .bytes = {0xFD}};

    address.bytes[7] = (uint8_t)plane;
    put_be32(address.bytes + 12, host);
    return address;
}

static void tell_port(struct mrc_sim *sim, uint32_t number) {
    const struct sim_port *port = &sim->ports[number];
    uint32_t plane = number % sim->setup.planes;
    uint32_t host = number / sim->setup.planes;
    mrc_plane info = {.address = address_of(host, plane),
                      .mtu = LINK_MTU,
                      .rate_bps = sim->kinds[port->kind].rate_bps,
                      .up = port->is_up,
                      .enabled = true};

    mrc_endpoint_set_plane(sim->hosts[host].endpoint, sim_clock(sim), plane, &info);
}

void sim_on_port_changed(struct mrc_sim *sim, uint32_t port) {
    tell_port(sim, port);
    sim_service(sim, port / sim->setup.planes);
}

int sim_add_peer(struct mrc_sim *sim, uint32_t host, uint32_t peer) {
    static const uint8_t mac[6] = {2};
    mrc_peer_setup setup = {.incarnation = peer};
    mrc_endpoint *endpoint = sim->hosts[host].endpoint;
    int number;

    for (uint32_t i = 0; i < sim->setup.planes; i++) {
        setup.addresses[i] = address_of(peer, i);
        setup.remote_planes[i] = (uint8_t)i;
    }
    number = mrc_peer_add(endpoint, sim_clock(sim), &setup);
    for (uint32_t i = 0; number >= 0 && i < sim->setup.planes; i++)
        mrc_peer_set_neighbour(endpoint, sim_clock(sim), (uint32_t)number, i, mac);
    return number;
}

static uint32_t at_least(uint32_t value, uint32_t least) { return value > least ? value : least; }

/* For all its packets, which may begin and end inside a chunk, but at most as many as allowed. */
static uint32_t chunks_of(const struct mrc_sim *sim, const struct sim_host *host) {
    uint64_t partial = (uint64_t)host->peers * (CHUNK_PACKETS - 2);
    uint64_t needed = (host->sends_packets + partial) / CHUNK_PACKETS + host->peers;

    needed = needed < sim->setup.chunks ? needed : sim->setup.chunks;
    return host->sends > 0 && needed > 1 ? (uint32_t)needed : 1;
}

/* Tables just as large as the host's flows need: a NIC must not cost more than it is used. */
static mrc_config config_of(const struct mrc_sim *sim, uint32_t number) {
    const struct sim_host *host = &sim->hosts[number];
    mrc_config config = sim->setup.config;
    uint32_t planes = sim->setup.planes;
    uint32_t probes = 16;

    /* A plane that comes up takes three probes, and asks with two more when it is in doubt. */
    while (probes < 4 * planes * host->peers && probes < 1 << 15)
        probes *= 2;
    config.max_qps = at_least(host->peers, 1);
    config.max_peers = at_least(host->peers, 1);
    config.max_regions = 1;
    config.max_writes = at_least(host->sends, 1);
    config.max_chunks = chunks_of(sim, host);
    config.max_immediates = host->receives + 2;
    config.max_controls = CONTROLS;
    config.max_events = EVENTS;
    config.max_probes = probes;
    config.max_resting = 1;
    config.incarnation = number;
    config.qp_prefix = 1;
    config.burst = 1;
    config.headers_only = !sim->setup.payload;
    return config;
}

static size_t size_of(const struct mrc_sim *sim, uint32_t number) {
    mrc_config config = config_of(sim, number);

    return mrc_endpoint_size(&config);
}

/* Without payload the region has no memory: it is never written. */
static bool register_memory(struct mrc_sim *sim, struct sim_host *host) {
    mrc_region region = {.base = host,
                         .va = SIM_VA,
                         .size = host->memory_size,
                         .key = SIM_KEY,
                         .domain = SIM_DOMAIN};

    if (sim->setup.payload) {
        host->memory = calloc(1, host->memory_size + 1);
        region.base = host->memory;
        if (host->memory == NULL)
            return false;
    }
    return mrc_endpoint_register(host->endpoint, &region) == MRC_OK;
}

const char *sim_make_hosts(struct mrc_sim *sim) {
    size_t total = 0;
    size_t used = 0;

    for (uint32_t i = 0; i < sim->setup.host_count; i++) {
        size_t size = size_of(sim, i);

        if (size == 0)
            return "the endpoints' configuration is not valid";
        total += size;
    }
    sim->totals.host_bytes = total + sim->setup.host_count * sizeof *sim->hosts;
    sim->endpoints = aligned_alloc(SIM_CACHE_LINE, total + SIM_CACHE_LINE - total % SIM_CACHE_LINE);
    if (sim->endpoints == NULL)
        return "no memory for the endpoints";
    for (uint32_t i = 0; i < sim->setup.host_count; i++) {
        struct sim_host *host = &sim->hosts[i];
        mrc_config config = config_of(sim, i);
        struct prng prng;

        prng_init(&prng, sim->setup.seed, (uint64_t)i + 2);
        host->endpoint = mrc_endpoint_init(sim->endpoints + used, &config, prng.state);
        used += size_of(sim, i);
        host->wake_at = SIM_NEVER;
        if (!register_memory(sim, host))
            return "no memory for what the flows write";
        for (uint32_t plane = 0; plane < sim->setup.planes; plane++)
            tell_port(sim, i * sim->setup.planes + plane);
    }
    return NULL;
}
