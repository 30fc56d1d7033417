/* SPDX-License-Identifier: Apache-2.0 */
/* Ethernet, IPv6 or IPv4, and UDP around MRC packets; the EV's place in them; ICRC over the result.
 *
 * Stateless. In SRv6 mode another IPv6 header, and an SRH (RFC 8754) if asked for, stand in front
 * of the inner one, which stays as it is. Source: MRC 1.0, Encapsulation.
 */
#ifndef ENCAP_H
#define ENCAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "icrc.h"

enum {
    ENCAP_ETHERNET_SIZE = 14,
    ENCAP_IPV4_SIZE = 20,
    ENCAP_IPV6_SIZE = 40,
    ENCAP_UDP_SIZE = 8,
    ENCAP_SRH_SIZE = 8 + 16,               /* with one segment */
    ENCAP_SIZE_MAX = 14 + 40 + 24 + 40 + 8,
};

enum encap_ecn { ENCAP_ECN_NONE = 0, ENCAP_ECN_ECT0 = 2, ENCAP_ECN_CE = 3 };

/* An IP address; `version` 0 means none. IPv4 uses the first 4 bytes, the rest are zero. */
struct address {
    uint8_t version; /* 0, 4 or 6 */
    uint8_t bytes[16];
};

bool address_equal(const struct address *a, const struct address *b);

/* Where a frame goes: what does not change from packet to packet of one plane and peer. */
struct flow {
    struct address source; /* same version as destination */
    struct address destination;
    uint8_t source_mac[6];
    uint8_t destination_mac[6];
    uint16_t udp_port; /* destination port */
    struct address carrier; /* SRv6: of the outer header; version 0: no outer header */
    bool has_srh;           /* SRv6: repeat the carrier in an SRH with no segment left */
    /* SRv6: what takes the carrier's place when its uSIDs are used up, in an SRH whatever has_srh
     * says; version 0: none */
    struct address next_carrier;
};

/* Writes the headers of a frame whose UDP payload has `segment_count` transport packets of together
 * `udp_payload_size` bytes; first IPv4 id is 0. UDP checksum: 0 for one packet; for more, the
 * pseudo-header sum that VIRTIO_NET_HDR_F_NEEDS_CSUM wants. The sizes fit the 16-bit length fields.
 * With a carrier the inner header's hop limit and traffic class are the outer's too; segment_count
 * is 1 then, for the kernel cuts no such frame. Room for ENCAP_SIZE_MAX. Returns the bytes
 * written. */
size_t encap_put(const struct flow *flow, uint32_t ev, uint8_t dscp, uint8_t ecn,
                 size_t udp_payload_size, unsigned segment_count, uint8_t *headers);

/* What encap_get found. */
struct encap {
    struct address source; /* of the innermost IP header, as destination and ev */
    struct address destination;
    uint8_t source_mac[6];
    uint8_t dscp; /* of the outermost IP header */
    uint8_t ecn;  /* CE if any IP header says CE, else the innermost's */
    uint32_t ev;
    uint16_t udp_port;       /* destination port */
    struct address carrier;  /* SRv6: outer destination as it arrived; version 0: none */
    bool has_srh;
    const uint8_t *ip;       /* innermost IP header */
    const uint8_t *segments; /* first transport packet */
    size_t segments_size;    /* bytes that are there, at most what the lengths say */
    bool cut;                /* a length promises more than is there: trimmed, or truncated */
};

enum encap_error {
    ENCAP_OK = 0,
    ENCAP_ERROR_SHORT,    /* ends inside a header */
    ENCAP_ERROR_PROTOCOL, /* not IPv4 or IPv6 (or 6 in 6, with an SRH that is spent) with UDP;
                           * options; a fragment */
    ENCAP_ERROR_LENGTH,   /* an inner length is less than the one around it */
};

/* Reads one Ethernet frame (encap_get) or one packet from its IP header on (encap_get_ip;
 * source_mac is zero). Bytes behind the packet (Ethernet padding) are left out. A whole GSO
 * frame is read too: its IP length then covers all its segments. Never reads beyond data + size. */
enum encap_error encap_get(const uint8_t *data, size_t size, struct encap *encap);
enum encap_error encap_get_ip(const uint8_t *data, size_t size, struct encap *encap);

/* CRC state after the masked IP and UDP headers and up to the BTH, for the packet that is
 * `index`-th of a frame with these headers, and has `transport_size` bytes from BTH to ICRC: as
 * if the frame had been cut into segments (MRC 1.0, ICRC: own lengths; IPv4 id + index). `ip` is
 * encap.ip, or where encap_put wrote it. The caller goes on with icrc_bth() and icrc->update()
 * over the rest. For IPv6 the result does not depend on index. */
uint32_t encap_icrc_start(const struct icrc *icrc, const uint8_t *ip, unsigned index,
                          size_t transport_size);

#endif
