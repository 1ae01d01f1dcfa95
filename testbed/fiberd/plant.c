#include "plant.h"

#include "clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Retry interval and number of retries for an egress whose queue is full, before the packet counts as lost. */
enum { SEND_RETRIES = 20 };
static const uint64_t SEND_RETRY_NS = 50 * MICROSECOND_NS;

/* Maximum bytes per system call: the kernel delivers to the receiver before it returns, so the last packet of a batch
 * leaves later than the first. */
static const size_t SEND_BATCH_BYTES = 64 * 1024;

bool plant_init(struct plant *plant, size_t most_fibers) {
    plant->most_fibers = most_fibers;
    plant->fibers = calloc(most_fibers, sizeof *plant->fibers);
    plant->next = calloc(most_fibers, sizeof *plant->next);
    plant->ports = calloc(2 * most_fibers, sizeof *plant->ports);
    return plant->fibers && plant->next && plant->ports;
}

void plant_free(struct plant *plant) {
    free(plant->fibers);
    free(plant->next);
    free(plant->ports);
    recorder_start(&plant->recorder, 0);
}

static void refresh_next(struct plant *plant, const struct fiber *fiber) {
    plant->next[fiber->number] = fiber_next(fiber);
}

static struct port *find_or_open_port(struct plant *plant, const char *name, char *why, size_t why_bytes) {
    for (size_t i = 0; i < plant->port_count; i++) {
        if (strcmp(plant->ports[i]->name, name) == 0)
            return plant->ports[i];
    }
    struct port *port = plant->port_count < 2 * plant->most_fibers ? malloc(sizeof *port) : NULL;
    const char *what = "allocate memory";
    if (!port || !port_open(port, name, &what)) {
        snprintf(why, why_bytes, "%s: cannot %s: %s", name, what, strerror(errno));
        free(port);
        return NULL;
    }
    plant->ports[plant->port_count++] = port;
    return port;
}

bool plant_add(struct plant *plant, const char *name, const char *ingress, const char *egress, char *why, size_t why_bytes) {
    if (plant->fiber_count == plant->most_fibers) {
        snprintf(why, why_bytes, "%s: more than %zu directions", name, plant->most_fibers);
        return false;
    }
    if (strlen(name) >= sizeof((struct fiber *)0)->name || strlen(ingress) >= IF_NAMESIZE || strlen(egress) >= IF_NAMESIZE) {
        snprintf(why, why_bytes, "a name is too long");
        return false;
    }
    if (plant_find(plant, name) || strcmp(ingress, egress) == 0) {
        snprintf(why, why_bytes, "%s: %s", name, strcmp(ingress, egress) ? "already exists" : "expected two different ends");
        return false;
    }
    struct port *in = find_or_open_port(plant, ingress, why, why_bytes);
    struct port *out = in ? find_or_open_port(plant, egress, why, why_bytes) : NULL;
    if (!out)
        return false;
    if (in->outgoing || out->incoming) {
        snprintf(why, why_bytes, "%s: another direction already %s there", in->outgoing ? ingress : egress,
                 in->outgoing ? "begins" : "ends");
        return false;
    }
    struct fiber *fiber = malloc(sizeof *fiber);
    if (!fiber) {
        snprintf(why, why_bytes, "out of memory");
        return false;
    }
    fiber_init(fiber, name, in, out, plant->seed);
    fiber->recorder = &plant->recorder;
    in->outgoing = out->incoming = fiber;
    fiber->number = plant->fiber_count++;
    plant->fibers[fiber->number] = fiber;
    refresh_next(plant, fiber);
    return true;
}

struct fiber *plant_find(const struct plant *plant, const char *name) {
    for (size_t i = 0; i < plant->fiber_count; i++) {
        if (strcmp(plant->fibers[i]->name, name) == 0)
            return plant->fibers[i];
    }
    return NULL;
}

void plant_set(struct plant *plant, struct fiber *fiber, const struct impairment *impairment) {
    fiber_set(fiber, impairment, now_ns());
    refresh_next(plant, fiber);
    plant->shortest_delay_ns = UINT64_MAX;
    for (size_t i = 0; i < plant->fiber_count; i++) {
        const struct impairment *each = &plant->fibers[i]->impairment;
        /* Jitter may reduce any delay to zero, so there is no lower bound. */
        const uint64_t delay = each->jitter_ns > 0 ? 0 : each->delay_ns;
        plant->shortest_delay_ns = delay < plant->shortest_delay_ns ? delay : plant->shortest_delay_ns;
    }
}

void plant_flush(struct plant *plant, struct fiber *fiber) {
    fiber_down(fiber, now_ns());
    refresh_next(plant, fiber);
}

/* Drop all packets in flight to or from this end. */
static void end_went_down(struct plant *plant, struct port *port) {
    const uint64_t now = now_ns();
    struct fiber *const both[] = {port->outgoing, port->incoming};
    for (size_t i = 0; i < 2; i++) {
        if (both[i]) {
            fiber_down(both[i], now);
            refresh_next(plant, both[i]);
        }
    }
}

int plant_receive(struct plant *plant, size_t index) {
    static struct arrival arrivals[PORT_BATCH];
    struct port *port = plant->ports[index];
    const int received = port_receive(port, arrivals);
    if (received < 0) {
        if (errno == ENETDOWN)
            end_went_down(plant, port);
        return 0;
    }
    for (int i = 0; i < received; i++) {
        if (port->outgoing)
            fiber_receive(port->outgoing, arrivals[i].frame, arrivals[i].time);
        else
            frame_put(arrivals[i].frame);
    }
    if (port->outgoing && received > 0)
        refresh_next(plant, port->outgoing);
    return received;
}

/* Send the due packets of one direction. */
static void send_due(struct fiber *fiber) {
    uint64_t now = now_ns();
    while (fiber_next(fiber) <= now) {
        fiber_merge(fiber, now);
        size_t count = 0, bytes = 0;
        for (const struct frame *f = fiber->head; f && f->due <= now && count < PORT_BATCH; f = f->next) {
            if (count > 0 && bytes + f->length > SEND_BATCH_BYTES)
                break;
            bytes += f->length;
            count++;
        }
        const int sent = port_send(fiber->egress, fiber->head, count);
        if (sent > 0) {
            fiber_sent(fiber, (size_t)sent, now, now_ns());
        } else if (errno == EAGAIN || errno == ENOBUFS || errno == EINTR) {
            if (fiber->retries < SEND_RETRIES) {
                fiber->retries++;
                fiber->retry_at = now + SEND_RETRY_NS;
                return;
            }
            fiber_drop_head(fiber, DROP_TRANSMIT);
        } else if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV) {
            fiber_down(fiber, now);
        } else {
            fiber_drop_head(fiber, DROP_TRANSMIT); /* EINVAL, EMSGSIZE: retrying cannot succeed */
        }
        now = now_ns();
    }
}

uint64_t plant_send_due(struct plant *plant) {
    uint64_t now = now_ns();
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < plant->fiber_count; i++) {
        if (plant->next[i] <= now) {
            send_due(plant->fibers[i]);
            plant->next[i] = fiber_next(plant->fibers[i]);
        }
        if (plant->next[i] < next) {
            next = plant->next[i];
            plant->next_is_retry = plant->fibers[i]->retries > 0;
        }
    }
    return next;
}

uint64_t plant_receive_drops(const struct fiber *fiber) {
    return fiber->stats.drops[DROP_RECEIVE] + port_receive_drops(fiber->ingress);
}

size_t plant_take_down(const struct plant *plant, int socket_fd) {
    size_t refused = 0;
    for (size_t i = 0; i < plant->port_count; i++)
        refused += !port_take_down(plant->ports[i], socket_fd);
    return refused;
}
