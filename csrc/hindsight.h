/* SPDX-License-Identifier: Apache-2.0 */
/* What was known a round trip ago, and nothing has contradicted since: evidence across planes.
 *
 * A host reads its planes one after the other and may not be running in between, for milliseconds.
 * What it says then shows later packets of one plane than of another, although the others came too:
 * its next word shows them. So nothing is concluded from a later arrival on another plane until a
 * packet has arrived that left when that arrival was already known.
 */
#ifndef HINDSIGHT_H
#define HINDSIGHT_H

#include <stdint.h>

/* Packets stand here for when they were sent; 0: none. */
struct hindsight {
    int64_t latest;    /* a late packet that has arrived */
    int64_t noted;     /* when that became known */
    int64_t proved;    /* what `latest` was before */
    int64_t proved_at; /* what `noted` was before: a packet has arrived that left since */
};

/* A packet that was sent at `sent` has arrived. Returns what is proved by whoever says so. */
static inline int64_t hindsight_add(struct hindsight *hindsight, int64_t now, int64_t sent) {
    if (sent >= hindsight->noted) {
        hindsight->proved = hindsight->latest;
        hindsight->proved_at = hindsight->noted;
        hindsight->latest = sent;
        hindsight->noted = now;
    }
    return sent >= hindsight->proved_at ? hindsight->proved : 0;
}

#endif
