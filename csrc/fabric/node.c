/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "bytes.h"
#include "frame.h"
#include "state.h"

/* Whether the destination's first uSID is this switch's. */
static bool is_own(const struct fabric *fabric, const struct node *node,
                   const struct fabric_packet *packet) {
    uint8_t address[16];
    uint8_t size = fabric->config.block_size;

    if (!node->config.has_usid)
        return false;
    frame_destination(packet, address);
    return memcmp(address, fabric->config.block, size) == 0 &&
           get_be16(address + size) == node->config.usid;
}

static void forward(struct fabric *fabric, uint32_t ingress, struct fabric_packet *packet,
                    int64_t now) {
    struct port *port = &fabric->ports[ingress];
    const struct node *node = &fabric->nodes[port->config.node];
    uint32_t egress;

    if (!frame_age(packet)) {
        fabric_drop_packet(fabric, port, packet, FABRIC_DROP_HOP_LIMIT);
        return;
    }
    if ((is_own(fabric, node, packet) && !frame_shift(packet, fabric->config.block_size)) ||
        !route_find(fabric, port->config.node, packet, &egress)) {
        fabric_drop_packet(fabric, port, packet, FABRIC_DROP_NO_ROUTE);
        return;
    }
    port_enqueue(fabric, egress, packet, now);
}

void node_receive(struct fabric *fabric, uint32_t index, struct fabric_packet *packet,
                  int64_t now) {
    struct port *port = &fabric->ports[index];
    const struct node *node = &fabric->nodes[port->config.node];

    port->counters.received++;
    port->counters.received_bytes += packet->size;
    if (!node->config.is_switch) {
        packet->due = now;
        packet->next = NULL;
        packet->identity = index; /* its own is of no more use: for fabric_poll */
        list_push(&fabric->delivered, packet);
    } else if (node->silent) {
        fabric_drop_packet(fabric, port, packet, FABRIC_DROP_SILENT);
    } else {
        forward(fabric, index, packet, now);
    }
}
