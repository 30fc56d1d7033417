/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of the engine: a core endpoint on real interfaces.
 *
 * The engine owns the sockets, the clock and, unless config.threaded is false, one I/O thread. A
 * mutex guards the core: the I/O thread holds it while it works and lets it go while it waits.
 * Data goes through rings: mrc_engine_submit() and mrc_engine_poll() never wait for the thread.
 * All other calls wait until the thread has finished its batch (well under a millisecond), do
 * their work, and return its result; they may be used by any thread. Submit and poll may each be
 * used by one thread at a time. Statuses are enum mrc_status, as the core's.
 */
#ifndef MRC_ENGINE_H
#define MRC_ENGINE_H

#include "mrc.h"

/* cffi: begin */
typedef struct mrc_engine mrc_engine;

typedef struct mrc_engine_config {
    mrc_config core;
    uint64_t seed;           /* of all the core's randomness */
    bool threaded;           /* false: the caller drives it by mrc_engine_run() (mrc.verbs) */
    int64_t spin;            /* ns to look for work before sleeping; 50 us where a core is free */
    uint32_t receive_buffer; /* bytes a plane, SO_RCVBUFFORCE; 32 MiB */
    uint32_t send_buffer;    /* bytes a plane; 8 MiB */
    uint32_t ring;           /* entries of the submission and the completion ring; a power of 2 */
} mrc_engine_config;

/* The core's defaults with those that suit real interfaces. */
void mrc_engine_config_default(mrc_engine_config *config);

/* Makes an engine without planes. NULL: *error is the errno, EINVAL for a bad configuration. */
mrc_engine *mrc_engine_open(const mrc_engine_config *config, int *error);

/* Ends the thread, closes every socket and frees the engine. Nothing is flushed. */
void mrc_engine_close(mrc_engine *engine);

/* A descriptor for an event loop: readable while mrc_engine_poll() has something to give, or frames
 * wait that it would take in. Owned by the engine; that of an unthreaded engine says nothing. */
int mrc_engine_fd(const mrc_engine *engine);

/* Whether this process may open AF_PACKET sockets: 0, or the errno (EPERM: CAP_NET_RAW lacks). */
int mrc_engine_probe_capability(void);

/* Adds interface `name` as plane number `plane`, with `address` of it (version 0: any that it has
 * of scope global, else link-local, IPv6 first). The interface need not exist or be up now: it is
 * followed by netlink for the engine's life, through address and MTU changes, deletion and creation
 * under the same name. MRC_ERROR_ARGUMENT: plane in use or name too long; MRC_ERROR_SYSTEM: see
 * mrc_engine_errno(). */
int mrc_engine_add_plane(mrc_engine *engine, uint32_t plane, const char *name,
                         const mrc_address *address);

/* Takes a plane out of use for data, or gives it back. */
int mrc_engine_enable_plane(mrc_engine *engine, uint32_t plane, bool enabled);

/* What the engine sees of a plane's interface now. */
typedef struct mrc_engine_plane {
    char name[16];
    int32_t index; /* 0: there is no such interface now */
    mrc_plane info;
    uint32_t receive_buffer; /* bytes granted by the kernel */
    uint32_t send_buffer;    /* the same */
    bool vnet_header;        /* bursts can be sent */
    uint64_t kernel_drops;   /* frames the kernel dropped for want of receive buffer */
    uint64_t send_errors;    /* system calls that refused a frame */
    int32_t send_errno;      /* the last of them */
} mrc_engine_plane;

int mrc_engine_get_plane(mrc_engine *engine, uint32_t plane, mrc_engine_plane *out);

/* errno of the last MRC_ERROR_SYSTEM. */
int mrc_engine_errno(const mrc_engine *engine);

/* mrc_peer_add with the next hop of each plane, whose neighbour entry the engine follows: the
 * peer's own address when on link, else the gateway's (version 0: the plane is not paired). */
int mrc_engine_peer_add(mrc_engine *engine, const mrc_peer_setup *setup,
                        const mrc_address next_hops[MRC_PLANES]);
int mrc_engine_peer_set_address(mrc_engine *engine, uint32_t peer, uint32_t plane,
                                const mrc_address *address, const mrc_address *next_hop);
int mrc_engine_peer_fail(mrc_engine *engine, uint32_t peer, int status);
int mrc_engine_peer_check(mrc_engine *engine, uint32_t peer);
int mrc_engine_peer_remove(mrc_engine *engine, uint32_t peer);
int mrc_engine_peer_stats(mrc_engine *engine, uint32_t peer, uint32_t plane,
                          mrc_plane_stats *stats);

int mrc_engine_register(mrc_engine *engine, const mrc_region *region);
int mrc_engine_deregister(mrc_engine *engine, uint32_t key);

int mrc_engine_qp_create(mrc_engine *engine, uint32_t domain, mrc_qp_attributes *local);
int mrc_engine_qp_connect(mrc_engine *engine, uint32_t qp, uint32_t peer,
                          const mrc_qp_attributes *remote);
/* When this returns no data of the queue pair's writes is read any more. */
int mrc_engine_qp_close(mrc_engine *engine, uint32_t qp);
int mrc_engine_qp_stats(mrc_engine *engine, uint32_t qp, mrc_qp_stats *stats);
int mrc_engine_qp_evs(mrc_engine *engine, uint32_t qp, mrc_ev_info *evs, uint32_t room);
int mrc_engine_qp_deny(mrc_engine *engine, uint32_t qp, uint32_t ev, bool deny);
/* mrc_endpoint_probe by the next hop of a peer's plane, whatever destination_mac is.
 * MRC_ERROR_STATE: its link address is not known (yet). */
int mrc_engine_probe(mrc_engine *engine, uint32_t peer, const mrc_probe *probe);
void mrc_engine_counters(mrc_engine *engine, mrc_counters *counters);

enum mrc_submission_type { MRC_SUBMIT_WRITE = 1, MRC_SUBMIT_RECEIVE = 2 };

/* A work request: a write, or `receives` more posted receives for write.qp. */
typedef struct mrc_submission {
    uint32_t type; /* enum mrc_submission_type */
    uint32_t receives;
    mrc_write write;
} mrc_submission;

/* Hands over a work request; a write sends what may go at once when the thread is not busy.
 * Requests take effect in order, posted receives before the next frame that comes. A write that the
 * core refuses completes with its status in an MRC_EVENT_WRITE; one for which the core has no slot
 * waits in the ring. MRC_ERROR_FULL: the ring is full. */
int mrc_engine_submit(mrc_engine *engine, const mrc_submission *submission);

/* Takes up to `room` events; returns how many. Fewer than `room`: there are no more now.
 *
 * When the engine was idle this also takes in the frames that woke the caller: an answer then needs
 * no hand-over from thread to thread. The caller calls mrc_engine_flush() once it has handled the
 * events, so that acknowledgements and what it posted leave together. */
int mrc_engine_poll(mrc_engine *engine, mrc_event *events, uint32_t room);

/* Sends what is due after mrc_engine_poll(). */
void mrc_engine_flush(mrc_engine *engine);

/* Unthreaded engines: works until an event can be polled or `timeout` ns have passed (0: once;
 * negative: for ever, but it returns early when a signal comes). Sleeps rather than spins beyond
 * config.spin. Returns 0, or MRC_ERROR_STATE for a threaded engine. */
int mrc_engine_run(mrc_engine *engine, int64_t timeout);

/* After fork() in the child: closes the descriptors and frees nothing that the parent uses. */
void mrc_engine_forget(mrc_engine *engine);
/* cffi: end */

#endif
