#ifndef FUZZ_FRAME_H
#define FUZZ_FRAME_H

#include <stddef.h>

extern size_t fuzz_frames_alive;

/* The frame_get() that this counts down to fails; 0: none does. */
extern unsigned fuzz_frames_until_failure;

#endif
