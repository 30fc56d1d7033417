/* SPDX-License-Identifier: Apache-2.0 */
/* A peer: its paths, one for each plane, how much may be in flight on them, and which one is next.
 *
 * Shared by all queue pairs to that peer and owned by the endpoint. Knows nothing of PSNs or
 * messages.
 * Sources: MRC 1.0, Paths; Ultra Ethernet 1.0, NSCC. [choice] policy `adaptive` gives each plane an
 * NSCC of its own, `equal` has one for the peer.
 */
#ifndef PEER_H
#define PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "hindsight.h"
#include "loss.h"
#include "mrc.h"
#include "nscc.h"
#include "path.h"
#include "prng.h"

enum {
    PEER_NO_ROOM = -1,  /* a plane is up, but its port is busy or its window full */
    PEER_NO_PLANE = -2, /* none is up */
};

enum { PEER_EV_VALUES = 1 << 12 /* of EV[11:0], below the plane */ };

/* A local plane, as the endpoint keeps it. */
struct plane {
    mrc_plane info;
    bool is_present;
    bool is_busy;
};

/* One plane as a peer uses it. */
struct peer_plane {
    struct path path;
    struct nscc nscc; /* policy adaptive */
    uint64_t inflight; /* nominal bytes */
    uint64_t dealt;    /* nominal bytes given to it, for policy equal */
    bool is_limited;   /* its window held the sender back since the last SACK */
    uint32_t due;      /* mask of enum peer_probe_kind to send */
    uint8_t mac[6];
    bool has_mac;
    bool is_carrying; /* was up when the owner last looked */
    mrc_plane_stats stats;
};

enum peer_probe_kind {
    PEER_PROBE_SMALL = PATH_PROBE_SMALL,
    PEER_PROBE_FULL = PATH_PROBE_FULL,
    PEER_PROBE_BURST = PATH_PROBE_BURST,
    PEER_PROBE_SECOND,      /* a small one on another EV */
    PEER_PROBE_FULL_SECOND, /* the same of full size */
    PEER_PORT_STATUS,  /* Port Status Update */
    PEER_PROBE_KINDS,
};

struct peer {
    const mrc_config *config;
    const struct plane *planes; /* the endpoint's, MRC_PLANES of them */
    mrc_peer_setup setup;
    mrc_address told[MRC_PLANES]; /* our addresses, as the set-up told them to it */
    struct peer_plane plane[MRC_PLANES];
    uint32_t plane_end; /* none from here on was ever paired */
    uint64_t inflight;  /* nominal bytes on all planes */
    struct nscc nscc; /* policy equal */
    struct hindsight hindsight;
    struct prng prng;
    bool is_used;
    bool has_nscc;
    uint32_t number;
    uint32_t qp_count;
    uint32_t mtu;        /* largest of its queue pairs; 0: none yet */
    uint32_t rotation;   /* of picks among equals */
    uint32_t replies;    /* rotation of control packets */
    uint32_t reorder_scale; /* 1..16; doubles when a loss was none */
    int64_t reorder_changed;
    int64_t added;
    int64_t heard;       /* when the last packet came from it */
    int64_t answered;    /* when it last answered: then what we send reaches it, too */
    uint32_t asked;      /* probes since then */
    int64_t worked;      /* when it last had something to send, or data came */
    int64_t received;    /* when data last came */
    int64_t status_at;   /* when the Port Status Update is repeated; INT64_MAX: not needed */
    int64_t status_wait;
};

void peer_init(struct peer *peer, const mrc_config *config, const struct plane *planes,
               uint32_t number, uint64_t seed, int64_t now, const mrc_peer_setup *setup);

/* Another set-up with it: both sides know each other's addresses of now. */
void peer_on_setup(struct peer *peer, int64_t now, const mrc_peer_setup *setup);

/* A fact about a plane changed: here, the peer's address, or its neighbour's. */
void peer_on_facts(struct peer *peer, int64_t now, uint32_t plane);

/* Planes whose state or reason changed since the last call, as a mask. A plane that came up starts
 * with a window of its own. */
uint32_t peer_take_changes(struct peer *peer, int64_t now);

/* Data came. True when that has just begun, and the ways back are to be looked at more often. */
bool peer_on_received(struct peer *peer, int64_t now);

/* A queue pair with this MTU now belongs to it. */
void peer_on_qp(struct peer *peer, int64_t now, uint32_t mtu);

/* How many values of EV[11:0], from 0 on, name a way: in SRv6 mode as many as there are uplinks. */
uint32_t peer_ways(const struct peer *peer);

/* Whether EV[15:0] names a path, the same one for every queue pair. */
bool peer_names_paths(const struct peer *peer);

/* Bytes of the IP packet (in SRv6 mode the outer one) that carries `mtu` bytes on this plane. */
uint32_t peer_packet_size(const struct peer *peer, uint32_t plane, uint32_t mtu);

/* The plane, of those in the mask `usable`, for a packet of `nominal` bytes: another than `avoid`
 * where one is up. Returns its number, PEER_NO_ROOM or PEER_NO_PLANE. A packet of 0 bytes (a probe)
 * needs no room. */
int peer_pick(struct peer *peer, uint32_t usable, uint32_t nominal, uint32_t avoid);

/* Whether any other plane of the mask is up. */
bool peer_has_another(const struct peer *peer, uint32_t usable, uint32_t plane);

/* A plane that got nothing for a while, though it was up, gets no more than its share now. */
void peer_level(struct peer *peer, uint32_t plane);

/* Most packets that one frame on this plane may carry now, 1..MRC_BURST. */
uint32_t peer_burst(const struct peer *peer, uint32_t plane, uint32_t packet_size);

/* Whether any plane has a port to send a probe by. */
bool peer_can_ask(const struct peer *peer);

/* Whether no plane is up. */
bool peer_is_cut_off(const struct peer *peer);

/* Bytes that may be in flight, and are. */
uint64_t peer_window(const struct peer *peer);
static inline uint64_t peer_inflight(const struct peer *peer) { return peer->inflight; }

/* A frame of data left on a plane. */
struct peer_sent {
    uint32_t plane;
    uint32_t packets;
    uint64_t payload;
    uint64_t nominal;
    bool is_retransmission;
};
void peer_on_sent(struct peer *peer, int64_t now, const struct peer_sent *sent);

/* A SACK or Transport ACK with what it newly said. `new_bytes` is rcvd_bytes' difference. */
struct peer_sack {
    const struct loss_tally *tally;
    uint64_t new_bytes;
    uint32_t plane;    /* of the EV that it names; MRC_PLANES: it names none */
    int64_t rtt;       /* of the packet that caused it; < 0: ambiguous */
    uint32_t size;     /* of that packet, bytes of payload */
    bool is_marked;
    bool restore;
    uint8_t penalty;
};
void peer_on_sack(struct peer *peer, int64_t now, const struct peer_sack *sack);

/* What became of a packet of ours with this EV says whether answers should take it (MRC 1.0, Paths:
 * reverse EV set). */
void peer_on_path(struct peer *peer, uint32_t plane, uint32_t ev, bool works);

/* An attempt on a plane was judged lost, given up for another reason, or refused by the peer. */
void peer_on_lost(struct peer *peer, int64_t now, uint32_t plane, uint64_t nominal);
void peer_on_left(struct peer *peer, uint32_t plane, uint64_t nominal);
void peer_on_refused(struct peer *peer, int64_t now, uint32_t plane, uint64_t nominal);

void peer_on_trimmed(struct peer *peer, int64_t now, uint32_t plane, uint32_t nominal,
                     bool is_last_hop);

/* A retransmission turned out to have been needless. */
void peer_on_spurious(struct peer *peer, int64_t now);

/* A packet of any kind that was sent at `sent` has arrived. Returns up to when everything sent, on
 * any plane, ought to have (hindsight.h); 0: not known. */
int64_t peer_on_arrival(struct peer *peer, int64_t now, int64_t sent);

/* ns that a full-size packet takes there and back on the longest of the planes in use, if empty. */
int64_t peer_longest_way(const struct peer *peer);

/* When something last came back on a plane. */
static inline int64_t peer_answered(const struct peer *peer, uint32_t plane) {
    return peer->plane[plane].path.proven;
}

/* It has answered. What it sends of its own accord does not show that it hears us: by a way that
 * is broken in one direction nobody would ever be given up. */
void peer_on_answer(struct peer *peer, int64_t now);

/* How long a packet of each plane may still be under way when one sent later has come; returns the
 * same for one of its own plane. */
int64_t peer_reorder_windows(const struct peer *peer, int64_t now, int64_t windows[MRC_PLANES]);

/* RTT over the planes that are up: its mean, and the time by which an answer should be here. */
int64_t peer_rtt(const struct peer *peer);
int64_t peer_answer_time(const struct peer *peer);

/* Plane and EV for a control packet that answers one from (plane, ev), which stay if no other way
 * is known: the next plane, or the last one again, for what goes with the last packet. */
void peer_reply_path(struct peer *peer, bool is_next, uint32_t *plane, uint32_t *ev);

/* The peer says which of its ports are up: bit n is its plane n. */
void peer_on_port_status(struct peer *peer, int64_t now, uint32_t mask);

/* One of our planes came up or went down: tell the peer until it answers. */
void peer_on_status_changed(struct peer *peer, int64_t now);
uint32_t peer_status_mask(const struct peer *peer);

/* Marks what is due for sending and returns whether anything is. */
bool peer_on_timeout(struct peer *peer, int64_t now);
int64_t peer_deadline(const struct peer *peer);

/* Probes every plane that can be, now. */
void peer_check(struct peer *peer, int64_t now);

/* A probe that is due; the caller sends it. */
struct peer_probe {
    uint32_t plane;
    uint32_t ev;
    enum peer_probe_kind kind;
    uint32_t size; /* bytes of IP packet; 0: as short as it is */
};
bool peer_take_probe(struct peer *peer, struct peer_probe *probe);

#endif
