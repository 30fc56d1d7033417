/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "frame.h"
#include "state.h"

static int compare(const struct fabric_route *a, const struct fabric_route *b) {
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    if (a->prefix_size != b->prefix_size)
        return a->prefix_size < b->prefix_size ? -1 : 1;
    return memcmp(a->prefix, b->prefix, a->prefix_size);
}

static void sift(struct fabric_route *routes, uint32_t root, uint32_t count) {
    for (;;) {
        uint32_t child = 2 * root + 1;
        struct fabric_route swapped;

        if (child >= count)
            return;
        if (child + 1 < count && compare(&routes[child], &routes[child + 1]) < 0)
            child++;
        if (compare(&routes[root], &routes[child]) >= 0)
            return;
        swapped = routes[root];
        routes[root] = routes[child];
        routes[child] = swapped;
        root = child;
    }
}

/* Heap sort: the C library's may allocate. */
void route_sort(struct fabric *fabric) {
    struct fabric_route *routes = fabric->routes;
    uint32_t count = fabric->config.route_count;

    for (uint32_t i = count / 2; i-- > 0;)
        sift(routes, i, count);
    for (uint32_t end = count; end-- > 1;) {
        struct fabric_route last = routes[end];

        routes[end] = routes[0];
        routes[0] = last;
        sift(routes, 0, end);
    }
}

static const struct fabric_route *search(const struct fabric *fabric,
                                         const struct fabric_route *wanted) {
    uint32_t low = 0;
    uint32_t high = fabric->config.route_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare(&fabric->routes[middle], wanted);

        if (order == 0)
            return &fabric->routes[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

bool route_find(const struct fabric *fabric, uint32_t node, const struct fabric_packet *packet,
                uint32_t *port) {
    const struct fabric_node_config *config = &fabric->nodes[node].config;
    struct fabric_route wanted = {.node = node, .prefix_size = 16};
    const struct fabric_route *route;
    uint32_t choice = 0;

    frame_destination(packet, wanted.prefix);
    route = search(fabric, &wanted);
    if (route == NULL) {
        wanted.prefix_size = (uint8_t)(fabric->config.block_size + 2);
        route = search(fabric, &wanted);
    }
    if (route == NULL)
        return false;
    if (route->count > 1 && config->ev_width > 0 && packet->udp_at != 0)
        choice = (packet->ev >> config->ev_shift) & ((1u << config->ev_width) - 1);
    else if (route->count > 1)
        /* Salted with the switch, or all tiers would take the same decision. */
        choice = (uint32_t)(frame_mix(packet->flow, node) % route->count);
    if (choice >= route->count)
        return false;
    *port = fabric->choices[route->first + choice];
    return true;
}
