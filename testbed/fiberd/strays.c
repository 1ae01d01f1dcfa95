#include "strays.h"

#include <stdlib.h>

bool strays_before(const struct frame *a, const struct frame *b) {
    return a->due != b->due ? a->due < b->due : a->sequence < b->sequence;
}

bool strays_reserve(struct strays *strays) {
    if (strays->count < strays->room)
        return true;
    const size_t room = strays->room ? 2 * strays->room : 64;
    struct frame **frames = realloc(strays->frames, room * sizeof *frames);
    if (!frames)
        return false;
    strays->frames = frames;
    strays->room = room;
    return true;
}

void strays_push(struct strays *strays, struct frame *frame) {
    size_t at = strays->count++;
    for (; at > 0 && strays_before(frame, strays->frames[(at - 1) / 2]); at = (at - 1) / 2)
        strays->frames[at] = strays->frames[(at - 1) / 2];
    strays->frames[at] = frame;
}

static void sift_down(struct strays *strays, size_t at) {
    struct frame *frame = strays->frames[at];
    for (size_t child; (child = 2 * at + 1) < strays->count; at = child) {
        if (child + 1 < strays->count && strays_before(strays->frames[child + 1], strays->frames[child]))
            child++;
        if (!strays_before(strays->frames[child], frame))
            break;
        strays->frames[at] = strays->frames[child];
    }
    strays->frames[at] = frame;
}

struct frame *strays_pop(struct strays *strays) {
    struct frame *first = strays->frames[0];
    strays->frames[0] = strays->frames[--strays->count];
    if (strays->count > 0) {
        sift_down(strays, 0);
    } else { /* return memory that a burst needed */
        free(strays->frames);
        *strays = (struct strays){0};
    }
    return first;
}

void strays_order(struct strays *strays) {
    for (size_t at = strays->count / 2; at-- > 0;)
        sift_down(strays, at);
}
