/* SPDX-License-Identifier: Apache-2.0 */
/* Connections, flows and what they wait for.
 *
 * A flow is one write with immediate; the immediate and the tag are its number, so that either end
 * knows it again. Two hosts share one connection.
 */
#include <stdlib.h>

#include "sim/sim.h"

enum { MAX_WIMM = 255 };

/* ---- Set-up ---- */

static uint64_t pair_of(const mrc_sim_flow *flow) {
    uint32_t low = flow->source < flow->destination ? flow->source : flow->destination;

    return (uint64_t)low << 32 | (flow->source ^ flow->destination ^ low);
}

static int compare(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

static const char *check(const struct mrc_sim *sim, uint32_t number) {
    const mrc_sim_flow *flow = &sim->flows[number].asked;
    uint32_t hosts = sim->setup.host_count;

    if (flow->source >= hosts || flow->destination >= hosts || flow->source == flow->destination)
        return "a flow needs two hosts";
    if (flow->bytes > 1u << 30 || flow->start < 0)
        return "a flow has at most 2^30 bytes, and does not start before 0";
    if (flow->after == SIM_NONE)
        return NULL;
    if (flow->after >= number)
        return "a flow waits only for one before it";
    if (sim->flows[flow->after].asked.source != flow->source &&
        sim->flows[flow->after].asked.destination != flow->source)
        return "a flow waits only for one that its source sends or receives";
    return NULL;
}

/* Every two hosts once, sorted; NULL: no memory. */
static uint64_t *find_pairs(const struct mrc_sim *sim, uint32_t *count) {
    uint64_t *pairs = malloc(((size_t)sim->setup.flow_count + 1) * sizeof *pairs);

    *count = 0;
    if (pairs == NULL)
        return NULL;
    for (uint32_t i = 0; i < sim->setup.flow_count; i++)
        pairs[i] = pair_of(&sim->flows[i].asked);
    qsort(pairs, sim->setup.flow_count, sizeof *pairs, compare);
    for (uint32_t i = 0; i < sim->setup.flow_count; i++) {
        if (*count == 0 || pairs[*count - 1] != pairs[i])
            pairs[(*count)++] = pairs[i];
    }
    return pairs;
}

static void plan_flow(struct mrc_sim *sim, uint32_t number, const uint64_t *pairs) {
    struct sim_flow *flow = &sim->flows[number];
    uint64_t pair = pair_of(&flow->asked);
    const uint64_t *found =
        bsearch(&pair, pairs, sim->connection_count, sizeof pair, compare);
    uint32_t after = flow->asked.after;

    flow->connection = (uint32_t)(found - pairs);
    flow->times = (mrc_sim_times){
        .started = INT64_MAX,
        .received = INT64_MAX,
        .completed = INT64_MAX,
        .qp = 2 * flow->connection +
              (sim->connections[flow->connection].host[1] == flow->asked.source),
    };
    flow->dependent = SIM_NONE;
    flow->offset = sim->hosts[flow->asked.destination].memory_size;
    sim->hosts[flow->asked.destination].memory_size += flow->asked.bytes;
    sim->hosts[flow->asked.destination].receives++;
    sim->hosts[flow->asked.source].sends++;
    sim->hosts[flow->asked.source].sends_packets += flow->asked.bytes / sim->setup.mtu + 1;
    if (after == SIM_NONE) {
        sim_schedule(sim, flow->asked.start + sim->setup.warm_up, SIM_FLOW, number);
    } else {
        flow->next_dependent = sim->flows[after].dependent;
        sim->flows[after].dependent = number;
    }
}

const char *sim_plan_flows(struct mrc_sim *sim) {
    const char *problem = NULL;
    uint64_t *pairs;

    for (uint32_t i = 0; i < sim->setup.flow_count && problem == NULL; i++)
        problem = check(sim, i);
    if (problem != NULL)
        return problem;
    pairs = find_pairs(sim, &sim->connection_count);
    sim->connections = calloc((size_t)sim->connection_count + 1, sizeof *sim->connections);
    if (pairs == NULL || sim->connections == NULL) {
        free(pairs);
        return "no memory for the connections";
    }
    for (uint32_t i = 0; i < sim->connection_count; i++) {
        uint32_t ends[2] = {(uint32_t)(pairs[i] >> 32), (uint32_t)pairs[i]};

        for (uint32_t side = 0; side < 2; side++) {
            sim->connections[i].host[side] = ends[side];
            sim->hosts[ends[side]].peers++;
        }
    }
    for (uint32_t i = 0; i < sim->setup.flow_count; i++)
        plan_flow(sim, i, pairs);
    free(pairs);
    return NULL;
}

static int connect_sides(struct mrc_sim *sim, struct sim_connection *connection) {
    int64_t now = sim_clock(sim);
    int status = MRC_OK;

    for (uint32_t side = 0; side < 2 && status >= 0; side++) {
        status = sim_add_peer(sim, connection->host[side], connection->host[!side]);
        connection->peer[side] = (uint32_t)status;
        connection->qp[side] = (mrc_qp_attributes){.mtu = sim->setup.mtu,
                                                   .mpr = sim->setup.mpr,
                                                   .max_wimm = MAX_WIMM,
                                                   .trim_nack = sim->setup.config.trimming};
        if (status >= 0)
            status = mrc_qp_create(sim->hosts[connection->host[side]].endpoint, now, SIM_DOMAIN,
                                   UINT32_MAX, &connection->qp[side]);
    }
    for (uint32_t side = 0; side < 2 && status >= 0; side++)
        status = mrc_qp_connect(sim->hosts[connection->host[side]].endpoint, now,
                                connection->qp[side].number, connection->peer[side],
                                &connection->qp[!side]);
    return status;
}

const char *sim_connect(struct mrc_sim *sim) {
    for (uint32_t i = 0; i < sim->connection_count; i++) {
        if (connect_sides(sim, &sim->connections[i]) < 0)
            return "the endpoints refuse the connections: mtu or mpr is not valid";
    }
    for (uint32_t i = 0; i < sim->setup.flow_count; i++) {
        const struct sim_flow *flow = &sim->flows[i];
        const struct sim_connection *connection = &sim->connections[flow->connection];

        mrc_qp_post_receive(sim->hosts[flow->asked.destination].endpoint,
                            connection->qp[!(flow->times.qp % 2)].number, 1);
    }
    for (uint32_t i = 0; i < sim->setup.host_count; i++)
        sim_service(sim, i);
    return NULL;
}

/* ---- Running ---- */

static void note(struct mrc_sim *sim, enum mrc_sim_what what, uint32_t subject, int code) {
    mrc_sim_record record = {.what = what, .subject = subject, .code = (uint32_t)code};

    sim_log(sim, &record);
}

/* Those whose source is the host that has just seen the flow end may start, or fail in turn. */
static void release(struct mrc_sim *sim, const struct sim_flow *flow, uint32_t host) {
    for (uint32_t i = flow->dependent; i != SIM_NONE; i = sim->flows[i].next_dependent) {
        const mrc_sim_flow *next = &sim->flows[i].asked;
        int64_t start = next->start + sim->setup.warm_up;

        if (next->source == host)
            sim_schedule(sim, start > sim->now ? start : sim->now, SIM_FLOW, i);
    }
}

static void complete(struct mrc_sim *sim, uint32_t number, int status) {
    struct sim_flow *flow = &sim->flows[number];

    flow->times.completed = mrc_sim_now(sim);
    flow->times.status = status;
    sim->totals.flows_ended++;
    sim->totals.flows_failed += status != MRC_OK;
    note(sim, MRC_SIM_COMPLETED, number, status);
    release(sim, flow, flow->asked.source);
    /* Nobody will see its arrival: those that wait for it fail too. */
    if (status != MRC_OK && flow->times.received == INT64_MAX)
        release(sim, flow, flow->asked.destination);
}

void sim_on_flow(struct mrc_sim *sim, uint32_t number) {
    struct sim_flow *flow = &sim->flows[number];
    const struct sim_connection *connection = &sim->connections[flow->connection];
    mrc_write write = {
        .qp = connection->qp[flow->times.qp % 2].number,
        .key = SIM_KEY,
        .va = SIM_VA + flow->offset,
        .data = sim->pattern != NULL ? sim->pattern : sim->frame, /* without payload not read */
        .size = flow->asked.bytes,
        .tag = number,
        .immediate = number,
        .has_immediate = true,
    };
    uint32_t after = flow->asked.after;
    int status = after == SIM_NONE ? MRC_OK : sim->flows[after].times.status;

    flow->times.started = mrc_sim_now(sim);
    note(sim, MRC_SIM_STARTED, number, MRC_OK);
    if (status == MRC_OK)
        status = mrc_qp_write(sim->hosts[flow->asked.source].endpoint, sim_clock(sim), &write);
    if (status != MRC_OK)
        complete(sim, number, status);
    sim_service(sim, flow->asked.source);
}

void sim_on_event(struct mrc_sim *sim, uint32_t host, const mrc_event *event) {
    mrc_sim_record record = {
        .what = MRC_SIM_EV, .subject = host, .ev = event->ev, .code = event->state};
    struct sim_flow *flow;

    switch (event->type) {
    case MRC_EVENT_RECEIVE:
        flow = &sim->flows[event->immediate];
        flow->times.received = mrc_sim_now(sim);
        sim->totals.flows_received++;
        note(sim, MRC_SIM_RECEIVED, event->immediate, MRC_OK);
        release(sim, flow, host);
        break;
    case MRC_EVENT_WRITE:
        complete(sim, (uint32_t)event->tag, event->status);
        break;
    case MRC_EVENT_QP:
        note(sim, MRC_SIM_FAILED, host, event->status);
        break;
    case MRC_EVENT_PLANE:
        record.what = MRC_SIM_PLANE;
        record.ev = event->plane;
        sim_log(sim, &record);
        break;
    default:
        sim_log(sim, &record);
        break;
    }
}
