/* Between attention.c (who computes what) and attention_body.h (how, per instruction set). */
#ifndef CORTIQ_ATTENTION_H
#define CORTIQ_ATTENTION_H

#include "args.h"
#include "cortiq_native.h"

enum {
    TILE = 64,       /* keys of a tile, at absolute positions */
    RUN_TILES = 16,  /* tiles of a run */
    BLOCK = 32,      /* queries of a task: so many share what is loaded of a tile */
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
struct attention_task {
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
};

/* A block of keys and its score; see blocks_body.h. */
typedef struct {
    float score;
    int32_t index;
} ranked;

/* Scratch of a task: planes of the queries, few keys of a tile, and the run's partials. */
static inline size_t task_scratch(int32_t key_dim, int32_t value_dim)
{
    size_t keys = FEW_KEYS * 2 * ((size_t)sixteens(key_dim) + 32);
    return BLOCK * (4 * (size_t)sixteens(key_dim) + partial_bytes(value_dim)) + keys + 64;
}

#endif
