/* One direction of a fiber: loss, rate, queue, delay. A direction never reorders and never merges packets.
 *
 * The path of a packet:  arrival -> loss (per MTU segment) -> queue (tail drop) -> serialisation at the rate (depart)
 *                        -> delay (due) -> sent. */
#ifndef FIBERD_FIBER_H
#define FIBERD_FIBER_H

#include "frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum drop_cause { DROP_LOSS, DROP_QUEUE, DROP_MEMORY, DROP_TRANSMIT, DROP_RECEIVE, DROP_DOWN, DROP_CAUSES };
extern const char *const drop_cause_names[DROP_CAUSES];

enum { LATENESS_BOUNDS = 16 };
extern const uint32_t lateness_bounds_us[LATENESS_BOUNDS];

struct impairment {
    uint64_t delay_ns;
    double rate_bps;       /* bits per second on the wire; 0: unlimited */
    uint64_t queue_bytes;  /* limit of the waiting wire bytes; 0: none */
    double loss;           /* probability per MTU segment */
    uint64_t memory_bytes; /* hard limit of what all packets under way may occupy */
};

struct fiber_stats {
    uint64_t packets, segments, bytes; /* delivered; bytes are L2 */
    uint64_t drops[DROP_CAUSES];       /* MTU segments */
    uint64_t lateness[LATENESS_BOUNDS + 1];
};

struct fiber {
    char name[64];
    size_t number; /* its place in the plant */
    struct port *ingress, *egress;
    struct impairment impairment;
    struct fiber_stats stats;

    struct frame *head, **tail; /* under way, in order of due */
    uint64_t packets_under_way;
    uint64_t memory_used;
    uint64_t next_free;      /* when the transmitter has sent all that waits */
    uint64_t last_due;       /* of the packet that came last: no later one may be due before it */
    uint64_t down_at;        /* what arrived until then was in flight when an end went down */
    uint64_t random_state;
    uint64_t until_loss;     /* segments that pass before the next one is lost */
    uint64_t retry_at;       /* egress was full: not before then */
    unsigned retries;
};

void fiber_init(struct fiber *fiber, const char *name, struct port *ingress, struct port *egress, uint64_t seed);

/* Change the impairment at `now`. Nothing under way is lost or reordered: what is inside the fiber keeps its delay, what
 * still waits takes the new rate and delay. */
void fiber_set(struct fiber *fiber, const struct impairment *impairment, uint64_t now);

/* A packet has arrived. Takes the frame. */
void fiber_receive(struct fiber *fiber, struct frame *frame, uint64_t arrival);

/* When the first packet is to be sent; UINT64_MAX when there is none. */
uint64_t fiber_next(const struct fiber *fiber);

/* The first `count` frames were handed to the egress at `now`; take them off. */
void fiber_sent(struct fiber *fiber, size_t count, uint64_t now);

/* The first frame could not be sent. */
void fiber_drop_head(struct fiber *fiber, enum drop_cause cause);

/* An end went down at `now`: all that is under way is lost. */
void fiber_down(struct fiber *fiber, uint64_t now);

/* Wire bytes that wait for their turn at `now`. */
uint64_t fiber_backlog(const struct fiber *fiber, uint64_t now);

#endif
