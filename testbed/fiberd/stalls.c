#include "stalls.h"

#include "libc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Above fiberd and the kernel's interrupt threads (50): their work on a core is not a stall. */
enum { STALL_PRIORITY = 60 };

static bool pin_to(size_t core) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    return sched_setaffinity(0, sizeof only, &only) == 0;
}

__attribute__((noreturn)) static void watch_core(size_t core) {
    uint64_t due = now_ns() + STALL_PERIOD_NS;
    for (;;) {
        const struct timespec until = {.tv_sec = (time_t)(due / NANOSECONDS), .tv_nsec = (long)(due % NANOSECONDS)};
        if (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
            continue;
        const uint64_t now = now_ns();
        if (now - due > STALL_THRESHOLD_NS) {
            /* A write of less than PIPE_BUF is atomic. A full pipe loses the line, because waiting would be a stall. */
            char line[64];
            const int length = snprintf(line, sizeof line, "%zu %" PRIu64 " %" PRIu64 "\n", core, due, now - due);
            if (write(STDOUT_FILENO, line, (size_t)length) < 0 && errno != EAGAIN)
                _exit(1);
        }
        due = now + STALL_PERIOD_NS;
    }
}

int stalls_watch(pid_t parent) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0) {
        fprintf(stderr, "fiberd: sched_getaffinity: %s\n", strerror(errno));
        return 1;
    }
    if (libc_run_realtime(STALL_PRIORITY) != 0) {
        fprintf(stderr, "fiberd: --stalls needs real-time priority: %s\n", strerror(errno));
        return 1;
    }
    const pid_t self = getpid();
    pid_t children[CPU_SETSIZE];
    size_t count = 0;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed))
            continue;
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
            if (getppid() != self || !pin_to(core))
                _exit(1);
            watch_core(core);
        }
        if (child < 0) {
            fprintf(stderr, "fiberd: fork: %s\n", strerror(errno));
            return 1; /* children that were started end with this process */
        }
        children[count++] = child;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        return 1;
    fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK); /* shared with the children */
    printf("period_ns=%" PRIu64 " threshold_ns=%" PRIu64 "\n", (uint64_t)STALL_PERIOD_NS, (uint64_t)STALL_THRESHOLD_NS);
    fflush(stdout);
    struct pollfd control = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&control, 1, -1) < 0 && errno == EINTR) {
    }
    for (size_t i = 0; i < count; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    return 0;
}
