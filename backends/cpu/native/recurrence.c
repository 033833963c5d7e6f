/* GATED_DELTA: the delta rule and the state-space step, row by row (numerics.recurrent).
 *
 * A head's state is [state_rows][columns]. Its columns have nothing to do with each other, so that
 * a worker takes some columns of a head of a sequence through all of the batch's rows. */
#include "kernels.h"

enum { COLUMNS = 64 };

/* One row of the batch for n columns of a head; 1 on a fault. */
static int advance(const cortiq_recurrence *a, const cortiq_kernels *kernels, int32_t row,
                   int32_t head, int32_t from, int n, float *state, float *faded)
{
    int32_t group = head / (a->heads / a->groups), rows = a->state_rows;
    int64_t keys = ((int64_t)row * a->groups + group) * rows;
    int64_t number = (int64_t)row * a->heads + head, at = number * a->columns + from;
    const float *alpha = a->alpha + number * (a->per_channel ? rows : 1);
    recurrence_row one = {
        .q = a->q + keys, .k = a->k + keys, .alpha = alpha, .faded = a->delta ? faded : NULL,
        .beta = a->beta[number], .rows = rows, .per_channel = a->per_channel,
        .stride = a->columns,
    };
    int fault = a->delta && kernels->faded(one.k, alpha, a->per_channel, faded, rows);
    return fault | kernels->recur(&one, a->v + at, a->out + at, state, n);
}

static void recurrence_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_recurrence *a = op->args;
    const cortiq_kernels *kernels = cortiq_kernels_of(worker->isa);
    int32_t blocks = (a->columns + COLUMNS - 1) / COLUMNS, each = a->heads * blocks;
    int32_t start, stop, total = *a->segment_count * each;
    float *faded = (float *)(void *)worker->scratch;
    while (cortiq_take(worker, total, 1, &start, &stop)) {
        int32_t segment = start / each, head = start % each / blocks;
        int32_t from = start % blocks * COLUMNS, n = a->columns - from;
        if (n > COLUMNS) n = COLUMNS;
        const cortiq_segment *s = &a->segments[segment];
        float *state = a->states[segment] + (int64_t)head * a->state_rows * a->columns + from;
        for (int32_t row = s->start; row < s->stop; row++)
            if (advance(a, kernels, row, head, from, n, state, faded)) cortiq_fault(op, row);
    }
}
CORTIQ_REGISTER(CORTIQ_GATED_DELTA, recurrence_rows)
