/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulation is made of. Shared by the files of csrc/sim/ alone.
 *
 *   sim.c      set-up, the loop, results
 *   network.c  packets on ports, links and switches
 *   host.c     the loop around an endpoint's five verbs
 *   flows.c    connections, flows and what they wait for
 */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "fabric/port_queue.h"
#include "mrc_sim.h"
#include "prng.h"
#include "sim/event_queue.h"

enum {
    SIM_HEADERS = 112, /* Ethernet IPv6 UDP BTH, and EETH or SETH with CC_STATE, are 110 */
    SIM_FRAME = 9216 + 128,
    SIM_NONE = UINT32_MAX,
    SIM_SLAB = 1 << 12, /* packets that the pool grows by */
    SIM_CACHE_LINE = 64,
};

#define SIM_NEVER INT64_MAX

/* Events are numbers: what happens, and to which of these. */
enum sim_event {
    SIM_ARRIVAL,   /* packet */
    SIM_PORT_FREE, /* port */
    SIM_FAULT,     /* fault */
    SIM_FLOW,      /* flow: it may start */
    SIM_WAKE,      /* host */
};

enum { SIM_INDEX_BITS = 29 };

static inline enum sim_event sim_event_kind(struct event event) {
    return (enum sim_event)(event.what >> SIM_INDEX_BITS);
}

static inline uint32_t sim_event_index(struct event event) {
    return event.what & ((1u << SIM_INDEX_BITS) - 1);
}

/* Three cache lines; the first is all that a hop touches. */
struct sim_packet {
    _Alignas(SIM_CACHE_LINE) uint32_t next; /* in a queue, or of the free ones: index */
    uint32_t link;   /* the port whose link it is on; SIM_NONE: it waits, or is free */
    uint32_t port;   /* out of the next switch, or in at a host; SIM_NONE: there is no way */
    uint32_t size;   /* of the frame */
    uint32_t to;     /* host */
    uint32_t flow;   /* hash of addresses and EV */
    uint32_t ev;
    uint32_t psn;
    uint8_t class;   /* enum queue_class */
    uint8_t opcode;
    bool is_capable; /* of ECN */
    bool is_marked;
    bool is_dead;    /* its link failed */
    uint8_t trimmed; /* DSCP; 0: it is whole */
    uint8_t header_size;
    uint8_t *bytes;  /* the frame, where payload travels; else NULL */
    uint8_t headers[SIM_HEADERS];
};

struct sim_fifo {
    uint32_t head;
    uint32_t tail;
};

/* One cache line: at full size there are millions, and each hop misses one. */
struct sim_port {
    struct sim_fifo data;
    struct sim_fifo control;
    struct queue_depth depth;
    uint32_t peer;
    uint32_t next; /* the node at the other end */
    uint16_t kind;
    bool is_up;
    bool is_pending; /* SIM_PORT_FREE is scheduled */
    int64_t free_at;
    uint64_t sent_bytes;
    uint32_t sent;
    uint32_t waiting_peak;
};

/* What seldom happens to packets at a port. */
struct sim_harm {
    uint32_t marked;
    uint32_t trimmed;
    uint32_t dropped;
    uint32_t lost;
};

struct sim_kind {
    struct queue_rules rules;
    uint64_t ps_per_byte; /* 16 bits of fraction */
    uint64_t rate_bps;
    int64_t delay;
    int64_t jitter;
    uint32_t loss_ppm;
    uint32_t duplicate_ppm;
};

struct sim_switch {
    mrc_sim_switch routes;
    uint32_t salt; /* of its hash */
};

struct sim_host {
    mrc_endpoint *endpoint;
    int64_t wake_at; /* SIM_WAKE that counts; SIM_NEVER: none */
    uint32_t busy;   /* planes whose port has a packet waiting */
    uint32_t peers;  /* hosts with flows to or from it */
    uint32_t sends;  /* flows */
    uint32_t receives;
    uint64_t sends_packets;
    uint64_t memory_size; /* of all that it receives */
    uint8_t *memory;      /* where payload travels; else NULL */
};

struct sim_flow {
    mrc_sim_flow asked;
    mrc_sim_times times;
    uint64_t offset; /* in the destination's memory */
    uint32_t dependent;      /* the first flow that waits for it */
    uint32_t next_dependent; /* of the one that it waits for */
    uint32_t connection;
};

/* Two hosts with flows between them; side 0 is the lower one. */
struct sim_connection {
    uint32_t host[2];
    uint32_t peer[2]; /* in the endpoint of that side */
    mrc_qp_attributes qp[2];
};

struct mrc_sim {
    mrc_sim_setup setup;
    int64_t now;
    struct event_queue events;
    struct prng loss;
    struct prng marks;
    struct prng jitter;
    struct prng copies;

    struct sim_packet **slabs;
    uint32_t slab_count;
    uint32_t slab_room;
    uint32_t free; /* packet */
    uint32_t packets_made;

    struct sim_port *ports;
    struct sim_harm *harm; /* of each port */
    struct sim_switch *switches;
    struct sim_kind *kinds;
    struct sim_host *hosts;
    uint8_t *endpoints; /* the block that they live in */
    struct sim_flow *flows;
    struct sim_connection *connections;
    uint32_t connection_count;
    mrc_sim_fault *faults;
    uint8_t *pattern; /* what flows write, where payload travels; else NULL */

    mrc_sim_record *log;
    mrc_sim_totals totals;
    bool has_failed;
    mrc_frame_out out;
    uint8_t frame[SIM_FRAME]; /* being delivered */
};

/* ---- sim.c ---- */

void sim_schedule(struct mrc_sim *sim, int64_t time, enum sim_event kind, uint32_t index);

void sim_log(struct mrc_sim *sim, const mrc_sim_record *record);

/* ns of the endpoints' clock, and our time of one of theirs. */
int64_t sim_clock(const struct mrc_sim *sim);
int64_t sim_time_of(int64_t clock);

bool sim_is_host_port(const struct mrc_sim *sim, uint32_t port);

/* ---- network.c ---- */

/* The frame that an endpoint gave out leaves by its host's port. */
void sim_send(struct mrc_sim *sim, uint32_t host, const mrc_frame_out *out);

void sim_on_arrival(struct mrc_sim *sim, uint32_t packet);
void sim_on_port_free(struct mrc_sim *sim, uint32_t port);
void sim_on_fault(struct mrc_sim *sim, const mrc_sim_fault *fault);

struct sim_packet *sim_packet(const struct mrc_sim *sim, uint32_t index);

/* Starts loading what these events will touch. */
void sim_prefetch(const struct mrc_sim *sim, const struct event *events, uint32_t count);

/* ---- host.c ---- */

/* A packet has arrived at a host's port. */
void sim_deliver(struct mrc_sim *sim, uint32_t port, const struct sim_packet *packet);

/* A host's port has room again, or is up or down. */
void sim_on_room(struct mrc_sim *sim, uint32_t port);
void sim_on_port_changed(struct mrc_sim *sim, uint32_t port);

void sim_on_wake(struct mrc_sim *sim, uint32_t host);

/* Sends and polls until there is nothing more, and plans the next look. */
void sim_service(struct mrc_sim *sim, uint32_t host);

/* Makes the endpoints, whose sizes follow from the flows; else says what is wrong. */
const char *sim_make_hosts(struct mrc_sim *sim);

/* Adds one host to another's endpoint; its number there or a negative enum mrc_status. */
int sim_add_peer(struct mrc_sim *sim, uint32_t host, uint32_t peer);

/* ---- flows.c ---- */

enum { SIM_KEY = 1, SIM_DOMAIN = 1 }; /* of every host's memory */
#define SIM_VA 0x10000ull

/* Finds who talks to whom; then, once there are endpoints, connects them. NULL, or what is
 * wrong. */
const char *sim_plan_flows(struct mrc_sim *sim);
const char *sim_connect(struct mrc_sim *sim);

void sim_on_flow(struct mrc_sim *sim, uint32_t flow);
void sim_on_event(struct mrc_sim *sim, uint32_t host, const mrc_event *event);

#endif
