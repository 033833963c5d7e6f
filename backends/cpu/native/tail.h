/* Shared by tail.c and draw.c: pieces of a vocabulary and what each brought. */
#ifndef CORTIQ_TAIL_H
#define CORTIQ_TAIL_H

#include "kernels.h"

#include <float.h>
#include <string.h>

#define MASKED (-FLT_MAX) /* in place of what a mask excludes: below every canonical value */

enum {
    PIECE = 8192,    /* values a worker takes at a time; a multiple of 256 */
    BUCKETS = 2048,  /* of distances, 64 a unit: the last holds everything beyond 32 */
    SUM_LANES = 64,  /* lanes of canonical_sum a worker takes at a time */
};

typedef struct {
    float value;
    int32_t index;
    int32_t candidates; /* of draws: ids in `ids` from the piece's start on */
    uint64_t weight;
    uint32_t words[4];
} piece;

typedef struct {
    uint64_t weight[BUCKETS];
    int32_t count[BUCKETS];
} histogram;

/* The workspace of one row at a time. */
typedef struct {
    float highest;
    float cutoff;           /* distance of the candidates of draws, at least */
    int32_t enough;         /* whether they are all that can be kept */
    uint64_t last;          /* order (key and id) of the last token kept */
    float lanes[256];
    piece *pieces;          /* [pieces of the width] */
    float *d;               /* [width] */
    int32_t *ids;           /* [width] */
    uint64_t *entries;      /* [width] */
    histogram *histograms;  /* [threads] */
} tail_space;

static inline int32_t pieces_of(int32_t width) { return (width + PIECE - 1) / PIECE; }

static inline int32_t piece_length(int32_t width, int32_t index)
{
    int32_t left = width - index * PIECE;
    return left < PIECE ? left : PIECE;
}

/* Ascending in (value descending, id ascending). Values are canonical: there is no −0. */
static inline uint64_t order_of(float value, int32_t id)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t key = bits >> 31 ? bits : ~(bits | 0x80000000u);
    return (uint64_t)key << 32 | (uint32_t)id;
}

static inline const float *row_of(const cortiq_tail *a, int32_t row)
{
    return a->x + (a->from ? a->from[row] : row) * a->x_stride;
}

/* The workspace's parts. */
tail_space *cortiq_tail_space(const cortiq_tail *a);

/* The largest of the pieces, the first on a tie. */
piece cortiq_best_piece(const tail_space *space, int32_t width);

/* Whether a draw keeps less than everything; and which tokens, up to space->last, into it. All
 * workers call it together. */
int cortiq_filters(const cortiq_draw *draw, int32_t width);
void cortiq_filter_row(const cortiq_tail *a, const cortiq_draw *draw, cortiq_worker *worker,
                       tail_space *space);

#endif
