/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: endpoints of the core as hosts of a whole fabric, in virtual time.
 *
 * One thread, one event queue, one seed: the same description gives the same run to the last byte
 * of its log. Memory is taken at set-up and by the pools of packets and events as they grow. Times
 * are ps since the first flow may start, INT64_MAX is never; sizes are bytes, of packets those of
 * the Ethernet frame without FCS. Functions that return int give 0 or more on success and a
 * negative enum mrc_status on failure. Model: csrc/README.md.
 */
#ifndef MRC_SIM_H
#define MRC_SIM_H

#include "mrc.h"

/* cffi: begin */
enum {
    MRC_SIM_LINK_OVERHEAD = 24, /* preamble, FCS and gap of a frame on a link */
};

/* What ports have in common: their end of the link, and the queue in front of it. */
typedef struct mrc_sim_kind {
    uint64_t rate_bps;
    int64_t delay;  /* of propagation */
    int64_t jitter; /* of each packet, uniform on top of delay: they overtake; below 2^32 */
    uint32_t data_limit;    /* bytes that may wait; UINT32_MAX: any */
    uint32_t control_limit; /* the same */
    uint32_t mark_from; /* CE at dequeue: never while no more wait, */
    uint32_t mark_to;   /* always from here on; 0: never */
    uint32_t control_weight; /* control packets for each data packet; 0: strictly first */
    uint32_t loss_ppm;  /* of the packets that leave by it, at random */
    uint32_t duplicate_ppm; /* the same, of those that arrive twice */
    bool trim;          /* what finds the queue full is cut, if it may be */
} mrc_sim_kind;

/* One end of a link. Port `host * planes + plane` is a host's; those of switches follow. */
typedef struct mrc_sim_port {
    uint32_t peer; /* the port at the other end */
    uint32_t node; /* hosts from 0 on, then switches */
    uint32_t kind;
} mrc_sim_port;

/* A switch of a Clos network routes by intervals: packets to hosts [first_host, first_host +
 * host_count) go down, where each `group` of these hosts is behind `down_width` ports from
 * down_first on, group after group; all others go up, by one of up_count ports. Of several ports a
 * hash of addresses and EV, other at each switch, picks one. */
typedef struct mrc_sim_switch {
    uint32_t first_host;
    uint32_t host_count;
    uint32_t group;
    uint32_t down_first;
    uint32_t down_width;
    uint32_t up_first;
    uint32_t up_count; /* may be 0: whatever would go up is dropped */
} mrc_sim_switch;

/* A write with immediate from one host to another. */
typedef struct mrc_sim_flow {
    int64_t start;  /* not before */
    uint64_t bytes; /* 0 .. 2^30 */
    uint32_t source;
    uint32_t destination;
    /* The flow that must have ended at our source before, having been sent by it or received there;
     * UINT32_MAX: none. */
    uint32_t after;
} mrc_sim_flow;

typedef struct mrc_sim_times {
    int64_t started;   /* posted */
    int64_t received;  /* all of it is in the memory of its destination */
    int64_t completed; /* its source knows */
    int32_t status;    /* enum mrc_status, of the completion */
    uint32_t qp;       /* index of the queue pair that carries it */
} mrc_sim_times;

/* Something happens to a link: to both its ends, or to what one of them sends. */
typedef struct mrc_sim_fault {
    int64_t time;
    uint32_t port; /* either end */
    uint32_t kind; /* from now on; UINT32_MAX: as it is */
    bool up;       /* false: what is on it and comes to it is lost; a host at the port is told */
    bool one_way;  /* what the peer of the port sends is not concerned, nor is a host there told */
} mrc_sim_fault;

/* A description; all arrays are copied. */
typedef struct mrc_sim_setup {
    uint64_t seed;
    uint32_t host_count;
    uint32_t planes;
    uint32_t port_count;
    uint32_t switch_count;
    uint32_t kind_count;
    uint32_t flow_count;
    uint32_t fault_count;
    const mrc_sim_port *ports;
    const mrc_sim_switch *switches;
    const mrc_sim_kind *kinds;
    const mrc_sim_flow *flows;
    const mrc_sim_fault *faults;
    mrc_config config; /* of each endpoint; sizes of its tables follow from the flows */
    uint32_t mtu;      /* payload of a packet */
    uint32_t mpr;      /* PSN window, units of 128 */
    uint32_t chunks;   /* most records of 64 packets in flight, of a host that sends */
    int64_t warm_up;   /* ps before 0, in which the endpoints probe their planes */
    uint32_t log_room; /* records kept; all are hashed */
    uint64_t max_events; /* after which a run fails, as one that goes in circles; 0: any number */
    /* Frames travel with their payload, ICRC right, and memory is written: slow, and the same. */
    bool payload;
} mrc_sim_setup;

typedef struct mrc_sim mrc_sim;

/* NULL: not valid, or no memory; *problem says which. */
mrc_sim *mrc_sim_new(const mrc_sim_setup *setup, const char **problem);
void mrc_sim_free(mrc_sim *sim);

/* Runs until `until`; with until_ended at most until every flow has ended. 1: all have; 0: not yet;
 * MRC_ERROR_FULL: memory ran out, and the run means nothing; MRC_ERROR_STATE: max_events are
 * over. */
int mrc_sim_run(mrc_sim *sim, int64_t until, bool until_ended);

int64_t mrc_sim_now(const mrc_sim *sim);

/* Everything so far. */
typedef struct mrc_sim_totals {
    uint64_t events;
    uint64_t hops; /* packets put on a link */
    uint64_t packets_sent; /* by hosts */
    uint64_t packets_delivered;
    uint64_t marked;
    uint64_t trimmed;
    uint64_t dropped; /* of a full queue, or without a way */
    uint64_t lost;    /* at random */
    uint64_t dead;    /* on a link that was down */
    uint64_t duplicated;
    uint64_t packets; /* in the fabric now */
    uint64_t packets_peak;
    uint64_t flows_ended;
    uint64_t flows_failed;
    uint64_t flows_received; /* how often a destination was told of one */
    uint64_t log_hash;
    uint64_t log_count;
    uint64_t host_bytes;   /* memory of hosts and endpoints */
    uint64_t fabric_bytes; /* of ports, switches, packets and events */
    uint64_t drop_rate;    /* mrc_counters, summed over hosts: probes beyond the answer rate, */
    uint64_t controls_full; /* answers for which a host had no room */
    uint64_t drop_stale;    /* and answers that nobody waited for; */
    uint64_t writes; /* in use at hosts now: requests, */
    uint64_t chunks; /* records of packets in flight, */
    uint64_t immediates; /* immediates that wait for earlier packets, */
    uint64_t controls; /* and answers not yet sent */
} mrc_sim_totals;

void mrc_sim_get_totals(const mrc_sim *sim, mrc_sim_totals *totals);

/* One record for each flow. */
void mrc_sim_get_times(const mrc_sim *sim, mrc_sim_times *times);

/* One side of a connection, which is one for each two hosts with flows between them. */
typedef struct mrc_sim_qp {
    uint32_t host;
    uint32_t peer; /* host */
    uint64_t bytes_received;
    uint64_t packets_sent;
    uint64_t packets_retransmitted;
    uint64_t packets_spurious;
    uint64_t timeouts;
    uint64_t probes_sent;
    uint64_t sacks_received;
    uint64_t nacks_received;
    uint64_t cwnd;
    int64_t rtt; /* ns */
    uint32_t evs_good;
    uint32_t evs_bad;
    uint32_t planes_up; /* mask */
    int32_t error; /* enum mrc_status: why it is in ERROR */
} mrc_sim_qp;

uint32_t mrc_sim_qp_count(const mrc_sim *sim);
void mrc_sim_get_qps(const mrc_sim *sim, mrc_sim_qp *qps);

/* EVs of a queue pair: returns how many there are, writes at most `room`. */
int mrc_sim_get_evs(const mrc_sim *sim, uint32_t qp, mrc_ev_info *evs, uint32_t room);

typedef struct mrc_sim_port_stats {
    uint64_t sent;       /* packets put on the link */
    uint64_t sent_bytes;
    uint32_t waiting;    /* bytes of data now */
    uint32_t waiting_peak;
    uint32_t marked;
    uint32_t trimmed;
    uint32_t dropped;
    uint32_t lost; /* at random or on a dead link */
} mrc_sim_port_stats;

void mrc_sim_get_ports(const mrc_sim *sim, mrc_sim_port_stats *stats);

enum mrc_sim_what {
    MRC_SIM_SENT,      /* a packet entered its host's port; subject: port */
    MRC_SIM_DELIVERED, /* it arrived at a host; subject: port */
    MRC_SIM_MARKED,
    MRC_SIM_TRIMMED,
    MRC_SIM_DROPPED,
    MRC_SIM_LOST,
    MRC_SIM_DEAD,
    MRC_SIM_STARTED, /* a flow; subject: flow */
    MRC_SIM_RECEIVED,
    MRC_SIM_COMPLETED, /* code: enum mrc_status */
    MRC_SIM_PLANE,     /* subject: host; ev: plane; code: enum mrc_plane_state */
    MRC_SIM_EV,        /* subject: host; code: enum mrc_ev_state */
    MRC_SIM_FAILED,    /* a queue pair; subject: host; code: enum mrc_status */
    MRC_SIM_LINK,      /* subject: port; code: 1 up, 0 down */
};

typedef struct mrc_sim_record {
    int64_t time;
    uint32_t what; /* enum mrc_sim_what */
    uint32_t subject;
    uint32_t ev;
    uint32_t psn;    /* of packets */
    uint32_t size;   /* of packets */
    uint32_t code;   /* of packets: BTH opcode */
} mrc_sim_record;

/* The last records kept, oldest first; returns how many were written. */
uint32_t mrc_sim_get_log(const mrc_sim *sim, mrc_sim_record *records, uint32_t room);

/* The memory of a host, with `payload`: what flows wrote, each behind the one before it in the
 * order of the flows; NULL without. *size is its size. */
const uint8_t *mrc_sim_memory(const mrc_sim *sim, uint32_t host, uint64_t *size);
/* cffi: end */

#endif
