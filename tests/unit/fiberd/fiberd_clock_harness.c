/* clock_pair() on a clock that is interrupted: prints, per trial, by how many ns the pair is wrong (positive: to the late
 * side) and whether it was interrupted each time. clock_gettime is replaced by the macro of the compiler's command line. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t true_ns = 1000000000;
static unsigned interruptions; /* bit i: 20 us pass before the i-th reading */
static const uint64_t OFFSET = 1700000000000000000;

int fake_clock(clockid_t clock, struct timespec *t) {
    true_ns += interruptions & 1 ? 20000 : 30;
    interruptions >>= 1;
    const uint64_t shown = true_ns + (clock == CLOCK_REALTIME ? OFFSET : 0);
    t->tv_sec = (time_t)(shown / 1000000000);
    t->tv_nsec = (long)(shown % 1000000000);
    return 0;
}

#include "clock.h"

int main(void) {
    for (unsigned pattern = 0; pattern < 1u << 9; pattern++) {
        interruptions = pattern;
        const struct clock_pair pair = clock_pair();
        printf("%u %lld\n", pattern, (long long)(pair.now - (pair.wall - OFFSET)));
    }
    return 0;
}
