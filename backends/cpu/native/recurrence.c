/* GATED_DELTA: the delta rule and the state-space step, row by row (numerics.recurrent).
 *
 * A head's state is [state_rows][columns]. Its columns have nothing to do with each other, so that
 * a worker takes some columns of a head of a sequence through all of the batch's rows. */
#include "kernels.h"
#include <string.h>

/* Columns of a head that a worker takes: with 128 rows, half of a first-level cache. */
enum { COLUMNS = 32, COPIED_ROWS = 512 };

/* One row of the batch for n columns of a head; 1 on a fault. */
static int advance(const cortiq_recurrence *a, const cortiq_kernels *kernels, int32_t row,
                   int32_t head, int32_t from, int n, float *state, int64_t stride, int64_t ahead,
                   float *faded)
{
    int32_t group = head / (a->heads / a->groups), rows = a->state_rows;
    int64_t keys = ((int64_t)row * a->groups + group) * rows;
    int64_t number = (int64_t)row * a->heads + head, at = number * a->columns + from;
    const float *alpha = a->alpha + number * (a->per_channel ? rows : 1);
    recurrence_row one = {
        .q = a->q + keys, .k = a->k + keys, .alpha = alpha, .faded = a->delta ? faded : NULL,
        .beta = a->beta[number], .rows = rows, .per_channel = a->per_channel,
        .stride = stride, .ahead = ahead,
    };
    int fault = a->delta && kernels->faded(one.k, alpha, a->per_channel, faded, rows);
    return fault | kernels->recur(&one, a->v + at, a->out + at, state, n);
}

/* n columns of the rows of a head's state, from one place to another. */
static void copy_columns(const cortiq_recurrence *a, const float *from, int64_t from_stride,
                         float *to, int64_t to_stride, int n)
{
    for (int32_t i = 0; i < a->state_rows; i++)
        memcpy(to + i * to_stride, from + i * from_stride, sizeof(float) * (size_t)n);
}

/* All rows of a segment for n columns of a head. Many rows work on a copy of these columns that
 * lies together: rows of the state are often a power of two apart, and share few lines of a cache. */
static void advance_segment(const cortiq_op *op, cortiq_worker *worker, int32_t segment,
                            int32_t head, int32_t from, int n)
{
    const cortiq_recurrence *a = op->args;
    const cortiq_kernels *kernels = cortiq_kernels_of(worker->isa);
    const cortiq_segment *s = &a->segments[segment];
    float *state = a->states[segment] + (int64_t)head * a->state_rows * a->columns + from;
    float *faded = (float *)(void *)worker->scratch, *here = state;
    int64_t stride = a->columns, size = (int64_t)a->heads * a->state_rows * a->columns;
    int copied = s->stop - s->start > 1 && a->state_rows <= COPIED_ROWS;
    /* One row: the next columns, or the next head's first, come while these are computed. */
    int64_t ahead = from + n < a->columns ? n : (int64_t)a->state_rows * a->columns - from;
    if (head + 1 == a->heads && ahead != n) ahead = 0;
    if (copied) {
        here = faded + COPIED_ROWS, stride = COLUMNS, ahead = 0;
        copy_columns(a, state, a->columns, here, stride, n);
    }
    for (int32_t row = s->start; row < s->stop; row++) {
        if (advance(a, kernels, row, head, from, n, here, stride, ahead, faded))
            cortiq_fault(op, row);
        int64_t length = (int64_t)s->position + row - s->start + 1;
        float *mark = state + size * (1 + length / CORTIQ_MARK % 2);
        if (a->keep && length % CORTIQ_MARK == 0)
            copy_columns(a, here, stride, mark, a->columns, n);
    }
    if (copied) copy_columns(a, here, stride, state, a->columns, n);
}

/* Keep the rows of a segment. */
static void keep_rows(const cortiq_recurrence *a, const cortiq_segment *s, float *state)
{
    int64_t keys = (int64_t)a->groups * a->state_rows, values = (int64_t)a->heads * a->columns;
    int64_t alphas = (int64_t)a->heads * (a->per_channel ? a->state_rows : 1);
    const float *from[] = {a->q, a->k, a->v, a->alpha, a->beta};
    int64_t widths[] = {keys, keys, values, alphas, a->heads};
    int64_t width = 2 * keys + values + alphas + a->heads;
    float *kept = state + 3 * values * a->state_rows;
    int32_t first = s->stop - s->start > CORTIQ_KEPT ? s->stop - CORTIQ_KEPT : s->start;
    for (int32_t row = first; row < s->stop; row++) {
        float *to = kept + (s->position + row - s->start) % CORTIQ_KEPT * width;
        for (int i = 0; i < 5; to += widths[i++])
            memcpy(to, from[i] + row * widths[i], sizeof(float) * (size_t)widths[i]);
    }
}

static void recurrence_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_recurrence *a = op->args;
    int32_t blocks = (a->columns + COLUMNS - 1) / COLUMNS, each = a->heads * blocks;
    int32_t start, stop, steps = *a->segment_count * each;
    int32_t total = steps + (a->keep ? *a->segment_count : 0);
    while (cortiq_take(worker, total, 1, &start, &stop)) {
        if (start >= steps) {
            keep_rows(a, &a->segments[start - steps], a->states[start - steps]);
            continue;
        }
        int32_t head = start % each / blocks, from = start % blocks * COLUMNS;
        int n = a->columns - from < COLUMNS ? a->columns - from : COLUMNS;
        advance_segment(op, worker, start / each, head, from, n);
    }
}
CORTIQ_REGISTER(CORTIQ_GATED_DELTA, recurrence_rows)
