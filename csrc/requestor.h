/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half of a queue pair: writes -> packets, acknowledgements -> completions.
 *
 * Asks peer.h "is there room, on which plane?", ev_profile.h "which path?", tells loss.h "sent" and
 * passes its verdicts on. Speaks struct packet, never bytes. Source: MRC 1.0, Requestor.
 *
 *   requestor.c            what is posted, what comes back, what time brings
 *   requestor_transmit.c   what goes out next, and by which path
 */
#ifndef REQUESTOR_H
#define REQUESTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "ev_profile.h"
#include "events.h"
#include "loss.h"
#include "mrc.h"
#include "peer.h"
#include "pool.h"
#include "suspects.h"
#include "wire.h"

/* A posted write, from a pool of the endpoint. */
struct write {
    struct write *next;
    mrc_write work;
    uint32_t first_psn; /* once its first packet was sent */
    uint32_t packets;
    uint32_t sent_packets;
    uint32_t rqmsn;
    uint32_t msn;
    int status;
};

struct write_list {
    struct write *head;
    struct write *tail;
};

/* A frame to be sent: packets of equal length (the last may be shorter) on one path. */
struct burst {
    uint32_t plane;
    uint32_t ev;
    uint32_t count;
    bool is_retransmission;
    struct packet *packets; /* room for config.burst of them */
};

/* What requestor_next found. */
enum requestor_state {
    REQUESTOR_SENT,    /* there is a burst, and perhaps more */
    REQUESTOR_BLOCKED, /* there is something to send, but no room at the peer or port */
    REQUESTOR_WAITING, /* nothing to send until something comes back, or is posted */
    REQUESTOR_STARVED, /* the pool of chunks is empty: to be called when another gave one back */
};

enum { REQUESTOR_DEAD = 4 };

struct requestor {
    const mrc_config *config;
    struct peer *peer;
    struct pool *write_pool;
    struct write_list *done; /* the endpoint's: completed writes wait there to be polled */
    struct events *events;   /* the endpoint's */
    struct write *head;      /* oldest write without Transport ACK */
    struct write *tail;
    struct write *unsent; /* the first that has packets never sent */
    struct loss loss;
    uint32_t acked; /* PSN of the last Transport ACK */
    struct ev_profile evs;
    struct suspects suspects;

    uint32_t number; /* of this queue pair */
    uint32_t remote; /* the peer's */
    uint32_t mtu;
    uint32_t window_packets;
    bool is_window_dynamic; /* SACKs change it */
    uint32_t max_wimm;
    uint32_t wimm_outstanding;
    uint32_t rqmsn;
    uint32_t msn;
    uint32_t rcvd_bytes; /* of the last SACK, units of 256 bytes */
    bool trim_nack;   /* the peer answers trims */
    int error;        /* enum mrc_status: what the queue pair must end with; 0 none */

    int64_t age_start; /* of the 2^22 PSNs that max_packet_age allows */
    uint32_t age_psns;
    int64_t resume_at; /* when they may be used again after they ran out; INT64_MAX: they did not */

    int64_t refused_at; /* when a PSN that was refused is sent again; INT64_MAX: none was */

    int64_t answered; /* when something last came back, or was sent after nothing was left */
    int64_t progress; /* the same, or when the timer last ran out */
    int64_t sent;     /* when data last left */
    int64_t deadline; /* of the retransmission timer; INT64_MAX: none */
    uint32_t tries;   /* expiries since something came back */
    bool wants_probe;
    bool is_probing; /* a probe is out */
    uint32_t probe_plane; /* where the next one goes, if it can; MRC_PLANES: anywhere */
    uint16_t probe_id;
    int64_t probe_sent;
    uint32_t probe_ev;
    uint32_t probe_order;
    uint32_t probe_cack; /* of its answers so far */
    uint32_t probe_seen; /* bits above cack in its answers so far */
    int64_t suspect_at;
    uint32_t dead_evs[REQUESTOR_DEAD]; /* of paths that the last SACK has shown to be dead */
    uint32_t dead_count;

    mrc_qp_stats stats;
};

struct requestor_setup {
    const mrc_config *config;
    struct peer *peer;
    struct pool *chunk_pool;
    struct pool *write_pool;
    struct write_list *done;
    struct events *events;
    uint64_t seed;
    uint32_t plane_mask;
    const mrc_qp_attributes *local;
    const mrc_qp_attributes *remote;
};

void requestor_init(struct requestor *requestor, int64_t now, const struct requestor_setup *setup);

/* MRC_ERROR_FULL: no write slot. The caller has checked everything else. */
int requestor_post(struct requestor *requestor, int64_t now, const mrc_write *work);

enum requestor_state requestor_next(struct requestor *requestor, int64_t now, struct burst *burst);

/* True when the packet made sense; false: stale or contradictory, and nothing came of it. */
bool requestor_on_sack(struct requestor *requestor, int64_t now, const struct packet *sack);
bool requestor_on_nack(struct requestor *requestor, int64_t now, const struct packet *nack);
bool requestor_on_ack(struct requestor *requestor, int64_t now, const struct packet *ack);

void requestor_on_plane_out(struct requestor *requestor, int64_t now, uint32_t plane);
void requestor_on_plane_up(struct requestor *requestor, int64_t now, uint32_t plane);

/* The peer was heard again after a silence: do not wait for the timer. */
void requestor_on_peer_heard(struct requestor *requestor, int64_t now);

/* Another queue pair to the peer has found the path of this EV dead. */
void requestor_on_path_dead(struct requestor *requestor, int64_t now, uint32_t ev);

/* A probe of one of its suspect EVs was answered. */
void requestor_on_suspect_answered(struct requestor *requestor, int64_t now, uint32_t ev);

/* The operator denies an EV, or allows it again. False: nothing has changed. */
bool requestor_deny(struct requestor *requestor, uint32_t ev, bool is_denied);

/* What is due. *suspect is an EV to probe, or EV_NONE. */
void requestor_on_timeout(struct requestor *requestor, int64_t now, uint32_t *suspect);
int64_t requestor_deadline(const struct requestor *requestor);

/* Ends every write with `status`, gives everything outstanding back. */
void requestor_flush(struct requestor *requestor, int status);

/* ---- Between requestor.c and requestor_transmit.c ---- */

/* Something came back, or went out when nothing was left: the timer starts anew. */
/* Plans when to ask. */
void requestor_arm(struct requestor *requestor);

void requestor_on_progress(struct requestor *requestor, int64_t now);

/* Whether so many tries are more than the configured budget, linear_cnt and exp_cnt. */
bool requestor_is_used_up(const struct requestor *requestor, uint32_t tries);

#endif
