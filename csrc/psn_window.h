/* SPDX-License-Identifier: Apache-2.0 */
/* Which PSNs a queue pair has received: a ring of bits behind one cumulative number.
 *
 * Owned by the responder. Knows nothing of packets, messages or time.
 * Source: MRC 1.0, Responder.
 */
#ifndef PSN_WINDOW_H
#define PSN_WINDOW_H

#include <stdint.h>

#include "psn.h"

enum {
    PSN_WINDOW_MAX = 4096,
    PSN_WINDOW_WORDS = PSN_WINDOW_MAX / 64,
    PSN_FAR_DISTANCE = 1 << 22,
};

enum psn_verdict {
    PSN_NEW,
    PSN_DUPLICATE, /* at or behind cack, or already here */
    PSN_BEYOND,    /* after the window */
    PSN_FAR,       /* more than 2^22 away on either side: no packet of ours can be [choice] */
};

/* Bit (psn mod PSN_WINDOW_MAX) stands for one PSN in (cack, cack + size]. */
struct psn_window {
    uint32_t cack;  /* everything up to it has arrived */
    uint32_t size;  /* packets; a multiple of 128, at most PSN_WINDOW_MAX */
    uint32_t ahead; /* packets that have arrived after cack */
    uint32_t last;  /* highest PSN that has arrived; cack when ahead is 0 */
    uint64_t arrived[PSN_WINDOW_WORDS];
};

/* Nothing has arrived; `first` is the first PSN to come. */
void psn_window_init(struct psn_window *window, uint32_t first, uint32_t size);

static inline enum psn_verdict psn_window_classify(const struct psn_window *window, uint32_t psn) {
    int32_t distance = psn_diff(psn, window->cack);
    uint64_t word = window->arrived[psn / 64 % PSN_WINDOW_WORDS];

    if (distance > PSN_FAR_DISTANCE || distance < -PSN_FAR_DISTANCE)
        return PSN_FAR;
    if (distance <= 0)
        return PSN_DUPLICATE;
    if ((uint32_t)distance > window->size)
        return PSN_BEYOND;
    return word >> (psn % 64) & 1 ? PSN_DUPLICATE : PSN_NEW;
}

/* Notes the arrival of a PSN that is PSN_NEW, and moves cack over all that is now in order.
 * Returns by how many. */
uint32_t psn_window_add(struct psn_window *window, uint32_t psn);

/* Bit i is set when PSN base + i has arrived; base is a multiple of 64 and base + 63 is neither
 * further behind cack than PSN_WINDOW_MAX nor is base after the window's end. */
uint64_t psn_window_bitmap(const struct psn_window *window, uint32_t base);

#endif
