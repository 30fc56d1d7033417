/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of a queue pair: packets -> memory, completions, and what is to be answered.
 *
 * Places each packet where it says, on arrival, and executes messages in order. Speaks struct
 * packet, never bytes; which path an answer takes is the endpoint's matter.
 * Source: MRC 1.0, Responder.
 */
#ifndef RESPONDER_H
#define RESPONDER_H

#include <stdbool.h>
#include <stdint.h>

#include "memory_table.h"
#include "mrc.h"
#include "pool.h"
#include "psn_window.h"
#include "wire.h"

enum { RESPONDER_PROBES = 4 };

/* An immediate that has arrived: stashed, then waiting to be polled. From an endpoint's pool. */
struct immediate {
    struct immediate *next;
    uint32_t psn;
    uint32_t value;
    uint32_t qp;
};

struct immediate_list {
    struct immediate *head;
    struct immediate *tail;
};

/* The packet that an answer is for. */
struct cause {
    uint32_t plane;
    uint32_t ev;
    uint32_t psn;
    uint16_t timestamp;
};

/* A Reliability Probe Request that is being answered: one SACK a stretch. */
struct probe_answer {
    struct cause cause;
    uint16_t id;
    uint32_t base; /* next stretch */
    bool is_started;
};

struct responder {
    struct psn_window window;
    uint64_t ends[PSN_WINDOW_WORDS]; /* PSNs that end a message and are not executed yet */
    const struct memory_table *memory;
    struct pool *immediate_pool;
    struct immediate_list *received; /* the endpoint's: completions wait there to be polled */
    struct immediate *stash;         /* by PSN */
    uint32_t stash_count;
    uint32_t number;
    uint32_t remote;
    uint32_t domain;
    uint32_t mtu;
    uint32_t max_wimm;
    uint32_t mpr; /* told in SACKs; 0 when Dynamic MPR is off */
    uint32_t receives;
    uint32_t sack_threshold;
    uint32_t end_count; /* bits of `ends` */
    int64_t sack_delay;
    bool headers_only; /* payload is not placed */
    int error; /* enum mrc_status: what the queue pair must end with; 0 none */

    uint32_t msn;      /* messages executed */
    uint32_t ack_psn;  /* last PSN of the last of them */
    uint8_t syndrome;  /* of the Transport ACK or NAK */
    uint64_t rcvd_bytes;
    uint32_t unreported_bytes;
    uint64_t unreported; /* stretches with arrivals that no SACK has told, by psn / 64 mod 64 */
    int64_t deadline;   /* of the SACK timer; INT64_MAX: none */
    struct cause causes[MRC_PLANES]; /* the last packet of each plane */
    uint32_t last_plane;             /* which of these came last */
    uint32_t fresh;                  /* which of them since the last report */
    uint32_t turn;                   /* plane whose packet a SACK named last */
    uint32_t first_turn;             /* the same of the report's first SACK */
    bool is_reporting;               /* there was that one */

    uint64_t due;      /* stretches to be told now */
    bool is_sack_due;
    bool is_ack_due;
    struct probe_answer probes[RESPONDER_PROBES];
    uint32_t probe_count;

    uint64_t bytes_received;
    uint64_t duplicates;
    uint64_t sacks_sent;
    uint64_t nacks_sent;
};

struct responder_setup {
    const mrc_config *config;
    const struct memory_table *memory;
    struct pool *immediate_pool;
    struct immediate_list *received;
    uint32_t domain;
    const mrc_qp_attributes *local;
    const mrc_qp_attributes *remote;
};

void responder_init(struct responder *responder, const struct responder_setup *setup);

/* Gives stashed immediates back. */
void responder_flush(struct responder *responder);

/* What became of a data packet. */
enum responder_verdict {
    RESPONDER_PLACED,
    RESPONDER_DUPLICATE,
    RESPONDER_DROPPED, /* more than the PSN's half-way distance away */
    RESPONDER_NACK,    /* send a NACK with *reason */
    RESPONDER_FAILED,  /* responder->error is set; a NAK, or UNEXP_EVENT with *reason, is due */
};

/* A write that was not trimmed. `nominal` is its UDP length + 40. */
enum responder_verdict responder_on_data(struct responder *responder, int64_t now,
                                         const struct packet *packet, const struct cause *cause,
                                         uint32_t nominal, uint8_t *reason);

/* Whether a trimmed packet is one that we still need. */
bool responder_needs(const struct responder *responder, uint32_t psn);

void responder_on_probe(struct responder *responder, const struct packet *probe,
                        const struct cause *cause);

/* All that arrived is to be told now: the batch has drained, or the timer ran out. */
void responder_report(struct responder *responder);

/* Repeats the last Transport ACK or NAK. */
void responder_repeat(struct responder *responder);

/* The next answer; the caller says when there is room. False when there is none. */
bool responder_next(struct responder *responder, struct packet *answer, struct cause *cause);

/* The SACK for one packet that a CE mark made urgent. */
void responder_mark(struct responder *responder, const struct cause *cause, struct packet *sack);

/* Whether responder_next has something. */
bool responder_is_due(const struct responder *responder);

/* Whether that is a Transport ACK and nothing else. */
bool responder_owes_only_ack(const struct responder *responder);

#endif
