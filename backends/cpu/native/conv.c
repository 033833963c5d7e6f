/* CAUSAL_CONV: rows of the batch and, before them, rows of each sequence's ring. */
#include "kernels.h"

#include <string.h>

/* Channels a worker takes at a time, and the most taps there are. */
enum { CHANNELS = 1024, MOST_TAPS = 64 };

/* Where channel `from` of the row at `position` is, or NULL before the sequence begins. */
static const float *row_at(const cortiq_conv *a, int32_t segment, int32_t position, int32_t from)
{
    const cortiq_segment *s = &a->segments[segment];
    if (position < 0) return NULL;
    if (position >= s->position)
        return a->x + (s->start + position - s->position) * a->x_stride + from;
    return a->rings[segment] + (int64_t)(position % a->capacities[segment]) * a->width + from;
}

static int32_t segment_of(const cortiq_conv *a, int32_t row)
{
    int32_t i = 0;
    while (row >= a->segments[i].stop) i++;
    return i;
}

static void conv_part(const cortiq_op *op, cortiq_worker *worker, int32_t row, int32_t from)
{
    const cortiq_conv *a = op->args;
    const float *rows[MOST_TAPS];
    int32_t segment = segment_of(a, row), n = a->width - from;
    if (n > CHANNELS) n = CHANNELS;
    const cortiq_segment *s = &a->segments[segment];
    int32_t position = s->position + row - s->start;
    for (int32_t t = 0; t < a->taps; t++)
        rows[t] = row_at(a, segment, position - a->taps + 1 + t, from);
    if (cortiq_kernels_of(worker->isa)
            ->row.conv(rows, a->weight + from, a->bias ? a->bias + from : NULL,
                       a->out + row * a->out_stride + from, a->taps, a->width, n))
        cortiq_fault(op, row);
}

/* Rows of the batch that later batches look back to; when all old ones have been read. */
static void keep_row(const cortiq_conv *a, int32_t row)
{
    int32_t segment = segment_of(a, row);
    const cortiq_segment *s = &a->segments[segment];
    int32_t capacity = a->capacities[segment];
    if (s->stop - row > capacity) return;
    int32_t position = s->position + row - s->start;
    memcpy(a->rings[segment] + (int64_t)(position % capacity) * a->width, a->x + row * a->x_stride,
           (size_t)a->width * sizeof(float));
}

static void conv_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_conv *a = op->args;
    int32_t start, stop, chunks = (a->width + CHANNELS - 1) / CHANNELS, total = *op->rows * chunks;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t i = start; i < stop; i++)
            conv_part(op, worker, i / chunks, i % chunks * CHANNELS);
    cortiq_barrier(worker);
    while (cortiq_take(worker, *op->rows, 1, &start, &stop)) keep_row(a, start);
}
CORTIQ_REGISTER(CORTIQ_CAUSAL_CONV, conv_rows)
