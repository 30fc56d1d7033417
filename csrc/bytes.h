/* SPDX-License-Identifier: Apache-2.0 */
/* Big-endian integers in byte arrays: the only way this code reads or writes the wire.
 *
 * No alignment is asked for. Callers have checked that the bytes are there.
 */
#ifndef BYTES_H
#define BYTES_H

#include <stdint.h>

static inline uint16_t get_be16(const uint8_t *in) {
    return (uint16_t)((unsigned)in[0] << 8 | in[1]);
}

static inline uint32_t get_be24(const uint8_t *in) {
    return (uint32_t)in[0] << 16 | (uint32_t)in[1] << 8 | in[2];
}

static inline uint32_t get_be32(const uint8_t *in) {
    return (uint32_t)in[0] << 24 | get_be24(in + 1);
}

static inline uint64_t get_be64(const uint8_t *in) {
    return (uint64_t)get_be32(in) << 32 | get_be32(in + 4);
}

static inline void put_be16(uint8_t *out, uint16_t value) {
    out[0] = (uint8_t)(value >> 8);
    out[1] = (uint8_t)value;
}

/* Writes the low 24 bits of value. */
static inline void put_be24(uint8_t *out, uint32_t value) {
    out[0] = (uint8_t)(value >> 16);
    out[1] = (uint8_t)(value >> 8);
    out[2] = (uint8_t)value;
}

static inline void put_be32(uint8_t *out, uint32_t value) {
    out[0] = (uint8_t)(value >> 24);
    put_be24(out + 1, value);
}

static inline void put_be64(uint8_t *out, uint64_t value) {
    put_be32(out, (uint32_t)(value >> 32));
    put_be32(out + 4, (uint32_t)value);
}

#endif
