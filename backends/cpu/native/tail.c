/* ARGMAX, LOG_SUM_EXP, DIGEST and TOP: see numerics.sampling and numerics.digest. */
#include "tail.h"

static size_t aligned(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* Bytes of workspace for any op of `cortiq_tail`. */
CORTIQ_API int64_t cortiq_tail_workspace(int32_t width, int32_t threads)
{
    size_t pieces = (size_t)pieces_of(width) * sizeof(piece);
    size_t values = 2 * aligned(4 * (size_t)width) + aligned(8 * (size_t)width);
    size_t histograms = (size_t)threads * aligned(sizeof(histogram));
    return (int64_t)(aligned(sizeof(tail_space)) + aligned(pieces) + values + histograms);
}

tail_space *cortiq_tail_space(const cortiq_tail *a)
{
    tail_space *space = a->workspace;
    uint8_t *at = (uint8_t *)space + aligned(sizeof *space);
    space->pieces = (piece *)(void *)at;
    at += aligned((size_t)pieces_of(a->width) * sizeof(piece));
    space->d = (float *)(void *)at;
    at += aligned(4 * (size_t)a->width);
    space->ids = (int32_t *)(void *)at;
    at += aligned(4 * (size_t)a->width);
    space->entries = (uint64_t *)(void *)at;
    at += aligned(8 * (size_t)a->width);
    space->histograms = (histogram *)(void *)at;
    return space;
}

piece cortiq_best_piece(const tail_space *space, int32_t width)
{
    piece best = space->pieces[0];
    for (int32_t i = 1; i < pieces_of(width); i++)
        if (best.index < 0 || (space->pieces[i].index >= 0 && space->pieces[i].value > best.value))
            best = space->pieces[i];
    return best;
}

/* Workers set up the same workspace, one after the other's barrier. */
static tail_space *open_space(const cortiq_tail *a, cortiq_worker *worker)
{
    if (worker->index == 0) cortiq_tail_space(a);
    cortiq_barrier(worker);
    return a->workspace;
}

static void argmax_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_tail *a = op->args;
    const cortiq_tail_kernels *k = &cortiq_kernels_of(worker->isa)->tail;
    tail_space *space = open_space(a, worker);
    for (int32_t row = 0; row < *op->rows; row++) {
        const float *x = row_of(a, row);
        int32_t start, stop;
        while (cortiq_take(worker, pieces_of(a->width), 1, &start, &stop)) {
            int32_t at = k->argmax(x + start * PIECE, piece_length(a->width, start));
            space->pieces[start].index = start * PIECE + at;
            space->pieces[start].value = x[start * PIECE + at];
        }
        cortiq_barrier(worker);
        if (worker->index == 0) a->index[row] = cortiq_best_piece(space, a->width).index;
        cortiq_barrier(worker);
    }
}
CORTIQ_REGISTER(CORTIQ_ARGMAX, argmax_rows)

static void digest_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_tail *a = op->args;
    const cortiq_tail_kernels *k = &cortiq_kernels_of(worker->isa)->tail;
    tail_space *space = open_space(a, worker);
    for (int32_t row = 0; row < *op->rows; row++) {
        int32_t start, stop, count = pieces_of(a->width);
        while (cortiq_take(worker, count, 1, &start, &stop)) {
            memset(space->pieces[start].words, 0, sizeof space->pieces[start].words);
            k->digest(row_of(a, row) + start * PIECE, piece_length(a->width, start),
                      (uint32_t)start * PIECE, space->pieces[start].words);
        }
        cortiq_barrier(worker);
        for (int32_t l = 0; worker->index == 0 && l < 4; l++) {
            a->words[4 * row + l] = 0;
            for (int32_t i = 0; i < count; i++) a->words[4 * row + l] += space->pieces[i].words[l];
        }
        cortiq_barrier(worker);
    }
}
CORTIQ_REGISTER(CORTIQ_DIGEST, digest_rows)

/* Lane 0 after the halving of canonical_sum. */
static float fold(float *lanes)
{
    for (int half = 128; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

static void log_sum_exp_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_tail *a = op->args;
    const cortiq_kernels *k = cortiq_kernels_of(worker->isa);
    tail_space *space = open_space(a, worker);
    for (int32_t row = 0; row < *op->rows; row++) {
        const float *x = row_of(a, row);
        int32_t start, stop;
        while (cortiq_take(worker, pieces_of(a->width), 1, &start, &stop)) {
            space->pieces[start].index = start;
            space->pieces[start].value =
                k->tail.highest(x + start * PIECE, piece_length(a->width, start));
        }
        cortiq_barrier(worker);
        float highest = cortiq_best_piece(space, a->width).value;
        while (cortiq_take(worker, 256, SUM_LANES, &start, &stop))
            k->tail.exp_lanes(x, highest, a->width, start, SUM_LANES, space->lanes);
        cortiq_barrier(worker);
        if (worker->index == 0) {
            float total = highest + k->tail.log(fold(space->lanes));
            if (k->row.snap(&total, &a->values[row], 1)) cortiq_fault(op, row);
        }
        cortiq_barrier(worker);
    }
}
CORTIQ_REGISTER(CORTIQ_LOG_SUM_EXP, log_sum_exp_rows)

/* Restore a heap whose largest entry is first, below `at`. */
static void sift(uint64_t *heap, int32_t count, int32_t at)
{
    uint64_t entry = heap[at];
    for (int32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= entry) break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

/* The n entries of smallest order, sorted: a heap of the best so far, then taken apart. */
static void smallest(const float *x, int32_t width, uint64_t *heap, int32_t n)
{
    for (int32_t i = 0; i < n; i++) heap[i] = order_of(x[i], i);
    for (int32_t i = n / 2; i-- > 0;) sift(heap, n, i);
    for (int32_t i = n; i < width; i++) {
        uint64_t entry = order_of(x[i], i);
        if (entry > heap[0]) continue;
        heap[0] = entry;
        sift(heap, n, 0);
    }
    for (int32_t left = n - 1; left > 0; left--) {
        uint64_t largest = heap[0];
        heap[0] = heap[left];
        heap[left] = largest;
        sift(heap, left, 0);
    }
}

static void top_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_tail *a = op->args;
    if (worker->index != 0) return;
    tail_space *space = cortiq_tail_space(a);
    for (int32_t row = 0; row < *op->rows; row++) {
        const float *x = row_of(a, row);
        smallest(x, a->width, space->entries, a->count);
        for (int32_t i = 0; i < a->count; i++) {
            int32_t id = (int32_t)(uint32_t)space->entries[i];
            a->index[(int64_t)row * a->count + i] = id;
            a->values[(int64_t)row * a->count + i] = x[id];
        }
    }
}
CORTIQ_REGISTER(CORTIQ_TOP, top_rows)
