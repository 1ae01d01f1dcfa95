/* `fiberd --stalls`: log stalls of the cores of this machine.
 *
 * One process per core sleeps for STALL_PERIOD_NS at a time under SCHED_FIFO, above fiberd. If it wakes up more than
 * STALL_THRESHOLD_NS late, the core was in use: by another guest of the same hardware, an interrupt, or a task of higher
 * priority. The process then writes one line to stdout:
 *
 *   CORE DUE_NS LENGTH_NS      when it was due to wake up (CLOCK_MONOTONIC), and how late it was
 *
 * The stall may have begun up to STALL_PERIOD_NS before DUE_NS. The first line is "period_ns=... threshold_ns=...". */
#ifndef FIBERD_STALLS_H
#define FIBERD_STALLS_H

#include "clock.h"

#include <sys/types.h>

/* A wake-up takes up to 20 us of a virtual core: 2 % of each core at this period. */
#define STALL_PERIOD_NS (1000 * MICROSECOND_NS)
#define STALL_THRESHOLD_NS (200 * MICROSECOND_NS)

/* Run until the parent ends or closes the other end of stdin. Returns the exit status. */
int stalls_watch(pid_t parent);

#endif
