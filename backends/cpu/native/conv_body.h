/* Rows of a causal convolution, for one instruction set. */
#ifndef CONV_BODY_H
#define CONV_BODY_H

#include "scalar.h"

/* Vectors of channels that go through the rows side by side. Of these rows the channels so far
 * ahead are asked for; of the first channels, for which nobody asked, those of rows ahead. */
enum { CONV_SPAN = 2, CONV_NEXT = 128, CONV_AHEAD = 8 };

INLINE vf conv_weight(const conv_rows *t, int tap, int i)
{
    int block = i / CORTIQ_TAP_BLOCK * CORTIQ_TAP_BLOCK;
    return f_load(t->weight + (int64_t)block * t->taps + tap * CORTIQ_TAP_BLOCK + (i - block));
}

/* `span` vectors of channels from i, `count` of the last, through all rows: a row is read once, and
 * kept, before its output may take its place. With a constant number of taps they and the rows
 * before are in registers. */
INLINE void conv_span(const conv_rows *t, int taps, int span, int i, int count)
{
    vf w[CORTIQ_MOST_TAPS][CONV_SPAN], seen[CORTIQ_MOST_TAPS][CONV_SPAN];
    for (int k = 0; k < taps; k++)
        for (int c = 0; c < span; c++) {
            int at = i + c * CQ_LANES;
            const float *before = k ? t->before[k - 1] : NULL;
            w[k][c] = conv_weight(t, k, at);
            seen[k][c] = before ? f_load_part(before + at, count) : (vf){0};
        }
    const float *x = t->x + i;
    float *out = t->out + i;
    int32_t place = t->place;
    for (int row = 0; row < t->rows; row++, x += t->x_stride, out += t->out_stride) {
        int64_t ahead = i + CONV_NEXT < t->n ? CONV_NEXT : 0;
        int64_t below = i < CONV_NEXT && row + CONV_AHEAD < t->rows ? CONV_AHEAD * t->x_stride : 0;
        int kept = t->rows - row <= t->capacity;
        vi worst = {0};
        for (int c = 0; c < span; c++) {
            int at = c * CQ_LANES;
            vf y = {0};
            __builtin_prefetch(x + ahead + at, 1);
            __builtin_prefetch(x + below + at, 1);
            for (int k = 0; k < taps; k++) {
                seen[k][c] = k + 1 < taps ? seen[k + 1][c] : f_load_part(x + at, count);
                y = y + w[k][c] * seen[k][c];
            }
            if (kept) f_store_part(t->ring + place * t->width + i + at, seen[taps - 1][c], count);
            if (t->bias) y = y + f_load_part(t->bias + i + at, count);
            f_store_part(out + at, snap(y, &worst), count);
        }
        if (i_any_at_least(worst, LARGEST_BITS)) cortiq_note(t->faults + row);
        place = place + 1 < t->capacity ? place + 1 : 0;
    }
}

INLINE void conv_channels(const conv_rows *t, int taps, int span)
{
    int i = 0;
    for (; i + span * CQ_LANES <= t->n; i += span * CQ_LANES)
        conv_span(t, taps, span, i, CQ_LANES);
    for (; i < t->n; i += CQ_LANES)
        conv_span(t, taps, 1, i, t->n - i < CQ_LANES ? t->n - i : CQ_LANES);
}

static void rows_conv(const conv_rows *t)
{
    if (t->taps == 4) conv_channels(t, 4, CONV_SPAN);
    else if (t->taps == 3) conv_channels(t, 3, CONV_SPAN);
    else conv_channels(t, t->taps, 1);
}

#endif
