/* Kernels on one row, for one instruction set. Rows need no alignment and may have any length;
 * an output may be its own input. Functions that end a primitive return 1 on a fault. */

#ifndef ROWS_BODY_H
#define ROWS_BODY_H

#include "scalar.h"

#define ZERO_ROW_EXPONENT (-54)

/* Sum of n terms in the contract's order: 256 lanes, then halves. TERM(i, count) is a vector of
 * the terms i, i + 1, ..., of which `count` exist and the rest are +0. A lane starts at +0 and is
 * never -0, so that adding a missing term would change nothing. */
#define CANONICAL_SUM(sum, n, TERM)                                                   \
    do {                                                                              \
        float lanes_[256];                                                            \
        const int n_ = (n);                                                           \
        for (int j_ = 0; j_ < 256; j_ += CQ_LANES) {                                  \
            vf total_ = {0};                                                          \
            for (int at_ = j_; at_ < n_; at_ += 256)                                  \
                total_ = total_ + TERM(at_, n_ - at_);                                \
            f_store(lanes_ + j_, total_);                                             \
        }                                                                             \
        (sum) = fold_lanes(lanes_);                                                   \
    } while (0)

INLINE float fold_lanes(float *lanes)
{
    int half = 128;
    for (; half >= CQ_LANES; half /= 2)
        for (int i = 0; i < half; i += CQ_LANES)
            f_store(lanes + i, f_load(lanes + i) + f_load(lanes + i + half));
    for (; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

INLINE vf square(vf x) { return x * x; }

static float row_highest(const float *x, int n)
{
    float best = x[0];
    int i = 0;
    if (n >= CQ_LANES) {
        float lane[CQ_LANES];
        vf top = f_load(x);
        for (i = CQ_LANES; i + CQ_LANES <= n; i += CQ_LANES) top = f_max(top, f_load(x + i));
        f_store(lane, top);
        for (int j = 0; j < CQ_LANES; j++) best = lane[j] > best ? lane[j] : best;
    }
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

static float row_sum(const float *x, int n)
{
    float sum;
#define TERM(i, count) f_load_part(x + (i), (count))
    CANONICAL_SUM(sum, n, TERM);
#undef TERM
    return sum;
}

static float row_squares(const float *x, int n)
{
    float sum;
#define TERM(i, count) square(f_load_part(x + (i), (count)))
    CANONICAL_SUM(sum, n, TERM);
#undef TERM
    return sum;
}

/* For each i of 0, CQ_LANES, ... < n with `count` elements left. */
#define EACH(i, count, n) for (int i = 0, count; count = (n)-i, i < (n); i += CQ_LANES)

static int row_add(const float *a, const float *b, float *out, int n)
{
    vi worst = {0};
    EACH(i, count, n)
        f_store_part(out + i, snap(f_load_part(a + i, count) + f_load_part(b + i, count), &worst),
                     count);
    return has_fault(worst);
}

static int row_multiply(const float *a, const float *b, float *out, int n)
{
    vi worst = {0};
    EACH(i, count, n)
        f_store_part(out + i, snap(f_load_part(a + i, count) * f_load_part(b + i, count), &worst),
                     count);
    return has_fault(worst);
}

static int row_scale(const float *a, float factor, float *out, int n)
{
    vi worst = {0};
    EACH(i, count, n)
        f_store_part(out + i, snap(f_load_part(a + i, count) * f_all(factor), &worst), count);
    return has_fault(worst);
}

static int row_snap(const float *a, float *out, int n)
{
    vi worst = {0};
    EACH(i, count, n) f_store_part(out + i, snap(f_load_part(a + i, count), &worst), count);
    return has_fault(worst);
}

INLINE int activate_as(const float *a, const float *up, float *out, int n, int kind)
{
    vi worst = {0};
    EACH(i, count, n) {
        vf y = snap(f_activation(f_load_part(a + i, count), kind), &worst);
        if (up) y = snap(y * f_load_part(up + i, count), &worst);
        f_store_part(out + i, y, count);
    }
    return has_fault(worst);
}

/* snap(kind(a)), and with `up` the primitive `multiply` after it. */
static int row_activation(const float *a, const float *up, float *out, int n, int kind)
{
#define CASE(k) case k: return activate_as(a, up, out, n, k);
    switch (kind) {
        CASE(ACT_SILU) CASE(ACT_GELU_TANH) CASE(ACT_GELU) CASE(ACT_EXP) CASE(ACT_SIGMOID)
        CASE(ACT_TANH) CASE(ACT_SOFTPLUS) CASE(ACT_RELU) CASE(ACT_RELU2) CASE(ACT_SIGNED_ROOT)
    }
#undef CASE
    return 1;
}

static int row_soft_cap(const float *a, float cap, float inverse, float *out, int n)
{
    vi worst = {0};
    EACH(i, count, n) {
        vf x = f_load_part(a + i, count) * f_all(inverse);
        f_store_part(out + i, snap(f_all(cap) * f_tanh(x), &worst), count);
    }
    return has_fault(worst);
}

/* x*r*w, or without a weight x*r; then snap. */
static int row_normed(const float *x, float r, const float *w, float *out, int n)
{
    vi worst = {0};
    EACH(i, count, n) {
        vf y = f_load_part(x + i, count) * f_all(r);
        if (w) y = y * f_load_part(w + i, count);
        f_store_part(out + i, snap(y, &worst), count);
    }
    return has_fault(worst);
}

/* `inverse_n` is RN(1/n). */
static int row_rms_norm(const float *x, const float *w, float inverse_n, float eps, float *out,
                        int n)
{
    float mean = row_squares(x, n) * inverse_n;
    return row_normed(x, 1.0f / sqrtf(mean + eps), w, out, n);
}

static int row_l2_norm(const float *x, float eps, float *out, int n)
{
    return row_normed(x, 1.0f / sqrtf(row_squares(x, n) + eps), NULL, out, n);
}

static int row_layer_norm(const float *x, const float *w, const float *bias, float inverse_n,
                          float eps, float *out, int n)
{
    vi worst = {0};
    vf mean = f_all(row_sum(x, n) * inverse_n);
    EACH(i, count, n) f_store_part(out + i, snap(f_load_part(x + i, count) - mean, &worst), count);
    float r = 1.0f / sqrtf(row_squares(out, n) * inverse_n + eps);
    EACH(i, count, n) {
        vf y = f_load_part(out + i, count) * f_all(r);
        if (w) y = y * f_load_part(w + i, count);
        if (bias) y = y + f_load_part(bias + i, count);
        f_store_part(out + i, snap(y, &worst), count);
    }
    return has_fault(worst);
}

/* Turn the pairs of one head; elements from 2*pairs on pass through. */
static int row_rope(const float *x, const float *cos, const float *sin, float *out, int pairs,
                    int width, int interleaved)
{
    vi worst = {0};
    if (!interleaved) {
        EACH(i, count, pairs) {
            vf a = f_load_part(x + i, count), b = f_load_part(x + pairs + i, count);
            vf c = f_load_part(cos + i, count), s = f_load_part(sin + i, count);
            f_store_part(out + i, snap(a * c - b * s, &worst), count);
            f_store_part(out + pairs + i, snap(b * c + a * s, &worst), count);
        }
    } else {
        for (int i = 0; i < pairs; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            out[2 * i] = a * cos[i] - b * sin[i];
            out[2 * i + 1] = b * cos[i] + a * sin[i];
        }
        EACH(i, count, 2 * pairs)
            f_store_part(out + i, snap(f_load_part(out + i, count), &worst), count);
    }
    EACH(i, count, width - 2 * pairs) {
        vf y = snap(f_load_part(x + 2 * pairs + i, count), &worst);
        f_store_part(out + 2 * pairs + i, y, count);
    }
    return has_fault(worst);
}

#include "record_body.h"

/* Of scores no larger than canonical values: p = exp(x - max), p/sum; see numerics.route. */
static int row_softmax(const float *x, float *out, int n)
{
    vi worst = {0};
    float m = row_highest(x, n);
    EACH(i, count, n) f_store_part(out + i, f_exp(f_load_part(x + i, count) - f_all(m)), count);
    float total = row_sum(out, n);
    vf inverse = f_all(1.0f / (total > 0 ? total : 1.0f));
    EACH(i, count, n)
        f_store_part(out + i, snap(f_load_part(out + i, count) * inverse, &worst), count);
    return has_fault(worst);
}

static int row_sigmoid(const float *x, float *out, int n)
{
    return activate_as(x, NULL, out, n, ACT_SIGMOID);
}

/* y = +0; y = y + w[t]*rows[t] for each tap; then the bias; snap. A row that is NULL adds nothing:
 * it lies before the sequence, where all products are zeros. */
static int row_weighted_sum(const float *weights, const float *rows, float *out, int count_rows,
                            int64_t stride, int n)
{
    vi worst = {0};
    EACH(i, count, n) {
        vf y = {0};
        for (int k = 0; k < count_rows; k++)
            y = y + f_all(weights[k]) * f_load_part(rows + k * stride + i, count);
        f_store_part(out + i, snap(y, &worst), count);
    }
    return has_fault(worst);
}

#endif
