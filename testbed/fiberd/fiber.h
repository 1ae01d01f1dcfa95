/* One direction of a fiber. It never merges packets, and keeps their order unless reordering is requested.
 *
 * The path of a packet:  arrival -> chance (per MTU segment) -> queue (tail drop) -> serialisation at the rate (depart)
 *                        -> delay and jitter (due) -> sent. */
#ifndef FIBERD_FIBER_H
#define FIBERD_FIBER_H

#include "chance.h"
#include "frame.h"
#include "record.h"
#include "strays.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum drop_cause {
    DROP_LOSS, DROP_CORRUPT, DROP_SIZE, DROP_QUEUE, DROP_MEMORY, DROP_TRANSMIT, DROP_RECEIVE, DROP_DOWN, DROP_CAUSES
};
extern const char *const drop_cause_names[DROP_CAUSES];

enum { LATENESS_BOUNDS = 16 };
extern const uint32_t lateness_bounds_us[LATENESS_BOUNDS];

struct impairment {
    uint64_t delay_ns;
    double rate_bps;       /* bits per second on the wire; 0: unlimited */
    uint64_t queue_bytes;  /* limit of the waiting wire bytes; 0: none */
    double loss;           /* probability per MTU segment; 0 where there is a chain */
    uint64_t memory_bytes; /* hard limit of memory for packets in flight */
    uint64_t overhead_bytes; /* of a segment on the wire beyond its frame */
    uint64_t jitter_ns;
    enum distribution distribution;
    double correlation; /* of the jitter, in the uniform domain */
    bool jitter_reorders;
    double p, r, h, k; /* of the chain; p = 0: no chain */
    double corrupt;
    bool corrupt_survives;
    double duplicate, reorder;
    uint64_t reorder_by_ns;
    uint64_t largest_bytes; /* largest IP packet that passes; 0: all pass */
};

struct fiber_stats {
    uint64_t packets, segments, bytes; /* delivered; bytes are L2 */
    uint64_t drops[DROP_CAUSES];       /* MTU segments */
    uint64_t corrupted, duplicated, held_back; /* MTU segments */
    uint64_t emptied;                  /* packets that found the queue of a limited rate empty */
    uint64_t lateness[LATENESS_BOUNDS + 1];
};

struct fiber {
    char name[96]; /* link:site, of up to 40 characters each */
    size_t number; /* index in the plant */
    struct port *ingress, *egress;
    struct recorder *recorder; /* of the plant; NULL: none */
    struct impairment impairment;
    struct fiber_stats stats;

    struct frame *head, **tail; /* in flight, in order of due */
    uint64_t tail_due;          /* of the last frame in that list */
    struct strays strays;       /* in flight, out of order */
    uint64_t sequence;
    uint64_t packets_under_way;
    uint64_t memory_used;
    uint64_t next_free;      /* when the transmitter has sent the whole queue */
    uint64_t last_due;       /* of the last packet received: no later packet may be due before it */
    uint64_t down_at;        /* packets that arrived until then were in flight when an end went down */
    struct chain loss, corrupt, duplicate, reorder;
    uint64_t jitter_random, bit_random;
    double last_uniform[2];  /* state of correlated jitter; the second is paretonormal's normal part */
    uint64_t retry_at;       /* egress was full: do not retry before then */
    unsigned retries;
};

void fiber_init(struct fiber *fiber, const char *name, struct port *ingress, struct port *egress, uint64_t seed);

/* Change the impairment at `now`. No packet in flight is lost or reordered: packets inside the fiber keep their delay,
 * queued ones get the new rate and delay. */
void fiber_set(struct fiber *fiber, const struct impairment *impairment, uint64_t now);

/* Process a packet that has arrived. Takes ownership of the frame. */
void fiber_receive(struct fiber *fiber, struct frame *frame, uint64_t arrival);

/* Time at which the first packet is due; UINT64_MAX if there is none. */
uint64_t fiber_next(const struct fiber *fiber);

/* Merge out-of-order packets that are due at `now` into the list `head`, which then has all due packets. */
void fiber_merge(struct fiber *fiber, uint64_t now);

/* Remove the first `count` frames, which were passed to the egress at `now` by a call that returned at `sent`. */
void fiber_sent(struct fiber *fiber, size_t count, uint64_t now, uint64_t sent);

/* Drop the first frame, which could not be sent. */
void fiber_drop_head(struct fiber *fiber, enum drop_cause cause);

/* Drop all packets in flight, because an end went down at `now`. */
void fiber_down(struct fiber *fiber, uint64_t now);

/* Wire bytes in the queue at `now`. */
uint64_t fiber_backlog(const struct fiber *fiber, uint64_t now);

#endif
