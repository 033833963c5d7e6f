/* ROUTE and COMBINE_EXPERTS: see numerics.route. */
#include "kernels.h"

#include <string.h>

/* The top_k largest keys, the lower index first on equality; ascending. Each key is compared with
 * the smallest chosen so far. */
static void choose(const float *keys, int32_t experts, int32_t top_k, int32_t *index)
{
    for (int32_t i = 0; i < experts; i++) {
        int32_t count = i < top_k ? i : top_k, worst = 0;
        if (count < top_k) {
            index[count] = i;
            continue;
        }
        for (int32_t k = 1; k < top_k; k++)
            if (keys[index[k]] <= keys[index[worst]]) worst = k;
        if (keys[i] > keys[index[worst]]) {
            memmove(index + worst, index + worst + 1, (size_t)(top_k - 1 - worst) * sizeof *index);
            index[top_k - 1] = i;
        }
    }
}

static void renormalise(float *weights, int32_t count, float floor)
{
    float total = 0.0f;
    for (int32_t k = 0; k < count; k++) total = total + weights[k];
    total = total + floor;
    for (int32_t k = 0; k < count; k++) weights[k] = total == 0 ? 0.0f : weights[k] / total;
}

static int route_row(const cortiq_route *a, const cortiq_row_kernels *k, const float *scores,
                     float *scratch, int32_t *index, float *weights)
{
    const float *p = scores, *keys = scores;
    int fault = 0;
    if (a->router == CORTIQ_SOFTMAX) fault |= k->softmax(scores, scratch, a->experts);
    if (a->router == CORTIQ_SIGMOID) fault |= k->sigmoid(scores, scratch, a->experts);
    if (a->router != CORTIQ_SOFTMAX_TOPK) p = scratch;
    if (a->bias) {
        float *sums = scratch + a->experts;
        fault |= k->add(p, a->bias, sums, a->experts);
        keys = sums;
    }
    choose(keys, a->experts, a->top_k, index);
    for (int32_t i = 0; i < a->top_k; i++) weights[i] = p[index[i]];
    if (a->router == CORTIQ_SOFTMAX_TOPK) fault |= k->softmax(weights, weights, a->top_k);
    if (a->renormalise) renormalise(weights, a->top_k, a->floor);
    if (a->scaling != 1)
        return fault | k->scale(weights, a->scaling, weights, a->top_k);
    return fault | k->snap(weights, weights, a->top_k);
}

static void route_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_route *a = op->args;
    int32_t start, stop, total = *op->rows;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t row = start; row < stop; row++)
            if (route_row(a, &cortiq_kernels_of(worker->isa)->row,
                          a->scores + row * a->scores_stride, (float *)(void *)worker->scratch,
                          a->index + (int64_t)row * a->top_k, a->weights + (int64_t)row * a->top_k))
                cortiq_fault(op, row);
}
CORTIQ_REGISTER(CORTIQ_ROUTE, route_rows)

static void combine_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_combine *a = op->args;
    int32_t start, stop, total = *op->rows;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t row = start; row < stop; row++)
            if (cortiq_kernels_of(worker->isa)
                    ->row.weighted_sum(a->weights + (int64_t)row * a->count,
                                       a->outputs + row * a->outputs_stride,
                                       a->out + row * a->out_stride, a->count, a->width, a->width))
                cortiq_fault(op, row);
}
CORTIQ_REGISTER(CORTIQ_COMBINE_EXPERTS, combine_rows)
