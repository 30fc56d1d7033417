/* SPDX-License-Identifier: Apache-2.0 */
#include "ev_profile.h"

#include <assert.h>
#include <string.h>

enum { SLOT_NONE = -1 };

static void shuffle(struct ev_profile *profile, const struct ev_set *set) {
    for (uint32_t left = set->active; left > 1; left--) {
        uint32_t a = set->first + left - 1;
        uint32_t b = set->first + prng_below(&profile->prng, left);
        uint32_t ev = profile->evs[a];
        struct ev_standing standing = profile->standings[a];

        profile->evs[a] = profile->evs[b];
        profile->standings[a] = profile->standings[b];
        profile->evs[b] = ev;
        profile->standings[b] = standing;
    }
}

static bool is_coprime(uint32_t a, uint32_t b) {
    while (b != 0) {
        uint32_t rest = a % b;

        a = b;
        b = rest;
    }
    return a == 1;
}

/* EV[11:0] runs through the ways in steps of a number coprime to theirs: no two are equal. */
static void draw(struct ev_profile *profile, uint32_t plane, uint32_t ways) {
    struct ev_set *set = &profile->sets[plane];
    uint32_t low = prng_next(&profile->prng) % ways;
    uint32_t step = (prng_next(&profile->prng) | 1) % ways;

    while (!is_coprime(step, ways))
        step++;

    for (uint32_t i = 0; i < (uint32_t)set->active + set->backup; i++) {
        uint32_t high = prng_next(&profile->prng) & 0xFFFF0000u;

        profile->evs[set->first + i] = high | plane << 12 | (low + i * step) % ways;
        profile->standings[set->first + i].state = i < set->active ? EV_GOOD : EV_BACKUP;
    }
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

void ev_profile_init(struct ev_profile *profile, const struct ev_profile_setup *setup) {
    uint32_t planes = 0;
    uint32_t count, backup;

    memset(profile, 0, sizeof *profile);
    prng_init(&profile->prng, setup->seed, 1);
    for (uint32_t i = 0; i < EV_PLANES; i++)
        planes += setup->plane_mask >> i & 1;
    if (planes == 0)
        return;
    count = least(setup->count, EV_ACTIVE_MAX) / planes;
    count = least(count ? count : 1, setup->ways);
    profile->min_active = least(setup->min_active, (count + 1) / 2);
    backup = least(least(setup->backup, EV_BACKUP_MAX / planes), setup->ways - count);
    for (uint32_t i = 0; i < EV_PLANES; i++) {
        struct ev_set *set = &profile->sets[i];

        if (!(setup->plane_mask >> i & 1))
            continue;
        set->first = (uint16_t)profile->total;
        set->active = (uint16_t)count;
        set->backup = (uint16_t)backup;
        profile->total += count + backup;
        draw(profile, i, setup->ways);
        shuffle(profile, set);
        profile->usable |= 1u << i;
    }
}

static bool is_in_use(uint8_t state) { return state == EV_GOOD || state == EV_SKIP; }

/* The EV of a slot has been passed over once more. */
static void pass_over(struct ev_profile *profile, uint32_t slot) {
    if (--profile->standings[slot].turns == 0)
        profile->standings[slot].state = EV_GOOD;
}

bool ev_profile_pick(struct ev_profile *profile, uint32_t plane, uint32_t avoid, uint32_t *ev) {
    struct ev_set *set = &profile->sets[plane];
    bool has_any = false;

    if (set->is_out || set->active == 0)
        return false;
    /* Where every one is to be passed over, one is taken all the same after two rotations. */
    for (uint32_t i = 0; i < 2u * set->active; i++) {
        uint32_t slot;

        if (set->cursor == set->active) {
            shuffle(profile, set);
            set->cursor = 0;
        }
        slot = (uint32_t)set->first + set->cursor++;
        if (!is_in_use(profile->standings[slot].state))
            continue;
        if (!has_any || profile->evs[slot] != avoid)
            *ev = profile->evs[slot];
        has_any = true;
        if (profile->standings[slot].state == EV_SKIP)
            pass_over(profile, slot);
        else if (profile->evs[slot] != avoid)
            return true;
    }
    return has_any;
}

static int find(const struct ev_profile *profile, uint32_t ev) {
    const struct ev_set *set = &profile->sets[ev_plane(ev)];

    for (uint32_t i = set->first; i < (uint32_t)set->first + set->active + set->backup; i++) {
        if ((profile->evs[i] & 0xFFFF) == (ev & 0xFFFF))
            return (int)i;
    }
    return SLOT_NONE;
}

static bool is_active(const struct ev_set *set, int slot) {
    return slot < set->first + set->active;
}

bool ev_profile_on_congested(struct ev_profile *profile, uint32_t ev, uint32_t turns) {
    int slot = find(profile, ev);

    if (slot == SLOT_NONE || !is_in_use(profile->standings[slot].state))
        return false;
    if (profile->standings[slot].state == EV_SKIP)
        turns += profile->standings[slot].turns;
    profile->standings[slot].state = EV_SKIP;
    profile->standings[slot].turns = least(turns, EV_TURNS_MAX) & EV_TURNS_MAX;
    return true;
}

/* A slot of the plane in [from, to) with this state. */
static int slot_in(const struct ev_profile *profile, int from, int to, enum ev_state state) {
    for (int i = from; i < to; i++) {
        if (profile->standings[i].state == state)
            return i;
    }
    return SLOT_NONE;
}

/* Exchanges an EV of the rotation that is not to be used with one that waits outside it. */
static void swap_out(struct ev_profile *profile, const struct ev_set *set, int slot) {
    int end = set->first + set->active + set->backup;
    int spare = slot_in(profile, set->first + set->active, end, EV_BACKUP);
    uint32_t ev = profile->evs[slot];

    if (spare == SLOT_NONE)
        return;
    profile->evs[slot] = profile->evs[spare];
    profile->evs[spare] = ev;
    profile->standings[spare] = profile->standings[slot];
    profile->standings[slot].state = EV_GOOD;
}

/* The least bad EV of a plane whose others are all denied is used after all. */
static bool use_least_bad(struct ev_profile *profile, const struct ev_set *set) {
    int end = set->first + set->active + set->backup;
    int slot = slot_in(profile, set->first, end, EV_ASSUMED_BAD);

    if (slot == SLOT_NONE)
        return false;
    profile->standings[slot].state = is_active(set, slot) ? EV_GOOD : EV_BACKUP;
    if (!is_active(set, slot))
        swap_out(profile, set, set->first);
    return true;
}

/* To be called when EVs may have become usable, or ceased to be: each in the rotation that is not
 * to be used makes way for a spare, and a plane that is not out has one in use if it has any. */
static void refill(struct ev_profile *profile, uint32_t plane) {
    const struct ev_set *set = &profile->sets[plane];
    bool has_any = false;

    profile->usable &= ~(1u << plane);
    if (set->is_out)
        return;
    for (int i = set->first; i < set->first + set->active; i++) {
        if (!is_in_use(profile->standings[i].state))
            swap_out(profile, set, i);
        has_any = has_any || is_in_use(profile->standings[i].state);
    }
    if (has_any || use_least_bad(profile, set))
        profile->usable |= 1u << plane;
}

bool ev_profile_on_lost(struct ev_profile *profile, uint32_t ev, bool is_dead) {
    int slot = find(profile, ev);
    const struct ev_set *set = &profile->sets[ev_plane(ev)];
    uint32_t in_use = 0;

    if (slot == SLOT_NONE || !is_in_use(profile->standings[slot].state))
        return false;
    for (uint32_t i = set->first; i < (uint32_t)set->first + set->active; i++)
        in_use += is_in_use(profile->standings[i].state);
    if (in_use <= (is_dead ? 1 : profile->min_active) &&
        slot_in(profile, set->first + set->active, set->first + set->active + set->backup,
                EV_BACKUP) == SLOT_NONE)
        return false;
    profile->standings[slot].state = EV_ASSUMED_BAD;
    refill(profile, ev_plane(ev));
    return true;
}

bool ev_profile_is_bad(const struct ev_profile *profile, uint32_t ev) {
    int slot = find(profile, ev);

    return slot != SLOT_NONE && profile->standings[slot].state == EV_ASSUMED_BAD;
}

bool ev_profile_on_revived(struct ev_profile *profile, uint32_t ev, bool is_congested) {
    int slot = find(profile, ev);
    const struct ev_set *set = &profile->sets[ev_plane(ev)];

    if (slot == SLOT_NONE || profile->standings[slot].state != EV_ASSUMED_BAD || set->is_out)
        return false;
    if (is_active(set, slot)) {
        profile->standings[slot].state = is_congested ? EV_SKIP : EV_GOOD;
        profile->standings[slot].turns = EV_TURNS_MARKED;
    } else {
        profile->standings[slot].state = EV_BACKUP;
    }
    refill(profile, ev_plane(ev));
    return true;
}

bool ev_profile_deny(struct ev_profile *profile, uint32_t ev, bool is_denied) {
    int slot = find(profile, ev);
    const struct ev_set *set = &profile->sets[ev_plane(ev)];

    if (slot == SLOT_NONE || (profile->standings[slot].state == EV_DENIED) == is_denied)
        return false;
    if (is_denied)
        profile->standings[slot].state = EV_DENIED;
    else if (set->is_out)
        profile->standings[slot].state = EV_ASSUMED_BAD;
    else
        profile->standings[slot].state = is_active(set, slot) ? EV_GOOD : EV_BACKUP;
    refill(profile, ev_plane(ev));
    return true;
}

void ev_profile_plane_out(struct ev_profile *profile, uint32_t plane) {
    struct ev_set *set = &profile->sets[plane];

    set->is_out = true;
    for (uint32_t i = set->first; i < (uint32_t)set->first + set->active + set->backup; i++) {
        if (profile->standings[i].state != EV_DENIED)
            profile->standings[i].state = EV_ASSUMED_BAD;
    }
    refill(profile, plane);
}

void ev_profile_plane_back(struct ev_profile *profile, uint32_t plane) {
    struct ev_set *set = &profile->sets[plane];

    set->is_out = false;
    for (int i = set->first; i < set->first + set->active + set->backup; i++) {
        if (profile->standings[i].state != EV_DENIED)
            profile->standings[i].state = is_active(set, i) ? EV_GOOD : EV_BACKUP;
    }
    refill(profile, plane);
}

bool ev_profile_next_suspect(struct ev_profile *profile, uint32_t *ev) {
    for (uint32_t i = 0; i < profile->total; i++) {
        uint32_t slot = profile->suspect++ % profile->total;

        if (profile->standings[slot].state != EV_ASSUMED_BAD ||
            profile->sets[ev_plane(profile->evs[slot])].is_out)
            continue;
        *ev = profile->evs[slot];
        return true;
    }
    return false;
}

uint32_t ev_profile_good(const struct ev_profile *profile) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < profile->total; i++)
        count += is_in_use(profile->standings[i].state);
    return count;
}

uint32_t ev_profile_bad(const struct ev_profile *profile) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < profile->total; i++)
        count += profile->standings[i].state == EV_ASSUMED_BAD &&
                 !profile->sets[ev_plane(profile->evs[i])].is_out;
    return count;
}

bool ev_profile_get(const struct ev_profile *profile, uint32_t index, uint32_t *ev,
                    enum ev_state *state) {
    if (index >= profile->total)
        return false;
    *ev = profile->evs[index];
    *state = (enum ev_state)profile->standings[index].state;
    return true;
}
