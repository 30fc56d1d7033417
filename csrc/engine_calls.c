/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of an engine besides work requests: planes, peers, memory, queue pairs.
 *
 * Each call waits for the mutex, does its work in the core at once, and returns its result.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_packet.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine.h"

int mrc_engine_probe_capability(void) {
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

int mrc_engine_add_plane(mrc_engine *engine, uint32_t plane, const char *name,
                         const mrc_address *address) {
    struct plane_socket_config config = {
        .udp_port = engine->config.core.udp_port,
        .qp_prefix = engine->config.core.qp_prefix,
        .receive_buffer = engine->config.receive_buffer,
        .send_buffer = engine->config.send_buffer,
    };
    struct watched_plane *watched;
    struct port *port;
    int status = MRC_OK;

    if (plane >= MRC_PLANES || strlen(name) == 0 || strlen(name) >= WATCH_NAME)
        return MRC_ERROR_ARGUMENT;
    engine_enter(engine);
    watched = &engine->watch.planes[plane];
    port = &engine->ports[plane];
    if (watched->is_used) {
        status = MRC_ERROR_ARGUMENT;
    } else if ((engine->system_errno = plane_socket_open(&port->socket, &config)) != 0) {
        status = MRC_ERROR_SYSTEM;
    } else {
        struct epoll_event armed = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = plane};

        epoll_ctl(engine->loop_fd, EPOLL_CTL_ADD, port->socket.fd, &armed);
        atomic_store(&engine->plane_fds[plane], port->socket.fd);
        watched->is_used = true;
        memcpy(watched->name, name, strlen(name) + 1);
        watched->wanted = *address;
        port->enabled = true;
        netlink_watch_sync(&engine->watch);
        engine_apply_watch(engine, engine_clock());
        mrc_endpoint_set_plane(engine->endpoint, engine_clock(), plane, &port->applied);
    }
    engine_leave(engine);
    if (engine->has_thread)
        engine_wake(engine); /* it waits without the new socket */
    return status;
}

int mrc_engine_enable_plane(mrc_engine *engine, uint32_t plane, bool enabled) {
    int status = MRC_ERROR_NOT_FOUND;

    engine_enter(engine);
    if (plane < MRC_PLANES && engine->watch.planes[plane].is_used) {
        engine->ports[plane].enabled = enabled;
        engine_apply_plane(engine, plane, engine_clock());
        status = MRC_OK;
    }
    engine_leave(engine);
    return status;
}

int mrc_engine_get_plane(mrc_engine *engine, uint32_t plane, mrc_engine_plane *out) {
    int status = MRC_ERROR_NOT_FOUND;

    engine_enter(engine);
    if (plane < MRC_PLANES && engine->watch.planes[plane].is_used) {
        struct port *port = &engine->ports[plane];

        plane_socket_count_drops(&port->socket);
        memset(out, 0, sizeof *out);
        memcpy(out->name, engine->watch.planes[plane].name, sizeof out->name);
        out->index = engine->watch.planes[plane].index;
        out->info = port->applied;
        out->receive_buffer = port->socket.receive_buffer;
        out->send_buffer = port->socket.send_buffer;
        out->vnet_header = port->socket.has_gso;
        out->kernel_drops = port->socket.kernel_drops;
        out->send_errors = port->socket.send_errors;
        out->send_errno = port->socket.send_errno;
        status = MRC_OK;
    }
    engine_leave(engine);
    return status;
}

static void follow_hop(struct mrc_engine *engine, uint32_t peer, uint32_t plane,
                       const mrc_address *next_hop) {
    uint32_t index = peer * MRC_PLANES + plane;

    engine->hops[index] = (struct watched_hop){
        .is_used = next_hop->version != 0, .plane = plane, .next_hop = *next_hop};
}

static bool is_followed(const struct mrc_engine *engine, uint32_t peer, uint32_t plane,
                        const mrc_address *next_hop) {
    const struct watched_hop *hop = &engine->hops[peer * MRC_PLANES + plane];

    return hop->is_used &&
           (next_hop->version == 0 ||
            (next_hop->version == hop->next_hop.version &&
             memcmp(next_hop->bytes, hop->next_hop.bytes, sizeof next_hop->bytes) == 0));
}

int mrc_engine_peer_add(mrc_engine *engine, const mrc_peer_setup *setup,
                        const mrc_address next_hops[MRC_PLANES]) {
    int peer;

    engine_enter(engine);
    peer = mrc_peer_add(engine->endpoint, engine_clock(), setup);
    for (uint32_t i = 0; peer >= 0 && i < MRC_PLANES; i++) {
        if (!is_followed(engine, (uint32_t)peer, i, &next_hops[i])) /* one that is known stays */
            follow_hop(engine, (uint32_t)peer, i, &next_hops[i]);
    }
    if (peer >= 0) {
        netlink_watch_sync(&engine->watch);
        engine_apply_watch(engine, engine_clock());
        engine->nudge_at = 0;
    }
    engine_leave(engine);
    return peer;
}

int mrc_engine_peer_set_address(mrc_engine *engine, uint32_t peer, uint32_t plane,
                                const mrc_address *address, const mrc_address *next_hop) {
    int status;

    engine_enter(engine);
    status = mrc_peer_set_address(engine->endpoint, engine_clock(), peer, plane, address);
    if (status == MRC_OK) {
        mrc_peer_set_neighbour(engine->endpoint, engine_clock(), peer, plane, NULL);
        follow_hop(engine, peer, plane, next_hop);
        netlink_watch_sync(&engine->watch);
        engine_apply_watch(engine, engine_clock());
        engine->nudge_at = 0;
    }
    engine_leave(engine);
    return status;
}

int mrc_engine_peer_remove(mrc_engine *engine, uint32_t peer) {
    int status;

    engine_enter(engine);
    status = mrc_peer_remove(engine->endpoint, peer);
    for (uint32_t i = 0; status == MRC_OK && i < MRC_PLANES; i++) {
        engine->hops[peer * MRC_PLANES + i].is_used = false;
        engine->hop_told[peer * MRC_PLANES + i] = false;
    }
    engine_leave(engine);
    return status;
}

/* The rest adds nothing to the core's call but the mutex and the clock. */
#define WITH_CORE(call)                                                                            \
    int status;                                                                                    \
    engine_enter(engine);                                                                          \
    status = (call);                                                                               \
    engine_leave(engine);                                                                          \
    return status

int mrc_engine_peer_fail(mrc_engine *engine, uint32_t peer, int status_of_qps) {
    WITH_CORE(mrc_peer_fail(engine->endpoint, engine_clock(), peer, status_of_qps));
}

int mrc_engine_peer_check(mrc_engine *engine, uint32_t peer) {
    WITH_CORE(mrc_peer_check(engine->endpoint, engine_clock(), peer));
}

int mrc_engine_peer_stats(mrc_engine *engine, uint32_t peer, uint32_t plane,
                          mrc_plane_stats *stats) {
    WITH_CORE(mrc_peer_stats(engine->endpoint, peer, plane, stats));
}

int mrc_engine_register(mrc_engine *engine, const mrc_region *region) {
    WITH_CORE(mrc_endpoint_register(engine->endpoint, region));
}

int mrc_engine_deregister(mrc_engine *engine, uint32_t key) {
    WITH_CORE(mrc_endpoint_deregister(engine->endpoint, key));
}

int mrc_engine_qp_create(mrc_engine *engine, uint32_t domain, mrc_qp_attributes *local) {
    WITH_CORE(mrc_qp_create(engine->endpoint, engine_clock(), domain, UINT32_MAX, local));
}

int mrc_engine_qp_connect(mrc_engine *engine, uint32_t qp, uint32_t peer,
                          const mrc_qp_attributes *remote) {
    WITH_CORE(mrc_qp_connect(engine->endpoint, engine_clock(), qp, peer, remote));
}

int mrc_engine_qp_close(mrc_engine *engine, uint32_t qp) {
    WITH_CORE(mrc_qp_close(engine->endpoint, engine_clock(), qp));
}

int mrc_engine_qp_stats(mrc_engine *engine, uint32_t qp, mrc_qp_stats *stats) {
    WITH_CORE(mrc_qp_get_stats(engine->endpoint, qp, stats));
}

int mrc_engine_qp_evs(mrc_engine *engine, uint32_t qp, mrc_ev_info *evs, uint32_t room) {
    WITH_CORE(mrc_qp_evs(engine->endpoint, qp, evs, room));
}

int mrc_engine_qp_deny(mrc_engine *engine, uint32_t qp, uint32_t ev, bool deny) {
    WITH_CORE(mrc_qp_deny(engine->endpoint, engine_clock(), qp, ev, deny));
}

static int probe_by_hop(struct mrc_engine *engine, uint32_t peer, const mrc_probe *probe) {
    const struct watched_hop *hop;
    mrc_probe routed = *probe;

    if (peer >= engine->config.core.max_peers || probe->plane >= MRC_PLANES)
        return MRC_ERROR_ARGUMENT;
    hop = &engine->hops[peer * MRC_PLANES + probe->plane];
    if (!hop->is_used || !hop->has_mac)
        return MRC_ERROR_STATE;
    memcpy(routed.destination_mac, hop->mac, sizeof hop->mac);
    return mrc_endpoint_probe(engine->endpoint, engine_clock(), &routed);
}

int mrc_engine_probe(mrc_engine *engine, uint32_t peer, const mrc_probe *probe) {
    WITH_CORE(probe_by_hop(engine, peer, probe));
}

void mrc_engine_counters(mrc_engine *engine, mrc_counters *counters) {
    engine_enter(engine);
    mrc_endpoint_counters(engine->endpoint, counters);
    engine_leave(engine);
}
