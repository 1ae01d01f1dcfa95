/* `fiberd --stalls`: log when a core of this machine was taken away.
 *
 * One process per core sleeps for STALL_PERIOD_NS at a time under SCHED_FIFO, above fiberd. If it wakes up more than
 * STALL_THRESHOLD_NS late, something kept the core: another guest of the same hardware, an interrupt, or a task of higher
 * priority. It then writes one line to stdout:
 *
 *   CORE DUE_NS LENGTH_NS      when it should have woken up (CLOCK_MONOTONIC), and how late it was
 *
 * The stall may have begun up to STALL_PERIOD_NS before it was due. The first line is "period_ns=... threshold_ns=...". */
#ifndef FIBERD_STALLS_H
#define FIBERD_STALLS_H

#include "clock.h"

#include <sys/types.h>

/* Waking a virtual core takes up to 20 us of it: 2 % of each core at this period. */
#define STALL_PERIOD_NS (1000 * MICROSECOND_NS)
#define STALL_THRESHOLD_NS (200 * MICROSECOND_NS)

/* Run until the parent ends or closes the other end of stdin. Returns the exit status. */
int stalls_watch(pid_t parent);

#endif
