/* SPDX-License-Identifier: Apache-2.0 */
/* Timers, and what queue pairs and peers report: errors, changes of planes, completions. */
#include <string.h>

#include "endpoint.h"

#define SECOND ((int64_t)1000000000)
#define LATE (SECOND / 1000) /* [choice] */
#define DEAD_RECHECK (SECOND / 10) /* silent for long enough, but not asked often enough */

enum { DEAD_PROBES = 3 }; /* unanswered before silence is death: we may have slept [choice] */

/* ---- Queue pairs ---- */

void endpoint_fail_qp(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp, int status) {
    if (qp->state == MRC_QP_ERROR || qp->is_closed)
        return;
    qp->state = MRC_QP_ERROR;
    qp->error = status;
    qp->ends = now + endpoint->config.linger;
    if (qp->peer != NULL) {
        requestor_flush(&qp->requestor, status);
        responder_flush(&qp->responder);
    }
    qp_queue_push(&endpoint->failed, QUEUE_FAILED, qp);
}

void endpoint_settle_qp(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp) {
    int64_t deadline = TIMER_NEVER;

    if (qp->state == MRC_QP_RTS && !qp->is_closed) {
        if (qp->responder.error != 0) {
            requestor_flush(&qp->requestor, MRC_ERROR_FLUSHED); /* it was not ours that failed */
            endpoint_fail_qp(endpoint, now, qp, qp->responder.error);
        } else if (qp->requestor.error != 0) {
            endpoint_fail_qp(endpoint, now, qp, qp->requestor.error);
        }
    }
    if (responder_is_due(&qp->responder))
        qp_queue_push(&endpoint->answering, QUEUE_ANSWERING, qp);
    if (qp->state == MRC_QP_RTS && !qp->is_closed) {
        deadline = requestor_deadline(&qp->requestor);
        if (qp->responder.deadline < deadline)
            deadline = qp->responder.deadline;
    } else if (qp->is_closed) {
        deadline = qp->ends; /* one in ERROR stays until its owner closes it */
    }
    timer_heap_set(&endpoint->timers, endpoint_qp_timer(qp), deadline);
}

static void on_qp_timeout(struct mrc_endpoint *endpoint, int64_t now, struct qp *qp) {
    uint32_t suspect;

    if (qp->is_closed && qp->ends <= now) {
        endpoint_free_qp(endpoint, now, qp);
        return;
    }
    if (qp->state == MRC_QP_RTS && !qp->is_closed) {
        if (qp->responder.deadline <= now)
            responder_report(&qp->responder);
        requestor_on_timeout(&qp->requestor, now, &suspect);
        if (suspect != EV_NONE)
            endpoint_send_suspect_probe(endpoint, now, qp, suspect);
        endpoint_wake_qp(endpoint, qp);
    }
    endpoint_settle_qp(endpoint, now, qp);
    if (qp->peer != NULL)
        endpoint_settle_peer(endpoint, now, endpoint_entry(endpoint, qp->peer));
}

/* ---- Peers ---- */

void endpoint_fail_peer(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry,
                        int status) {
    for (struct qp *qp = entry->qps; qp != NULL; qp = qp->same_peer) {
        endpoint_fail_qp(endpoint, now, qp, status);
        endpoint_settle_qp(endpoint, now, qp);
    }
    endpoint_settle_peer(endpoint, now, entry);
}

static void on_plane_changed(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry,
                             uint32_t plane) {
    const struct path *path = &entry->peer.plane[plane].path;
    mrc_event event = {.type = MRC_EVENT_PLANE,
                       .peer = entry->peer.number,
                       .plane = plane,
                       .state = path->state,
                       .reason = path->reason,
                       .time = now};

    events_add(&endpoint->events, &event);
    for (struct qp *qp = entry->qps; qp != NULL; qp = qp->same_peer) {
        if (qp->state != MRC_QP_RTS || qp->is_closed)
            continue;
        if (path->state == MRC_PLANE_UP)
            requestor_on_plane_up(&qp->requestor, now, plane);
        else
            requestor_on_plane_out(&qp->requestor, now, plane);
        endpoint_wake_qp(endpoint, qp);
        endpoint_settle_qp(endpoint, now, qp);
    }
}

static bool has_open_qp(const struct peer_entry *entry) {
    for (const struct qp *qp = entry->qps; qp != NULL; qp = qp->same_peer) {
        if (qp->state == MRC_QP_RTS && !qp->is_closed)
            return true;
    }
    return false;
}

/* When a silent peer is to be given up; TIMER_NEVER while no queue pair depends on it. */
static int64_t death_of(const struct mrc_endpoint *endpoint, const struct peer_entry *entry,
                        int64_t now) {
    int64_t death = entry->peer.answered + endpoint->config.dead_after;

    if (!has_open_qp(entry))
        return TIMER_NEVER;
    return death <= now && entry->peer.asked < DEAD_PROBES ? now + DEAD_RECHECK : death;
}

void endpoint_settle_peer(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry) {
    uint32_t changed = peer_take_changes(&entry->peer, now);
    int64_t deadline;
    int64_t death;

    for (; changed != 0; changed &= changed - 1)
        on_plane_changed(endpoint, now, entry, (uint32_t)__builtin_ctz(changed));
    deadline = peer_deadline(&entry->peer);
    death = death_of(endpoint, entry, now);
    timer_heap_set(&endpoint->timers, endpoint_peer_timer(endpoint, &entry->peer),
                   death < deadline ? death : deadline);
    endpoint_wake_peer(endpoint, entry);
}

static void on_peer_timeout(struct mrc_endpoint *endpoint, int64_t now, struct peer_entry *entry) {
    if (has_open_qp(entry) && now - entry->peer.answered >= endpoint->config.dead_after &&
        entry->peer.asked >= DEAD_PROBES) {
        endpoint_fail_peer(endpoint, now, entry, MRC_ERROR_PEER_SILENT);
        return;
    }
    if (peer_on_timeout(&entry->peer, now))
        entry->is_probing = true;
    /* Without a port to ask by, each look counts as a question: nobody waits for ever. */
    if (now - entry->peer.answered >= endpoint->config.dead_after && !peer_can_ask(&entry->peer))
        entry->peer.asked++;
    endpoint_settle_peer(endpoint, now, entry);
}

/* ---- The verbs ---- */

void mrc_endpoint_timeout(mrc_endpoint *endpoint, int64_t now) {
    const mrc_config *config = &endpoint->config;

    /* The driver was not running: what came meanwhile goes before what seems not to have come. */
    endpoint->was_late = !endpoint->was_late && timer_heap_deadline(&endpoint->timers) < now - LATE;
    if (endpoint->was_late)
        return;
    while (timer_heap_deadline(&endpoint->timers) <= now) {
        uint32_t owner = timer_heap_owner(&endpoint->timers);

        if (owner < config->max_qps)
            on_qp_timeout(endpoint, now, &endpoint->qps[owner]);
        else if (owner < config->max_qps + config->max_peers)
            on_peer_timeout(endpoint, now, &endpoint->peers[owner - config->max_qps]);
        else
            endpoint_expire_probes(endpoint, now);
    }
}

int64_t mrc_endpoint_deadline(const mrc_endpoint *endpoint) {
    return timer_heap_deadline(&endpoint->timers);
}

static bool poll_write(struct mrc_endpoint *endpoint, mrc_event *event) {
    struct write *write = endpoint->done.head;

    if (write == NULL)
        return false;
    endpoint->done.head = write->next;
    event->type = MRC_EVENT_WRITE;
    event->status = write->status;
    event->qp = write->work.qp;
    event->tag = write->work.tag;
    pool_give(&endpoint->writes, write);
    return true;
}

static bool poll_receive(struct mrc_endpoint *endpoint, mrc_event *event) {
    struct immediate *immediate = endpoint->received.head;

    if (immediate == NULL)
        return false;
    endpoint->received.head = immediate->next;
    event->type = MRC_EVENT_RECEIVE;
    event->qp = immediate->qp;
    event->immediate = immediate->value;
    pool_give(&endpoint->immediates, immediate);
    return true;
}

static bool poll_failure(struct mrc_endpoint *endpoint, mrc_event *event) {
    struct qp *qp = qp_queue_pop(&endpoint->failed, QUEUE_FAILED);

    if (qp == NULL)
        return false;
    event->type = MRC_EVENT_QP;
    event->qp = qp->number;
    event->peer = qp->peer != NULL ? qp->peer->number : 0;
    event->status = qp->error;
    return true;
}

bool mrc_endpoint_poll(mrc_endpoint *endpoint, mrc_event *event) {
    memset(event, 0, sizeof *event);
    return poll_receive(endpoint, event) || poll_write(endpoint, event) ||
           poll_failure(endpoint, event) || events_take(&endpoint->events, event);
}
