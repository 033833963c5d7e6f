/* Between attention.c (who computes what) and attention_body.h (how, per instruction set). */
#ifndef CORTIQ_ATTENTION_H
#define CORTIQ_ATTENTION_H

#include "args.h"
#include "cortiq_native.h"

enum {
    TILE = 64,       /* keys of a tile, at absolute positions */
    RUN_TILES = 16,  /* tiles of a run */
    BLOCK = 32,      /* queries of a task: so many share what is loaded of a tile */
    WIDE_BLOCK = 128, /* where they chose keys, which are taken out of their tiles for all */
    PLANE_WIDTH = 256, /* of keys and values that tiles multiply: sums fit int32 */
    FEW_KEYS = 32,   /* keys of a tile up to which those that are seen are taken out of it */
    NONE = -(1 << 20) /* exponent of an empty sum: below every real one */
};

static inline int32_t even(int32_t n) { return (n + 1) & ~1; }
static inline int32_t sixteens(int32_t n) { return (n + 15) & ~15; }

/* A tile's block of one head; see cortiq_kv. */
static inline size_t tile_bytes(const cortiq_kv *kv)
{
    return 2 * TILE * (size_t)(even(kv->key_dim) + sixteens(kv->value_dim)) + 2 * TILE;
}

static inline uint8_t *tile_of(const cortiq_kv *kv, uint8_t *const *pages, int32_t tile,
                               int32_t head)
{
    size_t index = (size_t)(tile % kv->page_tiles) * kv->heads + head;
    return pages[tile / kv->page_tiles] + index * tile_bytes(kv);
}

/* What some tiles contribute to one query: numerator o·2^(n−14), denominator mass·2^(m−21). */
typedef struct {
    float mass;
    int32_t m, n, unused[13];
    float o[]; /* value_dim, padded to 16s */
} partial;

static inline size_t partial_bytes(int32_t value_dim)
{
    return sizeof(partial) + sizeof(float) * (size_t)sixteens(value_dim);
}

static inline partial *partial_at(void *base, size_t index, int32_t value_dim)
{
    return (partial *)((uint8_t *)base + index * partial_bytes(value_dim));
}

/* Queries first … first + count − 1 of one segment and KV head, numbered row·group + head,
 * against the tiles tile … tile_stop − 1. `totals` receives a partial a query. */
typedef struct attention_task {
    const cortiq_attend *args;
    uint8_t *const *pages;
    const uint8_t *q; /* record of the segment's first row, of the KV head's first query head */
    void *totals;
    uint8_t *scratch;
    int32_t head, group, position;
    int32_t row; /* of the batch, where the segment starts */
    int32_t first, count;
    int32_t tile, tile_stop;
    int32_t separate; /* 0, or: totals holds so many partials a tile, and tiles aren't merged */
    const uint8_t *after; /* a block to ask memory for at the end: where this worker goes on */
} attention_task;

/* A block of keys and its score; see blocks_body.h. */
typedef struct {
    float score;
    int32_t index;
} ranked;

static inline size_t few_bytes(int32_t key_dim, int32_t value_dim)
{
    return FEW_KEYS * 2 * ((size_t)sixteens(key_dim) + 32 + (size_t)sixteens(value_dim));
}

/* Dimensions of a key in whole tiles. */
static inline int32_t plane_depth(int32_t key_dim) { return (key_dim + 63) & ~63; }

/* Planes of int8 of queries, weights, keys and values, and products, where tiles multiply them. */
static inline size_t plane_bytes(int32_t key_dim, int32_t value_dim)
{
    int32_t depth = plane_depth(key_dim), width = sixteens(value_dim);
    if (depth > PLANE_WIDTH || width > PLANE_WIDTH) return 0;
    return (size_t)(2 * (BLOCK + TILE) * depth + 2 * BLOCK * TILE + 2 * TILE * width) +
           BLOCK * TILE * sizeof(float) + 3 * 1024 + 64;
}

/* Scratch of a task: planes of the queries, few keys of a tile, the run's partials, and for tiles. */
static inline size_t task_scratch(int32_t queries, int32_t key_dim, int32_t value_dim)
{
    size_t query = 4 * (size_t)sixteens(key_dim) + partial_bytes(value_dim);
    return (size_t)sixteens(queries) * query + few_bytes(key_dim, value_dim) +
           plane_bytes(key_dim, value_dim) + 64;
}

/* Attention with tile registers, and with those in plain C. */
void cortiq_attend_amx(const attention_task *t);
void cortiq_attend_amx_emulated(const attention_task *t);

#endif
