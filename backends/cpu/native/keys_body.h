/* Scores of keys for a query's heads, for one instruction set: numerics.key_blocks.key_scores.
 *
 * Keys lie along the vector's lanes, and the terms of a tile's 64 keys are added head by head. */
#ifndef KEYS_BODY_H
#define KEYS_BODY_H

#include "attention_body.h"

#define SMALLEST_SCORE 0x1p-40f
#define LARGEST_SCORE 0x1p50f

/* weight·ReLU(q·k) of a head and a tile's keys, from RN(q·k). */
INLINE void weighted_scores(const block *b, int head, const float *dots, float weight, float *terms)
{
    for (int at = 0; at < TILE; at += CQ_LANES) {
        vi exponent = i_load(b->key_exponent + at) + i_all(b->exponent[head]);
        vf s = f_load(dots + at) * f_exp2_int(exponent);
        vf r = f_keep(f_at_least(s, f_all(SMALLEST_SCORE)), f_min(s, f_all(LARGEST_SCORE)));
        f_store(terms + at, f_all(weight) * r);
    }
}

/* The canonical sum of `count` rows of TILE terms (1 to 256) to the first of them; it is not -0. */
static void sum_heads(float *terms, int32_t count)
{
    int32_t half = 1;
    while (2 * half < count) half *= 2;
    for (; half > 0 && count > 1; count = half, half /= 2)
        for (int32_t i = 0; i + half < count; i++)
            for (int at = 0; at < TILE; at += CQ_LANES) {
                float *to = terms + i * TILE + at;
                f_store(to, f_load(to) + f_load(to + half * TILE));
            }
    for (int at = 0; at < TILE; at += CQ_LANES)
        f_store(terms + at, f_load(terms + at) + f_all(0.0f));
}

/* The heads of `b`, of which the first is `first`, against its tile: terms [heads][TILE]. */
static void score_heads(const block *b, int32_t count, const float *weights, float *terms)
{
    float dots[3 * TILE];
    for (int32_t head = 0; head < count; head += 3) {
        int32_t some = count - head < 3 ? count - head : 3;
        const int who[3] = {head, head + 1, head + 2};
        if (some == 3) dots_rounded(3, b, who, dots);
        if (some == 2) dots_rounded(2, b, who, dots);
        if (some == 1) dots_rounded(1, b, who, dots);
        for (int32_t i = 0; i < some; i++)
            weighted_scores(b, head + i, dots + i * TILE, weights[head + i],
                            terms + (head + i) * TILE);
    }
}

/* The task's query, whose heads have these weights, against its tiles: scores [tiles][TILE]. */
static void score_task(const attention_task *task, const float *weights, float *scores)
{
    block blocks[MOST_INDEX_HEADS / BLOCK];
    attention_task t = *task;
    int32_t heads = t.group, pairs = even(t.args->kv.key_dim) / 2;
    uintptr_t aligned = ((uintptr_t)t.scratch + 63) & ~(uintptr_t)63;
    float *terms = (float *)(void *)aligned;
    int16_t *planes = (int16_t *)(void *)(terms + heads * TILE);
    for (t.first = 0; t.first < heads; t.first += BLOCK) {
        block *b = &blocks[t.first / BLOCK];
        t.count = heads - t.first < BLOCK ? heads - t.first : BLOCK;
        b->pairs = pairs;
        b->value_width = 0;
        b->few = NULL;
        b->high = planes + t.first * 4 * pairs;
        b->low = b->high + t.count * 2 * pairs;
        take_queries(&t, b);
    }
    for (int32_t tile = t.tile; tile < t.tile_stop; tile++, scores += TILE) {
        for (int32_t first = 0; first < heads; first += BLOCK) {
            int32_t count = heads - first < BLOCK ? heads - first : BLOCK;
            take_tile(&t, &blocks[first / BLOCK], tile);
            score_heads(&blocks[first / BLOCK], count, weights + first, terms + first * TILE);
        }
        sum_heads(terms, heads);
        memcpy(scores, terms, TILE * sizeof *scores);
    }
}

#endif
