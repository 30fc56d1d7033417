/* SPDX-License-Identifier: Apache-2.0 */
/* Set-up, the loop, results. See mrc_sim.h. */
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

#define CLOCK_START ((int64_t)1000000000) /* ns: the endpoints' clock is never near 0 */

enum { PS = 1000, BUCKET_SHIFT = 10, RATE_FRACTION = 16 };

/* ---- Time and events ---- */

int64_t sim_clock(const struct mrc_sim *sim) { return CLOCK_START + sim->now / PS; }

int64_t sim_time_of(int64_t clock) {
    return clock - CLOCK_START > INT64_MAX / PS ? SIM_NEVER : (clock - CLOCK_START) * PS;
}

int64_t mrc_sim_now(const mrc_sim *sim) { return sim->now - sim->setup.warm_up; }

bool sim_is_host_port(const struct mrc_sim *sim, uint32_t port) {
    return port < sim->setup.host_count * sim->setup.planes;
}

void sim_schedule(struct mrc_sim *sim, int64_t time, enum sim_event kind, uint32_t index) {
    event_queue_push(&sim->events, time, (uint32_t)kind << SIM_INDEX_BITS | index);
}

static void handle(struct mrc_sim *sim, struct event event) {
    uint32_t index = sim_event_index(event);

    switch (sim_event_kind(event)) {
    case SIM_ARRIVAL:
        sim_on_arrival(sim, index);
        break;
    case SIM_PORT_FREE:
        sim_on_port_free(sim, index);
        break;
    case SIM_FAULT:
        sim_on_fault(sim, &sim->faults[index]);
        break;
    case SIM_FLOW:
        sim_on_flow(sim, index);
        break;
    case SIM_WAKE:
        sim_on_wake(sim, index);
        break;
    }
}

static bool has_ended(const struct mrc_sim *sim) {
    return sim->totals.flows_ended == sim->setup.flow_count;
}

int mrc_sim_run(mrc_sim *sim, int64_t until, bool until_ended) {
    int64_t end = until > INT64_MAX - sim->setup.warm_up ? INT64_MAX : until + sim->setup.warm_up;
    uint64_t turns = sim->events.turns;
    struct event event;

    while (!until_ended || !has_ended(sim)) {
        if (sim->has_failed || sim->events.has_failed)
            return MRC_ERROR_FULL;
        if (sim->setup.max_events != 0 && sim->totals.events >= sim->setup.max_events)
            return MRC_ERROR_STATE;
        if (!event_queue_peek(&sim->events, &event) || event.time > end) {
            sim->now = end > sim->now && end != INT64_MAX ? end : sim->now;
            break;
        }
        if (sim->events.turns != turns) {
            turns = sim->events.turns;
            sim_prefetch(sim, sim->events.near.events, sim->events.near.count);
        }
        event_queue_pop(&sim->events);
        sim->now = event.time;
        sim->totals.events++;
        handle(sim, event);
    }
    return has_ended(sim);
}

/* ---- The log ---- */

static uint64_t stir(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

void sim_log(struct mrc_sim *sim, const mrc_sim_record *record) {
    uint64_t hash = sim->totals.log_hash;

    hash = stir(hash, (uint64_t)mrc_sim_now(sim));
    hash = stir(hash, (uint64_t)record->what << 32 | record->subject);
    hash = stir(hash, (uint64_t)record->ev << 32 | record->psn);
    hash = stir(hash, (uint64_t)record->size << 32 | record->code);
    sim->totals.log_hash = hash;
    if (sim->log != NULL) {
        mrc_sim_record *kept = &sim->log[sim->totals.log_count % sim->setup.log_room];

        *kept = *record;
        kept->time = mrc_sim_now(sim);
    }
    sim->totals.log_count++;
}

uint32_t mrc_sim_get_log(const mrc_sim *sim, mrc_sim_record *records, uint32_t room) {
    uint64_t count = sim->totals.log_count;
    uint64_t kept = count < sim->setup.log_room ? count : sim->setup.log_room;

    kept = kept < room ? kept : room;
    for (uint64_t i = 0; i < kept; i++)
        records[i] = sim->log[(count - kept + i) % sim->setup.log_room];
    return (uint32_t)kept;
}

/* ---- Set-up ---- */

static const char *check_kinds(const mrc_sim_setup *setup) {
    for (uint32_t i = 0; i < setup->kind_count; i++) {
        const mrc_sim_kind *kind = &setup->kinds[i];

        if (kind->rate_bps < 1000000 || kind->delay < 0 || kind->loss_ppm > 1000000 ||
            kind->duplicate_ppm > 1000000)
            return "a link has at least 1 Mb/s, a delay, and loses or doubles at most 10^6 ppm";
        if (kind->jitter < 0 || kind->jitter > UINT32_MAX)
            return "jitter is not negative and below 2^32 ps";
        if (kind->mark_to != 0 && kind->mark_to <= kind->mark_from)
            return "a marking ramp ends above its beginning";
    }
    return NULL;
}

static const char *check_ports(const mrc_sim_setup *setup) {
    uint32_t host_ports = setup->host_count * setup->planes;

    for (uint32_t i = 0; i < setup->port_count; i++) {
        const mrc_sim_port *port = &setup->ports[i];

        if (port->peer >= setup->port_count || port->peer == i ||
            setup->ports[port->peer].peer != i)
            return "a port's peer has it as its own peer";
        if (port->kind >= setup->kind_count ||
            port->node >= setup->host_count + setup->switch_count)
            return "a port has a kind and a node that exist";
        if ((i < host_ports) != (port->node < setup->host_count) ||
            (i < host_ports && port->node != i / setup->planes))
            return "the first ports are the hosts', in order of host and plane";
    }
    return NULL;
}

static bool owns(const mrc_sim_setup *setup, uint32_t number, uint64_t first, uint64_t count) {
    if (first + count > setup->port_count)
        return false;
    for (uint64_t i = first; i < first + count; i++) {
        if (setup->ports[i].node != setup->host_count + number)
            return false;
    }
    return true;
}

static const char *check_switches(const mrc_sim_setup *setup) {
    for (uint32_t i = 0; i < setup->switch_count; i++) {
        const mrc_sim_switch *at = &setup->switches[i];
        uint64_t groups;

        if (at->group == 0)
            return "a switch's group has at least one host";
        groups = ((uint64_t)at->host_count + at->group - 1) / at->group;
        if (!owns(setup, i, at->down_first, groups * at->down_width) ||
            !owns(setup, i, at->up_first, at->up_count))
            return "a switch routes by its own ports";
    }
    return NULL;
}

static const char *check_faults(const mrc_sim_setup *setup) {
    for (uint32_t i = 0; i < setup->fault_count; i++) {
        const mrc_sim_fault *fault = &setup->faults[i];

        if (fault->time < -setup->warm_up || fault->port >= setup->port_count ||
            (fault->kind >= setup->kind_count && fault->kind != SIM_NONE))
            return "a fault has a time, a port and a kind that exist";
    }
    return NULL;
}

static const char *check(const mrc_sim_setup *setup) {
    const uint32_t most = 1u << SIM_INDEX_BITS;
    const char *problem;

    if (setup->host_count == 0 || setup->planes == 0 || setup->planes > MRC_PLANES ||
        setup->port_count >= most || setup->switch_count >= most || setup->flow_count >= most ||
        setup->fault_count >= most || setup->kind_count > UINT16_MAX ||
        (uint64_t)setup->host_count * setup->planes > setup->port_count)
        return "there is at least one host, with 1 to 16 planes, and fewer than 2^29 of anything";
    if (setup->warm_up < 0 || setup->warm_up > INT64_MAX / 2)
        return "the warm-up is not negative";
    if (setup->mtu == 0)
        return "packets have an mtu";
    problem = check_kinds(setup);
    problem = problem != NULL ? problem : check_ports(setup);
    problem = problem != NULL ? problem : check_switches(setup);
    return problem != NULL ? problem : check_faults(setup);
}

static void init_kind(struct sim_kind *kind, const mrc_sim_kind *from) {
    *kind = (struct sim_kind){
        .rules = {.data_limit = from->data_limit,
                  .control_limit = from->control_limit,
                  .mark_from = from->mark_from,
                  .mark_to = from->mark_to,
                  .control_weight = from->control_weight,
                  .trim = from->trim},
        .ps_per_byte = (8000000000000ull << RATE_FRACTION) / from->rate_bps,
        .rate_bps = from->rate_bps,
        .delay = from->delay,
        .jitter = from->jitter,
        .duplicate_ppm = from->duplicate_ppm,
        .loss_ppm = from->loss_ppm,
    };
}

static void init_network(struct mrc_sim *sim, const mrc_sim_setup *setup) {
    struct prng salts;

    prng_init(&sim->loss, setup->seed, 0);
    prng_init(&sim->marks, setup->seed, 1);
    prng_init(&salts, setup->seed, UINT64_MAX - 1);
    prng_init(&sim->jitter, setup->seed, UINT64_MAX - 2);
    prng_init(&sim->copies, setup->seed, UINT64_MAX - 3);
    sim->free = SIM_NONE;
    for (uint32_t i = 0; i < setup->kind_count; i++)
        init_kind(&sim->kinds[i], &setup->kinds[i]);
    for (uint32_t i = 0; i < setup->switch_count; i++)
        sim->switches[i] = (struct sim_switch){setup->switches[i], prng_next(&salts)};
    for (uint32_t i = 0; i < setup->port_count; i++) {
        sim->ports[i] = (struct sim_port){.data = {SIM_NONE, SIM_NONE},
                                          .control = {SIM_NONE, SIM_NONE},
                                          .peer = setup->ports[i].peer,
                                          .next = setup->ports[setup->ports[i].peer].node,
                                          .kind = (uint16_t)setup->ports[i].kind,
                                          .is_up = true};
    }
    for (uint32_t i = 0; i < setup->fault_count; i++) {
        sim->faults[i] = setup->faults[i];
        sim_schedule(sim, sim->faults[i].time + setup->warm_up, SIM_FAULT, i);
    }
}

/* Byte i of what every flow writes is i * 131 + i / 256, modulo 256. */
static bool make_pattern(struct mrc_sim *sim, const mrc_sim_setup *setup) {
    uint64_t size = 1;

    for (uint32_t i = 0; i < setup->flow_count; i++)
        size = setup->flows[i].bytes > size ? setup->flows[i].bytes : size;
    sim->pattern = malloc(size);
    for (uint64_t i = 0; sim->pattern != NULL && i < size; i++)
        sim->pattern[i] = (uint8_t)(i * 131 + (i >> 8));
    return sim->pattern != NULL;
}

/* A table of at least one element. */
static void *table(size_t count, size_t size) { return calloc(count + 1, size); }

static bool take_memory(struct mrc_sim *sim, const mrc_sim_setup *setup) {
    sim->ports = aligned_alloc(SIM_CACHE_LINE, (setup->port_count + 1ull) * sizeof *sim->ports);
    sim->harm = table(setup->port_count, sizeof *sim->harm);
    sim->switches = table(setup->switch_count, sizeof *sim->switches);
    sim->kinds = table(setup->kind_count, sizeof *sim->kinds);
    sim->hosts = table(setup->host_count, sizeof *sim->hosts);
    sim->flows = table(setup->flow_count, sizeof *sim->flows);
    sim->faults = table(setup->fault_count, sizeof *sim->faults);
    if (setup->log_room > 0)
        sim->log = table(setup->log_room, sizeof *sim->log);
    return sim->ports != NULL && sim->harm != NULL && sim->switches != NULL && sim->kinds != NULL &&
           sim->hosts != NULL && sim->flows != NULL && sim->faults != NULL &&
           (setup->log_room == 0 || sim->log != NULL) &&
           (!setup->payload || make_pattern(sim, setup));
}

static const char *build(struct mrc_sim *sim, const mrc_sim_setup *setup) {
    const char *problem;

    sim->setup = *setup;
    event_queue_init(&sim->events, BUCKET_SHIFT);
    if (!take_memory(sim, setup))
        return "no memory";
    init_network(sim, setup);
    for (uint32_t i = 0; i < setup->flow_count; i++)
        sim->flows[i].asked = setup->flows[i];
    problem = sim_plan_flows(sim);
    problem = problem != NULL ? problem : sim_make_hosts(sim);
    return problem != NULL ? problem : sim_connect(sim);
}

mrc_sim *mrc_sim_new(const mrc_sim_setup *setup, const char **problem) {
    struct mrc_sim *sim;

    *problem = check(setup);
    if (*problem != NULL)
        return NULL;
    sim = calloc(1, sizeof *sim);
    *problem = sim == NULL ? "no memory" : build(sim, setup);
    if (*problem == NULL)
        return sim;
    mrc_sim_free(sim);
    return NULL;
}

static void free_packets(struct mrc_sim *sim) {
    /* Only those in use may have bytes; those that are free gave them back. */
    if (sim->setup.payload) {
        for (uint32_t i = sim->free; i != SIM_NONE; i = sim_packet(sim, i)->next)
            sim_packet(sim, i)->bytes = NULL;
        for (uint32_t i = 0; i < sim->packets_made; i++)
            free(sim_packet(sim, i)->bytes);
    }
    for (uint32_t i = 0; i < sim->slab_count; i++)
        free(sim->slabs[i]);
    free(sim->slabs);
}

void mrc_sim_free(mrc_sim *sim) {
    if (sim == NULL)
        return;
    free_packets(sim);
    for (uint32_t i = 0; sim->hosts != NULL && i < sim->setup.host_count; i++)
        free(sim->hosts[i].memory);
    event_queue_free(&sim->events);
    free(sim->ports);
    free(sim->harm);
    free(sim->switches);
    free(sim->kinds);
    free(sim->hosts);
    free(sim->endpoints);
    free(sim->flows);
    free(sim->connections);
    free(sim->faults);
    free(sim->pattern);
    free(sim->log);
    free(sim);
}

/* ---- Results ---- */

void mrc_sim_get_totals(const mrc_sim *sim, mrc_sim_totals *totals) {
    *totals = sim->totals;
    totals->fabric_bytes = sim->setup.port_count * (sizeof *sim->ports + sizeof *sim->harm) +
                           sim->setup.switch_count * sizeof *sim->switches +
                           (uint64_t)sim->slab_count * SIM_SLAB * sizeof(struct sim_packet) +
                           event_queue_bytes(&sim->events);
    for (uint32_t i = 0; i < sim->setup.host_count; i++) {
        mrc_counters counters;

        mrc_endpoint_counters(sim->hosts[i].endpoint, &counters);
        totals->drop_rate += counters.drop_rate;
        totals->controls_full += counters.controls_full;
        totals->drop_stale += counters.drop_stale;
        totals->writes += counters.writes;
        totals->chunks += counters.chunks;
        totals->immediates += counters.immediates;
        totals->controls += counters.controls;
    }
}

void mrc_sim_get_times(const mrc_sim *sim, mrc_sim_times *times) {
    for (uint32_t i = 0; i < sim->setup.flow_count; i++)
        times[i] = sim->flows[i].times;
}

uint32_t mrc_sim_qp_count(const mrc_sim *sim) { return 2 * sim->connection_count; }

static uint32_t planes_up(const struct mrc_sim *sim, uint32_t host, uint32_t peer) {
    uint32_t mask = 0;
    mrc_plane_stats stats;

    for (uint32_t i = 0; i < sim->setup.planes; i++) {
        if (mrc_peer_stats(sim->hosts[host].endpoint, peer, i, &stats) == MRC_OK)
            mask |= (uint32_t)(stats.state == MRC_PLANE_UP) << i;
    }
    return mask;
}

void mrc_sim_get_qps(const mrc_sim *sim, mrc_sim_qp *qps) {
    for (uint32_t i = 0; i < mrc_sim_qp_count(sim); i++) {
        const struct sim_connection *connection = &sim->connections[i / 2];
        uint32_t host = connection->host[i % 2];
        mrc_qp_stats stats = {0};

        mrc_qp_get_stats(sim->hosts[host].endpoint, connection->qp[i % 2].number, &stats);
        qps[i] = (mrc_sim_qp){
            .host = host,
            .peer = connection->host[!(i % 2)],
            .bytes_received = stats.bytes_received,
            .packets_sent = stats.packets_sent,
            .packets_retransmitted = stats.packets_retransmitted,
            .packets_spurious = stats.packets_spurious,
            .timeouts = stats.timeouts,
            .probes_sent = stats.probes_sent,
            .sacks_received = stats.sacks_received,
            .nacks_received = stats.nacks_received,
            .cwnd = stats.cwnd,
            .rtt = stats.rtt,
            .evs_good = stats.evs_good,
            .evs_bad = stats.evs_bad,
            .planes_up = planes_up(sim, host, connection->peer[i % 2]),
            .error = stats.error,
        };
    }
}

int mrc_sim_get_evs(const mrc_sim *sim, uint32_t qp, mrc_ev_info *evs, uint32_t room) {
    const struct sim_connection *connection;

    if (qp >= mrc_sim_qp_count(sim))
        return MRC_ERROR_NOT_FOUND;
    connection = &sim->connections[qp / 2];
    return mrc_qp_evs(sim->hosts[connection->host[qp % 2]].endpoint,
                      connection->qp[qp % 2].number, evs, room);
}

void mrc_sim_get_ports(const mrc_sim *sim, mrc_sim_port_stats *stats) {
    for (uint32_t i = 0; i < sim->setup.port_count; i++) {
        const struct sim_port *port = &sim->ports[i];

        stats[i] = (mrc_sim_port_stats){
            .sent = port->sent,
            .sent_bytes = port->sent_bytes,
            .waiting = port->depth.data,
            .waiting_peak = port->waiting_peak,
            .marked = sim->harm[i].marked,
            .trimmed = sim->harm[i].trimmed,
            .dropped = sim->harm[i].dropped,
            .lost = sim->harm[i].lost,
        };
    }
}

const uint8_t *mrc_sim_memory(const mrc_sim *sim, uint32_t host, uint64_t *size) {
    *size = host < sim->setup.host_count ? sim->hosts[host].memory_size : 0;
    return host < sim->setup.host_count ? sim->hosts[host].memory : NULL;
}
