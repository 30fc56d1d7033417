/* SPDX-License-Identifier: Apache-2.0 */
#include "loss.h"

#include <assert.h>
#include <stddef.h>
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

uint32_t loss_prepare(struct loss *loss) {
    struct sent_chunk **chunk = &loss->chunks[slot_of(loss->next)];

    if (*chunk == NULL) {
        *chunk = pool_take(loss->pool);
        if (*chunk == NULL)
            return 0;
        memset(*chunk, 0, offsetof(struct sent_chunk, records));
    }
    return 64 - loss->next % 64;
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

/* The `count` lowest bits from `first` on. */
static uint64_t run_of(uint32_t first, uint32_t count) {
    return (count == 64 ? ~0ull : (1ull << count) - 1) << first;
}

static void put_on_plane(struct sent_chunk *chunk, uint64_t bits, uint32_t plane) {
    chunk->on_plane[plane] |= bits;
    chunk->planes |= 1u << plane;
}

void loss_on_sent(struct loss *loss, uint32_t count, const struct attempt *attempt) {
    uint32_t first = loss->next % 64;
    struct sent_chunk *chunk = chunk_of(loss, loss->next);
    uint64_t bits = run_of(first, count);

    assert(count > 0 && first + count <= 64);
    for (uint32_t i = first; i < first + count; i++)
        chunk->records[i] = (struct sent){.time = attempt->time,
                                          .write = attempt->write,
                                          .ev = attempt->ev,
                                          .order = loss->order++,
                                          .nominal = attempt->nominal,
                                          .size = attempt->size,
                                          .tries = 1};
    if (chunk->nominal == 0) {
        chunk->nominal = attempt->nominal;
        chunk->size = attempt->size;
    }
    if (attempt->nominal == chunk->nominal && attempt->size == chunk->size)
        chunk->alike |= bits;
    chunk->outstanding |= bits;
    chunk->once |= bits;
    put_on_plane(chunk, bits, plane_of(attempt->ev));
    loss->next = psn_add(loss->next, (int32_t)count);
    loss->outstanding_count += count;
}

void loss_on_resent(struct loss *loss, uint32_t psn, const struct attempt *attempt) {
    struct sent_chunk *chunk = chunk_of(loss, psn);
    struct sent *record = loss_record(loss, psn);

    assert(chunk->lost & bit_of(psn));
    chunk->lost &= ~bit_of(psn);
    chunk->outstanding |= bit_of(psn);
    chunk->once &= ~bit_of(psn);
    chunk->on_plane[plane_of(record->ev)] &= ~bit_of(psn);
    put_on_plane(chunk, bit_of(psn), plane_of(attempt->ev));
    loss->lost_count--;
    loss->outstanding_count++;
    record->time = attempt->time;
    record->ev = attempt->ev;
    record->order = loss->order++;
    if (record->tries < UINT8_MAX)
        record->tries++;
}

static uint32_t count_of(uint64_t bits) { return (uint32_t)__builtin_popcountll(bits); }

/* Adds the packets of one plane that are `fresh`; of these `left` were outstanding. */
static void tally_plane(const struct sent_chunk *chunk, uint64_t fresh, uint64_t left,
                        struct loss_tally_plane *plane) {
    uint64_t others = fresh & ~chunk->alike;
    uint32_t count = count_of(fresh & chunk->alike);
    uint32_t left_count = left == fresh && others == 0 ? count : count_of(left & chunk->alike);

    plane->packets += count;
    plane->payload += (uint64_t)count * chunk->size;
    plane->nominal += (uint64_t)count * chunk->nominal;
    plane->left += (uint64_t)left_count * chunk->nominal;
    for (; others != 0; others &= others - 1) {
        const struct sent *record = &chunk->records[__builtin_ctzll(others)];

        plane->packets++;
        plane->payload += record->size;
        plane->nominal += record->nominal;
        if (left & others & -others)
            plane->left += record->nominal;
    }
}

static void tally(const struct sent_chunk *chunk, uint64_t fresh, uint64_t left,
                  struct loss_tally *tally) {
    for (uint32_t planes = chunk->planes; planes != 0; planes &= planes - 1) {
        uint32_t number = (uint32_t)__builtin_ctz(planes);
        uint64_t here = fresh & chunk->on_plane[number];

        if (here == 0)
            continue;
        if (!(tally->planes >> number & 1))
            tally->plane[number] = (struct loss_tally_plane){0};
        tally->planes |= 1u << number;
        tally_plane(chunk, here, here & left, &tally->plane[number]);
    }
}

/* Moves PSNs of a chunk to `arrived`. */
static void arrive(struct loss *loss, struct sent_chunk *chunk, uint64_t bits,
                   struct loss_tally *said) {
    uint64_t fresh = bits & (chunk->outstanding | chunk->lost | chunk->refused);
    uint64_t outstanding = fresh & chunk->outstanding;
    uint64_t wronged = fresh & chunk->lost;

    if (fresh == 0)
        return;
    loss->outstanding_count -= count_of(outstanding);
    if (fresh != outstanding) {
        loss->lost_count -= count_of(wronged);
        loss->refused_count -= count_of(fresh & chunk->refused);
        said->spurious += count_of(wronged);
    }
    chunk->outstanding &= ~fresh;
    chunk->lost &= ~fresh;
    chunk->refused &= ~fresh;
    chunk->arrived |= fresh;
    tally(chunk, fresh, outstanding, said);
    for (uint64_t again = fresh & ~chunk->once; again != 0; again &= again - 1)
        said->spurious += chunk->records[__builtin_ctzll(again)].time > said->answerable;
    for (; wronged != 0 && said->cleared_count < LOSS_CLEARED; wronged &= wronged - 1)
        said->cleared[said->cleared_count++] = chunk->records[__builtin_ctzll(wronged)].ev;
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
    /* The last one of each plane was sent last. */
    for (uint32_t planes = chunk->planes; planes != 0; planes &= planes - 1) {
        uint64_t there = chunk->on_plane[__builtin_ctz(planes)];
        uint64_t came = bits & chunk->arrived & chunk->once & there;

        if (came != 0) {
            const struct sent *record = &chunk->records[63 - __builtin_clzll(came)];

            loss_evidence_add(evidence, record->ev, record->time);
        }
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

/* Those of `arrived` that were sent after the PSN of bit i, by the same plane. Only first attempts
 * are compared, so that all are of one traffic class. */
static uint64_t sent_after(const struct sent_chunk *chunk, uint32_t i, uint32_t plane,
                           uint64_t arrived) {
    return arrived & chunk->arrived & chunk->once & chunk->on_plane[plane] & (~1ull << i);
}

/* Rule (b): something sent later on the same path has arrived. */
static bool is_overtaken(const struct sent_chunk *chunk, uint32_t i, uint32_t plane,
                         uint64_t arrived) {
    const struct sent *record = &chunk->records[i];

    if (record->tries != 1)
        return false;
    for (uint64_t rest = sent_after(chunk, i, plane, arrived); rest != 0; rest &= rest - 1) {
        if (chunk->records[__builtin_ctzll(rest)].ev == record->ev)
            return true;
    }
    return false;
}

/* Rule (c): later packets, of its plane or of others, have arrived. */
static bool is_late_on_plane(const struct sent *record, uint32_t plane,
                             const struct loss_evidence *evidence) {
    int64_t latest = evidence->plane_latest[plane];

    return latest != 0 && latest >= record->time + evidence->plane_window;
}

static bool is_late(const struct sent *record, uint32_t plane,
                    const struct loss_evidence *evidence) {
    return evidence->proved != 0 &&
           evidence->proved >= record->time + evidence->reorder_window[plane];
}

/* Those of `rest`, all of one plane, against which there may be something: the first of those that
 * were sent once was sent before the others, and nothing speaks against it that does not speak
 * against any of them. */
static uint64_t suspicious(const struct sent_chunk *chunk, uint64_t rest, uint32_t plane,
                           uint64_t arrived, const struct loss_evidence *evidence) {
    uint64_t once = rest & chunk->once;
    uint32_t first = once != 0 ? (uint32_t)__builtin_ctzll(once) : 0;
    const struct sent *record = &chunk->records[first];

    if (once == 0 || evidence->has_ev || is_late(record, plane, evidence) ||
        is_late_on_plane(record, plane, evidence) ||
        sent_after(chunk, first, plane, arrived) != 0)
        return rest;
    return rest & ~once;
}

static void judge_plane(const struct sent_chunk *chunk, uint64_t rest, uint32_t plane,
                        uint64_t arrived, const struct loss_evidence *evidence,
                        struct loss_verdict *verdict) {
    rest = suspicious(chunk, rest, plane, arrived, evidence);
    for (; rest != 0; rest &= rest - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(rest);
        const struct sent *record = &chunk->records[i];
        bool is_passed = evidence->has_ev && evidence->ev == record->ev && record->tries == 1 &&
                         (int32_t)(evidence->order - record->order) > 0;

        if (is_late_on_plane(record, plane, evidence) || is_passed ||
            is_overtaken(chunk, i, plane, arrived))
            verdict->blamed |= rest & -rest;
        else if (is_late(record, plane, evidence))
            verdict->lost |= rest & -rest;
    }
}

struct loss_verdict loss_judge(struct loss *loss, uint32_t base, uint64_t covered,
                               uint64_t arrived, const struct loss_evidence *evidence) {
    struct sent_chunk *chunk = chunk_of(loss, base);
    struct loss_verdict verdict = {0};
    uint64_t missing;

    if (!is_in_window(loss, base))
        return verdict;
    missing = covered & ~arrived & chunk->outstanding;
    for (uint32_t planes = missing ? chunk->planes : 0; planes != 0; planes &= planes - 1) {
        uint32_t plane = (uint32_t)__builtin_ctz(planes);
        uint64_t rest = missing & chunk->on_plane[plane];

        if (rest != 0)
            judge_plane(chunk, rest, plane, arrived, evidence, &verdict);
    }
    verdict.lost |= verdict.blamed;
    if (verdict.lost != 0)
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
    for (uint64_t rest = here->outstanding & (plane == LOSS_PLANES ? ~0ull : here->on_plane[plane]);
         rest != 0; rest &= rest - 1) {
        if (here->records[__builtin_ctzll(rest)].time < before)
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
