#include "chance.h"

#include <math.h>

const char *const distribution_names[DISTRIBUTIONS] = {"uniform", "normal", "pareto", "paretonormal"};

static const uint64_t NEVER = UINT64_MAX;
static const double CUT = 4; /* as the tables of iproute2 for netem are */

uint64_t chance_seed(const char *name, uint64_t seed, enum chance_kind kind) {
    uint64_t hash = 0xcbf29ce484222325ull ^ seed;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    /* Passed through the generator: otherwise the streams would be one sequence, shifted by a few steps. */
    hash ^= (uint64_t)kind * 0xd1342543de82ef95ull;
    return chance_next(&hash);
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
uint64_t chance_next(uint64_t *random) {
    uint64_t z = *random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

double chance_uniform(uint64_t *random) { return ((double)(chance_next(random) >> 12) + 0.5) * 0x1p-52; }

/* Number of failures before the first success, which has probability `p` per trial. */
static uint64_t geometric(uint64_t *random, double p) {
    if (p <= 0)
        return NEVER;
    if (p >= 1)
        return 0;
    const double failures = floor(log(chance_uniform(random)) / log1p(-p));
    return failures < 1e18 ? (uint64_t)failures : NEVER;
}

/* Each stay in a state covers at least one segment: the last one in it leaves it. */
static void enter(struct chain *chain, bool bad) {
    chain->bad = bad;
    const uint64_t others = chain->p > 0 ? geometric(&chain->random, bad ? chain->r : chain->p) : NEVER;
    chain->until_move = others == NEVER ? NEVER : others + 1;
}

static void draw(struct chain *chain) {
    if (chain->until_move == 0)
        enter(chain, !chain->bad);
    const uint64_t passing = geometric(&chain->random, 1 - (chain->bad ? chain->h : chain->k));
    chain->hits = passing < chain->until_move;
    chain->passing = chain->hits ? passing : chain->until_move;
}

void chain_set(struct chain *chain, double p, double r, double h, double k) {
    const bool same = !(chain->p < p || chain->p > p || chain->r < r || chain->r > r || chain->h < h || chain->h > h ||
                        chain->k < k || chain->k > k);
    if (same && (chain->passing > 0 || chain->hits))
        return;
    chain->p = p;
    chain->r = r;
    chain->h = h;
    chain->k = k;
    enter(chain, p > 0 && chain->bad);
    draw(chain);
}

uint64_t chain_passing(struct chain *chain) {
    if (chain->passing == 0 && !chain->hits)
        draw(chain);
    return chain->passing;
}

void chain_advance(struct chain *chain, uint64_t count) {
    if (chain->until_move != NEVER)
        chain->until_move -= count;
    if (chain->passing == 0)
        draw(chain); /* the one that was hit */
    else if (chain->passing != NEVER)
        chain->passing -= count;
}

/* Inverse of the normal distribution, by bisection of erfc, which is accurate enough for 52 bits of u. */
static double normal_quantile(double u) {
    double low = -CUT, high = CUT;
    for (int i = 0; i < 40; i++) {
        const double middle = (low + high) / 2;
        if (0.5 * erfc(-middle * M_SQRT1_2) < u)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

/* Shape 3, scaled to mean 0 (it is 3/2) and standard deviation 1 (it is sqrt(3)/2). */
static double pareto_quantile(double u) { return fmin((1 / cbrt(1 - u) - 1.5) / (sqrt(3) / 2), CUT); }

double distribution_quantile(enum distribution distribution, double u, double v) {
    switch (distribution) {
    case JITTER_UNIFORM:
        return 2 * u - 1;
    case JITTER_PARETO:
        return pareto_quantile(u);
    case JITTER_PARETONORMAL:
        return 0.25 * normal_quantile(v) + 0.75 * pareto_quantile(u);
    default:
        return normal_quantile(u);
    }
}
