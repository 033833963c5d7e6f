/* A row of a causal convolution, for one instruction set. */
#ifndef CONV_BODY_H
#define CONV_BODY_H

#include "scalar.h"

/* Vectors of channels whose sums are taken side by side. */
enum { CONV_SPAN = 4 };

/* `span` vectors of channels from i, `count` of the last. */
INLINE void conv_span(const float *const *rows, const float *weight, const float *bias, float *out,
                      int taps, int64_t weight_stride, int i, int span, int count, vi *worst)
{
    vf y[CONV_SPAN] = {{0}};
    for (int t = 0; t < taps; t++)
        if (rows[t])
#pragma GCC unroll 4
            for (int c = 0; c < span; c++) {
                int at = i + c * CQ_LANES;
                y[c] = y[c] + f_load_part(weight + t * weight_stride + at, count) *
                                  f_load_part(rows[t] + at, count);
            }
#pragma GCC unroll 4
    for (int c = 0; c < span; c++) {
        int at = i + c * CQ_LANES;
        if (bias) y[c] = y[c] + f_load_part(bias + at, count);
        f_store_part(out + at, snap(y[c], worst), count);
    }
}

static int row_conv(const float *const *rows, const float *weight, const float *bias, float *out,
                    int taps, int64_t weight_stride, int n)
{
    vi worst = {0};
    int i = 0;
    for (; i + CONV_SPAN * CQ_LANES <= n; i += CONV_SPAN * CQ_LANES)
        conv_span(rows, weight, bias, out, taps, weight_stride, i, CONV_SPAN, CQ_LANES, &worst);
    for (; i < n; i += CQ_LANES) {
        int count = n - i < CQ_LANES ? n - i : CQ_LANES;
        conv_span(rows, weight, bias, out, taps, weight_stride, i, 1, count, &worst);
    }
    return has_fault(worst);
}

#endif
