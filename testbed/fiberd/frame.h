/* Memory for packets in flight: a few size classes, recycled, given back when nothing is under way. */
#ifndef FIBERD_FRAME_H
#define FIBERD_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FRAME_HEADROOM_BYTES = 16,        /* in front of a received packet: room for a VLAN tag, and alignment */
    FRAME_MAX_BYTES = 64 * 1024 + 512 /* largest packet: a 64 KiB super-packet with its headers */
};

struct frame {
    struct frame *next;
    uint64_t depart;    /* when its last bit has left the queue and enters the fiber */
    uint64_t due;       /* when it is to leave the fiber */
    uint64_t sequence;  /* in which it came, within its direction */
    int64_t extra_ns;   /* jitter and holding back: due is so much after depart + delay */
    bool held;          /* held back by `reorder` */
    uint32_t length;    /* of the packet, virtio header included */
    uint32_t segments;  /* MTU segments that it stands for */
    uint32_t l2_bytes;  /* packet_l2_bytes() of it */
    uint16_t start;     /* the packet begins at data + start */
    uint16_t size_class;
    uint8_t data[];
};

static inline uint8_t *frame_packet(struct frame *frame) { return frame->data + frame->start; }

/* A frame with room for `bytes` (headroom not included), start = 0; NULL when the machine has no memory. */
struct frame *frame_get(size_t bytes);
void frame_put(struct frame *frame);

/* Memory that a frame occupies: what the cap of a direction counts. */
size_t frame_cost(const struct frame *frame);

/* Give unused memory back to the kernel. Cheap when there is none. */
void frame_trim(void);

#endif
