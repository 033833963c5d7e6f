/* Filters of the sampling chain: top_k, top_p and min_p of numerics.sampling.
 *
 * All three keep a prefix of the order (distance descending, id ascending). Its end is found
 * without sorting the vocabulary: candidates are counted and their integer weights summed in
 * buckets of distance, which lie in that order, and only the bucket where a prefix ends is
 * sorted. */
#include "tail.h"

#include <math.h>
#include <stdlib.h>

/* How far from the most likely token filters look, first near, then everywhere; and e^cutoff,
 * rounded up. */
enum { CUTOFFS = 3 };
static const float cutoffs[CUTOFFS] = {-8.0f, -11.0f, -INFINITY};
static const double cutoff_shares[CUTOFFS] = {3.36e-4, 1.6703e-5, 0.0};

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

static int weighs(const cortiq_draw *draw) { return draw->top_p_on || draw->min_p; }
int cortiq_filters(const cortiq_draw *draw, int32_t width)
{
    return weighs(draw) || (draw->top_k && draw->top_k < width);
}

/* Candidates of a piece: its tokens from the cutoff on, counted and weighed. */
static void count_piece(const cortiq_draw *draw, tail_space *space, const float *p, int32_t start,
                        int32_t n, histogram *h)
{
    int32_t found = 0, *ids = space->ids + start * PIECE;
    const float *d = space->d + start * PIECE;
    for (int32_t i = 0; i < n; i++) {
        if (d[i] < space->cutoff || d[i] == MASKED) continue;
        int32_t bucket = bucket_of(d[i]);
        ids[found++] = start * PIECE + i;
        h->count[bucket]++;
        if (weighs(draw)) h->weight[bucket] += weight_of(p[i]);
    }
    space->pieces[start].candidates = found;
}

/* Each worker's counts and weights of the candidates it found, and every piece's whole weight. */
static void count_pieces(const cortiq_tail *a, const cortiq_draw *draw, cortiq_worker *worker,
                         tail_space *space)
{
    const cortiq_tail_kernels *k = &cortiq_kernels_of(worker->isa)->tail;
    histogram *h = &space->histograms[worker->index];
    float *p = (float *)(void *)worker->scratch;
    int32_t start, stop;
    memset(h, 0, sizeof *h);
    while (cortiq_take(worker, pieces_of(a->width), 1, &start, &stop)) {
        int32_t n = piece_length(a->width, start);
        if (weighs(draw)) {
            k->probabilities(space->d + start * PIECE, p, n);
            space->pieces[start].weight = k->weight(p, n);
        }
        count_piece(draw, space, p, start, n, h);
    }
    cortiq_barrier(worker);
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The candidates of a bucket in order; their number. */
static int32_t sort_bucket(tail_space *space, int32_t width, int32_t bucket)
{
    int32_t n = 0;
    for (int32_t i = 0; i < pieces_of(width); i++)
        for (int32_t j = 0; j < space->pieces[i].candidates; j++) {
            int32_t id = space->ids[i * PIECE + j];
            if (bucket_of(space->d[id]) == bucket)
                space->entries[n++] = order_of(space->d[id], id);
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

/* Candidates up to order `last` that weigh at least `bound`. */
static int32_t heavy(tail_space *space, const cortiq_tail_kernels *k, int32_t width, uint64_t bound,
                     uint64_t last)
{
    float d[256], p[256];
    int32_t total = 0;
    for (int32_t i = 0; i < pieces_of(width); i++) {
        const int32_t *ids = space->ids + i * PIECE;
        for (int32_t at = 0; at < space->pieces[i].candidates; at += 256) {
            int32_t left = space->pieces[i].candidates - at, n = left < 256 ? left : 256;
            for (int32_t j = 0; j < n; j++) d[j] = space->d[ids[at + j]];
            k->probabilities(d, p, n);
            for (int32_t j = 0; j < n; j++)
                total += weight_of(p[j]) >= bound && order_of(d[j], ids[at + j]) <= last;
        }
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

/* What the tokens weigh that top_k keeps, where it keeps all. */
static uint64_t whole_weight(const tail_space *space, int32_t width)
{
    uint64_t weight = 0;
    for (int32_t i = 0; i < pieces_of(width); i++) weight += space->pieces[i].weight;
    return weight;
}

static int limits_count(const cortiq_draw *draw, int32_t width)
{
    return draw->top_k && draw->top_k < width;
}

/* Whether the prefix that the filters keep ends among the candidates, which are a prefix too. A
 * token below the cutoff weighs less than e^cutoff, and half an ulp. */
static int candidates_suffice(const cortiq_draw *draw, const tail_space *space, int32_t width,
                              int stage)
{
    const histogram *h = &space->histograms[0];
    int64_t count = 0;
    uint64_t weight = 0;
    if (stage == CUTOFFS - 1) return 1;
    for (int32_t i = 0; i < BUCKETS; i++) {
        count += h->count[i];
        weight += h->weight[i];
    }
    if (limits_count(draw, width)) return count >= draw->top_k;
    if (draw->top_p_on && weight < share(whole_weight(space, width), draw->top_p)) return 0;
    uint64_t below = (uint64_t)(cutoff_shares[stage] * 0x1p40);
    return !draw->min_p || share((uint64_t)1 << 40, draw->min_p) > below;
}

/* space->last for the filters of a row. */
static void find_last(const cortiq_tail *a, const cortiq_draw *draw, tail_space *space,
                      const cortiq_tail_kernels *k)
{
    int32_t length = a->width, candidates = 0;
    uint64_t weight, ignored, last = UINT64_MAX;
    for (int32_t i = 0; i < BUCKETS; i++) candidates += space->histograms[0].count[i];
    if (limits_count(draw, a->width)) {
        length = draw->top_k < candidates ? draw->top_k : candidates; /* a mask may leave fewer */
        last = last_of(space, k, a->width, length, &weight);
    } else
        weight = whole_weight(space, a->width);
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

/* Find what the filters keep, among the tokens near the most likely one if that will do. */
void cortiq_filter_row(const cortiq_tail *a, const cortiq_draw *draw, cortiq_worker *worker,
                       tail_space *space)
{
    const cortiq_tail_kernels *k = &cortiq_kernels_of(worker->isa)->tail;
    for (int stage = 0; stage < CUTOFFS; stage++) {
        if (worker->index == 0) space->cutoff = cutoffs[stage];
        cortiq_barrier(worker);
        count_pieces(a, draw, worker, space);
        if (worker->index == 0) {
            add_histograms(space, worker->threads);
            space->enough = candidates_suffice(draw, space, a->width, stage);
            if (space->enough) find_last(a, draw, space, k);
        }
        cortiq_barrier(worker);
        if (space->enough) return;
    }
}

