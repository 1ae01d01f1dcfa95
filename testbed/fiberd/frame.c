#include "frame.h"

#include "libc.h"

#include <stdbool.h>
#include <stdlib.h>

/* Sizes for a single MTU, a slice and a whole super-packet. Recycling avoids page faults while forwarding. */
static const size_t class_bytes[] = {2048, 16 * 1024, sizeof(struct frame) + FRAME_HEADROOM_BYTES + FRAME_MAX_BYTES};
enum { CLASSES = sizeof class_bytes / sizeof class_bytes[0], KEPT_PER_CLASS = 48, PAGE_BYTES = 4096 };

static struct {
    struct frame *free;
    size_t count;
} pool[CLASSES];

static struct frame *allocate(unsigned size_class) {
    struct frame *frame = malloc(class_bytes[size_class]);
    if (frame)
        frame->size_class = (uint16_t)size_class;
    return frame;
}

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
        frame = allocate(size_class);
        if (!frame)
            return NULL;
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

/* Free every unused frame of a class that had more than are kept, then allocate those anew: side by side, so that an allocator
 * that returns whole groups of blocks (musl's) has none with a single block in use. Each page is written, because the first
 * packets of the next burst must not wait for page faults. */
void frame_trim(void) {
    bool trimmed[CLASSES] = {false}, any = false;
    for (unsigned size_class = 0; size_class < CLASSES; size_class++) {
        trimmed[size_class] = pool[size_class].count > KEPT_PER_CLASS;
        any |= trimmed[size_class];
        while (trimmed[size_class] && pool[size_class].free) {
            struct frame *frame = pool[size_class].free;
            pool[size_class].free = frame->next;
            libc_free(frame, class_bytes[size_class]);
        }
        pool[size_class].count = trimmed[size_class] ? 0 : pool[size_class].count;
    }
    if (any)
        libc_trim();
    for (unsigned size_class = 0; size_class < CLASSES; size_class++) {
        struct frame *frame;
        for (unsigned i = 0; trimmed[size_class] && i < KEPT_PER_CLASS && (frame = allocate(size_class)); i++) {
            for (size_t at = 0; at < class_bytes[size_class] - sizeof *frame; at += PAGE_BYTES)
                ((volatile uint8_t *)frame->data)[at] = 0;
            frame_put(frame);
        }
    }
}
