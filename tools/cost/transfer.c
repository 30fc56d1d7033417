/* SPDX-License-Identifier: Apache-2.0 */
/* Two endpoints of the core carry writes over four planes, in virtual time, to be counted.
 *
 * Each share of the work is a function of its own (SHARE) with nothing in it but calls of the core,
 * so that callgrind's --toggle-collect=share_... counts exactly one of them. Packets are headers
 * only: no payload is copied and no ICRC computed. Prints a line "name value" for each count, once
 * when all is warm, then begin() is called, and again at the end.
 *
 *     transfer SIZE BURST PACKETS    bytes of a message, packets of a frame at most, packets in all
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mrc.h"

#define US ((int64_t)1000)
#define TURN (100 * US)         /* from one batch of frames to the next, and half a round trip */
#define FRAME_MAX 65536u
#define SHARE __attribute__((noipa)) static

enum {
    PLANES = 4,
    HOSTS = 2,
    MTU = 4096,
    LINK_MTU = 9000,
    BATCH = 64,           /* frames that a driver takes from the core, or gives it, at once */
    BATCH_PACKETS = 128,  /* what about 40 Gb/s carry in a turn */
    POSTED_BYTES = 16 << 20,
    POSTED_MAX = 256,
    WARM_UP = 200, /* turns */
};

struct host {
    mrc_endpoint *endpoint;
    uint32_t peer;
    mrc_qp_attributes qp;
    mrc_frame_out frames[BATCH];
    uint32_t count;
};

/* What is on its way: whole frames, as a receiving socket hands them over. */
struct batch {
    mrc_frame_in frames[BATCH];
    uint32_t count;
};

static struct host hosts[HOSTS];
static struct batch batches[HOSTS]; /* to that host */
static uint8_t bytes[HOSTS][BATCH][FRAME_MAX];
static uint8_t memory[POSTED_BYTES];
static uint64_t posted, completed;

/* ---- What is counted ---- */

SHARE void share_post(const mrc_write *write, uint32_t count, int64_t now) {
    for (uint32_t i = 0; i < count; i++)
        mrc_qp_write(hosts[0].endpoint, now, write);
}

SHARE void share_send(uint32_t most, int64_t now) {
    struct host *host = &hosts[0];
    uint32_t packets = 0;

    while (packets < most && host->count < BATCH &&
           mrc_endpoint_transmit(host->endpoint, now, &host->frames[host->count]))
        packets += host->frames[host->count++].packets;
}

SHARE void share_receive(int64_t now) {
    for (uint32_t i = 0; i < batches[1].count; i++)
        mrc_endpoint_receive(hosts[1].endpoint, now, &batches[1].frames[i]);
    mrc_endpoint_drained(hosts[1].endpoint, now);
}

SHARE void share_answer(int64_t now) {
    struct host *host = &hosts[1];

    while (host->count < BATCH &&
           mrc_endpoint_transmit(host->endpoint, now, &host->frames[host->count]))
        host->count++;
}

SHARE void share_sack(int64_t now) {
    for (uint32_t i = 0; i < batches[0].count; i++)
        mrc_endpoint_receive(hosts[0].endpoint, now, &batches[0].frames[i]);
}

SHARE void share_complete(void) {
    mrc_event event;

    while (mrc_endpoint_poll(hosts[0].endpoint, &event))
        completed += event.type == MRC_EVENT_WRITE;
}

SHARE void share_time(int64_t now) {
    for (uint32_t i = 0; i < HOSTS; i++)
        mrc_endpoint_timeout(hosts[i].endpoint, now);
}

/* ---- Between the two ---- */

/* The frames of a host reach the other, one plane after the other, as sockets are read. */
static void carry(uint32_t from) {
    struct host *host = &hosts[from];
    struct batch *batch = &batches[1 - from];

    batch->count = 0;
    for (uint32_t plane = 0; plane < PLANES; plane++) {
        for (uint32_t i = 0; i < host->count; i++) {
            const mrc_frame_out *frame = &host->frames[i];
            uint8_t *to = bytes[1 - from][batch->count];

            if (frame->plane != plane)
                continue;
            assert(frame->size <= FRAME_MAX);
            batch->frames[batch->count++] =
                (mrc_frame_in){.plane = plane,
                               .size = frame->size,
                               .segment_size = frame->packets > 1 ? frame->segment_size : 0,
                               .data = to};
            for (uint32_t k = 0; k < frame->slice_count; k++) {
                memcpy(to, frame->slices[k].base, frame->slices[k].size);
                to += frame->slices[k].size;
            }
        }
    }
    host->count = 0;
}

static void post(uint32_t size, int64_t now) {
    mrc_write write = {.qp = hosts[0].qp.number, .key = 1, .data = memory, .size = size};
    uint64_t most = POSTED_BYTES / size < POSTED_MAX ? POSTED_BYTES / size : POSTED_MAX;
    uint32_t count = (uint32_t)(most - (posted - completed));

    share_post(&write, count, now);
    posted += count;
}

static void turn(uint32_t size, int64_t now) {
    post(size, now);
    share_send(BATCH_PACKETS, now);
    share_receive(now);
    share_answer(now);
    share_sack(now);
    share_complete();
    share_time(now);
    carry(0);
    carry(1);
}

/* ---- Set-up and report ---- */

static mrc_address address_of(uint32_t host, uint32_t plane) {
    return (mrc_address){.version = 6,
                         .bytes = {0xFD, [7] = (uint8_t)plane, [15] = (uint8_t)(host + 1)}};
}

static void set_up_host(uint32_t number, uint32_t burst) {
    struct host *host = &hosts[number];
    mrc_config config;

    mrc_config_default(&config);
    config.headers_only = true;
    config.burst = burst;
    config.base_rtt_floor = 500 * US;
    config.target_delay_floor = 1000 * US;
    config.window_floor_packets = 64;
    host->endpoint = mrc_endpoint_init(aligned_alloc(64, mrc_endpoint_size(&config)), &config, 1);
    host->qp = (mrc_qp_attributes){.mtu = MTU, .mpr = 32, .max_wimm = 1};
    assert(host->endpoint != NULL);
    for (uint32_t i = 0; i < PLANES; i++) {
        mrc_plane plane = {.address = address_of(number, i),
                           .mac = {2, [5] = (uint8_t)number},
                           .mtu = LINK_MTU,
                           .rate_bps = 10000000000u,
                           .up = true,
                           .enabled = true};

        mrc_endpoint_set_plane(host->endpoint, 0, i, &plane);
    }
}

static void introduce(uint32_t number) {
    struct host *host = &hosts[number];
    mrc_peer_setup setup = {.incarnation = 2 - number};

    for (uint32_t i = 0; i < PLANES; i++) {
        setup.addresses[i] = address_of(1 - number, i);
        setup.remote_planes[i] = (uint8_t)i;
    }
    host->peer = (uint32_t)mrc_peer_add(host->endpoint, 0, &setup);
    for (uint32_t i = 0; i < PLANES; i++) {
        uint8_t mac[6] = {2, [5] = (uint8_t)(1 - number)};

        mrc_peer_set_neighbour(host->endpoint, 0, host->peer, i, mac);
    }
    mrc_qp_create(host->endpoint, 0, 0, 0, &host->qp);
}

static void set_up(uint32_t burst) {
    mrc_region region = {.base = memory, .size = sizeof memory, .key = 1};

    for (uint32_t i = 0; i < HOSTS; i++)
        set_up_host(i, burst);
    for (uint32_t i = 0; i < HOSTS; i++)
        introduce(i);
    for (uint32_t i = 0; i < HOSTS; i++)
        mrc_qp_connect(hosts[i].endpoint, 0, hosts[i].qp.number, hosts[i].peer,
                       &hosts[1 - i].qp);
    mrc_endpoint_register(hosts[1].endpoint, &region);
}

SHARE void begin(void) {}

static void report(void) {
    mrc_qp_stats out, in;
    mrc_plane_stats plane;
    uint64_t received = 0, acknowledged = 0;

    mrc_qp_get_stats(hosts[0].endpoint, hosts[0].qp.number, &out);
    mrc_qp_get_stats(hosts[1].endpoint, hosts[1].qp.number, &in);
    for (uint32_t i = 0; i < PLANES; i++) {
        mrc_peer_stats(hosts[0].endpoint, hosts[0].peer, i, &plane);
        acknowledged += plane.packets_acked;
        mrc_peer_stats(hosts[1].endpoint, hosts[1].peer, i, &plane);
        received += plane.packets_received;
    }
    printf("sent %" PRIu64 "\n", out.packets_sent);
    printf("retransmitted %" PRIu64 "\n", out.packets_retransmitted);
    printf("received %" PRIu64 "\n", received);
    printf("acknowledged %" PRIu64 "\n", acknowledged);
    printf("sacks_sent %" PRIu64 "\n", in.sacks_sent);
    printf("sacks_received %" PRIu64 "\n", out.sacks_received);
}

int main(int argc, char **argv) {
    uint32_t size, packets, sent = 0;
    int64_t now = 0;

    if (argc != 4)
        return 2;
    size = (uint32_t)strtoul(argv[1], NULL, 10);
    packets = (uint32_t)strtoul(argv[3], NULL, 10);
    set_up((uint32_t)strtoul(argv[2], NULL, 10));
    for (uint32_t i = 0; i < WARM_UP; i++)
        turn(size, now += TURN);
    report();
    begin();
    for (; sent < packets; sent += BATCH_PACKETS)
        turn(size, now += TURN);
    puts("");
    report();
    return 0;
}
