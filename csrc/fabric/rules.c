/* SPDX-License-Identifier: Apache-2.0 */
#include "frame.h"
#include "state.h"

/* What a draw is for: each has its own, so that none depends on whether another was made. */
enum purpose { LOSS = 1, CORRUPT, CORRUPT_WHERE, DUPLICATE, REORDER, JITTER, MARK };

static uint32_t draw(const struct fabric *fabric, uint64_t place, enum purpose purpose,
                     uint64_t identity, uint32_t attempt) {
    uint64_t hash = frame_mix(fabric->config.seed, place << 8 | purpose);

    return (uint32_t)(frame_mix(frame_mix(hash, identity), attempt) >> 32);
}

static bool happens(uint32_t drawn, uint32_t chance) {
    return ((uint64_t)drawn * FABRIC_MILLION) >> 32 < chance;
}

/* How often this packet was lost by this rule. Where two identities meet in a slot the elder is
 * forgotten, and its next attempt may share the fate of its first. */
static struct lost *find_lost(const struct fabric *fabric, uint32_t slot, uint64_t identity) {
    return &fabric->lost[frame_mix(identity, slot) % LOST_SLOTS];
}

static bool is_lost(struct fabric *fabric, uint32_t slot, const struct fabric_rule *rule,
                    const struct fabric_packet *packet) {
    struct lost *lost = find_lost(fabric, slot, packet->identity);
    uint64_t key = frame_mix(packet->identity, slot);
    uint32_t attempt = lost->identity == key ? lost->times : 0;
    uint64_t identity = packet->identity;

    /* A burst is a run of PSNs, and so of the packets of one EV among them: the EV stays out. */
    if (rule->loss_run > 1 && packet->bth_at)
        identity = frame_mix(frame_run(packet), packet->psn / rule->loss_run);
    if (!happens(draw(fabric, slot, LOSS, identity, attempt), rule->loss))
        return false;
    lost->identity = key;
    lost->times = attempt + 1;
    return true;
}

static bool applies(const struct fabric *fabric, const struct fabric_rule *rule, uint32_t port,
                    const struct fabric_packet *packet) {
    bool is_entrance = !fabric->nodes[fabric->ports[port].config.node].config.is_switch;

    return (rule->port == port || (rule->port == FABRIC_ENTRANCE && is_entrance)) &&
           (packet->ev & rule->ev_mask) == rule->ev_value;
}

struct fate rules_fate(struct fabric *fabric, uint32_t port, const struct fabric_packet *packet) {
    struct fate fate = {0};

    for (uint32_t slot = 0; slot < fabric->rules_used; slot++) {
        const struct fabric_rule *rule = &fabric->rules[slot];
        uint64_t id = packet->identity;

        if (!applies(fabric, rule, port, packet))
            continue;
        if (rule->loss > 0 && is_lost(fabric, slot, rule, packet)) {
            fate.lost = true;
            return fate;
        }
        if (happens(draw(fabric, slot, CORRUPT, id, 0), rule->corrupt)) {
            fate.corrupt = true;
            fate.corrupt_draw = draw(fabric, slot, CORRUPT_WHERE, id, 0);
        }
        fate.duplicate |= happens(draw(fabric, slot, DUPLICATE, id, 0), rule->duplicate);
        if (happens(draw(fabric, slot, REORDER, id, 0), rule->reorder)) {
            fate.reorder = true;
            fate.reorder_delay += rule->reorder_delay;
        }
        /* In units of 1/65536 of the range, for the product to fit. */
        fate.jitter += rule->jitter / 65536 * (draw(fabric, slot, JITTER, id, 0) >> 16) +
                       rule->jitter % 65536 * (draw(fabric, slot, JITTER, id, 0) >> 16) / 65536;
    }
    return fate;
}

uint32_t rules_mark_draw(const struct fabric *fabric, uint32_t port,
                         const struct fabric_packet *packet) {
    return draw(fabric, port, MARK, packet->identity, 0);
}
