/* The line protocol of control.h over a socket pair, with any bytes: each line gets one answer, and what is refused
 * changes nothing.
 *
 * Input: one byte of mode, then what the parent writes. */
#include "fuzz.h"
#include "fuzz_port.h"
#include "control.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum mode {
    MODE_LINES = 1,  /* line by line, so that each answer can be told from the next; else all at once */
    MODE_NARROW = 2, /* the smallest socket buffer, so that answers have to wait to be read */
};

enum { MOST_FIBERS = 512 };

static struct plant plant;
static struct control control;
static int parent_fd;
static size_t answers; /* their last lines, which begin with ok or error */
static bool at_line_begin, last_was_error;

static void ignore(const struct port *port, const struct frame *frame) {
    (void)port;
    (void)frame;
}

static bool go(void *context, char *text, size_t bytes) {
    (void)context;
    snprintf(text, bytes, "scheduling=SCHED_OTHER priority=0 spin_us=0");
    for (size_t i = 0; i < plant.port_count; i++) {
        if (!port_start(plant.ports[i])) {
            snprintf(text, bytes, "%s: cannot bind the packet socket", plant.ports[i]->name);
            return false;
        }
    }
    return true;
}

/* Read what is there, and count the answers in it. */
static void read_answers(void) {
    char text[4096];
    for (ssize_t got; (got = recv(parent_fd, text, sizeof text, MSG_DONTWAIT)) > 0;) {
        for (const char *at = text; at < text + got; at++) {
            if (at_line_begin) {
                CHECK(*at == 'o' || *at == 'e' || *at == 'd', "an answer begins with 0x%02x", *at);
                answers += *at != 'd'; /* ok, error; "direction ..." is followed by another line */
                last_was_error = *at == 'e';
            }
            at_line_begin = *at == '\n';
        }
    }
}

/* Until fiberd waits for more. */
static void work(void) {
    enum control_state state;
    while ((state = control_work(&control)) == CONTROL_WRITING)
        read_answers();
    CHECK(state == CONTROL_READING, "the parent has not hung up");
    read_answers();
}

static void write_all(const uint8_t *data, size_t size) {
    while (size > 0) {
        const ssize_t sent = send(parent_fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        CHECK(sent > 0 || errno == EAGAIN, "send: %s", strerror(errno));
        if (sent > 0) {
            data += sent;
            size -= (size_t)sent;
        }
        work();
    }
}

static void check_impairments(void) {
    for (size_t i = 0; i < plant.fiber_count; i++) {
        const struct impairment *s = &plant.fibers[i]->impairment;
        CHECK(s->delay_ns <= 60000000000, "%lu ns", s->delay_ns);
        CHECK(s->rate_bps == 0 || (s->rate_bps >= 1e3 && s->rate_bps <= 1e13), "%g b/s", s->rate_bps);
        const double probabilities[] = {s->loss, s->p, s->r, s->h, s->k, s->corrupt, s->duplicate, s->reorder};
        for (size_t j = 0; j < sizeof probabilities / sizeof probabilities[0]; j++)
            CHECK(probabilities[j] >= 0 && probabilities[j] <= 1, "probability %zu: %g", j, probabilities[j]);
        CHECK(s->correlation >= 0 && s->correlation < 1, "%g", s->correlation);
        CHECK(!(s->p > 0) || (s->r > 0 && s->loss <= 0), "a chain without a way back, or with loss besides");
        CHECK(s->jitter_ns <= 60000000000 && s->reorder_by_ns <= 60000000000, "%lu ns", s->jitter_ns);
        CHECK(s->overhead_bytes <= 256, "%lu bytes", s->overhead_bytes);
        CHECK((unsigned)s->distribution < DISTRIBUTIONS, "distribution %d", (int)s->distribution);
        CHECK(s->memory_bytes >= 1, "no memory");
    }
}

/* One line without its newline; it comes in two parts. */
static void write_line(const uint8_t *line, size_t size) {
    static struct impairment before[MOST_FIBERS];
    const size_t fibers = plant.fiber_count;
    for (size_t i = 0; i < fibers; i++)
        before[i] = plant.fibers[i]->impairment;
    const size_t expected = answers + 1;
    write_all(line, size / 2);
    CHECK(answers == expected - 1, "an answer to half a line");
    write_all(line + size / 2, size - size / 2);
    write_all((const uint8_t *)"\n", 1);
    CHECK(answers == expected && at_line_begin, "%zu answers to a line", answers + 1 - expected);
    if (!last_was_error)
        return;
    CHECK(fibers == plant.fiber_count, "an error that added");
    for (size_t i = 0; i < fibers; i++)
        CHECK(memcmp(&before[i], &plant.fibers[i]->impairment, sizeof before[i]) == 0, "an error that changed something");
}

static void begin(uint8_t mode) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair: %s", strerror(errno));
    if (mode & MODE_NARROW) {
        const int bytes = 1;
        setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    memset(&plant, 0, sizeof plant);
    CHECK(plant_init(&plant, MOST_FIBERS), "out of memory");
    parent_fd = pair[0];
    control = (struct control){.fd = pair[1], .plant = &plant, .go = go};
    answers = 0;
    at_line_begin = true;
    fuzz_sent = ignore;
    fuzz_now = 1000000000000;
}

static void end(void) {
    close(parent_fd);
    enum control_state state;
    while ((state = control_work(&control)) == CONTROL_READING)
        ;
    CHECK(state == CONTROL_ENDED, "the parent has hung up");
    close(control.fd);
    free(control.out);
    for (size_t i = 0; i < plant.fiber_count; i++)
        free(plant.fibers[i]);
    for (size_t i = 0; i < plant.port_count; i++)
        free(plant.ports[i]);
    plant_free(&plant);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    const uint8_t mode = (uint8_t)take(&input, 1);
    begin(mode);
    if (mode & MODE_LINES) {
        for (const uint8_t *newline; (newline = memchr(input.at, '\n', (size_t)(input.end - input.at))); input.at = newline + 1)
            write_line(input.at, (size_t)(newline - input.at));
    } else {
        size_t lines = 0;
        for (const uint8_t *at = input.at; at < input.end; at++)
            lines += *at == '\n';
        write_all(input.at, (size_t)(input.end - input.at));
        CHECK(answers == lines && at_line_begin, "%zu answers to %zu lines", answers, lines);
    }
    check_impairments();
    end();
    return 0;
}
