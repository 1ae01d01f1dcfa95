#include "port.h"

#include "clock.h"
#include "libc.h"
#include "packet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

enum { RECEIVE_BUFFER_BYTES = 64 << 20, SEND_BUFFER_BYTES = 16 << 20, CONTROL_BYTES = 128 };

/* A kernel timestamp older than this is attributed to a step of the wall clock. */
static const uint64_t TIMESTAMP_MAX_AGE_NS = NANOSECONDS;

/* ---- set-up --------------------------------------------------------------------------------------------------------- */

static bool set_option(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

/* `force` exceeds net.core.*mem_max, with CAP_NET_ADMIN in the initial user namespace; without it the limit applies. */
static bool set_buffer(int fd, int force, int option, int bytes) {
    return set_option(fd, SOL_SOCKET, force, bytes) || set_option(fd, SOL_SOCKET, option, bytes);
}

/* Packets are received into full-size frames. Small packets are copied out of them, large ones are exchanged for a frame of
 * the same size. So once it is full it stays full: without a frame to receive into, a packet could not even be dropped, and
 * the socket would stay readable. */
static struct frame *staging[PORT_BATCH];

static bool fill_staging(void) {
    for (int i = 0; i < PORT_BATCH; i++) {
        if (!staging[i] && !(staging[i] = frame_get(FRAME_MAX_BYTES)))
            return false;
    }
    return true;
}

bool port_open(struct port *port, const char *name, const char **what) {
    memset(port, 0, sizeof *port);
    strncpy(port->name, name, sizeof port->name - 1);
    *what = "allocate memory";
    if (!fill_staging()) {
        errno = ENOMEM;
        return false;
    }
    *what = "find the interface";
    port->index = (int)if_nametoindex(name);
    if (port->index == 0)
        return false;
    *what = "open a packet socket";
    port->fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); /* protocol 0: receives nothing yet */
    if (port->fd < 0)
        return false;

    struct packet_mreq membership = {.mr_ifindex = port->index, .mr_type = PACKET_MR_PROMISC};
    const struct {
        const char *what;
        bool done;
    } steps[] = {
        {"set PACKET_VNET_HDR", set_option(port->fd, SOL_PACKET, PACKET_VNET_HDR, 1)},
        {"set PACKET_IGNORE_OUTGOING", set_option(port->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)},
        {"set PACKET_QDISC_BYPASS", set_option(port->fd, SOL_PACKET, PACKET_QDISC_BYPASS, 1)},
        {"set PACKET_AUXDATA", set_option(port->fd, SOL_PACKET, PACKET_AUXDATA, 1)},
        {"set SO_TIMESTAMPNS", set_option(port->fd, SOL_SOCKET, SO_TIMESTAMPNS, 1)},
        {"set SO_RCVBUF", set_buffer(port->fd, SO_RCVBUFFORCE, SO_RCVBUF, RECEIVE_BUFFER_BYTES)},
        {"set SO_SNDBUF", set_buffer(port->fd, SO_SNDBUFFORCE, SO_SNDBUF, SEND_BUFFER_BYTES)},
        {"become promiscuous",
         setsockopt(port->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership, sizeof membership) == 0},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        *what = steps[i].what;
        if (!steps[i].done) {
            close(port->fd);
            return false;
        }
    }
    return true;
}

bool port_start(struct port *port) {
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = port->index};
    return bind(port->fd, (struct sockaddr *)&address, sizeof address) == 0;
}

/* ---- receiving ------------------------------------------------------------------------------------------------------ */

struct control_data {
    bool stamped, tagged;
    uint64_t wall_ns;
    uint16_t tpid, tci;
};

static struct control_data read_control(struct msghdr *message) {
    struct control_data found = {0};
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec stamp;
            memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
            found.stamped = true;
            found.wall_ns = (uint64_t)stamp.tv_sec * NANOSECONDS + (uint64_t)stamp.tv_nsec;
        } else if (c->cmsg_level == SOL_PACKET && c->cmsg_type == PACKET_AUXDATA) {
            struct tpacket_auxdata aux;
            memcpy(&aux, CMSG_DATA(c), sizeof aux);
            found.tagged = aux.tp_status & TP_STATUS_VLAN_VALID;
            found.tpid = aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? aux.tp_vlan_tpid : ETH_P_8021Q;
            found.tci = aux.tp_vlan_tci;
        }
    }
    return found;
}

/* Return the received packet as a frame owned by the caller; NULL if out of memory. */
static struct frame *take_out(int slot, uint32_t length) {
    struct frame *full = staging[slot];
    struct frame *own = frame_get(length);
    if (!own)
        return NULL;
    if (own->size_class != full->size_class) {
        memcpy(frame_packet(own), frame_packet(full), length);
        own->length = length;
        return own;
    }
    staging[slot] = own;
    full->length = length;
    return full;
}

int port_receive(struct port *port, struct arrival arrivals[PORT_BATCH]) {
    static struct mmsghdr messages[PORT_BATCH];
    static struct iovec vectors[PORT_BATCH];
    static _Alignas(struct cmsghdr) uint8_t control[PORT_BATCH][CONTROL_BYTES];

    for (int i = 0; i < PORT_BATCH; i++) {
        staging[i]->start = FRAME_HEADROOM_BYTES;
        vectors[i] = (struct iovec){frame_packet(staging[i]), FRAME_MAX_BYTES};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i],
                                              .msg_iovlen = 1,
                                              .msg_control = control[i],
                                              .msg_controllen = CONTROL_BYTES};
    }
    const int received = recvmmsg(port->fd, messages, PORT_BATCH, MSG_DONTWAIT | MSG_TRUNC, NULL);
    if (received < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ENETDOWN)
            port->receive_errors++; /* the kernel dropped a packet that it could not describe */
        return -1;
    }

    /* Kernel timestamps use the wall clock; its offset is read again each time, because it may be adjusted. */
    const struct clock_pair clocks = clock_pair();
    const uint64_t now = clocks.now, wall_now = clocks.wall;
    int kept = 0;
    for (int i = 0; i < received; i++) {
        uint32_t length = messages[i].msg_len;
        if (length > FRAME_MAX_BYTES) {
            port->receive_errors++;
            continue;
        }
        const struct control_data data = read_control(&messages[i].msg_hdr);
        if (data.tagged && length > VNET_HEADER_BYTES + 2 * ETH_ALEN) {
            packet_restore_vlan(frame_packet(staging[i]), length, data.tpid, data.tci);
            staging[i]->start -= VLAN_TAG_BYTES;
            length += VLAN_TAG_BYTES;
        }
        struct frame *frame = take_out(i, length);
        if (!frame) {
            port->receive_errors++;
            continue;
        }
        const uint64_t age = wall_now - data.wall_ns; /* wraps if the clock was set back, and then counts as too old */
        arrivals[kept].frame = frame;
        arrivals[kept].time = data.stamped && age <= TIMESTAMP_MAX_AGE_NS ? now - age : now;
        kept++;
    }
    return kept;
}

uint64_t port_receive_drops(struct port *port) {
    struct tpacket_stats stats;
    socklen_t length = sizeof stats;
    if (getsockopt(port->fd, SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0)
        port->kernel_drops += stats.tp_drops; /* reading sets it to zero */
    return port->kernel_drops + port->receive_errors;
}

/* ---- sending -------------------------------------------------------------------------------------------------------- */

int port_send(struct port *port, const struct frame *first, size_t count) {
    static struct mmsghdr messages[PORT_BATCH];
    static struct iovec vectors[PORT_BATCH];
    for (size_t i = 0; i < count; i++, first = first->next) {
        vectors[i] = (struct iovec){(uint8_t *)first->data + first->start, first->length};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    return libc_send_batch(port->fd, messages, (unsigned)count, MSG_DONTWAIT);
}

bool port_take_down(const struct port *port, int socket_fd) {
    struct ifreq request = {.ifr_ifindex = port->index};
    if (ioctl(socket_fd, SIOCGIFNAME, &request) < 0) /* it may have been renamed */
        return false;
    if (ioctl(socket_fd, SIOCGIFFLAGS, &request) < 0)
        return false;
    request.ifr_flags = (short)(request.ifr_flags & ~IFF_UP);
    return ioctl(socket_fd, SIOCSIFFLAGS, &request) == 0;
}
