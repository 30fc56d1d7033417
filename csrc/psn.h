/* SPDX-License-Identifier: Apache-2.0 */
/* Packet sequence numbers: 24 bits, compared as serial numbers.
 *
 * PSNs live in a uint32_t and are touched through these four functions only.
 * a is after b when 0 < (a - b) mod 2^24 < 2^23 (MRC 1.0, Queue pair; the rule is RFC 1982's).
 */
#ifndef PSN_H
#define PSN_H

#include <stdbool.h>
#include <stdint.h>

#define PSN_MASK 0xFFFFFFu

/* The PSN `count` packets after psn; a negative count goes back. */
static inline uint32_t psn_add(uint32_t psn, int32_t count) {
    return (psn + (uint32_t)count) & PSN_MASK;
}

/* How many packets a is after b: -2^23 .. 2^23 - 1. */
static inline int32_t psn_diff(uint32_t a, uint32_t b) {
    uint32_t distance = (a - b) & PSN_MASK;

    return (int32_t)(distance ^ 0x800000u) - 0x800000;
}

static inline bool psn_before(uint32_t a, uint32_t b) { return psn_diff(a, b) < 0; }

/* Whether psn lies in the half-open [first, first + count). */
static inline bool psn_in(uint32_t psn, uint32_t first, uint32_t count) {
    return ((psn - first) & PSN_MASK) < count;
}

#endif
