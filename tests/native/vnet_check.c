/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold after every step, whatever the network does. See vnet.h.
 *
 * Nothing here asks the core what it thinks when the network can know: PSNs, windows, attempts and
 * immediates are counted from the packets themselves, data is compared with its source. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "psn.h"
#include "vnet_internal.h"

enum {
    TEXT = 16384,
    LAST_RECORDS = 60,
    WINDOW_UNIT = 128,
    GUARD_BYTE = 0xA5,
    FILL_BYTE = 0x5A,
};

#define INFLIGHT_MAX ((uint64_t)1 << 40)

static const char *const FATES[VNET_FATES] = {"sent",      "delivered", "lost",      "full",
                                              "dead",      "ruled out", "too long",  "trimmed",
                                              "marked",    "corrupted", "duplicated"};

static void add(char *text, size_t *used, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add(char *text, size_t *used, const char *format, ...) {
    va_list arguments;
    int count;

    va_start(arguments, format);
    count = vsnprintf(text + *used, TEXT - *used, format, arguments);
    va_end(arguments);
    if (count > 0)
        *used += (size_t)count < TEXT - *used ? (size_t)count : TEXT - 1 - *used;
}

void vnet_fail(struct vnet *net, const char *format, ...) {
    vnet_record last[LAST_RECORDS];
    uint32_t count;
    size_t used = 0;
    char what[256];
    va_list arguments;

    if (net->violation != NULL)
        return;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    net->violation = vnet_memory(TEXT);
    add(net->violation, &used, "at %.6f s: %s\n", (double)net->now / 1e9, what);
    count = vnet_trace(net, last, LAST_RECORDS);
    for (uint32_t i = 0; i < count; i++) {
        const vnet_record *at = &last[i];

        add(net->violation, &used, "%12.6f host %u plane %u %-10s %02X psn %06X ev %08X%s",
            (double)at->time / 1e9, at->host, at->plane, FATES[at->fate], at->opcode, at->psn,
            at->ev, at->rtx ? " rtx" : "");
        if (at->opcode == WIRE_SACK)
            add(net->violation, &used, " of %+d m %u%s", at->offset, at->code,
                at->pr ? " pr" : "");
        add(net->violation, &used, "\n");
    }
}

static struct vnet_side *side_with(struct vnet *net, uint32_t host, uint32_t number) {
    struct vnet_side *side = net->hosts[host].by_number[number & 0xFFFF];

    return side != NULL && side->local.number == number ? side : NULL;
}

/* ---- What is sent ---- */

static uint32_t nominal_of(const struct packet *packet) {
    return 40 + ENCAP_UDP_SIZE + (uint32_t)wire_headers_size(packet->opcode, packet->ts) +
           packet->payload_size + wire_pad(packet->payload_size) + WIRE_ICRC_SIZE;
}

/* EVs of a queue pair differ in these 16 bits, and IPv4 carries no more of them. */
static bool is_same_ev(uint32_t a, uint32_t b) { return ((a ^ b) & 0xFFFF) == 0; }

/* Whether any EV but this one is in use on a plane that is up. */
static bool has_another_ev(struct vnet *net, const struct vnet_side *from, uint32_t ev) {
    mrc_endpoint *endpoint = net->hosts[from->host].endpoint;
    mrc_ev_info evs[512];
    int count = mrc_qp_evs(endpoint, from->local.number, evs, 512);

    for (int i = 0; i < count; i++) {
        mrc_plane_stats stats;

        if (!is_same_ev(evs[i].ev, ev) &&
            (evs[i].state == MRC_EV_GOOD || evs[i].state == MRC_EV_SKIP) &&
            mrc_peer_stats(endpoint, from->peer, evs[i].plane, &stats) == MRC_OK &&
            stats.state == MRC_PLANE_UP)
            return true;
    }
    return false;
}

static void check_psn(struct vnet *net, struct vnet_side *from, const struct packet *packet,
                      uint32_t ev) {
    uint32_t window = from->other->local.mpr * WINDOW_UNIT;
    uint32_t *last_ev = &from->last_ev[packet->psn % VNET_PSNS];

    if (psn_diff(packet->psn, from->cack) > (int32_t)window)
        vnet_fail(net, "PSN %06X is beyond the window: cack %06X", packet->psn, from->cack);
    if (packet->psn == from->next_psn) {
        from->next_psn = psn_add(packet->psn, 1);
        from->immediates_sent += wire_has_immediate(packet->opcode);
        if (packet->rtx)
            vnet_fail(net, "PSN %06X is new but says RTX", packet->psn);
    } else if (psn_diff(packet->psn, from->next_psn) > 0) {
        vnet_fail(net, "PSN %06X was sent before %06X", packet->psn, from->next_psn);
    } else {
        from->rtx++;
        if (!packet->rtx)
            vnet_fail(net, "PSN %06X was sent again without RTX", packet->psn);
        if (*last_ev == ev && has_another_ev(net, from, ev))
            vnet_fail(net, "PSN %06X was sent again on the same EV %08X", packet->psn, ev);
    }
    *last_ev = ev;
    if (!net->hosts[from->other->host].is_held &&
        from->immediates_sent - from->immediates_received > from->other->local.max_wimm)
        vnet_fail(net, "more WriteIMM in flight than the peer's %u", from->other->local.max_wimm);
}

/* The plane that carries data is up, and all of them have been dealt the same. */
static void check_plane(struct vnet *net, struct vnet_side *from, uint32_t plane) {
    struct vnet_host *host = &net->hosts[from->host];
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    mrc_plane_stats stats;

    if (mrc_peer_stats(host->endpoint, from->peer, plane, &stats) < 0 ||
        stats.state != MRC_PLANE_UP)
        vnet_fail(net, "data on plane %u, which is out for reason %u", plane, stats.reason);
    if (net->config.policy != MRC_POLICY_EQUAL || net->options.hosts > 2 || host->is_uneven ||
        host->is_held)
        return;
    for (uint32_t i = 0; i < net->options.planes; i++) {
        uint64_t bytes = host->ports[i].fair_bytes;

        if (mrc_peer_stats(host->endpoint, from->peer, i, &stats) < 0 ||
            stats.state != MRC_PLANE_UP)
            continue;
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
    }
    if (most > least + MRC_BURST * (uint64_t)host->largest + host->rtx_bytes)
        vnet_fail(net, "unequal loading: %" PRIu64 " and %" PRIu64 " bytes", least, most);
}

static void see_sent(struct vnet *net, const struct vnet_frame *frame, uint32_t index,
                     const struct encap *encap, const struct packet *packet) {
    struct vnet_host *host = &net->hosts[frame->from];
    struct vnet_side *to = NULL;
    uint32_t nominal = nominal_of(packet);

    (void)index;
    if (!wire_is_write(packet->opcode))
        return;
    for (uint32_t i = 0; i < net->options.hosts && to == NULL; i++)
        to = i == frame->from ? NULL : side_with(net, i, packet->dest_qp);
    if (to == NULL || to->other->host != frame->from) {
        vnet_fail(net, "host %u writes to a queue pair that it does not know", frame->from);
        return;
    }
    host->ports[frame->plane].counts.data_bytes += nominal;
    host->ports[frame->plane].fair_bytes += nominal;
    host->rtx_bytes += packet->rtx ? nominal : 0;
    host->largest = nominal > host->largest ? nominal : host->largest;
    to->other->packets++;
    check_psn(net, to->other, packet, encap->ev);
    check_plane(net, to->other, frame->plane);
    for (uint32_t i = 0; i < to->other->denied_count; i++) {
        if (is_same_ev(to->other->denied[i], encap->ev))
            vnet_fail(net, "data on the denied EV %08X", encap->ev);
    }
}

void vnet_check_sent(struct vnet *net, const struct vnet_frame *frame) {
    vnet_each_packet(net, frame, see_sent);
}

/* ---- What is delivered ---- */

static void see_delivered(struct vnet *net, const struct vnet_frame *frame, uint32_t index,
                          const struct encap *encap, const struct packet *packet) {
    struct vnet_side *to = side_with(net, frame->to, packet->dest_qp);
    uint32_t cack = packet->opcode == WIRE_SACK ? packet->cack_psn : packet->psn;

    (void)encap;
    if (frame->corrupted == index + 1 || to == NULL ||
        (packet->opcode != WIRE_SACK && packet->opcode != WIRE_ACK))
        return;
    if (psn_diff(cack, to->cack) > 0)
        to->cack = cack;
}

void vnet_check_delivered(struct vnet *net, const struct vnet_frame *frame) {
    vnet_note(net, VNET_DELIVERED, frame);
    vnet_each_packet(net, frame, see_delivered);
}

/* ---- Completions ---- */

static void check_content(struct vnet *net, const struct vnet_side *from,
                          const struct vnet_posted *posted, const char *what, uint64_t index) {
    const uint8_t *region = vnet_region_of(&net->hosts[from->other->host]);
    const uint8_t *source = net->hosts[from->host].source;

    if (posted->is_checked &&
        memcmp(region + posted->offset, source + posted->offset, posted->size) != 0)
        vnet_fail(net, "write %" PRIu64 " was %s before all of it was in place", index, what);
}

static void on_write_ended(struct vnet *net, struct vnet_side *side, const mrc_event *event) {
    if (event->tag != side->completed || side->completed == side->posted_count) {
        vnet_fail(net, "write %" PRIu64 " ended when %" PRIu64 " was next", event->tag,
                  side->completed);
        return;
    }
    if (event->status == MRC_OK)
        check_content(net, side, &side->posted[side->completed], "completed", side->completed);
    if (event->status == MRC_OK && side->error != 0)
        vnet_fail(net, "write %" PRIu64 " completed after the queue pair broke", event->tag);
    if (event->status != MRC_OK)
        side->error = event->status;
    side->completed++;
}

static void on_received(struct vnet *net, struct vnet_side *side, const mrc_event *event) {
    struct vnet_side *from = side->other;
    const struct vnet_posted *posted;

    for (; from->received < from->posted_count; from->received++) {
        posted = &from->posted[from->received];
        check_content(net, from, posted, "overtaken by an immediate", from->received);
        if (posted->immediate == UINT64_MAX)
            continue;
        if ((uint32_t)posted->immediate != event->immediate)
            vnet_fail(net, "immediate %u came when %" PRIu64 " was next", event->immediate,
                      posted->immediate);
        from->received++;
        from->immediates_received++;
        return;
    }
    vnet_fail(net, "immediate %u came, which nobody had sent", event->immediate);
}

/* A plane that comes up does not catch up on what it missed. */
static void level(struct vnet *net, uint32_t host, uint32_t plane) {
    struct vnet_port *ports = net->hosts[host].ports;

    for (uint32_t i = 0; i < net->options.planes; i++) {
        if (ports[i].fair_bytes > ports[plane].fair_bytes)
            ports[plane].fair_bytes = ports[i].fair_bytes;
    }
}

void vnet_check_event(struct vnet *net, uint32_t host, const mrc_event *event) {
    struct vnet_side *side = side_with(net, host, event->qp);

    switch (event->type) {
    case MRC_EVENT_WRITE:
    case MRC_EVENT_RECEIVE:
    case MRC_EVENT_QP:
        if (side == NULL || side->is_closed)
            vnet_fail(net, "an event of type %u names queue pair %06X", event->type, event->qp);
        else if (event->type == MRC_EVENT_WRITE)
            on_write_ended(net, side, event);
        else if (event->type == MRC_EVENT_RECEIVE)
            on_received(net, side, event);
        else
            side->error = event->status;
        break;
    case MRC_EVENT_PLANE:
        if (event->state == MRC_PLANE_UP)
            level(net, host, event->plane);
        break;
    default:
        break;
    }
}

/* ---- After each step ---- */

static void check_guards(struct vnet *net, uint32_t number) {
    const uint8_t *region = vnet_region_of(&net->hosts[number]);
    const uint8_t *behind = region + net->options.region_bytes;
    uint8_t expected[VNET_GUARD];

    memset(expected, GUARD_BYTE, sizeof expected);
    if (memcmp(region - VNET_GUARD, expected, VNET_GUARD) != 0 ||
        memcmp(behind, expected, VNET_GUARD) != 0)
        vnet_fail(net, "host %u: a byte outside the region was written", number);
}

static void check_qp(struct vnet *net, struct vnet_side *side) {
    mrc_qp_stats stats;
    mrc_qp_stats other = {0};
    uint64_t progress;

    if (mrc_qp_get_stats(net->hosts[side->host].endpoint, side->local.number, &stats) < 0) {
        vnet_fail(net, "queue pair %06X has no stats", side->local.number);
        return;
    }
    if (stats.packets_sent != side->packets || stats.packets_retransmitted != side->rtx)
        vnet_fail(net, "%06X counts %" PRIu64 " packets, %" PRIu64 " of them again, not %" PRIu64
                  " and %" PRIu64, side->local.number, stats.packets_sent,
                  stats.packets_retransmitted, side->packets, side->rtx);
    if (stats.writes_posted != side->posted_count ||
        (!net->hosts[side->host].is_held && stats.writes_completed > side->completed))
        vnet_fail(net, "%06X counts writes wrong", side->local.number);
    if (stats.wimm_outstanding > side->other->local.max_wimm ||
        stats.window_packets > side->other->local.mpr * WINDOW_UNIT)
        vnet_fail(net, "%06X is beyond a limit of its peer", side->local.number);
    if (stats.inflight > INFLIGHT_MAX)
        vnet_fail(net, "%06X has %" PRIu64 " bytes in flight", side->local.number, stats.inflight);
    if (!side->other->is_closed)
        mrc_qp_get_stats(net->hosts[side->other->host].endpoint, side->other->local.number, &other);
    progress = side->completed + other.bytes_received + other.messages_received;
    if (progress != side->progress)
        side->progressed = net->now;
    side->progress = progress;
}

static void check_stall(struct vnet *net, const struct vnet_side *side) {
    int64_t since = side->progressed > side->works_since ? side->progressed : side->works_since;

    if (side->completed == side->posted_count)
        return;
    if (mrc_endpoint_deadline(net->hosts[side->host].endpoint) == INT64_MAX &&
        net->under_way == 0 && !net->hosts[side->host].ports[0].is_busy)
        vnet_fail(net, "%06X has work, and nothing will ever happen", side->local.number);
    if (side->works_since != INT64_MAX && net->options.stall > 0 &&
        net->now - since > net->options.stall)
        vnet_fail(net, "%06X: no progress since %.6f s though a path works", side->local.number,
                  (double)since / 1e9);
}

void vnet_check_host(struct vnet *net, uint32_t number) {
    check_guards(net, number);
    for (uint32_t i = 0; i < net->side_count; i++) {
        struct vnet_side *side = net->sides[i];

        if (side->host != number || side->is_closed)
            continue;
        check_qp(net, side);
        check_stall(net, side);
    }
}

/* Everything posted has ended: nothing is in flight, and every byte is what it may be. */
void vnet_check_idle(struct vnet *net) {
    for (uint32_t i = 0; i < net->side_count; i++) {
        const struct vnet_side *side = net->sides[i];
        mrc_plane_stats stats;

        for (uint32_t k = 0; k < net->options.planes; k++) {
            if (mrc_peer_stats(net->hosts[side->host].endpoint, side->peer, k, &stats) == MRC_OK &&
                stats.inflight != 0)
                vnet_fail(net, "idle, and %" PRIu64 " bytes in flight on plane %u", stats.inflight,
                          k);
        }
    }
    for (uint32_t i = 0; i < net->options.hosts; i++) {
        const uint8_t *region = vnet_region_of(&net->hosts[i]);
        const uint8_t *model = net->hosts[i].model;

        if (memcmp(region, model, net->options.region_bytes) == 0)
            continue;
        for (uint64_t k = 0; k < net->options.region_bytes; k++) {
            if (region[k] != model[k] && region[k] != FILL_BYTE)
                vnet_fail(net, "host %u: byte %" PRIu64 " is nobody's", i, k);
        }
    }
}

/* ---- Whether a path works ---- */

static bool plane_works(const struct vnet *net, const struct vnet_side *side, uint32_t plane) {
    const struct vnet_port *here = &net->hosts[side->host].ports[plane];
    const struct vnet_port *there = &net->hosts[side->other->host].ports[plane];
    const struct vnet_port *ends[] = {here, there};

    for (int i = 0; i < 2; i++) {
        const vnet_link *link = &ends[i]->link;

        if (!ends[i]->is_up || !ends[i]->info.up || !ends[i]->info.enabled || link->dead ||
            link->loss_ppm + link->corrupt_ppm > 500000 || link->mtu > 0)
            return false;
    }
    return true;
}

void vnet_check_paths(struct vnet *net) {
    for (uint32_t i = 0; i < net->side_count; i++) {
        struct vnet_side *side = net->sides[i];
        bool works = false;

        for (uint32_t k = 0; k < net->options.planes; k++)
            works = works || plane_works(net, side, k);
        if (!works)
            side->works_since = INT64_MAX;
        else if (side->works_since == INT64_MAX)
            side->works_since = net->now;
    }
}
