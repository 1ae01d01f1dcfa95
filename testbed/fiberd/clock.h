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

#endif
