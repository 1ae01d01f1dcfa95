/* Stands in for frame.c: every frame lies in memory of exactly its size, so that AddressSanitizer sees one byte too far,
 * and those that are never given back are counted. */
#include "frame.h"
#include "fuzz_frame.h"

#include <malloc.h>
#include <stdlib.h>

size_t fuzz_frames_alive;
unsigned fuzz_frames_until_failure;

struct frame *frame_get(size_t bytes) {
    if (bytes > FRAME_MAX_BYTES || (fuzz_frames_until_failure > 0 && --fuzz_frames_until_failure == 0))
        return NULL;
    struct frame *frame = malloc(offsetof(struct frame, data) + bytes);
    frame->next = NULL;
    frame->start = 0;
    fuzz_frames_alive++;
    return frame;
}

void frame_put(struct frame *frame) {
    free(frame);
    fuzz_frames_alive--;
}

size_t frame_cost(const struct frame *frame) { return malloc_usable_size((struct frame *)frame); }

void frame_trim(void) {}
