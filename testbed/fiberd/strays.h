/* Out-of-order packets: a binary heap by due time, then by arrival. */
#ifndef FIBERD_STRAYS_H
#define FIBERD_STRAYS_H

#include "frame.h"

#include <stdbool.h>

struct strays {
    struct frame **frames;
    size_t count, room;
};

/* Whether `a` leaves before `b`: due earlier, or at the same time but received earlier. */
bool strays_before(const struct frame *a, const struct frame *b);

/* Reserve room for one more; false if out of memory. */
bool strays_reserve(struct strays *strays);
void strays_push(struct strays *strays, struct frame *frame); /* after strays_reserve() */
struct frame *strays_pop(struct strays *strays);              /* the first; must not be empty */
void strays_order(struct strays *strays);                     /* restore the order after due times changed */

#endif
