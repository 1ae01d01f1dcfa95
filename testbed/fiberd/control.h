/* The line protocol on stdin: one command per line; each answer ends with a line that begins with "ok" or "error".
 *
 *   add NAME INGRESS EGRESS    add a direction; only before `go`
 *   set NAME KEY=VALUE...      delay_ns, rate_bps (0: unlimited), queue_bytes (0: unlimited), loss (0..1), memory_bytes,
 *                              overhead_bytes, jitter_ns, distribution, correlation, jitter_reorders (0, 1), p, r, h, k,
 *                              corrupt, corrupt_survives (0, 1), duplicate, reorder, reorder_by_ns, largest_bytes (0: all);
 *                              atomic: after an error, no key is changed; keys not named keep their values
 *   get NAME                   one line "values NAME KEY=VALUE..." with every key of `set` as it is in force, then "ok"
 *   go                         start forwarding; answers "ok scheduling=... priority=... spin_us=..."
 *   flush NAME                 drop all packets in flight in the direction
 *   record NONCE               delete all records; record packets with this nonce from now on (record.h; 0: none)
 *   recorded                   up to 500 unread lines "packet NAME MARK ARRIVAL DUE SENT PERIOD SEGMENTS", in ns of
 *                              CLOCK_MONOTONIC; "lost COUNT" after the last one; then "ok"
 *   stats                      one line "direction NAME KEY=VALUE..." per direction, then "ok"
 *   ping                       "ok"
 *
 * At end of file, fiberd takes every end down and exits. */
#ifndef FIBERD_CONTROL_H
#define FIBERD_CONTROL_H

#include "plant.h"

enum { CONTROL_LINE_BYTES = 2048 };

struct control {
    int fd;
    struct plant *plant;
    /* Called by `go`. Fills in the rest of the "ok" line, or of the "error" line if it returns false. */
    bool (*go)(void *context, char *text, size_t bytes);
    void *go_context;
    bool going;

    char in[CONTROL_LINE_BYTES];
    size_t in_used;
    bool skipping; /* the rest of a line that is too long */
    char *out;
    size_t out_used, out_sent, out_size;
    bool out_failed; /* there was no memory for the answer */
};

enum control_state {
    CONTROL_READING, /* wait until `fd` is readable */
    CONTROL_WRITING, /* the client reads slowly: wait until `fd` is writable, and read nothing meanwhile */
    CONTROL_ENDED
};

/* Read, execute and answer as far as possible without blocking. */
enum control_state control_work(struct control *control);

#endif
