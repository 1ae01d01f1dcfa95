/* fiberd: forwards packets between the ends of emulated fibers, each direction with its delay, rate, queue and loss.
 *
 *   fiberd [--netns PATH] [--seed N] [--priority N] [--parent PID] [--directions N]
 *   fiberd --stalls [--parent PID]      log stalls of the cores (stalls.h)
 *
 * stdin is the control socket (control.h).
 *
 * One thread, one loop: read packets that have arrived, send packets that are due, sleep until the next of either. It ends
 * at EOF on the control socket, on SIGTERM or SIGINT, or with its parent. It first takes every end down, so that gateways
 * see a loss of signal, not a fiber that swallows packets. */
#include "clock.h"
#include "control.h"
#include "libc.h"
#include "plant.h"
#include "stalls.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441 /* the same on every architecture but alpha */
#endif

/* The kernel's wake-up latency; a real-time process can spin for this long before a packet is due. */
static const uint64_t SPIN_NS = 60 * MICROSECOND_NS;

/* In a flood, a wake-up per packet, or spinning, would take a whole core. Then poll only this often: the kernel's timestamps
 * have the time of arrival, so no packet is late, provided that every delay is longer than this interval. */
static const uint64_t FLOOD_PAUSE_NS = 50 * MICROSECOND_NS;
static const uint64_t FLOOD_WINDOW_NS = 1000 * MICROSECOND_NS;
enum { FLOOD_PACKETS = 20, /* a window */ MAX_EVENTS = 64 };

/* How many directions there is room for: a default for tests by hand (the testbed passes its own limit), and a bound. */
enum { DIRECTIONS = 16, MAX_DIRECTIONS = 1 << 20 };

static const uint64_t TRIM_AFTER_NS = NANOSECONDS;

/* A socket that is ready again and again, and gives nothing, would take a whole core at real-time priority. */
enum { FRUITLESS_ROUNDS = 1000 };
static const uint64_t FRUITLESS_PAUSE_NS = 1000 * MICROSECOND_NS;

/* Data of an epoll event: a port's number, or one of these. */
enum { SIGNAL_EVENT = INT32_MAX - 1, CONTROL_EVENT };

struct daemon {
    struct plant plant;
    struct control control;
    int epoll_fd, signal_fd;
    int inet_fd; /* of the plant's namespace, for taking ends down */
    pid_t parent;
    int priority;
    uint64_t spin_ns;
    bool ending, only_stalls;
};

__attribute__((noreturn)) static void die(const char *what) {
    fprintf(stderr, "fiberd: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void watch(struct daemon *daemon, int operation, int fd, uint32_t events, uint32_t about) {
    struct epoll_event event = {.events = events, .data.u32 = about};
    if (epoll_ctl(daemon->epoll_fd, operation, fd, &event) < 0)
        die("epoll_ctl");
}

/* ---- privileges and priority ---------------------------------------------------------------------------------------- */

/* Sockets are open and priorities are set. Only taking interfaces down still needs privileges. */
static bool drop_privileges(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}, {0}};
    if (syscall(SYS_capget, &header, data) < 0)
        return false;
    const uint32_t keep = 1u << CAP_NET_ADMIN;
    data[0].effective = data[0].permitted &= keep;
    data[0].inheritable = 0;
    data[1].effective = data[1].permitted = data[1].inheritable = 0;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(SYS_capset, &header, data) == 0;
}

/* `go`: run at real-time priority if permitted, else at the lowest permitted nice value; report which. */
static bool go(void *context, char *text, size_t bytes) {
    struct daemon *daemon = context;
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
    if (daemon->priority > 0 && libc_run_realtime(daemon->priority) == 0) {
        daemon->spin_ns = SPIN_NS;
        snprintf(text, bytes, "scheduling=SCHED_FIFO priority=%d spin_us=%d", daemon->priority,
                 (int)(SPIN_NS / MICROSECOND_NS));
    } else {
        if (daemon->priority > 0)
            setpriority(PRIO_PROCESS, 0, -20);
        snprintf(text, bytes, "scheduling=SCHED_OTHER priority=%d spin_us=0", getpriority(PRIO_PROCESS, 0));
    }
    for (size_t i = 0; i < daemon->plant.port_count; i++) {
        struct port *port = daemon->plant.ports[i];
        if (!port_start(port)) {
            snprintf(text, bytes, "%s: cannot bind the packet socket: %s", port->name, strerror(errno));
            return false;
        }
        watch(daemon, EPOLL_CTL_ADD, port->fd, EPOLLIN, (uint32_t)i);
    }
    if (!drop_privileges()) {
        snprintf(text, bytes, "cannot drop privileges: %s", strerror(errno));
        return false;
    }
    return true;
}

/* ---- main loop ------------------------------------------------------------------------------------------------------ */

static struct timespec to_timespec(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / NANOSECONDS), .tv_nsec = (long)(ns % NANOSECONDS)};
}

/* Wait at most `timeout_ns` (UINT64_MAX: without limit). */
static int wait_events(int epoll_fd, struct epoll_event *events, uint64_t timeout_ns) {
    static bool old_kernel; /* epoll_pwait2 came with Linux 5.11 */
    const struct timespec timeout = to_timespec(timeout_ns);
    const struct timespec *limit = timeout_ns == UINT64_MAX ? NULL : &timeout;
    if (timeout_ns > 0 && !old_kernel) {
        const long count = syscall(SYS_epoll_pwait2, epoll_fd, events, MAX_EVENTS, limit, NULL, 0);
        if (count >= 0 || errno != ENOSYS)
            return (int)count;
        old_kernel = true;
    }
    if (timeout_ns > 0) {
        struct pollfd any = {.fd = epoll_fd, .events = POLLIN};
        ppoll(&any, 1, limit, NULL);
    }
    return epoll_wait(epoll_fd, events, MAX_EVENTS, 0);
}

static void read_signal(struct daemon *daemon) {
    struct signalfd_siginfo info;
    if (read(daemon->signal_fd, &info, sizeof info) != sizeof info)
        return;
    /* SIGHUP is the parent-death signal. The kernel also sends it when only the thread that started fiberd has ended. */
    if (info.ssi_signo != SIGHUP || getppid() != daemon->parent)
        daemon->ending = true;
}

static void work_control(struct daemon *daemon) {
    switch (control_work(&daemon->control)) {
    case CONTROL_READING:
        watch(daemon, EPOLL_CTL_MOD, daemon->control.fd, EPOLLIN, CONTROL_EVENT);
        break;
    case CONTROL_WRITING:
        watch(daemon, EPOLL_CTL_MOD, daemon->control.fd, EPOLLOUT, CONTROL_EVENT);
        break;
    case CONTROL_ENDED:
        daemon->ending = true;
        break;
    }
}

/* Count `packets` and return whether there is a flood, decided once per window for the previous window. */
static bool is_flood(uint64_t now, int packets) {
    static uint64_t window_end;
    static int seen;
    static bool flood;
    seen += packets;
    if (now >= window_end) {
        flood = seen >= FLOOD_PACKETS && now < window_end + FLOOD_WINDOW_NS;
        seen = 0;
        window_end = now + FLOOD_WINDOW_NS;
    }
    return flood;
}

static void run(struct daemon *daemon) {
    struct epoll_event events[MAX_EVENTS];
    bool trimmed = false;
    int received = 0, fruitless = 0;
    while (!daemon->ending) {
        const uint64_t next = plant_send_due(&daemon->plant);
        const uint64_t now = now_ns();
        /* A packet that could not be sent is late already. Spinning until it may be tried again would only keep the core from
         * those who must make room for it. */
        const uint64_t spin_ns = daemon->plant.next_is_retry ? 0 : daemon->spin_ns;
        uint64_t timeout = UINT64_MAX;
        if (next != UINT64_MAX)
            timeout = next > now + spin_ns ? next - now - spin_ns : 0;
        else if (!trimmed)
            timeout = TRIM_AFTER_NS;
        if (is_flood(now, received) && daemon->plant.shortest_delay_ns >= 3 * FLOOD_PAUSE_NS) {
            const struct timespec pause = to_timespec(FLOOD_PAUSE_NS);
            nanosleep(&pause, NULL);
            timeout = 0;
        }

        const int count = wait_events(daemon->epoll_fd, events, timeout);
        if (count == 0 && next == UINT64_MAX && timeout > 0) {
            frame_trim();
            trimmed = true;
        }
        received = 0;
        bool asked = false;
        for (int i = 0; i < count; i++) {
            const uint32_t about = events[i].data.u32;
            if (about == SIGNAL_EVENT) {
                read_signal(daemon);
                asked = true;
            } else if (about == CONTROL_EVENT) {
                work_control(daemon);
                asked = true;
            } else {
                received += plant_receive(&daemon->plant, about);
                trimmed = false;
            }
        }
        fruitless = count == 0 || received > 0 || asked ? 0 : fruitless + 1;
        if (fruitless >= FRUITLESS_ROUNDS) {
            const struct timespec pause = to_timespec(FRUITLESS_PAUSE_NS);
            nanosleep(&pause, NULL);
        }
    }
}

/* ---- start and end -------------------------------------------------------------------------------------------------- */

static void enter_netns(const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
        die(path);
    close(fd);
}

static uint64_t number_option(const char *name, const char *text, uint64_t high) {
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || value > high) {
        fprintf(stderr, "fiberd: --%s: %s is not an integer from 0 to %llu\n", name, text, (unsigned long long)high);
        exit(2);
    }
    return value;
}

static void read_options(struct daemon *daemon, int argc, char **argv) {
    static const struct option options[] = {{"netns", required_argument, NULL, 'n'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"priority", required_argument, NULL, 'p'},
                                            {"parent", required_argument, NULL, 'P'},
                                            {"directions", required_argument, NULL, 'd'},
                                            {"stalls", no_argument, NULL, 'S'},
                                            {NULL, 0, NULL, 0}};
    const char *netns = NULL;
    size_t directions = DIRECTIONS;
    daemon->parent = getppid();
    opterr = 0; /* the words of C libraries differ */
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'n':
            netns = optarg;
            break;
        case 's':
            daemon->plant.seed = number_option("seed", optarg, UINT64_MAX);
            break;
        case 'p':
            daemon->priority = (int)number_option("priority", optarg, 99);
            break;
        case 'P':
            daemon->parent = (pid_t)number_option("parent", optarg, INT32_MAX);
            break;
        case 'd':
            directions = (size_t)number_option("directions", optarg, MAX_DIRECTIONS);
            break;
        case 'S':
            daemon->only_stalls = true;
            break;
        default:
            fprintf(stderr, "fiberd: %s: unknown option, or one without its value\n", argv[optind - 1]);
            fprintf(stderr, "usage: fiberd [--netns PATH] [--seed N] [--priority N] [--parent PID] [--directions N]\n"
                            "       fiberd --stalls [--parent PID]\n");
            exit(2);
        }
    }
    if (daemon->only_stalls)
        return;
    if (!plant_init(&daemon->plant, directions))
        die("cannot allocate the plant");
    if (netns)
        enter_netns(netns);
}

int main(int argc, char **argv) {
    static struct daemon daemon;
    read_options(&daemon, argc, argv);
    if (daemon.only_stalls)
        return stalls_watch(daemon.parent);

    prctl(PR_SET_PDEATHSIG, SIGHUP, 0, 0, 0);
    if (getppid() != daemon.parent) /* the parent died before the line above */
        return 1;

    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);

    daemon.inet_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    daemon.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    daemon.signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (daemon.inet_fd < 0 || daemon.epoll_fd < 0 || daemon.signal_fd < 0)
        die("cannot open the sockets of the main loop");
    watch(&daemon, EPOLL_CTL_ADD, daemon.signal_fd, EPOLLIN, SIGNAL_EVENT);

    daemon.control = (struct control){.fd = STDIN_FILENO, .plant = &daemon.plant, .go = go, .go_context = &daemon};
    int type;
    socklen_t length = sizeof type;
    if (getsockopt(STDIN_FILENO, SOL_SOCKET, SO_TYPE, &type, &length) < 0 || type != SOCK_STREAM) {
        fprintf(stderr, "fiberd: stdin must be a stream socket (it is started by the testbed, not by hand)\n");
        return 2;
    }
    watch(&daemon, EPOLL_CTL_ADD, STDIN_FILENO, EPOLLIN, CONTROL_EVENT);

    run(&daemon);

    const size_t refused = plant_take_down(&daemon.plant, daemon.inet_fd);
    if (refused > 0) {
        fprintf(stderr, "fiberd: cannot take %zu ends down\n", refused);
        return 1;
    }
    return 0;
}
