/* Attention of a block of queries on tile registers; continues attention_body.h.
 *
 * Queries, keys, weights and values are planes of int8, x = 256·high + low, so that a product is
 * four of planes, in three sums: high·high, both mixed ones, low·low. A dword of a plane holds
 * dimensions, or keys, 4j … 4j + 3 in the order 0 2 1 3, in which two rows of pairs join.
 */
#include "tiles.h"

enum { PLANE_QUERIES = 8 /* from so many on it is worth it to make planes of a tile */ };

typedef int32_t plane_sums[3][TILE_ROWS][TILE_STEP / 4];

/* What a task needs besides its block. */
typedef struct planes {
    int32_t steps;      /* of 64 dimensions of a key; 0: too few queries, or too wide */
    uint8_t *queries;   /* [16 queries][steps][plane][16][64] */
    uint8_t *weights;   /* [16 queries][plane][16][64] */
    uint8_t *keys;      /* [plane][dimensions / 4][TILE][4] */
    uint8_t *values;    /* [plane][TILE / 4][value_width][4] */
    float *dots;        /* [BLOCK][TILE] */
    plane_sums *sums;
    tile_weights w[BLOCK];
    int low[BLOCK], stop[BLOCK]; /* keys of the tile that each query sees */
} planes;

INLINE __m512i upper_plane(__m512i x)
{
    return _mm512_srai_epi16(_mm512_add_epi16(x, _mm512_set1_epi16(128)), 8);
}

/* Low bytes of 32 numbers, in a dword's order. */
INLINE void store_bytes(uint8_t *to, __m512i x)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    _mm256_store_si256((__m256i *)(void *)to,
                       _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(x), order));
}

/* Planes of rows of pairs [pairs][width][2], a row of four numbers from two of them. */
INLINE void planes_of(const int16_t *from, int pairs, int width, int rows, ptrdiff_t ahead,
                      uint8_t *to)
{
    const __m512i byte = _mm512_set1_epi16(255);
    size_t plane = (size_t)rows * (size_t)width * 4;
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < width; n += CQ_LANES) {
            __m512i a = _mm512_setzero_si512(), b = a;
            const int16_t *at = from + 2 * (2 * r * width + n);
            if (2 * r < pairs) a = (__m512i)load_and_ask(at, ahead);
            if (2 * r + 1 < pairs) b = (__m512i)load_and_ask(at + 2 * width, ahead);
            uint8_t *row = to + 4 * ((size_t)r * (size_t)width + (size_t)n);
            _mm512_store_si512(row, _mm512_or_si512(_mm512_and_si512(upper_plane(a), byte),
                                                    _mm512_slli_epi16(upper_plane(b), 8)));
            _mm512_store_si512(row + plane, _mm512_or_si512(_mm512_and_si512(a, byte),
                                                            _mm512_slli_epi16(b, 8)));
        }
}

static void query_planes(const block *b, int count, planes *p)
{
    int dims = 2 * b->pairs, bytes = p->steps * TILE_STEP;
    memset(p->queries, 0, (size_t)(2 * sixteens(count) * bytes));
    for (int i = 0; i < count; i++)
        for (int d = 0; d < dims; d += 32) {
            __mmask32 there = dims - d < 32 ? (1u << (dims - d)) - 1 : ~0u;
            int step = i / TILE_ROWS * p->steps + d / TILE_STEP;
            uint8_t *to = p->queries + step * 2 * TILE_BYTES + i % TILE_ROWS * TILE_STEP +
                          d % TILE_STEP;
            store_bytes(to, _mm512_maskz_loadu_epi16(there, b->high + i * dims + d));
            store_bytes(to + TILE_BYTES, _mm512_maskz_loadu_epi16(there, b->low + i * dims + d));
        }
}

/* Weights as the softmax left them: x >> 8, and the lower byte without a sign. */
static void weight_planes(const tile_weights *w, uint8_t *to)
{
    for (int k = 0; k < TILE; k += 32) {
        __m512i low = _mm512_loadu_si512(w->low + k);
        store_bytes(to + k, _mm512_add_epi16(_mm512_loadu_si512(w->high + k),
                                             _mm512_srli_epi16(low, 7)));
        store_bytes(to + TILE_BYTES + k, low);
    }
}

/* Sums of plane products of 16 rows with 16 columns, over `steps` of 64. */
INLINE void multiply_planes(const uint8_t *rows, int steps, const uint8_t *columns, size_t plane,
                            int64_t stride, plane_sums *sums)
{
    TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2);
    for (int s = 0; s < steps; s++) {
        TILE_LOAD(4, rows, TILE_STEP);
        TILE_LOAD(6, columns, stride);
        TILE_LOAD(7, columns + plane, stride);
        TILE_LOAD(5, rows + TILE_BYTES, TILE_STEP);
        TILE_DOT_BYTES(0, 4, 6);
        TILE_DOT_BYTES(1, 4, 7);
        TILE_DOT_BYTES(2, 5, 7);
        TILE_DOT_BYTES(1, 5, 6);
        rows += 2 * TILE_BYTES;
        columns += 16 * stride;
    }
    TILE_STORE(0, (*sums)[0], TILE_STEP);
    TILE_STORE(1, (*sums)[1], TILE_STEP);
    TILE_STORE(2, (*sums)[2], TILE_STEP);
}

/* RN(x·y) of row i. */
INLINE vf plane_sum(const plane_sums *sums, int i)
{
    return round_planes((i_load((*sums)[0][i]) << 8) + i_load((*sums)[1][i]),
                        i_load((*sums)[2][i]));
}

/* Of the keys before `stop`, which are all that a query sees. */
static void all_dots(int count, int stop, const block *b, planes *p)
{
    int rows = p->steps * TILE_STEP / 4;
    planes_of(b->keys, b->pairs, TILE, rows, b->ahead, p->keys);
    for (int q = 0; q < count; q += TILE_ROWS)
        for (int k = 0; k < stop; k += CQ_LANES) {
            multiply_planes(p->queries + q * p->steps * 2 * TILE_STEP, p->steps, p->keys + 4 * k,
                            (size_t)rows * TILE * 4, 4 * TILE, p->sums);
            for (int i = 0; i < TILE_ROWS; i++)
                f_store(p->dots + (q + i) * TILE + k, plane_sum(p->sums, i));
        }
}

static void all_values(int count, const block *b, planes *p, void *runs)
{
    int width = b->value_width;
    planes_of(b->values, TILE / 2, width, TILE / 4, b->ahead, p->values);
    for (int q = 0; q < count; q += TILE_ROWS)
        for (int d = 0; d < width; d += CQ_LANES) {
            multiply_planes(p->weights + q * 2 * TILE_STEP, 1, p->values + 4 * d,
                            (size_t)(TILE * width), 4 * width, p->sums);
            for (int i = 0; i < TILE_ROWS && q + i < count; i++) {
                if (p->low[q + i] >= p->stop[q + i]) continue;
                const tile_weights *w = &p->w[q + i];
                float *o = partial_at(runs, (size_t)(q + i), width)->o + d;
                f_store(o, f_load(o) * f_all(w->keep) + plane_sum(p->sums, i) * f_all(w->take));
            }
        }
}

/* The task's queries against the keys low … stop − 1 of the tile at hand. */
static void attend_planes(const attention_task *t, const block *b, planes *p, void *runs)
{
    int last = 0;
    for (int i = 0; i < t->count; i++) last = larger(last, p->stop[i]);
    all_dots(t->count, last, b, p);
    for (int i = 0; i < t->count; i++) {
        if (p->low[i] >= p->stop[i]) continue;
        tile_softmax(b, i, t->args, p->dots + i * TILE, p->low[i], p->stop[i],
                     partial_at(runs, (size_t)i, b->value_width), &p->w[i]);
        weight_planes(&p->w[i],
                      p->weights + i / TILE_ROWS * 2 * TILE_BYTES + i % TILE_ROWS * TILE_STEP);
    }
    all_values(t->count, b, p, runs);
}
