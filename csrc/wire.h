/* SPDX-License-Identifier: Apache-2.0 */
/* MRC transport packets: bytes <-> struct packet, from the BTH up to, not including, pad and ICRC.
 *
 * Stateless. Knows nothing of addresses (encap.h), queue pairs or time. Syntax only: whether a
 * PSN, key or length makes sense is for the state machines. Source: MRC 1.0.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* MRC 1.0, BTH: opcodes. */
enum wire_opcode {
    WIRE_WRITE_FIRST = 0xC6,
    WIRE_WRITE_MIDDLE = 0xC7,
    WIRE_WRITE_LAST = 0xC8,
    WIRE_WRITE_LAST_IMM = 0xC9,
    WIRE_WRITE_ONLY = 0xCA,
    WIRE_WRITE_ONLY_IMM = 0xCB,
    WIRE_ACK = 0xD1,
    WIRE_ENDPOINT_REQUEST = 0xD8,
    WIRE_ENDPOINT_RESPONSE = 0xD9,
    WIRE_SACK = 0xDC,
    WIRE_NACK = 0xDD,
    WIRE_PROBE = 0xDE,
};

enum { WIRE_QP_ENDPOINT = 2 }; /* destination QP of Endpoint Request and Response */

/* MRC 1.0, AETH. */
enum wire_syndrome {
    WIRE_SYNDROME_ACK = 0x1F,
    WIRE_SYNDROME_INVALID_REQUEST = 0x61,
    WIRE_SYNDROME_REMOTE_ACCESS = 0x62,
    WIRE_SYNDROME_REMOTE_OPERATION = 0x63,
};

/* MRC 1.0, NETH. */
enum wire_nack_reason {
    WIRE_NACK_TRIMMED = 0x01,
    WIRE_NACK_TRIMMED_LASTHOP = 0x02,
    WIRE_NACK_NO_BITMAP = 0x06,
    WIRE_NACK_NO_PKT_BUFFER = 0x07,
    WIRE_NACK_NO_RESOURCE = 0x0A,
    WIRE_NACK_PSN_OOR_WINDOW = 0x0B,
    WIRE_NACK_UNEXP_EVENT = 0x19,
};

/* MRC 1.0, SETH `m`. */
enum wire_sack_mark { WIRE_MARK_NONE = 0, WIRE_MARK_SKIP_ONCE = 1, WIRE_MARK_ALWAYS_SKIP = 2 };

/* MRC 1.0, ERTH and EETH `op`. */
enum wire_endpoint_op { WIRE_OP_PORT_STATUS = 0, WIRE_OP_EV_PROBE = 1 };

/* Sizes of headers, bytes. */
enum {
    WIRE_BTH_SIZE = 12,
    WIRE_ICRC_SIZE = 4,
    WIRE_DATA_HEADERS_MAX = 12 + 4 + 4 + 16 + 4, /* BTH METH TSETH RETH ImmDt */
    WIRE_HEADERS_MAX = 12 + 36,                  /* BTH EETH is the longest */
};

/* One transport packet in host byte order. Only the members that the opcode carries are read by
 * wire_put or set by wire_get; the names are MRC 1.0's. */
struct packet {
    uint8_t opcode;
    bool solicited;   /* BTH SE */
    bool ack_request; /* BTH A */
    bool rtx;         /* BTH RTX: a retransmission */
    bool ts;          /* BTH TS: a TSETH follows the METH */
    uint32_t dest_qp; /* 24 bits */
    uint32_t psn;     /* 24 bits */

    /* METH; TSETH (tx_timestamp is also SETH's, NETH's, PETH's, ERTH's and EETH's); RETH; ImmDt */
    uint16_t rqmsn;
    uint32_t msn;          /* METH: 16 bits; AETH: 24 bits */
    uint16_t tx_timestamp; /* units of 128 ns, wraps */
    bool tsr;
    uint8_t ftype;
    uint64_t va;
    uint32_t r_key;
    uint32_t dma_length; /* the whole message's */
    uint32_t immediate;

    /* AETH */
    uint8_t syndrome;

    /* SETH and CC_STATE */
    uint8_t m;
    bool pr;                /* answers a probe */
    int16_t ack_psn_offset; /* with pr: the probe id */
    uint32_t entropy;       /* also NETH */
    uint16_t spdcid;        /* also NETH, PETH */
    uint16_t dpdcid;        /* also NETH, PETH */
    uint32_t cack_psn;      /* 24 bits */
    uint8_t cc_type;
    uint8_t cc_fl; /* also NETH */
    uint8_t mpr;
    int16_t sack_offset;
    uint64_t sack_bitmap;
    uint16_t ooo_count; /* 15 bits */
    bool r_c;
    uint8_t rcv_cwnd_pen; /* 7 bits */
    uint32_t rcvd_bytes;  /* 24 bits, units of 256 bytes */

    /* NETH; vendor_info is also PETH's and ERTH's */
    uint8_t reason;
    uint8_t vendor_info;
    uint32_t nack_psn; /* 24 bits */

    /* PETH */
    uint16_t probe_id;

    /* ERTH and EETH */
    uint8_t op;
    uint32_t port_status_mask;

    /* Write opcodes: the data. Endpoint Request: zero padding of a full-size probe [choice]. */
    const uint8_t *payload;
    uint32_t payload_size;
};

enum wire_error {
    WIRE_OK = 0,
    WIRE_ERROR_SHORT,  /* ends before the headers that its opcode names, or before pad and ICRC */
    WIRE_ERROR_OPCODE, /* not an opcode of MRC */
    WIRE_ERROR_FIELD,  /* a version, next-header, P_Key or pad value that we do not speak */
    WIRE_ERROR_LONG,   /* bytes between the headers of an opcode that has no payload and the ICRC */
};

/* Whether the opcode is one of the six RDMA WRITEs. */
static inline bool wire_is_write(uint8_t opcode) {
    return opcode >= WIRE_WRITE_FIRST && opcode <= WIRE_WRITE_ONLY_IMM;
}

static inline bool wire_has_immediate(uint8_t opcode) {
    return opcode == WIRE_WRITE_LAST_IMM || opcode == WIRE_WRITE_ONLY_IMM;
}

/* Whether the opcode ends a message (Last or Only). */
static inline bool wire_ends_message(uint8_t opcode) {
    return opcode >= WIRE_WRITE_LAST && opcode <= WIRE_WRITE_ONLY_IMM;
}

/* Bytes of all headers that wire_put writes for this opcode and TS bit; 0 for an unknown one. */
size_t wire_headers_size(uint8_t opcode, bool ts);

/* Zero bytes behind a payload of that size: 0-3 (MRC 1.0, pad). */
static inline uint32_t wire_pad(uint32_t payload_size) { return (0u - payload_size) & 3u; }

/* Writes BTH and extension headers (not payload, pad or ICRC) to `headers`, which must have room
 * for WIRE_HEADERS_MAX bytes. BTH.pad follows from payload_size. Returns the bytes written; 0,
 * and nothing was written, for an unknown opcode. */
size_t wire_put(const struct packet *packet, uint8_t *headers);

/* Reads `size` bytes from the BTH on. With `trimmed` (writes only) the data may end anywhere
 * after the RETH, the payload is given as empty, and an ImmDt that was cut off as 0; otherwise
 * they must end with payload, pad and the 4-byte ICRC. packet->payload points into data, or is
 * NULL. Reserved bits are ignored. Never reads beyond data + size. After an error only
 * packet->opcode has a meaning, and that only if there was a BTH. */
enum wire_error wire_get(const uint8_t *data, size_t size, bool trimmed, struct packet *packet);

#endif
