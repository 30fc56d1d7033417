/* SPDX-License-Identifier: Apache-2.0 */
/* Mutations: bits, bytes, lengths, cuts, growth; one to four at once. See fuzz_wire.h. */
#include "fuzz_wire.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "encap.h"
#include "icrc.h"
#include "mrc_wire.h"
#include "wire.h"

enum { MUTATIONS_MAX = 4, GROWTH_MAX = 64, TRIM_DSCPS = 1 << 12 | 1 << 16 };

/* splitmix64. */
static uint64_t draw(uint64_t *seed) {
    uint64_t z = *seed += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Changes data, which has room for size + GROWTH_MAX; returns the new size. */
static size_t mutate(uint8_t *data, size_t size, uint64_t *seed) {
    static const uint8_t edges[] = {0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF, 0x45, 0x60};
    uint64_t r = draw(seed);
    size_t at = size > 0 ? (r >> 16) % size : 0;
    size_t header = size > 0 ? (r >> 16) % (size < 80 ? size : 80) : 0;

    if (size == 0)
        return 0;
    switch (r % 8) {
    case 0: data[at] ^= (uint8_t)(1u << (r >> 8 & 7)); break;
    case 1: data[header] ^= (uint8_t)(1u << (r >> 8 & 7)); break;
    case 2: data[header] = (uint8_t)(r >> 8); break;
    case 3: data[header] = edges[r >> 8 & 7]; break;
    case 4: return at;
    case 5: /* DSCP of a trimmed packet, then most often a cut */
        if (data[0] >> 4 == 4)
            data[1] = (uint8_t)(12 << 2);
        else
            data[0] = 0x63, data[1] = (uint8_t)(data[1] & 0x0F);
        return r & 0x300 ? at : size;
    case 6: /* a length field */
        data[data[0] >> 4 == 4 ? 3 : 5] = (uint8_t)(r >> 8);
        break;
    default:
        for (size_t i = 0; i < GROWTH_MAX; i++)
            data[size + i] = (uint8_t)draw(seed);
        return size + (r >> 8) % GROWTH_MAX;
    }
    return size;
}

/* Makes the length fields say what is there. */
static void repair_lengths(uint8_t *data, size_t size) {
    size_t ip_size = data[0] >> 4 == 4 ? ENCAP_IPV4_SIZE : ENCAP_IPV6_SIZE;

    if (size < ip_size + ENCAP_UDP_SIZE)
        return;
    if (ip_size == ENCAP_IPV4_SIZE)
        put_be16(data + 2, (uint16_t)size);
    else
        put_be16(data + 4, (uint16_t)(size - ip_size));
    put_be16(data + ip_size + 4, (uint16_t)(size - ip_size));
}

static void repair_icrc(const struct icrc *icrc, uint8_t *data, size_t size) {
    struct encap encap;
    uint8_t *bth;
    uint32_t state;

    if (encap_get_ip(data, size, &encap) != ENCAP_OK || encap.cut ||
        encap.segments_size < WIRE_BTH_SIZE + WIRE_ICRC_SIZE)
        return;
    bth = data + (encap.segments - data);
    size = encap.segments_size - WIRE_ICRC_SIZE;
    state = icrc_bth(icrc, encap_icrc_start(icrc, encap.ip, 0, encap.segments_size), bth);
    icrc_store(icrc->update(state, bth + WIRE_BTH_SIZE, size - WIRE_BTH_SIZE), bth + size);
}

/* Whether what wire_get read lies inside the data and is written back as it was, but for reserved
 * bits, which read as zero. */
static bool packet_is_sound(const uint8_t *data, size_t size, bool trimmed,
                            const struct packet *packet) {
    uint8_t headers[WIRE_HEADERS_MAX];
    size_t headers_size = wire_put(packet, headers);
    struct packet again;

    if (packet->payload_size > 0 &&
        (packet->payload < data ||
         packet->payload_size > size - (size_t)(packet->payload - data) - WIRE_ICRC_SIZE))
        return false;
    for (size_t i = 0; i < headers_size && i < size; i++)
        if ((headers[i] & ~data[i]) != 0 && !(trimmed && i == 1))
            return false;
    return wire_get(headers, headers_size, true, &again) == WIRE_OK || !wire_is_write(headers[0]);
}

/* Whether an encoded packet decodes to the same members. */
static bool wire_is_sound(const mrc_wire *wire) {
    static uint8_t out[1 << 16];
    mrc_wire again;
    int size = mrc_wire_encode(wire, out, sizeof out);

    if (size < 0 || mrc_wire_decode(out, (size_t)size, TRIM_DSCPS, &again) != MRC_WIRE_OK)
        return false;
    if (wire->payload_size > 0 && memcmp(wire->payload, again.payload, wire->payload_size) != 0)
        return false;
    again.payload = wire->payload;
    return memcmp(wire, &again, sizeof again) == 0;
}

static void read_all(const uint8_t *data, size_t size, struct fuzz_wire *result) {
    struct encap encap;
    struct packet packet;
    mrc_wire wire;

    (void)encap_get(data, size, &encap);
    if (encap_get_ip(data, size, &encap) == ENCAP_OK) {
        if (encap.segments < data || encap.segments + encap.segments_size > data + size)
            result->violations++;
        for (int trimmed = 0; trimmed < 2; trimmed++)
            if (wire_get(encap.segments, encap.segments_size, trimmed, &packet) == WIRE_OK) {
                result->parsed++;
                if (!packet_is_sound(encap.segments, encap.segments_size, trimmed, &packet))
                    result->violations++;
            }
    }
    if (mrc_wire_decode(data, size, TRIM_DSCPS, &wire) == MRC_WIRE_OK) {
        result->decoded++;
        result->violations += !wire_is_sound(&wire);
    } else {
        result->refused++;
    }
}

/* Reads a copy that ends where its memory does. */
static int read_exact(const uint8_t *data, size_t size, struct fuzz_wire *result) {
    uint8_t *exact = malloc(size > 0 ? size : 1);

    if (exact == NULL)
        return -1;
    memcpy(exact, data, size);
    read_all(exact, size, result);
    free(exact);
    return 0;
}

int fuzz_wire_cuts(const uint8_t *packet, size_t size, struct fuzz_wire *result) {
    for (size_t length = 0; length < size; length++)
        if (read_exact(packet, length, result) != 0)
            return -1;
    return 0;
}

int fuzz_wire(const uint8_t *packet, size_t size, uint64_t seed, uint64_t count,
              struct fuzz_wire *result) {
    uint8_t *work = malloc(size + MUTATIONS_MAX * GROWTH_MAX);
    struct icrc icrc;
    int status = work == NULL ? -1 : 0;

    icrc_choose(&icrc);
    for (uint64_t i = 0; i < count && status == 0; i++) {
        uint64_t r = draw(&seed);
        size_t length = size;

        memcpy(work, packet, size);
        for (unsigned times = 1 + r % MUTATIONS_MAX; times > 0; times--)
            length = mutate(work, length, &seed);
        if ((r & 0x100) != 0)
            repair_lengths(work, length);
        if ((r & 0x600) != 0)
            repair_icrc(&icrc, work, length);
        status = read_exact(work, length, result);
    }
    free(work);
    return status;
}
