/* A record of measuring packets: when each arrived, was due, and had been sent.
 *
 * A measuring packet is IPv4, UDP or ICMP echo, and its payload begins with a mark of 64 bits in host byte order: a
 * nonce of 24 bits, then 40 bits that identify the packet. Only packets with the nonce of `record` are recorded. */
#ifndef FIBERD_RECORD_H
#define FIBERD_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RECORD_MARK_BITS = 40, RECORD_NONCE_BITS = 24, RECORD_ROOM = 1 << 17 };

struct record {
    uint64_t mark;    /* without the nonce; of the first segment of a super-packet */
    uint64_t arrival; /* when the kernel received it */
    uint64_t due;
    uint64_t sent;    /* when the call that sent it had returned: a stall within the call counts */
    uint64_t period;  /* busy period of the queue: how many packets of the direction had found it empty */
    uint32_t segments;
    uint32_t fiber;   /* number of its direction */
};

struct recorder {
    uint64_t nonce; /* 0: nothing is recorded */
    struct record *records;
    size_t count, read;
    uint64_t lost; /* packets not recorded because the record was full */
};

/* Delete all records; record packets with this nonce from now on (0: none). Returns false without memory. */
bool recorder_start(struct recorder *recorder, uint64_t nonce);

/* Return the mark of a packet to record, with the nonce; 0 for other packets. `packet` begins with a virtio header. */
uint64_t recorder_mark(const struct recorder *recorder, const uint8_t *packet, size_t length);

/* Add a record, or count it as lost if the record is full. */
void recorder_add(struct recorder *recorder, struct record record);

#endif
