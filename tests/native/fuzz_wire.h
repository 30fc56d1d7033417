/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds cuts and mutations of a packet to every reader of the wire formats. */
#ifndef FUZZ_WIRE_H
#define FUZZ_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* What became of the packets. Each was read from a block of memory of exactly its size, so that
 * the address sanitizer sees a read beyond. */
struct fuzz_wire {
    uint64_t refused;
    uint64_t decoded;    /* mrc_wire_decode took it */
    uint64_t parsed;     /* wire_get took it, whatever its ICRC */
    uint64_t violations; /* a reader took it and contradicts itself; must be 0 */
};

/* Adds to result what became of `count` mutations of packet (from its IP header), drawn from seed.
 * The lengths and the ICRC of many are put right again, or most would go no further. Returns -1
 * when out of memory. */
int fuzz_wire(const uint8_t *packet, size_t size, uint64_t seed, uint64_t count,
              struct fuzz_wire *result);

/* The same for the `size` packets that begin as this one and end before it does. */
int fuzz_wire_cuts(const uint8_t *packet, size_t size, struct fuzz_wire *result);

#endif
