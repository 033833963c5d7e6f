/* One row of the batch through columns of a head's state, for one instruction set. */
#ifndef RECURRENCE_BODY_H
#define RECURRENCE_BODY_H

#include "scalar.h"

/* canonical_sum's lanes i + 16·m, m = 0 … 15, meet in its first four halvings, before those of
 * different i do: sums of 16 lanes need registers only. A missing lane is +0. Sums that
 * are −0 here and +0 there differ in nothing: what they go into is rounded and snapped after. */
enum { RUN = 16 };

/* The order in which the lanes m of a run are met, that of the rows in memory (args.h): lanes that
 * meet first stand beside each other. In the order of their numbers, rows that are read and written
 * at the same time would lie a multiple of 4 KiB apart, where a core waits for the one before. */
static const int MET[RUN] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

/* What is done to a vector of columns of each row of the state. */
enum {
    RECALL,       /* read it */
    MIX,          /* S·alpha + k·d, not yet snapped */
    MIX_CHANNELS, /* the same with an alpha for each row */
    MIX_REMOVED,  /* S·alpha − removed·m + k·d, with an alpha for each row, not yet snapped */
    SETTLE        /* snap it */
};

/* A pass over the rows, whose sum is taken with `w`. `least` and `most` gather the magnitudes that
 * a MIX leaves, two chains each, `worst` those that SETTLE finds. */
typedef struct {
    const float *w, *k, *alphas, *removed;
    vf d, m, alpha, least[2], most[2];
    vi worst;
} recurrence_pass;

/* The term of row `at`, which lies here; the first `count` lanes are there. `ahead` floats further
 * lies what is read next (0: nothing). */
INLINE vf row_term(recurrence_pass *p, int what, float *here, int at, int count, int64_t ahead)
{
    vf y = f_load_part(here, count);
    int chain = at / 32 & 1;
    if (what == SETTLE) y = snap(y, &p->worst);
    if (what == MIX || what == MIX_CHANNELS || what == MIX_REMOVED) {
        y = y * (what == MIX ? p->alpha : f_all(p->alphas[at]));
        if (what == MIX_REMOVED) y = y - f_all(p->removed[at]) * p->m;
        y = y + f_all(p->k[at]) * p->d;
        p->least[chain] = f_least(p->least[chain], y);
        p->most[chain] = f_most(p->most[chain], y);
        if (ahead) __builtin_prefetch(here + ahead, 1);
    }
    if (what != RECALL) f_store_part(here, y, count);
    return y * f_all(p->w[at]);
}

INLINE vf halved(vf t[], int count)
{
#pragma GCC unroll 4
    for (int half = RUN / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int j = 0; j < half; j++)
            if (j + half < count) t[j] = t[j] + t[j + half];
    return t[0];
}

/* The sum over 128 rows of a block of 32 columns, of the vector at s: half of the lanes of a run
 * are there, those of the even places of MET. */
enum { WIDE_ROWS = 128, WIDE_LANES = WIDE_ROWS / RUN };
INLINE vf sum_of_wide_rows(recurrence_pass *pass, int what, float *s, int64_t ahead)
{
    recurrence_pass p = *pass; /* in registers */
    vf runs[RUN];
    for (int i = 0; i < RUN; i++) {
        vf lanes[WIDE_LANES];
#pragma GCC unroll 8
        for (int j = 0; j < WIDE_LANES; j++, s += CORTIQ_COLUMNS) {
            int m = MET[2 * j];
            lanes[m] = row_term(&p, what, s, i + RUN * m, CQ_LANES, ahead);
        }
        runs[i] = halved(lanes, WIDE_LANES);
    }
    *pass = p;
    return halved(runs, RUN);
}

/* The same of any geometry. */
INLINE vf sum_of_rows(recurrence_pass *p, int what, float *s, int rows, int columns, int count)
{
    vf runs[RUN];
    int present = rows < 256 ? (rows + RUN - 1) / RUN : RUN;
    for (int i = 0; i < RUN; i++) {
        vf lanes[RUN] = {{0}};
#pragma GCC unroll 1
        for (int j = 0; j < RUN; j++)
            for (int at = i + RUN * MET[j]; at < rows; at += 256, s += columns) {
                vf x = row_term(p, what, s, at, count, 0);
                lanes[MET[j]] = at < 256 ? x : lanes[MET[j]] + x;
            }
        runs[i] = halved(lanes, present);
    }
    return halved(runs, RUN);
}

/* snap(k·alpha) of a head, for the delta rule. */
static int row_faded(const float *k, const float *alpha, int per_channel, float *out, int rows)
{
    return per_channel ? row_multiply(k, alpha, out, rows) : row_scale(k, alpha[0], out, rows);
}

/* Whether snap would change a value that MIX left. */
INLINE int is_unsettled(const recurrence_pass *p)
{
    vf least = f_least(p->least[0], p->least[1]), most = f_most(p->most[0], p->most[1]);
    return i_lowest(bits_of(least)) < SMALLEST_BITS || has_fault(bits_of(most));
}

/* The pass over a vector of columns, whatever block it is part of. */
INLINE vf pass_over(recurrence_pass *p, const recurrence_row *r, int what, float *s, int count,
                    int wide)
{
    if (!wide) return sum_of_rows(p, what, s, r->rows, r->columns, count);
    if (r->ahead) return sum_of_wide_rows(p, what, s, r->ahead);
    return sum_of_wide_rows(p, what, s, 0);
}

/* A vector of columns of a head: see cortiq_recurrence. Values of the state that snap would change
 * are rare: where there is one, it is gone through once more. */
INLINE void recur_columns(const recurrence_row *r, const float *v, float *out, float *state,
                          int count, int wide, vi *worst)
{
    recurrence_pass p;
    vf y, d = f_load_part(v, count);
    p.k = r->k, p.alphas = r->alpha, p.alpha = f_all(r->alpha[0]), p.worst = *worst;
    p.least[0] = p.least[1] = f_all(1.0f), p.most[0] = p.most[1] = (vf){0};
    p.w = r->faded;
    p.removed = r->removed, p.m = (vf){0};
    if (r->removed) p.m = snap(pass_over(&p, r, RECALL, state, count, wide), &p.worst);
    else if (r->faded) d = d - pass_over(&p, r, RECALL, state, count, wide);
    p.d = r->removed ? d : snap(d * f_all(r->beta), &p.worst);
    p.w = r->q;
    if (r->removed) y = pass_over(&p, r, MIX_REMOVED, state, count, wide);
    else if (r->per_channel) y = pass_over(&p, r, MIX_CHANNELS, state, count, wide);
    else y = pass_over(&p, r, MIX, state, count, wide);
    if (is_unsettled(&p)) y = pass_over(&p, r, SETTLE, state, count, wide);
    f_store_part(out, snap(y, &p.worst), count);
    *worst = p.worst;
}

/* The columns of a block; `state` and `v` and `out` begin at the first of them. */
static int row_recur(const recurrence_row *r, const float *v, float *out, float *state)
{
    int n = r->columns, wide = r->rows == WIDE_ROWS && n == CORTIQ_COLUMNS;
    vi worst = {0};
    for (int j = 0; j < n; j += CQ_LANES) {
        int count = n - j < CQ_LANES ? n - j : CQ_LANES;
        if (wide) recur_columns(r, v + j, out + j, state + j, CQ_LANES, 1, &worst);
        else recur_columns(r, v + j, out + j, state + j, count, 0, &worst);
    }
    return has_fault(worst);
}

#endif
