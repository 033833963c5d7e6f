/* CAUSAL_CONV: rows of the batch and, before them, rows of each sequence's ring.
 *
 * Channels have nothing to do with each other: a worker takes some of them through all rows of a
 * sequence in the batch, and keeps theirs in the ring. */
#include "kernels.h"

/* Channels that a worker takes at a time, of one row or through many. */
enum { OF_A_ROW = 1024, OF_ROWS = 128 };

/* n channels of a segment. */
static void conv_part(const cortiq_op *op, cortiq_worker *worker, int32_t segment, int32_t from,
                      int32_t n)
{
    const cortiq_conv *a = op->args;
    const cortiq_segment *s = &a->segments[segment];
    float *ring = a->rings[segment] + from;
    int64_t capacity = a->capacities[segment];
    const float *before[CORTIQ_MOST_TAPS] = {0};
    for (int32_t t = 0; t < a->taps - 1; t++) {
        int64_t position = (int64_t)s->position - a->taps + 1 + t;
        if (position >= 0) before[t] = ring + position % capacity * a->width;
    }
    conv_rows part = {
        .x = a->x + s->start * a->x_stride + from, .weight = a->weight + (int64_t)from * a->taps,
        .bias = a->bias ? a->bias + from : NULL, .out = a->out + s->start * a->out_stride + from,
        .ring = ring, .before = before, .faults = op->faults + s->start, .x_stride = a->x_stride,
        .out_stride = a->out_stride, .width = a->width, .rows = s->stop - s->start, .n = n,
        .taps = a->taps, .capacity = (int32_t)capacity,
        .place = (int32_t)(s->position % capacity),
    };
    cortiq_kernels_of(worker->isa)->row.conv(&part);
}

/* Pieces of a segment's channels that a worker takes are computed together. */
static void conv_rows_of(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_conv *a = op->args;
    int32_t segments = *a->segment_count, start, stop;
    int32_t wide = *op->rows > segments ? OF_ROWS : OF_A_ROW;
    int32_t pieces = (a->width + wide - 1) / wide, total = segments * pieces;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        while (start < stop) {
            int32_t segment = start / pieces, end = (segment + 1) * pieces;
            int32_t from = start % pieces * wide, rest = a->width - from;
            int32_t n = ((end < stop ? end : stop) - start) * wide;
            conv_part(op, worker, segment, from, n < rest ? n : rest);
            start = end;
        }
}
CORTIQ_REGISTER(CORTIQ_CAUSAL_CONV, conv_rows_of)
