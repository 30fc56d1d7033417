/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one simulation and prints the hash of its log: to be compared between builds.
 *
 * Two planes of two T0 with four hosts each under two T1; losses, marks, trims, a link that fails
 * and comes back, and an all-to-all whose flows wait for each other.
 */
#include <inttypes.h>
#include <stdio.h>

#include "mrc_sim.h"

enum {
    HOSTS = 8,
    PLANES = 2,
    T0 = 2,
    T1 = 2,
    BELOW = HOSTS / T0,
    SWITCHES = PLANES * (T0 + T1),
    T0_PORTS = BELOW + T1,
    PLANE_PORTS = T0 * T0_PORTS + T1 * T0,
    PORTS = HOSTS * PLANES + PLANES * PLANE_PORTS,
    FLOWS = HOSTS * (HOSTS - 1),
};

static mrc_sim_port ports[PORTS];
static mrc_sim_switch switches[SWITCHES];
static mrc_sim_flow flows[FLOWS];

static void join(uint32_t a, uint32_t b) {
    ports[a].peer = b;
    ports[b].peer = a;
}

static void make_plane(uint32_t plane) {
    uint32_t first = HOSTS * PLANES + plane * PLANE_PORTS;
    uint32_t t1_first = first + T0 * T0_PORTS;
    uint32_t number = plane * (T0 + T1);

    for (uint32_t i = 0; i < T0; i++) {
        uint32_t down = first + i * T0_PORTS;

        switches[number + i] = (mrc_sim_switch){i * BELOW, BELOW, 1, down, 1, down + BELOW, T1};
        for (uint32_t k = 0; k < T0_PORTS; k++)
            ports[down + k] = (mrc_sim_port){0, HOSTS + number + i, 1};
        for (uint32_t k = 0; k < BELOW; k++)
            join(down + k, (i * BELOW + k) * PLANES + plane);
    }
    for (uint32_t i = 0; i < T1; i++) {
        uint32_t down = t1_first + i * T0;

        switches[number + T0 + i] = (mrc_sim_switch){0, HOSTS, BELOW, down, 1, 0, 0};
        for (uint32_t k = 0; k < T0; k++) {
            ports[down + k] = (mrc_sim_port){0, HOSTS + number + T0 + i, 1};
            join(down + k, first + k * T0_PORTS + BELOW + i);
        }
    }
}

static void make_flows(void) {
    for (uint32_t i = 0; i < FLOWS; i++) {
        uint32_t source = i % HOSTS;

        flows[i] = (mrc_sim_flow){.bytes = 20000 + 1000 * i,
                                  .source = source,
                                  .destination = (source + 1 + i / HOSTS) % HOSTS,
                                  .after = i < 2 * HOSTS ? UINT32_MAX : i - 2 * HOSTS};
    }
}

int main(void) {
    const mrc_sim_kind kinds[] = {
        {.rate_bps = 100000000000, .delay = 1000000,
         .data_limit = UINT32_MAX, .control_limit = UINT32_MAX},
        {.rate_bps = 100000000000, .delay = 1000000, .jitter = 300000,
         .data_limit = 25000, .control_limit = 80000, .mark_from = 8000, .mark_to = 30000,
         .loss_ppm = 1000, .duplicate_ppm = 1000, .trim = true},
    };
    const mrc_sim_fault faults[] = {
        {.time = 5000000, .port = HOSTS * PLANES + BELOW, .kind = UINT32_MAX, .up = false},
        {.time = 60000000, .port = HOSTS * PLANES + BELOW, .kind = UINT32_MAX, .up = true},
    };
    mrc_sim_setup setup = {
        .seed = 7, .host_count = HOSTS, .planes = PLANES, .port_count = PORTS,
        .switch_count = SWITCHES, .kind_count = 2, .flow_count = FLOWS, .fault_count = 2,
        .ports = ports, .switches = switches, .kinds = kinds, .flows = flows, .faults = faults,
        .mtu = 4096, .mpr = 8, .chunks = 32, .warm_up = 100000000,
    };
    const char *problem;
    mrc_sim_totals totals;
    mrc_sim *sim;

    mrc_config_default(&setup.config);
    setup.config.trimming = true;
    for (uint32_t i = 0; i < HOSTS * PLANES; i++)
        ports[i] = (mrc_sim_port){0, i / PLANES, 0};
    for (uint32_t plane = 0; plane < PLANES; plane++)
        make_plane(plane);
    make_flows();
    sim = mrc_sim_new(&setup, &problem);
    if (sim == NULL) {
        fprintf(stderr, "%s\n", problem);
        return 1;
    }
    if (mrc_sim_run(sim, 1000000000000, true) != 1) {
        fprintf(stderr, "the flows did not end\n");
        return 1;
    }
    mrc_sim_get_totals(sim, &totals);
    printf("%016" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", totals.log_hash,
           totals.log_count, totals.lost, totals.trimmed);
    mrc_sim_free(sim);
    return 0;
}
