/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include <string.h>

enum {
    SILENT_PACKETS = 3,  /* [choice] a plane with fewer losses is not silent */
    FULL_TRIES = 3,      /* full-size probes before the MTU is blamed [choice] */
    FULL_SAMPLES = 8,    /* of the RTT of an empty path, on a software host [choice] */
    BURST_TRIES_FAST = 3 /* bursts asked for at the fast pace [choice] */
};

#define MS ((int64_t)1000000)
#define SILENCE_FLOOR (5 * MS)      /* [choice] least silence of a plane; else 2 RTT */
#define FLAP_MEMORY (60000 * MS)    /* [choice] a flap counts for so long */
#define FIRST_PROBES (5 * MS)       /* pace of the very first probes [choice] */
#define CONFIRM (20 * MS)           /* wait before an unanswered probe is repeated [choice] */
#define FIRST_PATIENCE (1000 * MS)  /* probing without an answer is silence after that [choice] */
#define PROBE_PATIENCE (100 * MS)   /* least silence that unanswered probes alone prove [choice] */

void path_init(struct path *path, int64_t now) {
    memset(path, 0, sizeof *path);
    path->state = MRC_PLANE_ABSENT;
    path->probe_at = INT64_MAX;
    path->changed = now;
}

static void change(struct path *path, int64_t now, enum mrc_plane_state state,
                   enum mrc_plane_reason reason) {
    if (path->state == state && path->reason == reason)
        return;
    path->state = (uint8_t)state;
    path->reason = (uint8_t)reason;
    path->changed = now;
    path->is_changed = true;
}

/* What was learned of the way itself no longer holds. */
static void forget(struct path *path) {
    path->losses = 0;
    path->doubt_since = 0;
    path->answers = 0;
    path->unanswered = 0;
    path->full_unanswered = 0;
    path->full_size = 0;
    path->burst_answers = 0;
    path->burst_tries = 0;
    path->reverse_count = 0;
}

static void go_out(struct path *path, const mrc_config *config, int64_t now,
                   enum mrc_plane_reason reason) {
    if (path->state == MRC_PLANE_UP) {
        bool is_flap = path->went_out != 0 && now - path->went_out < FLAP_MEMORY;

        path->spread = is_flap ? path->spread * 2 : config->revive_spread;
        if (path->spread > config->probe_max)
            path->spread = config->probe_max;
        path->went_out = now;
    }
    forget(path);
    path->probe_at = now;
    change(path, now, MRC_PLANE_OUT, reason);
}

void path_on_facts(struct path *path, const mrc_config *config, int64_t now,
                   const struct path_facts *facts) {
    bool was_blocked = path->state == MRC_PLANE_OUT &&
                       (path->reason == MRC_REASON_LINK || path->reason == MRC_REASON_ADDRESS ||
                        path->reason == MRC_REASON_DISABLED);

    if (!facts->is_paired) {
        path->probe_at = INT64_MAX;
        change(path, now, MRC_PLANE_ABSENT, MRC_REASON_NONE);
    } else if (facts->blocked != MRC_REASON_NONE) {
        go_out(path, config, now, facts->blocked);
        /* No probe can leave, but one for want of the neighbour's address may: it makes nothing
         * worse, and a plane that lacks its MTU is asked again when that changes. */
        path->probe_at = INT64_MAX;
    } else if (path->state == MRC_PLANE_ABSENT || was_blocked ||
               (path->state == MRC_PLANE_OUT && path->reason == MRC_REASON_MTU)) {
        forget(path);
        path->probe_at = now;
        change(path, now, MRC_PLANE_PROBING, MRC_REASON_NONE);
    }
}

void path_on_peer_says(struct path *path, const mrc_config *config, int64_t now, bool is_up) {
    if (!is_up && path->state == MRC_PLANE_UP) {
        go_out(path, config, now, MRC_REASON_PEER);
    } else if (is_up && path->state != MRC_PLANE_UP && path->probe_at != INT64_MAX) {
        path->probe_at = now;
    }
}

void path_forgive(struct path *path, const mrc_config *config) {
    if (path->spread > config->revive_spread)
        path->spread = config->revive_spread;
}

static void note_rtt(struct path *path, int64_t sample) {
    int64_t error;

    if (sample < 1)
        sample = 1;
    if (path->rtt_min == 0 || sample < path->rtt_min)
        path->rtt_min = sample;
    if (path->rtt == 0) {
        path->rtt = sample;
        path->rtt_var = sample / 2;
        return;
    }
    error = sample - path->rtt;
    path->rtt += error / 8;
    path->rtt_var += ((error < 0 ? -error : error) - path->rtt_var) / 4;
}

static void note_full_rtt(struct path *path, int64_t sample) {
    if (path->rtt_full == 0 || sample < path->rtt_full)
        path->rtt_full = sample;
}

void path_on_data_rtt(struct path *path, int64_t sample, bool is_full) {
    note_rtt(path, sample);
    if (is_full)
        note_full_rtt(path, sample);
}

void path_on_sent(struct path *path, int64_t now) {
    if (path->doubt_since == 0)
        path->doubt_since = now;
}

void path_on_acked(struct path *path, int64_t now) {
    path->proven = now;
    path->doubt_since = 0;
    path->losses = 0;
    path->unanswered = 0;
}

void path_on_lost(struct path *path, int64_t now, uint32_t packets) {
    path->losses += packets;
    /* Before it counts as silent it is asked: a window that lost all its packets sends no more. */
    if (path->losses >= SILENT_PACKETS && path->probe_sent < path->doubt_since &&
        path->probe_at != INT64_MAX)
        path->probe_at = now;
}

void path_note_reverse(struct path *path, uint32_t ev) {
    for (uint32_t i = 0; i < path->reverse_count; i++) {
        if (path->reverse_evs[i] == ev)
            return;
    }
    if (path->reverse_count < PATH_REVERSE_EVS) {
        path->reverse_evs[path->reverse_count++] = ev;
    } else {
        path->reverse_evs[0] = path->reverse_evs[1];
        path->reverse_evs[1] = ev;
    }
}

void path_forget_reverse(struct path *path, uint32_t ev) {
    for (uint32_t i = 0; i < path->reverse_count; i++) {
        if (path->reverse_evs[i] == ev)
            path->reverse_evs[i] = path->reverse_evs[--path->reverse_count];
    }
}

/* Whether enough was answered over enough time (probes_to_revive; the first use of a path and a
 * peer that had only called its port down need no time). */
static bool is_trusted(const struct path *path, const mrc_config *config, int64_t now) {
    if (!path->was_up || path->reason == MRC_REASON_PEER)
        return true;
    return path->answers >= config->probes_to_revive &&
           now - path->answers_since >= path->spread;
}

/* The wait before the next probe of a plane that is not in use. */
static int64_t retry_interval(const struct path *path, const mrc_config *config, bool has_work) {
    int64_t interval = config->plane_probe;
    uint32_t doublings = path->unanswered;

    if (!path->was_up && path->answers == 0) {
        interval = doublings < 8 ? FIRST_PROBES << doublings : config->plane_probe;
        if (interval > config->plane_probe)
            interval = config->plane_probe;
    } else if (path->answers > 0 && config->probes_to_revive > 1) {
        int64_t step = path->spread / (config->probes_to_revive - 1);

        return step < interval && step > 0 ? step : interval;
    }
    if (has_work)
        return interval;
    for (; doublings > 0 && interval < config->probe_max; doublings--)
        interval *= 2;
    return interval < config->probe_max ? interval : config->probe_max;
}

/* The first answer of a plane that is not in use has the next ones asked for: after long silence
 * the next probe may be far away. */
static void note_first_answer(struct path *path, const mrc_config *config, int64_t now) {
    int64_t next = now + retry_interval(path, config, true);

    path->answers_since = now;
    if (next < path->probe_at)
        path->probe_at = next;
}

void path_on_answer(struct path *path, const mrc_config *config, int64_t now, enum path_probe kind,
                    int64_t sent, uint32_t ev, uint32_t size, uint32_t needed) {
    if (path->state == MRC_PLANE_ABSENT || path->probe_at == INT64_MAX)
        return;
    if (path->state != MRC_PLANE_UP && sent < path->changed && path->was_up)
        return; /* it crossed before the plane went out and proves nothing */
    path_on_acked(path, now);
    note_rtt(path, now - sent);
    path_note_reverse(path, ev);
    if (kind == PATH_PROBE_FULL) {
        path->full_unanswered = 0;
        path->full_answers += path->full_answers < FULL_SAMPLES;
        if (size > path->full_size)
            path->full_size = size;
        note_full_rtt(path, now - sent);
    } else if (kind == PATH_PROBE_BURST) {
        path->burst_answers++;
    }
    if (path->state == MRC_PLANE_UP)
        return;
    if (path->answers++ == 0)
        note_first_answer(path, config, now);
    if (!path->was_up && kind == PATH_PROBE_SMALL && path->answers == 1)
        path->probe_at = now; /* the long one is next */
    if (needed != 0 && path->full_size >= needed && is_trusted(path, config, now)) {
        path->was_up = true;
        path->probe_at = now; /* and then a burst */
        change(path, now, MRC_PLANE_UP, MRC_REASON_NONE);
    }
}

void path_on_needed(struct path *path, int64_t now, uint32_t needed) {
    if (path->full_size < needed && path->probe_at != INT64_MAX)
        path->probe_at = now;
}

int64_t path_patience(const struct path *path) {
    int64_t patience = path->rtt + (path->rtt > 4 * path->rtt_var ? path->rtt : 4 * path->rtt_var);

    return patience > SILENCE_FLOOR ? patience : SILENCE_FLOOR;
}

/* Probes wait in the peer's queue behind its data, which no RTT of ours has seen: losses count only
 * if a probe is overdue as well. */
bool path_check_silence(struct path *path, const mrc_config *config, int64_t now, int64_t proved) {
    int64_t silence = now - path->doubt_since;
    int64_t patience = path_patience(path);
    int64_t answer = path->rtt + 4 * path->rtt_var;
    bool is_losing = path->losses >= SILENT_PACKETS && silence >= patience &&
                     path->probe_sent >= path->doubt_since && proved >= path->probe_sent + answer;
    bool is_mute = path->unanswered >= SILENT_PACKETS && silence >= 2 * patience &&
                   silence >= PROBE_PATIENCE && proved >= path->doubt_since + answer;

    if (path->state != MRC_PLANE_UP || path->doubt_since == 0 || !(is_losing || is_mute))
        return false;
    go_out(path, config, now, MRC_REASON_SILENT);
    return true;
}

/* One after the other: behind longer ones a probe would not tell the RTT of an empty path. */
bool path_wants_full(const struct path *path, uint32_t needed) {
    return needed != 0 && path->rtt != 0 && path->full_size < needed;
}

bool path_wants_burst(const struct path *path, uint32_t needed) {
    return needed != 0 && path->full_size >= needed && !path_can_burst(path);
}

/* A host that was not running made any single sample long, and rtt_full is for good. */
bool path_wants_samples(const struct path *path, const mrc_config *config) {
    return path->full_size > 0 && path->full_answers < FULL_SAMPLES &&
           config->base_rtt_floor > 0 && path->rtt_full > config->base_rtt_floor;
}

bool path_can_burst(const struct path *path) { return path->burst_answers >= 2; }

/* Short probes come back; full ones, which had the time to, do not. */
static void note_full_unanswered(struct path *path, int64_t now) {
    if (path->full_unanswered++ == 0)
        path->full_asked = now;
    if (path->full_unanswered >= FULL_TRIES && now - path->full_asked >= path_patience(path))
        change(path, now, MRC_PLANE_OUT, MRC_REASON_MTU);
}

void path_on_probed(struct path *path, const mrc_config *config, int64_t now,
                    const struct path_plan *plan) {
    bool is_lost = path->probe_sent > path->proven && path->probe_sent != 0;

    if (is_lost) {
        path->unanswered++;
        path->reverse_count = 0; /* answers go by the way of what they answer */
        path->answers = 0;
        path->full_unanswered = 0;
    } else if (path->probe_sent != 0 && path_wants_full(path, plan->needed)) {
        note_full_unanswered(path, now);
    }
    if (path->state == MRC_PLANE_PROBING && is_lost && path->proven <= path->changed &&
        now - path->changed >= FIRST_PATIENCE)
        change(path, now, MRC_PLANE_OUT, MRC_REASON_SILENT); /* probed on all the same */
    if (path_wants_burst(path, plan->needed))
        path->burst_tries++;
    path->burst_answers = path_can_burst(path) ? path->burst_answers : 0;
    path->probe_sent = now;
    if (path->state != MRC_PLANE_UP) {
        path->probe_at = now + retry_interval(path, config, plan->has_work);
        return;
    }
    path_on_sent(path, now);
    path->probe_at = now + plan->interval;
    if (path->unanswered > 0 && CONFIRM < plan->interval &&
        now - path->doubt_since < 2 * PROBE_PATIENCE)
        path->probe_at = now + CONFIRM; /* find out soon whether it is gone */
    if (path_wants_burst(path, plan->needed)) {
        bool is_new = path->burst_tries <= BURST_TRIES_FAST;
        int64_t wait = is_new ? config->plane_probe : config->probe_max;

        if (now + wait < path->probe_at)
            path->probe_at = now + wait;
    }
}
