/* DRAW: the sampling chain of numerics.sampling, one row at a time, its pieces over threads.
 *
 * Filters keep a prefix of the order (distance descending, id ascending). Its end is found without
 * sorting the vocabulary: tokens are counted and their integer weights summed in buckets of
 * distance, which are in that order, and only the bucket where the prefix ends is sorted. */
#include "tail.h"

#include <math.h>
#include <stdlib.h>

static int32_t bucket_of(float d)
{
    float place = d * -64.0f;
    return place < BUCKETS - 1 ? (int32_t)place : BUCKETS - 1;
}

static uint64_t weight_of(float p) { return (uint64_t)((double)p * 0x1p40); }

/* ⌈total·f/2^24⌉ */
static uint64_t share(uint64_t total, uint32_t f)
{
    unsigned __int128 product = (unsigned __int128)total * f;
    return (uint64_t)((product + 0xffffff) >> 24);
}

/* Bias and penalties, on a copy of the logits; 1 on a fault. */
static int adjust(float *x, const cortiq_draw *draw, const cortiq_row_kernels *k)
{
    int fault = 0;
    for (int32_t i = 0; i < draw->bias_count; i++) {
        float *y = &x[draw->bias_ids[i]], sum = *y + draw->bias[i];
        fault |= k->snap(&sum, y, 1);
    }
    for (int32_t i = 0; i < draw->seen_count; i++) {
        float *to = &x[draw->seen_ids[i]], y = *to;
        if (draw->repetition != 1) y = y > 0 ? y * draw->inverse_repetition : y * draw->repetition;
        if (draw->presence != 0) y = y - draw->presence;
        if (draw->frequency != 0) y = y - draw->frequency * (float)draw->seen_counts[i];
        fault |= k->snap(&y, to, 1);
    }
    return fault;
}

/* x = logits, with bias and penalties. */
static void take_logits(const cortiq_op *op, cortiq_worker *worker, tail_space *space, int32_t row)
{
    const cortiq_tail *a = op->args;
    int32_t start, stop;
    while (cortiq_take(worker, pieces_of(a->width), 1, &start, &stop))
        memcpy(space->d + start * PIECE, row_of(a, row) + start * PIECE,
               sizeof(float) * (size_t)piece_length(a->width, start));
    cortiq_barrier(worker);
    if (worker->index == 0 &&
        adjust(space->d, &a->draws[row], &cortiq_kernels_of(worker->isa)->row))
        cortiq_fault(op, row);
    cortiq_barrier(worker);
}

/* x scaled by 1/T (unless T is 0), and the largest of each piece with its index. */
static void scale_pieces(const cortiq_op *op, cortiq_worker *worker, tail_space *space, int32_t row)
{
    const cortiq_tail *a = op->args;
    const cortiq_kernels *k = cortiq_kernels_of(worker->isa);
    float factor = a->draws[row].inverse_temperature;
    int32_t start, stop;
    while (cortiq_take(worker, pieces_of(a->width), 1, &start, &stop)) {
        float *x = space->d + start * PIECE;
        int32_t n = piece_length(a->width, start);
        if (factor != 0 && k->row.scale(x, factor, x, n)) cortiq_fault(op, row);
        int32_t at = k->tail.argmax(x, n);
        space->pieces[start].index = start * PIECE + at;
        space->pieces[start].value = x[at];
    }
    cortiq_barrier(worker);
}

static int weighs(const cortiq_draw *draw) { return draw->top_p_on || draw->min_p; }
static int filters(const cortiq_draw *draw, int32_t width)
{
    return weighs(draw) || (draw->top_k && draw->top_k < width);
}

static void count_piece(const float *d, float *p, int32_t n, const cortiq_draw *draw,
                        const cortiq_tail_kernels *k, histogram *h)
{
    if (weighs(draw)) k->probabilities(d, p, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t bucket = bucket_of(d[i]);
        h->count[bucket]++;
        if (weighs(draw)) h->weight[bucket] += weight_of(p[i]);
    }
}

/* Distances from the largest, and with filters this worker's counts and weights of them. */
static void measure(const cortiq_op *op, cortiq_worker *worker, tail_space *space, int32_t row)
{
    const cortiq_tail *a = op->args;
    const cortiq_tail_kernels *k = &cortiq_kernels_of(worker->isa)->tail;
    const cortiq_draw *draw = &a->draws[row];
    float highest = cortiq_best_piece(space, a->width).value;
    histogram *h = &space->histograms[worker->index];
    int32_t start, stop, filtered = filters(draw, a->width);
    if (filtered) memset(h, 0, sizeof *h);
    while (cortiq_take(worker, pieces_of(a->width), 1, &start, &stop)) {
        float *d = space->d + start * PIECE;
        int32_t n = piece_length(a->width, start);
        if (k->distances(d, highest, d, n)) cortiq_fault(op, row);
        if (filtered) count_piece(d, (float *)(void *)worker->scratch, n, draw, k, h);
    }
    cortiq_barrier(worker);
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The tokens of a bucket in order; their number. */
static int32_t sort_bucket(tail_space *space, int32_t width, int32_t bucket)
{
    int32_t n = 0;
    float first = (float)bucket, end = bucket < BUCKETS - 1 ? first + 1 : INFINITY;
    for (int32_t i = 0; i < width; i++) {
        float place = space->d[i] * -64.0f;
        if (place >= first && place < end) space->entries[n++] = order_of(space->d[i], i);
    }
    qsort(space->entries, (size_t)n, sizeof *space->entries, ascending);
    return n;
}

static uint64_t weight_of_entry(const tail_space *space, const cortiq_tail_kernels *k, int32_t at)
{
    float p;
    k->probabilities(&space->d[(uint32_t)space->entries[at]], &p, 1);
    return weight_of(p);
}

/* The order of the last of the first `length` tokens, and what they weigh together. */
static uint64_t last_of(tail_space *space, const cortiq_tail_kernels *k, int32_t width,
                        int32_t length, uint64_t *weight)
{
    const histogram *h = &space->histograms[0];
    int32_t bucket = 0;
    *weight = 0;
    for (; length > h->count[bucket]; bucket++) {
        length -= h->count[bucket];
        *weight += h->weight[bucket];
    }
    sort_bucket(space, width, bucket);
    for (int32_t i = 0; i < length; i++) *weight += weight_of_entry(space, k, i);
    return space->entries[length - 1];
}

/* The length of the shortest prefix that weighs at least `wanted`, which all tokens do. */
static int32_t length_of(tail_space *space, const cortiq_tail_kernels *k, int32_t width,
                         uint64_t wanted)
{
    const histogram *h = &space->histograms[0];
    int32_t bucket = 0, length = 0;
    uint64_t weight = 0;
    for (; weight + h->weight[bucket] < wanted; bucket++) {
        length += h->count[bucket];
        weight += h->weight[bucket];
    }
    int32_t n = sort_bucket(space, width, bucket);
    for (int32_t i = 0; i < n; i++) {
        length++;
        weight += weight_of_entry(space, k, i);
        if (weight >= wanted) break;
    }
    return length < 1 ? 1 : length;
}

/* Tokens up to order `last` that weigh at least `bound`. */
static int32_t heavy(tail_space *space, const cortiq_tail_kernels *k, int32_t width, uint64_t bound,
                     uint64_t last)
{
    float p[256];
    int32_t total = 0;
    for (int32_t at = 0; at < width; at += 256) {
        int32_t n = width - at < 256 ? width - at : 256;
        k->probabilities(space->d + at, p, n);
        for (int32_t i = 0; i < n; i++)
            total += weight_of(p[i]) >= bound && order_of(space->d[at + i], at + i) <= last;
    }
    return total;
}

/* All workers' counts and weights, in the first's. */
static void add_histograms(tail_space *space, int32_t threads)
{
    histogram *h = &space->histograms[0];
    for (int32_t t = 1; t < threads; t++)
        for (int32_t i = 0; i < BUCKETS; i++) {
            h->count[i] += space->histograms[t].count[i];
            h->weight[i] += space->histograms[t].weight[i];
        }
}

/* space->last for the filters of a row. */
static void find_last(const cortiq_tail *a, const cortiq_draw *draw, tail_space *space,
                      const cortiq_tail_kernels *k, int32_t threads)
{
    const histogram *h = &space->histograms[0];
    add_histograms(space, threads);
    int32_t length = a->width;
    uint64_t weight = 0, ignored, last = UINT64_MAX;
    if (draw->top_k && draw->top_k < a->width) {
        length = draw->top_k;
        last = last_of(space, k, a->width, length, &weight);
    } else
        for (int32_t i = 0; i < BUCKETS; i++) weight += h->weight[i];
    if (draw->top_p_on) {
        int32_t shortest = length_of(space, k, a->width, share(weight, draw->top_p));
        length = shortest < length ? shortest : length;
    }
    if (draw->min_p) {
        int32_t enough = heavy(space, k, a->width, share((uint64_t)1 << 40, draw->min_p), last);
        length = enough < length ? enough : length;
    }
    space->last = last_of(space, k, a->width, length < 1 ? 1 : length, &ignored);
}

/* Distance plus noise of a piece's kept tokens, and the best of them. */
static void draw_piece(const cortiq_tail *a, const cortiq_draw *draw, tail_space *space,
                       cortiq_worker *worker, int32_t index, int filtered)
{
    const cortiq_tail_kernels *k = &cortiq_kernels_of(worker->isa)->tail;
    float *kept = (float *)(void *)worker->scratch, *noisy = kept + PIECE + 16;
    int32_t *ids = (int32_t *)(void *)(noisy + PIECE + 16), n = 0;
    for (int32_t i = 0; i < piece_length(a->width, index); i++) {
        int32_t id = index * PIECE + i;
        if (filtered && order_of(space->d[id], id) > space->last) continue;
        kept[n] = space->d[id];
        ids[n++] = id;
    }
    space->pieces[index].index = -1;
    if (!n) return;
    k->noisy(kept, ids, noisy, n, draw);
    int32_t at = k->argmax(noisy, n);
    space->pieces[index].index = ids[at];
    space->pieces[index].value = noisy[at];
}

static void draw_row(const cortiq_op *op, cortiq_worker *worker, tail_space *space, int32_t row)
{
    const cortiq_tail *a = op->args;
    const cortiq_draw *draw = &a->draws[row];
    int filtered = filters(draw, a->width);
    int32_t start, stop;
    take_logits(op, worker, space, row);
    scale_pieces(op, worker, space, row);
    if (draw->inverse_temperature == 0) return;
    measure(op, worker, space, row);
    if (filtered && worker->index == 0)
        find_last(a, draw, space, &cortiq_kernels_of(worker->isa)->tail, worker->threads);
    cortiq_barrier(worker);
    while (cortiq_take(worker, pieces_of(a->width), 1, &start, &stop))
        draw_piece(a, draw, space, worker, start, filtered);
    cortiq_barrier(worker);
}

static void draw_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_tail *a = op->args;
    if (worker->index == 0) cortiq_tail_space(a);
    cortiq_barrier(worker);
    for (int32_t row = 0; row < *op->rows; row++) {
        draw_row(op, worker, a->workspace, row);
        if (worker->index == 0) a->index[row] = cortiq_best_piece(a->workspace, a->width).index;
        cortiq_barrier(worker);
    }
}
CORTIQ_REGISTER(CORTIQ_DRAW, draw_rows)
