/* SPDX-License-Identifier: Apache-2.0 */
/* How much may be in flight: the NSCC congestion controller.
 *
 * Knows bytes and time; nothing of packets, paths or queue pairs. The owner counts `inflight`
 * itself and gives it with each event. Integers only; gains are fixed-point with 10 bits of
 * fraction.
 * Source: Ultra Ethernet 1.0, NSCC, as MRC 1.0 uses it.
 */
#ifndef NSCC_H
#define NSCC_H

#include <stdbool.h>
#include <stdint.h>

struct nscc_config {
    uint64_t rate_bps;          /* of the path or paths; more than 0 */
    uint32_t mtu;               /* nominal size of a full packet, bytes */
    bool trimming;              /* the fabric trims */
    int64_t base_rtt_floor;     /* ns */
    int64_t target_delay_floor; /* ns */
    uint64_t window_floor;      /* least max_wnd, bytes */
};

struct nscc {
    struct nscc_config config;
    uint64_t cwnd;
    uint64_t max_wnd;
    int64_t base_rtt;
    int64_t target;     /* target_qdelay */
    uint64_t gain;      /* scaling_a, 10 bits of fraction */
    int64_t delay;      /* average queueing delay */
    int64_t sampled;    /* when the last RTT sample came */
    int64_t late_since; /* when the first sample above qa_threshold in a row came; or INT64_MAX */
    uint64_t increase;  /* bytes^2 / 2^10, to be divided by cwnd */
    uint64_t received;  /* since the last adjustment */
    int64_t adjusted;   /* when it was */
    uint64_t fast;      /* bytes that came with hardly any delay, in a row */
    int64_t decreased;  /* when a mark last cut the window */
    uint64_t achieved;  /* since the quick adapt period began */
    int64_t period_end; /* of it */
    bool was_trimmed;   /* a packet was trimmed in it */
    bool was_lost;      /* one was lost in it */
    bool has_marks;     /* the network has marked: it would say so if it were congested */
    bool was_limited;   /* the window was full in it */
    uint64_t ignored;
    uint64_t to_ignore;
    uint64_t saved; /* cwnd before the receiver asked for less; 0: it has not */
};

/* Starts with cwnd = max_wnd and base_rtt = max(base_rtt, floor). base_rtt: ns, a first guess. */
void nscc_init(struct nscc *nscc, const struct nscc_config *config, int64_t now, int64_t base_rtt);

/* Rate and length of the way are others (a plane came or went): BDP and all scales follow; cwnd is
 * only capped. */
void nscc_set_way(struct nscc *nscc, uint64_t rate_bps, int64_t base_rtt);

/* A packet is sent after nothing was in flight: what was achieved before tells nothing of now. */
void nscc_on_begin(struct nscc *nscc, int64_t now);

struct nscc_sack {
    int64_t now;
    uint64_t new_bytes; /* newly received, nominal sizes; may be 0 */
    int64_t rtt;        /* ns; < 0 when there is no unambiguous sample */
    int64_t least_rtt;  /* ns; that a full-size packet ever took: a short one may be quicker */
    uint64_t inflight;  /* bytes, after this SACK was taken in */
    bool marked;        /* m = SKIP_ONCE */
    bool limited;       /* the window, not the application, held the sender since the last SACK */
    uint8_t penalty;    /* rcv_cwnd_pen */
    bool restore;       /* r_c */
};

void nscc_on_sack(struct nscc *nscc, const struct nscc_sack *sack);

/* A NACK TRIMMED, or TRIMMED_LASTHOP, for a packet of nominal `size`. inflight: without it. */
void nscc_on_trim(struct nscc *nscc, int64_t now, uint32_t size, uint64_t inflight,
                  bool is_last_hop);

/* An attempt of nominal `size` was judged lost. */
void nscc_on_loss(struct nscc *nscc, int64_t now, uint32_t size, uint64_t inflight);

/* Whether `size` more bytes fit; the first packet always does (inflight 0). */
bool nscc_has_room(const struct nscc *nscc, uint64_t inflight, uint32_t size);

#endif
