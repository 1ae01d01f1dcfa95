/* Packets out of order: a binary heap by due, and by arrival where that is equal. */
#ifndef FIBERD_STRAYS_H
#define FIBERD_STRAYS_H

#include "frame.h"

#include <stdbool.h>

struct strays {
    struct frame **frames;
    size_t count, room;
};

/* Whether `a` leaves before `b`: it is due earlier, or came earlier. */
bool strays_before(const struct frame *a, const struct frame *b);

/* Make room for one more; false when the machine has no memory. */
bool strays_reserve(struct strays *strays);
void strays_push(struct strays *strays, struct frame *frame); /* after strays_reserve() */
struct frame *strays_pop(struct strays *strays);              /* the first; there is one */
void strays_order(struct strays *strays);                     /* after due of some has changed */

#endif
