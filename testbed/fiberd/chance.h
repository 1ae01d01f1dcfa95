/* Independent, seeded streams of random numbers and the distributions drawn from them. Pure except for the structs' state. */
#ifndef FIBERD_CHANCE_H
#define FIBERD_CHANCE_H

#include <stdbool.h>
#include <stdint.h>

/* Each kind has a stream of its own, so that enabling one does not change the results of another. */
enum chance_kind { CHANCE_LOSS, CHANCE_CORRUPT, CHANCE_DUPLICATE, CHANCE_REORDER, CHANCE_JITTER, CHANCE_BIT, CHANCE_KINDS };

enum distribution { JITTER_UNIFORM, JITTER_NORMAL, JITTER_PARETO, JITTER_PARETONORMAL, DISTRIBUTIONS };
extern const char *const distribution_names[DISTRIBUTIONS];

/* The first state of the stream of `kind` of the direction `name` (FNV-1a). */
uint64_t chance_seed(const char *name, uint64_t seed, enum chance_kind kind);

uint64_t chance_next(uint64_t *random);
double chance_uniform(uint64_t *random); /* (0, 1) */

/* Gilbert-Elliott (testbed/core/physics/impairment.py), drawn per event and not per segment. With p = 0 it never leaves the
 * good state, and each segment is hit by itself with probability 1 - k: that is also corruption, duplication and
 * holding back. */
struct chain {
    double p, r, h, k;
    bool bad;
    uint64_t random;
    uint64_t until_move; /* segments that will still find this state */
    uint64_t passing;    /* segments that pass for certain ... */
    bool hits;           /* ... and whether the one after them is hit */
};

/* New probabilities; draws afresh only where they differ. */
void chain_set(struct chain *chain, double p, double r, double h, double k);

/* How many of the next segments pass for certain; 0: the next one is hit. */
uint64_t chain_passing(struct chain *chain);

/* `count` <= chain_passing() segments have passed; or the one that is hit has, where that is 0: `count` is 1 then. */
void chain_advance(struct chain *chain, uint64_t count);

/* Where uniform numbers in (0, 1) lie in the distribution, in units of the jitter; paretonormal alone uses the second. */
double distribution_quantile(enum distribution distribution, double u, double v);

#endif
