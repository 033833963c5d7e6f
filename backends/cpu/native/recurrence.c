/* GATED_DELTA: the delta rule and the state-space step, row by row (numerics.recurrent).
 *
 * A head's state is [rows][columns]. Its columns have nothing to do with each other, so that a
 * worker takes some columns of a head of a sequence through all of the batch's rows. */
#include "kernels.h"

#include <string.h>

enum { COLUMNS = 64, LANES = 256, SMALLEST = (127 - 40) << 23, LARGEST = (127 + 50) << 23 };

/* snap, and whether there was a fault: bits of magnitudes are compared as integers. */
static int snap_all(float *x, int n)
{
    int32_t worst = 0;
    for (int j = 0; j < n; j++) {
        int32_t bits, kept;
        memcpy(&bits, x + j, sizeof bits);
        int32_t size = bits & 0x7fffffff;
        worst = size > worst ? size : worst;
        kept = size >= SMALLEST && size < LARGEST ? bits : 0;
        memcpy(x + j, &kept, sizeof kept);
    }
    return worst >= LARGEST;
}

/* out[j] = canonical_sum over i of state[i][j]·factor[i]: lanes, then halves. A missing lane is +0
 * and a lane is never −0, so that adding a missing one would change nothing. */
static void recall(const float *state, int64_t stride, const float *factor, int rows, float *lanes,
                   float *out, int n)
{
    int count = rows < LANES ? rows : LANES;
    for (int i = 0; i < rows; i++) {
        float *lane = lanes + i % LANES * COLUMNS;
        const float *s = state + i * stride;
        if (i < LANES)
            for (int j = 0; j < n; j++) lane[j] = 0.0f + s[j] * factor[i];
        else
            for (int j = 0; j < n; j++) lane[j] = lane[j] + s[j] * factor[i];
    }
    for (int half = LANES / 2; half; half /= 2) {
        for (int i = 0; i + half < count && i < half; i++)
            for (int j = 0; j < n; j++)
                lanes[i * COLUMNS + j] = lanes[i * COLUMNS + j] + lanes[(i + half) * COLUMNS + j];
        count = count < half ? count : half;
    }
    memcpy(out, lanes, (size_t)n * sizeof *out);
}

/* One row of the batch for columns of a head; 1 on a fault. */
static int advance(const cortiq_recurrence *a, int32_t row, int32_t head, int32_t from, int n,
                   float *state, float *lanes)
{
    int32_t group = head / (a->heads / a->groups), rows = a->state_rows;
    int64_t keys = ((int64_t)row * a->groups + group) * rows;
    int64_t at = ((int64_t)row * a->heads + head) * a->columns + from;
    const float *q = a->q + keys, *k = a->k + keys;
    int64_t number = (int64_t)row * a->heads + head;
    const float *alpha = a->alpha + number * (a->per_channel ? rows : 1);
    float change[COLUMNS], beta = a->beta[number], *faded = lanes + LANES * COLUMNS;
    int fault = 0;
    if (a->delta) {
        for (int32_t i = 0; i < rows; i++) faded[i] = k[i] * alpha[a->per_channel ? i : 0];
        fault |= snap_all(faded, rows);
        recall(state, a->columns, faded, rows, lanes, change, n);
        for (int j = 0; j < n; j++) change[j] = (a->v[at + j] - change[j]) * beta;
    } else {
        for (int j = 0; j < n; j++) change[j] = beta * a->v[at + j];
    }
    fault |= snap_all(change, n);
    for (int32_t i = 0; i < rows; i++) {
        float decay = alpha[a->per_channel ? i : 0], *s = state + (int64_t)i * a->columns;
        for (int j = 0; j < n; j++) s[j] = s[j] * decay + k[i] * change[j];
        fault |= snap_all(s, n);
    }
    recall(state, a->columns, q, rows, lanes, a->out + at, n);
    return fault | snap_all(a->out + at, n);
}

static void recurrence_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_recurrence *a = op->args;
    int32_t blocks = (a->columns + COLUMNS - 1) / COLUMNS, each = a->heads * blocks;
    int32_t start, stop, total = *a->segment_count * each;
    float *lanes = (float *)(void *)worker->scratch;
    while (cortiq_take(worker, total, 1, &start, &stop)) {
        int32_t segment = start / each, head = start % each / blocks;
        int32_t from = start % blocks * COLUMNS, n = a->columns - from;
        if (n > COLUMNS) n = COLUMNS;
        const cortiq_segment *s = &a->segments[segment];
        float *state = a->states[segment] + (int64_t)head * a->state_rows * a->columns + from;
        for (int32_t row = s->start; row < s->stop; row++)
            if (advance(a, row, head, from, n, state, lanes)) cortiq_fault(op, row);
    }
}
CORTIQ_REGISTER(CORTIQ_GATED_DELTA, recurrence_rows)
