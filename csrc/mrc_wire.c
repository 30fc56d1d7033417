/* SPDX-License-Identifier: Apache-2.0 */
/* Whole packets for tools and tests; see mrc_wire.h. */
#include "mrc_wire.h"

#include <string.h>

#include "encap.h"
#include "icrc.h"
#include "wire.h"

/* The members that struct packet and mrc_wire have in common, but for the payload. */
#define SHARED_MEMBERS(X)                                                                          \
    X(opcode) X(solicited) X(ack_request) X(rtx) X(ts) X(dest_qp) X(psn) X(rqmsn) X(msn)           \
    X(tx_timestamp) X(tsr) X(ftype) X(va) X(r_key) X(dma_length) X(immediate) X(syndrome) X(m)     \
    X(pr) X(ack_psn_offset) X(entropy) X(spdcid) X(dpdcid) X(cack_psn) X(cc_type) X(cc_fl) X(mpr)  \
    X(sack_offset) X(sack_bitmap) X(ooo_count) X(r_c) X(rcv_cwnd_pen) X(rcvd_bytes) X(reason)      \
    X(vendor_info) X(nack_psn) X(probe_id) X(op) X(port_status_mask) X(payload) X(payload_size)
#define COPY(member) to->member = from->member;

static void wire_from_packet(mrc_wire *to, const struct packet *from) { SHARED_MEMBERS(COPY) }

static void packet_from_wire(struct packet *to, const mrc_wire *from) { SHARED_MEMBERS(COPY) }

static int status_of_encap(enum encap_error error) {
    switch (error) {
    case ENCAP_OK: return MRC_WIRE_OK;
    case ENCAP_ERROR_SHORT: return MRC_WIRE_SHORT_HEADERS;
    case ENCAP_ERROR_PROTOCOL: return MRC_WIRE_NOT_UDP;
    case ENCAP_ERROR_LENGTH: break;
    }
    return MRC_WIRE_LENGTHS;
}

static int status_of_wire(enum wire_error error) {
    switch (error) {
    case WIRE_OK: return MRC_WIRE_OK;
    case WIRE_ERROR_SHORT: return MRC_WIRE_SHORT;
    case WIRE_ERROR_OPCODE: return MRC_WIRE_OPCODE;
    case WIRE_ERROR_FIELD: return MRC_WIRE_FIELD;
    case WIRE_ERROR_LONG: break;
    }
    return MRC_WIRE_LONG;
}

/* CRC state over everything but the ICRC itself. */
static uint32_t icrc_state(const uint8_t *ip, const uint8_t *bth, size_t transport_size) {
    struct icrc icrc;
    uint32_t state;

    /* For one packet, asking the processor for more takes longer than the table. */
    (void)icrc_use(&icrc, ICRC_TABLE);
    state = encap_icrc_start(&icrc, ip, 0, transport_size);
    state = icrc_bth(&icrc, state, bth);
    return icrc.update(state, bth + WIRE_BTH_SIZE, transport_size - WIRE_BTH_SIZE - WIRE_ICRC_SIZE);
}

static bool icrc_is_right(const struct encap *encap) {
    const uint8_t *end = encap->segments + encap->segments_size;

    return icrc_load(end - WIRE_ICRC_SIZE) ==
           ~icrc_state(encap->ip, encap->segments, encap->segments_size);
}

/* Reads a packet that must be whole. */
static int get_whole(const struct encap *encap, struct packet *packet) {
    int status = status_of_wire(wire_get(encap->segments, encap->segments_size, false, packet));

    if (status == MRC_WIRE_OK && !icrc_is_right(encap))
        return MRC_WIRE_ICRC;
    return status;
}

static int get_transport(const struct encap *encap, uint64_t trim_dscps, mrc_wire *wire) {
    struct packet packet = {0};
    bool may_be_trimmed = (trim_dscps >> encap->dscp & 1) != 0 && encap->segments_size > 0 &&
                          wire_is_write(encap->segments[0]);
    int status = encap->cut ? MRC_WIRE_CUT : get_whole(encap, &packet);

    if (encap->segments_size > 0)
        wire->opcode = encap->segments[0];
    if (status != MRC_WIRE_OK && may_be_trimmed) {
        status = status_of_wire(wire_get(encap->segments, encap->segments_size, true, &packet));
        wire->trimmed = status == MRC_WIRE_OK;
    }
    if (status != MRC_WIRE_OK)
        return status;
    wire_from_packet(wire, &packet);
    wire->pad = encap->segments[1] >> 4 & 3;
    wire->has_immediate = wire_has_immediate(packet.opcode) &&
                          encap->segments_size >= wire_headers_size(packet.opcode, packet.ts);
    return MRC_WIRE_OK;
}

int mrc_wire_decode(const uint8_t *data, size_t size, uint64_t trim_dscps, mrc_wire *wire) {
    struct encap encap;
    int status = status_of_encap(encap_get_ip(data, size, &encap));

    memset(wire, 0, sizeof *wire);
    if (status != MRC_WIRE_OK)
        return status;
    if ((size_t)(encap.segments - data) + encap.segments_size < size)
        return MRC_WIRE_TRAILING;
    wire->ip_version = encap.source.version;
    memcpy(wire->source, encap.source.bytes, sizeof wire->source);
    memcpy(wire->destination, encap.destination.bytes, sizeof wire->destination);
    wire->dscp = encap.dscp;
    wire->ecn = encap.ecn;
    wire->ev = encap.ev;
    wire->udp_port = encap.udp_port;
    wire->has_carrier = encap.carrier.version != 0;
    wire->has_srh = encap.has_srh;
    memcpy(wire->carrier, encap.carrier.bytes, sizeof wire->carrier);
    return get_transport(&encap, trim_dscps, wire);
}

static void put_addresses(const mrc_wire *wire, struct flow *flow) {
    flow->source.version = wire->ip_version;
    flow->destination.version = wire->ip_version;
    memcpy(flow->source.bytes, wire->source, sizeof wire->source);
    memcpy(flow->destination.bytes, wire->destination, sizeof wire->destination);
    flow->udp_port = wire->udp_port;
    flow->carrier.version = wire->has_carrier ? 6 : 0;
    flow->has_srh = wire->has_srh;
    memcpy(flow->carrier.bytes, wire->carrier, sizeof wire->carrier);
}

static bool may_have_payload(uint8_t opcode) {
    return wire_is_write(opcode) || opcode == WIRE_ENDPOINT_REQUEST;
}

/* Where the inner IP header stands, in headers of this size. */
static size_t inner_at(const mrc_wire *wire, size_t headers_size) {
    return headers_size - ENCAP_UDP_SIZE -
           (wire->ip_version == 4 ? ENCAP_IPV4_SIZE : ENCAP_IPV6_SIZE);
}

int mrc_wire_encode(const mrc_wire *wire, uint8_t *out, size_t room) {
    struct flow flow = {0};
    struct packet packet = {0};
    uint8_t outer[ENCAP_SIZE_MAX], headers[WIRE_HEADERS_MAX] = {0};
    size_t outer_size, headers_size, size, pad;

    put_addresses(wire, &flow);
    packet_from_wire(&packet, wire);
    if (wire->payload_size > 0 && (wire->trimmed || !may_have_payload(wire->opcode)))
        return MRC_WIRE_LONG;
    if (((wire->trimmed || wire->ts) && !wire_is_write(wire->opcode)) ||
        (wire->has_carrier && wire->ip_version != 6))
        return MRC_WIRE_FIELD;
    headers_size = wire_put(&packet, headers);
    if (headers_size == 0)
        return MRC_WIRE_OPCODE;
    pad = wire_pad(packet.payload_size);
    size = headers_size + packet.payload_size + pad + WIRE_ICRC_SIZE;
    if (wire->trimmed) {
        headers[1] = (uint8_t)(headers[1] | (wire->pad & 3) << 4);
        headers_size -= wire_has_immediate(wire->opcode) && !wire->has_immediate ? 4 : 0;
        size = headers_size;
    }
    if (size > UINT16_MAX - ENCAP_SIZE_MAX ||
        size + ENCAP_SIZE_MAX - ENCAP_ETHERNET_SIZE > room)
        return MRC_WIRE_ROOM;
    outer_size = encap_put(&flow, wire->ev, wire->dscp, wire->ecn, size, 1, outer);
    outer_size -= ENCAP_ETHERNET_SIZE;
    memcpy(out, outer + ENCAP_ETHERNET_SIZE, outer_size);
    memcpy(out + outer_size, headers, headers_size);
    if (wire->trimmed)
        return (int)(outer_size + size);
    if (packet.payload_size > 0)
        memcpy(out + outer_size + headers_size, packet.payload, packet.payload_size);
    memset(out + outer_size + headers_size + packet.payload_size, 0, pad);
    icrc_store(icrc_state(out + inner_at(wire, outer_size), out + outer_size, size),
               out + outer_size + size - WIRE_ICRC_SIZE);
    return (int)(outer_size + size);
}
