/* Prints what chance.c draws, and sorts by strays.c: "distribution N", "chain P R H K N" or "heap N" as arguments. */
#include "chance.h"
#include "strays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    uint64_t random = 7;
    const long count = atol(argv[argc - 1]);
    if (strcmp(argv[1], "chain") == 0) {
        struct chain chain = {.random = 7};
        chain_set(&chain, atof(argv[2]), atof(argv[3]), atof(argv[4]), atof(argv[5]));
        for (long i = 0; i < count; i++) {
            putchar(chain_passing(&chain) == 0 ? '1' : '0');
            chain_advance(&chain, 1);
        }
    } else if (strcmp(argv[1], "heap") == 0) {
        struct strays strays = {0};
        struct frame *frames = calloc((size_t)count, sizeof *frames);
        for (long i = 0; i < count; i++) {
            frames[i].due = chance_next(&random) % 100;
            frames[i].sequence = (uint64_t)i;
            if (!strays_reserve(&strays))
                return 1;
            strays_push(&strays, &frames[i]);
        }
        while (strays.count > 0) {
            const struct frame *frame = strays_pop(&strays);
            printf("%lu %lu\n", (unsigned long)frame->due, (unsigned long)frame->sequence);
        }
        free(frames);
    } else {
        for (unsigned kind = 0; kind < DISTRIBUTIONS; kind++) {
            if (strcmp(argv[1], distribution_names[kind]) == 0) {
                for (long i = 0; i < count; i++) {
                    const double u = chance_uniform(&random), v = chance_uniform(&random);
                    printf("%.17g\n", distribution_quantile((enum distribution)kind, u, v));
                }
            }
        }
    }
    return 0;
}
