/* One row of the batch through columns of a head's state, for one instruction set. */
#ifndef RECURRENCE_BODY_H
#define RECURRENCE_BODY_H

#include "scalar.h"

/* canonical_sum's lanes i + 16·m, m = 0 … 15, meet in its first four halvings, before those of
 * different i do: sums of 16 lanes need registers only. A missing lane is +0. Sums that
 * are −0 here and +0 there differ in nothing: what they go into is rounded and snapped after. */
enum { RUN = 16 };

INLINE vf halved(vf *t, int count)
{
#pragma GCC unroll 4
    for (int half = RUN / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int j = 0; j < half; j++)
            if (j + half < count) t[j] = t[j] + t[j + half];
    return t[0];
}

/* Sum over i of the state times w, `count` columns at s. */
INLINE vf recall_columns(const float *s, int64_t stride, const float *w, int rows, int blocks,
                         int count)
{
    vf runs[RUN];
    for (int i = 0; i < RUN; i++) {
        vf t[RUN];
#pragma GCC unroll 16
        for (int m = 0; m < blocks; m++) {
            vf sum = {0};
            for (int at = i + RUN * m; at < rows; at += 256)
                sum = sum + f_load_part(s + at * stride, count) * f_all(w[at]);
            t[m] = sum;
        }
        runs[i] = halved(t, blocks);
    }
    return halved(runs, RUN);
}

/* The state becomes snap(S·alpha + k·d), and its sum with q is returned. */
INLINE vf advance_columns(float *s, int64_t stride, const float *alpha, int per_channel,
                          const float *k, const float *q, vf d, int rows, int blocks, int count,
                          vi *worst)
{
    vf runs[RUN];
    for (int i = 0; i < RUN; i++) {
        vf t[RUN];
#pragma GCC unroll 16
        for (int m = 0; m < blocks; m++) {
            vf sum = {0};
            for (int at = i + RUN * m; at < rows; at += 256) {
                float *here = s + at * stride;
                vf kept = f_load_part(here, count) * f_all(alpha[per_channel ? at : 0]);
                vf next = snap(kept + f_all(k[at]) * d, worst);
                f_store_part(here, next, count);
                sum = sum + next * f_all(q[at]);
            }
            t[m] = sum;
        }
        runs[i] = halved(t, blocks);
    }
    return halved(runs, RUN);
}

/* snap(k·alpha) of a head, for the delta rule. */
static int row_faded(const float *k, const float *alpha, int per_channel, float *out, int rows)
{
    return per_channel ? row_multiply(k, alpha, out, rows) : row_scale(k, alpha[0], out, rows);
}

/* Columns from … from + n − 1 of a head: see cortiq_recurrence. `state` and `v` and `out` begin at
 * the first of them. */
INLINE int recur_as(const recurrence_row *r, const float *v, float *out, float *state, int n,
                    int rows, int blocks, int whole)
{
    vi worst = {0};
    EACH(j, left, n) {
        int count = whole ? whole : left;
        vf d = f_load_part(v + j, count);
        if (r->faded)
            d = d - recall_columns(state + j, r->stride, r->faded, rows, blocks, count);
        d = snap(d * f_all(r->beta), &worst);
        vf y = advance_columns(state + j, r->stride, r->alpha, r->per_channel, r->k, r->q, d,
                               rows, blocks, count, &worst);
        f_store_part(out + j, snap(y, &worst), count);
    }
    return has_fault(worst);
}

static int row_recur(const recurrence_row *r, const float *v, float *out, float *state, int n)
{
    int blocks = r->rows < 256 ? (r->rows + RUN - 1) / RUN : RUN;
    if (r->rows == 128 && n % CQ_LANES == 0) return recur_as(r, v, out, state, n, 128, 8, CQ_LANES);
    return recur_as(r, v, out, state, n, r->rows, blocks, 0);
}

#endif
