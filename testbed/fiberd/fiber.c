#include "fiber.h"

#include "clock.h"
#include "packet.h"

#include <math.h>
#include <string.h>

const char *const drop_cause_names[DROP_CAUSES] = {"loss", "queue", "memory", "transmit", "receive", "down"};

const uint32_t lateness_bounds_us[LATENESS_BOUNDS] = {1,    2,    5,     10,    20,    50,    100,    200,
                                                      500,  1000, 2000,  5000,  10000, 20000, 50000,  100000};

/* Below this rate a super-packet is sent in pieces of at most SLICE_NS, or it would hold up what comes behind it. Above,
 * 64 KiB take little longer than that, and slicing would only cost CPU. */
static const double SLICE_BELOW_BPS = 2.5e9;
static const double SLICE_NS = 100e3;

static const uint64_t NEVER = UINT64_MAX;

/* ---- chance --------------------------------------------------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* How many segments pass before the next lost one: geometric, so that a draw is needed per loss, not per segment. */
static void draw_until_loss(struct fiber *fiber) {
    const double p = fiber->impairment.loss;
    if (p <= 0) {
        fiber->until_loss = NEVER;
        return;
    }
    const double uniform = (double)(random_next(&fiber->random_state) >> 11) * 0x1p-53; /* [0, 1) */
    const double passing = floor(log1p(-uniform) / log1p(-p));
    fiber->until_loss = passing < 1e18 ? (uint64_t)passing : NEVER;
}

/* Every direction has a stream of its own, whatever the order in which they were added (FNV-1a of the name). */
static uint64_t seed_of(const char *name, uint64_t seed) {
    uint64_t hash = 0xcbf29ce484222325ull ^ seed;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    return hash;
}

/* ---- set-up and change ---------------------------------------------------------------------------------------------- */

void fiber_init(struct fiber *fiber, const char *name, struct port *ingress, struct port *egress, uint64_t seed) {
    memset(fiber, 0, sizeof *fiber);
    strncpy(fiber->name, name, sizeof fiber->name - 1);
    fiber->ingress = ingress;
    fiber->egress = egress;
    fiber->tail = &fiber->head;
    fiber->random_state = seed_of(name, seed);
    fiber->until_loss = NEVER;
    fiber->impairment.memory_bytes = 256ull << 20;
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Append what enters the fiber at `depart`. */
static void schedule(struct fiber *fiber, struct frame *frame, uint64_t depart) {
    frame->depart = depart;
    frame->due = fiber->last_due = later(depart + fiber->impairment.delay_ns, fiber->last_due);
}

void fiber_set(struct fiber *fiber, const struct impairment *impairment, uint64_t now) {
    const struct impairment old = fiber->impairment;
    fiber->impairment = *impairment;
    if (impairment->loss != old.loss)
        draw_until_loss(fiber);

    /* What waits at the old rate waits in proportion at the new one; an unlimited rate lets it go now. */
    const double stretch = impairment->rate_bps > 0 ? old.rate_bps / impairment->rate_bps : 0;
    uint64_t last_due = 0;
    struct frame *frame = fiber->head;
    for (; frame && frame->depart <= now; frame = frame->next)
        last_due = frame->due;
    if (!frame)
        return; /* nothing waits; last_due and next_free are in order */
    fiber->last_due = last_due;
    for (; frame; frame = frame->next)
        schedule(fiber, frame, now + (uint64_t)((double)(frame->depart - now) * stretch));
    if (fiber->next_free > now)
        fiber->next_free = now + (uint64_t)((double)(fiber->next_free - now) * stretch);
}

/* ---- the way in ----------------------------------------------------------------------------------------------------- */

static void enqueue(struct fiber *fiber, struct frame *frame, uint32_t wire_bytes, uint64_t arrival) {
    uint64_t depart = arrival;
    if (fiber->impairment.rate_bps > 0) {
        depart = later(arrival, fiber->next_free) + (uint64_t)(wire_bytes * 8e9 / fiber->impairment.rate_bps);
        fiber->next_free = depart;
    }
    schedule(fiber, frame, depart);
    frame->next = NULL;
    *fiber->tail = frame;
    fiber->tail = &frame->next;
    fiber->packets_under_way++;
    fiber->memory_used += frame_cost(frame);
}

/* How many of the segments [first, last) the queue has room for. */
static uint32_t queue_room(const struct fiber *fiber, const struct packet_shape *shape, uint32_t first, uint32_t last,
                           uint64_t arrival) {
    const uint64_t limit = fiber->impairment.queue_bytes;
    if (limit == 0 || fiber->impairment.rate_bps <= 0)
        return last - first;
    const uint64_t backlog = fiber_backlog(fiber, arrival);
    const uint64_t room = limit > backlog ? limit - backlog : 0;
    if (packet_wire_bytes(shape, first, last) <= room)
        return last - first;
    return last - first == 1 ? 0 : (uint32_t)(room / packet_wire_bytes(shape, 0, 1)); /* the first is no shorter than others */
}

/* Segments [first, last) of `whole` have survived: queue them, in pieces if need be. True when `whole` itself was taken. */
static bool admit(struct fiber *fiber, struct frame *whole, const struct packet_shape *shape, uint32_t first, uint32_t last,
                  uint64_t arrival) {
    uint32_t piece = last - first;
    const double rate = fiber->impairment.rate_bps;
    if (piece > 1 && rate > 0 && rate < SLICE_BELOW_BPS) {
        const double segment_ns = packet_wire_bytes(shape, 0, 1) * 8e9 / rate;
        const uint32_t fitting = segment_ns < SLICE_NS ? (uint32_t)(SLICE_NS / segment_ns) : 1;
        piece = piece < fitting ? piece : fitting;
    }
    while (first < last) {
        uint32_t end = last - first < piece ? last : first + piece;
        const uint32_t room = queue_room(fiber, shape, first, end, arrival);
        const bool full = room < end - first;
        if (full)
            end = first + room;
        if (end > first) {
            const bool is_whole = first == 0 && end == shape->segments;
            const size_t length = is_whole ? whole->length : packet_slice_length(shape, first, end);
            struct frame *frame = is_whole ? whole : frame_get(length);
            if (!frame || fiber->memory_used + frame_cost(frame) > fiber->impairment.memory_bytes) {
                fiber->stats.drops[DROP_MEMORY] += last - first;
                if (frame && frame != whole)
                    frame_put(frame);
                return false;
            }
            if (frame != whole) {
                packet_slice(frame_packet(whole), shape, first, end, frame_packet(frame));
                frame->length = (uint32_t)length;
            }
            frame->segments = end - first;
            frame->l2_bytes = packet_l2_bytes(shape, first, end);
            enqueue(fiber, frame, packet_wire_bytes(shape, first, end), arrival);
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
    bool taken = false;
    uint32_t first = 0;
    while (first < shape.segments) {
        const uint32_t left = shape.segments - first;
        const uint32_t passing = fiber->until_loss < left ? (uint32_t)fiber->until_loss : left;
        if (passing > 0)
            taken = admit(fiber, frame, &shape, first, first + passing, arrival);
        if (fiber->until_loss != NEVER)
            fiber->until_loss -= passing;
        first += passing;
        if (first < shape.segments) {
            fiber->stats.drops[DROP_LOSS]++;
            first++;
            draw_until_loss(fiber);
        }
    }
    if (!taken)
        frame_put(frame);
}

/* ---- the way out ---------------------------------------------------------------------------------------------------- */

uint64_t fiber_next(const struct fiber *fiber) {
    return fiber->head ? later(fiber->head->due, fiber->retry_at) : NEVER;
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

void fiber_sent(struct fiber *fiber, size_t count, uint64_t now) {
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
        frame_put(frame);
    }
}

void fiber_drop_head(struct fiber *fiber, enum drop_cause cause) {
    struct frame *frame = take_head(fiber);
    fiber->stats.drops[cause] += frame->segments;
    frame_put(frame);
}

void fiber_down(struct fiber *fiber, uint64_t now) {
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
