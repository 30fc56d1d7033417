/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric.h"

#include <assert.h>
#include <stdalign.h>
#include <string.h>

#include "frame.h"
#include "state.h"

/* ---- Setting up ---- */

static const char *check_nodes(const struct fabric_config *config, uint32_t *index) {
    for (uint32_t i = 0; i < config->node_count; i++) {
        *index = i;
        if (config->nodes[i].ev_shift > 31 || config->nodes[i].ev_width > 16)
            return "node: its EV field is not within 32 bits, or wider than 16";
    }
    return NULL;
}

static const char *check_ports(const struct fabric_config *config, uint32_t *index) {
    for (uint32_t i = 0; i < config->port_count; i++) {
        const struct fabric_port_config *port = &config->ports[i];

        *index = i;
        if (port->node >= config->node_count)
            return "port: no such node";
        if (port->peer >= config->port_count || port->peer == i ||
            config->ports[port->peer].peer != i)
            return "port: its peer is not the other end of its link";
        if (port->rate == 0 || port->rate > 1000000000000)
            return "port: its rate is not 1 bit/s to 1 Tb/s";
        if (port->delay < 0)
            return "port: its delay is negative";
        if (port->mark_to != 0 && port->mark_to < port->mark_from)
            return "port: its ECN ramp ends before it begins";
    }
    return NULL;
}

static const char *check_routes(const struct fabric_config *config, uint32_t *index) {
    for (uint32_t i = 0; i < config->route_count; i++) {
        const struct fabric_route *route = &config->routes[i];

        *index = i;
        if (route->node >= config->node_count || !config->nodes[route->node].is_switch)
            return "route: no such switch";
        if (route->prefix_size != 16 && route->prefix_size != config->block_size + 2)
            return "route: its prefix is neither an address nor block and uSID";
        if (route->count == 0 || route->first > config->choice_count ||
            route->count > config->choice_count - route->first)
            return "route: its ports are not among the choices";
        for (uint32_t j = 0; j < route->count; j++) {
            uint32_t port = config->choices[route->first + j];

            if (port >= config->port_count || config->ports[port].node != route->node)
                return "route: one of its ports is not the switch's own";
        }
    }
    return NULL;
}

const char *fabric_check(const struct fabric_config *config, uint32_t *index) {
    const char *wrong;

    *index = 0;
    if (config->block_size != 4 && config->block_size != 6)
        return "the block of uSIDs is not 4 or 6 bytes long";
    if (config->packet_count == 0 || config->frame_size < 128 || config->frame_size > 65536)
        return "there is no room for packets of 128 to 65536 bytes";
    wrong = check_nodes(config, index);
    if (wrong == NULL)
        wrong = check_ports(config, index);
    return wrong != NULL ? wrong : check_routes(config, index);
}

/* Cuts pieces off a block of memory; with base NULL it only measures. */
struct cutter {
    uint8_t *base;
    size_t used;
};

static size_t round_up(size_t size) {
    return (size + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
}

static void *cut(struct cutter *cutter, size_t size, size_t count) {
    void *piece = cutter->base ? cutter->base + cutter->used : NULL;

    cutter->used += round_up(size * count);
    return piece;
}

static size_t packet_size(const struct fabric_config *config) {
    return round_up(sizeof(struct fabric_packet) + config->frame_size);
}

static uint32_t timer_count(const struct fabric_config *config) {
    return 2 * config->port_count + config->node_count;
}

struct pieces {
    struct fabric *fabric;
    struct port *ports;
    struct node *nodes;
    struct fabric_route *routes;
    uint32_t *choices;
    struct fabric_rule *rules;
    struct lost *lost;
    int64_t *deadlines;
    uint32_t *positions, *heap;
    void *packets;
};

static size_t cut_all(const struct fabric_config *config, void *memory, struct pieces *pieces) {
    struct cutter cutter = {memory, 0};
    uint32_t timers = timer_count(config);

    pieces->fabric = cut(&cutter, sizeof *pieces->fabric, 1);
    pieces->ports = cut(&cutter, sizeof *pieces->ports, config->port_count);
    pieces->nodes = cut(&cutter, sizeof *pieces->nodes, config->node_count);
    pieces->routes = cut(&cutter, sizeof *pieces->routes, config->route_count);
    pieces->choices = cut(&cutter, sizeof *pieces->choices, config->choice_count);
    pieces->rules = cut(&cutter, sizeof *pieces->rules, config->rule_count);
    pieces->lost = cut(&cutter, sizeof *pieces->lost, LOST_SLOTS);
    pieces->deadlines = cut(&cutter, sizeof *pieces->deadlines, timers);
    pieces->positions = cut(&cutter, sizeof *pieces->positions, timers);
    pieces->heap = cut(&cutter, sizeof *pieces->heap, timers);
    pieces->packets = cut(&cutter, packet_size(config), config->packet_count);
    return cutter.used;
}

size_t fabric_size(const struct fabric_config *config) {
    struct pieces pieces;

    return cut_all(config, NULL, &pieces);
}

static struct queue_rules rules_of(const struct fabric_port_config *config) {
    return (struct queue_rules){
        .data_limit = config->data_limit,
        .control_limit = config->control_limit,
        .mark_from = config->mark_from,
        .mark_to = config->mark_to,
        .control_weight = config->control_weight,
        .trim = config->trim,
    };
}

static void init_ports(struct fabric *fabric, const struct fabric_config *config) {
    for (uint32_t i = 0; i < config->node_count; i++)
        fabric->nodes[i] = (struct node){.config = config->nodes[i]};
    for (uint32_t i = 0; i < config->port_count; i++) {
        uint32_t next = config->ports[config->ports[i].peer].node;

        fabric->ports[i] = (struct port){
            .config = config->ports[i],
            .rules = rules_of(&config->ports[i]),
            .to_host = !config->nodes[next].is_switch,
            .is_up = true,
        };
    }
}

struct fabric *fabric_init(const struct fabric_config *config, void *memory) {
    struct pieces pieces;
    struct fabric *fabric;

    cut_all(config, memory, &pieces);
    fabric = pieces.fabric;
    *fabric = (struct fabric){
        .config = *config,
        .ports = pieces.ports,
        .nodes = pieces.nodes,
        .routes = pieces.routes,
        .choices = pieces.choices,
        .rules = pieces.rules,
        .lost = pieces.lost,
    };
    init_ports(fabric, config);
    for (uint32_t i = 0; i < config->route_count; i++)
        fabric->routes[i] = config->routes[i];
    for (uint32_t i = 0; i < config->choice_count; i++)
        fabric->choices[i] = config->choices[i];
    for (uint32_t i = 0; i < LOST_SLOTS; i++)
        fabric->lost[i] = (struct lost){0, 0};
    route_sort(fabric);
    timer_heap_init(&fabric->timers, pieces.deadlines, pieces.positions, pieces.heap,
                    timer_count(config));
    pool_init(&fabric->pool, pieces.packets, packet_size(config), config->packet_count);
    return fabric;
}

/* ---- Packets in and out, and time ---- */

struct fabric_packet *fabric_take(struct fabric *fabric) { return pool_take(&fabric->pool); }

void fabric_give(struct fabric *fabric, struct fabric_packet *packet) {
    pool_give(&fabric->pool, packet);
}

void fabric_drop_packet(struct fabric *fabric, struct port *port, struct fabric_packet *packet,
                        enum fabric_drop why) {
    port->counters.dropped[why]++;
    pool_give(&fabric->pool, packet);
}

void fabric_enter(struct fabric *fabric, uint32_t index, struct fabric_packet *packet,
                  int64_t now) {
    struct port *port = &fabric->ports[index];

    assert(index < fabric->config.port_count && packet->present <= fabric->config.frame_size);
    assert(!fabric->nodes[port->config.node].config.is_switch && packet->present <= packet->size);
    fabric_advance(fabric, now);
    if (!frame_parse(packet))
        fabric_drop_packet(fabric, port, packet, FABRIC_DROP_MALFORMED);
    else
        port_enqueue(fabric, index, packet, now);
}

struct fabric_packet *fabric_poll(struct fabric *fabric, uint32_t *port) {
    struct fabric_packet *packet = list_pop(&fabric->delivered);

    if (packet != NULL)
        *port = (uint32_t)packet->identity;
    return packet;
}

static void empty_link(struct fabric *fabric, uint32_t port, enum fabric_drop why) {
    uint32_t peer = fabric->ports[port].config.peer;

    port_empty_queues(fabric, port, why);
    port_empty_link(fabric, port, why);
    port_empty_queues(fabric, peer, why);
    port_empty_link(fabric, peer, why);
}

/* The one end of a link whose flap's timer and state count: the lower of the two. */
static uint32_t first_end(const struct fabric *fabric, uint32_t port) {
    uint32_t peer = fabric->ports[port].config.peer;

    return port < peer ? port : peer;
}

static void set_flapped(struct fabric *fabric, uint32_t port, bool flapped) {
    fabric->ports[port].flapped = fabric->ports[fabric->ports[port].config.peer].flapped = flapped;
    if (flapped)
        empty_link(fabric, port, FABRIC_DROP_LINK_DOWN);
}

static void run_flap(struct fabric *fabric, uint32_t index, int64_t now) {
    struct port *port = &fabric->ports[index];
    bool goes_down = !port->flapped;
    int64_t lasts = goes_down ? port->flap_down_for : port->flap_period - port->flap_down_for;

    set_flapped(fabric, index, goes_down);
    timer_heap_set(&fabric->timers, fabric->config.port_count + index, now + lasts);
}

static void run_timer(struct fabric *fabric, uint32_t owner, int64_t now) {
    uint32_t ports = fabric->config.port_count;

    if (owner < ports) {
        port_run(fabric, owner, now);
    } else if (owner < 2 * ports) {
        run_flap(fabric, owner - ports, now);
    } else {
        fabric->nodes[owner - 2 * ports].rebooting = false;
        timer_heap_set(&fabric->timers, owner, FABRIC_NEVER);
    }
}

void fabric_advance(struct fabric *fabric, int64_t now) {
    int64_t next;

    assert(now >= fabric->now);
    while ((next = timer_heap_deadline(&fabric->timers)) <= now) {
        fabric->now = next;
        run_timer(fabric, timer_heap_owner(&fabric->timers), next);
    }
    fabric->now = now;
}

int64_t fabric_deadline(const struct fabric *fabric) {
    return timer_heap_deadline(&fabric->timers);
}

/* ---- What happens to the network ---- */

void fabric_link_set(struct fabric *fabric, uint32_t port, bool up, int64_t now) {
    assert(port < fabric->config.port_count);
    fabric_advance(fabric, now);
    fabric->ports[port].is_up = fabric->ports[fabric->ports[port].config.peer].is_up = up;
    if (!up)
        empty_link(fabric, port, FABRIC_DROP_LINK_DOWN);
}

void fabric_link_flap(struct fabric *fabric, uint32_t port, int64_t period, int64_t down_for,
                      int64_t now) {
    uint32_t end = first_end(fabric, port);

    assert(port < fabric->config.port_count);
    assert(period == 0 || (down_for > 0 && down_for < period));
    fabric_advance(fabric, now);
    set_flapped(fabric, end, false);
    fabric->ports[end].flap_period = period;
    fabric->ports[end].flap_down_for = down_for;
    timer_heap_set(&fabric->timers, fabric->config.port_count + end, FABRIC_NEVER);
    if (period > 0)
        run_flap(fabric, end, now);
}

static void each_port(struct fabric *fabric, uint32_t node, enum fabric_drop why,
                      void (*empty)(struct fabric *, uint32_t, enum fabric_drop)) {
    for (uint32_t i = 0; i < fabric->config.port_count; i++) {
        if (fabric->ports[i].config.node == node)
            empty(fabric, i, why);
    }
}

void fabric_node_silence(struct fabric *fabric, uint32_t node, bool silent, int64_t now) {
    assert(node < fabric->config.node_count && fabric->nodes[node].config.is_switch);
    fabric_advance(fabric, now);
    fabric->nodes[node].silent = silent;
    if (silent)
        each_port(fabric, node, FABRIC_DROP_SILENT, port_empty_queues);
}

void fabric_node_reboot(struct fabric *fabric, uint32_t node, int64_t down_for, int64_t now) {
    assert(node < fabric->config.node_count && fabric->nodes[node].config.is_switch);
    assert(down_for > 0);
    fabric_advance(fabric, now);
    fabric->nodes[node].rebooting = true;
    fabric->nodes[node].silent = false;
    each_port(fabric, node, FABRIC_DROP_REBOOTING, empty_link);
    timer_heap_set(&fabric->timers, 2 * fabric->config.port_count + node, now + down_for);
}

void fabric_rule_set(struct fabric *fabric, uint32_t slot, const struct fabric_rule *rule,
                     int64_t now) {
    assert(slot < fabric->config.rule_count);
    fabric_advance(fabric, now);
    for (; fabric->rules_used <= slot; fabric->rules_used++)
        fabric->rules[fabric->rules_used] = (struct fabric_rule){0};
    fabric->rules[slot] = *rule;
}

/* ---- What it is like ---- */

bool fabric_link_is_up(const struct fabric *fabric, uint32_t port) {
    return port_is_up(fabric, &fabric->ports[port]);
}

struct fabric_counters fabric_counters(const struct fabric *fabric, uint32_t port) {
    return fabric->ports[port].counters;
}

uint32_t fabric_queued(const struct fabric *fabric, uint32_t port) {
    return fabric->ports[port].depth.data;
}

uint32_t fabric_packets(const struct fabric *fabric) { return fabric->pool.used; }
