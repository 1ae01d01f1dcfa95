/* Stands in for port.c and for the clock: ends that a target feeds and watches, at times that it chooses. */
#ifndef FUZZ_PORT_H
#define FUZZ_PORT_H

#include "port.h"

/* What CLOCK_MONOTONIC shows, in ns; only the target moves it. */
extern uint64_t fuzz_now;

/* What the next port_receive() gives: so many arrivals, or an errno where there are none. */
extern struct arrival fuzz_arrivals[PORT_BATCH];
extern int fuzz_arrival_count, fuzz_receive_errno;

/* What port_send() does: takes at most so many frames; if that is none, fails with this errno. */
extern int fuzz_send_most, fuzz_send_errno;

/* Called for each frame that a port has taken. */
extern void (*fuzz_sent)(const struct port *port, const struct frame *frame);

#endif
