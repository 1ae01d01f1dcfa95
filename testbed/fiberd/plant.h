/* All fibers of one plant, and the packets between their ends. */
#ifndef FIBERD_PLANT_H
#define FIBERD_PLANT_H

#include "fiber.h"
#include "port.h"

enum { MAX_FIBERS = 512, MAX_PORTS = 2 * MAX_FIBERS };

struct plant {
    struct fiber *fibers[MAX_FIBERS]; /* in the order they were added */
    uint64_t next[MAX_FIBERS];        /* fiber_next() of each, contiguous because it is scanned in every iteration */
    bool next_is_retry;               /* of the earliest: its egress has refused the packet before */
    size_t fiber_count;
    struct port *ports[MAX_PORTS];
    size_t port_count;
    uint64_t seed;
    uint64_t shortest_delay_ns;
};

/* Add a direction from one interface to another. Returns false and fills in `why` (of `why_bytes`) on error. */
bool plant_add(struct plant *plant, const char *name, const char *ingress, const char *egress, char *why, size_t why_bytes);

struct fiber *plant_find(const struct plant *plant, const char *name);

void plant_set(struct plant *plant, struct fiber *fiber, const struct impairment *impairment);

/* Drop all packets in flight, counted as if an end had gone down; later packets are not affected. */
void plant_flush(struct plant *plant, struct fiber *fiber);

/* Read packets that arrived at port number `index`. Returns their number. */
int plant_receive(struct plant *plant, size_t index);

/* Send all due packets. Returns when the next one is due (UINT64_MAX: none in flight). */
uint64_t plant_send_due(struct plant *plant);

/* Packets lost at the ingress, before they reached the direction. */
uint64_t plant_receive_drops(const struct fiber *fiber);

/* Take both ends of every fiber down. Returns the number of failures. */
size_t plant_take_down(const struct plant *plant, int socket_fd);

#endif
