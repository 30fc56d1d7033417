/* SPDX-License-Identifier: Apache-2.0 */
/* The loop around one core endpoint: sockets in, sockets out, rings, and the thread that runs it.
 *
 * One round: wait for frames, take them in, take in work requests, do what is due, send, hand
 * events over. The I/O thread does rounds for ever; whoever calls a function here does what follows
 * from it at once, under the same mutex. The mutex is not held while waiting or receiving; it is
 * while sending, since frames point into the application's memory until the kernel has copied them.
 */
#define _GNU_SOURCE
#include "engine.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MS ((int64_t)1000000)
#define NUDGE_INTERVAL (250 * MS) /* between attempts to resolve a next hop [choice] */
#define BUSY_TIME MS              /* a port that took no more frames is tried again after that */
#define DUTY (20 * MS) /* the loop is relied on that long after it last took in frames [choice] */
#define GUARD MS       /* how long frames may wait for it before the thread takes over [choice] */
#define HEAD_START (MS / 10) /* that the loop has when a frame wakes both [choice] */
#define QUIET (5 * MS) /* without much to do before the loop is asked to take part [choice] */
#define LOOP_SHARE 8192 /* bytes in one round that are much */
#define YIELDS 1000               /* turns that the thread leaves to a waiting caller at most */

enum { FD_NETLINK = MRC_PLANES, FD_WAKE, FD_COUNT };

int64_t engine_clock(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 * MS + now.tv_nsec;
}

/* ---- Waking ---- */

static void signal_fd(int fd) {
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof one);

    (void)written; /* it fails only when it is signalled already */
}

static void clear_fd(int fd) {
    uint64_t count;
    ssize_t got = read(fd, &count, sizeof count);

    (void)got; /* it fails only when it is clear already */
}

void engine_wake(struct mrc_engine *engine) { signal_fd(engine->wake_fd); }

/* Whoever drives an engine without a thread looks at the ring himself. */
static void signal_events(struct mrc_engine *engine) {
    if (engine->has_thread && !atomic_exchange(&engine->is_signalled, true))
        signal_fd(engine->event_fd);
}

/* ---- Handing over ---- */

static void complete(struct mrc_engine *engine, const mrc_event *event) {
    uint32_t slot = 0;

    if (ring_free(&engine->completed, &slot)) {
        engine->completions[slot] = *event;
        ring_push(&engine->completed);
    }
}

static bool has_completion_room(struct mrc_engine *engine) {
    uint32_t slot;

    return ring_free(&engine->completed, &slot);
}

/* Moves the core's events into the ring; true when there were any, and somebody has to look. */
static bool hand_over_events(struct mrc_engine *engine) {
    mrc_event event;
    bool has_any = false;

    while (has_completion_room(engine)) {
        if (!mrc_endpoint_poll(engine->endpoint, &event))
            return has_any;
        if (event.type == MRC_EVENT_PLANE)
            engine->nudge_at = 0; /* the next hop may have got another link address */
        complete(engine, &event);
        has_any = true;
    }
    atomic_store(&engine->is_stalled, true);
    return true;
}

/* False: the core has no room for it now. */
static bool take_submission(struct mrc_engine *engine, int64_t now,
                            const mrc_submission *submission) {
    const mrc_write *write = &submission->write;
    mrc_event refused = {.type = MRC_EVENT_WRITE, .qp = write->qp, .tag = write->tag, .time = now};
    bool has_room;
    int status;

    if (submission->type == MRC_SUBMIT_RECEIVE) {
        mrc_qp_post_receive(engine->endpoint, write->qp, submission->receives);
        return true;
    }
    status = mrc_qp_write(engine->endpoint, now, write);
    if (status == MRC_OK)
        return true;
    if (status == MRC_ERROR_FULL)
        return false;
    has_room = has_completion_room(engine);
    refused.status = status;
    if (has_room)
        complete(engine, &refused);
    else
        atomic_store(&engine->is_stalled, true);
    signal_events(engine);
    return has_room;
}

static bool take_submissions(struct mrc_engine *engine, int64_t now) {
    uint32_t slot;
    bool has_any = false;

    engine->is_blocked = false;
    while (ring_next(&engine->submitted, &slot)) {
        engine->is_blocked = !take_submission(engine, now, &engine->submissions[slot]);
        if (engine->is_blocked)
            break;
        ring_pop(&engine->submitted);
        has_any = true;
    }
    return has_any;
}

/* ---- Sending ---- */

static void flush_port(struct mrc_engine *engine, uint32_t plane, int64_t now) {
    struct port *port = &engine->ports[plane];

    /* Frames that find the port busy are lost, like those that a full switch drops. */
    if (port->socket.index != 0 &&
        plane_socket_send(&port->socket, port->batch, port->batch_count) < port->batch_count) {
        port->busy_until = now + BUSY_TIME;
        mrc_endpoint_set_busy(engine->endpoint, plane, true);
    }
    port->batch_count = 0;
}

static void flush_ports(struct mrc_engine *engine, int64_t now) {
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if (engine->ports[i].batch_count > 0)
            flush_port(engine, i, now);
    }
}

static bool transmit(struct mrc_engine *engine, int64_t now) {
    uint32_t count = 0;
    bool has_any = false;

    while (mrc_endpoint_transmit(engine->endpoint, now, &engine->frames[count])) {
        mrc_frame_out *frame = &engine->frames[count++];
        struct port *port = &engine->ports[frame->plane];

        has_any = true;
        port->batch[port->batch_count++] = frame;
        if (port->batch_count < PLANE_BATCH && count < ENGINE_FRAMES)
            continue;
        flush_ports(engine, now);
        now = engine_clock(); /* what a packet's round trip is measured from */
        count = 0;
    }
    flush_ports(engine, now);
    return has_any;
}

/* ---- Interfaces and neighbours ---- */

static bool is_plane_same(const mrc_plane *a, const mrc_plane *b) {
    return a->up == b->up && a->enabled == b->enabled && a->mtu == b->mtu &&
           a->rate_bps == b->rate_bps && memcmp(a->mac, b->mac, sizeof a->mac) == 0 &&
           a->address.version == b->address.version &&
           memcmp(a->address.bytes, b->address.bytes, sizeof a->address.bytes) == 0;
}

void engine_apply_plane(struct mrc_engine *engine, uint32_t number, int64_t now) {
    const struct watched_plane *seen = &engine->watch.planes[number];
    struct port *port = &engine->ports[number];
    mrc_plane info = seen->info;
    bool is_new = seen->index != port->socket.index;

    info.enabled = port->enabled;
    if (is_new && seen->index != 0 && plane_socket_bind(&port->socket, seen->index) != 0)
        info.up = false; /* gone again: netlink will say so */
    if (seen->index == 0)
        port->socket.index = 0;
    if (is_plane_same(&info, &port->applied) && !is_new)
        return;
    plane_socket_silence(&port->socket, &info.address, engine->config.core.udp_port);
    port->applied = info;
    mrc_endpoint_set_plane(engine->endpoint, now, number, &info);
}

void engine_apply_watch(struct mrc_engine *engine, int64_t now) {
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if (engine->watch.planes[i].is_used)
            engine_apply_plane(engine, i, now);
    }
    for (uint32_t i = 0; i < engine->watch.hop_count; i++) {
        const struct watched_hop *hop = &engine->hops[i];

        if (!hop->is_used || (!hop->has_mac && !engine->hop_told[i]))
            continue;
        mrc_peer_set_neighbour(engine->endpoint, now, i / MRC_PLANES, i % MRC_PLANES,
                               hop->has_mac ? hop->mac : NULL);
        engine->hop_told[i] = hop->has_mac;
        if (!hop->has_mac)
            engine->nudge_at = 0;
    }
}

/* Whether a peer ought to answer on this plane and does not. */
static bool is_silent(const struct mrc_engine *engine, uint32_t peer, uint32_t plane) {
    mrc_plane_stats stats;

    if (mrc_peer_stats(engine->endpoint, peer, plane, &stats) != MRC_OK)
        return false;
    return stats.state == MRC_PLANE_PROBING ||
           (stats.state == MRC_PLANE_OUT && stats.reason == MRC_REASON_SILENT);
}

/* Has the kernel look for next hops whose link address is not known, or perhaps another one now. */
static void nudge(struct mrc_engine *engine, int64_t now) {
    engine->nudge_at = INT64_MAX;
    for (uint32_t i = 0; i < engine->watch.hop_count; i++) {
        struct watched_hop *hop = &engine->hops[i];

        if (!hop->is_used || (hop->has_mac && !is_silent(engine, i / MRC_PLANES, hop->plane)))
            continue;
        if (engine->ports[hop->plane].applied.up)
            netlink_watch_nudge(&engine->watch, hop);
        engine->nudge_at = now + NUDGE_INTERVAL;
    }
}

/* ---- A round ---- */

static bool free_ports(struct mrc_engine *engine, int64_t now) {
    bool has_any = false;

    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        struct port *port = &engine->ports[i];

        if (port->busy_until == 0 || port->busy_until > now)
            continue;
        port->busy_until = 0;
        mrc_endpoint_set_busy(engine->endpoint, i, false);
        has_any = true;
    }
    return has_any;
}

/* There is more to do than the loop should: the thread goes on. */
static void relieve_loop(struct mrc_engine *engine) {
    if (engine->has_thread && atomic_exchange(&engine->on_duty, 0) != 0)
        engine_wake(engine);
}

/* Everything but receiving and events; the mutex is held. True: there was something to do. */
static bool work(struct mrc_engine *engine, int64_t now) {
    bool has_any = take_submissions(engine, now);

    if (mrc_endpoint_deadline(engine->endpoint) <= now) {
        mrc_endpoint_timeout(engine->endpoint, now);
        has_any = true;
    }
    if (engine->nudge_at <= now)
        nudge(engine, now);
    free_ports(engine, now);
    return transmit(engine, now) || has_any;
}

/* Everything but receiving; the mutex is held. True when there was something to do. */
static bool service(struct mrc_engine *engine, int64_t now) {
    bool has_any = work(engine, now);

    while (hand_over_events(engine)) {
        signal_events(engine);
        if (!engine->is_blocked || atomic_load(&engine->is_stalled))
            break;
        has_any = work(engine, now) || has_any; /* a write that is done makes room for another */
    }
    if (mrc_endpoint_is_busy(engine->endpoint)) {
        engine->was_busy = now;
        relieve_loop(engine);
    }
    return has_any;
}

static int64_t next_deadline(const struct mrc_engine *engine) {
    int64_t deadline = mrc_endpoint_deadline(engine->endpoint);

    if (engine->nudge_at < deadline)
        deadline = engine->nudge_at;
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if (engine->ports[i].busy_until != 0 && engine->ports[i].busy_until < deadline)
            deadline = engine->ports[i].busy_until;
    }
    return deadline;
}

void engine_enter(struct mrc_engine *engine) {
    atomic_fetch_add(&engine->callers, 1);
    pthread_mutex_lock(&engine->mutex);
    atomic_fetch_sub(&engine->callers, 1);
}

/* Whether work requests wait that the core could take: they came after the last look at the ring,
 * in which `was_blocked` says whether the core had no room. Then only an event makes some. */
static bool has_submissions(const struct mrc_engine *engine, bool was_blocked) {
    uint32_t slot;

    atomic_thread_fence(memory_order_seq_cst); /* after the unlock, before the look */
    return !was_blocked && ring_next(&engine->submitted, &slot);
}

/* Sends what a caller's change led to, and wakes the thread if it would sleep too long. */
void engine_leave(struct mrc_engine *engine) {
    bool must_wake;
    bool is_blocked;

    service(engine, engine_clock());
    is_blocked = engine->is_blocked;
    /* While there is something to do the thread looks up every GUARD: soon enough. */
    must_wake = engine->is_sleeping && next_deadline(engine) < engine->sleep_until - GUARD;
    if (must_wake)
        engine->is_sleeping = false;
    pthread_mutex_unlock(&engine->mutex);
    if (must_wake || (engine->has_thread && has_submissions(engine, is_blocked)))
        engine_wake(engine);
}

static void take_in(struct mrc_engine *engine, uint32_t plane, mrc_frame_in *frames,
                    uint32_t count) {
    int64_t now = engine_clock();
    uint64_t bytes = 0;

    take_submissions(engine, now); /* a receive that was posted before the frame came counts */
    for (uint32_t i = 0; i < count; i++) {
        frames[i].plane = plane;
        bytes += frames[i].size;
        mrc_endpoint_receive(engine->endpoint, now, &frames[i]);
    }
    if (bytes > LOOP_SHARE)
        engine->was_busy = now;
}

/* Lets waiting callers in first: the mutex itself is not fair. */
static void lock_after_callers(struct mrc_engine *engine) {
    for (uint32_t i = 0; i < YIELDS && atomic_load(&engine->callers) > 0; i++)
        sched_yield();
    pthread_mutex_lock(&engine->mutex);
}

/* The thread's: receives without the mutex. */
static bool receive(struct mrc_engine *engine, uint32_t plane) {
    mrc_frame_in frames[PLANE_BATCH];
    uint32_t count;

    pthread_mutex_lock(&engine->receiving);
    count = plane_socket_receive(&engine->ports[plane].socket, engine->receive_buffers, frames);
    if (count > 0) {
        lock_after_callers(engine);
        take_in(engine, plane, frames, count);
        pthread_mutex_unlock(&engine->mutex);
    }
    pthread_mutex_unlock(&engine->receiving);
    return count > 0;
}

/* ---- The loop's share ---- */

/* Two threads can take in frames: ours, and the loop's in mrc_engine_poll(). An idle engine is
 * armed: the next frame wakes the loop. As long as the loop comes and there is little to do it has
 * the duty, and the thread only looks after it; whatever is much is the thread's alone. */
static void arm(struct mrc_engine *engine, uint32_t planes) {
    for (; planes != 0; planes &= planes - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(planes);
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = i};

        if (engine->ports[i].socket.fd >= 0)
            epoll_ctl(engine->loop_fd, EPOLL_CTL_MOD, engine->ports[i].socket.fd, &event);
    }
    atomic_store(&engine->is_armed, true);
}

static bool is_quiet(const struct mrc_engine *engine, int64_t now) {
    return now - engine->was_busy > QUIET;
}

/* Takes in what woke the loop; the mutex is held. */
static void receive_for_loop(struct mrc_engine *engine, uint32_t planes) {
    mrc_frame_in frames[PLANE_BATCH];
    int64_t now = engine_clock();

    for (uint32_t rest = planes; rest != 0; rest &= rest - 1) {
        uint32_t plane = (uint32_t)__builtin_ctz(rest);
        uint32_t count = plane_socket_receive(&engine->ports[plane].socket, engine->poll_buffers,
                                              frames);

        take_in(engine, plane, frames, count);
    }
    mrc_endpoint_drained(engine->endpoint, now);
    hand_over_events(engine); /* the caller looks at the ring next */
    if (!is_quiet(engine, now)) {
        relieve_loop(engine);
        atomic_store(&engine->is_armed, false);
        return;
    }
    atomic_store(&engine->on_duty, now);
    arm(engine, planes);
}

static void take_loop_share(struct mrc_engine *engine) {
    struct epoll_event ready[FD_COUNT];
    int count = epoll_wait(engine->loop_fd, ready, FD_COUNT, 0); /* what it reports is disarmed */
    uint32_t planes = 0;

    for (int i = 0; i < count; i++)
        planes |= ready[i].data.u32 < MRC_PLANES ? 1u << ready[i].data.u32 : 0;
    if (planes == 0)
        return;
    /* While the thread is at it there is nothing to do: it arms again when it is done. */
    if (pthread_mutex_trylock(&engine->receiving) != 0) {
        atomic_store(&engine->is_armed, false);
        return;
    }
    if (pthread_mutex_trylock(&engine->mutex) == 0) {
        receive_for_loop(engine, planes);
        pthread_mutex_unlock(&engine->mutex);
    } else {
        atomic_store(&engine->is_armed, false);
    }
    pthread_mutex_unlock(&engine->receiving);
}

/* Waits for the planes (or not), netlink, a wake-up or the time. */
static void wait_for_work(struct mrc_engine *engine, struct pollfd *polled, bool with_planes,
                          int64_t timeout) {
    struct timespec time = {.tv_sec = timeout / (1000 * MS), .tv_nsec = timeout % (1000 * MS)};

    for (uint32_t i = 0; i < MRC_PLANES; i++)
        polled[i] = (struct pollfd){.fd = with_planes ? atomic_load(&engine->plane_fds[i]) : -1,
                                    .events = POLLIN};
    polled[FD_NETLINK] = (struct pollfd){.fd = engine->watch.fd, .events = POLLIN};
    polled[FD_WAKE] = (struct pollfd){.fd = engine->wake_fd, .events = POLLIN};
    if (ppoll(polled, FD_COUNT, timeout < 0 ? NULL : &time, NULL) < 0)
        memset(polled, 0, FD_COUNT * sizeof *polled);
}

/* Whether the loop takes in frames at present. */
static bool is_loop_on_duty(struct mrc_engine *engine, int64_t now) {
    int64_t since = atomic_load(&engine->on_duty);

    return engine->has_thread && since != 0 && now - since < DUTY;
}

static bool has_frames(const struct pollfd *polled) {
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if (polled[i].revents)
            return true;
    }
    return false;
}

/* Sleeps until there is work, at most until `limit`. */
static void sleep_for_work(struct mrc_engine *engine, struct pollfd *polled, int64_t limit) {
    int64_t now = engine_clock();
    int64_t until;
    bool is_blocked;
    bool is_guarding;
    bool is_armed;

    pthread_mutex_lock(&engine->mutex);
    is_blocked = engine->is_blocked;
    until = next_deadline(engine);
    until = limit < until ? limit : until;
    is_guarding = is_loop_on_duty(engine, now);
    if (!is_guarding && engine->may_spin && now - engine->worked < engine->config.spin)
        until = now;
    if ((is_guarding || now - engine->worked < DUTY) && until > now + GUARD)
        until = now + GUARD;
    engine->is_sleeping = until > now;
    engine->sleep_until = until;
    if (engine->is_sleeping && engine->has_thread && is_quiet(engine, now) &&
        !atomic_load(&engine->is_armed))
        arm(engine, (1u << MRC_PLANES) - 1);
    is_armed = engine->has_thread && atomic_load(&engine->is_armed) && is_quiet(engine, now);
    pthread_mutex_unlock(&engine->mutex);
    if (has_submissions(engine, is_blocked))
        until = now;
    wait_for_work(engine, polled, !is_guarding,
                  until == INT64_MAX ? -1 : until > now ? until - now : 0);
    if (is_guarding) {
        if (engine_clock() - atomic_load(&engine->on_duty) > GUARD)
            wait_for_work(engine, polled, true, 0); /* the loop has not come for a while */
    } else if (is_armed && until > now && has_frames(polled)) {
        /* The same frames have woken the loop: if it is free it is here by then. */
        nanosleep(&(struct timespec){.tv_nsec = HEAD_START}, NULL);
        wait_for_work(engine, polled, true, 0);
    }
}

/* One round; sleeps at most until `limit` when there is nothing to do. */
static void round_once(struct mrc_engine *engine, int64_t limit) {
    struct pollfd polled[FD_COUNT];
    int64_t now;
    bool has_any = false;

    sleep_for_work(engine, polled, limit);
    if (polled[FD_WAKE].revents)
        clear_fd(engine->wake_fd);
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if (polled[i].revents)
            has_any = receive(engine, i) || has_any;
    }
    if (has_any)
        atomic_store(&engine->on_duty, 0);
    lock_after_callers(engine);
    engine->is_sleeping = false;
    now = engine_clock();
    if (has_any)
        mrc_endpoint_drained(engine->endpoint, now);
    if (polled[FD_NETLINK].revents && netlink_watch_read(&engine->watch))
        engine_apply_watch(engine, now);
    has_any = service(engine, now) || has_any;
    if (has_any)
        engine->worked = now;
    pthread_mutex_unlock(&engine->mutex);
}

static void *run_thread(void *argument) {
    struct mrc_engine *engine = argument;

    pthread_setname_np(pthread_self(), "mrc");
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    while (!atomic_load(&engine->is_stopping))
        round_once(engine, INT64_MAX);
    return NULL;
}

int mrc_engine_run(mrc_engine *engine, int64_t timeout) {
    int64_t limit = timeout < 0 ? INT64_MAX : engine_clock() + timeout;

    if (engine->has_thread)
        return MRC_ERROR_STATE;
    do {
        errno = 0;
        round_once(engine, limit);
    } while (ring_count(&engine->completed) == 0 && errno != EINTR && engine_clock() < limit);
    return MRC_OK;
}

/* ---- Opening and closing ---- */

void mrc_engine_config_default(mrc_engine_config *config) {
    memset(config, 0, sizeof *config);
    mrc_config_default(&config->core);
    config->core.base_rtt_floor = MS / 2;
    config->core.target_delay_floor = MS;
    config->core.window_floor_packets = 64;
    config->threaded = true;
    config->spin = MS / 20;
    config->receive_buffer = 32u << 20;
    config->send_buffer = 8u << 20;
    config->ring = 4096;
}

static bool can_spin(void) {
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 1;
}

/* The thread takes no signals: they are the application's. */
static int start_thread(struct mrc_engine *engine) {
    sigset_t all;
    sigset_t before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    engine->has_thread = true; /* it looks at this itself */
    error = pthread_create(&engine->thread, NULL, run_thread, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        engine->has_thread = false;
    return error;
}

static void free_engine(struct mrc_engine *engine) {
    for (uint32_t i = 0; i < MRC_PLANES; i++)
        plane_socket_close(&engine->ports[i].socket);
    netlink_watch_close(&engine->watch);
    if (engine->event_fd >= 0)
        close(engine->event_fd);
    if (engine->wake_fd >= 0)
        close(engine->wake_fd);
    if (engine->loop_fd >= 0)
        close(engine->loop_fd);
    pthread_mutex_destroy(&engine->receiving);
    pthread_mutex_destroy(&engine->mutex);
    free(engine->receive_buffers);
    free(engine->poll_buffers);
    free(engine->submissions);
    free(engine->completions);
    free(engine->hop_told);
    free(engine->hops);
    free(engine->memory);
    free(engine);
}

/* 0, or an errno. */
static int allocate(struct mrc_engine *engine, size_t core_size) {
    uint32_t hops = engine->config.core.max_peers * MRC_PLANES;
    uint32_t ring = engine->config.ring;

    engine->memory = aligned_alloc(64, (core_size + 63) & ~(size_t)63);
    engine->hops = calloc(hops, sizeof *engine->hops);
    engine->hop_told = calloc(hops, sizeof *engine->hop_told);
    engine->submissions = calloc(ring, sizeof *engine->submissions);
    engine->completions = calloc(ring, sizeof *engine->completions);
    engine->receive_buffers = malloc((size_t)PLANE_BATCH * PLANE_FRAME_MAX);
    engine->poll_buffers = malloc((size_t)PLANE_BATCH * PLANE_FRAME_MAX);
    engine->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    engine->loop_fd = epoll_create1(EPOLL_CLOEXEC);
    if (engine->event_fd < 0 || engine->wake_fd < 0 || engine->loop_fd < 0)
        return errno;
    return engine->memory && engine->hops && engine->hop_told && engine->submissions &&
                   engine->completions && engine->receive_buffers && engine->poll_buffers
               ? 0
               : ENOMEM;
}

static int start(struct mrc_engine *engine) {
    const mrc_config *core = &engine->config.core;
    struct epoll_event readable = {.events = EPOLLIN, .data.u32 = MRC_PLANES};
    int error;

    engine->endpoint = mrc_endpoint_init(engine->memory, core, engine->config.seed);
    ring_init(&engine->submitted, engine->config.ring);
    ring_init(&engine->completed, engine->config.ring);
    engine->nudge_at = INT64_MAX;
    engine->may_spin = can_spin();
    error = netlink_watch_open(&engine->watch, core->udp_port, engine->hops,
                               core->max_peers * MRC_PLANES);
    if (error == 0 &&
        epoll_ctl(engine->loop_fd, EPOLL_CTL_ADD, engine->event_fd, &readable) != 0)
        error = errno;
    if (error == 0 && engine->config.threaded)
        error = start_thread(engine);
    return error;
}

mrc_engine *mrc_engine_open(const mrc_engine_config *config, int *error) {
    size_t core_size = mrc_endpoint_size(&config->core);
    bool is_power = config->ring != 0 && (config->ring & (config->ring - 1)) == 0;
    struct mrc_engine *engine = NULL;

    *error = EINVAL;
    if (core_size == 0 || !is_power || config->ring > 1u << 20 || config->spin < 0)
        return NULL;
    *error = ENOMEM;
    engine = aligned_alloc(64, (sizeof *engine + 63) & ~(size_t)63);
    if (engine == NULL)
        return NULL;
    memset(engine, 0, sizeof *engine);
    engine->config = *config;
    engine->event_fd = engine->wake_fd = engine->loop_fd = -1;
    engine->watch.fd = engine->watch.nudge4 = engine->watch.nudge6 = -1;
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        engine->ports[i].socket.fd = engine->ports[i].socket.quiet = -1;
        atomic_init(&engine->plane_fds[i], -1);
    }
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_mutex_init(&engine->receiving, NULL);
    *error = allocate(engine, core_size);
    if (*error == 0)
        *error = start(engine);
    if (*error == 0)
        return engine;
    free_engine(engine);
    return NULL;
}

void mrc_engine_close(mrc_engine *engine) {
    atomic_store(&engine->is_stopping, true);
    engine_wake(engine);
    if (engine->has_thread)
        pthread_join(engine->thread, NULL);
    free_engine(engine);
}

void mrc_engine_forget(mrc_engine *engine) {
    for (uint32_t i = 0; i < MRC_PLANES; i++)
        plane_socket_close(&engine->ports[i].socket);
    netlink_watch_close(&engine->watch);
    close(engine->event_fd);
    close(engine->wake_fd);
    close(engine->loop_fd);
}

int mrc_engine_fd(const mrc_engine *engine) { return engine->loop_fd; }

int mrc_engine_errno(const mrc_engine *engine) { return engine->system_errno; }

/* ---- Rings ---- */

int mrc_engine_submit(mrc_engine *engine, const mrc_submission *submission) {
    uint32_t slot;

    if (submission->type != MRC_SUBMIT_WRITE && submission->type != MRC_SUBMIT_RECEIVE)
        return MRC_ERROR_ARGUMENT;
    if (!ring_free(&engine->submitted, &slot))
        return MRC_ERROR_FULL;
    engine->submissions[slot] = *submission;
    ring_push(&engine->submitted);
    if (submission->type == MRC_SUBMIT_RECEIVE)
        return MRC_OK; /* soon enough when a frame comes */
    atomic_thread_fence(memory_order_seq_cst); /* before the try, after the push */
    if (pthread_mutex_trylock(&engine->mutex) == 0)
        engine_leave(engine); /* sends it at once: no hand-over to the thread */
    return MRC_OK;
}

void mrc_engine_flush(mrc_engine *engine) {
    /* A thread that holds the mutex ends its round with the same. */
    if (pthread_mutex_trylock(&engine->mutex) == 0)
        engine_leave(engine);
}

static uint32_t take_completions(mrc_engine *engine, mrc_event *events, uint32_t room) {
    uint32_t count = 0;
    uint32_t slot;

    while (count < room && ring_next(&engine->completed, &slot)) {
        events[count++] = engine->completions[slot];
        ring_pop(&engine->completed);
    }
    return count;
}

int mrc_engine_poll(mrc_engine *engine, mrc_event *events, uint32_t room) {
    uint32_t count;

    if (engine->has_thread)
        take_loop_share(engine);
    count = take_completions(engine, events, room);
    if (count < room && atomic_load(&engine->is_signalled)) {
        /* In this order: what comes before the flag falls is taken here, what comes after it
         * signals anew. */
        clear_fd(engine->event_fd);
        atomic_store(&engine->is_signalled, false);
        count += take_completions(engine, events + count, room - count);
        if (count == room && ring_count(&engine->completed) > 0)
            signal_events(engine);
    }
    if (atomic_exchange(&engine->is_stalled, false)) {
        if (engine->has_thread) {
            engine_wake(engine);
        } else if (pthread_mutex_trylock(&engine->mutex) == 0) {
            engine_leave(engine);
        }
    }
    return (int)count;
}
