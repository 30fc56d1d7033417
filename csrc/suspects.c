/* SPDX-License-Identifier: Apache-2.0 */
#include "suspects.h"

#include <string.h>

enum { SUSPECT_TRIES = 3 }; /* probes in a row without answer before another EV gets the place */

void suspects_init(struct suspects *suspects) {
    memset(suspects, 0, sizeof *suspects);
    for (uint32_t i = 0; i < SUSPECTS; i++)
        suspects->list[i].ev = EV_NONE;
}

static bool is_listed(const struct suspects *suspects, uint32_t ev) {
    for (uint32_t i = 0; i < SUSPECTS; i++) {
        if (suspects->list[i].ev == ev)
            return true;
    }
    return false;
}

bool suspects_next(struct suspects *suspects, struct ev_profile *evs, uint32_t *ev) {
    for (uint32_t i = 0; i < SUSPECTS; i++) {
        struct suspect *suspect = &suspects->list[suspects->turn++ % SUSPECTS];

        if (suspect->ev == EV_NONE || suspect->unanswered >= SUSPECT_TRIES) {
            suspect->ev = EV_NONE;
            suspect->answers = 0;
            suspect->unanswered = 0;
            if (!ev_profile_next_suspect(evs, ev) || is_listed(suspects, *ev))
                continue;
            suspect->ev = *ev;
        }
        suspect->unanswered++;
        *ev = suspect->ev;
        return true;
    }
    return false;
}

bool suspects_on_answer(struct suspects *suspects, int64_t now, uint32_t ev, uint32_t needed,
                        int64_t spread) {
    for (uint32_t i = 0; i < SUSPECTS; i++) {
        struct suspect *suspect = &suspects->list[i];

        if (suspect->ev != ev)
            continue;
        suspect->unanswered = 0;
        if (suspect->answers++ == 0)
            suspect->since = now;
        if (suspect->answers < needed || now - suspect->since < spread)
            return false;
        suspect->ev = EV_NONE;
        return true;
    }
    return false;
}
