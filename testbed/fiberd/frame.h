/* Memory for packets in flight: a few size classes, recycled, and returned to the kernel when no packet is in flight. */
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
    uint64_t depart;    /* when its last bit leaves the queue and enters the fiber */
    uint64_t due;       /* when it leaves the fiber */
    uint64_t sequence;  /* order of arrival within its direction */
    uint64_t arrival;   /* when the kernel received it */
    uint64_t mark;      /* of a packet to record; else 0 */
    uint64_t period;    /* busy period of the queue (record.h) */
    int64_t extra_ns;   /* jitter and reordering: due is this much after depart + delay */
    bool held;          /* delayed by `reorder` */
    uint32_t length;    /* of the packet, virtio header included */
    uint32_t segments;  /* MTU segments that it represents */
    uint32_t l2_bytes;  /* packet_l2_bytes() of it */
    uint16_t start;     /* the packet begins at data + start */
    uint16_t size_class;
    uint8_t data[];
};

static inline uint8_t *frame_packet(struct frame *frame) { return frame->data + frame->start; }

/* Return a frame with room for `bytes` (headroom not included), start = 0; NULL if out of memory. */
struct frame *frame_get(size_t bytes);
void frame_put(struct frame *frame);

/* Memory occupied by a frame, counted against the limit of its direction. */
size_t frame_cost(const struct frame *frame);

/* Return unused memory to the kernel. Cheap if there is none. */
void frame_trim(void);

#endif
