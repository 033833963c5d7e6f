/* ROUTE and COMBINE_EXPERTS: see numerics.route. */
#include "kernels.h"

#include <math.h>
#include <string.h>

/* The numbers of e^x and softplus among the activations (scalar.h). */
enum { ROUTE_EXP = 3, ROUTE_SOFTPLUS = 6 };

/* Whether expert i comes before j, which has another index: admitted ones first, then the larger
 * key, then the lower index. Without flags all are admitted. */
static int before(const float *keys, const uint8_t *admitted, int32_t i, int32_t j)
{
    if (admitted && admitted[i] != admitted[j]) return admitted[i] > admitted[j];
    return keys[i] == keys[j] ? i < j : keys[i] > keys[j];
}

/* The first top_k in that order; ascending. Each is compared with the last of those chosen. */
static void choose(const float *keys, const uint8_t *admitted, int32_t count, int32_t top_k,
                   int32_t *index)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t worst = 0;
        if (i < top_k) {
            index[i] = i;
            continue;
        }
        for (int32_t k = 1; k < top_k; k++)
            if (before(keys, admitted, index[worst], index[k])) worst = k;
        if (before(keys, admitted, i, index[worst])) {
            memmove(index + worst, index + worst + 1, (size_t)(top_k - 1 - worst) * sizeof *index);
            index[top_k - 1] = i;
        }
    }
}

/* A group's score: its largest admitted key, or the sum of its two largest admitted values. */
static float group_score(const cortiq_route *a, const float *values, const uint8_t *admitted,
                         int32_t from, int32_t to, uint8_t *any)
{
    float best = 0.0f, next = 0.0f;
    int32_t found = 0;
    for (int32_t i = from; i < to; i++) {
        if (!admitted[i]) continue;
        if (!found || values[i] > best) {
            next = best;
            best = values[i];
        } else if (found == 1 || values[i] > next) {
            next = values[i];
        }
        found++;
    }
    *any = found > 0;
    return a->best_two && found > 1 ? best + next : best;
}

/* Flags of the experts that may be chosen; NULL for all. `room` holds experts and groups. */
static const uint8_t *admit(const cortiq_route *a, const float *values, const float *keys,
                            uint8_t *admitted, float *scores, int32_t *kept)
{
    if (!a->mask && a->groups <= 1) return NULL;
    for (int32_t i = 0; i < a->experts; i++) admitted[i] = !a->mask || a->mask[i] != 0;
    if (a->groups <= 1) return admitted;
    uint8_t *any = admitted + a->experts, *stays = any + a->groups;
    int32_t size = a->experts / a->groups;
    for (int32_t g = 0; g < a->groups; g++)
        scores[g] = group_score(a, a->best_two ? values : keys, admitted, g * size, (g + 1) * size,
                                any + g);
    choose(scores, any, a->groups, a->kept_groups, kept);
    memset(stays, 0, (size_t)a->groups);
    for (int32_t k = 0; k < a->kept_groups; k++) stays[kept[k]] = 1;
    for (int32_t i = 0; i < a->experts; i++) admitted[i] &= stays[i / size];
    return admitted;
}

/* The sum of values in the canonical order. */
static float total_of(const float *x, int32_t count)
{
    float lanes[256] = {0};
    for (int32_t i = 0; i < count; i++) lanes[i % 256] = lanes[i % 256] + x[i];
    for (int32_t half = 128; half; half /= 2)
        for (int32_t i = 0; i < half; i++) lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

/* Softmax of the weights whose flag is set; the others become +0. e^x snapped is e^x here: what it
 * takes to +0 is too small to change a sum that holds a 1. */
static int softmax_of(const cortiq_row_kernels *k, float *weights, const uint8_t *there,
                      int32_t count)
{
    float highest = 0.0f, total;
    int32_t found = 0;
    for (int32_t i = 0; i < count; i++)
        if (there[i] && (!found++ || weights[i] > highest)) highest = weights[i];
    for (int32_t i = 0; i < count; i++) weights[i] = there[i] ? weights[i] - highest : 0.0f;
    k->activation(weights, NULL, weights, count, ROUTE_EXP);
    for (int32_t i = 0; i < count; i++) weights[i] = there[i] ? weights[i] : 0.0f;
    total = total_of(weights, count);
    return k->scale(weights, 1.0f / (total > 0 ? total : 1.0f), weights, count);
}

/* Whether expert j takes part in the softmax that gives the chosen expert c its weight. */
static int mixes(const cortiq_route *a, const float *scores, const uint8_t *admitted, int32_t c,
                 int32_t j)
{
    float m = scores[c], size = fabsf(scores[j]);
    if (admitted && !admitted[j]) return 0;
    if (j != c && before(scores, NULL, j, c)) return 0;
    return m - scores[j] <= a->margin * (size > m ? size : m);
}

/* The weights of a sparse mixer. `p` has room for all experts. */
static void mix(const cortiq_route *a, const cortiq_row_kernels *k, const float *scores,
                const uint8_t *admitted, const int32_t *index, float *weights, float *p)
{
    for (int32_t i = 0; i < a->top_k; i++) {
        int32_t c = index[i];
        for (int32_t j = 0; j < a->experts; j++)
            p[j] = mixes(a, scores, admitted, c, j) ? scores[j] - scores[c] : 0.0f;
        k->activation(p, NULL, p, a->experts, ROUTE_EXP);
        for (int32_t j = 0; j < a->experts; j++)
            p[j] = mixes(a, scores, admitted, c, j) ? p[j] : 0.0f;
        weights[i] = !admitted || admitted[c] ? 1.0f / total_of(p, a->experts) : 0.0f;
    }
}

/* The weights of the shortest prefix that holds tau of them; the others +0. `sums` has room for
 * `count` values. */
static void trim(const cortiq_route *a, const float *keys, const int32_t *index, float *weights,
                 float *sums)
{
    float total = 0.0f;
    for (int32_t d = 0; d < a->top_k; d++) total = total + weights[d];
    float enough = a->tau * total;
    for (int32_t c = 0; c < a->top_k; c++) {
        sums[c] = 0.0f;
        for (int32_t d = 0; d < a->top_k; d++)
            if (d != c && before(keys, NULL, index[d], index[c])) sums[c] = sums[c] + weights[d];
    }
    for (int32_t c = 0; c < a->top_k; c++)
        if (enough != 0 && !(sums[c] < enough)) weights[c] = 0.0f;
}

static void renormalise(float *weights, int32_t count, float floor)
{
    float total = 0.0f;
    for (int32_t k = 0; k < count; k++) total = total + weights[k];
    total = total + floor;
    for (int32_t k = 0; k < count; k++) weights[k] = total == 0 ? 0.0f : weights[k] / total;
}

/* The weights of the chosen experts, before renormalising. */
static int weigh(const cortiq_route *a, const cortiq_row_kernels *k, const float *p,
                 const uint8_t *admitted, uint8_t *there, const int32_t *index, float *weights)
{
    int softmax = a->router == CORTIQ_SOFTMAX_TOPK;
    for (int32_t i = 0; i < a->top_k; i++) {
        weights[i] = p[index[i]];
        there[i] = !admitted || admitted[index[i]];
        if (!there[i] && !softmax) weights[i] = 0.0f;
    }
    if (!softmax) return 0;
    return admitted ? softmax_of(k, weights, there, a->top_k) : k->softmax(weights, weights, a->top_k);
}

static int route_row(const cortiq_route *a, const cortiq_row_kernels *k, const float *scores,
                     float *scratch, int32_t *index, float *weights)
{
    const float *p = scores, *values = scores, *keys = scores;
    float *sums = scratch + a->experts, *groups = sums + a->experts;
    int32_t *kept = (int32_t *)(void *)(groups + a->experts);
    uint8_t *flags = (uint8_t *)(kept + a->experts), *there = flags + 3 * a->experts;
    int fault = 0;
    if (a->router == CORTIQ_SOFTMAX) fault |= k->softmax(scores, scratch, a->experts);
    if (a->router == CORTIQ_SQRT_SOFTPLUS) {
        fault |= k->activation(scores, NULL, scratch, a->experts, ROUTE_SOFTPLUS);
        for (int32_t i = 0; i < a->experts; i++) scratch[i] = sqrtf(scratch[i]);
    }
    if (a->router == CORTIQ_SIGMOID) fault |= k->sigmoid(scores, scratch, a->experts);
    if (a->router != CORTIQ_SOFTMAX_TOPK && a->router != CORTIQ_SPARSE_MIXER) values = p = scratch;
    if (a->bias) {
        fault |= k->add(p, a->bias, sums, a->experts);
        values = keys = sums;
    }
    const uint8_t *admitted = admit(a, values, keys, flags, groups, kept);
    choose(keys, admitted, a->experts, a->top_k, index);
    fault |= weigh(a, k, p, admitted, there, index, weights);
    if (a->router == CORTIQ_SPARSE_MIXER) mix(a, k, scores, admitted, index, weights, scratch);
    if (a->tau != 0) trim(a, keys, index, weights, groups);
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
