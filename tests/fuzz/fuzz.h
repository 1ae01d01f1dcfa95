/* What the fuzz targets have in common. A target is a function from bytes to nothing that aborts where a property does
 * not hold; libFuzzer drives it (tools/fuzz.sh), or replay.c. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Unlike assert(), in every build; and it says with what. */
#define CHECK(condition, ...)                                                                                              \
    do {                                                                                                                   \
        if (!(condition)) {                                                                                                \
            fprintf(stderr, "%s:%d: does not hold: %s: ", __FILE__, __LINE__, #condition);                                 \
            fprintf(stderr, __VA_ARGS__);                                                                                  \
            fputc('\n', stderr);                                                                                           \
            abort();                                                                                                       \
        }                                                                                                                  \
    } while (0)

/* The input as a stream of little-endian numbers; zeros after its end. */
struct input {
    const uint8_t *at, *end;
};

static inline uint32_t take(struct input *input, unsigned bytes) {
    uint32_t value = 0;
    for (unsigned i = 0; i < bytes && input->at < input->end; i++)
        value |= (uint32_t)*input->at++ << 8 * i;
    return value;
}

static inline uint32_t big16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }
static inline uint32_t big32(const uint8_t *at) { return big16(at) << 16 | big16(at + 2); }

#endif
