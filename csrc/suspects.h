/* SPDX-License-Identifier: Apache-2.0 */
/* Second chances for single EVs: which ASSUMED_BAD ones are being probed, and which have earned it.
 *
 * A few at a time, round-robin; an EV is revived after config.probes_to_revive answers that came
 * over config.revive_spread. Source: MRC 1.0, Paths: ASSUMED_BAD.
 */
#ifndef SUSPECTS_H
#define SUSPECTS_H

#include <stdbool.h>
#include <stdint.h>

#include "ev_profile.h"

enum { SUSPECTS = 4 };

struct suspect {
    uint32_t ev; /* EV_NONE: free */
    uint32_t answers;
    uint32_t unanswered;
    int64_t since; /* first answer */
};

struct suspects {
    struct suspect list[SUSPECTS];
    uint32_t turn;
};

void suspects_init(struct suspects *suspects);

/* The EV to probe now; false when no EV is suspect. */
bool suspects_next(struct suspects *suspects, struct ev_profile *evs, uint32_t *ev);

/* A probe on the EV was answered; true when the EV has earned its revival. */
bool suspects_on_answer(struct suspects *suspects, int64_t now, uint32_t ev, uint32_t needed,
                        int64_t spread);

#endif
