/* SPDX-License-Identifier: Apache-2.0 */
/* The invariant CRC of RoCEv2: CRC-32 (IEEE 802.3, as zlib's) and its masking rule for the BTH.
 *
 * The routine is chosen once, by what the processor can do, and kept by the caller: no global.
 * Source: MRC 1.0, ICRC.
 */
#ifndef ICRC_H
#define ICRC_H

#include <stddef.h>
#include <stdint.h>

enum icrc_method { ICRC_TABLE = 0, ICRC_PCLMUL = 1, ICRC_VPCLMUL = 2 };

struct icrc {
    /* Raw CRC update: register in, register out (no pre- or post-inversion), bit-reflected. */
    uint32_t (*update)(uint32_t state, const uint8_t *data, size_t size);
    enum icrc_method method;
};

/* The fastest method this processor has, or, in icrc_use, the one named: false if it lacks it. */
void icrc_choose(struct icrc *icrc);
_Bool icrc_use(struct icrc *icrc, enum icrc_method method);

/* State before the first byte. */
#define ICRC_START 0xFFFFFFFFu

/* Goes over a BTH (12 bytes) with byte 4 read as 0xFF. */
uint32_t icrc_bth(const struct icrc *icrc, uint32_t state, const uint8_t *bth);

/* Stores the finished value, least significant byte first (MRC 1.0, ICRC). */
static inline void icrc_store(uint32_t state, uint8_t *out) {
    uint32_t value = ~state;

    out[0] = (uint8_t)value;
    out[1] = (uint8_t)(value >> 8);
    out[2] = (uint8_t)(value >> 16);
    out[3] = (uint8_t)(value >> 24);
}

static inline uint32_t icrc_load(const uint8_t *in) {
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

#endif
