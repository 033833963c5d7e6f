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

/* Every row, or every column, of an n by n matrix divided by its sum and eps. */
static int normalise_lines(const cortiq_row_kernels *k, float *c, int32_t n, float eps, int columns)
{
    int32_t along = columns ? n : 1, line = columns ? 1 : n;
    for (int32_t i = 0; i < n; i++) {
        float total = 0.0f;
        for (int32_t j = 0; j < n; j++) total = total + c[i * line + j * along];
        total = total + eps;
        for (int32_t j = 0; j < n; j++) c[i * line + j * along] = c[i * line + j * along] / total;
    }
    return k->snap(c, c, n * n);
}

static int stochastic(const cortiq_scaled *a, cortiq_worker *worker, const float *x, float *out)
{
    const cortiq_row_kernels *k = &cortiq_kernels_of(worker->isa)->row;
    int32_t n = a->step, fault = 0;
    for (int32_t i = 0; i < n; i++) fault |= k->softmax(x + i * n, out + i * n, n);
    fault |= plus(k, out, a->low, (float *)(void *)worker->scratch, out, n * n);
    fault |= normalise_lines(k, out, n, a->low, 1);
    for (int32_t round = 1; round < a->first; round++) {
        fault |= normalise_lines(k, out, n, a->low, 0);
        fault |= normalise_lines(k, out, n, a->low, 1);
    }
    return fault;
}

/* The scores of the experts that a list has. */
static void keep_listed(const float *x, const float *list, int32_t listed, float low, float *out,
                        int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int there = 0;
        for (int32_t k = 0; k < listed; k++) there |= list[k] == (float)i;
        out[i] = there ? x[i] : low;
    }
}

static void list_keys(int32_t position, int32_t every, int32_t top, int32_t *out)
{
    int32_t there = (position + 1) / every, first = there > top ? there - top : 0;
    for (int32_t i = 0; i < top; i++) {
        int32_t entry = first + i;
        out[i] = entry < there ? (entry + 1) * every - 1 : position + 1 + entry - there;
    }
}

/* Values by their indices; an index that is none of the row's gives `low`. */
static void index_select(const float *x, const float *index, int32_t from, float low, float *out,
                   int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int there = index[i] >= 0.0f && index[i] < (float)from;
        out[i] = there ? x[(int32_t)index[i]] : low;
    }
}

/* Integers not below 0, divided. */
static int divide(const void *x, void *out, int32_t divisor, int n)
{
    const int32_t *from = x;
    for (int32_t i = 0, *to = out; i < n; i++) to[i] = from[i] / divisor;
    return 0;
}

/* Places in a stack of `size` matrices a number. */
static int stacked(const void *number, const int32_t *index, int32_t size, void *out, int n)
{
    int32_t first = *(const int32_t *)number * size, *to = out;
    for (int32_t i = 0; i < n; i++) to[i] = first + (index ? index[i] : i);
    return 0;
}

/* Windows that keys close, the row's own behind them. */
static int windows(const void *keys, int32_t position, int32_t every, void *out, int n)
{
    const int32_t *from = keys;
    int32_t *to = out, after = (position + 1) / every;
    for (int i = 0; i < n; i++) {
        int32_t key = i < n - 1 ? from[i] : (i && from[i - 1] > position ? from[i - 1] : position) + 1;
        to[i] = key <= position ? key / every : after + key - position - 1;
    }
    return 0;
}

static int permuted(const float *x, const int32_t *order, float *out, int n)
{
    for (int i = 0; i < n; i++) out[i] = x[order[i]];
    return 0;
}

static int scaled_part(const cortiq_scaled *a, cortiq_worker *worker, int32_t row, int32_t part)
{
    const cortiq_row_kernels *k = &cortiq_kernels_of(worker->isa)->row;
    int64_t read = a->how == CORTIQ_EVERY || a->how == CORTIQ_WINDOWS ? a->from_width : a->width;
    const float *x = a->x + row * a->x_stride + part * read;
    float *out = a->out + row * a->out_stride + (int64_t)part * a->width;
    int32_t n = a->width, expert = 0;
    if (a->how == CORTIQ_STACKED)
        return stacked(x, a->index ? a->index + (int64_t)row * n : NULL, a->step, out, n);
    if (a->how == CORTIQ_PERMUTED) return permuted(x, a->index, out, n);
    if (a->index) expert = a->index[(int64_t)row * a->inner + part];
    switch (a->how) {
    case CORTIQ_BY_VALUE: return k->multiply(x, a->factor, out, n);
    case CORTIQ_BY_PART: return k->scale(x, a->factor[part], out, n);
    case CORTIQ_BY_ONE: return k->scale(x, a->factor[0], out, n);
    case CORTIQ_BY_ROW: return k->scale(x, a->factor[row * a->factor_stride + part], out, n);
    case CORTIQ_BY_EXPERT: return k->scale(x, a->factor[expert], out, n);
    case CORTIQ_PLUS_EXPERT: return k->add(x, a->factor + (int64_t)expert * n, out, n);
    case CORTIQ_PLUS: return plus(k, x, a->low, (float *)(void *)worker->scratch, out, n);
    case CORTIQ_SOFTMAX_OF: return k->softmax(x, out, n);
    case CORTIQ_STOCHASTIC: return stochastic(a, worker, x, out);
    case CORTIQ_LISTED:
        keep_listed(x, a->factor + (int64_t)expert * a->step, a->step, a->low, out, n);
        return 0;
    case CORTIQ_KEYS: list_keys(expert, a->step, n, (int32_t *)(void *)out); return 0;
    case CORTIQ_WINDOWS: return windows(x, expert, a->step, out, n);
    case CORTIQ_BETWEEN: bound(x, a->low, a->high, out, n); return 0;
    case CORTIQ_SELECTED: index_select(x, a->factor, a->from_width, a->low, out, n); return 0;
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
