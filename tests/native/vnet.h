/* SPDX-License-Identifier: Apache-2.0 */
/* A network in one process and in virtual time: endpoints of the core as hosts on up to 16 planes.
 *
 * Every plane is one switch that never blocks; a host sends into it by a link with a rate, a queue,
 * a delay and faults. All randomness comes from one seed. After every step the network checks what
 * must always hold (vnet_check.c); the first violation is kept as a text and ends the run.
 *
 *   vnet.c        hosts, the event heap, the loop around the five verbs, connections
 *   vnet_link.c   what happens to a frame between two hosts
 *   vnet_check.c  what must hold
 *
 * Hosts number planes alike. Times are ns, sizes bytes.
 */
#ifndef VNET_H
#define VNET_H

#include "mrc.h"

typedef struct vnet vnet;

/* From one host into one plane. */
typedef struct vnet_link {
    uint64_t rate_bps;    /* 0: unlimited */
    uint64_t queue_bytes; /* what does not fit is dropped, or trimmed; 0: unlimited */
    uint64_t busy_bytes;  /* the port tells its host to wait above this; 0: never */
    uint64_t mark_bytes;  /* CE above this; 0: never */
    int64_t delay;
    int64_t jitter;        /* uniform in [0, jitter) on top: reorders */
    uint32_t loss_ppm;
    uint32_t duplicate_ppm;
    uint32_t corrupt_ppm; /* one bit behind the UDP header flips */
    uint32_t mtu;         /* larger IP packets vanish; 0: none do */
    uint8_t trim_dscp;    /* what of a full queue is cut to its headers gets this; 0: dropped */
    bool cut;             /* frames of several packets are cut into packets */
    bool dead;            /* nothing gets through */
} vnet_link;

/* What happened to a packet. */
enum vnet_fate {
    VNET_SENT,
    VNET_DELIVERED,
    VNET_LOST,      /* at random */
    VNET_FULL,      /* of a full queue */
    VNET_DEAD,      /* in a dead link, or one that was down */
    VNET_RULED_OUT, /* by a rule */
    VNET_TOO_LONG,
    VNET_TRIMMED,
    VNET_MARKED,
    VNET_CORRUPTED,
    VNET_DUPLICATED,
    VNET_FATES,
};

typedef struct vnet_record {
    int64_t time;
    uint64_t bitmap; /* SACK */
    uint32_t fate;   /* enum vnet_fate */
    uint32_t host;   /* that sent it */
    uint32_t plane;
    uint32_t opcode;
    uint32_t qp;  /* destination */
    uint32_t psn; /* SACK: cack; NACK: the one refused; probes: the id */
    uint32_t ev;
    uint32_t entropy; /* SACK, NACK: the EV that it names */
    uint32_t size; /* IP packet */
    int32_t offset; /* SACK: ack_psn - cack */
    uint32_t code;  /* SACK: m; NACK: reason; ACK: syndrome */
    uint32_t dscp;
    bool rtx;
    bool ack_request;
    bool pr;
    uint32_t frame; /* number of the frame that it left in */
} vnet_record;

/* Counts of one host's link into one plane, by fate and by opcode (index opcode - 0xC0). */
typedef struct vnet_counts {
    uint64_t frames;
    uint64_t packets[11];
    uint64_t by_opcode[32];
    uint64_t data_bytes; /* nominal, of writes sent */
    uint64_t rtx;
} vnet_counts;

enum vnet_action { VNET_DROP, VNET_MARK, VNET_TRIM, VNET_DUPLICATE, VNET_CORRUPT, VNET_DELAY };

/* A fault by exact mask: of the packets that match, `skip` go by, then `count` are dealt with. */
typedef struct vnet_rule {
    uint32_t host;
    uint32_t planes;  /* mask */
    uint32_t opcodes; /* mask; bit opcode - 0xC0 */
    uint32_t psn;     /* UINT32_MAX: any */
    uint32_t ev_mask; /* (EV & ev_mask) == ev_value; 0, 0: any */
    uint32_t ev_value;
    uint32_t skip;
    uint32_t count;
    uint32_t action; /* enum vnet_action */
    int64_t value;   /* TRIM: DSCP; DELAY: ns */
} vnet_rule;

typedef struct vnet_options {
    uint64_t seed;
    uint32_t hosts;
    uint32_t planes;
    uint32_t ipv4_planes;  /* mask */
    uint32_t plane_mtu;    /* of the hosts' ports */
    uint64_t region_bytes; /* of each host's memory region */
    int64_t batch;         /* how long a host collects frames before it takes them in */
    bool drained;          /* mrc_endpoint_drained is called behind each batch */
    int64_t stall;         /* work without progress for that long while a path works is a fault */
} vnet_options;

/* Two hosts' queue pairs to each other: side 0 and side 1. */
typedef struct vnet_setup {
    uint32_t host[2];
    uint32_t mtu[2];
    uint32_t mpr[2];
    uint32_t max_wimm[2];
    uint32_t first_psn[2]; /* UINT32_MAX: random */
    uint32_t receives[2];  /* posted at first, and kept up by one for each that is used */
    bool trim_nack;
    bool dynamic_mpr;
    uint32_t planes;       /* mask of the planes that are paired */
    uint16_t uplinks;      /* SRv6 with so many uplinks a T0; 0: no SRv6 */
    bool srh;              /* SRv6 */
} vnet_setup;

typedef struct vnet_event {
    uint32_t host;
    mrc_event event;
} vnet_event;

/* NULL: the configuration is not valid, or no memory. rate_bps is given to each host's ports. */
vnet *vnet_new(const vnet_options *options, const mrc_config *config, const vnet_link *links);
void vnet_free(vnet *net);

/* The first violation with the last events before it; "" when there is none. */
const char *vnet_violation(const vnet *net);

int64_t vnet_now(const vnet *net);
mrc_endpoint *vnet_endpoint(vnet *net, uint32_t host);

/* Runs until `until` at most; with until_idle also ends when every write posted has completed. True
 * when it is idle then. */
bool vnet_run(vnet *net, int64_t until, bool until_idle);
bool vnet_is_idle(const vnet *net);

/* The host is not running for so long. It was about to read its planes one after the other: those
 * of the mask `read` it has, the others are read when it goes on, with all that came meanwhile. */
void vnet_pause(vnet *net, uint32_t host, int64_t duration, uint32_t read);

/* A caller did something to the host's endpoint itself. */
void vnet_kick(vnet *net, uint32_t host);

/* The host's application takes no events until it is no longer held; what is known of it by its
 * events is not checked meanwhile. */
void vnet_hold(vnet *net, uint32_t host, bool held);

void vnet_set_link(vnet *net, uint32_t host, uint32_t plane, const vnet_link *link);
void vnet_get_link(const vnet *net, uint32_t host, uint32_t plane, vnet_link *link);

/* The host's port goes down or up; `told`: its endpoint hears of it. */
void vnet_set_port(vnet *net, uint32_t host, uint32_t plane, bool up, bool told);
void vnet_enable(vnet *net, uint32_t host, uint32_t plane, bool enabled);

int vnet_add_rule(vnet *net, const vnet_rule *rule);
uint32_t vnet_rule_hits(const vnet *net, int rule);
void vnet_clear_rules(vnet *net);

/* The number of the connection, or a negative enum mrc_status. */
int vnet_connect(vnet *net, const vnet_setup *setup);
uint32_t vnet_qp(const vnet *net, int connection, uint32_t side);
uint32_t vnet_peer(const vnet *net, int connection, uint32_t side);
int vnet_close(vnet *net, int connection, uint32_t side);
int vnet_deny(vnet *net, int connection, uint32_t side, uint32_t ev, bool deny);

/* A write into the other side's region: from where the last one ended (offset UINT64_MAX) or at an
 * offset, which may be outside; key 0 is the right one. The tag counts up from 0 on each side.
 * UINT64_MAX of `immediate`: without. Negative: enum mrc_status, and nothing was posted. */
int vnet_write(vnet *net, int connection, uint32_t side, uint64_t size, uint64_t immediate,
               uint64_t offset, uint32_t key);

uint32_t vnet_key(const vnet *net, uint32_t host);
uint8_t *vnet_region(vnet *net, uint32_t host);

bool vnet_take_event(vnet *net, vnet_event *event);

const vnet_counts *vnet_get_counts(const vnet *net, uint32_t host, uint32_t plane);

/* The records of the last packets, oldest first; returns how many were written. The hash is over
 * all there ever were. */
uint32_t vnet_trace(const vnet *net, vnet_record *records, uint32_t room);
uint64_t vnet_hash(const vnet *net);

/* Keeps a copy of every frame delivered from now on (as many as room is for), for replay. */
void vnet_keep(vnet *net, uint32_t room);
typedef struct vnet_kept {
    uint32_t host; /* that it was delivered to */
    uint32_t plane;
    uint32_t size;
    uint32_t segment_size;
    const uint8_t *data;
} vnet_kept;
bool vnet_get_kept(const vnet *net, uint32_t index, vnet_kept *kept);

/* A frame from nowhere arrives at a host now. */
void vnet_inject(vnet *net, const vnet_kept *frame);

#endif
