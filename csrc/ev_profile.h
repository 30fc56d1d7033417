/* SPDX-License-Identifier: Apache-2.0 */
/* Which paths a queue pair uses: its EVs, their states and their rotation, plane by plane.
 *
 * Which plane a packet takes is decided elsewhere; here the next EV of that plane is picked. Owned
 * by the requestor. Knows nothing of time, packets or congestion. EVs of one profile differ in
 * EV[15:0], so that IPv4 feedback names one; [choice] EV[15:12] is the plane.
 * Source: MRC 1.0, Paths.
 *
 *   GOOD, SKIP --congested--> SKIP --passed over in that many turns--> GOOD
 *   GOOD, SKIP --lost, and more than min_active are left--> ASSUMED_BAD, a BACKUP takes its place
 *              (one, if the path is dead)
 *   ASSUMED_BAD --revived--> GOOD or SKIP (BACKUP, if its place is taken)
 *   any --denied--> DENIED, until it is allowed again
 */
#ifndef EV_PROFILE_H
#define EV_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "prng.h"

enum {
    EV_PLANES = 16,
    EV_ACTIVE_MAX = 256,
    EV_BACKUP_MAX = 128,
    /* Turns of its rotation in which a congested EV is passed over [choice]. Feedback takes a round
     * trip: the EV's turn in this rotation is over, and what has to be skipped are later ones. */
    EV_TURNS_MARKED = 2,
    EV_TURNS_TRIMMED = 4,
    EV_TURNS_MAX = 15,
};

enum ev_state { EV_GOOD, EV_SKIP, EV_ASSUMED_BAD, EV_DENIED, EV_BACKUP };

#define EV_NONE UINT32_MAX

static inline uint32_t ev_plane(uint32_t ev) { return (ev >> 12) & 15; }

/* The EVs of one plane: slots [first, first + active) are in the rotation, `backup` more behind. */
struct ev_set {
    uint16_t first;
    uint16_t active;
    uint16_t backup;
    uint16_t cursor; /* next of the rotation */
    bool is_out;
};

struct ev_standing {
    uint8_t state : 4; /* enum ev_state */
    uint8_t turns : 4; /* of EV_SKIP: those in which it is still to be passed over */
};

struct ev_profile {
    struct prng prng;
    uint32_t min_active;
    uint32_t total;
    uint32_t suspect; /* slot where the next search for suspects starts */
    uint32_t usable;  /* mask of the planes that have an EV in use */
    struct ev_set sets[EV_PLANES];
    uint32_t evs[EV_ACTIVE_MAX + EV_BACKUP_MAX];
    struct ev_standing standings[EV_ACTIVE_MAX + EV_BACKUP_MAX];
};

/* What an ev_profile is made of. */
struct ev_profile_setup {
    uint64_t seed;
    uint32_t plane_mask; /* may be 0 */
    uint32_t ways;       /* EV[11:0] is below this, 1..4096: a plane has no more EVs */
    uint32_t count;      /* 1..256; equal numbers a plane, rounded down, at least 1 */
    uint32_t backup;     /* more a plane; at most EV_BACKUP_MAX in all */
    /* EVs of a plane that stay in use whatever is lost; at most half of them [choice]: where there
     * are few, each is another path and a dead one must not keep its share. */
    uint32_t min_active;
};

/* Draws the EVs. */
void ev_profile_init(struct ev_profile *profile, const struct ev_profile_setup *setup);

/* The next EV of the plane in its rotation, another than `avoid` where the plane has one (EV_NONE:
 * none to avoid). False when the plane has no EV that may be used: all denied, out or unknown. */
bool ev_profile_pick(struct ev_profile *profile, uint32_t plane, uint32_t avoid, uint32_t *ev);

/* The planes, as a mask, for which ev_profile_pick finds one. A packet that waited for any other
 * would wait for the operator. */
static inline uint32_t ev_profile_planes(const struct ev_profile *profile) {
    return profile->usable;
}

/* What feedback said; true when the state changed. An EV that is not ours changes nothing. Only the
 * low 16 bits of `ev` are compared. A congested one is passed over in so many turns more. */
bool ev_profile_on_congested(struct ev_profile *profile, uint32_t ev, uint32_t turns);

/* The same of a loss. At least min_active EVs of a plane stay in use where losses may be chance; of
 * paths that are dead only the last one does. */
bool ev_profile_on_lost(struct ev_profile *profile, uint32_t ev, bool is_dead);

/* Whether an EV is ASSUMED_BAD. */
bool ev_profile_is_bad(const struct ev_profile *profile, uint32_t ev);

/* An EV that was ASSUMED_BAD has shown that it works; true when the state changed. */
bool ev_profile_on_revived(struct ev_profile *profile, uint32_t ev, bool is_congested);
bool ev_profile_deny(struct ev_profile *profile, uint32_t ev, bool is_denied);

/* The plane is out: all its EVs are ASSUMED_BAD and none is picked until ev_profile_plane_back,
 * which makes all of them GOOD but those denied. */
void ev_profile_plane_out(struct ev_profile *profile, uint32_t plane);
void ev_profile_plane_back(struct ev_profile *profile, uint32_t plane);

/* The next EV of a live plane that is ASSUMED_BAD, in rotation over all of them: the one to probe
 * next. False when there is none. */
bool ev_profile_next_suspect(struct ev_profile *profile, uint32_t *ev);

/* How many EVs of all live planes are in use (GOOD or SKIP), and ASSUMED_BAD. */
uint32_t ev_profile_good(const struct ev_profile *profile);
uint32_t ev_profile_bad(const struct ev_profile *profile);

/* The index-th EV of the profile with its state; false beyond the last. */
bool ev_profile_get(const struct ev_profile *profile, uint32_t index, uint32_t *ev,
                    enum ev_state *state);

#endif
