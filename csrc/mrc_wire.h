/* SPDX-License-Identifier: Apache-2.0 */
/* Whole packets for tools and tests: from the IP header to the ICRC <-> one flat struct.
 *
 * Stateless, and not on the engine's way: it speaks encap.h, wire.h and icrc.h one after another.
 * Source: MRC 1.0.
 */
#ifndef MRC_WIRE_H
#define MRC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
enum mrc_wire_status {
    MRC_WIRE_OK = 0,
    MRC_WIRE_SHORT_HEADERS = -1, /* ends inside the Ethernet, IP or UDP headers */
    MRC_WIRE_NOT_UDP = -2,       /* not IPv4 or IPv6 with UDP; options; a fragment */
    MRC_WIRE_LENGTHS = -3,       /* IP and UDP lengths contradict each other */
    MRC_WIRE_CUT = -4,           /* ends before its lengths say, and its DSCP is no trim mark */
    MRC_WIRE_TRAILING = -5,      /* bytes behind the end that the IP header names */
    MRC_WIRE_SHORT = -6,         /* ends before the headers that its opcode names */
    MRC_WIRE_OPCODE = -7,        /* not an opcode of MRC */
    MRC_WIRE_FIELD = -8,         /* a version, next-header, P_Key or pad that MRC does not have */
    MRC_WIRE_LONG = -9,          /* a payload behind an opcode that has none */
    MRC_WIRE_ICRC = -10,         /* the ICRC is another than the packet's */
    MRC_WIRE_ROOM = -11,         /* encode: does not fit `room`, or the 16-bit lengths */
};

/* One packet. The members up to `opcode` are the IP and UDP headers', the rest are those of struct
 * packet (wire.h); an opcode uses those that it carries. */
typedef struct mrc_wire {
    uint8_t ip_version; /* 4 or 6; an IPv4 address is the first four bytes */
    uint8_t source[16];
    uint8_t destination[16];
    uint8_t dscp;
    uint8_t ecn;
    uint32_t ev;
    uint16_t udp_port;
    bool has_carrier;    /* SRv6: another IPv6 header stands in front of the IPv6 header */
    bool has_srh;        /* SRv6: and an SRH between them, with no segment left */
    uint8_t carrier[16]; /* SRv6: destination of the outer header; its source is `source` */
    bool trimmed;       /* a write cut to its headers by a switch: no payload, no ICRC */
    bool has_immediate; /* false: none, or cut off */
    uint8_t pad;        /* decode: BTH.pad; encode: of a trimmed packet, else computed */

    uint8_t opcode;
    bool solicited;
    bool ack_request;
    bool rtx;
    bool ts;
    uint32_t dest_qp;
    uint32_t psn;
    uint16_t rqmsn;
    uint32_t msn;
    uint16_t tx_timestamp;
    bool tsr;
    uint8_t ftype;
    uint64_t va;
    uint32_t r_key;
    uint32_t dma_length;
    uint32_t immediate;
    uint8_t syndrome;
    uint8_t m;
    bool pr;
    int16_t ack_psn_offset;
    uint32_t entropy;
    uint16_t spdcid;
    uint16_t dpdcid;
    uint32_t cack_psn;
    uint8_t cc_type;
    uint8_t cc_fl;
    uint8_t mpr;
    int16_t sack_offset;
    uint64_t sack_bitmap;
    uint16_t ooo_count;
    bool r_c;
    uint8_t rcv_cwnd_pen;
    uint32_t rcvd_bytes;
    uint8_t reason;
    uint8_t vendor_info;
    uint32_t nack_psn;
    uint16_t probe_id;
    uint8_t op;
    uint32_t port_status_mask;
    const uint8_t *payload; /* decode: into the data given; NULL when there is none */
    uint32_t payload_size;
} mrc_wire;

/* Reads one packet from its IP header on. Bit n of `trim_dscps`: DSCP n marks a trimmed packet.
 * A write with such a DSCP that is no whole packet is taken as trimmed. Of IPv6-in-IPv6, source,
 * destination and EV are the inner packet's. After an error only the members up to `udp_port`,
 * and `opcode`, have a meaning; 0 when the data ended before them. */
int mrc_wire_decode(const uint8_t *data, size_t size, uint64_t trim_dscps, mrc_wire *wire);

/* Writes a packet with hop limit 64, DF, IPv4 id 0 and UDP checksum 0. Returns its bytes. */
int mrc_wire_encode(const mrc_wire *wire, uint8_t *out, size_t room);
/* cffi: end */

#endif
