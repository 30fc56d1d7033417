/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts, switches and links in virtual time: what happens to a packet between two NICs.
 *
 * Sans-IO: no system call, clock, global, or allocation after fabric_init. Time is ns, passed in;
 * frames are lent and polled; a process on real packets and a simulator drive the same rules.
 * Static tables only: a switch never routes around anything. Source: MRC 1.0
 * (SRv6 mode, traffic classes, what a switch does).
 *
 *     take, fill, enter ->  host port == link == switch port ... host port  -> poll, give
 *
 * A fate drawn from the seed hangs on the packet (addresses, EV, opcode, QP, PSN, RTX, and how
 * often that very packet was lost here before), not on time or order of arrival.
 */
#ifndef FABRIC_H
#define FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FABRIC_NEVER INT64_MAX
#define FABRIC_ENTRANCE UINT32_MAX /* fabric_rule.port: every host's own port, once a packet */

/* cffi: begin */

enum { FABRIC_MILLION = 1000000, FABRIC_OVERHEAD = 24 /* preamble, FCS and gap of a frame */ };

/* A host, or a switch with its uSID. */
struct fabric_node_config {
    bool is_switch;
    bool has_usid;
    uint16_t usid;
    /* Of several ports of a route a hash of addresses and EV (of TCP, ports) picks one; with
     * width > 0 and UDP, the field (EV >> shift) of that width is the number of the port (stev). */
    uint8_t ev_shift;
    uint8_t ev_width;
};

/* One end of a link, and the queues towards the other end. */
struct fabric_port_config {
    uint32_t node;
    uint32_t peer; /* the port at the other end */
    uint64_t rate; /* bit/s, FABRIC_OVERHEAD counted */
    int64_t delay; /* propagation, ns */
    uint32_t data_limit, control_limit; /* bytes of a queue */
    /* CE at dequeue: never at mark_from bytes of waiting data, always from mark_to on, a ramp
     * between; mark_to 0 is off. A port to a host never marks. */
    uint32_t mark_from, mark_to;
    uint32_t control_weight; /* control packets served for one data packet; 0: strictly first */
    bool trim;               /* a write that finds the data queue full is cut to its headers */
    bool sets_mac;           /* a frame leaves with `mac` as its destination */
    uint8_t mac[6];
};

/* At a node, a destination that begins with `prefix` leaves by one of `count` ports, which are
 * config.choices[first ...]. IPv4 addresses are mapped (::ffff:a.b.c.d). prefix_size is 16 (an
 * address) or block_size + 2 (block and next uSID); the longer one is looked up first. */
struct fabric_route {
    uint32_t node;
    uint8_t prefix[16];
    uint8_t prefix_size;
    uint32_t first, count;
};

struct fabric_config {
    uint64_t seed;
    uint32_t node_count, port_count, route_count, choice_count;
    const struct fabric_node_config *nodes;
    const struct fabric_port_config *ports;
    const struct fabric_route *routes;
    const uint32_t *choices;
    uint8_t block[6]; /* of the uSIDs */
    uint8_t block_size;   /* 4 (F3216) or 6 */
    uint32_t packet_count; /* that may be in the fabric at once, lent ones too */
    uint32_t frame_size;   /* bytes that a packet can hold, at least 128 */
    uint32_t rule_count;
    uint8_t dscp_control, dscp_trimmed, dscp_trimmed_lasthop, dscp_trimmable, dscp_trimmable_retx;
};

/* What befalls packets that leave by a port. Chances are in millionths. */
struct fabric_rule {
    uint32_t port;              /* or FABRIC_ENTRANCE, which with an EV makes it a path's rule */
    uint32_t ev_mask, ev_value; /* only packets with (EV & ev_mask) == ev_value; 0, 0: all */
    uint32_t loss;
    uint32_t loss_run; /* PSNs that share the draw of loss: bursts of so many; 0 as 1 */
    uint32_t corrupt;
    uint32_t duplicate;
    uint32_t reorder;
    int64_t reorder_delay; /* ns that a reordered packet comes late; others overtake it */
    int64_t jitter;        /* ns; adds 0 .. jitter to each packet's delay, in order */
};

/* Why a packet went no further. */
enum fabric_drop {
    FABRIC_DROP_DATA_FULL,    /* data queue, and not a packet that may be trimmed */
    FABRIC_DROP_CONTROL_FULL, /* control queue */
    FABRIC_DROP_LINK_DOWN,
    FABRIC_DROP_SILENT,    /* the switch forwards nothing */
    FABRIC_DROP_REBOOTING, /* the switch is gone for a while */
    FABRIC_DROP_NO_ROUTE,
    FABRIC_DROP_HOP_LIMIT,
    FABRIC_DROP_MALFORMED, /* not IP, or ends inside its headers */
    FABRIC_DROP_LOSS,      /* a rule */
    FABRIC_DROPS,
};

/* Of one port. */
struct fabric_counters {
    uint64_t received, received_bytes; /* from the link */
    uint64_t sent, sent_bytes; /* put on the link */
    uint64_t marked;           /* CE set here */
    uint64_t trimmed;
    uint64_t corrupted, duplicated, reordered;
    uint64_t not_duplicated; /* for want of a free packet */
    uint64_t dropped[FABRIC_DROPS];
};

/* A packet, lent to the driver between take and enter, and between poll and give. */
struct fabric_packet {
    struct fabric_packet *next; /* ours */
    int64_t due;                /* when it reaches the end of the link: the time it was delivered */
    uint64_t handle;            /* the driver's, for a payload elsewhere; a double has it too */
    uint64_t identity;          /* ours, as the offsets */
    uint64_t flow;              /* hash of addresses and EV, or TCP ports: picks the ECMP port */
    uint32_t ev;
    uint32_t psn;
    uint32_t size;    /* of the whole frame from the Ethernet header on, without FCS */
    uint32_t present; /* bytes of it that are in `frame`: headers at least */
    uint16_t destination_at, inner_at, udp_at, bth_at; /* 0: not there */
    bool corrupt; /* a bit was flipped: of `frame`, or of what is elsewhere */
    uint8_t frame[];
};

struct fabric;

/* NULL if the configuration is right, else what is wrong with it, with the index of the node, port
 * or route that is meant. */
const char *fabric_check(const struct fabric_config *config, uint32_t *index);

/* Bytes that fabric_init needs; the configuration is right. */
size_t fabric_size(const struct fabric_config *config);

/* Builds a fabric at time 0 in memory that is aligned for any type. The configuration's arrays are
 * copied. */
struct fabric *fabric_init(const struct fabric_config *config, void *memory);

/* A packet to fill (frame, size, present, handle); NULL if there is none. */
struct fabric_packet *fabric_take(struct fabric *fabric);
void fabric_give(struct fabric *fabric, struct fabric_packet *packet);

/* The packet leaves a host by its port. Time never goes back; what was due before happens first. */
void fabric_enter(struct fabric *fabric, uint32_t port, struct fabric_packet *packet, int64_t now);

/* Lets everything happen that is due by now. */
void fabric_advance(struct fabric *fabric, int64_t now);

/* When something happens next; FABRIC_NEVER. */
int64_t fabric_deadline(const struct fabric *fabric);

/* The next packet that has reached a host, and by which of its ports; NULL. */
struct fabric_packet *fabric_poll(struct fabric *fabric, uint32_t *port);

/* ---- What happens to the network, at time `now` ---- */

/* Both directions of the link at a port. Going down loses what is on it and waits for it. */
void fabric_link_set(struct fabric *fabric, uint32_t port, bool up, int64_t now);

/* Down for `down_for` in every `period`, beginning now, until period 0, which leaves it up. */
void fabric_link_flap(struct fabric *fabric, uint32_t port, int64_t period, int64_t down_for,
                      int64_t now);

/* A switch that drops everything while its links stay up, or forwards again. */
void fabric_node_silence(struct fabric *fabric, uint32_t node, bool silent, int64_t now);

/* A switch that is gone, its links with it, and comes back with empty queues. */
void fabric_node_reboot(struct fabric *fabric, uint32_t node, int64_t down_for, int64_t now);

/* Puts a rule into a slot (0 .. rule_count - 1); one that does nothing empties it. Of several that
 * match, all apply. */
void fabric_rule_set(struct fabric *fabric, uint32_t slot, const struct fabric_rule *rule,
                     int64_t now);

/* ---- What it is like ---- */

bool fabric_link_is_up(const struct fabric *fabric, uint32_t port);
struct fabric_counters fabric_counters(const struct fabric *fabric, uint32_t port);
uint32_t fabric_queued(const struct fabric *fabric, uint32_t port); /* bytes of data waiting */
uint32_t fabric_packets(const struct fabric *fabric);               /* inside or lent */

/* cffi: end */

#endif
