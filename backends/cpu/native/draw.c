/* DRAW: the sampling chain of numerics.sampling, one row at a time, its pieces over threads. */
#include "tail.h"

static int allows(const cortiq_draw *draw, int32_t id)
{
    return !draw->mask || (draw->mask[id / 8] >> id % 8 & 1);
}

/* x[i] = value for the ids of a piece that the mask excludes; a piece starts at a whole byte. */
static void exclude(const cortiq_draw *draw, int32_t index, float *x, int32_t n, float value)
{
    if (!draw->mask) return;
    const uint8_t *mask = draw->mask + index * (PIECE / 8);
    for (int32_t i = 0; i < n; i++) {
        if (i % 8 == 0 && mask[i / 8] == 0xff) {
            i += 7;
            continue;
        }
        if (!(mask[i / 8] >> i % 8 & 1)) x[i] = value;
    }
}

/* Bias and penalties, on a copy of the logits; 1 on a fault. */
static int adjust(float *x, const cortiq_draw *draw, const cortiq_row_kernels *k)
{
    int fault = 0;
    for (int32_t i = 0; i < draw->bias_count; i++) {
        if (!allows(draw, draw->bias_ids[i])) continue;
        float *y = &x[draw->bias_ids[i]], sum = *y + draw->bias[i];
        fault |= k->snap(&sum, y, 1);
    }
    for (int32_t i = 0; i < draw->seen_count; i++) {
        if (!allows(draw, draw->seen_ids[i])) continue;
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
        exclude(&a->draws[row], start, x, n, 0); /* which no temperature takes out of the domain */
        if (factor != 0 && k->row.scale(x, factor, x, n)) cortiq_fault(op, row);
        exclude(&a->draws[row], start, x, n, MASKED);
        int32_t at = k->tail.argmax(x, n);
        space->pieces[start].index = start * PIECE + at;
        space->pieces[start].value = x[at];
    }
    cortiq_barrier(worker);
}

/* Distances from the largest. */
static void measure(const cortiq_op *op, cortiq_worker *worker, tail_space *space, int32_t row)
{
    const cortiq_tail *a = op->args;
    const cortiq_tail_kernels *k = &cortiq_kernels_of(worker->isa)->tail;
    float highest = cortiq_best_piece(space, a->width).value;
    int32_t start, stop;
    while (cortiq_take(worker, pieces_of(a->width), 1, &start, &stop)) {
        float *d = space->d + start * PIECE;
        int32_t n = piece_length(a->width, start);
        exclude(&a->draws[row], start, d, n, highest);
        if (k->distances(d, highest, d, n)) cortiq_fault(op, row);
        exclude(&a->draws[row], start, d, n, MASKED);
    }
    cortiq_barrier(worker);
}

/* Distance plus noise of a piece's kept tokens, and the best of them. */
static void draw_piece(const cortiq_tail *a, const cortiq_draw *draw, tail_space *space,
                       cortiq_worker *worker, int32_t index, int filtered)
{
    const cortiq_tail_kernels *k = &cortiq_kernels_of(worker->isa)->tail;
    float *kept = (float *)(void *)worker->scratch, *noisy = kept + PIECE + 16;
    int32_t *ids = (int32_t *)(void *)(noisy + PIECE + 16), n = 0;
    int32_t count = filtered ? space->pieces[index].candidates : piece_length(a->width, index);
    for (int32_t i = 0; i < count; i++) {
        int32_t id = filtered ? space->ids[index * PIECE + i] : index * PIECE + i;
        if (space->d[id] == MASKED) continue;
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
    int filtered = cortiq_filters(draw, a->width);
    int32_t start, stop;
    take_logits(op, worker, space, row);
    scale_pieces(op, worker, space, row);
    if (draw->inverse_temperature == 0) return;
    measure(op, worker, space, row);
    if (filtered) cortiq_filter_row(a, draw, worker, space);
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
