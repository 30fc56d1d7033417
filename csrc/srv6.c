/* SPDX-License-Identifier: Apache-2.0 */
#include "srv6.h"

#include <string.h>

#include "bytes.h"

enum { ADDRESS_SIZE = 16, UPLINKS_MAX = 1 << 12, PLANE_SHIFT = 12 };

static uint32_t usid(const mrc_srv6_template *path, uint32_t hop, uint32_t plane,
                     uint32_t uplink) {
    return path->usids[hop] + plane * path->plane_stride + (hop == path->uplink_hop ? uplink : 0);
}

bool srv6_is_valid(const mrc_srv6_template *path, uint32_t planes) {
    uint32_t room;

    if (path->block_size == 0)
        return true;
    if (path->block_size >= ADDRESS_SIZE || planes == 0 || planes > MRC_PLANES)
        return false;
    room = ((uint32_t)ADDRESS_SIZE - path->block_size) / SRV6_USID_SIZE;
    if (path->usid_count == 0 || path->usid_count > MRC_SRV6_USIDS || path->usid_count > room ||
        path->uplinks == 0 || path->uplinks > UPLINKS_MAX)
        return false;
    for (uint32_t hop = 0; hop < path->usid_count; hop++) {
        if (path->usids[hop] == 0 || usid(path, hop, planes - 1, path->uplinks - 1u) > UINT16_MAX)
            return false;
    }
    return true;
}

void srv6_address(const mrc_srv6_template *path, uint32_t ev, uint8_t address[16]) {
    uint32_t plane = ev >> PLANE_SHIFT & (MRC_PLANES - 1);
    uint32_t uplink = (ev & (UPLINKS_MAX - 1)) % path->uplinks;
    uint8_t *out = address + path->block_size;

    memset(address, 0, ADDRESS_SIZE);
    memcpy(address, path->block, path->block_size);
    for (uint32_t hop = 0; hop < path->usid_count; hop++, out += SRV6_USID_SIZE)
        put_be16(out, (uint16_t)usid(path, hop, plane, uplink));
}

bool srv6_ev(const mrc_srv6_template *path, const uint8_t address[16], uint32_t *ev) {
    uint8_t again[ADDRESS_SIZE];

    /* With a plane supposed, the uSID of the uplink hop tells the uplink; writing the address again
     * checks all the rest. */
    for (uint32_t plane = 0; plane < MRC_PLANES; plane++) {
        uint32_t uplink = 0;

        if (path->uplink_hop < path->usid_count) {
            const uint8_t *at = address + path->block_size + SRV6_USID_SIZE * path->uplink_hop;

            uplink = get_be16(at) - usid(path, path->uplink_hop, plane, 0);
        }
        if (uplink >= path->uplinks)
            continue;
        srv6_address(path, plane << PLANE_SHIFT | uplink, again);
        if (memcmp(address, again, sizeof again) == 0) {
            *ev = plane << PLANE_SHIFT | uplink;
            return true;
        }
    }
    return false;
}

int srv6_usids(const uint8_t address[16], uint32_t block_size, uint16_t usids[MRC_SRV6_USIDS]) {
    uint32_t at = block_size;
    int count = 0;

    if (block_size == 0 || block_size >= ADDRESS_SIZE)
        return -1;
    for (; at + SRV6_USID_SIZE <= ADDRESS_SIZE && get_be16(address + at) != 0;
         at += SRV6_USID_SIZE) {
        if (count == MRC_SRV6_USIDS)
            return -1;
        usids[count++] = get_be16(address + at);
    }
    for (; at < ADDRESS_SIZE; at++) {
        if (address[at] != 0)
            return -1;
    }
    return count;
}
