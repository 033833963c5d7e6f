/* The best blocks of keys of a block of queries, for one instruction set: numerics.key_blocks.
 *
 * Keys are met in order, so that of equal scores the lower index is met first: a later block takes
 * its place behind those with as good a score. */
#ifndef BLOCKS_BODY_H
#define BLOCKS_BODY_H

#include "attention_body.h"

/* What is known of the task's queries so far. */
typedef struct {
    const cortiq_choose *how;
    ranked *best; /* [count][top], the best first */
    int32_t found[BLOCK], limit[BLOCK]; /* blocks in there; keys from here on need no score */
    float highest[BLOCK]; /* of the keys of the block at hand */
} choosing;

/* RN(q·k)·2^(eq+ek) of a query and a tile's keys, from the first factors. */
INLINE void scale_dots(const block *b, int query, float *dots)
{
    for (int at = 0; at < TILE; at += CQ_LANES) {
        vi exponent = i_load(b->key_exponent + at) + i_all(b->exponent[query]);
        f_store(dots + at, f_load(dots + at) * f_exp2_int(exponent));
    }
}

/* A whole block with its score: kept if it is one of the best. */
static void rank_block(choosing *c, int query, int32_t index)
{
    int32_t most = c->how->top - c->how->local, count = c->found[query];
    ranked *best = c->best + (size_t)query * (size_t)c->how->top;
    float score = c->highest[query];
    if (count == most && (most == 0 || best[most - 1].score >= score)) return;
    int32_t at = count < most ? count : most - 1;
    for (; at > 0 && best[at - 1].score < score; at--) best[at] = best[at - 1];
    best[at] = (ranked){score, index};
    if (count < most) c->found[query]++;
}

/* The tile's keys join the scores of their blocks. */
static void rank_tile(choosing *c, int query, int32_t tile, const float *scores)
{
    int64_t start = (int64_t)tile * TILE, size = c->how->block, limit = c->limit[query];
    int64_t stop = limit < start + TILE ? limit : start + TILE;
    for (int64_t key = start; key < stop;) {
        int64_t index = key / size, end = (index + 1) * size;
        int64_t until = end < stop ? end : stop;
        float highest = key == index * size ? scores[key - start] : c->highest[query];
        for (; key < until; key++)
            highest = scores[key - start] > highest ? scores[key - start] : highest;
        c->highest[query] = highest;
        if (key == end || key == limit) rank_block(c, query, (int32_t)index);
    }
}

static void choose_in_tile(choosing *c, const block *b, int32_t tile, int count, const int *who)
{
    float dots[3 * TILE];
    if (count == 3) dots_rounded(3, b, who, dots);
    if (count == 2) dots_rounded(2, b, who, dots);
    if (count == 1) dots_rounded(1, b, who, dots);
    for (int i = 0; i < count; i++) {
        scale_dots(b, who[i], dots + i * TILE);
        rank_tile(c, who[i], tile, dots + i * TILE);
    }
}

/* Blocks up to `position`, and the first key that needs no score: where all blocks are taken none
 * does, and the last ones are taken whatever they are. */
static int32_t scored_keys(const cortiq_choose *how, int32_t position)
{
    int32_t count = position / how->block + 1;
    if (count <= how->top) return 0;
    return how->local ? (count - how->local) * how->block : position + 1;
}

/* A query's blocks in ascending order: the best, the last ones, and then what holds no key. */
static void write_choice(const choosing *c, int query, int32_t position, int32_t *out)
{
    const cortiq_choose *how = c->how;
    const ranked *best = c->best + (size_t)query * (size_t)how->top;
    int32_t count = position / how->block + 1, found = c->found[query];
    for (int32_t i = 0; i < found; i++) {
        int32_t at = i;
        for (; at > 0 && out[at - 1] > best[i].index; at--) out[at] = out[at - 1];
        out[at] = best[i].index;
    }
    int32_t next = count <= how->top ? 0 : count - how->local;
    for (int32_t i = found; i < how->top; i++) out[i] = next++;
}

/* The task's queries, who see keys from 0 on. */
static void choose_task(const attention_task *t, const cortiq_choose *how)
{
    block b = {.pairs = even(how->kv.key_dim) / 2};
    choosing c = {.how = how};
    int32_t last = 0;
    uintptr_t aligned = ((uintptr_t)t->scratch + 63) & ~(uintptr_t)63;
    b.high = (int16_t *)(void *)aligned;
    b.low = b.high + t->count * 2 * b.pairs;
    c.best = (ranked *)(void *)(b.low + t->count * 2 * b.pairs);
    take_queries(t, &b);
    for (int i = 0; i < t->count; i++)
        last = larger(last, c.limit[i] = scored_keys(how, b.position[i]));
    for (int32_t tile = 0; tile < (last + TILE - 1) / TILE; tile++) {
        int who[3], found = 0;
        take_tile(t, &b, tile);
        for (int i = 0; i < t->count; i++) {
            if (c.limit[i] > tile * TILE) who[found++] = i;
            if (found < 3 && i < t->count - 1) continue;
            choose_in_tile(&c, &b, tile, found, who);
            found = 0;
        }
    }
    for (int i = 0; i < t->count; i++) {
        size_t index = (size_t)t->row * (size_t)how->heads + (size_t)(t->first + i);
        write_choice(&c, i, b.position[i], how->out + index * (size_t)how->top);
    }
}

#endif
