/* SPDX-License-Identifier: Apache-2.0 */
/* Mutations: bits, bytes, lengths, cuts, growth; one to four at once. See fuzz_wire.h. */
#include "fuzz_wire.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "encap.h"
#include "mrc_wire.h"
#include "wire.h"

enum { GROWTH_MAX = 64, TRIM_DSCPS = 1 << 12 | 1 << 16 };

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

int fuzz_wire(const uint8_t *packet, size_t size, uint64_t seed, uint64_t count,
              struct fuzz_wire *result) {
    uint8_t *work = malloc(size + 4 * GROWTH_MAX);

    if (work == NULL)
        return -1;
    for (uint64_t i = 0; i < count; i++) {
        unsigned times = 1 + draw(&seed) % 4;
        size_t length = size;
        uint8_t *exact;

        memcpy(work, packet, size);
        while (times-- > 0)
            length = mutate(work, length, &seed);
        exact = malloc(length > 0 ? length : 1);
        if (exact == NULL) {
            free(work);
            return -1;
        }
        memcpy(exact, work, length);
        read_all(exact, length, result);
        free(exact);
    }
    free(work);
    return 0;
}
