/* One row of the batch through columns of a head's state, for one instruction set. */
#ifndef RECURRENCE_BODY_H
#define RECURRENCE_BODY_H

#include "scalar.h"

/* canonical_sum's lanes i + 16·m, m = 0 … 15, meet in its first four halvings, before those of
 * different i do: sums of 16 lanes need registers only. A missing lane is +0. Sums that
 * are −0 here and +0 there differ in nothing: what they go into is rounded and snapped after. */
enum { RUN = 16 };
/* Vectors of columns taken together: a factor is read once for them. */
enum { SPAN = 2 };

INLINE void halved(vf t[][SPAN], int count, int span)
{
#pragma GCC unroll 4
    for (int half = RUN / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int j = 0; j < half; j++)
#pragma GCC unroll 4
            for (int c = 0; c < span; c++)
                if (j + half < count) t[j][c] = t[j][c] + t[j + half][c];
}

/* Sum over i of the state times w, for `span` vectors of columns at s, `count` of the last. */
INLINE void recall_columns(const float *s, int64_t stride, const float *w, int rows, int blocks,
                           int span, int count, vf out[SPAN])
{
    vf runs[RUN][SPAN];
    for (int i = 0; i < RUN; i++) {
        vf t[RUN][SPAN] = {{{0}}};
#pragma GCC unroll 16
        for (int m = 0; m < blocks; m++)
            for (int at = i + RUN * m; at < rows; at += 256)
#pragma GCC unroll 4
                for (int c = 0; c < span; c++) {
                    const float *here = s + at * stride + c * CQ_LANES;
                    vf x = f_load_part(here, count) * f_all(w[at]);
                    t[m][c] = at < 256 ? x : t[m][c] + x;
                }
        halved(t, blocks, span);
#pragma GCC unroll 4
        for (int c = 0; c < span; c++) runs[i][c] = t[0][c];
    }
    halved(runs, RUN, span);
#pragma GCC unroll 4
    for (int c = 0; c < span; c++) out[c] = runs[0][c];
}

/* The state becomes snap(S·alpha + k·d), and its sum with q goes to out. */
INLINE void advance_columns(float *s, int64_t stride, const recurrence_row *r, int per_channel,
                            const vf d[SPAN], int rows, int blocks, int span, int count, vi *worst,
                            vf out[SPAN])
{
    const float *alpha = r->alpha, *k = r->k, *q = r->q;
    int64_t ahead = r->ahead;
    vf runs[RUN][SPAN], faded = f_all(alpha[0]);
    for (int i = 0; i < RUN; i++) {
        vf t[RUN][SPAN] = {{{0}}};
#pragma GCC unroll 16
        for (int m = 0; m < blocks; m++)
            for (int at = i + RUN * m; at < rows; at += 256)
#pragma GCC unroll 4
                for (int c = 0; c < span; c++) {
                    float *here = s + at * stride + c * CQ_LANES;
                    vf kept = f_load_part(here, count) * (per_channel ? f_all(alpha[at]) : faded);
                    vf next = snap(kept + f_all(k[at]) * d[c], worst);
                    f_store_part(here, next, count);
                    next = next * f_all(q[at]);
                    t[m][c] = at < 256 ? next : t[m][c] + next;
                    if (ahead) __builtin_prefetch(here + ahead, 1);
                }
        halved(t, blocks, span);
#pragma GCC unroll 4
        for (int c = 0; c < span; c++) runs[i][c] = t[0][c];
    }
    halved(runs, RUN, span);
#pragma GCC unroll 4
    for (int c = 0; c < span; c++) out[c] = runs[0][c];
}

/* snap(k·alpha) of a head, for the delta rule. */
static int row_faded(const float *k, const float *alpha, int per_channel, float *out, int rows)
{
    return per_channel ? row_multiply(k, alpha, out, rows) : row_scale(k, alpha[0], out, rows);
}

/* `span` vectors of columns of a head, `count` of the last: see cortiq_recurrence. */
INLINE void recur_span(const recurrence_row *r, const float *v, float *out, float *state, int rows,
                       int blocks, int span, int count, vi *worst)
{
    vf d[SPAN], y[SPAN] = {{0}};
    if (r->faded) recall_columns(state, r->stride, r->faded, rows, blocks, span, count, y);
#pragma GCC unroll 4
    for (int c = 0; c < span; c++) {
        d[c] = f_load_part(v + c * CQ_LANES, count);
        if (r->faded) d[c] = d[c] - y[c];
        d[c] = snap(d[c] * f_all(r->beta), worst);
    }
    if (r->per_channel)
        advance_columns(state, r->stride, r, 1, d, rows, blocks, span, count, worst, y);
    else
        advance_columns(state, r->stride, r, 0, d, rows, blocks, span, count, worst, y);
#pragma GCC unroll 4
    for (int c = 0; c < span; c++) f_store_part(out + c * CQ_LANES, snap(y[c], worst), count);
}

/* n columns of a head; `state` and `v` and `out` begin at the first of them. */
static int row_recur(const recurrence_row *r, const float *v, float *out, float *state, int n)
{
    int blocks = r->rows < 256 ? (r->rows + RUN - 1) / RUN : RUN, j = 0;
    vi worst = {0};
    if (r->rows == 128)
        for (; j + SPAN * CQ_LANES <= n; j += SPAN * CQ_LANES)
            recur_span(r, v + j, out + j, state + j, 128, 8, SPAN, CQ_LANES, &worst);
    for (; j < n; j += CQ_LANES) {
        int count = n - j < CQ_LANES ? n - j : CQ_LANES;
        recur_span(r, v + j, out + j, state + j, r->rows, blocks, 1, count, &worst);
    }
    return has_fault(worst);
}

#endif
