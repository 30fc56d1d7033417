/* SPDX-License-Identifier: Apache-2.0 */
/* One plane towards one peer: whether it carries data, how long it takes, and when to probe it.
 *
 * Part of a peer (peer.h). Is told of answers, losses and outside facts; knows nothing of queue
 * pairs or packets. Source: MRC 1.0, Paths ("A plane is out", "A plane is back").
 *
 *   PROBING --full-size probe answered (and, after an outage, enough of them over time)--> UP
 *   PROBING --nothing comes back for a second--> OUT
 *   UP --port down, no address, disabled, peer says so, MTU, silent--> OUT
 *   OUT --probes are answered over some time--> UP
 *   OUT --the cause from outside is gone--> PROBING
 */
#ifndef PATH_H
#define PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "mrc.h"

enum { PATH_REVERSE_EVS = 2 };

enum path_probe {
    PATH_PROBE_SMALL, /* as short as it is */
    PATH_PROBE_FULL,  /* one packet of the queue pairs' full size */
    PATH_PROBE_BURST, /* one of a frame of two full-size packets */
};

/* What is not the path's own: facts about it that others know. */
struct path_facts {
    bool is_paired;              /* both ends have it */
    enum mrc_plane_reason blocked; /* what rules it out from outside; NONE: nothing */
};

struct path {
    uint8_t state;  /* enum mrc_plane_state */
    uint8_t reason; /* enum mrc_plane_reason */
    bool is_changed; /* state or reason, since the owner last looked */
    bool was_up;     /* ever */
    int64_t changed;

    int64_t rtt; /* ns, smoothed as in RFC 6298; 0: none yet */
    int64_t rtt_var;
    int64_t rtt_min;
    int64_t rtt_full; /* least of full-size probes and data: what an empty path takes for them */
    uint32_t full_answers; /* full-size probes that were answered, up to FULL_SAMPLES */

    int64_t proven;      /* when something last came back */
    int64_t doubt_since; /* since when what was sent has not been answered; 0: it has */
    uint32_t losses;     /* packets lost since it was proven */

    int64_t probe_at; /* when the next probe is due; INT64_MAX: none */
    int64_t probe_sent;
    uint32_t unanswered;  /* probes in a row */
    uint32_t full_unanswered;
    int64_t full_asked;   /* when the first of these was sent */
    uint32_t full_size;   /* largest full-size probe that was answered, bytes of IP packet */
    uint32_t burst_answers;
    uint32_t burst_tries;
    uint32_t answers; /* since the outage began or the last probe that was not answered */
    int64_t answers_since;
    int64_t went_out;
    int64_t spread; /* over which answers must come before it is used again */

    uint32_t reverse_evs[PATH_REVERSE_EVS]; /* known to work for control packets */
    uint32_t reverse_count;
};

void path_init(struct path *path, int64_t now);

/* The outside facts are now these. */
void path_on_facts(struct path *path, const mrc_config *config, int64_t now,
                   const struct path_facts *facts);

/* Port Status Update. */
void path_on_peer_says(struct path *path, const mrc_config *config, int64_t now, bool is_up);

/* Earlier outages do not delay its return: there is no better path. */
void path_forgive(struct path *path, const mrc_config *config);

/* A packet of data, which may be of full size, took so long to be acknowledged. */
void path_on_data_rtt(struct path *path, int64_t sample, bool is_full);

/* An EV has brought a packet to the peer, or has not: what is known to work for control packets. */
void path_note_reverse(struct path *path, uint32_t ev);
void path_forget_reverse(struct path *path, uint32_t ev);

/* Data left on it, came back acknowledged, or was judged lost. */
void path_on_sent(struct path *path, int64_t now);
void path_on_acked(struct path *path, int64_t now);
void path_on_lost(struct path *path, int64_t now, uint32_t packets);

/* A probe that was sent at `sent` came back. `size` is that of full and burst probes; `needed` what
 * packets of the queue pairs are at most (0: there are none yet). */
void path_on_answer(struct path *path, const mrc_config *config, int64_t now, enum path_probe kind,
                    int64_t sent, uint32_t ev, uint32_t size, uint32_t needed);

/* Queue pairs with packets of this size exist now. */
void path_on_needed(struct path *path, int64_t now, uint32_t needed);

/* How long nothing may come back before the plane counts as silent. */
int64_t path_patience(const struct path *path);

/* Whether it is silent: what was sent up to `proved` ought to have arrived. Takes it out. */
bool path_check_silence(struct path *path, const mrc_config *config, int64_t now, int64_t proved);

/* The probe that is due was sent; plans the next. */
struct path_plan {
    int64_t interval;     /* ns between probes of a plane that works; INT64_MAX: none needed */
    bool has_work;
    uint32_t needed;
};
void path_on_probed(struct path *path, const mrc_config *config, int64_t now,
                    const struct path_plan *plan);

/* Which probes are due with the next: small ones always. */
bool path_wants_full(const struct path *path, uint32_t needed);
bool path_wants_burst(const struct path *path, uint32_t needed);

/* Whether another full-size probe is to follow one that came back: until one was quick. */
bool path_wants_samples(const struct path *path, const mrc_config *config);

bool path_can_burst(const struct path *path);

#endif
