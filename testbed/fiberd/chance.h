/* Independent, seeded streams of random numbers and the distributions drawn from them. Pure except for the structs' state. */
#ifndef FIBERD_CHANCE_H
#define FIBERD_CHANCE_H

#include <stdbool.h>
#include <stdint.h>

/* Each kind has a stream of its own, so that enabling one does not change the results of another. */
enum chance_kind { CHANCE_LOSS, CHANCE_CORRUPT, CHANCE_DUPLICATE, CHANCE_REORDER, CHANCE_JITTER, CHANCE_BIT, CHANCE_KINDS };

enum distribution { JITTER_UNIFORM, JITTER_NORMAL, JITTER_PARETO, JITTER_PARETONORMAL, DISTRIBUTIONS };
extern const char *const distribution_names[DISTRIBUTIONS];

/* Initial state of the stream of `kind` in the direction `name` (FNV-1a). */
uint64_t chance_seed(const char *name, uint64_t seed, enum chance_kind kind);

uint64_t chance_next(uint64_t *random);
double chance_uniform(uint64_t *random); /* (0, 1) */

/* Gilbert-Elliott (testbed/core/physics/impairment.py), drawn per event and not per segment. With p = 0 the
 * chain never leaves the good state, and each segment is hit independently with probability 1 - k: corruption,
 * duplication and reordering use it that way. */
struct chain {
    double p, r, h, k;
    bool bad;
    uint64_t random;
    uint64_t until_move; /* segments remaining in this state */
    uint64_t passing;    /* segments that certainly pass ... */
    bool hits;           /* ... and whether the one after them is hit */
};

/* Set the probabilities; draw again only those that differ. */
void chain_set(struct chain *chain, double p, double r, double h, double k);

/* Number of next segments that certainly pass; 0: the next one is hit. */
uint64_t chain_passing(struct chain *chain);

/* Advance by `count` <= chain_passing() segments that pass; or, if chain_passing() is 0, by the one that is hit, with
 * `count` = 1. */
void chain_advance(struct chain *chain, uint64_t count);

/* Map uniform numbers in (0, 1) to the distribution, in units of the jitter; only paretonormal uses the second. */
double distribution_quantile(enum distribution distribution, double u, double v);

#endif
