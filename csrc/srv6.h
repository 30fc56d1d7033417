/* SPDX-License-Identifier: Apache-2.0 */
/* EV <-> uSID list <-> IPv6 address: which way a packet takes is written in its outer destination.
 *
 * Arithmetic on a template of one destination; nothing is stored for an EV.
 * Sources: MRC 1.0, Entropy Value; RFC 8986 and 9800 (NEXT-C-SID, "uSID").
 *
 *   byte  0 .. block_size-1 | 2 bytes a uSID, first hop first | zeros to the end
 *
 * uSID i of an EV is usids[i] + plane * plane_stride, and for i == uplink_hop + uplink, where the
 * plane is EV[15:12] and the uplink EV[11:0].
 */
#ifndef SRV6_H
#define SRV6_H

#include <stdbool.h>
#include <stdint.h>

#include "mrc.h"

enum { SRV6_USID_SIZE = 2 };

/* Whether every EV of planes below `planes` gives uSIDs of 1..0xFFFF that fit the address. A
 * template with block_size 0 (no SRv6) is valid. */
bool srv6_is_valid(const mrc_srv6_template *path, uint32_t planes);

/* The destination address of a packet with this EV. An uplink that is not there counts modulo
 * uplinks, so that any EV leads somewhere: answers take those of their questions. */
void srv6_address(const mrc_srv6_template *path, uint32_t ev, uint8_t address[16]);

/* The EV of the path that an address names, its upper half zero; false: it names none. */
bool srv6_ev(const mrc_srv6_template *path, const uint8_t address[16], uint32_t *ev);

/* Reads the uSIDs behind a block of `block_size` bytes up to the first zero. Returns how many there
 * are; -1: not zero to the end behind the last, more than MRC_SRV6_USIDS, or no such block. */
int srv6_usids(const uint8_t address[16], uint32_t block_size, uint16_t usids[MRC_SRV6_USIDS]);

#endif
