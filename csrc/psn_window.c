/* SPDX-License-Identifier: Apache-2.0 */
#include "psn_window.h"

#include <assert.h>
#include <string.h>

void psn_window_init(struct psn_window *window, uint32_t first, uint32_t size) {
    assert(size > 0 && size <= PSN_WINDOW_MAX);
    memset(window, 0, sizeof *window);
    window->cack = psn_add(first, -1);
    window->last = window->cack;
    window->size = size;
}

static uint32_t word_of(uint32_t psn) { return psn / 64 % PSN_WINDOW_WORDS; }

static uint64_t bit_of(uint32_t psn) { return 1ull << (psn % 64); }

uint32_t psn_window_add(struct psn_window *window, uint32_t psn) {
    uint32_t passed = 1;

    if (psn_diff(psn, window->last) > 0)
        window->last = psn;
    if (psn != psn_add(window->cack, 1)) {
        uint64_t *word = &window->arrived[word_of(psn)];

        assert((*word & bit_of(psn)) == 0);
        *word |= bit_of(psn);
        window->ahead++;
        return 0;
    }
    window->cack = psn;
    while (window->ahead > 0) {
        uint32_t next = psn_add(window->cack, 1);
        uint64_t *word = &window->arrived[word_of(next)];
        uint64_t run = ~(*word >> (next % 64)); /* the shift brings zeros in: run ends there */
        uint32_t length = run == 0 ? 64 : (uint32_t)__builtin_ctzll(run);

        if (length == 0)
            break;
        *word &= ~((length == 64 ? ~0ull : (1ull << length) - 1) << (next % 64));
        window->cack = psn_add(window->cack, (int32_t)length);
        window->ahead -= length;
        passed += length;
    }
    return passed;
}

uint64_t psn_window_bitmap(const struct psn_window *window, uint32_t base) {
    int32_t below = psn_diff(window->cack, base) + 1; /* how many of the 64 are up to cack */
    uint64_t word = window->arrived[word_of(base)];

    assert(base % 64 == 0);
    if (below >= 64)
        return ~0ull;
    if (below <= 0)
        return word;
    /* Bits of this word up to cack stand for PSNs one ring later, which this stretch does not
     * hold; what they stand for here has arrived. */
    return word | ((1ull << below) - 1);
}
