#include "control.h"

#include "clock.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint64_t MAX_DELAY_NS = 60 * NANOSECONDS;
static const double MAX_CORRELATION = 1 - 0x1p-53;
static const double MIN_RATE_BPS = 1000, MAX_RATE_BPS = 1e13;

/* ---- answers -------------------------------------------------------------------------------------------------------- */

static bool reserve(struct control *control, size_t more) {
    if (control->out_used + more <= control->out_size)
        return true;
    const size_t size = (control->out_used + more) * 2;
    char *grown = realloc(control->out, size);
    if (!grown)
        return false;
    control->out = grown;
    control->out_size = size;
    return true;
}

static const char out_of_memory[] = "error out of memory\n";

__attribute__((format(printf, 2, 3))) static void answer(struct control *control, const char *format, ...) {
    control->out_failed = control->out_failed || !reserve(control, CONTROL_LINE_BYTES);
    if (control->out_failed)
        return;
    va_list arguments;
    va_start(arguments, format);
    const int written = vsnprintf(control->out + control->out_used, CONTROL_LINE_BYTES, format, arguments);
    va_end(arguments);
    if (written <= 0)
        return;
    if ((size_t)written < CONTROL_LINE_BYTES) {
        control->out_used += (size_t)written;
        return;
    }
    /* Truncated: the line must end nevertheless, or the client would wait for the rest indefinitely. */
    control->out_used += CONTROL_LINE_BYTES - 1;
    if (format[strlen(format) - 1] == '\n')
        control->out[control->out_used - 1] = '\n';
}

/* ---- commands ------------------------------------------------------------------------------------------------------- */

static bool parse_integer(const char *text, uint64_t low, uint64_t high, uint64_t *value) {
    char *end;
    errno = 0;
    const unsigned long long parsed = strtoull(text, &end, 10);
    /* Digits only: strtoull accepts spaces and a sign, and wraps negative numbers. */
    if (errno || end == text || *end || strspn(text, "0123456789") != strlen(text) || parsed < low || parsed > high)
        return false;
    *value = parsed;
    return true;
}

static bool parse_number(const char *text, double low, double high, double *value) {
    char *end;
    const double parsed = strtod(text, &end);
    if (end == text || *end || !isfinite(parsed) || parsed < low || parsed > high)
        return false;
    *value = parsed;
    return true;
}

static bool parse_rate(const char *text, double *value) {
    return parse_number(text, 0, MAX_RATE_BPS, value) && (*value <= 0 || *value >= MIN_RATE_BPS);
}

static bool parse_flag(const char *text, bool *value) {
    *value = text[0] == '1';
    return (text[0] == '0' || text[0] == '1') && text[1] == '\0';
}

static bool parse_distribution(const char *text, enum distribution *value) {
    for (unsigned i = 0; i < DISTRIBUTIONS; i++) {
        *value = (enum distribution)i;
        if (strcmp(text, distribution_names[i]) == 0)
            return true;
    }
    return false;
}

/* Parse one KEY=VALUE of `set`. Returns false and fills in `why` on error. */
static bool set_key(struct impairment *impairment, char *word, char *why, size_t why_bytes) {
    char *value = strchr(word, '=');
    if (!value) {
        snprintf(why, why_bytes, "%s: expected KEY=VALUE", word);
        return false;
    }
    *value++ = '\0';
    const char *expected = NULL;
    if (strcmp(word, "delay_ns") == 0) {
        if (!parse_integer(value, 0, MAX_DELAY_NS, &impairment->delay_ns))
            expected = "an integer from 0 to 60000000000";
    } else if (strcmp(word, "rate_bps") == 0) {
        if (!parse_rate(value, &impairment->rate_bps))
            expected = "0 or a number from 1000 to 1e13";
    } else if (strcmp(word, "queue_bytes") == 0) {
        if (!parse_integer(value, 0, UINT64_MAX, &impairment->queue_bytes))
            expected = "an integer from 0";
    } else if (strcmp(word, "loss") == 0) {
        if (!parse_number(value, 0, 1, &impairment->loss))
            expected = "a number from 0 to 1";
    } else if (strcmp(word, "memory_bytes") == 0) {
        if (!parse_integer(value, 1, UINT64_MAX, &impairment->memory_bytes))
            expected = "an integer from 1";
    } else if (strcmp(word, "overhead_bytes") == 0) {
        if (!parse_integer(value, 0, 256, &impairment->overhead_bytes))
            expected = "an integer from 0 to 256";
    } else if (strcmp(word, "jitter_ns") == 0) {
        if (!parse_integer(value, 0, MAX_DELAY_NS, &impairment->jitter_ns))
            expected = "an integer from 0 to 60000000000";
    } else if (strcmp(word, "reorder_by_ns") == 0) {
        if (!parse_integer(value, 0, MAX_DELAY_NS, &impairment->reorder_by_ns))
            expected = "an integer from 0 to 60000000000";
    } else if (strcmp(word, "largest_bytes") == 0) {
        if (!parse_integer(value, 0, UINT16_MAX, &impairment->largest_bytes))
            expected = "an integer from 0 to 65535";
    } else if (strcmp(word, "p") == 0) {
        if (!parse_number(value, 0, 1, &impairment->p))
            expected = "a number from 0 to 1";
    } else if (strcmp(word, "r") == 0) {
        if (!parse_number(value, 0, 1, &impairment->r))
            expected = "a number from 0 to 1";
    } else if (strcmp(word, "h") == 0) {
        if (!parse_number(value, 0, 1, &impairment->h))
            expected = "a number from 0 to 1";
    } else if (strcmp(word, "k") == 0) {
        if (!parse_number(value, 0, 1, &impairment->k))
            expected = "a number from 0 to 1";
    } else if (strcmp(word, "corrupt") == 0) {
        if (!parse_number(value, 0, 1, &impairment->corrupt))
            expected = "a number from 0 to 1";
    } else if (strcmp(word, "duplicate") == 0) {
        if (!parse_number(value, 0, 1, &impairment->duplicate))
            expected = "a number from 0 to 1";
    } else if (strcmp(word, "reorder") == 0) {
        if (!parse_number(value, 0, 1, &impairment->reorder))
            expected = "a number from 0 to 1";
    } else if (strcmp(word, "correlation") == 0) {
        if (!parse_number(value, 0, MAX_CORRELATION, &impairment->correlation))
            expected = "a number from 0 to below 1";
    } else if (strcmp(word, "jitter_reorders") == 0) {
        if (!parse_flag(value, &impairment->jitter_reorders))
            expected = "0 or 1";
    } else if (strcmp(word, "corrupt_survives") == 0) {
        if (!parse_flag(value, &impairment->corrupt_survives))
            expected = "0 or 1";
    } else if (strcmp(word, "distribution") == 0) {
        if (!parse_distribution(value, &impairment->distribution))
            expected = "uniform, normal, pareto or paretonormal";
    } else {
        snprintf(why, why_bytes, "%s: unknown key (available: delay_ns, rate_bps, queue_bytes, loss, memory_bytes, "
                 "overhead_bytes, jitter_ns, distribution, correlation, jitter_reorders, p, r, h, k, corrupt, "
                 "corrupt_survives, duplicate, reorder, reorder_by_ns, largest_bytes)", word);
        return false;
    }
    if (expected)
        snprintf(why, why_bytes, "%s: expected %s, got %s", word, expected, value);
    return !expected;
}

static void do_set(struct control *control, char **words) {
    const char *name = strtok_r(NULL, " ", words);
    struct fiber *fiber = name ? plant_find(control->plant, name) : NULL;
    if (!fiber) {
        answer(control, "error %s: unknown direction\n", name ? name : "set");
        return;
    }
    struct impairment impairment = fiber->impairment;
    char why[512];
    for (char *word; (word = strtok_r(NULL, " ", words));) {
        if (!set_key(&impairment, word, why, sizeof why)) {
            answer(control, "error %s: %s\n", fiber->name, why);
            return;
        }
    }
    if (impairment.p > 0 && (impairment.r <= 0 || impairment.loss > 0)) {
        answer(control, "error %s: p: expected r above 0 and loss 0, because the chain determines loss\n", fiber->name);
        return;
    }
    plant_set(control->plant, fiber, &impairment);
    answer(control, "ok\n");
}

static void do_get(struct control *control, char **words) {
    const char *name = strtok_r(NULL, " ", words);
    const struct fiber *fiber = name ? plant_find(control->plant, name) : NULL;
    if (!fiber || strtok_r(NULL, " ", words)) {
        answer(control, "error get: expected the NAME of a direction\n");
        return;
    }
    const struct impairment *it = &fiber->impairment;
    answer(control, "values %s delay_ns=%" PRIu64 " rate_bps=%.17g queue_bytes=%" PRIu64 " loss=%.17g memory_bytes=%" PRIu64
           " overhead_bytes=%" PRIu64, fiber->name, it->delay_ns, it->rate_bps, it->queue_bytes, it->loss, it->memory_bytes,
           it->overhead_bytes);
    answer(control, " jitter_ns=%" PRIu64 " distribution=%s correlation=%.17g jitter_reorders=%d", it->jitter_ns,
           distribution_names[it->distribution], it->correlation, it->jitter_reorders);
    answer(control, " p=%.17g r=%.17g h=%.17g k=%.17g corrupt=%.17g corrupt_survives=%d duplicate=%.17g", it->p, it->r, it->h,
           it->k, it->corrupt, it->corrupt_survives, it->duplicate);
    answer(control, " reorder=%.17g reorder_by_ns=%" PRIu64 " largest_bytes=%" PRIu64 "\n", it->reorder, it->reorder_by_ns,
           it->largest_bytes);
    answer(control, "ok\n");
}

static void do_add(struct control *control, char **words) {
    const char *name = strtok_r(NULL, " ", words);
    const char *ingress = strtok_r(NULL, " ", words);
    const char *egress = strtok_r(NULL, " ", words);
    char why[256];
    if (!egress || strtok_r(NULL, " ", words))
        answer(control, "error add: expected NAME INGRESS EGRESS\n");
    else if (control->going)
        answer(control, "error %s: add directions before go\n", name);
    else if (!plant_add(control->plant, name, ingress, egress, why, sizeof why))
        answer(control, "error %s\n", why);
    else
        answer(control, "ok\n");
}

static void do_go(struct control *control) {
    char text[256] = "already started";
    control->going = !control->going && control->go(control->go_context, text, sizeof text);
    answer(control, "%s %s\n", control->going ? "ok" : "error", text);
}

static void do_stats(struct control *control) {
    const uint64_t now = now_ns();
    for (size_t i = 0; i < control->plant->fiber_count; i++) {
        const struct fiber *fiber = control->plant->fibers[i];
        const struct fiber_stats *stats = &fiber->stats;
        answer(control, "direction %s packets=%" PRIu64 " segments=%" PRIu64 " bytes=%" PRIu64, fiber->name, stats->packets,
               stats->segments, stats->bytes);
        for (unsigned cause = 0; cause < DROP_CAUSES; cause++)
            answer(control, " drop_%s=%" PRIu64, drop_cause_names[cause],
                   cause == DROP_RECEIVE ? plant_receive_drops(fiber) : stats->drops[cause]);
        answer(control, " corrupted=%" PRIu64 " duplicated=%" PRIu64 " held_back=%" PRIu64 " emptied=%" PRIu64,
               stats->corrupted, stats->duplicated, stats->held_back, stats->emptied);
        answer(control, " queue_bytes=%" PRIu64 " in_flight_packets=%" PRIu64 " lateness_bounds_us=",
               fiber_backlog(fiber, now), fiber->packets_under_way);
        for (unsigned bin = 0; bin < LATENESS_BOUNDS; bin++)
            answer(control, "%s%" PRIu32, bin ? "," : "", lateness_bounds_us[bin]);
        answer(control, " lateness_counts=");
        for (unsigned bin = 0; bin <= LATENESS_BOUNDS; bin++)
            answer(control, "%s%" PRIu64, bin ? "," : "", stats->lateness[bin]);
        answer(control, "\n");
    }
    answer(control, "ok\n");
}

static void do_flush(struct control *control, char **words) {
    const char *name = strtok_r(NULL, " ", words);
    struct fiber *fiber = name ? plant_find(control->plant, name) : NULL;
    if (!fiber || strtok_r(NULL, " ", words)) {
        answer(control, "error flush: expected the NAME of a direction\n");
        return;
    }
    plant_flush(control->plant, fiber);
    answer(control, "ok\n");
}

static void do_record(struct control *control, char **words) {
    const char *text = strtok_r(NULL, " ", words);
    uint64_t nonce;
    if (!text || !parse_integer(text, 0, (1ull << RECORD_NONCE_BITS) - 1, &nonce) || strtok_r(NULL, " ", words))
        answer(control, "error record: expected NONCE, an integer from 0 to 16777215\n");
    else if (!recorder_start(&control->plant->recorder, nonce))
        answer(control, "error record: out of memory\n");
    else
        answer(control, "ok\n");
}

static void do_recorded(struct control *control) {
    enum { LINES = 500 };
    struct recorder *recorder = &control->plant->recorder;
    for (int i = 0; i < LINES && recorder->read < recorder->count; i++) {
        const struct record *record = &recorder->records[recorder->read++];
        answer(control, "packet %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 "\n",
               control->plant->fibers[record->fiber]->name, record->mark, record->arrival, record->due, record->sent,
               record->period, record->segments);
    }
    if (recorder->read == recorder->count)
        answer(control, "lost %" PRIu64 "\n", recorder->lost);
    answer(control, "ok\n");
}

static void do_line(struct control *control, char *line) {
    char *words = NULL;
    const char *command = strtok_r(line, " ", &words);
    if (!command)
        answer(control, "error empty line\n");
    else if (strcmp(command, "set") == 0)
        do_set(control, &words);
    else if (strcmp(command, "get") == 0)
        do_get(control, &words);
    else if (strcmp(command, "flush") == 0)
        do_flush(control, &words);
    else if (strcmp(command, "stats") == 0)
        do_stats(control);
    else if (strcmp(command, "record") == 0)
        do_record(control, &words);
    else if (strcmp(command, "recorded") == 0)
        do_recorded(control);
    else if (strcmp(command, "ping") == 0)
        answer(control, "ok\n");
    else if (strcmp(command, "add") == 0)
        do_add(control, &words);
    else if (strcmp(command, "go") == 0)
        do_go(control);
    else
        answer(control,
               "error %.64s: unknown command (available: add, set, get, flush, go, record, recorded, stats, ping)\n",
               command);
}

/* ---- socket --------------------------------------------------------------------------------------------------------- */

/* Execute the complete lines in `in` until an answer must be sent. False if there is no complete line. */
static bool next_line(struct control *control) {
    char *end = memchr(control->in, '\n', control->in_used);
    if (!end) {
        if (control->in_used == sizeof control->in) {
            control->in_used = 0;
            control->skipping = true;
        }
        return false;
    }
    *end = '\0';
    /* First, because the command may need the memory that is left. */
    control->out_failed = !reserve(control, CONTROL_LINE_BYTES);
    if (control->out_failed)
        return true;
    if (control->skipping)
        answer(control, "error a line is too long\n");
    else
        do_line(control, control->in);
    control->skipping = false;
    if (control->out_failed) {
        /* Instead of half an answer, or of none, for which the client would wait. Of earlier lines nothing is left to send. */
        memcpy(control->out, out_of_memory, sizeof out_of_memory);
        control->out_used = sizeof out_of_memory - 1;
        control->out_failed = false;
    }
    const size_t used = (size_t)(end - control->in) + 1;
    control->in_used -= used;
    memmove(control->in, control->in + used, control->in_used);
    return true;
}

enum control_state control_work(struct control *control) {
    for (;;) {
        while (control->out_sent < control->out_used) {
            const ssize_t sent = send(control->fd, control->out + control->out_sent, control->out_used - control->out_sent,
                                      MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent < 0)
                return errno == EAGAIN || errno == EINTR ? CONTROL_WRITING : CONTROL_ENDED;
            control->out_sent += (size_t)sent;
        }
        control->out_used = control->out_sent = 0;
        if (next_line(control)) {
            if (control->out_failed)
                return CONTROL_ENDED; /* not even memory for an error: a visible end */
            continue;
        }
        const ssize_t got =
            recv(control->fd, control->in + control->in_used, sizeof control->in - control->in_used, MSG_DONTWAIT);
        if (got == 0)
            return CONTROL_ENDED;
        if (got < 0)
            return errno == EAGAIN || errno == EINTR ? CONTROL_READING : CONTROL_ENDED;
        control->in_used += (size_t)got;
    }
}
