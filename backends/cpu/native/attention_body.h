/* Attention of a block of queries against tiles, for one instruction set: numerics.attention.
 *
 * Products are int16 pairs summed to int32. A query's q is split into planes q = 256·hi + lo, and
 * so are the integer weights w, so that sums over 512 dimensions or 64 keys fit int32; the two
 * sums are rounded once, together. Keys lie along the vector's lanes for q·k, value dimensions
 * for w·v. Invisible keys get no weight by selection, whatever their memory holds. */
#ifndef ATTENTION_BODY_H
#define ATTENTION_BODY_H

#include "attention.h"
#include "pair_sums.h"
#include "scalar.h"

#define VECTORS (TILE / CQ_LANES)
#if CQ_LANES == 16
#define ABREAST 4 /* vectors of keys or value dimensions in registers at once */
#else
#define ABREAST 2
#endif
#define WIDEST 256 /* pairs of dimensions whose products of a plane fit int32 */
#define LOG2_E 1.44269504f
#define UNROLL _Pragma("GCC unroll 8")

/* RN(256·high + low), one rounding: A·2^16 + M, both exact. */
INLINE vf round_planes(vi high, vi low)
{
    vi a = (high + (low >> 8)) >> 8;
    vi m = (vi)(((vu)high << 8) + (vu)low) & i_all(0xffff);
    return f_from_int(a) * f_all(65536.0f) + f_from_int(m);
}

INLINE float power(int32_t n, int32_t lowest) { return n < lowest ? 0.0f : exp2_int(n); }

INLINE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* Keys of a run of tiles that queries see, where they are chosen: bits by set and tile. */
typedef struct {
    uint64_t keys[WIDE_BLOCK][RUN_TILES];
    int32_t set[WIDE_BLOCK]; /* of each query, among those of the task */
    int32_t run;        /* -1: none yet */
} sight;

/* What a block of queries is computed with. */
typedef struct {
    int32_t pairs, value_width; /* padded */
    int16_t *high, *low;        /* planes of the queries, [queries][2·pairs] */
    int32_t exponent[WIDE_BLOCK], position[WIDE_BLOCK], first[WIDE_BLOCK]; /* last and first key they see */
    int32_t own[WIDE_BLOCK], start; /* positions of the queries, and of the tile's first key */
    float steep[WIDE_BLOCK];
    int32_t key_exponent[TILE], value_exponent[TILE];
    const int16_t *keys, *values; /* of the tile at hand */
    ptrdiff_t ahead; /* bytes from there to the next tile */
    sight *sight;    /* where keys are chosen */
    struct few_keys *few;
    struct planes *planes; /* where there are tile registers */
} block;

/* What the softmax of a tile gives one query, besides a partial's head. */
typedef struct {
    int16_t high[TILE], low[TILE]; /* planes of w */
    float keep, take;              /* factors of the run's numerator and of the tile's */
} tile_weights;

/* Memory asked for what lies `ahead` bytes after p, into the second-level cache: asked into the
 * first, lines wait for the few places that loads need as well. */
#define ASK(p, ahead) __builtin_prefetch((const uint8_t *)(p) + (ahead), 0, 2)

/* A vector; its like in the next tile is asked for. */
INLINE vi load_and_ask(const int16_t *p, ptrdiff_t ahead)
{
    ASK(p, ahead);
    return i_load((const int32_t *)(const void *)p);
}

/* Plane products of `count` queries with ABREAST vectors of keys, over pairs from … stop − 1. */
INLINE void dots_of(int count, const int16_t *const *high, const int16_t *const *low,
                    const int16_t *keys, ptrdiff_t ahead, int from, int stop, int32_t *sum_high,
                    int32_t *sum_low)
{
    pair_sums h[3][ABREAST], l[3][ABREAST];
    vi key[ABREAST];
    memset(h, 0, sizeof h);
    memset(l, 0, sizeof l);
    for (int p = from; p < stop; p++) {
        UNROLL for (int v = 0; v < ABREAST; v++)
            key[v] = load_and_ask(keys + 2 * (p * TILE + v * CQ_LANES), ahead);
        UNROLL for (int i = 0; i < count; i++) {
            add_pair_of(ABREAST, h[i], high[i], p, key);
            add_pair_of(ABREAST, l[i], low[i], p, key);
        }
    }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int v = 0; v < ABREAST; v++) {
            i_store(sum_high + i * TILE + v * CQ_LANES, joined(h[i][v]));
            i_store(sum_low + i * TILE + v * CQ_LANES, joined(l[i][v]));
        }
}

INLINE void dots_of_pairs(int count, const block *b, const int *who, int from, int stop,
                          int32_t *sum_high, int32_t *sum_low)
{
    const int16_t *high[3], *low[3];
    for (int i = 0; i < count; i++) {
        high[i] = b->high + who[i] * 2 * b->pairs;
        low[i] = b->low + who[i] * 2 * b->pairs;
    }
    for (int at = 0; at < TILE; at += ABREAST * CQ_LANES)
        dots_of(count, high, low, b->keys + 2 * at, b->ahead, from, stop, sum_high + at,
                sum_low + at);
}

/* RN(q·k) of `count` queries (1 to 3) with the tile's keys: dots [count][TILE]. */
INLINE void dots_rounded(int count, const block *b, const int *who, float *dots)
{
    int32_t high[3 * TILE], low[3 * TILE];
    if (b->pairs <= WIDEST) {
        dots_of_pairs(count, b, who, 0, b->pairs, high, low);
        for (int i = 0; i < count * TILE; i += CQ_LANES)
            f_store(dots + i, round_planes(i_load(high + i), i_load(low + i)));
        return;
    }
    int64_t sums[3 * TILE] = {0};
    for (int from = 0; from < b->pairs; from += WIDEST) {
        int stop = b->pairs - from < WIDEST ? b->pairs : from + WIDEST;
        dots_of_pairs(count, b, who, from, stop, high, low);
        for (int i = 0; i < count * TILE; i++) sums[i] += (int64_t)high[i] * 256 + low[i];
    }
    for (int i = 0; i < count * TILE; i++) dots[i] = (float)sums[i];
}

/* How far scores fall: m, the tile's first position less the query's, and keys' places in the tile
 * (NULL: all 64 in order). */
typedef struct {
    float steep;
    int32_t start;
    const int32_t *index;
} slope;

/* The base-2 scores of a vector of keys, from place `at` on. */
INLINE vf scores_of(vf dot, vi exponent, const cortiq_attend *a, slope fall, int at)
{
    vf s = (dot * f_all(a->factor)) * f_exp2_int(exponent);
    if (a->cap != 0)
        s = (f_all(a->cap) * f_tanh(s * f_all(a->inverse_cap))) * f_all(LOG2_E);
    if (a->steep) {
        vi place = fall.index ? i_load(fall.index + at) : i_iota() + i_all(at);
        s = s + f_all(fall.steep) * f_from_int(place + i_all(fall.start));
    }
    return f_min(f_max(s, f_all(-16384.0f)), f_all(16384.0f));
}

/* rint(g·2^n), 0 below the smallest n that matters; g in [0.7, 1.5], n at most 21. */
INLINE vi scaled(vf g, vi n)
{
    return i_rint(from_bits(bits_of(g) + (i_max(n, i_all(-60)) << 23)));
}

/* Steps 1 to 6 for one query and `vectors` of keys, of which low … stop − 1 are visible, or those
 * whose bits are set in `seen` where that isn't NULL (it is known where this is inlined); the head
 * (mass, m, n) is merged into the run's. */
INLINE void softmax_of(int32_t query_exponent, const int32_t *key_exponent,
                       const int32_t *value_exponent, int vectors, const cortiq_attend *a,
                       slope fall, const float *dots, int low, int stop, const uint64_t *seen,
                       partial *run, tile_weights *w)
{
    vf g[VECTORS] = {{0}};
    vi kappa[VECTORS] = {{0}}, total[VECTORS] = {{0}}, sum = {0};
    vm visible[VECTORS];
    memset(visible, 0, sizeof visible);
    vi peak = i_all(NONE), output_peak = i_all(NONE);
    UNROLL for (int v = 0; v < vectors; v++) {
        int at = v * CQ_LANES;
        vi exponent = i_load(key_exponent + at) + i_all(query_exponent);
        vf s = scores_of(f_load(dots + at), exponent, a, fall, at), whole = f_rint(s);
        g[v] = f_exp2_fraction(s - whole);
        visible[v] = seen ? m_bits((int32_t)(*seen >> at))
                          : u_less(i_iota() + i_all(at - low), i_all(stop - low));
        vi k = __builtin_convertvector(whole, vi);
        kappa[v] = i_select(visible[v], k, i_all(NONE));
        total[v] = i_select(visible[v], k + i_load(value_exponent + at), i_all(NONE));
        peak = i_max(peak, kappa[v]);
        output_peak = i_max(output_peak, total[v]);
    }
    int32_t m = i_highest(peak), n = i_highest(output_peak);
    UNROLL for (int v = 0; v < vectors; v++) {
        sum = sum + i_keep(visible[v], scaled(g[v], kappa[v] - i_all(m - 21)));
        vi x = i_keep(visible[v], scaled(g[v], total[v] - i_all(n - 14)));
        i16_store_part(w->high + v * CQ_LANES, x >> 8, CQ_LANES);
        i16_store_part(w->low + v * CQ_LANES, x & i_all(255), CQ_LANES);
    }
    int32_t m_after = larger(run->m, m), n_after = larger(run->n, n);
    run->mass = run->mass * power(run->m - m_after, -60) +
                (float)i_total(sum) * power(m - m_after, -60);
    w->keep = power(run->n - n_after, -60);
    w->take = power(n - n_after, -60);
    run->m = m_after;
    run->n = n_after;
}

INLINE slope slope_of(const block *b, int query, const int32_t *index)
{
    return (slope){b->steep[query], b->start - b->own[query], index};
}

static void tile_softmax(const block *b, int query, const cortiq_attend *a, const float *dots,
                         int low, int stop, partial *run, tile_weights *w)
{
    slope fall = slope_of(b, query, NULL);
    if (stop > CQ_LANES) {
        softmax_of(b->exponent[query], b->key_exponent, b->value_exponent, VECTORS, a, fall, dots,
                   low, stop, NULL, run, w);
        return;
    }
    memset(w->high + CQ_LANES, 0, sizeof w->high - CQ_LANES * sizeof *w->high);
    memset(w->low + CQ_LANES, 0, sizeof w->low - CQ_LANES * sizeof *w->low);
    softmax_of(b->exponent[query], b->key_exponent, b->value_exponent, 1, a, fall, dots, low, stop,
               NULL, run, w);
}

static void tile_softmax_seen(const block *b, int query, const cortiq_attend *a,
                              const float *dots, const uint64_t *seen, partial *run,
                              tile_weights *w)
{
    softmax_of(b->exponent[query], b->key_exponent, b->value_exponent, VECTORS, a,
               slope_of(b, query, NULL), dots, 0, 0, seen, run, w);
}

/* o = o·keep + RN(w·v)·take for `count` queries and `abreast` vectors of value dimensions, over
 * pairs of keys from … stop − 1. */
INLINE void add_values(int count, int abreast, const tile_weights *w, const int16_t *values,
                       ptrdiff_t ahead, int width, int from, int stop, float *const *o)
{
    pair_sums h[3][ABREAST], l[3][ABREAST];
    vi value[ABREAST];
    memset(h, 0, sizeof h);
    memset(l, 0, sizeof l);
    for (int p = from; p < stop; p++) {
        const int16_t *at = values + 2 * p * width;
        UNROLL for (int v = 0; v < abreast; v++)
            value[v] = load_and_ask(at + 2 * v * CQ_LANES, ahead);
        UNROLL for (int i = 0; i < count; i++) {
            add_pair_of(abreast, h[i], w[i].high, p, value);
            add_pair_of(abreast, l[i], w[i].low, p, value);
        }
    }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int v = 0; v < abreast; v++) {
            float *to = o[i] + v * CQ_LANES;
            f_store(to, f_load(to) * f_all(w[i].keep) +
                            round_planes(joined(h[i][v]), joined(l[i][v])) * f_all(w[i].take));
        }
}

INLINE void add_value_rows(int count, const block *b, const tile_weights *w, int from, int stop,
                           partial *const *runs)
{
    int d = 0;
    float *o[3];
    for (; d + ABREAST * CQ_LANES <= b->value_width; d += ABREAST * CQ_LANES) {
        for (int i = 0; i < count; i++) o[i] = runs[i]->o + d;
        add_values(count, ABREAST, w, b->values + 2 * d, b->ahead, b->value_width, from, stop, o);
    }
    for (; d < b->value_width; d += CQ_LANES) {
        for (int i = 0; i < count; i++) o[i] = runs[i]->o + d;
        add_values(count, 1, w, b->values + 2 * d, b->ahead, b->value_width, from, stop, o);
    }
}

#include "attention_tile_body.h"
#include "few_keys_body.h"
#if defined(CQ_TILES)
#include "attention_planes_body.h"
#endif
#include "attention_task_body.h"

#endif
