/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds hostile frames to two endpoints that talk to each other meanwhile. */
#ifndef FUZZ_ENDPOINT_H
#define FUZZ_ENDPOINT_H

#include <stdint.h>

struct fuzz_endpoint {
    uint64_t frames;      /* hostile ones that an endpoint took in */
    uint64_t accepted;    /* of them, packets that no drop counter counted */
    uint64_t completed;   /* writes of the endpoints themselves that completed meanwhile */
    uint64_t errors;      /* queue pairs that broke; they were replaced */
    uint64_t answers;     /* frames that the endpoints sent */
    uint64_t violations;  /* must be 0; `what` says the last */
    const char *what;
};

/* Adds to result what became of `count` hostile frames drawn from seed: random bytes, valid frames
 * replayed or mutated (most with a right ICRC again), and packets with right addresses and random
 * fields. After each, nothing outside the regions and the endpoints' own memory may have changed,
 * every pool is within its size, and what they have to say and to do at one moment has an end;
 * after all of them, a new connection carries what is posted.
 * Returns -1 when out of memory. */
int fuzz_endpoint(uint64_t seed, uint64_t count, struct fuzz_endpoint *result);

#endif
