#include "fuzz_port.h"

#include <errno.h>
#include <string.h>
#include <time.h>

uint64_t fuzz_now;
struct arrival fuzz_arrivals[PORT_BATCH];
int fuzz_arrival_count, fuzz_receive_errno = EAGAIN;
int fuzz_send_most = PORT_BATCH, fuzz_send_errno;
void (*fuzz_sent)(const struct port *port, const struct frame *frame);

/* Everything is compiled with -Dclock_gettime=fuzz_clock_gettime: the fuzzer itself must go on seeing the real time. */
int fuzz_clock_gettime(clockid_t clock, struct timespec *t) {
    (void)clock;
    *t = (struct timespec){.tv_sec = (time_t)(fuzz_now / 1000000000), .tv_nsec = (long)(fuzz_now % 1000000000)};
    return 0;
}

bool port_open(struct port *port, const char *name, const char **what) {
    memset(port, 0, sizeof *port);
    strncpy(port->name, name, sizeof port->name - 1);
    *what = "find the interface";
    errno = ENODEV;
    return strncmp(name, "missing", 7) != 0;
}

bool port_start(struct port *port) { return strncmp(port->name, "unbound", 7) != 0; }

int port_receive(struct port *port, struct arrival arrivals[PORT_BATCH]) {
    (void)port;
    const int count = fuzz_arrival_count;
    fuzz_arrival_count = 0;
    errno = fuzz_receive_errno;
    memcpy(arrivals, fuzz_arrivals, (size_t)count * sizeof arrivals[0]);
    return count > 0 ? count : -1;
}

int port_send(struct port *port, const struct frame *first, size_t count) {
    int taken = 0;
    for (; (size_t)taken < count && taken < fuzz_send_most; taken++, first = first->next)
        fuzz_sent(port, first);
    errno = fuzz_send_errno;
    return taken > 0 ? taken : -1;
}

uint64_t port_receive_drops(struct port *port) { return port->kernel_drops + port->receive_errors; }

bool port_take_down(const struct port *port, int socket_fd) { return port->index >= 0 && socket_fd >= 0; }
