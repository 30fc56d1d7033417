/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a frame as a switch sees them: where its headers are, and the few that it changes.
 *
 * Stateless. Every length is checked once, in frame_parse; the others trust it.
 */
#ifndef FABRIC_FRAME_H
#define FABRIC_FRAME_H

#include "fabric.h"

/* Finds headers, EV and identity. False: not IPv4 or IPv6, or it ends inside its headers. */
bool frame_parse(struct fabric_packet *packet);

/* Of the outer IP header. */
uint8_t frame_dscp(const struct fabric_packet *packet);

/* Sets CE if the packet is ECN-capable; whether it was. */
bool frame_mark(struct fabric_packet *packet);

/* One hop less; false when there was none left. */
bool frame_age(struct fabric_packet *packet);

/* The outer destination; IPv4 is mapped. */
void frame_destination(const struct fabric_packet *packet, uint8_t address[16]);

/* uN: takes the first uSID off the destination, or the segment off the SRH when none is left.
 * False: nothing is left at all. */
bool frame_shift(struct fabric_packet *packet, uint8_t block_size);

/* Cuts a write to its headers (MRC 1.0, trimmed packet) and sets the DSCP. False: it is no write
 * or has nothing to cut, and is unchanged. */
bool frame_trim(struct fabric_packet *packet, uint8_t dscp);

/* Flips the bit that `draw` chooses of what the ICRC covers, if it is here. */
void frame_corrupt(struct fabric_packet *packet, uint32_t draw);

/* For bursts of loss, with the PSN: of addresses, QP and RTX, not the EV. There is a BTH. */
uint64_t frame_run(const struct fabric_packet *packet);

/* A step of the hash that identities and fates are made with. */
static inline uint64_t frame_mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ (hash >> 32)) * 0xBF58476D1CE4E5B9u;
    return hash ^ (hash >> 29);
}

#endif
