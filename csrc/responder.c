/* SPDX-License-Identifier: Apache-2.0 */
#include "responder.h"

#include <assert.h>
#include <string.h>

#include "psn.h"

enum {
    WINDOW_UNIT = 128,
    SACK_LEAST = 1024, /* MRC 1.0, Responder: each packet counts at least 1 KiB */
    RCVD_UNIT = 256,
};

void responder_init(struct responder *responder, const struct responder_setup *setup) {
    memset(responder, 0, sizeof *responder);
    psn_window_init(&responder->window, setup->remote->psn, setup->local->mpr * WINDOW_UNIT);
    responder->memory = setup->memory;
    responder->immediate_pool = setup->immediate_pool;
    responder->received = setup->received;
    responder->number = setup->local->number;
    responder->remote = setup->remote->number;
    responder->domain = setup->domain;
    responder->mtu =
        setup->local->mtu < setup->remote->mtu ? setup->local->mtu : setup->remote->mtu;
    responder->max_wimm = setup->local->max_wimm;
    if (setup->local->dynamic_mpr && setup->remote->dynamic_mpr)
        responder->mpr = setup->local->mpr;
    responder->sack_threshold = setup->config->sack_threshold;
    responder->sack_delay = setup->config->sack_delay;
    responder->headers_only = setup->config->headers_only;
    responder->syndrome = WIRE_SYNDROME_ACK;
    responder->ack_psn = responder->window.cack;
    responder->deadline = INT64_MAX;
}

void responder_flush(struct responder *responder) {
    while (responder->stash != NULL) {
        struct immediate *immediate = responder->stash;

        responder->stash = immediate->next;
        pool_give(responder->immediate_pool, immediate);
    }
    responder->stash_count = 0;
    responder->deadline = INT64_MAX;
}

static uint32_t word_of(uint32_t psn) { return psn / 64 % PSN_WINDOW_WORDS; }

static uint64_t bit_of(uint32_t psn) { return 1ull << (psn % 64); }

/* ---- Executing messages in order ---- */

static void stash(struct responder *responder, uint32_t psn, uint32_t value,
                  struct immediate *immediate) {
    struct immediate **place = &responder->stash;

    while (*place != NULL && psn_before((*place)->psn, psn))
        place = &(*place)->next;
    immediate->psn = psn;
    immediate->value = value;
    immediate->qp = responder->number;
    immediate->next = *place;
    *place = immediate;
    responder->stash_count++;
}

/* One receive completion for each immediate up to cack. False: nobody had posted a receive. */
static bool deliver(struct responder *responder) {
    while (responder->stash != NULL &&
           psn_diff(responder->stash->psn, responder->window.cack) <= 0) {
        struct immediate *immediate = responder->stash;

        if (responder->receives == 0)
            return false;
        responder->receives--;
        responder->stash = immediate->next;
        responder->stash_count--;
        immediate->next = NULL;
        if (responder->received->head == NULL)
            responder->received->head = immediate;
        else
            responder->received->tail->next = immediate;
        responder->received->tail = immediate;
    }
    return true;
}

/* cack moved over `count` PSNs: the messages that end there are executed. */
static void execute(struct responder *responder, uint32_t count) {
    uint32_t psn = psn_add(responder->window.cack, 1 - (int32_t)count);

    while (count > 0) {
        uint32_t offset = psn % 64;
        uint32_t here = count < 64 - offset ? count : 64 - offset;
        uint64_t mask = (here == 64 ? ~0ull : (1ull << here) - 1) << offset;
        uint64_t *word = &responder->ends[word_of(psn)];
        uint64_t ends = *word & mask;

        if (ends != 0) {
            uint32_t last = 63 - (uint32_t)__builtin_clzll(ends);
            uint32_t executed = (uint32_t)__builtin_popcountll(ends);

            responder->msn += executed;
            responder->end_count -= executed;
            responder->ack_psn = psn_add(psn, (int32_t)last - (int32_t)offset);
            responder->is_ack_due = true;
            *word &= ~mask;
        }
        psn = psn_add(psn, (int32_t)here);
        count -= here;
    }
}

/* ---- Arrivals ---- */

static enum responder_verdict fail(struct responder *responder, uint8_t syndrome, int error) {
    responder->syndrome = syndrome;
    responder->error = error;
    responder->is_ack_due = true;
    return RESPONDER_FAILED;
}

static enum responder_verdict unexpected(struct responder *responder, uint8_t *reason) {
    *reason = WIRE_NACK_UNEXP_EVENT;
    return fail(responder, WIRE_SYNDROME_REMOTE_OPERATION, MRC_ERROR_REMOTE_OPERATION);
}

static void note(struct responder *responder, int64_t now, const struct packet *packet) {
    uint32_t size = packet->payload_size > SACK_LEAST ? packet->payload_size : SACK_LEAST;

    if (responder->unreported == 0 && responder->sack_delay > 0)
        responder->deadline = now + responder->sack_delay;
    responder->unreported |= 1ull << word_of(packet->psn);
    responder->unreported_bytes += size;
}

/* The last one is kept for an immediate that is next in order: it can be delivered at once, while
 * those behind it would wait for it for ever. */
static struct immediate *take_immediate(struct responder *responder, uint32_t psn) {
    const struct pool *pool = responder->immediate_pool;
    bool is_next = psn_diff(psn, responder->window.cack) == 1;

    if (!is_next && pool->count - pool->used < 2)
        return NULL;
    return pool_take(responder->immediate_pool);
}

static enum responder_verdict place(struct responder *responder, int64_t now,
                                    const struct packet *packet, uint32_t nominal,
                                    uint8_t *reason) {
    struct immediate *immediate = NULL;
    uint8_t *to = NULL;
    uint32_t passed;

    if (packet->payload_size > responder->mtu)
        return fail(responder, WIRE_SYNDROME_INVALID_REQUEST, MRC_ERROR_INVALID_REQUEST);
    if (packet->payload_size > 0) {
        to = memory_table_resolve(responder->memory, packet->r_key, responder->domain, packet->va,
                                  packet->payload_size);
        if (to == NULL)
            return fail(responder, WIRE_SYNDROME_REMOTE_ACCESS, MRC_ERROR_REMOTE_ACCESS);
    }
    if (wire_has_immediate(packet->opcode)) {
        if (responder->stash_count >= responder->max_wimm)
            return unexpected(responder, reason);
        immediate = take_immediate(responder, packet->psn);
        if (immediate == NULL) {
            *reason = WIRE_NACK_NO_RESOURCE;
            return RESPONDER_NACK;
        }
        stash(responder, packet->psn, packet->immediate, immediate);
    }
    if (to != NULL && !responder->headers_only)
        memcpy(to, packet->payload, packet->payload_size);
    responder->bytes_received += packet->payload_size;
    responder->rcvd_bytes += nominal;
    if (wire_ends_message(packet->opcode)) {
        responder->ends[word_of(packet->psn)] |= bit_of(packet->psn);
        responder->end_count++;
    }
    passed = psn_window_add(&responder->window, packet->psn);
    note(responder, now, packet);
    if (passed > 0 && responder->end_count > 0)
        execute(responder, passed);
    return passed == 0 || deliver(responder) ? RESPONDER_PLACED : unexpected(responder, reason);
}

enum responder_verdict responder_on_data(struct responder *responder, int64_t now,
                                         const struct packet *packet, const struct cause *cause,
                                         uint32_t nominal, uint8_t *reason) {
    enum responder_verdict verdict = RESPONDER_DUPLICATE;
    uint32_t plane;

    switch (psn_window_classify(&responder->window, packet->psn)) {
    case PSN_FAR:
        return RESPONDER_DROPPED;
    case PSN_BEYOND:
        *reason = WIRE_NACK_PSN_OOR_WINDOW;
        return RESPONDER_NACK;
    case PSN_DUPLICATE:
        responder->duplicates++;
        responder->is_sack_due = true;
        responder->is_ack_due = true;
        break;
    case PSN_NEW:
        verdict = place(responder, now, packet, nominal, reason);
        break;
    }
    if (verdict == RESPONDER_FAILED || verdict == RESPONDER_NACK)
        return verdict;
    plane = cause->plane % MRC_PLANES;
    responder->last_plane = plane;
    responder->causes[plane] = *cause;
    responder->fresh |= 1u << plane;
    if (packet->ack_request)
        responder->is_ack_due = true;
    if (packet->rtx || packet->ack_request || verdict == RESPONDER_DUPLICATE ||
        responder->unreported_bytes >= responder->sack_threshold)
        responder_report(responder);
    return verdict;
}

bool responder_needs(const struct responder *responder, uint32_t psn) {
    return psn_window_classify(&responder->window, psn) == PSN_NEW;
}

void responder_on_probe(struct responder *responder, const struct packet *probe,
                        const struct cause *cause) {
    struct probe_answer *answer;

    if (responder->probe_count == RESPONDER_PROBES) {
        /* Its sender asks faster than it can be answered: the newest question counts. */
        memmove(responder->probes, responder->probes + 1,
                sizeof responder->probes - sizeof responder->probes[0]);
        responder->probe_count--;
    }
    answer = &responder->probes[responder->probe_count++];
    answer->cause = *cause;
    answer->id = probe->probe_id;
    answer->is_started = false;
    responder->is_ack_due = true;
}

/* ---- Answers ---- */

void responder_report(struct responder *responder) {
    responder->due |= responder->unreported;
    responder->is_sack_due = responder->is_sack_due || responder->unreported != 0;
    responder->unreported = 0;
    responder->unreported_bytes = 0;
    responder->deadline = INT64_MAX;
}

void responder_repeat(struct responder *responder) { responder->is_ack_due = true; }

bool responder_is_due(const struct responder *responder) {
    return responder->is_sack_due || responder->is_ack_due || responder->probe_count > 0;
}

bool responder_owes_only_ack(const struct responder *responder) {
    return responder->is_ack_due && !responder->is_sack_due && responder->probe_count == 0;
}

static void put_sack(struct responder *responder, uint32_t base, const struct cause *cause,
                     struct packet *sack) {
    const struct psn_window *window = &responder->window;
    int32_t offset = psn_diff(cause->psn, window->cack);

    memset(sack, 0, sizeof *sack);
    sack->opcode = WIRE_SACK;
    sack->dest_qp = responder->remote;
    sack->psn = window->cack;
    sack->cack_psn = window->cack;
    /* An old duplicate is too far away to be named: cack has arrived as well. */
    sack->ack_psn_offset = offset < INT16_MIN ? 0 : (int16_t)offset;
    sack->entropy = cause->ev;
    sack->tx_timestamp = cause->timestamp;
    sack->spdcid = (uint16_t)responder->number;
    sack->dpdcid = (uint16_t)responder->remote;
    sack->mpr = (uint8_t)responder->mpr;
    sack->sack_offset = (int16_t)psn_diff(base, window->cack);
    sack->sack_bitmap = psn_window_bitmap(window, base);
    sack->ooo_count = (uint16_t)window->ahead;
    sack->rcvd_bytes = (uint32_t)((responder->rcvd_bytes + RCVD_UNIT - 1) / RCVD_UNIT) & 0xFFFFFF;
    responder->sacks_sent++;
}

/* The packet that the next SACK names: of each plane in turn, so that all give RTT samples. */
static struct cause take_cause(struct responder *responder) {
    for (uint32_t i = 1; i <= MRC_PLANES; i++) {
        uint32_t plane = (responder->turn + i) % MRC_PLANES;

        if (!(responder->fresh >> plane & 1))
            continue;
        responder->fresh &= ~(1u << plane);
        responder->turn = plane;
        if (!responder->is_reporting)
            responder->first_turn = plane;
        responder->is_reporting = true;
        return responder->causes[plane];
    }
    return responder->causes[responder->last_plane];
}

/* A packet that is named later would seem to have been on its way for longer. The next report
 * begins with another plane: what the first SACK of one acknowledges cumulatively gives no RTT
 * sample any more to those behind it. */
static void end_report(struct responder *responder) {
    responder->fresh = 0;
    responder->turn = responder->first_turn;
    responder->is_reporting = false;
}

static uint32_t first_stretch(const struct responder *responder) {
    return psn_add(responder->window.cack, 1) & ~63u;
}

void responder_mark(struct responder *responder, const struct cause *cause, struct packet *sack) {
    uint32_t first = first_stretch(responder);
    uint32_t base = cause->psn & ~63u;

    put_sack(responder, psn_before(base, first) ? first : base, cause, sack);
    sack->m = WIRE_MARK_SKIP_ONCE;
}

/* The lowest stretch that is due and not behind cack; the first one when all are. */
static uint32_t take_stretch(struct responder *responder) {
    uint32_t first = first_stretch(responder);
    uint32_t shift = word_of(first);

    while (responder->due != 0) {
        uint64_t turned = responder->due >> shift | responder->due << ((64 - shift) % 64);
        uint32_t distance = (uint32_t)__builtin_ctzll(turned);
        uint32_t base = psn_add(first, (int32_t)distance * 64);

        responder->due &= ~(1ull << word_of(base));
        if (psn_diff(base, responder->window.last) <= 0)
            return base;
    }
    return first;
}

static bool answer_probe(struct responder *responder, struct packet *sack, struct cause *cause) {
    struct probe_answer *answer = &responder->probes[0];
    uint32_t first = first_stretch(responder);
    uint32_t base = answer->base;

    if (!answer->is_started || psn_before(base, first))
        base = first;
    answer->is_started = true;
    *cause = answer->cause;
    cause->psn = responder->window.cack;
    put_sack(responder, base, cause, sack);
    sack->pr = true;
    sack->ack_psn_offset = (int16_t)answer->id;
    answer->base = psn_add(base, 64);
    if (psn_diff(answer->base, responder->window.last) > 0) {
        responder->probe_count--;
        memmove(responder->probes, responder->probes + 1,
                responder->probe_count * sizeof responder->probes[0]);
    }
    return true;
}

bool responder_next(struct responder *responder, struct packet *answer, struct cause *cause) {
    if (responder->is_sack_due) {
        *cause = take_cause(responder);
        put_sack(responder, take_stretch(responder), cause, answer);
        responder->is_sack_due = responder->due != 0;
        if (!responder->is_sack_due)
            end_report(responder);
        return true;
    }
    *cause = responder->causes[responder->last_plane];
    if (responder->probe_count > 0)
        return answer_probe(responder, answer, cause);
    if (!responder->is_ack_due)
        return false;
    responder->is_ack_due = false;
    memset(answer, 0, sizeof *answer);
    answer->opcode = WIRE_ACK;
    answer->dest_qp = responder->remote;
    answer->psn = responder->ack_psn;
    answer->syndrome = responder->syndrome;
    answer->msn = responder->msn & 0xFFFFFF;
    return true;
}
