/* SPDX-License-Identifier: Apache-2.0 */
/* Ethernet, IP and UDP headers: addresses and EV <-> bytes, and their part of the ICRC.
 *
 * Checksums of received packets are not looked at: the ICRC covers what matters, and a packet
 * read behind an offloading device carries partial ones. Source: MRC 1.0, Encapsulation. */
#include "encap.h"

#include <assert.h> /* static_assert */
#include <string.h>

#include "bytes.h"

enum {
    ETHERNET_DESTINATION = 0,
    ETHERNET_SOURCE = 6,
    ETHERNET_TYPE = 12, /* uint16 */
    ETHERNET_TYPE_IPV4 = 0x0800,
    ETHERNET_TYPE_IPV6 = 0x86DD,
};

enum {
    IPV4_VERSION = 0, /* version and header length: 0x45, options are not spoken */
    IPV4_TOS = 1,
    IPV4_LENGTH = 2,   /* uint16, header included */
    IPV4_ID = 4,       /* uint16 */
    IPV4_FRAGMENT = 6, /* uint16: DF 0x4000, MF 0x2000, offset 0x1FFF */
    IPV4_TTL = 8,
    IPV4_PROTOCOL = 9,
    IPV4_CHECKSUM = 10, /* uint16 */
    IPV4_SOURCE = 12,
    IPV4_DESTINATION = 16,
    IPV4_DF = 0x4000,
    IPV4_FRAGMENT_MASK = 0x3FFF,
};
static_assert((int)IPV4_DESTINATION + 4 == (int)ENCAP_IPV4_SIZE, "the address ends the header");

enum {
    IPV6_WORD = 0,   /* uint32: version 4, traffic class 8, flow label 20 bits */
    IPV6_LENGTH = 4, /* uint16, header not included */
    IPV6_NEXT_HEADER = 6,
    IPV6_HOP_LIMIT = 7,
    IPV6_SOURCE = 8,
    IPV6_DESTINATION = 24,
};
static_assert((int)IPV6_DESTINATION + 16 == (int)ENCAP_IPV6_SIZE, "the address ends the header");

enum {
    UDP_SOURCE = 0,      /* uint16 */
    UDP_DESTINATION = 2, /* uint16 */
    UDP_LENGTH = 4,      /* uint16, header included */
    UDP_CHECKSUM = 6,    /* uint16 */
};

enum { PROTOCOL_UDP = 17, PROTOCOL_IPV6 = 41, PROTOCOL_ROUTING = 43, HOP_LIMIT = 64 };

/* Segment Routing Header, RFC 8754 section 2. */
enum {
    SRH_NEXT_HEADER = 0,
    SRH_LENGTH = 1, /* in units of 8 bytes, the first not counted */
    SRH_TYPE = 2,
    SRH_SEGMENTS_LEFT = 3,
    SRH_LAST_ENTRY = 4,
    SRH_SEGMENTS = 8,
    SRH_TYPE_SEGMENT_ROUTING = 4,
};

/* The CRC register after the eight bytes of ones that stand for a local route header. */
#define ICRC_AFTER_ROUTE_HEADER 0xDEBB20E3u

static size_t address_size(uint8_t version) { return version == 4 ? 4 : 16; }

bool address_equal(const struct address *a, const struct address *b) {
    return a->version == b->version &&
           (a->version == 0 || memcmp(a->bytes, b->bytes, address_size(a->version)) == 0);
}

/* ---- Writing ---- */

/* Adds big-endian 16-bit words; size is even. */
static uint32_t sum_words(uint32_t sum, const uint8_t *data, size_t size) {
    for (size_t i = 0; i < size; i += 2)
        sum += get_be16(data + i);
    return sum;
}

/* One's complement sum (RFC 1071), not inverted. */
static uint16_t fold_sum(uint32_t sum) {
    sum = (sum & 0xFFFF) + (sum >> 16);
    return (uint16_t)(sum + (sum >> 16));
}

static void put_ipv4(const struct flow *flow, uint8_t traffic_class, size_t size, uint8_t *out) {
    memset(out, 0, ENCAP_IPV4_SIZE);
    out[IPV4_VERSION] = 0x45;
    out[IPV4_TOS] = traffic_class;
    put_be16(out + IPV4_LENGTH, (uint16_t)(ENCAP_IPV4_SIZE + size));
    put_be16(out + IPV4_FRAGMENT, IPV4_DF);
    out[IPV4_TTL] = HOP_LIMIT;
    out[IPV4_PROTOCOL] = PROTOCOL_UDP;
    memcpy(out + IPV4_SOURCE, flow->source.bytes, 4);
    memcpy(out + IPV4_DESTINATION, flow->destination.bytes, 4);
    put_be16(out + IPV4_CHECKSUM, (uint16_t)~fold_sum(sum_words(0, out, ENCAP_IPV4_SIZE)));
}

/* EV[31:16] are the low 16 bits of the flow label (MRC 1.0, Entropy value). */
static void put_ipv6(const uint8_t *source, const uint8_t *destination, uint32_t ev,
                     uint8_t traffic_class, uint8_t next_header, size_t size, uint8_t *out) {
    put_be32(out + IPV6_WORD, 6u << 28 | (uint32_t)traffic_class << 20 | ev >> 16);
    put_be16(out + IPV6_LENGTH, (uint16_t)size);
    out[IPV6_NEXT_HEADER] = next_header;
    out[IPV6_HOP_LIMIT] = HOP_LIMIT;
    memcpy(out + IPV6_SOURCE, source, 16);
    memcpy(out + IPV6_DESTINATION, destination, 16);
}

static bool has_srh(const struct flow *flow) {
    return flow->has_srh || flow->next_carrier.version != 0;
}

/* With one segment left it is a reduced one: the first stands in the header alone (RFC 8754). */
static void put_srh(const struct flow *flow, uint8_t *out) {
    bool is_left = flow->next_carrier.version != 0;

    memset(out, 0, ENCAP_SRH_SIZE);
    out[SRH_NEXT_HEADER] = PROTOCOL_IPV6;
    out[SRH_LENGTH] = ENCAP_SRH_SIZE / 8 - 1;
    out[SRH_TYPE] = SRH_TYPE_SEGMENT_ROUTING;
    out[SRH_SEGMENTS_LEFT] = is_left;
    memcpy(out + SRH_SEGMENTS, is_left ? flow->next_carrier.bytes : flow->carrier.bytes, 16);
}

/* What stands in front of the inner IPv6 header; returns its bytes. The flow label is the inner
 * one's, so that equipment that hashes it keeps a path's packets together. */
static size_t put_outer(const struct flow *flow, uint32_t ev, uint8_t traffic_class,
                        size_t udp_size, uint8_t *out) {
    size_t size = has_srh(flow) ? ENCAP_SRH_SIZE : 0;

    put_ipv6(flow->source.bytes, flow->carrier.bytes, ev, traffic_class,
             size > 0 ? PROTOCOL_ROUTING : PROTOCOL_IPV6, size + ENCAP_IPV6_SIZE + udp_size,
             out);
    if (size > 0)
        put_srh(flow, out + ENCAP_IPV6_SIZE);
    return ENCAP_IPV6_SIZE + size;
}

/* Sum over the pseudo-header: what the kernel completes to a checksum when it cuts the frame. */
static uint16_t pseudo_sum(const struct flow *flow, size_t size) {
    size_t length = address_size(flow->source.version);
    uint32_t sum = PROTOCOL_UDP + (uint32_t)size;

    sum = sum_words(sum, flow->source.bytes, length);
    return fold_sum(sum_words(sum, flow->destination.bytes, length));
}

size_t encap_put(const struct flow *flow, uint32_t ev, uint8_t dscp, uint8_t ecn,
                 size_t udp_payload_size, unsigned segment_count, uint8_t *headers) {
    uint8_t traffic_class = (uint8_t)(dscp << 2 | (ecn & 3));
    size_t udp_size = ENCAP_UDP_SIZE + udp_payload_size;
    uint8_t *ip = headers + ENCAP_ETHERNET_SIZE;
    uint8_t *udp;

    memcpy(headers + ETHERNET_DESTINATION, flow->destination_mac, 6);
    memcpy(headers + ETHERNET_SOURCE, flow->source_mac, 6);
    if (flow->source.version == 4) {
        put_be16(headers + ETHERNET_TYPE, ETHERNET_TYPE_IPV4);
        put_ipv4(flow, traffic_class, udp_size, ip);
        udp = ip + ENCAP_IPV4_SIZE;
    } else {
        put_be16(headers + ETHERNET_TYPE, ETHERNET_TYPE_IPV6);
        if (flow->carrier.version != 0)
            ip += put_outer(flow, ev, traffic_class, udp_size, ip);
        put_ipv6(flow->source.bytes, flow->destination.bytes, ev, traffic_class, PROTOCOL_UDP,
                 udp_size, ip);
        udp = ip + ENCAP_IPV6_SIZE;
    }
    put_be16(udp + UDP_SOURCE, (uint16_t)ev);
    put_be16(udp + UDP_DESTINATION, flow->udp_port);
    put_be16(udp + UDP_LENGTH, (uint16_t)udp_size);
    put_be16(udp + UDP_CHECKSUM, segment_count > 1 ? pseudo_sum(flow, udp_size) : 0);
    return (size_t)(udp + ENCAP_UDP_SIZE - headers);
}

/* ---- Reading ---- */

/* What is left to read, and how much of it the last length field promised: never less than size,
 * but 0 before the first length. More is promised than is there when a packet was trimmed or
 * cut. */
struct rest {
    const uint8_t *data;
    size_t size;
    size_t promised;
};

static void advance(struct rest *rest, size_t header_size, size_t promised) {
    rest->data += header_size;
    rest->size -= header_size;
    rest->promised = promised;
    if (rest->size > promised)
        rest->size = promised;
}

static void get_address(const uint8_t *in, uint8_t version, struct address *address) {
    memset(address, 0, sizeof *address);
    address->version = version;
    memcpy(address->bytes, in, address_size(version));
}

static enum encap_error get_ipv4(struct rest *rest, struct encap *encap) {
    const uint8_t *ip = rest->data;
    size_t length;

    if (rest->size < ENCAP_IPV4_SIZE)
        return ENCAP_ERROR_SHORT;
    if (ip[IPV4_VERSION] != 0x45 || ip[IPV4_PROTOCOL] != PROTOCOL_UDP ||
        (get_be16(ip + IPV4_FRAGMENT) & IPV4_FRAGMENT_MASK) != 0)
        return ENCAP_ERROR_PROTOCOL;
    length = get_be16(ip + IPV4_LENGTH);
    if (length < ENCAP_IPV4_SIZE)
        return ENCAP_ERROR_LENGTH;
    get_address(ip + IPV4_SOURCE, 4, &encap->source);
    get_address(ip + IPV4_DESTINATION, 4, &encap->destination);
    encap->dscp = ip[IPV4_TOS] >> 2;
    encap->ecn = ip[IPV4_TOS] & 3;
    encap->ev = 0;
    encap->ip = ip;
    advance(rest, ENCAP_IPV4_SIZE, length - ENCAP_IPV4_SIZE);
    return ENCAP_OK;
}

/* Reads one IPv6 header, which next_header must follow. */
static enum encap_error get_ipv6(struct rest *rest, uint8_t next_header, struct encap *encap) {
    const uint8_t *ip = rest->data;
    uint32_t word;
    size_t length;

    if (rest->size < ENCAP_IPV6_SIZE)
        return ENCAP_ERROR_SHORT;
    if (ip[0] >> 4 != 6 || ip[IPV6_NEXT_HEADER] != next_header)
        return ENCAP_ERROR_PROTOCOL;
    length = get_be16(ip + IPV6_LENGTH);
    if (ENCAP_IPV6_SIZE + length < rest->promised)
        return ENCAP_ERROR_LENGTH;
    word = get_be32(ip + IPV6_WORD);
    get_address(ip + IPV6_SOURCE, 6, &encap->source);
    get_address(ip + IPV6_DESTINATION, 6, &encap->destination);
    encap->dscp = word >> 22 & 0x3F;
    encap->ecn = word >> 20 & 3;
    encap->ev = word << 16;
    encap->ip = ip;
    advance(rest, ENCAP_IPV6_SIZE, length);
    return ENCAP_OK;
}

/* An SRH with segments left is for a router, not for us (RFC 8754 section 4.3.1). */
static enum encap_error get_srh(struct rest *rest) {
    const uint8_t *srh = rest->data;
    size_t size;

    if (rest->size < SRH_SEGMENTS)
        return ENCAP_ERROR_SHORT;
    if (srh[SRH_NEXT_HEADER] != PROTOCOL_IPV6 || srh[SRH_TYPE] != SRH_TYPE_SEGMENT_ROUTING ||
        srh[SRH_SEGMENTS_LEFT] != 0)
        return ENCAP_ERROR_PROTOCOL;
    size = (srh[SRH_LENGTH] + 1u) * 8;
    if (size > rest->promised)
        return ENCAP_ERROR_LENGTH;
    if (size > rest->size)
        return ENCAP_ERROR_SHORT;
    advance(rest, size, rest->promised - size);
    return ENCAP_OK;
}

/* SRv6: the DSCP is the outer header's, a CE mark of either counts (RFC 6040). */
static enum encap_error get_ipv6_in_ipv6(struct rest *rest, struct encap *encap) {
    bool has_srh = rest->data[IPV6_NEXT_HEADER] == PROTOCOL_ROUTING;
    enum encap_error error = get_ipv6(rest, has_srh ? PROTOCOL_ROUTING : PROTOCOL_IPV6, encap);
    uint8_t dscp = encap->dscp;
    uint8_t ecn = encap->ecn;

    if (error == ENCAP_OK && has_srh)
        error = get_srh(rest);
    if (error != ENCAP_OK)
        return error;
    encap->has_srh = has_srh;
    encap->carrier = encap->destination;
    error = get_ipv6(rest, PROTOCOL_UDP, encap);
    encap->dscp = dscp;
    if (ecn == ENCAP_ECN_CE)
        encap->ecn = ENCAP_ECN_CE;
    return error;
}

static enum encap_error get_udp(struct rest *rest, struct encap *encap) {
    const uint8_t *udp = rest->data;
    size_t length;

    if (rest->size < ENCAP_UDP_SIZE)
        return ENCAP_ERROR_SHORT;
    length = get_be16(udp + UDP_LENGTH);
    if (length < ENCAP_UDP_SIZE || length < rest->promised)
        return ENCAP_ERROR_LENGTH;
    encap->ev |= get_be16(udp + UDP_SOURCE);
    encap->udp_port = get_be16(udp + UDP_DESTINATION);
    encap->segments = udp + ENCAP_UDP_SIZE;
    encap->segments_size = rest->size - ENCAP_UDP_SIZE;
    encap->cut = rest->size < length;
    return ENCAP_OK;
}

enum encap_error encap_get_ip(const uint8_t *data, size_t size, struct encap *encap) {
    struct rest rest = {data, size, 0};
    enum encap_error error;

    memset(encap, 0, sizeof *encap);
    if (size == 0)
        return ENCAP_ERROR_SHORT;
    if (data[0] >> 4 == 4)
        error = get_ipv4(&rest, encap);
    else if (size > IPV6_NEXT_HEADER && (data[IPV6_NEXT_HEADER] == PROTOCOL_IPV6 ||
                                         data[IPV6_NEXT_HEADER] == PROTOCOL_ROUTING))
        error = get_ipv6_in_ipv6(&rest, encap);
    else
        error = get_ipv6(&rest, PROTOCOL_UDP, encap);
    return error == ENCAP_OK ? get_udp(&rest, encap) : error;
}

enum encap_error encap_get(const uint8_t *data, size_t size, struct encap *encap) {
    enum encap_error error;
    unsigned type;

    if (size < ENCAP_ETHERNET_SIZE + 1)
        return ENCAP_ERROR_SHORT;
    type = get_be16(data + ETHERNET_TYPE);
    if (type != (data[ENCAP_ETHERNET_SIZE] >> 4 == 4 ? ETHERNET_TYPE_IPV4 : ETHERNET_TYPE_IPV6))
        return ENCAP_ERROR_PROTOCOL;
    error = encap_get_ip(data + ENCAP_ETHERNET_SIZE, size - ENCAP_ETHERNET_SIZE, encap);
    memcpy(encap->source_mac, data + ETHERNET_SOURCE, 6);
    return error;
}

/* ---- ICRC ---- */

/* Lengths are the cut packet's own, masked fields are ones (MRC 1.0, ICRC). */
uint32_t encap_icrc_start(const struct icrc *icrc, const uint8_t *ip, unsigned index,
                          size_t transport_size) {
    uint8_t masked[ENCAP_IPV6_SIZE + ENCAP_UDP_SIZE];
    uint16_t udp_size = (uint16_t)(ENCAP_UDP_SIZE + transport_size);
    size_t ip_size = ip[0] >> 4 == 4 ? ENCAP_IPV4_SIZE : ENCAP_IPV6_SIZE;

    memcpy(masked, ip, ip_size + ENCAP_UDP_SIZE);
    if (ip_size == ENCAP_IPV4_SIZE) {
        masked[IPV4_TOS] = 0xFF;
        put_be16(masked + IPV4_LENGTH, (uint16_t)(ENCAP_IPV4_SIZE + udp_size));
        put_be16(masked + IPV4_ID, (uint16_t)(get_be16(ip + IPV4_ID) + index));
        masked[IPV4_TTL] = 0xFF;
        put_be16(masked + IPV4_CHECKSUM, 0xFFFF);
    } else {
        put_be32(masked + IPV6_WORD, 0x6FFFFFFF);
        put_be16(masked + IPV6_LENGTH, udp_size);
        masked[IPV6_HOP_LIMIT] = 0xFF;
    }
    put_be16(masked + ip_size + UDP_LENGTH, udp_size);
    put_be16(masked + ip_size + UDP_CHECKSUM, 0xFFFF);
    return icrc->update(ICRC_AFTER_ROUTE_HEADER, masked, ip_size + ENCAP_UDP_SIZE);
}
