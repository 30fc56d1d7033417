/* SPDX-License-Identifier: Apache-2.0 */
#include "frame.h"

#include <string.h>

#include "bytes.h"

enum {
    ETHERNET_SIZE = 14,
    ETHERTYPE_AT = 12,
    IPV4_SIZE = 20,
    IPV4_TTL = 8,
    IPV4_PROTOCOL = 9,
    IPV4_CHECKSUM = 10,
    IPV6_SIZE = 40,
    IPV6_NEXT = 6,
    IPV6_HOP_LIMIT = 7,
    UDP_SIZE = 8,
    BTH_SIZE = 12,
    BTH_FLAGS = 8,
    BTH_RTX = 0x20,
    BTH_TS = 0x10,
    BTH_RESERVED = 4, /* the ICRC does not cover it */
    SRH_LEFT = 3,
    SRH_SEGMENTS = 8,
    PROTOCOL_TCP = 6,
    PORTS_SIZE = 4,
    PROTOCOL_UDP = 17,
    PROTOCOL_IPV6 = 41,
    PROTOCOL_ROUTING = 43,
    WRITE_FIRST = 0xC6, /* the six writes */
    WRITE_LAST = 0xCB,
    IDENTITY_BYTES = 48, /* of what is not a write */
};

static uint64_t mix_bytes(uint64_t hash, const uint8_t *bytes, uint32_t size) {
    for (uint32_t i = 0; i < size; i += 4) {
        uint32_t word = 0;

        for (uint32_t j = i; j < size && j < i + 4; j++)
            word = word << 8 | bytes[j];
        hash = frame_mix(hash, word);
    }
    return hash;
}

static bool is_write(uint8_t opcode) { return opcode >= WRITE_FIRST && opcode <= WRITE_LAST; }

/* What one IP header says. */
struct header {
    uint8_t protocol;
    uint32_t size; /* with an SRH behind it */
};

static bool read_header(const struct fabric_packet *packet, uint32_t at, struct header *header) {
    const uint8_t *ip = packet->frame + at;

    if (at >= packet->present)
        return false;
    if (ip[0] >> 4 == 4) {
        header->size = (ip[0] & 15u) * 4u;
        if (header->size < IPV4_SIZE || at + header->size > packet->present)
            return false;
        header->protocol = ip[IPV4_PROTOCOL];
        return true;
    }
    header->size = IPV6_SIZE;
    if (ip[0] >> 4 != 6 || at + IPV6_SIZE > packet->present)
        return false;
    header->protocol = ip[IPV6_NEXT];
    if (header->protocol == PROTOCOL_ROUTING) {
        if (at + IPV6_SIZE + SRH_SEGMENTS > packet->present)
            return false;
        header->protocol = ip[IPV6_SIZE];
        header->size += 8u + 8u * ip[IPV6_SIZE + 1];
    }
    return at + header->size <= packet->present;
}

/* Whether the EtherType is the IP header's version. */
static bool is_ip(const struct fabric_packet *packet) {
    uint16_t type;

    if (packet->present < ETHERNET_SIZE + IPV4_SIZE)
        return false;
    type = get_be16(packet->frame + ETHERTYPE_AT);
    return (type == 0x0800 && packet->frame[ETHERNET_SIZE] >> 4 == 4) ||
           (type == 0x86DD && packet->frame[ETHERNET_SIZE] >> 4 == 6);
}

/* Hash of the inner addresses. */
static uint64_t addresses(const struct fabric_packet *packet) {
    const uint8_t *ip = packet->frame + packet->inner_at;

    return ip[0] >> 4 == 4 ? mix_bytes(4, ip + 12, 8) : mix_bytes(6, ip + 8, 32);
}

static void identify(struct fabric_packet *packet, uint32_t l4_at) {
    const uint8_t *bth = packet->frame + packet->bth_at;
    uint64_t hash = frame_mix(addresses(packet), packet->ev);

    packet->psn = packet->bth_at ? get_be24(bth + 9) : 0;
    if (packet->bth_at && is_write(bth[0])) {
        /* Without what tells the time, as the time stamp, or the load, as the A bit. */
        hash = frame_mix(hash, (uint64_t)get_be24(bth + 5) << 32 | bth[0]);
        packet->identity = frame_mix(hash, (uint64_t)packet->psn << 8 | (bth[BTH_FLAGS] & BTH_RTX));
        return;
    }
    uint32_t left = packet->present - l4_at;

    packet->identity =
        mix_bytes(hash, packet->frame + l4_at, left < IDENTITY_BYTES ? left : IDENTITY_BYTES);
}

bool frame_parse(struct fabric_packet *packet) {
    struct header header;
    uint32_t at = ETHERNET_SIZE;

    packet->udp_at = packet->bth_at = 0;
    packet->ev = 0;
    packet->corrupt = false;
    if (!is_ip(packet) || !read_header(packet, at, &header))
        return false;
    packet->inner_at = ETHERNET_SIZE;
    packet->destination_at = packet->frame[at] >> 4 == 6 ? ETHERNET_SIZE + 24 : ETHERNET_SIZE + 16;
    at += header.size;
    if (header.protocol == PROTOCOL_IPV6) {
        packet->inner_at = (uint16_t)at;
        if (!read_header(packet, at, &header))
            return false;
        at += header.size;
    }
    if (header.protocol == PROTOCOL_UDP && at + UDP_SIZE <= packet->present) {
        packet->udp_at = (uint16_t)at;
        packet->ev = get_be16(packet->frame + at);
        if (packet->frame[packet->inner_at] >> 4 == 6)
            packet->ev |= (uint32_t)get_be16(packet->frame + packet->inner_at + 2) << 16;
        if (at + UDP_SIZE + BTH_SIZE <= packet->present)
            packet->bth_at = (uint16_t)(at + UDP_SIZE);
    }
    packet->flow = frame_mix(addresses(packet), packet->ev);
    if (header.protocol == PROTOCOL_TCP && at + PORTS_SIZE <= packet->present)
        packet->flow = frame_mix(packet->flow, get_be32(packet->frame + at));
    identify(packet, at);
    return true;
}

static bool is_ipv4(const struct fabric_packet *packet) {
    return packet->frame[ETHERNET_SIZE] >> 4 == 4;
}

static uint8_t traffic_class(const struct fabric_packet *packet) {
    const uint8_t *ip = packet->frame + ETHERNET_SIZE;

    return is_ipv4(packet) ? ip[1] : (uint8_t)(get_be16(ip) >> 4);
}

/* The header checksum (RFC 1071) anew. */
static void sum_ipv4(uint8_t *ip) {
    uint32_t sum = 0;

    put_be16(ip + IPV4_CHECKSUM, 0);
    for (uint32_t i = 0; i < (ip[0] & 15u) * 4u; i += 2)
        sum += get_be16(ip + i);
    sum = (sum & 0xFFFF) + (sum >> 16);
    put_be16(ip + IPV4_CHECKSUM, (uint16_t)~(sum + (sum >> 16)));
}

static void set_traffic_class(struct fabric_packet *packet, uint8_t class) {
    uint8_t *ip = packet->frame + ETHERNET_SIZE;

    if (is_ipv4(packet)) {
        ip[1] = class;
        sum_ipv4(ip);
    } else {
        put_be16(ip, (uint16_t)((get_be16(ip) & 0xF00F) | class << 4));
    }
}

uint8_t frame_dscp(const struct fabric_packet *packet) { return traffic_class(packet) >> 2; }

bool frame_mark(struct fabric_packet *packet) {
    uint8_t class = traffic_class(packet);

    if ((class & 3) == 0)
        return false;
    set_traffic_class(packet, class | 3);
    return true;
}

bool frame_age(struct fabric_packet *packet) {
    uint8_t *ip = packet->frame + ETHERNET_SIZE;
    uint8_t *limit = ip + (is_ipv4(packet) ? IPV4_TTL : IPV6_HOP_LIMIT);

    if (*limit <= 1)
        return false;
    --*limit;
    if (is_ipv4(packet))
        sum_ipv4(ip);
    return true;
}

void frame_destination(const struct fabric_packet *packet, uint8_t address[16]) {
    const uint8_t *at = packet->frame + packet->destination_at;

    if (!is_ipv4(packet)) {
        memcpy(address, at, 16);
        return;
    }
    memset(address, 0, 10);
    address[10] = address[11] = 0xFF;
    memcpy(address + 12, at, 4);
}

/* RFC 8754, 4.3.1.1: the next segment becomes the destination. */
static bool next_segment(struct fabric_packet *packet) {
    uint8_t *ip = packet->frame + ETHERNET_SIZE;
    uint8_t *srh = ip + IPV6_SIZE;

    if (ip[IPV6_NEXT] != PROTOCOL_ROUTING || srh[SRH_LEFT] == 0 || srh[SRH_LEFT] * 2 > srh[1])
        return false;
    srh[SRH_LEFT]--;
    memcpy(ip + 24, srh + SRH_SEGMENTS + 16 * srh[SRH_LEFT], 16);
    return true;
}

bool frame_shift(struct fabric_packet *packet, uint8_t block_size) {
    uint8_t *address = packet->frame + packet->destination_at;

    if (address[block_size + 2] == 0 && address[block_size + 3] == 0)
        return next_segment(packet);
    memmove(address + block_size, address + block_size + 2, 14u - block_size);
    put_be16(address + 14, 0);
    return true;
}

/* The lengths of the IP headers at `at` and inside it, for a frame of `size` bytes. */
static void set_ip_length(struct fabric_packet *packet, uint32_t at, uint32_t size) {
    uint8_t *ip = packet->frame + at;

    if (ip[0] >> 4 == 4) {
        put_be16(ip + 2, (uint16_t)(size - at));
        sum_ipv4(ip);
    } else {
        put_be16(ip + 4, (uint16_t)(size - at - IPV6_SIZE));
    }
}

bool frame_trim(struct fabric_packet *packet, uint8_t dscp) {
    const uint8_t *bth = packet->frame + packet->bth_at;
    uint32_t size;

    if (packet->bth_at == 0 || !is_write(bth[0]))
        return false;
    /* BTH METH [TSETH] RETH; the UDP header keeps telling the length that was. */
    size = packet->bth_at + BTH_SIZE + 4u + (bth[BTH_FLAGS] & BTH_TS ? 4u : 0u) + 16u;
    if (size >= packet->size || size > packet->present)
        return false;
    packet->size = packet->present = size;
    set_ip_length(packet, ETHERNET_SIZE, size);
    if (packet->inner_at != ETHERNET_SIZE)
        set_ip_length(packet, packet->inner_at, size);
    set_traffic_class(packet, (uint8_t)(dscp << 2 | (traffic_class(packet) & 3)));
    return true;
}

void frame_corrupt(struct fabric_packet *packet, uint32_t draw) {
    /* What is not MRC has a checksum that covers its last byte. */
    uint32_t first = packet->bth_at ? packet->bth_at : packet->size - 1;
    uint32_t at = first + (draw >> 3) % (packet->size - first);

    packet->corrupt = true;
    if (packet->bth_at && at == first + BTH_RESERVED)
        at++;
    if (at < packet->present)
        packet->frame[at] ^= (uint8_t)(1u << (draw & 7));
}

uint64_t frame_run(const struct fabric_packet *packet) {
    const uint8_t *bth = packet->frame + packet->bth_at;
    uint64_t kind = packet->identity;

    if (is_write(bth[0]))
        kind = (uint64_t)(bth[BTH_FLAGS] & BTH_RTX) << 32;
    return frame_mix(addresses(packet), kind ^ get_be24(bth + 5));
}
