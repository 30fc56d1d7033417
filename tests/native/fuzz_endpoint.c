/* SPDX-License-Identifier: Apache-2.0 */
/* See fuzz_endpoint.h. The two endpoints are hosts 0 and 1 with addresses fd00::1 and fd00::2. */
#include "fuzz_endpoint.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "encap.h"
#include "mrc.h"
#include "prng.h"
#include "wire.h"

enum {
    PLANES = 2,
    GUARD = 256,
    REGION = 65536,
    FRAME_MAX = 65536,
    CORPUS = 256,
    MTU = 1024,
    UDP_PORT = 4791,
    FRAMES_AT_ONCE = 10000,
    EVENTS_AT_ONCE = 10000,
    TIMERS_AT_ONCE = 1000,
    WRITES_IN_PEACE = 200,
};

#define PEACE ((int64_t)60000000000) /* one frame in ten is lost, first by the timeouts of before */

#define VA 0x10000ull
#define KEY 0x1234u

struct host {
    mrc_endpoint *endpoint;
    uint8_t *memory; /* the endpoint's, between guards */
    size_t memory_size;
    uint8_t *block; /* the region, between guards */
    uint32_t peer;
    mrc_qp_attributes local;
    bool is_broken;
};

struct valid {
    uint8_t *data;
    uint32_t size;
    uint32_t to;
};

struct fuzzer {
    struct prng prng;
    struct icrc icrc;
    mrc_config config;
    struct host hosts[2];
    struct valid corpus[CORPUS];
    uint32_t corpus_next;
    int64_t now;
    mrc_frame_out out;
    uint8_t frame[FRAME_MAX];
    uint8_t source[REGION];
    struct fuzz_endpoint *result;
};

static uint32_t draw(struct fuzzer *fuzzer) { return prng_next(&fuzzer->prng); }

static bool one_in(struct fuzzer *fuzzer, uint32_t count) {
    return prng_below(&fuzzer->prng, count) == 0;
}

static void violate(struct fuzzer *fuzzer, const char *what) {
    fuzzer->result->violations++;
    fuzzer->result->what = what;
}

/* ---- Two hosts ---- */

static mrc_address address_of(uint32_t host) {
    mrc_address address = {.version = 6};

    address.bytes[0] = 0xFD;
    address.bytes[15] = (uint8_t)(host + 1);
    return address;
}

static bool has_guards(const uint8_t *block, size_t size) {
    for (size_t i = 0; i < GUARD; i++) {
        if (block[i] != 0xA5 || block[GUARD + size + i] != 0xA5)
            return false;
    }
    return true;
}

static uint8_t *guarded(size_t size) {
    size_t whole = (size + 2 * GUARD + 63) & ~(size_t)63;
    uint8_t *block = aligned_alloc(64, whole);

    return block == NULL ? NULL : memset(block, 0xA5, whole);
}

static bool init_host(struct fuzzer *fuzzer, uint32_t number) {
    struct host *host = &fuzzer->hosts[number];
    mrc_config config = fuzzer->config;
    mrc_region region = {.va = VA, .size = REGION, .key = KEY, .domain = 1};
    mrc_plane plane = {.address = address_of(number), .mtu = 9000, .up = true, .enabled = true};

    config.qp_prefix = (uint8_t)(0x40 + number);
    config.incarnation = number + 1;
    host->memory_size = mrc_endpoint_size(&config);
    host->memory = guarded(host->memory_size);
    host->block = guarded(REGION);
    if (host->memory == NULL || host->block == NULL)
        return false;
    host->endpoint = mrc_endpoint_init(host->memory + GUARD, &config, draw(fuzzer));
    region.base = host->block + GUARD;
    mrc_endpoint_register(host->endpoint, &region);
    for (uint32_t i = 0; i < PLANES; i++)
        mrc_endpoint_set_plane(host->endpoint, fuzzer->now, i, &plane);
    return true;
}

static void join(struct fuzzer *fuzzer) {
    for (uint32_t i = 0; i < 2; i++) {
        struct host *host = &fuzzer->hosts[i];
        mrc_peer_setup setup = {.incarnation = 2 - i, .remote_planes = {0, 1}};
        const uint8_t mac[6] = {2, 0, 0, 0, 0, 1};

        setup.addresses[0] = setup.addresses[1] = address_of(1 - i);
        host->peer = (uint32_t)mrc_peer_add(host->endpoint, fuzzer->now, &setup);
        for (uint32_t k = 0; k < PLANES; k++)
            mrc_peer_set_neighbour(host->endpoint, fuzzer->now, host->peer, k, mac);
        host->local = (mrc_qp_attributes){
            .mtu = MTU, .mpr = 2, .max_wimm = 8, .trim_nack = true, .dynamic_mpr = true};
        if (mrc_qp_create(host->endpoint, fuzzer->now, 1, UINT32_MAX, &host->local) != MRC_OK)
            violate(fuzzer, "a queue pair cannot be made any more");
        host->is_broken = false;
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct host *host = &fuzzer->hosts[i];

        mrc_qp_connect(host->endpoint, fuzzer->now, host->local.number, host->peer,
                       &fuzzer->hosts[1 - i].local);
        mrc_qp_post_receive(host->endpoint, host->local.number, 1000000);
    }
}

/* ---- Driving them ---- */

static void keep(struct fuzzer *fuzzer, uint32_t to, uint32_t size) {
    struct valid *valid = &fuzzer->corpus[fuzzer->corpus_next++ % CORPUS];

    free(valid->data);
    valid->data = malloc(size);
    if (valid->data == NULL)
        abort();
    memcpy(valid->data, fuzzer->frame, size);
    valid->size = size;
    valid->to = to;
}

/* Gives what is in fuzzer->frame to a host, in memory of exactly its size. */
static void give(struct fuzzer *fuzzer, uint32_t to, uint32_t plane, uint32_t size,
                 uint32_t segment_size) {
    uint8_t *exact = malloc(size > 0 ? size : 1);
    mrc_frame_in in = {.plane = plane, .size = size, .segment_size = segment_size, .data = exact};

    if (exact == NULL)
        abort();
    memcpy(exact, fuzzer->frame, size);
    mrc_endpoint_receive(fuzzer->hosts[to].endpoint, fuzzer->now, &in);
    free(exact);
}

static void take_events(struct fuzzer *fuzzer, struct host *host) {
    mrc_event event;

    for (uint32_t i = 0; mrc_endpoint_poll(host->endpoint, &event); i++) {
        if (i == EVENTS_AT_ONCE) {
            violate(fuzzer, "events without end");
            return;
        }
        host->is_broken = host->is_broken || event.type == MRC_EVENT_QP;
        fuzzer->result->completed += event.type == MRC_EVENT_WRITE && event.status == MRC_OK;
    }
}

/* Lets both say and do what they have to; nine frames in ten reach the other. */
static void exchange(struct fuzzer *fuzzer) {
    for (uint32_t i = 0; i < 2; i++) {
        struct host *host = &fuzzer->hosts[i];
        uint32_t frames = 0;

        mrc_endpoint_drained(host->endpoint, fuzzer->now);
        for (uint32_t times = 0; mrc_endpoint_deadline(host->endpoint) <= fuzzer->now; times++) {
            mrc_endpoint_timeout(host->endpoint, fuzzer->now);
            if (times == TIMERS_AT_ONCE) {
                violate(fuzzer, "timers without end");
                break;
            }
        }
        while (mrc_endpoint_transmit(host->endpoint, fuzzer->now, &fuzzer->out)) {
            uint32_t size = 0;

            for (uint32_t k = 0; k < fuzzer->out.slice_count; k++) {
                memcpy(fuzzer->frame + size, fuzzer->out.slices[k].base,
                       fuzzer->out.slices[k].size);
                size += (uint32_t)fuzzer->out.slices[k].size;
            }
            fuzzer->result->answers++;
            if (fuzzer->out.packets == 1)
                keep(fuzzer, 1 - i, size);
            if (!one_in(fuzzer, 10))
                give(fuzzer, 1 - i, fuzzer->out.plane, size,
                     fuzzer->out.packets > 1 ? fuzzer->out.segment_size : 0);
            if (++frames == FRAMES_AT_ONCE) {
                violate(fuzzer, "frames without end");
                break;
            }
        }
        take_events(fuzzer, host);
    }
}

/* ---- Hostile frames ---- */

static void repair_icrc(struct fuzzer *fuzzer, uint32_t size) {
    struct encap encap;
    uint8_t *bth;
    uint32_t state;

    if (encap_get(fuzzer->frame, size, &encap) != ENCAP_OK || encap.cut ||
        encap.segments_size < WIRE_BTH_SIZE + WIRE_ICRC_SIZE)
        return;
    bth = fuzzer->frame + (encap.segments - fuzzer->frame);
    state = encap_icrc_start(&fuzzer->icrc, encap.ip, 0, encap.segments_size);
    state = icrc_bth(&fuzzer->icrc, state, bth);
    state = fuzzer->icrc.update(state, bth + WIRE_BTH_SIZE,
                                encap.segments_size - WIRE_BTH_SIZE - WIRE_ICRC_SIZE);
    icrc_store(state, bth + encap.segments_size - WIRE_ICRC_SIZE);
}

static uint32_t put_random_bytes(struct fuzzer *fuzzer) {
    uint32_t size = draw(fuzzer) % 200;

    for (uint32_t i = 0; i < size; i++)
        fuzzer->frame[i] = (uint8_t)draw(fuzzer);
    return size;
}

/* A frame that was sent once, changed in a few bytes of its headers. */
static uint32_t put_mutated(struct fuzzer *fuzzer, uint32_t *to) {
    const struct valid *valid = &fuzzer->corpus[draw(fuzzer) % CORPUS];
    uint32_t size = valid->size;

    if (valid->data == NULL)
        return put_random_bytes(fuzzer);
    memcpy(fuzzer->frame, valid->data, size);
    *to = valid->to;
    if (one_in(fuzzer, 8))
        size = draw(fuzzer) % size;
    for (uint32_t times = draw(fuzzer) % 4; times > 0 && size > 0; times--) {
        uint32_t at = draw(fuzzer) % (size < 160 ? size : 160);

        fuzzer->frame[at] = (uint8_t)(one_in(fuzzer, 2) ? draw(fuzzer) : fuzzer->frame[at] ^ 1);
    }
    if (!one_in(fuzzer, 8))
        repair_icrc(fuzzer, size);
    return size;
}

static void fill_packet(struct fuzzer *fuzzer, uint32_t to, struct packet *packet) {
    static const uint8_t opcodes[] = {0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB,
                                      0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE};
    static const uint8_t reasons[] = {0x01, 0x02, 0x06, 0x07, 0x0A, 0x0B, 0x19, 0x55};
    const struct host *host = &fuzzer->hosts[to];
    uint8_t opcode = opcodes[draw(fuzzer) % sizeof opcodes];
    bool is_write = wire_is_write(opcode);
    uint32_t base = is_write ? fuzzer->hosts[1 - to].local.psn : host->local.psn;
    mrc_qp_stats stats;

    if (mrc_qp_get_stats(host->endpoint, host->local.number, &stats) == MRC_OK)
        base += is_write ? (uint32_t)(stats.bytes_received / MTU) : (uint32_t)stats.packets_sent;
    memset(packet, 0, sizeof *packet);
    packet->opcode = opcode;
    packet->ack_request = one_in(fuzzer, 2);
    packet->rtx = one_in(fuzzer, 2);
    packet->ts = one_in(fuzzer, 4);
    packet->dest_qp = one_in(fuzzer, 20) ? draw(fuzzer) & 0xFFFFFF : host->local.number;
    if (opcode == WIRE_ENDPOINT_REQUEST || opcode == WIRE_ENDPOINT_RESPONSE)
        packet->dest_qp = WIRE_QP_ENDPOINT;
    packet->psn = (one_in(fuzzer, 10) ? draw(fuzzer) : base + draw(fuzzer) % 300 - 150) & 0xFFFFFF;
    packet->msn = draw(fuzzer) & 0xFFFF;
    packet->tx_timestamp = (uint16_t)draw(fuzzer);
    packet->va = VA + draw(fuzzer) % (one_in(fuzzer, 60) ? 2 * REGION : REGION - MTU);
    packet->r_key = one_in(fuzzer, 200) ? draw(fuzzer) : KEY;
    packet->dma_length = draw(fuzzer);
    packet->immediate = draw(fuzzer);
    packet->syndrome = (uint8_t)(one_in(fuzzer, 100) ? draw(fuzzer) : WIRE_SYNDROME_ACK);
    packet->m = draw(fuzzer) & 3;
    packet->pr = one_in(fuzzer, 3);
    packet->ack_psn_offset = (int16_t)(one_in(fuzzer, 2) ? draw(fuzzer) : draw(fuzzer) % 64);
    packet->entropy = draw(fuzzer);
    packet->cack_psn = packet->psn;
    packet->mpr = (uint8_t)draw(fuzzer);
    packet->sack_offset = (int16_t)(one_in(fuzzer, 2) ? draw(fuzzer) : draw(fuzzer) % 256 - 64);
    packet->sack_bitmap = (uint64_t)draw(fuzzer) << 32 | draw(fuzzer);
    packet->ooo_count = draw(fuzzer) & 0x7FFF;
    packet->r_c = one_in(fuzzer, 4);
    packet->rcv_cwnd_pen = (uint8_t)(one_in(fuzzer, 2) ? draw(fuzzer) & 0x7F : 0);
    packet->rcvd_bytes = draw(fuzzer) & 0xFFFFFF;
    packet->reason = reasons[draw(fuzzer) % (one_in(fuzzer, 100) ? sizeof reasons : 6)];
    packet->cc_type = opcode == WIRE_NACK ? 2 : 0;
    packet->nack_psn = packet->psn;
    packet->probe_id = (uint16_t)draw(fuzzer);
    packet->op = draw(fuzzer) & 1;
    packet->port_status_mask = draw(fuzzer);
    if (is_write) {
        packet->payload = fuzzer->source;
        packet->payload_size = draw(fuzzer) % (one_in(fuzzer, 200) ? 2 * MTU : MTU + 1);
    }
}

/* A packet that is right in all but its meaning. */
static uint32_t put_packet(struct fuzzer *fuzzer, uint32_t to) {
    mrc_address here = address_of(to);
    mrc_address there = address_of(1 - to);
    static const uint8_t dscps[] = {0, 4, 8, 46, 12, 16};
    struct flow flow = {.source = {.version = 6}, .destination = {.version = 6}};
    struct packet packet;
    size_t size;
    uint8_t *at;
    uint32_t pad;

    memcpy(flow.source.bytes, there.bytes, 16);
    memcpy(flow.destination.bytes, here.bytes, 16);
    flow.udp_port = UDP_PORT;
    if (one_in(fuzzer, 30))
        flow.source.bytes[15] = (uint8_t)draw(fuzzer);
    fill_packet(fuzzer, to, &packet);
    pad = wire_pad(packet.payload_size);
    size = wire_headers_size(packet.opcode, packet.ts) + packet.payload_size + pad;
    at = fuzzer->frame + encap_put(&flow, draw(fuzzer), dscps[draw(fuzzer) % sizeof dscps],
                                   (uint8_t)(draw(fuzzer) & 3), size + WIRE_ICRC_SIZE, 1,
                                   fuzzer->frame);
    at += wire_put(&packet, at);
    if (packet.payload_size > 0)
        memcpy(at, packet.payload, packet.payload_size);
    memset(at + packet.payload_size, 0, pad);
    at += packet.payload_size + pad + WIRE_ICRC_SIZE;
    repair_icrc(fuzzer, (uint32_t)(at - fuzzer->frame));
    return (uint32_t)(at - fuzzer->frame);
}

/* ---- What must hold ---- */

static uint64_t dropped(const mrc_counters *counters) {
    return counters->drop_short + counters->drop_protocol + counters->drop_port +
           counters->drop_icrc + counters->drop_opcode + counters->drop_unknown_qp +
           counters->drop_source + counters->drop_state + counters->drop_psn +
           counters->drop_stale + counters->drop_rate + counters->drop_plane;
}

static void check(struct fuzzer *fuzzer, const struct host *host) {
    const mrc_config *config = &fuzzer->config;
    mrc_counters counters;

    mrc_endpoint_counters(host->endpoint, &counters);
    if (!has_guards(host->memory, host->memory_size))
        violate(fuzzer, "a byte beside the endpoint was written");
    if (!has_guards(host->block, REGION))
        violate(fuzzer, "a byte beside the region was written");
    if (counters.qps > config->max_qps || counters.peers > 1 || counters.regions != 1 ||
        counters.writes > config->max_writes || counters.chunks > config->max_chunks ||
        counters.immediates > config->max_immediates || counters.controls > config->max_controls)
        violate(fuzzer, "more is in use than there is");
}

static void replace(struct fuzzer *fuzzer) {
    for (uint32_t i = 0; i < 2; i++)
        mrc_qp_close(fuzzer->hosts[i].endpoint, fuzzer->now, fuzzer->hosts[i].local.number);
    fuzzer->now += 2 * fuzzer->config.linger; /* so that its place is free again */
    exchange(fuzzer);
    join(fuzzer);
}

static bool post(struct fuzzer *fuzzer, struct host *host) {
    mrc_write write = {.qp = host->local.number,
                       .key = KEY,
                       .va = VA,
                       .data = fuzzer->source,
                       .size = draw(fuzzer) % (4 * MTU),
                       .immediate = 1,
                       .has_immediate = one_in(fuzzer, 2)};

    return mrc_qp_write(host->endpoint, fuzzer->now, &write) == MRC_OK;
}

/* Whatever came before, two new queue pairs that nobody attacks carry all that is posted. */
static void live_on(struct fuzzer *fuzzer) {
    uint64_t expected = fuzzer->result->completed + WRITES_IN_PEACE;
    int64_t end;

    replace(fuzzer);
    end = fuzzer->now + PEACE;
    for (uint32_t posted = 0; fuzzer->result->completed < expected; fuzzer->now += 100000) {
        posted += posted < WRITES_IN_PEACE && post(fuzzer, &fuzzer->hosts[posted % 2]);
        exchange(fuzzer);
        if (fuzzer->hosts[0].is_broken || fuzzer->hosts[1].is_broken || fuzzer->now > end) {
            violate(fuzzer, "the endpoints do not live on");
            return;
        }
    }
    fuzzer->result->completed -= WRITES_IN_PEACE;
}

static void attack(struct fuzzer *fuzzer) {
    uint32_t to = draw(fuzzer) & 1;
    uint32_t plane = one_in(fuzzer, 50) ? draw(fuzzer) : draw(fuzzer) % PLANES;
    uint32_t kind = draw(fuzzer) % 16;
    uint32_t size;
    mrc_counters before;
    mrc_counters after;

    if (kind == 0)
        size = put_random_bytes(fuzzer);
    else if (kind < 7)
        size = put_mutated(fuzzer, &to);
    else
        size = put_packet(fuzzer, to);
    mrc_endpoint_counters(fuzzer->hosts[to].endpoint, &before);
    give(fuzzer, to, plane, size, one_in(fuzzer, 20) ? draw(fuzzer) % 300 : 0);
    mrc_endpoint_counters(fuzzer->hosts[to].endpoint, &after);
    fuzzer->result->frames++;
    fuzzer->result->accepted += dropped(&after) == dropped(&before);
}

static bool init(struct fuzzer *fuzzer, uint64_t seed, struct fuzz_endpoint *result) {
    prng_init(&fuzzer->prng, seed, 0);
    icrc_choose(&fuzzer->icrc);
    mrc_config_default(&fuzzer->config);
    fuzzer->config.max_qps = 8;
    fuzzer->config.max_peers = 2;
    fuzzer->config.max_regions = 2;
    fuzzer->config.max_writes = 16;
    fuzzer->config.max_chunks = 8;
    fuzzer->config.max_immediates = 6;
    fuzzer->config.max_controls = 32;
    fuzzer->config.max_events = 32;
    fuzzer->config.trimming = draw(fuzzer) & 1;
    fuzzer->config.policy = draw(fuzzer) & 1;
    fuzzer->now = 1000000000;
    fuzzer->result = result;
    return init_host(fuzzer, 0) && init_host(fuzzer, 1);
}

static void end(struct fuzzer *fuzzer) {
    for (uint32_t i = 0; i < CORPUS; i++)
        free(fuzzer->corpus[i].data);
    for (uint32_t i = 0; i < 2; i++) {
        free(fuzzer->hosts[i].memory);
        free(fuzzer->hosts[i].block);
    }
    free(fuzzer);
}

int fuzz_endpoint(uint64_t seed, uint64_t count, struct fuzz_endpoint *result) {
    struct fuzzer *fuzzer = calloc(1, sizeof *fuzzer);

    if (fuzzer == NULL || !init(fuzzer, seed, result)) {
        if (fuzzer != NULL)
            end(fuzzer);
        return -1;
    }
    join(fuzzer);
    for (uint64_t i = 0; i < count && result->violations == 0; i++) {
        if (one_in(fuzzer, 4))
            post(fuzzer, &fuzzer->hosts[draw(fuzzer) & 1]);
        attack(fuzzer);
        if (one_in(fuzzer, 2)) {
            fuzzer->now += draw(fuzzer) % (one_in(fuzzer, 100) ? 200000000 : 100000);
            exchange(fuzzer);
        }
        check(fuzzer, &fuzzer->hosts[0]);
        check(fuzzer, &fuzzer->hosts[1]);
        if (fuzzer->hosts[0].is_broken || fuzzer->hosts[1].is_broken) {
            fuzzer->result->errors++;
            replace(fuzzer);
        }
    }
    if (result->violations == 0)
        live_on(fuzzer);
    end(fuzzer);
    return 0;
}
