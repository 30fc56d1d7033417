/* SPDX-License-Identifier: Apache-2.0 */
/* What a virtual network is made of. Shared by the vnet_*.c files alone. */
#ifndef VNET_INTERNAL_H
#define VNET_INTERNAL_H

#include "encap.h"
#include "prng.h"
#include "vnet.h"
#include "wire.h"

enum {
    VNET_GUARD = 1024, /* canaries on either side of a region, bytes */
    VNET_RECORDS = 1 << 15,
    VNET_EVENTS = 1 << 12,
    VNET_RULES = 32,
    VNET_PSNS = 4096, /* a window at most */
    VNET_KEPT_MAX = 1 << 16,
    VNET_EVS_DENIED = 16,
};

/* A frame under way. */
struct vnet_frame {
    uint32_t number;
    uint32_t from;
    uint32_t to;
    uint32_t plane;
    uint32_t size;
    uint32_t header_size;
    uint32_t segment_size;
    uint32_t packets;
    uint32_t corrupted; /* index of the packet with the flipped bit, plus one */
    bool is_forged;
    uint8_t data[];
};

enum vnet_kind { VNET_ARRIVAL, VNET_WAKE, VNET_PORT_FREE };

struct vnet_timer {
    int64_t time;
    uint64_t order;
    enum vnet_kind kind;
    uint32_t host;
    uint32_t plane;
    struct vnet_frame *frame;
};

/* A write as its poster sees it. */
struct vnet_posted {
    uint64_t offset;
    uint64_t size;
    uint64_t immediate; /* UINT64_MAX: none */
    bool is_checked;    /* it goes where it should */
};

/* One side of a connection: what it posted, and what the network saw of it. */
struct vnet_side {
    uint32_t host;
    uint32_t peer;
    mrc_qp_attributes local;
    bool is_closed;
    int error; /* of its MRC_EVENT_QP */
    struct vnet_side *other;
    int64_t works_since; /* a path between the two works; INT64_MAX: none does */
    int64_t progressed;
    uint64_t progress;

    struct vnet_posted *posted;
    uint64_t posted_count;
    uint64_t posted_room;
    uint64_t completed;
    uint64_t received; /* writes of this side that the other has taken receive events past */

    uint32_t next_psn;
    uint32_t cack; /* as told by what was delivered to it */
    uint64_t packets;
    uint64_t rtx;
    uint64_t immediates_sent;
    uint64_t immediates_received;
    uint32_t last_ev[VNET_PSNS];
    uint32_t denied[VNET_EVS_DENIED];
    uint32_t denied_count;
};

struct vnet_port {
    mrc_plane info;
    bool is_up; /* really */
    vnet_link link;
    int64_t free_at; /* when all that is queued has left */
    bool is_busy;
    vnet_counts counts;
    uint64_t fair_bytes; /* policy equal: dealt, or missed while it was out */
};

struct vnet_host {
    mrc_endpoint *endpoint;
    void *memory;
    struct vnet_port ports[MRC_PLANES];
    uint8_t *block; /* guard, region, guard */
    uint8_t *model; /* what the region may hold */
    uint8_t *source;
    uint64_t used; /* of the region, by posted writes */
    uint32_t key;
    struct vnet_frame **inbox;
    uint32_t inbox_count;
    uint32_t inbox_room;
    int64_t wake_at;
    int64_t paused_until;
    uint32_t read; /* mask of the planes that the round which was interrupted had read */
    int64_t serviced;
    uint32_t spins; /* services at one moment without a frame */
    struct vnet_side **by_number; /* by the low 16 bits of the queue pair's number */
    uint64_t rtx_bytes;           /* retransmitted */
    uint32_t largest;             /* nominal size of a packet */
    bool is_held;                 /* its application takes no events */
    bool is_uneven;               /* a queue pair was denied a whole plane */
};

struct vnet {
    vnet_options options;
    mrc_config config;
    int64_t now;
    uint64_t order;
    struct prng prng;
    struct vnet_host *hosts;
    struct vnet_timer *heap;
    uint32_t heap_count;
    uint32_t heap_room;
    uint32_t under_way; /* frames in the heap and in inboxes */
    uint32_t frames;
    struct vnet_side **sides; /* two for each connection */
    uint32_t side_count;
    struct vnet_rule rules[VNET_RULES];
    uint32_t rule_seen[VNET_RULES];
    uint32_t rule_hits[VNET_RULES];
    int rule_count;
    vnet_record *records;
    uint64_t record_count;
    uint64_t hash;
    vnet_event *events;
    uint32_t event_first;
    uint32_t event_count;
    struct vnet_frame **kept;
    uint32_t kept_room;
    uint32_t kept_count;
    mrc_frame_out out;
    enum vnet_fate fate; /* of the frame that vnet_note goes through */
    char *violation;
};

/* ---- vnet.c ---- */

void vnet_schedule(struct vnet *net, int64_t time, enum vnet_kind kind, uint32_t host,
                   uint32_t plane, struct vnet_frame *frame);

/* The host looks at its endpoint at that time. */
void vnet_wake(struct vnet *net, uint32_t host, int64_t time);

static inline uint8_t *vnet_region_of(const struct vnet_host *host) {
    return host->block + VNET_GUARD;
}

/* Memory of tests: ends the process when there is none. */
void *vnet_memory(size_t size);

/* ---- vnet_link.c ---- */

/* The frame that the endpoint just gave out goes on its way. */
void vnet_transmit(struct vnet *net, uint32_t host, const mrc_frame_out *out);

/* Calls `see` for each packet of a frame that can be read. */
typedef void vnet_see(struct vnet *net, const struct vnet_frame *frame, uint32_t index,
                      const struct encap *encap, const struct packet *packet);
void vnet_each_packet(struct vnet *net, const struct vnet_frame *frame, vnet_see *see);

void vnet_note(struct vnet *net, enum vnet_fate fate, const struct vnet_frame *frame);

/* ---- vnet_check.c ---- */

void vnet_fail(struct vnet *net, const char *format, ...) __attribute__((format(printf, 2, 3)));

void vnet_check_sent(struct vnet *net, const struct vnet_frame *frame);
void vnet_check_delivered(struct vnet *net, const struct vnet_frame *frame);
void vnet_check_event(struct vnet *net, uint32_t host, const mrc_event *event);
void vnet_check_host(struct vnet *net, uint32_t host);
void vnet_check_idle(struct vnet *net);

/* Whether a path works may have changed. */
void vnet_check_paths(struct vnet *net);

#endif
