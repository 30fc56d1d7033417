/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a frame between two hosts: rules, queue, marks, trims, chance. See vnet.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "vnet_internal.h"

enum {
    MILLION = 1000000,
    TRIMMED_SIZE = 12 + 4 + 16, /* BTH METH RETH: what the core sends, without TSETH */
    OPCODES = 0xC0,
    BTH_RESERVED = 4,
};

static_assert(VNET_FATES == sizeof((vnet_counts *)0)->packets / sizeof(uint64_t),
              "one count for each fate");

/* ---- Reading and writing frames ---- */

void vnet_each_packet(struct vnet *net, const struct vnet_frame *frame, vnet_see *see) {
    struct encap encap;
    uint32_t at = frame->header_size;

    if (encap_get(frame->data, frame->size, &encap) != ENCAP_OK)
        return;
    for (uint32_t i = 0; i < frame->packets; i++, at += frame->segment_size) {
        uint32_t left = frame->size - at;
        uint32_t size = frame->segment_size < left ? frame->segment_size : left;
        struct packet packet;

        if (wire_get(frame->data + at, size, encap.cut, &packet) == WIRE_OK)
            see(net, frame, i, &encap, &packet);
    }
}

static void repair_ipv4_checksum(uint8_t *ip) {
    uint32_t sum = 0;

    put_be16(ip + 10, 0);
    for (uint32_t i = 0; i < ENCAP_IPV4_SIZE; i += 2)
        sum += get_be16(ip + i);
    sum = (sum & 0xFFFF) + (sum >> 16);
    put_be16(ip + 10, (uint16_t)~(sum + (sum >> 16)));
}

static uint8_t *ip_of(struct vnet_frame *frame) { return frame->data + ENCAP_ETHERNET_SIZE; }

/* DSCP and ECN together. */
static uint8_t traffic_class(struct vnet_frame *frame) {
    const uint8_t *ip = ip_of(frame);

    return ip[0] >> 4 == 4 ? ip[1] : (uint8_t)(get_be16(ip) >> 4);
}

static void set_traffic_class(struct vnet_frame *frame, uint8_t value) {
    uint8_t *ip = ip_of(frame);

    if (ip[0] >> 4 == 4) {
        ip[1] = value;
        repair_ipv4_checksum(ip);
    } else {
        put_be16(ip, (uint16_t)((get_be16(ip) & 0xF00F) | value << 4));
    }
}

/* Makes the IP lengths say `size` bytes from the UDP header on; IPv4: and the id `id`. */
static void set_ip_length(struct vnet_frame *frame, uint32_t size, uint32_t id) {
    uint8_t *ip = ip_of(frame);
    uint8_t *inner = frame->data + frame->header_size - ENCAP_UDP_SIZE - ENCAP_IPV6_SIZE;

    if (ip[0] >> 4 == 4) {
        put_be16(ip + 2, (uint16_t)(ENCAP_IPV4_SIZE + size));
        put_be16(ip + 4, (uint16_t)id);
        repair_ipv4_checksum(ip);
    } else {
        put_be16(ip + 4, (uint16_t)(size + (uint32_t)(inner - ip)));
        put_be16(inner + 4, (uint16_t)size);
    }
}

static struct vnet_frame *copy_of(const struct vnet_frame *frame) {
    size_t size = sizeof *frame + frame->size;

    return memcpy(vnet_memory(size), frame, size);
}

/* The `index`-th packet as a frame of its own, as the kernel cuts it. */
static struct vnet_frame *cut_out(const struct vnet_frame *frame, uint32_t index) {
    uint32_t at = frame->header_size + index * frame->segment_size;
    uint32_t left = frame->size - at;
    uint32_t size = frame->segment_size < left ? frame->segment_size : left;
    struct vnet_frame *packet = vnet_memory(sizeof *packet + frame->header_size + size);
    uint8_t *udp;

    *packet = *frame;
    packet->size = frame->header_size + size;
    packet->segment_size = size;
    packet->packets = 1;
    memcpy(packet->data, frame->data, frame->header_size);
    memcpy(packet->data + frame->header_size, frame->data + at, size);
    udp = packet->data + frame->header_size - ENCAP_UDP_SIZE;
    put_be16(udp + 4, (uint16_t)(ENCAP_UDP_SIZE + size));
    put_be16(udp + 6, 0);
    set_ip_length(packet, ENCAP_UDP_SIZE + size, get_be16(ip_of(packet) + 4) + index);
    return packet;
}

/* ---- Notes ---- */

static void note_packet(struct vnet *net, enum vnet_fate fate, const struct vnet_frame *frame,
                        const struct encap *encap, const struct packet *packet) {
    vnet_record *record = &net->records[net->record_count++ % VNET_RECORDS];
    vnet_counts *counts = &net->hosts[frame->from].ports[frame->plane].counts;
    uint64_t words[] = {(uint64_t)net->now, (uint64_t)fate << 40 | frame->from << 8 | frame->plane,
                        (uint64_t)packet->opcode << 32 | packet->psn,
                        (uint64_t)encap->ev << 32 | frame->size};

    *record = (vnet_record){.time = net->now,
                            .fate = fate,
                            .host = frame->from,
                            .plane = frame->plane,
                            .opcode = packet->opcode,
                            .qp = packet->dest_qp,
                            .psn = packet->psn,
                            .ev = encap->ev,
                            .size = frame->size - ENCAP_ETHERNET_SIZE,
                            .dscp = encap->dscp,
                            .rtx = packet->rtx,
                            .ack_request = packet->ack_request,
                            .frame = frame->number};
    if (packet->opcode == WIRE_SACK) {
        record->bitmap = packet->sack_bitmap;
        record->entropy = packet->entropy;
        record->offset = packet->ack_psn_offset;
        record->code = packet->m;
        record->pr = packet->pr;
    } else if (packet->opcode == WIRE_NACK) {
        record->psn = packet->nack_psn;
        record->entropy = packet->entropy;
        record->code = packet->reason;
    } else if (packet->opcode == WIRE_ACK) {
        record->code = packet->syndrome;
    } else if (packet->opcode == WIRE_PROBE) {
        record->psn = packet->probe_id;
    }
    counts->packets[fate]++;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        net->hash = (net->hash ^ words[i]) * 0x100000001B3u ^ net->hash >> 29;
    if (fate != VNET_SENT)
        return;
    counts->by_opcode[packet->opcode - OPCODES]++;
    counts->rtx += packet->rtx;
}

static void note_fate(struct vnet *net, const struct vnet_frame *frame, uint32_t index,
                      const struct encap *encap, const struct packet *packet) {
    (void)index;
    note_packet(net, net->fate, frame, encap, packet);
}

void vnet_note(struct vnet *net, enum vnet_fate fate, const struct vnet_frame *frame) {
    net->fate = fate;
    vnet_each_packet(net, frame, note_fate);
}

uint32_t vnet_trace(const vnet *net, vnet_record *records, uint32_t room) {
    uint64_t count = net->record_count < VNET_RECORDS ? net->record_count : VNET_RECORDS;

    count = count < room ? count : room;
    for (uint64_t i = 0; i < count; i++)
        records[i] = net->records[(net->record_count - count + i) % VNET_RECORDS];
    return (uint32_t)count;
}

uint64_t vnet_hash(const vnet *net) { return net->hash; }

/* ---- The link ---- */

static bool chance(struct vnet *net, uint32_t ppm) {
    return ppm > 0 && prng_below(&net->prng, MILLION) < ppm;
}

static void drop(struct vnet *net, enum vnet_fate fate, struct vnet_frame *frame) {
    vnet_note(net, fate, frame);
    free(frame);
}

static uint64_t queued_bytes(const struct vnet *net, const struct vnet_port *port) {
    if (port->link.rate_bps == 0 || port->free_at <= net->now)
        return 0;
    return (uint64_t)(port->free_at - net->now) * (port->link.rate_bps / 1000) / 8000000;
}

static int64_t time_on_wire(const struct vnet_port *port, uint64_t bytes) {
    if (port->link.rate_bps == 0)
        return 0;
    return (int64_t)(bytes * 8000000000u / port->link.rate_bps);
}

static void mark(struct vnet *net, struct vnet_frame *frame) {
    uint8_t class = traffic_class(frame);

    if ((class & 3) != ENCAP_ECN_ECT0)
        return;
    set_traffic_class(frame, class | ENCAP_ECN_CE);
    vnet_note(net, VNET_MARKED, frame);
}

/* Cuts a write of one packet to its headers; false: it is not one that may be. */
static bool trim(struct vnet *net, struct vnet_frame *frame, uint8_t dscp) {
    uint8_t class = traffic_class(frame);

    if ((class >> 2 != net->config.dscp_trimmable &&
         class >> 2 != net->config.dscp_trimmable_retx) ||
        !wire_is_write(frame->data[frame->header_size]) || frame->packets > 1 ||
        frame->size < frame->header_size + TRIMMED_SIZE)
        return false;
    frame->size = frame->header_size + TRIMMED_SIZE;
    set_ip_length(frame, ENCAP_UDP_SIZE + TRIMMED_SIZE, 0);
    set_traffic_class(frame, (uint8_t)(dscp << 2 | (class & 3)));
    vnet_note(net, VNET_TRIMMED, frame);
    return true;
}

static void corrupt(struct vnet *net, struct vnet_frame *frame) {
    uint32_t size = frame->size - frame->header_size;
    uint32_t at = prng_below(&net->prng, size);

    if (at % frame->segment_size == BTH_RESERVED)
        at++; /* the ICRC does not cover that byte, and nobody reads it */
    frame->data[frame->header_size + at] ^= (uint8_t)(1u << prng_below(&net->prng, 8));
    frame->corrupted = 1 + at / frame->segment_size;
    net->hosts[frame->from].ports[frame->plane].counts.packets[VNET_CORRUPTED]++;
}

/* The frame has passed the queue. */
static void fly(struct vnet *net, struct vnet_frame *frame, int64_t leaves) {
    const vnet_link *link = &net->hosts[frame->from].ports[frame->plane].link;
    int64_t arrives = leaves + link->delay;

    if (link->jitter > 0)
        arrives += (int64_t)prng_below(&net->prng, (uint32_t)link->jitter);
    vnet_schedule(net, arrives, VNET_ARRIVAL, frame->to, frame->plane, frame);
}

static void enter_queue(struct vnet *net, struct vnet_frame *frame, int64_t extra) {
    struct vnet_host *host = &net->hosts[frame->from];
    struct vnet_port *port = &host->ports[frame->plane];
    const vnet_link *link = &port->link;
    uint64_t queued = queued_bytes(net, port);
    bool is_urgent = link->trim_dscp != 0 && traffic_class(frame) >> 2 == net->config.dscp_control;

    if (!is_urgent && link->queue_bytes > 0 && queued + frame->size > link->queue_bytes) {
        if (link->trim_dscp == 0 || !trim(net, frame, link->trim_dscp)) {
            drop(net, VNET_FULL, frame);
            return;
        }
        is_urgent = true;
    }
    if (is_urgent) {
        fly(net, frame, net->now + extra + time_on_wire(port, frame->size));
        return;
    }
    if (link->mark_bytes > 0 && queued > link->mark_bytes)
        mark(net, frame);
    port->free_at = (port->free_at > net->now ? port->free_at : net->now) +
                    time_on_wire(port, frame->size);
    fly(net, frame, port->free_at + extra);
    if (link->busy_bytes > 0 && !port->is_busy && queued + frame->size > link->busy_bytes) {
        port->is_busy = true;
        mrc_endpoint_set_busy(host->endpoint, frame->plane, true);
        vnet_schedule(net, port->free_at - time_on_wire(port, link->busy_bytes / 2),
                      VNET_PORT_FREE, frame->from, frame->plane, NULL);
    }
}

/* ---- Rules ---- */

int vnet_add_rule(vnet *net, const vnet_rule *rule) {
    if (net->rule_count == VNET_RULES)
        return MRC_ERROR_FULL;
    net->rules[net->rule_count] = *rule;
    net->rule_seen[net->rule_count] = 0;
    net->rule_hits[net->rule_count] = 0;
    return net->rule_count++;
}

uint32_t vnet_rule_hits(const vnet *net, int rule) { return net->rule_hits[rule]; }

void vnet_clear_rules(vnet *net) { net->rule_count = 0; }

/* The first rule that deals with this packet; NULL: none. */
static const struct vnet_rule *rule_for(struct vnet *net, const struct vnet_frame *frame) {
    struct packet packet;
    struct encap encap;

    if (net->rule_count == 0 || encap_get(frame->data, frame->size, &encap) != ENCAP_OK ||
        wire_get(frame->data + frame->header_size, frame->size - frame->header_size, false,
                 &packet) != WIRE_OK)
        return NULL;
    for (int i = 0; i < net->rule_count; i++) {
        const struct vnet_rule *rule = &net->rules[i];
        uint32_t seen;

        if (rule->host != frame->from || !(rule->planes >> frame->plane & 1) ||
            !(rule->opcodes >> (packet.opcode - OPCODES) & 1) ||
            (rule->psn != UINT32_MAX && rule->psn != packet.psn) ||
            (encap.ev & rule->ev_mask) != rule->ev_value)
            continue;
        seen = net->rule_seen[i]++;
        if (seen < rule->skip || seen - rule->skip >= rule->count)
            continue;
        net->rule_hits[i]++;
        return rule;
    }
    return NULL;
}

/* Returns the extra delay, or -1: the frame is gone. */
static int64_t apply_rule(struct vnet *net, struct vnet_frame *frame) {
    const struct vnet_rule *rule = rule_for(net, frame);
    struct vnet_frame *twin;

    if (rule == NULL)
        return 0;
    switch (rule->action) {
    case VNET_DROP:
        drop(net, VNET_RULED_OUT, frame);
        return -1;
    case VNET_MARK:
        mark(net, frame);
        return 0;
    case VNET_TRIM:
        trim(net, frame, (uint8_t)rule->value);
        return 0;
    case VNET_DUPLICATE:
        twin = copy_of(frame);
        vnet_note(net, VNET_DUPLICATED, twin);
        enter_queue(net, twin, 0);
        return 0;
    case VNET_CORRUPT:
        corrupt(net, frame);
        return 0;
    default:
        return rule->value;
    }
}

static void forward(struct vnet *net, struct vnet_frame *frame) {
    const struct vnet_port *port = &net->hosts[frame->from].ports[frame->plane];
    int64_t extra = apply_rule(net, frame);
    uint32_t ip_size = frame->header_size - ENCAP_ETHERNET_SIZE + frame->segment_size;

    if (extra < 0)
        return;
    if (port->link.dead || !port->is_up) {
        drop(net, VNET_DEAD, frame);
    } else if (port->link.mtu > 0 && ip_size > port->link.mtu) {
        drop(net, VNET_TOO_LONG, frame);
    } else if (chance(net, port->link.loss_ppm)) {
        drop(net, VNET_LOST, frame);
    } else {
        if (chance(net, port->link.corrupt_ppm))
            corrupt(net, frame);
        if (chance(net, port->link.duplicate_ppm)) {
            struct vnet_frame *twin = copy_of(frame);

            vnet_note(net, VNET_DUPLICATED, twin);
            enter_queue(net, twin, extra);
        }
        enter_queue(net, frame, extra);
    }
}

/* ---- From the endpoint ---- */

static struct vnet_frame *gather(struct vnet *net, uint32_t host, const mrc_frame_out *out) {
    struct vnet_frame *frame = vnet_memory(sizeof *frame + out->size);
    uint32_t size = 0;

    memset(frame, 0, sizeof *frame);
    for (uint32_t i = 0; i < out->slice_count && size + out->slices[i].size <= out->size; i++) {
        memcpy(frame->data + size, out->slices[i].base, out->slices[i].size);
        size += (uint32_t)out->slices[i].size;
    }
    if (size != out->size || out->slice_count > MRC_FRAME_SLICES)
        vnet_fail(net, "host %u gives a frame whose slices are not its size", host);
    frame->number = net->frames++;
    frame->from = host;
    frame->plane = out->plane;
    frame->size = size;
    frame->header_size = out->header_size;
    frame->segment_size = out->segment_size;
    frame->packets = out->packets;
    return frame;
}

/* The host that has the frame's destination address on this plane. */
static bool find_host(struct vnet *net, struct vnet_frame *frame, const struct encap *encap) {
    for (uint32_t i = 0; i < net->options.hosts; i++) {
        const mrc_address *address = &net->hosts[i].ports[frame->plane].info.address;

        if (i != frame->from && address->version == encap->destination.version &&
            memcmp(address->bytes, encap->destination.bytes, sizeof address->bytes) == 0) {
            frame->to = i;
            return true;
        }
    }
    return false;
}

void vnet_transmit(struct vnet *net, uint32_t host, const mrc_frame_out *out) {
    struct vnet_frame *frame;
    struct encap encap;
    vnet_counts *counts;

    if (out->plane >= net->options.planes || out->packets == 0 || out->packets > MRC_BURST) {
        vnet_fail(net, "host %u sends on plane %u a frame of %u packets", host, out->plane,
                  out->packets);
        return;
    }
    frame = gather(net, host, out);
    counts = &net->hosts[host].ports[out->plane].counts;
    counts->frames++;
    vnet_note(net, VNET_SENT, frame);
    vnet_check_sent(net, frame);
    if (encap_get(frame->data, frame->size, &encap) != ENCAP_OK ||
        !find_host(net, frame, &encap)) {
        drop(net, VNET_DEAD, frame);
    } else if (frame->packets > 1 &&
               (net->hosts[host].ports[out->plane].link.cut || net->rule_count > 0)) {
        for (uint32_t i = 0; i < frame->packets; i++)
            forward(net, cut_out(frame, i));
        free(frame);
    } else {
        forward(net, frame);
    }
}

void vnet_keep(vnet *net, uint32_t room) {
    net->kept_room = room < VNET_KEPT_MAX ? room : VNET_KEPT_MAX;
    if (net->kept == NULL)
        net->kept = vnet_memory(VNET_KEPT_MAX * sizeof(struct vnet_frame *));
}

bool vnet_get_kept(const vnet *net, uint32_t index, vnet_kept *kept) {
    const struct vnet_frame *frame;

    if (index >= net->kept_count)
        return false;
    frame = net->kept[index];
    *kept = (vnet_kept){.host = frame->to,
                        .plane = frame->plane,
                        .size = frame->size,
                        .segment_size = frame->packets > 1 ? frame->segment_size : 0,
                        .data = frame->data};
    return true;
}

void vnet_inject(vnet *net, const vnet_kept *kept) {
    struct vnet_frame *frame = vnet_memory(sizeof *frame + kept->size);

    memset(frame, 0, sizeof *frame);
    memcpy(frame->data, kept->data, kept->size);
    frame->to = kept->host;
    frame->plane = kept->plane;
    frame->size = kept->size;
    frame->segment_size = kept->segment_size;
    frame->packets = kept->segment_size > 0 ? 2 : 1;
    frame->is_forged = true;
    vnet_schedule(net, net->now, VNET_ARRIVAL, frame->to, frame->plane, frame);
}

/* ---- Faults ---- */

void vnet_set_link(vnet *net, uint32_t host, uint32_t plane, const vnet_link *link) {
    net->hosts[host].ports[plane].link = *link;
    vnet_check_paths(net);
}

void vnet_get_link(const vnet *net, uint32_t host, uint32_t plane, vnet_link *link) {
    *link = net->hosts[host].ports[plane].link;
}

static void tell(vnet *net, uint32_t host, uint32_t plane) {
    struct vnet_host *to = &net->hosts[host];

    mrc_endpoint_set_plane(to->endpoint, net->now, plane, &to->ports[plane].info);
    vnet_wake(net, host, net->now);
    vnet_check_paths(net);
}

void vnet_set_port(vnet *net, uint32_t host, uint32_t plane, bool up, bool told) {
    struct vnet_port *port = &net->hosts[host].ports[plane];

    port->is_up = up;
    if (told) {
        port->info.up = up;
        tell(net, host, plane);
    }
    vnet_check_paths(net);
}

void vnet_enable(vnet *net, uint32_t host, uint32_t plane, bool enabled) {
    net->hosts[host].ports[plane].info.enabled = enabled;
    tell(net, host, plane);
}
