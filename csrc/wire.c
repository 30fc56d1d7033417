/* SPDX-License-Identifier: Apache-2.0 */
/* MRC headers: bytes <-> struct packet, driven by one table of opcodes.
 *
 * Lengths are checked once, in wire_get, against the size that the table gives; the functions of
 * the single headers then trust them. Source: MRC 1.0, BTH and Extension headers. */
#include "wire.h"

#include <assert.h> /* static_assert */
#include <string.h>

#include "bytes.h"

enum {
    BTH_OPCODE = 0,
    BTH_FLAGS = 1,    /* SE 0x80, M 0x40, pad count 0x30, TVer 0x0F */
    BTH_P_KEY = 2,    /* uint16 */
    BTH_RESERVED = 4, /* masked in the ICRC */
    BTH_DEST_QP = 5,  /* uint24 */
    BTH_A = 8,        /* A 0x80, RTX 0x20, TS 0x10 */
    BTH_PSN = 9,      /* uint24 */
    BTH_SIZE = 12,
    BTH_FIXED_MASK = 0x000FFFFF, /* of the first four bytes: TVer and P_Key, */
    BTH_FIXED = 0x0000FFFF,      /* which must be these */
};
static_assert((int)BTH_RESERVED + 1 == (int)BTH_DEST_QP && (int)BTH_A + 1 == (int)BTH_PSN,
              "put_bth and get_bth take three words");
static_assert((int)BTH_PSN + 3 == (int)BTH_SIZE && (int)BTH_SIZE == (int)WIRE_BTH_SIZE,
              "the PSN ends the header");

enum { METH_RQMSN = 0 /* uint16 */, METH_MSN = 2 /* uint16 */, METH_SIZE = 4 };

/* PETH and ERTH end with the same four bytes. */
enum {
    TSETH_TIMESTAMP = 0, /* uint16 */
    TSETH_FLAGS = 2,     /* tsr 0x80 */
    TSETH_FTYPE = 3,     /* 0x0F */
    TSETH_SIZE = 4,
};

enum {
    RETH_VA = 0,          /* uint64 */
    RETH_R_KEY = 8,       /* uint32 */
    RETH_DMA_LENGTH = 12, /* uint32 */
    RETH_SIZE = 16,
};
static_assert((int)RETH_DMA_LENGTH + 4 == (int)RETH_SIZE, "dma_length ends the header");

enum { IMMDT_SIZE = 4 /* uint32 */ };

enum { AETH_SYNDROME = 0, AETH_MSN = 1 /* uint24 */, AETH_SIZE = 4 };

/* SETH, NETH, PETH, ERTH and EETH begin with type (4 bits) and next header (5 bits), all zero. */
enum { EXTENSION_TYPE_NEXT = 0 /* uint16 */, EXTENSION_TYPE_NEXT_MASK = 0xFF80 };

/* SETH with CC_STATE. */
enum {
    SETH_FLAGS = 1,           /* m 0x60, pr 0x02 */
    SETH_ACK_PSN_OFFSET = 2,  /* int16 */
    SETH_ENTROPY = 4,         /* uint32 */
    SETH_SPDCID = 8,          /* uint16 */
    SETH_DPDCID = 10,         /* uint16 */
    SETH_CACK_PSN = 13,       /* uint24 */
    SETH_CC = 16,             /* cc_type 0xF0, cc_fl 0x0F */
    SETH_MPR = 17,
    SETH_SACK_OFFSET = 18,    /* int16 */
    SETH_SACK_BITMAP = 20,    /* uint64 */
    CC_STATE_TIMESTAMP = 28,  /* uint16 */
    CC_STATE_OOO_COUNT = 30,  /* 15 bits */
    CC_STATE_PEN = 32,        /* r_c 0x80, rcv_cwnd_pen 0x7F */
    CC_STATE_RCVD_BYTES = 33, /* uint24 */
    SETH_SIZE = 36,
};
static_assert((int)SETH_SACK_BITMAP + 8 == (int)CC_STATE_TIMESTAMP, "CC_STATE follows the bitmap");
static_assert((int)CC_STATE_RCVD_BYTES + 3 == (int)SETH_SIZE, "rcvd_bytes ends CC_STATE");

enum {
    NETH_REASON = 2,
    NETH_VENDOR_INFO = 3,
    NETH_ENTROPY = 4,    /* uint32 */
    NETH_SPDCID = 8,     /* uint16 */
    NETH_DPDCID = 10,    /* uint16 */
    NETH_NACK_PSN = 13,  /* uint24 */
    NETH_CC = 16,        /* cc_type 0xF0 = NETH_CC_TYPE, cc_fl 0x0F */
    NETH_TIMESTAMP = 18, /* uint16 */
    NETH_SIZE = 20,
    NETH_CC_TYPE = 2,
};
static_assert((int)NETH_TIMESTAMP + 2 == (int)NETH_SIZE, "the timestamp ends the header");

enum {
    PETH_VENDOR_INFO = 3,
    PETH_PROBE_ID = 4, /* uint16 */
    PETH_SPDCID = 8,   /* uint16 */
    PETH_DPDCID = 10,  /* uint16 */
    PETH_TSETH = 12,
    PETH_SIZE = 16,
};

enum {
    ERTH_OP = 1, /* 0x03 */
    ERTH_VENDOR_INFO = 3,
    ERTH_PORT_STATUS_MASK = 4, /* uint32 */
    ERTH_TSETH = 12,
    ERTH_SIZE = 16,
};
static_assert((int)PETH_TSETH + (int)TSETH_SIZE == (int)PETH_SIZE, "PETH ends as a TSETH");
static_assert((int)ERTH_TSETH + (int)TSETH_SIZE == (int)ERTH_SIZE, "ERTH ends as a TSETH");

enum { EETH_OP = 1 /* 0x0C */, EETH_TIMESTAMP = 28 /* uint16 */, EETH_SIZE = 36 };

static_assert((int)BTH_SIZE + (int)METH_SIZE + (int)TSETH_SIZE + (int)RETH_SIZE + (int)IMMDT_SIZE ==
                  (int)WIRE_DATA_HEADERS_MAX,
              "the longest headers of a write");
static_assert((int)BTH_SIZE + (int)EETH_SIZE == (int)WIRE_HEADERS_MAX, "the longest headers");

/* What follows the BTH. */
enum format {
    FORMAT_NONE = 0, /* not an opcode of MRC */
    FORMAT_WRITE,     /* METH [TSETH] RETH */
    FORMAT_WRITE_IMM, /* METH [TSETH] RETH ImmDt */
    FORMAT_ACK,
    FORMAT_REQUEST,
    FORMAT_RESPONSE,
    FORMAT_SACK,
    FORMAT_NACK,
    FORMAT_PROBE,
    FORMAT_COUNT,
};

enum { OPCODE_BASE = 0xC0, OPCODE_COUNT = 0x20 };

static const uint8_t opcode_format[OPCODE_COUNT] = {
    [WIRE_WRITE_FIRST - OPCODE_BASE] = FORMAT_WRITE,
    [WIRE_WRITE_MIDDLE - OPCODE_BASE] = FORMAT_WRITE,
    [WIRE_WRITE_LAST - OPCODE_BASE] = FORMAT_WRITE,
    [WIRE_WRITE_LAST_IMM - OPCODE_BASE] = FORMAT_WRITE_IMM,
    [WIRE_WRITE_ONLY - OPCODE_BASE] = FORMAT_WRITE,
    [WIRE_WRITE_ONLY_IMM - OPCODE_BASE] = FORMAT_WRITE_IMM,
    [WIRE_ACK - OPCODE_BASE] = FORMAT_ACK,
    [WIRE_ENDPOINT_REQUEST - OPCODE_BASE] = FORMAT_REQUEST,
    [WIRE_ENDPOINT_RESPONSE - OPCODE_BASE] = FORMAT_RESPONSE,
    [WIRE_SACK - OPCODE_BASE] = FORMAT_SACK,
    [WIRE_NACK - OPCODE_BASE] = FORMAT_NACK,
    [WIRE_PROBE - OPCODE_BASE] = FORMAT_PROBE,
};

/* Bytes behind the BTH, without TSETH, and whether a payload may follow. */
static const struct {
    uint8_t size;
    bool has_payload;
} format_of[FORMAT_COUNT] = {
    [FORMAT_WRITE] = {METH_SIZE + RETH_SIZE, true},
    [FORMAT_WRITE_IMM] = {METH_SIZE + RETH_SIZE + IMMDT_SIZE, true},
    [FORMAT_ACK] = {AETH_SIZE, false},
    [FORMAT_REQUEST] = {ERTH_SIZE, true},
    [FORMAT_RESPONSE] = {EETH_SIZE, false},
    [FORMAT_SACK] = {SETH_SIZE, false},
    [FORMAT_NACK] = {NETH_SIZE, false},
    [FORMAT_PROBE] = {PETH_SIZE, false},
};

static enum format format_find(uint8_t opcode) {
    unsigned index = (unsigned)opcode - OPCODE_BASE;

    return index < OPCODE_COUNT ? (enum format)opcode_format[index] : FORMAT_NONE;
}

static bool is_write(enum format format) {
    return format == FORMAT_WRITE || format == FORMAT_WRITE_IMM;
}

static size_t headers_size(enum format format, bool ts) {
    return (size_t)BTH_SIZE + format_of[format].size + (ts && is_write(format) ? TSETH_SIZE : 0);
}

size_t wire_headers_size(uint8_t opcode, bool ts) {
    enum format format = format_find(opcode);

    return format == FORMAT_NONE ? 0 : headers_size(format, ts);
}

/* ---- struct packet to bytes: BTH and writes leave none out, in others those not set are zero
 * already ---- */

static void put_bth(const struct packet *packet, enum format format, uint8_t *out) {
    uint32_t pad = format_of[format].has_payload ? wire_pad(packet->payload_size) : 0;
    uint32_t flags = (uint32_t)packet->solicited << 7 | pad << 4;
    uint32_t a = (uint32_t)packet->ack_request << 7 | (uint32_t)packet->rtx << 5 |
                 (uint32_t)(packet->ts && is_write(format)) << 4;

    put_be32(out, (uint32_t)packet->opcode << 24 | flags << 16 | 0xFFFF);
    put_be32(out + BTH_RESERVED, packet->dest_qp & 0xFFFFFF);
    put_be32(out + BTH_A, a << 24 | (packet->psn & 0xFFFFFF));
}

static void put_tseth(const struct packet *packet, uint8_t *out) {
    put_be16(out + TSETH_TIMESTAMP, packet->tx_timestamp);
    out[TSETH_FLAGS] = packet->tsr ? 0x80 : 0;
    out[TSETH_FTYPE] = packet->ftype & 0x0F;
}

static void put_write(const struct packet *packet, uint8_t *out) {
    put_be16(out + METH_RQMSN, packet->rqmsn);
    put_be16(out + METH_MSN, (uint16_t)packet->msn);
    out += METH_SIZE;
    if (packet->ts) {
        put_tseth(packet, out);
        out += TSETH_SIZE;
    }
    put_be64(out + RETH_VA, packet->va);
    put_be32(out + RETH_R_KEY, packet->r_key);
    put_be32(out + RETH_DMA_LENGTH, packet->dma_length);
    if (wire_has_immediate(packet->opcode))
        put_be32(out + RETH_SIZE, packet->immediate);
}

static void put_ack(const struct packet *packet, uint8_t *out) {
    out[AETH_SYNDROME] = packet->syndrome;
    put_be24(out + AETH_MSN, packet->msn);
}

static void put_sack(const struct packet *packet, uint8_t *out) {
    out[SETH_FLAGS] = (uint8_t)((packet->m & 3) << 5 | (packet->pr ? 0x02 : 0));
    put_be16(out + SETH_ACK_PSN_OFFSET, (uint16_t)packet->ack_psn_offset);
    put_be32(out + SETH_ENTROPY, packet->entropy);
    put_be16(out + SETH_SPDCID, packet->spdcid);
    put_be16(out + SETH_DPDCID, packet->dpdcid);
    put_be24(out + SETH_CACK_PSN, packet->cack_psn);
    out[SETH_CC] = (uint8_t)((packet->cc_type & 0x0F) << 4 | (packet->cc_fl & 0x0F));
    out[SETH_MPR] = packet->mpr;
    put_be16(out + SETH_SACK_OFFSET, (uint16_t)packet->sack_offset);
    put_be64(out + SETH_SACK_BITMAP, packet->sack_bitmap);
    put_be16(out + CC_STATE_TIMESTAMP, packet->tx_timestamp);
    put_be16(out + CC_STATE_OOO_COUNT, packet->ooo_count & 0x7FFF);
    out[CC_STATE_PEN] = (uint8_t)((packet->r_c ? 0x80 : 0) | (packet->rcv_cwnd_pen & 0x7F));
    put_be24(out + CC_STATE_RCVD_BYTES, packet->rcvd_bytes);
}

static void put_nack(const struct packet *packet, uint8_t *out) {
    out[NETH_REASON] = packet->reason;
    out[NETH_VENDOR_INFO] = packet->vendor_info;
    put_be32(out + NETH_ENTROPY, packet->entropy);
    put_be16(out + NETH_SPDCID, packet->spdcid);
    put_be16(out + NETH_DPDCID, packet->dpdcid);
    put_be24(out + NETH_NACK_PSN, packet->nack_psn);
    out[NETH_CC] = (uint8_t)(NETH_CC_TYPE << 4 | (packet->cc_fl & 0x0F));
    put_be16(out + NETH_TIMESTAMP, packet->tx_timestamp);
}

static void put_probe(const struct packet *packet, uint8_t *out) {
    out[PETH_VENDOR_INFO] = packet->vendor_info;
    put_be16(out + PETH_PROBE_ID, packet->probe_id);
    put_be16(out + PETH_SPDCID, packet->spdcid);
    put_be16(out + PETH_DPDCID, packet->dpdcid);
    put_tseth(packet, out + PETH_TSETH);
}

static void put_request(const struct packet *packet, uint8_t *out) {
    out[ERTH_OP] = packet->op & 3;
    out[ERTH_VENDOR_INFO] = packet->vendor_info;
    put_be32(out + ERTH_PORT_STATUS_MASK, packet->port_status_mask);
    put_tseth(packet, out + ERTH_TSETH);
}

static void put_response(const struct packet *packet, uint8_t *out) {
    out[EETH_OP] = (uint8_t)((packet->op & 3) << 2);
    put_be16(out + EETH_TIMESTAMP, packet->tx_timestamp);
}

size_t wire_put(const struct packet *packet, uint8_t *headers) {
    enum format format = format_find(packet->opcode);
    size_t size = headers_size(format, packet->ts);
    uint8_t *out = headers + BTH_SIZE;

    if (format == FORMAT_NONE)
        return 0;
    put_bth(packet, format, headers);
    if (is_write(format)) {
        put_write(packet, out);
        return size;
    }
    memset(out, 0, size - BTH_SIZE);
    switch (format) {
    case FORMAT_ACK: put_ack(packet, out); break;
    case FORMAT_REQUEST: put_request(packet, out); break;
    case FORMAT_RESPONSE: put_response(packet, out); break;
    case FORMAT_SACK: put_sack(packet, out); break;
    case FORMAT_NACK: put_nack(packet, out); break;
    case FORMAT_PROBE: put_probe(packet, out); break;
    default: break;
    }
    return size;
}

/* ---- Bytes to struct packet; wire_get has checked that they are there ---- */

static void get_bth(const uint8_t *in, struct packet *packet) {
    packet->opcode = in[BTH_OPCODE];
    packet->solicited = (in[BTH_FLAGS] & 0x80) != 0;
    packet->ack_request = (in[BTH_A] & 0x80) != 0;
    packet->rtx = (in[BTH_A] & 0x20) != 0;
    packet->ts = (in[BTH_A] & 0x10) != 0;
    packet->dest_qp = get_be32(in + BTH_RESERVED) & 0xFFFFFF;
    packet->psn = get_be32(in + BTH_A) & 0xFFFFFF;
    packet->payload = NULL;
    packet->payload_size = 0;
}

static void get_tseth(const uint8_t *in, struct packet *packet) {
    packet->tx_timestamp = get_be16(in + TSETH_TIMESTAMP);
    packet->tsr = (in[TSETH_FLAGS] & 0x80) != 0;
    packet->ftype = in[TSETH_FTYPE] & 0x0F;
}

/* Returns where the ImmDt would be. */
static const uint8_t *get_write(const uint8_t *in, struct packet *packet) {
    packet->rqmsn = get_be16(in + METH_RQMSN);
    packet->msn = get_be16(in + METH_MSN);
    in += METH_SIZE;
    if (packet->ts) {
        get_tseth(in, packet);
        in += TSETH_SIZE;
    }
    packet->va = get_be64(in + RETH_VA);
    packet->r_key = get_be32(in + RETH_R_KEY);
    packet->dma_length = get_be32(in + RETH_DMA_LENGTH);
    return in + RETH_SIZE;
}

static void get_ack(const uint8_t *in, struct packet *packet) {
    packet->syndrome = in[AETH_SYNDROME];
    packet->msn = get_be24(in + AETH_MSN);
}

static void get_sack(const uint8_t *in, struct packet *packet) {
    packet->m = in[SETH_FLAGS] >> 5 & 3;
    packet->pr = (in[SETH_FLAGS] & 0x02) != 0;
    packet->ack_psn_offset = (int16_t)get_be16(in + SETH_ACK_PSN_OFFSET);
    packet->entropy = get_be32(in + SETH_ENTROPY);
    packet->spdcid = get_be16(in + SETH_SPDCID);
    packet->dpdcid = get_be16(in + SETH_DPDCID);
    packet->cack_psn = get_be24(in + SETH_CACK_PSN);
    packet->cc_type = in[SETH_CC] >> 4;
    packet->cc_fl = in[SETH_CC] & 0x0F;
    packet->mpr = in[SETH_MPR];
    packet->sack_offset = (int16_t)get_be16(in + SETH_SACK_OFFSET);
    packet->sack_bitmap = get_be64(in + SETH_SACK_BITMAP);
    packet->tx_timestamp = get_be16(in + CC_STATE_TIMESTAMP);
    packet->ooo_count = get_be16(in + CC_STATE_OOO_COUNT) & 0x7FFF;
    packet->r_c = (in[CC_STATE_PEN] & 0x80) != 0;
    packet->rcv_cwnd_pen = in[CC_STATE_PEN] & 0x7F;
    packet->rcvd_bytes = get_be24(in + CC_STATE_RCVD_BYTES);
}

static enum wire_error get_nack(const uint8_t *in, struct packet *packet) {
    packet->reason = in[NETH_REASON];
    packet->vendor_info = in[NETH_VENDOR_INFO];
    packet->entropy = get_be32(in + NETH_ENTROPY);
    packet->spdcid = get_be16(in + NETH_SPDCID);
    packet->dpdcid = get_be16(in + NETH_DPDCID);
    packet->nack_psn = get_be24(in + NETH_NACK_PSN);
    packet->cc_fl = in[NETH_CC] & 0x0F;
    packet->tx_timestamp = get_be16(in + NETH_TIMESTAMP);
    return in[NETH_CC] >> 4 == NETH_CC_TYPE ? WIRE_OK : WIRE_ERROR_FIELD;
}

static void get_probe(const uint8_t *in, struct packet *packet) {
    packet->vendor_info = in[PETH_VENDOR_INFO];
    packet->probe_id = get_be16(in + PETH_PROBE_ID);
    packet->spdcid = get_be16(in + PETH_SPDCID);
    packet->dpdcid = get_be16(in + PETH_DPDCID);
    get_tseth(in + PETH_TSETH, packet);
}

static void get_request(const uint8_t *in, struct packet *packet) {
    packet->op = in[ERTH_OP] & 3;
    packet->vendor_info = in[ERTH_VENDOR_INFO];
    packet->port_status_mask = get_be32(in + ERTH_PORT_STATUS_MASK);
    get_tseth(in + ERTH_TSETH, packet);
}

static void get_response(const uint8_t *in, struct packet *packet) {
    packet->op = in[EETH_OP] >> 2 & 3;
    packet->tx_timestamp = get_be16(in + EETH_TIMESTAMP);
}

/* SACK, NACK, probe, Endpoint Request and Response: type and next header come first. */
static enum wire_error get_extension(enum format format, const uint8_t *in, struct packet *packet) {
    if ((get_be16(in + EXTENSION_TYPE_NEXT) & EXTENSION_TYPE_NEXT_MASK) != 0)
        return WIRE_ERROR_FIELD;
    switch (format) {
    case FORMAT_SACK: get_sack(in, packet); break;
    case FORMAT_NACK: return get_nack(in, packet);
    case FORMAT_PROBE: get_probe(in, packet); break;
    case FORMAT_REQUEST: get_request(in, packet); break;
    case FORMAT_RESPONSE: get_response(in, packet); break;
    default: break;
    }
    return WIRE_OK;
}

/* Finds the payload between `headers` bytes of headers and pad with ICRC. */
static enum wire_error get_payload(const uint8_t *data, size_t size, size_t headers, bool allowed,
                                   struct packet *packet) {
    uint32_t pad = data[BTH_FLAGS] >> 4 & 3;
    size_t rest = size - headers - WIRE_ICRC_SIZE; /* wire_get: not negative */

    if (!allowed && rest > 0)
        return WIRE_ERROR_LONG;
    if ((rest & ~(size_t)(UINT32_MAX - 3)) != 0 || pad > rest)
        return WIRE_ERROR_FIELD; /* not a multiple of 4, or of more than 32 bits */
    packet->payload_size = (uint32_t)rest - pad;
    packet->payload = packet->payload_size > 0 ? data + headers : NULL;
    return WIRE_OK;
}

/* A write that ends anywhere behind its RETH: what is missing counts as 0. */
static enum wire_error get_trimmed(enum format format, const uint8_t *data, size_t size,
                                   struct packet *packet) {
    size_t headers = headers_size(format, packet->ts);
    bool has_immediate = format == FORMAT_WRITE_IMM && size >= headers;
    const uint8_t *immediate;

    if (size < headers - (format == FORMAT_WRITE_IMM ? IMMDT_SIZE : 0))
        return WIRE_ERROR_SHORT;
    immediate = get_write(data + BTH_SIZE, packet);
    packet->immediate = has_immediate ? get_be32(immediate) : 0;
    return WIRE_OK;
}

enum wire_error wire_get(const uint8_t *data, size_t size, bool trimmed, struct packet *packet) {
    enum format format;
    enum wire_error error;
    size_t headers;

    if (size < BTH_SIZE)
        return WIRE_ERROR_SHORT;
    get_bth(data, packet);
    format = format_find(packet->opcode);
    if (format == FORMAT_NONE)
        return WIRE_ERROR_OPCODE;
    if ((get_be32(data) & BTH_FIXED_MASK) != BTH_FIXED || (packet->ts && !is_write(format)))
        return WIRE_ERROR_FIELD;
    if (trimmed && is_write(format))
        return get_trimmed(format, data, size, packet);
    headers = headers_size(format, packet->ts);
    if (size < headers + WIRE_ICRC_SIZE)
        return WIRE_ERROR_SHORT;

    if (is_write(format)) {
        const uint8_t *immediate = get_write(data + BTH_SIZE, packet);

        packet->immediate = format == FORMAT_WRITE_IMM ? get_be32(immediate) : 0;
        return get_payload(data, size, headers, true, packet);
    }
    if (format == FORMAT_ACK)
        get_ack(data + BTH_SIZE, packet);
    else if ((error = get_extension(format, data + BTH_SIZE, packet)) != WIRE_OK)
        return error;
    return get_payload(data, size, headers, format_of[format].has_payload, packet);
}
