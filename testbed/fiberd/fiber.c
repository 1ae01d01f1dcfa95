#include "fiber.h"

#include "clock.h"
#include "packet.h"

#include <math.h>
#include <string.h>

const char *const drop_cause_names[DROP_CAUSES] = {"loss", "corrupt", "size", "queue", "memory", "transmit", "receive", "down"};

const uint32_t lateness_bounds_us[LATENESS_BOUNDS] = {1,    2,    5,     10,    20,    50,    100,    200,
                                                      500,  1000, 2000,  5000,  10000, 20000, 50000,  100000};

/* Below this rate a super-packet is sent in slices of at most SLICE_NS, so that it does not delay the packets behind it.
 * Above this rate, 64 KiB take little longer than SLICE_NS, and slicing would only cost CPU. */
static const double SLICE_BELOW_BPS = 2.5e9;
static const double SLICE_NS = 100e3;

static const uint64_t NEVER = UINT64_MAX;

/* ---- set-up and change ---------------------------------------------------------------------------------------------- */

static void set_chances(struct fiber *fiber) {
    const struct impairment *it = &fiber->impairment;
    if (it->p > 0)
        chain_set(&fiber->loss, it->p, it->r, it->h, it->k);
    else
        chain_set(&fiber->loss, 0, 0, 0, 1 - it->loss);
    chain_set(&fiber->corrupt, 0, 0, 0, 1 - it->corrupt);
    chain_set(&fiber->duplicate, 0, 0, 0, 1 - it->duplicate);
    chain_set(&fiber->reorder, 0, 0, 0, 1 - it->reorder);
}

void fiber_init(struct fiber *fiber, const char *name, struct port *ingress, struct port *egress, uint64_t seed) {
    memset(fiber, 0, sizeof *fiber);
    strncpy(fiber->name, name, sizeof fiber->name - 1);
    fiber->ingress = ingress;
    fiber->egress = egress;
    fiber->tail = &fiber->head;
    struct chain *const chains[] = {&fiber->loss, &fiber->corrupt, &fiber->duplicate, &fiber->reorder};
    for (unsigned kind = CHANCE_LOSS; kind <= CHANCE_REORDER; kind++)
        chains[kind]->random = chance_seed(name, seed, kind);
    fiber->jitter_random = chance_seed(name, seed, CHANCE_JITTER);
    fiber->bit_random = chance_seed(name, seed, CHANCE_BIT);
    fiber->last_uniform[0] = fiber->last_uniform[1] = 0.5;
    fiber->impairment.memory_bytes = 256ull << 20;
    fiber->impairment.overhead_bytes = WIRE_OVERHEAD_BYTES;
    fiber->impairment.distribution = JITTER_NORMAL;
    fiber->impairment.k = 1;
    set_chances(fiber);
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Compute when a packet that enters at `depart` leaves. Only packets delayed by `reorder` may be overtaken, unless jitter
 * reorders. */
static void schedule(struct fiber *fiber, struct frame *frame, uint64_t depart) {
    const int64_t travel = (int64_t)fiber->impairment.delay_ns + frame->extra_ns;
    frame->depart = depart;
    frame->due = depart + (travel > 0 ? (uint64_t)travel : 0); /* never before its arrival */
    if (frame->held)
        return;
    if (!fiber->impairment.jitter_reorders)
        frame->due = later(frame->due, fiber->last_due);
    fiber->last_due = later(fiber->last_due, frame->due);
}

void fiber_set(struct fiber *fiber, const struct impairment *impairment, uint64_t now) {
    const struct impairment old = fiber->impairment;
    fiber->impairment = *impairment;
    set_chances(fiber);

    /* Waiting times are rescaled to the new rate; with an unlimited rate, all queued packets leave now. */
    const double stretch = impairment->rate_bps > 0 ? old.rate_bps / impairment->rate_bps : 0;
    struct frame **waiting = &fiber->head;
    uint64_t last_due = 0;
    for (; *waiting && (*waiting)->depart <= now; waiting = &(*waiting)->next)
        last_due = (*waiting)->due;
    if (fiber->next_free <= now)
        return; /* the queue is empty; last_due and next_free are correct */
    fiber->next_free = now + (uint64_t)((double)(fiber->next_free - now) * stretch);
    fiber->last_due = last_due;
    const uint64_t first = *waiting ? (*waiting)->sequence : UINT64_MAX;
    uint64_t last_stray = 0;
    for (size_t i = 0; i < fiber->strays.count; i++) {
        struct frame *frame = fiber->strays.frames[i];
        if (frame->depart > now) { /* already reordered on request */
            const int64_t travel = (int64_t)impairment->delay_ns + frame->extra_ns;
            frame->depart = now + (uint64_t)((double)(frame->depart - now) * stretch);
            frame->due = frame->depart + (travel > 0 ? (uint64_t)travel : 0);
        }
        if (!frame->held && frame->sequence < first)
            fiber->last_due = later(fiber->last_due, frame->due);
        if (!frame->held)
            last_stray = later(last_stray, frame->due);
    }
    strays_order(&fiber->strays);
    /* The list keeps its order whatever its jitter: it was in order when the jitter was drawn. */
    for (struct frame *frame = *waiting; frame; frame = frame->next) {
        schedule(fiber, frame, now + (uint64_t)((double)(frame->depart - now) * stretch));
        frame->due = fiber->tail_due = later(frame->due, last_due);
        last_due = frame->due;
    }
    fiber->last_due = later(later(fiber->last_due, last_due), last_stray);
}

/* ---- ingress -------------------------------------------------------------------------------------------------------- */

static int64_t draw_jitter(struct fiber *fiber) {
    const struct impairment *it = &fiber->impairment;
    for (unsigned i = 0; i < 2; i++) /* always draw both, so that the stream does not depend on the distribution */
        fiber->last_uniform[i] = (1 - it->correlation) * chance_uniform(&fiber->jitter_random) +
                                 it->correlation * fiber->last_uniform[i];
    return (int64_t)((double)it->jitter_ns *
                     distribution_quantile(it->distribution, fiber->last_uniform[0], fiber->last_uniform[1]));
}

static uint32_t wire_bytes_of(const struct fiber *fiber, const struct packet_shape *shape, uint32_t first, uint32_t last) {
    return packet_l2_bytes(shape, first, last) + (last - first) * (uint32_t)fiber->impairment.overhead_bytes;
}

/* Requires strays_reserve(). */
static void enqueue(struct fiber *fiber, struct frame *frame, uint32_t wire_bytes, uint64_t arrival, bool held) {
    uint64_t depart = arrival;
    if (fiber->impairment.rate_bps > 0) {
        fiber->stats.emptied += arrival > fiber->next_free;
        depart = later(arrival, fiber->next_free) + (uint64_t)(wire_bytes * 8e9 / fiber->impairment.rate_bps);
        fiber->next_free = depart;
    }
    frame->arrival = arrival;
    frame->mark = fiber->recorder ? recorder_mark(fiber->recorder, frame_packet(frame), frame->length) : 0;
    frame->period = fiber->stats.emptied;
    frame->held = held;
    frame->extra_ns = held ? (int64_t)fiber->impairment.reorder_by_ns : 0;
    if (fiber->impairment.jitter_ns > 0)
        frame->extra_ns += draw_jitter(fiber);
    frame->sequence = fiber->sequence++;
    schedule(fiber, frame, depart);
    if (held || fiber->impairment.jitter_reorders || (fiber->head && frame->due < fiber->tail_due)) {
        strays_push(&fiber->strays, frame);
    } else {
        frame->next = NULL;
        *fiber->tail = frame;
        fiber->tail = &frame->next;
        fiber->tail_due = frame->due;
    }
    fiber->stats.held_back += held ? frame->segments : 0;
    fiber->packets_under_way++;
    fiber->memory_used += frame_cost(frame);
}

/* Number of the segments [first, last) that fit into the queue. */
static uint32_t queue_room(const struct fiber *fiber, const struct packet_shape *shape, uint32_t first, uint32_t last,
                           uint64_t arrival) {
    const uint64_t limit = fiber->impairment.queue_bytes;
    if (limit == 0 || fiber->impairment.rate_bps <= 0)
        return last - first;
    const uint64_t backlog = fiber_backlog(fiber, arrival);
    const uint64_t room = limit > backlog ? limit - backlog : 0;
    if (wire_bytes_of(fiber, shape, first, last) <= room)
        return last - first;
    return last - first == 1 ? 0 : (uint32_t)(room / wire_bytes_of(fiber, shape, 0, 1)); /* no segment is longer than the first */
}

/* Random impairments of the admitted segments; a bit is flipped in a single one only. */
struct fate {
    bool held, flipped, may_take;
};

/* Queue segments [first, last) of `whole`, in pieces if necessary. Returns true if `whole` itself was queued, which only
 * `may_take` allows. With jitter each segment is queued separately, because each has its own jitter;
 * without jitter, a piece is timed as its segments would be. */
static bool admit(struct fiber *fiber, struct frame *whole, const struct packet_shape *shape, uint32_t first, uint32_t last,
                  uint64_t arrival, struct fate fate) {
    uint32_t piece = last - first;
    const double rate = fiber->impairment.rate_bps;
    if (piece > 1 && rate > 0 && rate < SLICE_BELOW_BPS) {
        const double segment_ns = wire_bytes_of(fiber, shape, 0, 1) * 8e9 / rate;
        const uint32_t fitting = segment_ns < SLICE_NS ? (uint32_t)(SLICE_NS / segment_ns) : 1;
        piece = piece < fitting ? piece : fitting;
    }
    if (fiber->impairment.jitter_ns > 0)
        piece = 1;
    while (first < last) {
        uint32_t end = last - first < piece ? last : first + piece;
        const uint32_t room = queue_room(fiber, shape, first, end, arrival);
        const bool full = room < end - first;
        if (full)
            end = first + room;
        if (end > first) {
            const bool all = first == 0 && end == shape->segments, is_whole = all && fate.may_take;
            const size_t length = all ? whole->length : packet_slice_length(shape, first, end);
            struct frame *frame = is_whole ? whole : frame_get(length);
            if (!frame || !strays_reserve(&fiber->strays) ||
                fiber->memory_used + frame_cost(frame) > fiber->impairment.memory_bytes) {
                fiber->stats.drops[DROP_MEMORY] += last - first;
                if (frame && frame != whole)
                    frame_put(frame);
                return false;
            }
            if (frame != whole && all) {
                memcpy(frame_packet(frame), frame_packet(whole), length);
                frame->length = (uint32_t)length;
            } else if (frame != whole) {
                packet_slice(frame_packet(whole), shape, first, end, frame_packet(frame));
                frame->length = (uint32_t)length;
            }
            frame->segments = end - first;
            frame->l2_bytes = packet_l2_bytes(shape, first, end);
            if (fate.flipped) {
                if (!packet_complete_checksum(frame_packet(frame), frame->length)) {
                    fiber->stats.drops[DROP_CORRUPT] += end - first; /* no receiver could detect the error */
                    if (frame != whole)
                        frame_put(frame);
                    return false;
                }
                packet_flip_bit(frame_packet(frame), frame->length, chance_next(&fiber->bit_random));
                fiber->stats.corrupted++;
            }
            enqueue(fiber, frame, wire_bytes_of(fiber, shape, first, end), arrival, fate.held);
            if (is_whole)
                return true;
        }
        first = end;
        if (full) {
            fiber->stats.drops[DROP_QUEUE] += last - first;
            return false;
        }
    }
    return false;
}

/* Apply a random impairment to segment `first`. Returns true if the frame itself was queued. */
static bool receive_hit(struct fiber *fiber, struct frame *frame, const struct packet_shape *shape, uint32_t first,
                        uint64_t arrival, const bool *hit) {
    const bool doubled = hit[CHANCE_DUPLICATE];
    const bool flipped = hit[CHANCE_CORRUPT] && fiber->impairment.corrupt_survives;
    /* Lost segments are not duplicated: a share `loss` never arrives, and `duplicate` of the others arrive twice. */
    if (hit[CHANCE_LOSS] || (hit[CHANCE_CORRUPT] && !flipped)) {
        fiber->stats.drops[hit[CHANCE_LOSS] ? DROP_LOSS : DROP_CORRUPT]++;
        return false;
    }
    const struct fate fate = {.held = hit[CHANCE_REORDER], .flipped = flipped, .may_take = !doubled};
    bool taken = admit(fiber, frame, shape, first, first + 1, arrival, fate);
    if (doubled) {
        fiber->stats.duplicated++;
        taken = admit(fiber, frame, shape, first, first + 1, arrival, (struct fate){.may_take = true});
    }
    return taken;
}

static bool too_large(const struct fiber *fiber, const struct packet_shape *shape, uint32_t segment) {
    const uint32_t header = shape->l3_offset ? shape->l3_offset : ETHERNET_HEADER_BYTES;
    return packet_l2_bytes(shape, segment, segment + 1) > fiber->impairment.largest_bytes + header;
}

/* Return the first segment that is not too large: only the last segment of a super-packet may be smaller than the others. */
static uint32_t first_that_fits(const struct fiber *fiber, const struct packet_shape *shape) {
    if (fiber->impairment.largest_bytes == 0 || !too_large(fiber, shape, 0))
        return 0;
    return too_large(fiber, shape, shape->segments - 1) ? shape->segments : shape->segments - 1;
}

void fiber_receive(struct fiber *fiber, struct frame *frame, uint64_t arrival) {
    struct packet_shape shape;
    if (!packet_describe(frame_packet(frame), frame->length, &shape)) {
        fiber->stats.drops[DROP_RECEIVE]++;
        frame_put(frame);
        return;
    }
    if (arrival <= fiber->down_at) {
        fiber->stats.drops[DROP_DOWN] += shape.segments;
        frame_put(frame);
        return;
    }
    struct chain *const chains[] = {&fiber->loss, &fiber->corrupt, &fiber->duplicate, &fiber->reorder};
    enum { CHAINS = sizeof chains / sizeof chains[0] };
    bool taken = false;
    uint32_t first = first_that_fits(fiber, &shape);
    fiber->stats.drops[DROP_SIZE] += first;
    while (first < shape.segments) {
        uint32_t passing = shape.segments - first;
        bool hit[CHAINS];
        for (unsigned i = 0; i < CHAINS; i++) {
            const uint64_t until = chain_passing(chains[i]);
            hit[i] = until == 0;
            passing = until < passing ? (uint32_t)until : passing;
        }
        const uint32_t count = passing > 0 ? passing : 1;
        for (unsigned i = 0; i < CHAINS; i++)
            chain_advance(chains[i], count);
        if (passing > 0)
            taken = admit(fiber, frame, &shape, first, first + passing, arrival, (struct fate){.may_take = true});
        else
            taken = receive_hit(fiber, frame, &shape, first, arrival, hit);
        first += count;
    }
    if (!taken)
        frame_put(frame);
}

/* ---- egress --------------------------------------------------------------------------------------------------------- */

uint64_t fiber_next(const struct fiber *fiber) {
    uint64_t due = fiber->head ? fiber->head->due : NEVER;
    if (fiber->strays.count > 0 && fiber->strays.frames[0]->due < due)
        due = fiber->strays.frames[0]->due;
    return due == NEVER ? NEVER : later(due, fiber->retry_at);
}

void fiber_merge(struct fiber *fiber, uint64_t now) {
    struct frame **at = &fiber->head;
    while (fiber->strays.count > 0 && fiber->strays.frames[0]->due <= now) {
        struct frame *frame = strays_pop(&fiber->strays);
        while (*at && strays_before(*at, frame)) /* strays come in order: continue from here */
            at = &(*at)->next;
        frame->next = *at;
        *at = frame;
        at = &frame->next;
        if (!frame->next) {
            fiber->tail = &frame->next;
            fiber->tail_due = frame->due;
        }
    }
}

static struct frame *take_head(struct fiber *fiber) {
    struct frame *frame = fiber->head;
    fiber->head = frame->next;
    if (!fiber->head)
        fiber->tail = &fiber->head;
    fiber->packets_under_way--;
    fiber->memory_used -= frame_cost(frame);
    fiber->retries = 0;
    fiber->retry_at = 0;
    return frame;
}

void fiber_sent(struct fiber *fiber, size_t count, uint64_t now, uint64_t sent) {
    for (; count > 0; count--) {
        struct frame *frame = take_head(fiber);
        const uint64_t late_us = now > frame->due ? (now - frame->due + MICROSECOND_NS - 1) / MICROSECOND_NS : 0;
        size_t bin = 0;
        while (bin < LATENESS_BOUNDS && late_us > lateness_bounds_us[bin])
            bin++;
        fiber->stats.lateness[bin]++;
        fiber->stats.packets++;
        fiber->stats.segments += frame->segments;
        fiber->stats.bytes += frame->l2_bytes;
        if (frame->mark)
            recorder_add(fiber->recorder, (struct record){.mark = frame->mark,
                                                          .arrival = frame->arrival,
                                                          .due = frame->due,
                                                          .sent = sent,
                                                          .period = frame->period,
                                                          .segments = frame->segments,
                                                          .fiber = (uint32_t)fiber->number});
        frame_put(frame);
    }
}

void fiber_drop_head(struct fiber *fiber, enum drop_cause cause) {
    struct frame *frame = take_head(fiber);
    fiber->stats.drops[cause] += frame->segments;
    frame_put(frame);
}

void fiber_down(struct fiber *fiber, uint64_t now) {
    fiber_merge(fiber, NEVER);
    while (fiber->head)
        fiber_drop_head(fiber, DROP_DOWN);
    fiber->next_free = 0;
    fiber->last_due = 0;
    fiber->down_at = now;
}

uint64_t fiber_backlog(const struct fiber *fiber, uint64_t now) {
    if (fiber->next_free <= now || fiber->impairment.rate_bps <= 0)
        return 0;
    return (uint64_t)((double)(fiber->next_free - now) * fiber->impairment.rate_bps / 8e9);
}
