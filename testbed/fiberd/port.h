/* One plant end of a fiber: an AF_PACKET socket on one interface. */
#ifndef FIBERD_PORT_H
#define FIBERD_PORT_H

#include "frame.h"

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PORT_BATCH = 32 };

struct fiber;

struct port {
    char name[IF_NAMESIZE];
    int index; /* of the interface, in the plant's network namespace */
    int fd;
    struct fiber *outgoing;    /* the direction that begins here, or NULL */
    struct fiber *incoming;    /* the direction that ends here, or NULL */
    uint64_t kernel_drops;     /* packets dropped because the socket's receive buffer was full */
    uint64_t receive_errors;   /* packets that the kernel could not deliver */
};

/* Open the socket, without receiving yet. On failure returns false with errno; *what names the failed call. */
bool port_open(struct port *port, const char *name, const char **what);

/* Start receiving. */
bool port_start(struct port *port);

struct arrival {
    struct frame *frame; /* owned by the caller */
    uint64_t time;       /* when the kernel received it */
};

/* Receive up to PORT_BATCH packets. Returns their number, or -1 with errno: EAGAIN if there is none, ENETDOWN if the
 * interface went down since the last call. */
int port_receive(struct port *port, struct arrival arrivals[PORT_BATCH]);

/* Send the first `count` <= PORT_BATCH frames of the list `first`. Returns the number accepted, or -1 with errno. */
int port_send(struct port *port, const struct frame *first, size_t count);

/* Packets lost before reception since port_open(). */
uint64_t port_receive_drops(struct port *port);

/* Clear IFF_UP; `socket_fd` is any socket of the plant's namespace. False with errno. */
bool port_take_down(const struct port *port, int socket_fd);

#endif
