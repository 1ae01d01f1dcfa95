#include "frame.h"

#include "libc.h"

#include <stdbool.h>
#include <stdlib.h>

/* Sizes for a single MTU, a slice and a whole super-packet. Recycling avoids page faults while forwarding. */
static const size_t class_bytes[] = {2048, 16 * 1024, sizeof(struct frame) + FRAME_HEADROOM_BYTES + FRAME_MAX_BYTES};
enum { CLASSES = sizeof class_bytes / sizeof class_bytes[0], KEPT_PER_CLASS = 48 };

static struct {
    struct frame *free;
    size_t count;
} pool[CLASSES];

struct frame *frame_get(size_t bytes) {
    unsigned size_class = 0;
    while (size_class < CLASSES && class_bytes[size_class] < sizeof(struct frame) + FRAME_HEADROOM_BYTES + bytes)
        size_class++;
    if (size_class == CLASSES)
        return NULL;
    struct frame *frame = pool[size_class].free;
    if (frame) {
        pool[size_class].free = frame->next;
        pool[size_class].count--;
    } else {
        frame = malloc(class_bytes[size_class]);
        if (!frame)
            return NULL;
        frame->size_class = (uint16_t)size_class;
    }
    frame->next = NULL;
    frame->start = 0;
    return frame;
}

void frame_put(struct frame *frame) {
    frame->next = pool[frame->size_class].free;
    pool[frame->size_class].free = frame;
    pool[frame->size_class].count++;
}

size_t frame_cost(const struct frame *frame) { return class_bytes[frame->size_class]; }

void frame_trim(void) {
    bool freed = false;
    for (unsigned size_class = 0; size_class < CLASSES; size_class++) {
        while (pool[size_class].count > KEPT_PER_CLASS) {
            struct frame *frame = pool[size_class].free;
            pool[size_class].free = frame->next;
            pool[size_class].count--;
            free(frame);
            freed = true;
        }
    }
    if (freed)
        libc_trim();
}
