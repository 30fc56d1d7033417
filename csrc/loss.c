/* SPDX-License-Identifier: Apache-2.0 */
#include "loss.h"

#include <assert.h>
#include <string.h>

#include "psn.h"

void loss_init(struct loss *loss, uint32_t first, struct pool *pool) {
    memset(loss, 0, sizeof *loss);
    loss->first = first;
    loss->next = first;
    loss->pool = pool;
}

static uint32_t slot_of(uint32_t psn) { return psn / 64 % LOSS_CHUNKS; }

static uint32_t plane_of(uint32_t ev) { return (ev >> 12) & (LOSS_PLANES - 1); }

static uint64_t bit_of(uint32_t psn) { return 1ull << (psn % 64); }

static uint32_t base_of(uint32_t psn) { return psn & ~63u; }

static struct sent_chunk *chunk_of(const struct loss *loss, uint32_t psn) {
    return loss->chunks[slot_of(psn)];
}

/* Whether the chunk at base holds any PSN of [first, next). */
static bool is_in_window(const struct loss *loss, uint32_t base) {
    return loss->first != loss->next && psn_diff(base, base_of(loss->first)) >= 0 &&
           psn_diff(base, loss->next) < 0;
}

static uint32_t next_base(uint32_t base) { return psn_add(base, 64); }

void loss_clear(struct loss *loss) {
    for (uint32_t i = 0; i < LOSS_CHUNKS; i++) {
        if (loss->chunks[i] != NULL)
            pool_give(loss->pool, loss->chunks[i]);
        loss->chunks[i] = NULL;
    }
    loss->first = loss->next;
    loss->outstanding_count = 0;
    loss->lost_count = 0;
    loss->refused_count = 0;
}

bool loss_prepare(struct loss *loss) {
    struct sent_chunk **chunk = &loss->chunks[slot_of(loss->next)];

    if (*chunk != NULL)
        return true;
    *chunk = pool_take(loss->pool);
    if (*chunk == NULL)
        return false;
    (*chunk)->outstanding = (*chunk)->lost = (*chunk)->refused = (*chunk)->arrived = 0;
    return true;
}

struct sent *loss_record(const struct loss *loss, uint32_t psn) {
    assert(psn_in(psn, loss->first, (loss->next - loss->first) & PSN_MASK));
    return &chunk_of(loss, psn)->records[psn % 64];
}

bool loss_is_outstanding(const struct loss *loss, uint32_t psn) {
    return psn_in(psn, loss->first, (loss->next - loss->first) & PSN_MASK) &&
           chunk_of(loss, psn)->outstanding & bit_of(psn);
}

bool loss_is_lost(const struct loss *loss, uint32_t psn) {
    return psn_in(psn, loss->first, (loss->next - loss->first) & PSN_MASK) &&
           chunk_of(loss, psn)->lost & bit_of(psn);
}

bool loss_is_path_dead(const struct loss *loss, uint32_t psn, bool is_known) {
    const struct sent_chunk *chunk = chunk_of(loss, psn);
    const struct sent *lost = &chunk->records[psn % 64];

    for (uint64_t rest = chunk->arrived; rest != 0; rest &= rest - 1) {
        const struct sent *other = &chunk->records[__builtin_ctzll(rest)];

        if (other->ev == lost->ev && other->time >= lost->time)
            return false;
    }
    for (uint64_t rest = chunk->lost; rest != 0 && !is_known; rest &= rest - 1) {
        const struct sent *other = &chunk->records[__builtin_ctzll(rest)];

        is_known = other->ev == lost->ev && other->time != lost->time;
    }
    return is_known;
}

struct sent *loss_on_sent(struct loss *loss, uint32_t psn, int64_t now, uint32_t ev) {
    struct sent_chunk *chunk = chunk_of(loss, psn);
    struct sent *record = &chunk->records[psn % 64];

    if (psn == loss->next) {
        loss->next = psn_add(psn, 1);
        record->tries = 0;
        record->trims = 0;
    } else {
        assert(chunk->lost & bit_of(psn));
        chunk->lost &= ~bit_of(psn);
        loss->lost_count--;
    }
    chunk->outstanding |= bit_of(psn);
    loss->outstanding_count++;
    record->time = now;
    record->ev = ev;
    record->order = loss->order++;
    if (record->tries < UINT8_MAX)
        record->tries++;
    return record;
}

/* Moves PSNs of a chunk to `arrived`. */
static void arrive(struct loss *loss, struct sent_chunk *chunk, uint64_t bits,
                   struct loss_tally *tally) {
    uint64_t fresh = bits & (chunk->outstanding | chunk->lost | chunk->refused);
    uint64_t outstanding = fresh & chunk->outstanding;
    uint64_t wronged = fresh & chunk->lost;

    loss->outstanding_count -= (uint32_t)__builtin_popcountll(outstanding);
    loss->lost_count -= (uint32_t)__builtin_popcountll(wronged);
    loss->refused_count -= (uint32_t)__builtin_popcountll(fresh & chunk->refused);
    tally->spurious += (uint32_t)__builtin_popcountll(wronged);
    chunk->outstanding &= ~fresh;
    chunk->lost &= ~fresh;
    chunk->refused &= ~fresh;
    chunk->arrived |= fresh;
    for (uint64_t rest = fresh; rest != 0; rest &= rest - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(rest);
        const struct sent *record = &chunk->records[i];
        uint32_t number = plane_of(record->ev);
        struct loss_tally_plane *plane = &tally->plane[number];

        if (!(tally->planes >> number & 1)) {
            tally->planes |= 1u << number;
            memset(plane, 0, sizeof *plane);
        }
        plane->packets++;
        plane->payload += record->size;
        plane->nominal += record->nominal;
        if (outstanding >> i & 1)
            plane->left += record->nominal;
        if (record->tries > 1 && record->time > tally->answerable)
            tally->spurious++;
        if ((wronged >> i & 1) && tally->cleared_count < LOSS_CLEARED)
            tally->cleared[tally->cleared_count++] = record->ev;
    }
}

void loss_on_cumulative(struct loss *loss, uint32_t cack, struct loss_tally *tally) {
    uint32_t end = psn_add(cack, 1);

    assert(psn_diff(end, loss->first) >= 0 && psn_diff(end, loss->next) <= 0);
    while (loss->first != end) {
        uint32_t base = base_of(loss->first);
        struct sent_chunk *chunk = chunk_of(loss, base);
        bool passed = psn_diff(end, next_base(base)) >= 0;

        arrive(loss, chunk, passed ? ~0ull : bit_of(end) - 1, tally);
        loss->first = passed ? next_base(base) : end;
        if (!passed)
            break;
        loss->chunks[slot_of(base)] = NULL;
        pool_give(loss->pool, chunk);
    }
    /* A queue pair with nothing outstanding keeps nothing of the pool. */
    if (loss->first == loss->next && chunk_of(loss, loss->next) != NULL) {
        pool_give(loss->pool, chunk_of(loss, loss->next));
        loss->chunks[slot_of(loss->next)] = NULL;
    }
}

void loss_on_bitmap(struct loss *loss, uint32_t base, uint64_t bits, struct loss_tally *tally) {
    uint32_t shift = base % 64;

    if (shift != 0) {
        loss_on_bitmap(loss, base_of(base), bits << shift, tally);
        loss_on_bitmap(loss, next_base(base_of(base)), bits >> (64 - shift), tally);
        return;
    }
    if (is_in_window(loss, base))
        arrive(loss, chunk_of(loss, base), bits, tally);
}

void loss_evidence_add(struct loss_evidence *evidence, uint32_t ev, int64_t time) {
    int64_t *plane_latest = &evidence->plane_latest[plane_of(ev)];

    if (time > *plane_latest)
        *plane_latest = time;
    if (time > evidence->latest)
        evidence->latest = time;
}

void loss_gather(const struct loss *loss, uint32_t base, uint64_t bits,
                 struct loss_evidence *evidence) {
    const struct sent_chunk *chunk = chunk_of(loss, base);

    if (!is_in_window(loss, base))
        return;
    for (uint64_t rest = bits & chunk->arrived; rest != 0; rest &= rest - 1) {
        const struct sent *record = &chunk->records[__builtin_ctzll(rest)];

        if (record->tries == 1)
            loss_evidence_add(evidence, record->ev, record->time);
    }
}

static void lose(struct loss *loss, struct sent_chunk *chunk, uint64_t bits) {
    uint32_t count = (uint32_t)__builtin_popcountll(bits);

    assert((bits & ~chunk->outstanding) == 0);
    chunk->outstanding &= ~bits;
    chunk->lost |= bits;
    loss->outstanding_count -= count;
    loss->lost_count += count;
}

/* Rule (b): something sent later on the same path has arrived. Only first attempts are compared,
 * so that all are of one traffic class. */
static bool is_overtaken(const struct sent_chunk *chunk, const struct sent *record,
                         uint64_t arrived) {
    if (record->tries != 1)
        return false;
    for (uint64_t rest = arrived & chunk->arrived; rest != 0; rest &= rest - 1) {
        const struct sent *other = &chunk->records[__builtin_ctzll(rest)];

        if (other->ev == record->ev && other->tries == 1 &&
            (int32_t)(other->order - record->order) > 0)
            return true;
    }
    return false;
}

struct loss_verdict loss_judge(struct loss *loss, uint32_t base, uint64_t covered,
                               uint64_t arrived, const struct loss_evidence *evidence) {
    struct sent_chunk *chunk = chunk_of(loss, base);
    struct loss_verdict verdict = {0};

    if (!is_in_window(loss, base))
        return verdict;
    for (uint64_t rest = covered & ~arrived & chunk->outstanding; rest != 0; rest &= rest - 1) {
        const struct sent *record = &chunk->records[__builtin_ctzll(rest)];
        uint32_t plane = plane_of(record->ev);
        int64_t on_plane = evidence->plane_latest[plane];
        bool is_late = evidence->proved != 0 &&
                       evidence->proved >= record->time + evidence->reorder_window[plane];
        bool is_late_on_plane =
            on_plane != 0 && on_plane >= record->time + evidence->plane_window;
        bool is_passed = evidence->has_ev && evidence->ev == record->ev && record->tries == 1 &&
                         (int32_t)(evidence->order - record->order) > 0;

        if (is_late_on_plane || is_passed || is_overtaken(chunk, record, arrived))
            verdict.blamed |= rest & -rest;
        else if (is_late)
            verdict.lost |= rest & -rest;
    }
    verdict.lost |= verdict.blamed;
    lose(loss, chunk, verdict.lost);
    return verdict;
}

void loss_on_trimmed(struct loss *loss, uint32_t psn) {
    struct sent *record = loss_record(loss, psn);

    assert(loss_is_outstanding(loss, psn));
    if (record->tries < UINT8_MAX)
        record->trims++;
    lose(loss, chunk_of(loss, psn), bit_of(psn));
}

void loss_on_refused(struct loss *loss, uint32_t psn) {
    struct sent_chunk *chunk = chunk_of(loss, psn);

    assert(loss_is_outstanding(loss, psn));
    chunk->outstanding &= ~bit_of(psn);
    chunk->refused |= bit_of(psn);
    loss->outstanding_count--;
    loss->refused_count++;
}

bool loss_next_refused(const struct loss *loss, uint32_t *psn) {
    uint64_t from = ~(bit_of(*psn) - 1);

    if (loss->refused_count == 0)
        return false;
    for (uint32_t base = base_of(*psn); is_in_window(loss, base); base = next_base(base)) {
        uint64_t refused = chunk_of(loss, base)->refused & from;

        if (refused != 0) {
            *psn = psn_add(base, __builtin_ctzll(refused));
            return true;
        }
        from = ~0ull;
    }
    return false;
}

void loss_release(struct loss *loss, uint32_t psn) {
    struct sent_chunk *chunk = chunk_of(loss, psn);

    assert(chunk->refused & bit_of(psn));
    chunk->refused &= ~bit_of(psn);
    chunk->lost |= bit_of(psn);
    loss->refused_count--;
    loss->lost_count++;
}

bool loss_sweep(struct loss *loss, uint32_t *base, uint32_t plane, int64_t before, uint32_t *chunk,
                uint64_t *lost) {
    struct sent_chunk *here;

    *chunk = base_of(*base);
    *lost = 0;
    if (!is_in_window(loss, *chunk))
        return false;
    here = chunk_of(loss, *chunk);
    for (uint64_t rest = here->outstanding; rest != 0; rest &= rest - 1) {
        const struct sent *record = &here->records[__builtin_ctzll(rest)];
        bool is_there = plane == LOSS_PLANES || plane_of(record->ev) == plane;

        if (is_there && record->time < before)
            *lost |= rest & -rest;
    }
    lose(loss, here, *lost);
    *base = next_base(*chunk);
    return true;
}

bool loss_first_lost(const struct loss *loss, uint32_t *psn) {
    if (loss->lost_count == 0)
        return false;
    for (uint32_t base = base_of(loss->first);; base = next_base(base)) {
        uint64_t lost = chunk_of(loss, base)->lost;

        assert(is_in_window(loss, base));
        if (lost != 0) {
            *psn = psn_add(base, __builtin_ctzll(lost));
            return true;
        }
    }
}

bool loss_first_outstanding(const struct loss *loss, uint32_t *psn) {
    if (loss->outstanding_count == 0)
        return false;
    for (uint32_t base = base_of(loss->first);; base = next_base(base)) {
        uint64_t outstanding = chunk_of(loss, base)->outstanding;

        assert(is_in_window(loss, base));
        if (outstanding != 0) {
            *psn = psn_add(base, __builtin_ctzll(outstanding));
            return true;
        }
    }
}
