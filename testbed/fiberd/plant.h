/* All fibers of one plant, and the packets between their ends. */
#ifndef FIBERD_PLANT_H
#define FIBERD_PLANT_H

#include "fiber.h"
#include "port.h"

struct plant {
    size_t most_fibers;    /* as the testbed says (--directions): the arrays have room for so many, and their ends */
    struct fiber **fibers; /* in the order they were added */
    uint64_t *next;        /* fiber_next() of each, contiguous because it is scanned in every iteration */
    bool next_is_retry;    /* of the earliest: its egress has refused the packet before */
    size_t fiber_count;
    struct port **ports;
    size_t port_count;
    struct recorder recorder;
    uint64_t seed;
    uint64_t shortest_delay_ns;
};

/* Make room for `most_fibers` directions. Returns false without memory. */
bool plant_init(struct plant *plant, size_t most_fibers);

/* Free the arrays, not what they point to. */
void plant_free(struct plant *plant);

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
