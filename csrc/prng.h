/* SPDX-License-Identifier: Apache-2.0 */
/* A seeded generator: all randomness of the core comes from here.
 *
 * xorshift64* behind a SplitMix64 seed. Not for secrets: keys are drawn by the caller. One
 * generator for each purpose, so that one more draw in one place does not shuffle all others.
 */
#ifndef PRNG_H
#define PRNG_H

#include <stdint.h>

struct prng {
    uint64_t state;
};

/* Starts the sequence of (seed, purpose). */
static inline void prng_init(struct prng *prng, uint64_t seed, uint64_t purpose) {
    uint64_t z = seed + (purpose + 1) * 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    prng->state = z ? z : 1; /* zero is the one state that xorshift never leaves */
}

static inline uint32_t prng_next(struct prng *prng) {
    uint64_t x = prng->state;

    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    prng->state = x;
    return (uint32_t)((x * 0x2545F4914F6CDD1Du) >> 32);
}

/* Uniform in [0, bound); bound > 0. The bias is below bound / 2^32. */
static inline uint32_t prng_below(struct prng *prng, uint32_t bound) {
    return (uint32_t)(((uint64_t)prng_next(prng) * bound) >> 32);
}

#endif
