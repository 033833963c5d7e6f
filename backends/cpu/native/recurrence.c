/* GATED_DELTA: delta rules and the state-space step, row by row (numerics.recurrent).
 *
 * A head's columns have nothing to do with each other: a worker takes a block of them, which lies
 * together and stays in the first-level cache, through all of the batch's rows. */
#include "expect.h"
#include "kernels.h"
#include <string.h>

/* Floats of a cache line; blocks that are taken together, of one row and of many. */
enum { LINE = 16, TOGETHER = 16, FEW = 4 };

/* n columns of a head, from `from` on, of a segment's sequence. */
typedef struct {
    const cortiq_segment *segment;
    float *state;
    int64_t ahead; /* floats to the block that is likely the next one of one row; 0: none */
    int32_t head, from, n;
} block;

/* Ask for n floats. */
static void expect(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LINE) __builtin_prefetch(x + i);
}

/* One row of the batch; 1 on a fault. */
static int advance(const cortiq_recurrence *a, const cortiq_kernels *kernels, const block *b,
                   int32_t row, float *faded)
{
    int32_t group = b->head / (a->heads / a->groups), rows = a->state_rows;
    int32_t decays = a->per_channel ? rows : 1;
    int64_t keys = ((int64_t)row * a->groups + group) * rows, more_keys = (int64_t)a->groups * rows;
    int64_t number = (int64_t)row * a->heads + b->head, at = number * a->columns + b->from;
    int32_t strengths = a->kappa ? rows : 1;
    const float *beta = a->beta + number * strengths;
    recurrence_row one = {
        .q = a->q + keys, .k = a->k + keys, .alpha = a->alpha + number * decays,
        .faded = a->kappa ? a->kappa + number * rows : a->delta ? faded : NULL,
        .removed = a->kappa ? beta : NULL, .beta = beta[0], .rows = rows,
        .per_channel = a->per_channel, .columns = b->n, .ahead = b->ahead,
    };
    if (row + 1 < b->segment->stop) { /* the next row's come while this one is computed */
        expect(one.q + more_keys, rows);
        expect(one.k + more_keys, rows);
        expect(one.alpha + (int64_t)a->heads * decays, decays);
        expect(beta + (int64_t)a->heads * strengths, strengths);
        if (a->kappa) expect(one.faded + (int64_t)a->heads * rows, rows);
        expect(a->v + at + (int64_t)a->heads * a->columns, b->n);
        float *out = a->out + at + (int64_t)a->heads * a->columns;
        for (int j = 0; j < b->n; j += LINE) expect_write(out + j);
    }
    int fault = a->delta && !a->kappa && kernels->faded(one.k, one.alpha, a->per_channel, faded, rows);
    return fault | kernels->recur(&one, a->v + at, a->out + at, b->state);
}

/* Rows that a segment's sequence has after the batch, in marks. */
static int64_t marks_after(const cortiq_segment *s)
{
    return ((int64_t)s->position + s->stop - s->start) / CORTIQ_MARK;
}

/* All rows of a segment. Marks that later ones of it replace are not taken. */
static void advance_block(const cortiq_op *op, cortiq_worker *worker, const block *b)
{
    const cortiq_recurrence *a = op->args;
    const cortiq_kernels *kernels = cortiq_kernels_of(worker->isa);
    const cortiq_segment *s = b->segment;
    int64_t size = (int64_t)a->heads * a->state_rows * a->columns;
    size_t bytes = sizeof(float) * (size_t)a->state_rows * (size_t)b->n;
    for (int32_t row = s->start; row < s->stop; row++) {
        if (advance(a, kernels, b, row, (float *)(void *)worker->scratch))
            cortiq_fault(op, row);
        int64_t length = (int64_t)s->position + row - s->start + 1, mark = length / CORTIQ_MARK;
        if (a->keep && length % CORTIQ_MARK == 0 && mark + 1 >= marks_after(s))
            memcpy(b->state + size * (1 + mark % 2), b->state, bytes);
    }
}

static int32_t segment_of(const cortiq_recurrence *a, int32_t row)
{
    int32_t i = 0;
    while (row >= a->segments[i].stop) i++;
    return i;
}

/* Keep a row of the batch if it comes after its sequence's last mark but one: none goes back
 * further. */
static void keep_row(const cortiq_recurrence *a, int32_t row)
{
    int32_t number = segment_of(a, row);
    const cortiq_segment *s = &a->segments[number];
    int64_t keys = (int64_t)a->groups * a->state_rows, values = (int64_t)a->heads * a->columns;
    int64_t alphas = (int64_t)a->heads * (a->per_channel ? a->state_rows : 1);
    int64_t kappas = a->kappa ? keys : 0, betas = a->kappa ? keys : a->heads;
    const float *from[] = {a->q, a->k, a->v, a->alpha, a->beta, a->kappa};
    int64_t widths[] = {keys, keys, values, alphas, betas, kappas};
    int64_t position = (int64_t)s->position + row - s->start;
    if (position < (marks_after(s) - 1) * CORTIQ_MARK) return;
    float *to = a->states[number] + 3 * values * a->state_rows;
    to += position % CORTIQ_KEPT * (2 * keys + values + alphas + betas + kappas);
    for (int i = 0; i < 5 + (a->kappa != NULL); to += widths[i++])
        memcpy(to, from[i] + row * widths[i], sizeof(float) * (size_t)widths[i]);
}

/* Block `number` of all segments'; with one row a sequence that `jump` further is likely the
 * next. */
static void take_block(const cortiq_op *op, cortiq_worker *worker, int32_t number, int32_t jump)
{
    const cortiq_recurrence *a = op->args;
    int32_t blocks = (a->columns + CORTIQ_COLUMNS - 1) / CORTIQ_COLUMNS, each = a->heads * blocks;
    int32_t segment = number / each, head = number % each / blocks;
    int32_t from = number % blocks * CORTIQ_COLUMNS, rest = a->columns - from;
    int64_t at = ((int64_t)head * a->columns + from) * a->state_rows;
    int32_t n = rest < CORTIQ_COLUMNS ? rest : CORTIQ_COLUMNS;
    int expected = jump && number % each + jump < each;
    block taken = {
        .segment = &a->segments[segment], .state = a->states[segment] + at, .head = head,
        .from = from, .n = n, .ahead = expected ? (int64_t)jump * n * a->state_rows : 0,
    };
    advance_block(op, worker, &taken);
}

/* With one row a sequence, blocks are taken some at a time: memory is read from front to back, and
 * the first of the next ones is where the workers are when each takes its turn. Keeping one
 * row goes first, keeping many last: it fills what time is left. Of many rows, few blocks:
 * the lines of v and out beside those of a block, which a core may fetch too, are its own next. */
static void recurrence_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_recurrence *a = op->args;
    int32_t blocks = (a->columns + CORTIQ_COLUMNS - 1) / CORTIQ_COLUMNS;
    int32_t start, stop, rows = *op->rows, total = *a->segment_count * a->heads * blocks;
    int32_t many = rows > *a->segment_count, turn = 1 + (worker->threads - 1) * TOGETHER;
    int32_t kept = a->keep ? rows : 0, before = many ? 0 : kept;
    while (cortiq_take(worker, total + kept, many ? FEW : TOGETHER, &start, &stop))
        for (int32_t i = start - before; i < stop - before; i++)
            if (i < 0) keep_row(a, i + before);
            else if (i >= total) keep_row(a, i - total);
            else take_block(op, worker, i, many ? 0 : i + 1 < stop - before ? 1 : turn);
}
CORTIQ_REGISTER(CORTIQ_GATED_DELTA, recurrence_rows)
