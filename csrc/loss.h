/* SPDX-License-Identifier: Apache-2.0 */
/* What was sent when on which path, and what of it is lost.
 *
 * A record for each PSN from the lowest one not acknowledged to the last one sent, kept in chunks
 * of 64 PSN-aligned records from a pool of the endpoint. Each PSN has at most one attempt
 * outstanding. Verdicts come chunk by chunk as bit masks. Knows nothing of messages, congestion or
 * EV states; of an EV only that bits 15:12 are the plane.
 * Source: MRC 1.0, Requestor: loss is inferred (a)-(e).
 */
#ifndef LOSS_H
#define LOSS_H

#include <stdbool.h>
#include <stdint.h>

#include "pool.h"

enum { LOSS_CHUNKS = 128, LOSS_PLANES = 16, LOSS_CLEARED = 8 };

/* The last attempt to send one PSN. */
struct sent {
    int64_t time;
    struct write *write; /* whose data it carries */
    uint32_t ev;
    uint32_t order;   /* counts attempts of the queue pair; compared as a serial number */
    uint16_t nominal; /* UDP length + 40 */
    uint16_t size;    /* payload */
    uint8_t tries;
    uint8_t trims; /* of the tries: those that were trimmed */
};

/* How often it was tried in vain: a trim shows that path and peer are alive, and costs no try. */
static inline uint32_t sent_in_vain(const struct sent *record) {
    return (uint32_t)record->tries - record->trims;
}

/* 64 PSNs from a multiple of 64 on. A PSN that was sent is in exactly one of the first four masks.
 * What a SACK brings is taken in by masks, plane by plane: records are looked at one by one only
 * where they differ. */
struct sent_chunk {
    uint64_t outstanding; /* in flight */
    uint64_t lost;        /* to be sent again */
    uint64_t refused;     /* to be sent again, but not yet */
    uint64_t arrived;
    uint64_t once;        /* sent once: in the order of their PSNs */
    uint64_t alike;       /* as large as the first one that was sent, */
    uint16_t size;        /* whose payload */
    uint16_t nominal;     /* and nominal size these are; 0: none was sent */
    uint32_t planes;      /* mask of those below that are not 0 */
    uint64_t on_plane[LOSS_PLANES]; /* by the last attempt */
    struct sent records[64];
};

struct loss {
    uint32_t first; /* lowest PSN not acknowledged cumulatively */
    uint32_t next;  /* PSN to be sent next */
    uint32_t order; /* of the next attempt */
    uint32_t outstanding_count;
    uint32_t lost_count;
    uint32_t refused_count;
    struct pool *pool;
    struct sent_chunk *chunks[LOSS_CHUNKS]; /* by psn / 64 mod LOSS_CHUNKS */
};

/* An attempt, and what is sent. */
struct attempt {
    int64_t time;
    struct write *write;
    uint32_t ev;
    uint16_t nominal;
    uint16_t size;
};

/* What a SACK newly said of the attempts on one plane. */
struct loss_tally_plane {
    uint32_t packets;
    uint64_t payload;    /* bytes that arrived */
    uint64_t nominal;    /* the same in nominal sizes */
    uint64_t left;       /* nominal bytes of attempts that are no longer outstanding */
};

struct loss_tally {
    uint32_t planes;       /* mask of those below that are set; starts as 0 */
    int64_t answerable;    /* goes in: attempts after this time cannot have been answered yet */
    uint32_t spurious;     /* sent again, or about to be, though the first attempt arrived */
    uint32_t cleared_count; /* of these: EVs that were wrongly suspected; starts as 0 */
    uint32_t cleared[LOSS_CLEARED];
    struct loss_tally_plane plane[LOSS_PLANES];
};

/* What later arrivals or a probe prove. */
struct loss_evidence {
    int64_t reorder_window[LOSS_PLANES]; /* ns by which a packet of that plane may come later */
    int64_t plane_window;                /* than one of the same plane */
    int64_t latest; /* when the last-sent packet that has arrived was sent; 0: not known */
    int64_t proved; /* the same as far as it says something of other planes (hindsight.h) */
    int64_t plane_latest[LOSS_PLANES]; /* the same for each plane */
    bool has_ev;          /* a packet (probe) of this EV and order arrived */
    uint32_t ev;
    uint32_t order;
};

void loss_init(struct loss *loss, uint32_t first, struct pool *pool);

/* Gives every chunk back. */
void loss_clear(struct loss *loss);

/* Makes room for records of PSNs from next on. Returns for how many; 0: the pool is empty. */
uint32_t loss_prepare(struct loss *loss);

/* The record of a PSN in [first, next). */
struct sent *loss_record(const struct loss *loss, uint32_t psn);

bool loss_is_outstanding(const struct loss *loss, uint32_t psn);
bool loss_is_lost(const struct loss *loss, uint32_t psn);

/* Whether a PSN that is lost was not alone: of its stretch of 64 nothing that was sent with its EV
 * since has arrived, and another frame is lost, or one was before (`is_known`). Chance rarely does
 * that; a dead path always. */
bool loss_is_path_dead(const struct loss *loss, uint32_t psn, bool is_known);

/* The first attempt for `count` PSNs from next on, which then advances; all in one chunk. */
void loss_on_sent(struct loss *loss, uint32_t count, const struct attempt *attempt);

/* Another attempt for a PSN that is lost. */
void loss_on_resent(struct loss *loss, uint32_t psn, const struct attempt *attempt);

/* Everything up to cack, which is in [first - 1, next), has arrived. */
void loss_on_cumulative(struct loss *loss, uint32_t cack, struct loss_tally *tally);

/* PSNs base + i have arrived, for each set bit; those outside [first, next) are ignored. */
void loss_on_bitmap(struct loss *loss, uint32_t base, uint64_t bits, struct loss_tally *tally);

/* Adds when the latest of the PSNs base + i that arrived were sent, of those with one attempt. */
void loss_gather(const struct loss *loss, uint32_t base, uint64_t bits,
                 struct loss_evidence *evidence);

/* A packet that was sent at `time` with this EV has arrived. */
void loss_evidence_add(struct loss_evidence *evidence, uint32_t ev, int64_t time);

/* Those of a stretch of 64 that are lost, and the ones among them of which something sent later on
 * the same plane tells: their path is to blame. */
struct loss_verdict {
    uint64_t lost;
    uint64_t blamed;
};

/* Rules (b), (c) and (d) for a stretch of 64: base is a multiple of 64, `arrived` what the SACK
 * says has arrived, `covered` what it speaks about. Those judged lost become so. */
struct loss_verdict loss_judge(struct loss *loss, uint32_t base, uint64_t covered,
                               uint64_t arrived, const struct loss_evidence *evidence);

/* Rule (a): a trim of one outstanding PSN. */
void loss_on_trimmed(struct loss *loss, uint32_t psn);

/* The peer refused an outstanding PSN: it waits for loss_release. */
void loss_on_refused(struct loss *loss, uint32_t psn);

/* The next refused PSN from *psn on, which is [first, next); false when there is none. */
bool loss_next_refused(const struct loss *loss, uint32_t *psn);

/* A refused PSN is to be sent again now. */
void loss_release(struct loss *loss, uint32_t psn);

/* Loses all attempts that were sent before `before` on `plane` (LOSS_PLANES: on any), one chunk a
 * call: *base starts as loss->first and is moved on; *lost are those of PSN *chunk on. False at the
 * end. */
bool loss_sweep(struct loss *loss, uint32_t *base, uint32_t plane, int64_t before, uint32_t *chunk,
                uint64_t *lost);

/* The lowest PSN that is lost, or outstanding; false when there is none. */
bool loss_first_lost(const struct loss *loss, uint32_t *psn);
bool loss_first_outstanding(const struct loss *loss, uint32_t *psn);

#endif
