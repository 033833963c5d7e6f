/* COMPRESS: columns have nothing to do with each other; a worker takes some of them through all rows
 * of a sequence in the batch, each kept in the ring before an entry is made of it. */
#include "kernels.h"

enum { COLUMNS = 64 };

static void compress_part(const cortiq_op *op, cortiq_worker *worker, int32_t segment, int32_t from)
{
    const cortiq_compress *a = op->args;
    const cortiq_segment *s = &a->segments[segment];
    int64_t wide = (int64_t)a->parts * a->width;
    compress_rows part = {
        .x = a->x + s->start * wide, .gates = a->gates + s->start * wide, .bias = a->bias,
        .out = a->out + (int64_t)s->start * a->width, .ring = a->rings[segment],
        .faults = op->faults + s->start, .position = s->position, .rows = s->stop - s->start,
        .from = from, .n = a->width - from < COLUMNS ? a->width - from : COLUMNS,
        .width = a->width, .rate = a->rate, .parts = a->parts,
        .capacity = a->capacities[segment],
    };
    cortiq_kernels_of(worker->isa)->row.compress(&part);
}

static void compress_rows_of(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_compress *a = op->args;
    int32_t start, stop, pieces = (a->width + COLUMNS - 1) / COLUMNS;
    while (cortiq_take(worker, *a->segment_count * pieces, 1, &start, &stop))
        compress_part(op, worker, start / pieces, start % pieces * COLUMNS);
}
CORTIQ_REGISTER(CORTIQ_COMPRESS, compress_rows_of)
