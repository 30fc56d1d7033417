/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of an endpoint: defaults, and what is allowed. Source: MRC 1.0. */
#include "config.h"

#include <string.h>

#define MS ((int64_t)1000000)
#define SECOND (1000 * MS)

void mrc_config_default(mrc_config *config) {
    memset(config, 0, sizeof *config);
    config->max_qps = 256;
    config->max_peers = 64;
    config->max_regions = 4096;
    config->max_writes = 4096;
    config->max_chunks = 2048;
    config->max_immediates = 4096;
    config->max_controls = 1024;
    config->max_events = 1024;
    config->max_probes = 512;
    config->max_resting = 1024;
    config->udp_port = 4791;
    config->dscp_control = 46;
    config->dscp_trimmed = 12;
    config->dscp_trimmed_lasthop = 16;
    config->dscp_trimmable = 4;
    config->dscp_trimmable_retx = 8;
    config->dscp_no_trim = 0;
    config->ev_count = 128;
    config->ev_backup = 8;
    config->ev_min_active = 4;
    config->probes_to_revive = 3;
    config->revive_spread = 100 * MS;
    config->plane_probe = 50 * MS;
    config->probe_max = 5 * SECOND;
    config->policy = MRC_POLICY_ADAPTIVE;
    config->linear_cnt = 7;
    config->exp_cnt = 25;
    config->dead_after = 10 * SECOND;
    config->linger = 2 * SECOND;
    config->burst = MRC_BURST;
    config->sack_threshold = 16384;
    config->sack_delay = MS / 10;
}

static bool sizes_are_valid(const mrc_config *config) {
    enum { MOST = 1 << 20 };
    uint32_t sizes[] = {config->max_qps,        config->max_peers,    config->max_regions,
                        config->max_writes,     config->max_chunks,   config->max_immediates,
                        config->max_controls,   config->max_events,   config->max_resting};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i] == 0 || sizes[i] > MOST)
            return false;
    }
    /* Half of the numbers that one prefix has; a request's number has 16 bits. */
    return config->max_qps <= 32768 && config->max_probes >= 2 && config->max_probes <= 32768 &&
           (config->max_probes & (config->max_probes - 1)) == 0;
}

static bool classes_are_valid(const mrc_config *config) {
    uint8_t data[] = {config->dscp_trimmable, config->dscp_trimmable_retx, config->dscp_no_trim,
                      config->dscp_control};

    for (size_t i = 0; i < sizeof data; i++) {
        if (data[i] > 63 || data[i] == config->dscp_trimmed ||
            data[i] == config->dscp_trimmed_lasthop)
            return false;
    }
    return config->dscp_trimmed <= 63 && config->dscp_trimmed_lasthop <= 63;
}

static bool times_are_valid(const mrc_config *config) {
    return config->revive_spread >= 0 && config->plane_probe > 0 && config->probe_max > 0 &&
           config->ack_timeout >= 0 && config->dead_after > 0 && config->linger >= 0 &&
           config->sack_delay >= 0 && config->base_rtt_floor >= 0 &&
           config->target_delay_floor >= 0 && config->revive_spread <= config->probe_max;
}

bool config_is_valid(const mrc_config *config) {
    return sizes_are_valid(config) && classes_are_valid(config) && times_are_valid(config) &&
           config->ev_count >= 1 && config->ev_count <= 256 && config->ev_min_active >= 1 &&
           config->probes_to_revive >= 1 && config->policy <= MRC_POLICY_EQUAL &&
           config->linear_cnt <= 7 && config->exp_cnt <= 25 && config->burst >= 1 &&
           config->burst <= MRC_BURST && config->udp_port != 0;
}
