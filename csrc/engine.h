/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine is made of. Shared by engine.c, the loop, and engine_calls.c, what is asked of it.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "mrc_engine.h"
#include "netlink_watch.h"
#include "plane_socket.h"
#include "ring.h"

enum { ENGINE_FRAMES = 64 };

/* A plane: its socket, and the frames that the next system call sends. */
struct port {
    struct plane_socket socket;
    mrc_plane applied; /* what the core was last told */
    int64_t busy_until;
    bool enabled;
    mrc_frame_out *batch[PLANE_BATCH];
    uint32_t batch_count;
};

struct mrc_engine {
    mrc_engine_config config;
    void *memory;
    mrc_endpoint *endpoint;
    struct netlink_watch watch;
    struct port ports[MRC_PLANES];
    struct watched_hop *hops; /* by peer * MRC_PLANES + plane */
    bool *hop_told;           /* whether the core has the hop's address */
    int64_t nudge_at;

    pthread_mutex_t mutex; /* guards all above and the core */
    pthread_mutex_t receiving; /* held from before frames are received until the core has them: a
                                * path keeps their order, two threads would not; before `mutex` */
    atomic_uint callers;   /* waiting for it */
    atomic_int plane_fds[MRC_PLANES]; /* the sockets' once they are open, for the thread; else -1 */
    atomic_bool is_stopping;
    pthread_t thread;
    bool has_thread;
    bool is_sleeping; /* guarded by the mutex, as sleep_until */
    int64_t sleep_until;
    int64_t worked; /* when a round last found something to do */
    int64_t was_busy; /* when there was last much to do: then the loop is left alone */
    bool may_spin;
    bool is_blocked; /* a work request waits for room in the core; guarded by the mutex */

    int event_fd;
    int wake_fd;
    int loop_fd; /* epoll: event_fd, and the plane sockets while they are armed */
    int system_errno;
    struct ring submitted;
    mrc_submission *submissions;
    struct ring completed;
    mrc_event *completions;
    atomic_bool is_signalled; /* event_fd has been written and not read */
    atomic_bool is_stalled;   /* the completion ring was full */
    atomic_bool is_armed;     /* the loop is told of frames, too */
    _Atomic int64_t on_duty;  /* when the loop last took in frames; 0: the thread is to do it */

    uint8_t *receive_buffers; /* the thread's */
    uint8_t *poll_buffers;    /* of whoever polls */
    mrc_frame_out frames[ENGINE_FRAMES];
};

/* ns, monotonic. */
int64_t engine_clock(void);

/* Waits for the mutex; the thread lets callers in between two batches. */
void engine_enter(struct mrc_engine *engine);

/* Sends what the caller's change led to, wakes the thread if it would sleep too long, and gives the
 * mutex back. */
void engine_leave(struct mrc_engine *engine);

/* Ends the thread's sleep. */
void engine_wake(struct mrc_engine *engine);

/* Tells the core what netlink said of a plane, or of all planes and next hops. */
void engine_apply_plane(struct mrc_engine *engine, uint32_t plane, int64_t now);
void engine_apply_watch(struct mrc_engine *engine, int64_t now);

#endif
