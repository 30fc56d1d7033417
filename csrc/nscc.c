/* SPDX-License-Identifier: Apache-2.0 */
#include "nscc.h"

#include <assert.h>
#include <string.h>

#define ONE 1024u                /* 1.0 in fixed point */
#define REFERENCE_BDP 150000u    /* bytes: scaling_a = BDP / this */
#define REFERENCE_DELAY 12000    /* ns: scaling_b = target / this */
#define NS_BYTES 8000000000u     /* bits a second times ns, in bytes */

enum {
    GAMMA_PERCENT = 80,    /* gamma 0.8 */
    MAX_MD_JUMP_PERCENT = 50,
    QA_GATE = 3,
    QA_TARGETS = 4,        /* qa_threshold = 4 target_qdelay */
    ADJUST_PACKETS = 8,    /* adjust_bytes = 8 MTU */
    ALPHA = 4,             /* alpha = 4 scaling_a scaling_b MTU / target */
    FAIR = 5,              /* fi = 5 MTU scaling_a */
    FAST_DIVISOR = 4,      /* fi_scale = 0.25 scaling_a */
    ETA_PERCENT = 15,      /* eta = 0.15 MTU scaling_a */
    DELAY_WEIGHT = 8,      /* of the average: 1 / this for each sample [choice] */
    NEAR_ZERO = 16,        /* a delay below target / this is none [choice] */
    SCALE_B_MAX = 16,      /* scaling_b beyond this only overshoots [choice] */
};

static uint64_t bdp_of(const struct nscc *nscc) {
    /* 800 Gb/s over 1 s is 8e20 bit ns: divide first. */
    uint64_t kilobits = nscc->config.rate_bps / 1000;

    return kilobits * (uint64_t)(nscc->base_rtt / 100 + 1) / (NS_BYTES / 100000);
}

static void cap(struct nscc *nscc) {
    if (nscc->cwnd > nscc->max_wnd)
        nscc->cwnd = nscc->max_wnd;
    if (nscc->cwnd < nscc->config.mtu)
        nscc->cwnd = nscc->config.mtu;
}

/* All that follows from rate and base_rtt. */
static void rescale(struct nscc *nscc) {
    uint64_t bdp = bdp_of(nscc);
    int64_t target = nscc->config.trimming ? nscc->base_rtt * 3 / 4 : nscc->base_rtt;

    nscc->target =
        target > nscc->config.target_delay_floor ? target : nscc->config.target_delay_floor;
    if (nscc->target < 1)
        nscc->target = 1;
    nscc->max_wnd = bdp + bdp / 2;
    if (nscc->max_wnd < nscc->config.window_floor)
        nscc->max_wnd = nscc->config.window_floor;
    if (nscc->max_wnd < 2ull * nscc->config.mtu)
        nscc->max_wnd = 2ull * nscc->config.mtu;
    nscc->gain = bdp * ONE / REFERENCE_BDP;
    if (nscc->gain == 0)
        nscc->gain = 1;
}

static void set_base_rtt(struct nscc *nscc, int64_t rtt) {
    nscc->base_rtt = rtt > nscc->config.base_rtt_floor ? rtt : nscc->config.base_rtt_floor;
    if (nscc->base_rtt < 1)
        nscc->base_rtt = 1;
    rescale(nscc);
}

void nscc_init(struct nscc *nscc, const struct nscc_config *config, int64_t now, int64_t base_rtt) {
    assert(config->rate_bps > 0 && config->mtu > 0);
    memset(nscc, 0, sizeof *nscc);
    nscc->config = *config;
    set_base_rtt(nscc, base_rtt);
    nscc->cwnd = nscc->max_wnd;
    nscc->adjusted = now;
    nscc->sampled = now;
    nscc->late_since = INT64_MAX;
    nscc->decreased = now - nscc->base_rtt;
    nscc->period_end = now + nscc->base_rtt + nscc->target;
}

void nscc_set_way(struct nscc *nscc, uint64_t rate_bps, int64_t base_rtt) {
    assert(rate_bps > 0);
    nscc->config.rate_bps = rate_bps;
    set_base_rtt(nscc, base_rtt);
    cap(nscc);
}

bool nscc_has_room(const struct nscc *nscc, uint64_t inflight, uint32_t size) {
    return inflight == 0 || inflight + size <= nscc->cwnd;
}

/* log2 with 10 bits of fraction, straight between powers of two. */
static int64_t log2_of(uint64_t value) {
    uint32_t whole = 63 - (uint32_t)__builtin_clzll(value);
    uint64_t fraction = whole > 10 ? value >> (whole - 10) : value << (10 - whole);

    return (int64_t)whole * ONE + (int64_t)fraction - ONE;
}

/* The delay that a window of this size may cause. [choice] As in Swift (SIGCOMM 2020), a small one
 * more than a large one: windows that share a queue, as all planes share the hosts, come out equal
 * whatever they were. From target_qdelay for max_wnd up to qa_threshold for one packet. */
static int64_t allowed_delay(const struct nscc *nscc) {
    int64_t halvings = log2_of(nscc->max_wnd) - log2_of(nscc->cwnd);
    int64_t most = log2_of(nscc->max_wnd) - log2_of(nscc->config.mtu);

    return nscc->target + (QA_TARGETS - 1) * nscc->target / most * halvings;
}

/* [choice] A sample weighs as much as it acknowledges of the window, so that the average is one of
 * a round trip, however many SACKs that brings. Where queues mark, a long delay without a mark is
 * of one that has gone: it counts as a short one. */
static void average(struct nscc *nscc, const struct nscc_sack *sack, int64_t delay) {
    int64_t most = (int64_t)nscc->cwnd / DELAY_WEIGHT;
    int64_t bytes = (int64_t)sack->new_bytes < most ? (int64_t)sack->new_bytes : most;

    if (nscc->has_marks && !sack->marked && delay > nscc->target)
        delay = nscc->base_rtt / 4;
    nscc->delay += (delay - nscc->delay) * bytes / (int64_t)nscc->cwnd;
}

/* The delay of this sample; base_rtt falls to the least RTT seen, and target with it. */
static int64_t take_rtt(struct nscc *nscc, const struct nscc_sack *sack) {
    int64_t delay;

    if (sack->least_rtt < nscc->base_rtt && nscc->base_rtt > nscc->config.base_rtt_floor)
        set_base_rtt(nscc, sack->least_rtt);
    if (sack->rtt < 0)
        return nscc->delay;
    delay = sack->rtt > nscc->base_rtt ? sack->rtt - nscc->base_rtt : 0;
    average(nscc, sack, delay);
    return delay;
}

/* Whether a queue above qa_threshold stands: a packet that left after the first late one was
 * acknowledged is late too. A host that was not running delays one flight, and once [choice]. */
static bool is_queue_standing(struct nscc *nscc, const struct nscc_sack *sack, int64_t delay) {
    if (sack->rtt < 0 || nscc->config.trimming)
        return false;
    if (delay <= QA_TARGETS * nscc->target)
        nscc->late_since = INT64_MAX;
    else if (nscc->late_since == INT64_MAX)
        nscc->late_since = sack->now;
    return sack->now - sack->rtt >= nscc->late_since;
}

static void start_period(struct nscc *nscc, int64_t now) {
    nscc->period_end = now + nscc->base_rtt + nscc->target;
    nscc->achieved = 0;
    nscc->was_trimmed = false;
    nscc->was_lost = false;
    nscc->was_limited = false;
}

void nscc_on_begin(struct nscc *nscc, int64_t now) { start_period(nscc, now); }

/* Rule 3. True when the window was set to what got through. */
static bool quick_adapt(struct nscc *nscc, int64_t now, bool is_late, uint64_t inflight) {
    /* [choice] A loss without delay is a broken packet rather than a full queue. */
    bool is_hurt = nscc->was_trimmed || (nscc->was_lost && nscc->delay >= nscc->target);
    int64_t period = nscc->base_rtt + nscc->target;
    int64_t elapsed = now - nscc->period_end + period;
    uint64_t achieved;
    bool must;

    if (now < nscc->period_end)
        return false;
    /* SACKs of a slow path come seldom: what they tell is of a longer time than the period. */
    achieved = nscc->achieved / (uint64_t)elapsed * (uint64_t)period +
               nscc->achieved % (uint64_t)elapsed * (uint64_t)period / (uint64_t)elapsed;
    must = (is_hurt || is_late) && nscc->was_limited && achieved < nscc->max_wnd >> QA_GATE;
    if (must) {
        nscc->cwnd = achieved < nscc->cwnd ? achieved : nscc->cwnd;
        nscc->to_ignore = inflight;
        nscc->ignored = 0;
        nscc->increase = 0;
        cap(nscc);
    }
    start_period(nscc, now);
    return must;
}

/* Rule 4, marked: at most once in `pause`, if the average delay is above `bound`. */
static void decrease(struct nscc *nscc, int64_t now, int64_t bound, int64_t pause) {
    int64_t keep;

    nscc->fast = 0;
    if (nscc->delay <= bound || now - nscc->decreased < pause)
        return;
    keep = 100 - GAMMA_PERCENT * (nscc->delay - bound) / nscc->delay;
    if (keep < MAX_MD_JUMP_PERCENT)
        keep = MAX_MD_JUMP_PERCENT;
    nscc->cwnd = nscc->cwnd * (uint64_t)keep / 100;
    nscc->decreased = now;
    cap(nscc);
}

/* Rule 4 at or above the bound. [choice] In a network that has never marked, delay alone has to
 * say that there is congestion. Where the network trims, it is marks inside that speak: a delay
 * without one is of the port to the host, which does not mark, and growth would fill it. */
static void on_delay(struct nscc *nscc, int64_t bound, const struct nscc_sack *sack) {
    if (sack->marked)
        decrease(nscc, sack->now, bound, nscc->base_rtt);
    else if (nscc->has_marks && !nscc->config.trimming)
        nscc->increase += FAIR * (uint64_t)nscc->config.mtu * nscc->gain / ONE * sack->new_bytes;
    else if (!nscc->config.trimming)
        decrease(nscc, sack->now, bound, nscc->base_rtt + nscc->delay);
}

/* Rule 4, unmarked and below the bound. Fast increase only where it is the faster one: a quarter of
 * a window of one packet is nothing [choice]. Gains are capped so that the window at most doubles
 * in a round trip, which the scales of long software delays would exceed [choice]. */
static void grow(struct nscc *nscc, int64_t delay, int64_t bound, uint64_t new_bytes) {
    uint64_t scale_b = (uint64_t)nscc->target / REFERENCE_DELAY;
    uint64_t share = (uint64_t)((bound - delay) * ONE / bound);
    uint64_t fast = nscc->cwnd * nscc->gain / FAST_DIVISOR;
    uint64_t step;

    nscc->fast = delay < nscc->target / NEAR_ZERO || delay == 0 ? nscc->fast + new_bytes : 0;
    scale_b = scale_b < 1 ? 1 : scale_b > SCALE_B_MAX ? SCALE_B_MAX : scale_b;
    step = ALPHA * scale_b * nscc->config.mtu * nscc->gain / ONE * share;
    if (nscc->fast > nscc->cwnd && fast > step)
        step = fast;
    if (step > nscc->cwnd * ONE)
        step = nscc->cwnd * ONE;
    nscc->increase += step / ONE * new_bytes;
}

static void adjust(struct nscc *nscc, int64_t now, bool is_congested) {
    bool is_period = now - nscc->adjusted >= nscc->base_rtt;

    if (nscc->received < (uint64_t)ADJUST_PACKETS * nscc->config.mtu && !is_period)
        return;
    nscc->cwnd += nscc->increase / nscc->cwnd;
    nscc->increase = 0;
    nscc->received = 0;
    if (is_period) {
        /* [choice] Not on a path that is full: eta is much where links claim too much. */
        if (!is_congested)
            nscc->cwnd += ETA_PERCENT * (uint64_t)nscc->config.mtu * nscc->gain / ONE / 100;
        nscc->adjusted = now;
    }
    cap(nscc);
}

/* Rule 2. True when the receiver asked for less. */
static bool obey_receiver(struct nscc *nscc, const struct nscc_sack *sack) {
    if (sack->penalty == 0) {
        if (sack->restore && nscc->saved != 0)
            nscc->cwnd = nscc->saved;
        if (sack->restore)
            nscc->saved = 0;
        cap(nscc);
        return false;
    }
    if (nscc->saved == 0)
        nscc->saved = nscc->cwnd;
    if (sack->inflight < nscc->cwnd)
        nscc->cwnd = sack->inflight;
    if (nscc->cwnd > (sack->penalty * sack->new_bytes) >> 7)
        nscc->cwnd -= (sack->penalty * sack->new_bytes) >> 7;
    else
        nscc->cwnd = 0;
    cap(nscc);
    return true;
}

/* Whether the average delay is of today: a window must not grow on what was true long ago. */
static bool is_fresh(struct nscc *nscc, const struct nscc_sack *sack) {
    if (sack->rtt >= 0)
        nscc->sampled = sack->now;
    return sack->now - nscc->sampled <= 2 * (nscc->base_rtt + nscc->target);
}

void nscc_on_sack(struct nscc *nscc, const struct nscc_sack *sack) {
    int64_t delay = take_rtt(nscc, sack);
    bool is_late = is_queue_standing(nscc, sack, delay);
    int64_t bound;

    nscc->achieved += sack->new_bytes;
    nscc->received += sack->new_bytes;
    nscc->ignored += sack->new_bytes;
    nscc->was_limited = nscc->was_limited || sack->limited;
    if (obey_receiver(nscc, sack))
        return;
    if (nscc->ignored < nscc->to_ignore && sack->marked)
        return;
    if (quick_adapt(nscc, sack->now, is_late, sack->inflight) || !is_fresh(nscc, sack))
        return;
    nscc->has_marks = nscc->has_marks || sack->marked;
    bound = nscc->has_marks || nscc->config.trimming ? nscc->target : allowed_delay(nscc);
    if (delay >= bound)
        on_delay(nscc, bound, sack);
    else if (!sack->marked && sack->limited)
        grow(nscc, delay, bound, sack->new_bytes);
    adjust(nscc, sack->now, delay >= bound);
}

static void shrink(struct nscc *nscc, uint32_t size) {
    nscc->cwnd = nscc->cwnd > size ? nscc->cwnd - size : 0;
    nscc->fast = 0;
    cap(nscc);
}

void nscc_on_trim(struct nscc *nscc, int64_t now, uint32_t size, uint64_t inflight,
                  bool is_last_hop) {
    nscc->delay += (nscc->base_rtt - nscc->delay) / DELAY_WEIGHT;
    nscc->was_trimmed = true;
    nscc->ignored += size;
    if (nscc->ignored < nscc->to_ignore || quick_adapt(nscc, now, false, inflight))
        return;
    /* [choice] Of a window that is not full only what is in flight counts (RFC 5681, FlightSize):
     * else all of a short burst would be sent again at once. Inside the network other ways help. */
    if (is_last_hop && nscc->cwnd > inflight + size)
        nscc->cwnd = inflight + size;
    shrink(nscc, size);
}

void nscc_on_loss(struct nscc *nscc, int64_t now, uint32_t size, uint64_t inflight) {
    nscc->was_lost = true;
    if (quick_adapt(nscc, now, false, inflight))
        return;
    /* [choice] As for a trim at the last hop, if the queue is long. */
    if (nscc->late_since != INT64_MAX && nscc->cwnd > inflight + size)
        nscc->cwnd = inflight + size;
    shrink(nscc, size);
}
