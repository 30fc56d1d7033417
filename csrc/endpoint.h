/* SPDX-License-Identifier: Apache-2.0 */
/* What an endpoint is made of. Shared by the endpoint_*.c files alone: the only ones that see both
 * bytes and state.
 *
 *   endpoint.c           memory, planes, peers, regions, queue pairs: what the owner asks for
 *   endpoint_receive.c   frame -> packets -> the queue pair or operation that they belong to
 *   endpoint_transmit.c  what is to be said next -> frame
 *   endpoint_probe.c     endpoint operations: EV probes and Port Status Updates, asked and answered
 *   endpoint_events.c    timers; what queue pairs and peers report, as events
 */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include "encap.h"
#include "events.h"
#include "icrc.h"
#include "memory_table.h"
#include "mrc.h"
#include "peer.h"
#include "pool.h"
#include "prng.h"
#include "requestor.h"
#include "responder.h"
#include "timer_heap.h"

enum {
    ENDPOINT_QUEUES = 5,     /* enum qp_queue_kind */
};

/* Lists that a queue pair can be on, once on each. */
enum qp_queue_kind {
    QUEUE_READY,     /* may have something to send; one list for each peer */
    QUEUE_ANSWERING, /* owes an answer now */
    QUEUE_TOUCHED,   /* received something in this batch */
    QUEUE_FAILED,    /* its error has not been polled yet */
    QUEUE_STARVED,   /* has something to send, but there was no chunk to record it in */
};

struct qp {
    uint32_t number;
    uint32_t index;
    uint8_t state;   /* enum mrc_qp_state */
    bool is_used;
    bool is_closed;  /* by its owner; it only lingers */
    int error;       /* enum mrc_status */
    uint32_t domain;
    int64_t ends;    /* when a lingering one is gone; INT64_MAX: not lingering */
    int64_t repeated; /* when a lingering one last answered, */
    int64_t refused;  /* and when it last refused something new */
    struct peer *peer; /* NULL before RTR */
    mrc_qp_attributes local;
    mrc_qp_attributes remote;
    struct requestor requestor;
    struct responder responder;
    struct qp *next[ENDPOINT_QUEUES];
    bool is_queued[ENDPOINT_QUEUES];
    struct qp *same_hash;
    struct qp *same_peer;
};

struct qp_queue {
    struct qp *head;
    struct qp *tail;
};

struct bucket {
    int64_t tokens_ns; /* time that has been saved up */
    int64_t last;
    bool has_started;
};

/* A peer and the queue pairs that are ready to send to it. */
struct peer_entry {
    struct peer peer; /* first: a struct peer * of this endpoint is one of these */
    struct qp_queue ready;
    struct qp *qps; /* all of them, by same_peer */
    struct peer_entry *next;
    struct bucket answers; /* to its Endpoint Requests */
    bool is_queued;
    bool is_probing; /* peer_take_probe has something */
};

enum control_kind {
    CONTROL_NACK,
    CONTROL_MARK,
    CONTROL_RESPONSE,
    CONTROL_REQUEST,
    CONTROL_ROUND_TRIP, /* a response from us to us, by a carrier that leads back */
};

/* Something short to be sent once. */
struct control {
    uint8_t kind;              /* enum control_kind */
    uint8_t reason;            /* NACK */
    uint8_t op;                /* RESPONSE, REQUEST: enum wire_endpoint_op */
    uint8_t dscp;              /* REQUEST, ROUND_TRIP */
    uint16_t id;               /* RESPONSE, REQUEST, ROUND_TRIP */
    uint8_t count;             /* REQUEST: packets of the frame, with ids from id on */
    uint32_t qp;               /* number: the queue pair may be gone by then */
    struct cause cause;
    uint32_t mask;             /* REQUEST: port_status_mask */
    uint32_t size;             /* REQUEST, ROUND_TRIP: bytes of IP packet; 0: no padding */
    uint8_t destination_mac[6];
    mrc_address destination;   /* RESPONSE, REQUEST; of ROUND_TRIP the carrier */
    mrc_address next_carrier;  /* ROUND_TRIP: version 0: none */
};

/* An Endpoint Request that is out. */
enum asked_kind { ASKED_FREE, ASKED_PATH, ASKED_STATUS, ASKED_SUSPECT, ASKED_BY_USER };

struct asked {
    int64_t sent;
    int64_t deadline; /* BY_USER */
    uint64_t tag;
    enum asked_kind kind;
    uint32_t plane;
    uint32_t ev;
    uint32_t peer;   /* PATH, STATUS, SUSPECT */
    uint32_t qp;     /* SUSPECT: number */
    uint32_t size;   /* PATH: of the probe */
    uint16_t id;
    uint16_t timestamp;
    uint8_t probe;   /* PATH: enum path_probe */
    mrc_address destination;
};

struct retired {
    uint32_t number;
    int64_t until;
};

struct mrc_endpoint {
    mrc_config config;
    struct icrc icrc;
    struct prng prng;
    uint64_t seed;
    struct plane planes[MRC_PLANES];
    struct peer_entry *peers;
    uint32_t peers_end; /* no peer has this number or a higher one */
    struct qp *qps;
    struct qp **by_number;
    uint32_t by_number_count;
    struct memory_table memory;
    struct pool chunks;
    struct pool writes;
    struct pool immediates;
    struct write_list done;
    struct immediate_list received;
    struct qp_queue answering;
    struct qp_queue touched;
    struct qp_queue failed;
    struct qp_queue starved;
    struct peer_entry *ready_head;
    struct peer_entry *ready_tail;
    bool is_blocked; /* the last pass of transmit left data that found no room */
    struct control *controls;
    uint32_t control_head;
    uint32_t control_count;
    struct asked *asked; /* config.max_probes, by the low bits of their id */
    uint32_t asked_next;
    uint32_t asked_by_user;
    struct bucket strangers; /* answers to them */
    struct events events;
    struct timer_heap timers;
    struct retired *retired;
    uint32_t retired_count;
    uint32_t retired_next;
    bool was_late; /* mrc_endpoint_timeout was last called long after it was due */
    mrc_counters counters;
    struct burst burst; /* being sent */
};

/* ---- endpoint.c ---- */

struct qp *endpoint_find_qp(const struct mrc_endpoint *endpoint, uint32_t number);
struct peer_entry *endpoint_entry(struct mrc_endpoint *endpoint, const struct peer *peer);

/* The next peer after this one (NULL: the first) that has this address on any of its planes. There
 * are two when one was restarted, or lies about its address. NULL: no other; a stranger. */
struct peer_entry *endpoint_find_peer(struct mrc_endpoint *endpoint, const mrc_address *address,
                                      const struct peer_entry *after);

void qp_queue_push(struct qp_queue *queue, enum qp_queue_kind kind, struct qp *qp);
struct qp *qp_queue_pop(struct qp_queue *queue, enum qp_queue_kind kind);

void endpoint_wake_peer(struct mrc_endpoint *endpoint, struct peer_entry *entry);
void endpoint_wake_qp(struct mrc_endpoint *endpoint, struct qp *qp);

void endpoint_free_qp(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp);

/* ---- endpoint_events.c ---- */

/* To be called after anything that may have changed a queue pair or a peer. */
void endpoint_settle_qp(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp);
void endpoint_settle_peer(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry);

void endpoint_fail_qp(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp, int status);
void endpoint_fail_peer(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry,
                        int status);

/* ---- endpoint_probe.c ---- */

/* An Endpoint Request or Response came from `source`. */
struct arrival {
    uint32_t plane;
    uint32_t ev;
    mrc_address source;
    uint8_t source_mac[6];
    bool is_marked;
    uint32_t nominal;
};
void endpoint_on_request(struct mrc_endpoint *endpoint, int64_t now, const struct packet *packet,
                         const struct arrival *arrival);
void endpoint_on_response(struct mrc_endpoint *endpoint, int64_t now, const struct packet *packet,
                          const struct arrival *arrival);

void endpoint_send_peer_probe(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry,
                              const struct peer_probe *probe);
void endpoint_send_suspect_probe(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp,
                                 uint32_t ev);

/* Ends users' probes that nobody answered in time; plans the next look. */
void endpoint_expire_probes(struct mrc_endpoint *endpoint, int64_t now);

/* Queues a control packet; a full queue is counted. */
void endpoint_control(struct mrc_endpoint *endpoint, const struct control *control);

/* Owners in the timer heap: queue pairs, then peers, then the users' probes. */
static inline uint32_t endpoint_qp_timer(const struct qp *qp) { return qp->index; }
static inline uint32_t endpoint_peer_timer(const struct mrc_endpoint *endpoint,
                                           const struct peer *peer) {
    return endpoint->config.max_qps + peer->number;
}
static inline uint32_t endpoint_probe_timer(const struct mrc_endpoint *endpoint) {
    return endpoint->config.max_qps + endpoint->config.max_peers;
}

#endif
