/* All times inside fiberd are nanoseconds of CLOCK_MONOTONIC. */
#ifndef FIBERD_CLOCK_H
#define FIBERD_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NANOSECONDS 1000000000ull
#define MICROSECOND_NS 1000ull

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * NANOSECONDS + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Both clocks at one instant. Interrupted between the two, they would not belong together: a monotonic time before its wall
 * time makes a packet seem older than it is, and its fiber faster than light. So the monotonic clock is read last (the
 * error is to the late side), and again if the reading took long. */
struct clock_pair {
    uint64_t now, wall;
};

static inline struct clock_pair clock_pair(void) {
    struct clock_pair pair = {0};
    uint64_t before = now_ns();
    for (int attempt = 0; attempt < 4; attempt++) {
        pair.wall = clock_ns(CLOCK_REALTIME);
        pair.now = now_ns();
        if (pair.now - before < MICROSECOND_NS)
            break;
        before = pair.now;
    }
    return pair;
}

#endif
