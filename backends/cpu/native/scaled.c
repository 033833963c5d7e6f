/* SCALED: rows times, plus or within numbers that are constant, of a vector, or of the row. */
#include "kernels.h"

/* x, bounded; a missing bound is infinite. Exact: there is nothing to snap. */
static void bound(const float *x, float low, float high, float *out, int n)
{
    for (int i = 0; i < n; i++) {
        float y = x[i] < low ? low : x[i];
        out[i] = y > high ? high : y;
    }
}

static int plus(const cortiq_row_kernels *k, const float *x, float amount, float *scratch,
                float *out, int n)
{
    for (int i = 0; i < n; i++) scratch[i] = amount;
    return k->add(x, scratch, out, n);
}

/* Integers not below 0, divided. */
static int divide(const void *x, void *out, int32_t divisor, int n)
{
    const int32_t *from = x;
    for (int32_t i = 0, *to = out; i < n; i++) to[i] = from[i] / divisor;
    return 0;
}

static int scaled_part(const cortiq_scaled *a, cortiq_worker *worker, int32_t row, int32_t part)
{
    const cortiq_row_kernels *k = &cortiq_kernels_of(worker->isa)->row;
    int64_t read = a->how == CORTIQ_EVERY ? a->from_width : a->width;
    const float *x = a->x + row * a->x_stride + part * read;
    float *out = a->out + row * a->out_stride + (int64_t)part * a->width;
    int32_t n = a->width, expert = a->index ? a->index[(int64_t)row * a->inner + part] : 0;
    switch (a->how) {
    case CORTIQ_BY_VALUE: return k->multiply(x, a->factor, out, n);
    case CORTIQ_BY_PART: return k->scale(x, a->factor[part], out, n);
    case CORTIQ_BY_ONE: return k->scale(x, a->factor[0], out, n);
    case CORTIQ_BY_ROW: return k->scale(x, a->factor[row * a->factor_stride + part], out, n);
    case CORTIQ_BY_EXPERT: return k->scale(x, a->factor[expert], out, n);
    case CORTIQ_PLUS_EXPERT: return k->add(x, a->factor + (int64_t)expert * n, out, n);
    case CORTIQ_PLUS: return plus(k, x, a->low, (float *)(void *)worker->scratch, out, n);
    case CORTIQ_SOFTMAX_OF: return k->softmax(x, out, n);
    case CORTIQ_BETWEEN: bound(x, a->low, a->high, out, n); return 0;
    case CORTIQ_DIVIDED: return divide(x, out, a->step, n);
    default:
        for (int32_t i = 0; i < n; i++) out[i] = x[a->first + i * a->step];
        return 0;
    }
}

static void scaled_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_scaled *a = op->args;
    int32_t start, stop, total = *op->rows * a->inner;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t i = start; i < stop; i++)
            if (scaled_part(a, worker, i / a->inner, i % a->inner))
                cortiq_fault(op, i / a->inner);
}
CORTIQ_REGISTER(CORTIQ_SCALED, scaled_rows)
