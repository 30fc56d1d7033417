/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of the core: one endpoint of MRC without sockets, clock, threads or allocation.
 *
 * An endpoint is driven, never running: mrc_endpoint_receive() and mrc_endpoint_timeout() put
 * something in, mrc_endpoint_transmit() and mrc_endpoint_poll() take something out,
 * mrc_endpoint_deadline() says when to come back. It calls nobody. The engine (mrc_engine.h), the
 * simulator and the tests are loops around the same calls.
 *
 * One thread at a time may use an endpoint. Times are ns of any monotonic clock, sizes are bytes.
 * Functions that return int give 0 or more on success and a negative enum mrc_status on failure;
 * a failed call has changed nothing. Source: MRC 1.0; [choice] marks our own.
 */
#ifndef MRC_H
#define MRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
enum {
    MRC_PLANES = 16,       /* EV[15:12] names the plane */
    MRC_BURST = 15,        /* most packets of one frame [choice] */
    MRC_FRAME_SLICES = 32, /* headers, then payload and trailer of each packet */
    MRC_FRAME_SCRATCH = 1024,
    MRC_SRV6_USIDS = 6, /* most uSIDs of one address (RFC 9800, 32-bit block) */
};

/* What a call returns, and how an operation or a queue pair ended. */
enum mrc_status {
    MRC_OK = 0,
    MRC_ERROR_ARGUMENT = -1,  /* out of range or contradictory */
    MRC_ERROR_FULL = -2,      /* a table or pool is full: back-pressure, try later */
    MRC_ERROR_STATE = -3,     /* not in this state of the queue pair or endpoint */
    MRC_ERROR_NOT_FOUND = -4, /* no such queue pair, peer, plane or key */
    MRC_ERROR_SYSTEM = -5,    /* a system call failed (engine only) */

    MRC_ERROR_FLUSHED = -16,          /* the queue pair was closed or broke before it was done */
    MRC_ERROR_REMOTE_ACCESS = -17,    /* the peer refused the address or key (NAK 0x62) */
    MRC_ERROR_REMOTE_OPERATION = -18, /* the peer could not execute it (NAK 0x63, UNEXP_EVENT) */
    MRC_ERROR_INVALID_REQUEST = -19,  /* the peer calls our packet malformed (NAK 0x61) */
    MRC_ERROR_RETRY_EXCEEDED = -20,   /* one packet failed linear_cnt + exp_cnt times */
    MRC_ERROR_PEER_SILENT = -21,      /* no answer of the peer on any plane for dead_after */
    MRC_ERROR_PEER_RESTARTED = -22,   /* the peer is there with another incarnation */
    MRC_ERROR_PEER_CLOSED = -23,      /* the peer said that it closed or aborted */
};

/* An IP address; version 0 means none. IPv4 uses the first four bytes. */
typedef struct mrc_address {
    uint8_t version; /* 0, 4 or 6 */
    uint8_t bytes[16];
} mrc_address;

enum mrc_policy {
    MRC_POLICY_ADAPTIVE = 0, /* packets go where they drain [choice] */
    MRC_POLICY_EQUAL = 1,    /* every live plane carries the same (MRC 1.0, Paths) */
};

/* Every setting of an endpoint. mrc_config_default() fills in the documented defaults. */
typedef struct mrc_config {
    /* Sizes of tables; memory is taken once, by mrc_endpoint_size(). */
    uint32_t max_qps;       /* queue pairs, lingering ones included */
    uint32_t max_peers;
    uint32_t max_regions;   /* memory regions */
    uint32_t max_writes;    /* writes posted and not yet completed, over all queue pairs */
    uint32_t max_chunks;    /* records of 64 packets in flight, over all queue pairs */
    uint32_t max_immediates; /* immediates that wait for earlier packets */
    uint32_t max_controls;  /* SACKs, NACKs and answers waiting to be sent */
    uint32_t max_events;    /* plane and EV events not yet polled; more are counted, not kept */
    uint32_t max_probes;    /* requests whose answer may still come; a power of two, 2..2^15 */
    uint32_t max_resting;   /* numbers of closed queue pairs that rest, besides twice max_qps */

    /* Who we are. */
    uint64_t incarnation; /* random at each start; told to peers at set-up */
    uint8_t qp_prefix;    /* upper 8 bits of all our queue pair numbers */
    uint16_t udp_port;    /* destination port of every packet; 4791 */

    /* Traffic classes (MRC 1.0). */
    uint8_t dscp_control;
    uint8_t dscp_trimmed;
    uint8_t dscp_trimmed_lasthop;
    uint8_t dscp_trimmable;
    uint8_t dscp_trimmable_retx;
    uint8_t dscp_no_trim;
    bool trimming; /* the fabric trims: data is sent trimmable */

    /* Paths (MRC 1.0, Paths). */
    uint32_t ev_count;         /* EVs of a queue pair over all planes; 1..256, at least 1 a plane */
    uint32_t ev_backup;        /* spare EVs a plane */
    uint32_t ev_min_active;    /* EVs of a live plane that chance losses leave in use; or half */
    uint32_t probes_to_revive; /* answered probes before a plane or EV is used again */
    int64_t revive_spread;     /* ns over which they are spread; doubles at a flap within 60 s */
    int64_t plane_probe;       /* ns between probes of a plane that is out while there is work */
    int64_t probe_max;         /* ns, cap of the probe back-off when idle */
    uint8_t policy;            /* enum mrc_policy */

    /* Requestor (MRC 1.0, Requestor). */
    int64_t ack_timeout;  /* ns; 0: from the measured RTT with a floor of 5 ms */
    uint32_t linear_cnt;  /* tries at the fixed timeout; at most 7 */
    uint32_t exp_cnt;     /* tries with exponential back-off; 25 means for ever */
    int64_t dead_after;   /* ns without an answer on any plane that end a queue pair */
    int64_t linger;       /* ns that a closed queue pair still answers */
    uint32_t burst;       /* most packets a frame, 1..15; 1 turns bursts off */

    /* Responder. */
    uint32_t sack_threshold; /* bytes since the last SACK that call for one; 16 KiB */
    int64_t sack_delay;      /* ns; the delayed-SACK timer */

    /* Congestion control (Ultra Ethernet 1.0, NSCC). */
    uint64_t rate_bps;          /* 0: the sum of the planes' rates */
    int64_t base_rtt_floor;     /* ns [choice]; 500 us in the engine, 0 in the simulator */
    int64_t target_delay_floor; /* ns [choice]; 1 ms in the engine, 0 in the simulator */
    /* Least max_wnd, packets a plane; with `rate_bps` no more than 10 ms of it [choice]. */
    uint32_t window_floor_packets;

    /* For simulators, whose packets need no payload: none is read or placed, ICRCs are 0 and not
     * looked at. Every header and every decision is the same. */
    bool headers_only;
} mrc_config;

void mrc_config_default(mrc_config *config);

typedef struct mrc_endpoint mrc_endpoint;

/* Bytes that mrc_endpoint_init needs for this configuration, aligned to 64; 0: it is not valid. */
size_t mrc_endpoint_size(const mrc_config *config);

/* Makes an endpoint in `memory`. All randomness comes from the seed. NULL: config is not valid. */
mrc_endpoint *mrc_endpoint_init(void *memory, const mrc_config *config, uint64_t seed);

/* ---- Planes, peers ---- */

/* A local interface as a plane. */
typedef struct mrc_plane {
    mrc_address address; /* version 0: the plane has none now */
    uint8_t mac[6];
    uint32_t mtu;      /* of the link, bytes of IP packet */
    uint64_t rate_bps; /* what the link claims; 0 unknown */
    bool up;           /* administratively up and with carrier */
    bool enabled;      /* false: the application took it out */
} mrc_plane;

/* Adds or changes a plane. Link, address and MTU changes act at once (MRC 1.0, Paths). */
int mrc_endpoint_set_plane(mrc_endpoint *endpoint, int64_t now, uint32_t plane,
                           const mrc_plane *info);

/* Tells whether the plane's port can take another frame; busy planes are passed over. */
void mrc_endpoint_set_busy(mrc_endpoint *endpoint, uint32_t plane, bool busy);

/* All SRv6 paths to one peer in one (srv6.h): an EV put into it gives the uSIDs of the packet's
 * outer destination. */
typedef struct mrc_srv6_template {
    uint8_t block[16];
    uint8_t block_size; /* bytes of block that count; 0: no SRv6, packets go out plain */
    uint8_t usid_count; /* 1..MRC_SRV6_USIDS */
    uint8_t uplink_hop; /* which uSID the uplink is added to; usid_count or more: none */
    bool srh;           /* repeat the path in an SRH (RFC 8754), for those who look on */
    uint16_t uplinks;   /* uplinks of the first switch, 1..4096; 1 where they play no part */
    uint16_t plane_stride; /* what each plane adds to every uSID */
    uint16_t usids[MRC_SRV6_USIDS]; /* of plane 0, uplink 0 */
} mrc_srv6_template;

/* A peer's planes as paired with ours: index is our plane. */
typedef struct mrc_peer_setup {
    uint64_t incarnation;
    mrc_address addresses[MRC_PLANES]; /* version 0: not paired */
    uint8_t remote_planes[MRC_PLANES]; /* the peer's number for that plane */
    mrc_srv6_template srv6;            /* IPv6 planes only */
    uint16_t ev_values; /* without SRv6: EV[11:0] is below this, as the bit fields that switches
                         * read (stev) allow; 0: any */
} mrc_peer_setup;

/* Adds a peer and starts probing its planes; returns its number. Queue pairs of one incarnation
 * share one peer: adding it again returns the same number, and takes over the addresses. A plane
 * whose own address is no more the one it had then carries nothing to this peer. */
int mrc_peer_add(mrc_endpoint *endpoint, int64_t now, const mrc_peer_setup *setup);

/* The peer's address on a plane changed, or (version 0) is gone. */
int mrc_peer_set_address(mrc_endpoint *endpoint, int64_t now, uint32_t peer, uint32_t plane,
                         const mrc_address *address);

/* Next hop's link address on a plane, from the kernel's neighbour table; NULL: not resolved. */
int mrc_peer_set_neighbour(mrc_endpoint *endpoint, int64_t now, uint32_t peer, uint32_t plane,
                           const uint8_t *mac);

/* Ends every queue pair of the peer with `status` (peer restarted, closed ...). */
int mrc_peer_fail(mrc_endpoint *endpoint, int64_t now, uint32_t peer, int status);

/* Asks the peer for a sign of life on every plane now (a hint came that it may be gone). */
int mrc_peer_check(mrc_endpoint *endpoint, int64_t now, uint32_t peer);

/* Forgets a peer: MRC_ERROR_STATE while queue pairs, also lingering ones, belong to it. */
int mrc_peer_remove(mrc_endpoint *endpoint, uint32_t peer);

enum mrc_plane_state {
    MRC_PLANE_ABSENT = 0,   /* not paired with this peer */
    MRC_PLANE_PROBING = 1,  /* paired; no probe answered yet, or waiting to be trusted again */
    MRC_PLANE_UP = 2,       /* carries data */
    MRC_PLANE_OUT = 3,      /* does not; see reason */
};

enum mrc_plane_reason {
    MRC_REASON_NONE = 0,
    MRC_REASON_LINK = 1,       /* our port is down */
    MRC_REASON_PEER = 2,       /* the peer says that its port is down */
    MRC_REASON_SILENT = 3,     /* nothing came back while other planes progressed */
    MRC_REASON_MTU = 4,        /* full-size packets do not get through */
    MRC_REASON_ADDRESS = 5,    /* no address here or at the peer, or no neighbour */
    MRC_REASON_DISABLED = 6,   /* by the application */
};

/* One plane towards one peer: a snapshot. Counts are since the peer was added. */
typedef struct mrc_plane_stats {
    uint32_t state;  /* enum mrc_plane_state */
    uint32_t reason; /* enum mrc_plane_reason */
    uint64_t packets_sent;
    uint64_t bytes_sent; /* payload, first transmissions and retransmissions */
    uint64_t packets_retransmitted;
    uint64_t packets_lost; /* attempts judged lost on this plane */
    uint64_t packets_acked;
    uint64_t bytes_acked; /* payload that arrived by an attempt on this plane */
    uint64_t packets_received;
    uint64_t bytes_received; /* payload of new packets */
    uint64_t ce_marks;       /* SACKs with m = SKIP_ONCE for this plane */
    uint64_t trims;          /* NACK TRIMMED and TRIMMED_LASTHOP for this plane */
    uint64_t probes_sent;
    uint64_t probes_answered;
    uint64_t outages;
    uint64_t recoveries;
    int64_t rtt;     /* ns, smoothed; 0 unknown */
    int64_t rtt_min; /* ns */
    uint64_t cwnd;     /* bytes; of the peer where policy is equal */
    uint64_t inflight; /* bytes on this plane */
    int64_t changed;   /* time of the last change of state */
    bool bursts;       /* frames of several packets get through */
} mrc_plane_stats;

int mrc_peer_stats(const mrc_endpoint *endpoint, uint32_t peer, uint32_t plane,
                   mrc_plane_stats *stats);

/* ---- Memory ---- */

/* A registered region. The core writes into base[0, size) only what carries key, comes by a queue
 * pair of the same domain, and lies in [va, va + size) as a whole. */
typedef struct mrc_region {
    void *base;
    uint64_t va;   /* address by which the peer names base */
    uint64_t size; /* may be 0 */
    uint32_t key;
    uint32_t domain;
} mrc_region;

/* MRC_ERROR_ARGUMENT: va + size overflows or the key is taken. */
int mrc_endpoint_register(mrc_endpoint *endpoint, const mrc_region *region);

/* After this returns nothing is written to the region any more. */
int mrc_endpoint_deregister(mrc_endpoint *endpoint, uint32_t key);

/* ---- Queue pairs ---- */

/* What one side tells the other at set-up. */
typedef struct mrc_qp_attributes {
    uint32_t number;   /* 24 bits */
    uint32_t psn;      /* first PSN that this side will send, 24 bits */
    uint32_t mtu;      /* 256, 512, 1024, 2048, 4096 or 8192 bytes of payload a packet */
    uint32_t mpr;      /* PSN window of this side's responder, units of 128 packets; 1..32 */
    uint32_t max_wimm; /* WriteIMM that may be in flight towards this side; 1..255 */
    bool trim_nack;    /* this side answers trimmed packets with a NACK */
    bool dynamic_mpr;
} mrc_qp_attributes;

/* Makes a queue pair (RESET to INIT) of a protection domain. Reads mtu, mpr, max_wimm, trim_nack
 * and dynamic_mpr of `local`, and sets its number and psn. A psn below 2^24 given in `first_psn` is
 * used instead of a random one (tests); pass UINT32_MAX otherwise. */
int mrc_qp_create(mrc_endpoint *endpoint, int64_t now, uint32_t domain, uint32_t first_psn,
                  mrc_qp_attributes *local);

/* INIT to RTR and RTS: it may send and receive from now on. The smaller MTU of both counts. */
int mrc_qp_connect(mrc_endpoint *endpoint, int64_t now, uint32_t qp, uint32_t peer,
                   const mrc_qp_attributes *remote);

/* Flushes what is pending (MRC_ERROR_FLUSHED) and lets go: the number means nothing to the caller
 * any more, no event names it after those already queued. It goes on answering late packets for
 * config.linger. */
int mrc_qp_close(mrc_endpoint *endpoint, int64_t now, uint32_t qp);

/* An RDMA write, with or without immediate. */
typedef struct mrc_write {
    uint32_t qp;
    uint32_t key; /* of the remote region */
    uint64_t va;  /* remote address of the first byte */
    const void *data; /* must stay as it is until the completion event */
    uint64_t size;    /* 0 .. 2^30 */
    uint64_t tag;     /* given back with the completion */
    uint32_t immediate;
    bool has_immediate;
} mrc_write;

/* Posts a write; it completes, in order, by one MRC_EVENT_WRITE. MRC_ERROR_FULL: no write slot. */
int mrc_qp_write(mrc_endpoint *endpoint, int64_t now, const mrc_write *write);

/* Lends `count` more receives: each WriteIMM of the peer uses one, and finding none is an error. */
int mrc_qp_post_receive(mrc_endpoint *endpoint, uint32_t qp, uint32_t count);

enum mrc_qp_state { MRC_QP_RESET, MRC_QP_INIT, MRC_QP_RTR, MRC_QP_RTS, MRC_QP_ERROR };

/* One queue pair: a snapshot. */
typedef struct mrc_qp_stats {
    uint32_t state;  /* enum mrc_qp_state */
    int32_t error;   /* enum mrc_status, why it is in ERROR */
    uint32_t mtu;
    uint32_t peer;
    uint64_t writes_posted;
    uint64_t writes_completed;
    uint64_t bytes_posted;
    uint64_t bytes_completed;
    uint64_t bytes_received; /* new payload bytes placed */
    uint64_t messages_received; /* messages executed, with or without immediate */
    uint64_t packets_sent;
    uint64_t packets_retransmitted;
    uint64_t packets_spurious; /* retransmissions whose first attempt had arrived after all */
    uint64_t packets_duplicate; /* received again */
    uint64_t timeouts;
    uint64_t probes_sent;
    uint64_t sacks_sent;
    uint64_t sacks_received;
    uint64_t nacks_sent;
    uint64_t nacks_received;
    uint64_t inflight;  /* bytes */
    uint64_t cwnd;      /* bytes */
    uint32_t window_packets; /* PSNs outstanding */
    uint32_t wimm_outstanding;
    uint32_t receives_posted;
    int64_t rtt;        /* ns, smoothed over all planes */
    uint32_t evs_good;
    uint32_t evs_bad;
} mrc_qp_stats;

int mrc_qp_get_stats(const mrc_endpoint *endpoint, uint32_t qp, mrc_qp_stats *stats);

enum mrc_ev_state { MRC_EV_GOOD, MRC_EV_SKIP, MRC_EV_ASSUMED_BAD, MRC_EV_DENIED, MRC_EV_BACKUP };

typedef struct mrc_ev_info {
    uint32_t ev;
    uint32_t plane;
    uint32_t state; /* enum mrc_ev_state */
} mrc_ev_info;

/* Lists the EVs of a queue pair; returns how many there are, writes at most `room`. */
int mrc_qp_evs(const mrc_endpoint *endpoint, uint32_t qp, mrc_ev_info *evs, uint32_t room);

/* The operator takes an EV out for good, or gives it back (MRC 1.0: DENIED). */
int mrc_qp_deny(mrc_endpoint *endpoint, int64_t now, uint32_t qp, uint32_t ev, bool deny);

/* ---- Endpoint operations ---- */

/* An EV probe (MRC 1.0, ERTH) to any address: ends in one MRC_EVENT_PROBE, with the RTT, or with
 * MRC_ERROR_PEER_SILENT after `timeout`.
 *
 * SRv6: with a carrier it is a round trip through switches alone. The carrier's uSIDs lead out and
 * back to us, and what is sent is the answer itself, from us to us: nobody need be there. */
typedef struct mrc_probe {
    uint32_t plane;
    uint32_t ev;
    mrc_address destination; /* not looked at with a carrier */
    mrc_address carrier;     /* outer destination of a round trip; version 0: none */
    mrc_address next_carrier; /* goes on when the carrier's uSIDs are used up, in an SRH (RFC 8754);
                               * version 0: none */
    uint8_t destination_mac[6]; /* of the next hop */
    uint8_t dscp;
    uint32_t size;   /* bytes of IP packet, by zero padding; 0: as short as it is */
    int64_t timeout; /* ns */
    uint64_t tag;
} mrc_probe;

int mrc_endpoint_probe(mrc_endpoint *endpoint, int64_t now, const mrc_probe *probe);

/* ---- The five verbs ---- */

/* A frame as it came from a plane: an Ethernet frame, whole GSO frame included. */
typedef struct mrc_frame_in {
    uint32_t plane;
    uint32_t size;
    uint32_t segment_size; /* bytes of each transport packet; 0: one packet */
    const uint8_t *data;
} mrc_frame_in;

typedef struct mrc_slice {
    const uint8_t *base;
    size_t size;
} mrc_slice;

/* A frame to send: its bytes are the slices one after another. Slices point into scratch (so the
 * struct must not move) and into the data of posted writes; all are valid until the next call with
 * this endpoint that may complete a write. */
typedef struct mrc_frame_out {
    uint32_t plane;
    uint32_t packets;      /* 1..MRC_BURST */
    uint32_t header_size;  /* Ethernet, IP and UDP: bytes before the first transport packet */
    uint32_t segment_size; /* bytes of each transport packet, but a shorter last one */
    uint32_t size;
    uint32_t slice_count;
    uint8_t ip_version; /* 4 or 6 */
    mrc_slice slices[MRC_FRAME_SLICES];
    uint8_t scratch[MRC_FRAME_SCRATCH];
} mrc_frame_out;

enum mrc_event_type {
    MRC_EVENT_WRITE = 1,   /* a write ended: qp, tag, status */
    MRC_EVENT_RECEIVE = 2, /* a WriteIMM and all before it have arrived: qp, immediate */
    MRC_EVENT_QP = 3,      /* a queue pair went to ERROR: qp, status */
    MRC_EVENT_PLANE = 4,   /* peer, plane, state, reason */
    MRC_EVENT_EV = 5,      /* qp, plane, ev, state */
    MRC_EVENT_PROBE = 6,   /* tag, status, rtt, plane, ev */
};

typedef struct mrc_event {
    uint32_t type; /* enum mrc_event_type */
    int32_t status;
    uint32_t qp;
    uint32_t peer;
    uint32_t plane;
    uint32_t ev;
    uint32_t state;
    uint32_t reason;
    uint32_t immediate;
    uint64_t tag;
    int64_t time;
    int64_t rtt;
} mrc_event;

/* Takes in one frame. Never fails: what cannot be used is dropped and counted. */
void mrc_endpoint_receive(mrc_endpoint *endpoint, int64_t now, const mrc_frame_in *frame);

/* The driver has taken in all that had come: what was received is now acknowledged. A driver that
 * never calls this relies on sack_threshold and sack_delay. */
void mrc_endpoint_drained(mrc_endpoint *endpoint, int64_t now);

/* Does what is due. Calling it early does nothing. */
void mrc_endpoint_timeout(mrc_endpoint *endpoint, int64_t now);

/* Fills in the next frame to send; false when there is none now. */
bool mrc_endpoint_transmit(mrc_endpoint *endpoint, int64_t now, mrc_frame_out *frame);

/* Whether much is under way: data waits for room, or more than 16 KiB are in flight. */
bool mrc_endpoint_is_busy(const mrc_endpoint *endpoint);

/* Takes the next event; false when there is none. Completions are never dropped. */
bool mrc_endpoint_poll(mrc_endpoint *endpoint, mrc_event *event);

/* When mrc_endpoint_timeout() is due; INT64_MAX: never. */
int64_t mrc_endpoint_deadline(const mrc_endpoint *endpoint);

/* Everything dropped or refused, and totals, since init. */
typedef struct mrc_counters {
    uint64_t frames_received;
    uint64_t packets_received;
    uint64_t frames_sent;
    uint64_t packets_sent;
    uint64_t drop_short;       /* ends inside its headers */
    uint64_t drop_protocol;    /* not IP/UDP, a fragment, or contradictory lengths */
    uint64_t drop_port;        /* another UDP port */
    uint64_t drop_icrc;        /* corrupted on the way */
    uint64_t drop_opcode;      /* not an MRC opcode, or reserved values */
    uint64_t drop_unknown_qp;  /* no such queue pair */
    uint64_t drop_source;      /* the queue pair exists, the address is not its peer's */
    uint64_t drop_state;       /* the queue pair is not ready for it, or closed */
    uint64_t drop_psn;         /* more than 2^23 away */
    uint64_t drop_stale;       /* an answer nobody waits for, or contradictory */
    uint64_t drop_rate;        /* endpoint requests beyond the answer rate */
    uint64_t drop_plane;       /* came by a plane that does not exist */
    uint64_t controls_full;    /* SACKs, NACKs or answers not sent for want of room */
    uint64_t events_full;      /* plane and EV events not kept for want of room */
    uint64_t remote_access;    /* writes refused: key, domain or range */
    uint64_t probes_answered;  /* endpoint requests answered */
    uint64_t qps, peers, regions, writes, chunks, immediates, controls; /* in use now */
} mrc_counters;

void mrc_endpoint_counters(const mrc_endpoint *endpoint, mrc_counters *counters);
/* cffi: end */

#endif
