/* Entries that stand for several rows, for one instruction set: numerics.compression. */
#ifndef COMPRESS_BODY_H
#define COMPRESS_BODY_H

#include "scalar.h"

/* The row of a position in the ring. */
INLINE float *ring_row(const compress_rows *t, int32_t position)
{
    int64_t wide = (int64_t)t->parts * t->width;
    return t->ring + position % t->capacity * 2 * wide + t->from;
}

/* Keep n columns of each part of a row, and of what its weights are made from. */
static int keep_row(const compress_rows *t, int32_t row)
{
    vi worst = {0};
    int64_t wide = (int64_t)t->parts * t->width;
    int32_t position = t->position + row;
    const float *x = t->x + row * wide + t->from, *gates = t->gates + row * wide + t->from;
    const float *bias = t->bias + position % t->rate * wide + t->from;
    float *kept = ring_row(t, position);
    for (int64_t part = 0; part < wide; part += t->width)
        for (int i = 0; i < t->n; i += CQ_LANES) {
            int count = t->n - i;
            int64_t at = part + i;
            vf z = f_load_part(gates + at, count) + f_load_part(bias + at, count);
            f_store_part(kept + at, f_load_part(x + at, count), count);
            f_store_part(kept + wide + at, snap(z, &worst), count);
        }
    return has_fault(worst);
}

/* The entry that the row at `position` closes. */
static int close_window(const compress_rows *t, int32_t position, float *out)
{
    vi worst = {0}, none = {0};
    int64_t wide = (int64_t)t->parts * t->width;
    int32_t own = position + 1 - t->rate, first = own;
    if (t->parts > 1 && own >= t->rate) first -= t->rate;
    for (int i = 0; i < t->n; i += CQ_LANES) {
        int count = t->n - i;
        vf most = f_all(-0x1p50f), total = {0}, y = {0};
        for (int32_t at = first; at <= position; at++) {
            int64_t part = t->parts > 1 && at >= own ? t->width : 0;
            most = f_max(most, f_load_part(ring_row(t, at) + wide + part + i, count));
        }
        for (int32_t at = first; at <= position; at++) {
            const float *kept = ring_row(t, at) + (t->parts > 1 && at >= own ? t->width : 0) + i;
            vf w = snap(f_exp(f_load_part(kept + wide, count) - most), &none);
            total = total + w;
            y = y + w * f_load_part(kept, count);
        }
        f_store_part(out + i, snap(y * (f_all(1.0f) / total), &worst), count);
    }
    return has_fault(worst);
}

static void rows_compress(const compress_rows *t)
{
    for (int32_t row = 0; row < t->rows; row++) {
        int32_t position = t->position + row;
        float *out = t->out + (int64_t)row * t->width + t->from;
        int fault = keep_row(t, row);
        if ((position + 1) % t->rate) memset(out, 0, (size_t)t->n * sizeof *out);
        else fault |= close_window(t, position, out);
        if (fault) cortiq_note(t->faults + row);
    }
}

#endif
