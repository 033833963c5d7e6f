/* NystromAttend for cpu: nystrom.py row after row, in its order (NUMERICS.md). Compile with
 * -ffp-contract=off and without -ffast-math. */
#include "cortiq_kernel.h"
#include <math.h>
#include <stdlib.h>

enum { LANES = 256, ATTEMPTS = 12 };
static const float SMALLEST = 0x1p-40f, NO_PEAK = -0x1p40f;

/* `NystromConstants` of native.py. */
typedef struct {
    int32_t heads, kv, dim, vd, seal, window, sinks, exact, stride, reseal, used, fm;
    float scale;
    int64_t size; /* floats of the state */
} options;

/* The parts of a sealed state, in the order of `sealed_shapes`. */
typedef struct {
    float *kept_k, *kept_v, *win_k, *win_v, *land_k, *land_q, *middle, *shift, *sums, *masses, *peaks;
    float *old_k, *old_v, *old_q;
} parts;

static float *next(float **at, int64_t count)
{
    float *here = *at;
    *at += count;
    return here;
}

static parts parts_of(const options *o, float *at)
{
    int64_t near = o->sinks + o->exact, n = o->used, k = (int64_t)o->kv * o->dim;
    int64_t v = (int64_t)o->kv * o->vd, h = o->heads;
    parts p;
    p.kept_k = next(&at, near * k), p.kept_v = next(&at, near * v);
    p.win_k = next(&at, o->window * k), p.win_v = next(&at, o->window * v);
    p.land_k = next(&at, n * k), p.land_q = next(&at, h * n * o->dim);
    p.middle = next(&at, h * n * n), p.shift = next(&at, h);
    p.sums = next(&at, h * n * o->vd), p.masses = next(&at, h * n), p.peaks = next(&at, h * n);
    p.old_k = next(&at, o->reseal * k), p.old_v = next(&at, o->reseal * v);
    p.old_q = next(&at, o->reseal * h * o->dim);
    return p;
}

/* The powers of numerics.scalar.exp, snapped. */
static float power(float x)
{
    static const float c[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                              1.6666665459e-1f, 5.0000001201e-1f};
    x = x > -80.0f ? x : -80.0f;
    float k = rintf(x * 1.44269504f), r = x - k * 0.693359375f;
    r = r - k * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    for (int i = 0; i < 5; i++) y = y * r + c[i];
    y = y * (r * r);
    y = y + r;
    y = y + 1.0f;
    int32_t bits;
    memcpy(&bits, &y, sizeof bits);
    bits += (int32_t)((uint32_t)(int32_t)k << 23);
    memcpy(&y, &bits, sizeof y);
    return y >= SMALLEST ? y : 0.0f;
}

/* Rows of a canonical sum over `count` of them, each `width` wide: lanes [LANES][width]. Missing lanes
 * are +0 and change none. */
static void add_lane(float *lanes, int64_t at, const float *x, float factor, int64_t width)
{
    float *lane = lanes + at % LANES * width;
    if (at < LANES)
        for (int64_t c = 0; c < width; c++) lane[c] = 0.0f + factor * x[c];
    else
        for (int64_t c = 0; c < width; c++) lane[c] += factor * x[c];
}

static void fold(float *lanes, int64_t count, int64_t width)
{
    int64_t held = count < LANES ? count : LANES;
    for (int64_t half = LANES / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half && i + half < held; i++)
            for (int64_t c = 0; c < width; c++)
                lanes[i * width + c] += lanes[(i + half) * width + c];
        held = held < half ? held : half;
    }
}

/* A canonical sum of products: lanes up to the next power of two, the others are +0. */
static float dot(const options *o, const float *q, const float *k, uint8_t *fault)
{
    float lanes[LANES];
    int64_t n = o->dim, held = 1;
    while (held < n && held < LANES) held *= 2;
    for (int64_t i = 0; i < n && i < LANES; i++) lanes[i] = 0.0f + q[i] * k[i];
    for (int64_t i = n; i < held; i++) lanes[i] = 0.0f;
    for (int64_t i = LANES; i < n; i++) lanes[i % LANES] += q[i] * k[i];
    for (int64_t half = held / 2; half >= 4; half /= 2) { /* in fours, for vectors */
        float *restrict low = lanes, *restrict high = lanes + half;
        for (int64_t i = 0; i < half / 4 * 4; i++) low[i] += high[i];
    }
    for (int64_t half = held < 4 ? held / 2 : 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return cortiq_kernel_snap(lanes[0] * o->scale, fault);
}

/* snap without a branch: *bad is or-ed with 1 on a fault. */
static inline float kept_value(float y, uint32_t *bad)
{
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    uint32_t magnitude = bits & 0x7fffffffu, wrong = magnitude >= 0x58800000u;
    *bad |= wrong;
    bits = wrong | (magnitude < 0x2b800000u) ? 0 : bits;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static float total(const float *x, int64_t n)
{
    return cortiq_kernel_sum(x, n);
}

/* Add a row to the far field of every head. */
static void absorb(const options *o, parts *p, const float *k, const float *v, uint8_t *fault)
{
    int32_t each = o->heads / o->kv, n = o->used;
    for (int32_t h = 0; h < o->heads; h++)
        for (int32_t b = 0; b < n; b++) {
            int64_t at = (int64_t)h * n + b;
            const float *own = v + (int64_t)(h / each) * o->vd;
            float s = dot(o, p->land_q + at * o->dim, k + (int64_t)(h / each) * o->dim, fault);
            float before = p->peaks[at], peak = before > s ? before : s;
            float shrink = s > before ? power(before - peak) : 1.0f, e = power(s - peak);
            float *sums = p->sums + at * o->vd;
            p->masses[at] = cortiq_kernel_snap(p->masses[at] * shrink + e, fault);
            uint32_t bad = 0;
            for (int32_t c = 0; c < o->vd; c++) sums[c] = kept_value(sums[c] * shrink + e * own[c], &bad);
            *fault |= (uint8_t)bad;
            p->peaks[at] = peak;
        }
}

/* Weights of a head's far field: g; returns their sum, and the top of all scores in *top. */
static float far_weights(const options *o, const parts *p, int32_t h, const float *q, float *g,
                         float *lanes, float *top, uint8_t *fault)
{
    int32_t n = o->used;
    const float *keys = p->land_k + (int64_t)(h / (o->heads / o->kv)) * n * o->dim;
    float scores[LANES], f = 0.0f, joint = *top;
    for (int32_t a = 0; a < n; a++) {
        scores[a] = dot(o, q, keys + (int64_t)a * o->dim, fault);
        f = a == 0 || scores[a] > f ? scores[a] : f;
    }
    for (int32_t a = 0; a < n; a++)
        add_lane(lanes, a, p->middle + ((int64_t)h * n + a) * n, power(scores[a] - f), n);
    fold(lanes, n, n);
    for (int32_t b = 0; b < n; b++) {
        scores[b] = (f - p->shift[h]) + p->peaks[(int64_t)h * n + b];
        joint = scores[b] > joint ? scores[b] : joint;
    }
    for (int32_t b = 0; b < n; b++) {
        float u = cortiq_kernel_snap(lanes[b], fault);
        u = o->fm && u < 0.0f ? 0.0f : u;
        g[b] = cortiq_kernel_snap(u * power(scores[b] - joint), fault);
        scores[b] = g[b] * p->masses[(int64_t)h * n + b];
    }
    float d = cortiq_kernel_snap(total(scores, n), fault);
    if (d >= 0.0f) {
        *top = joint;
        return d;
    }
    memset(g, 0, sizeof *g * (size_t)n);
    return 0.0f;
}

/* What a row sees of near rows (two runs of them) and of the far field, if there is one. */
static void see(const options *o, const parts *far, const float *q, const float *const keys[2],
                const float *const values[2], const int64_t counts[2], float *space, float *out,
                uint8_t *fault)
{
    int64_t n = counts[0] + counts[1], wide = (int64_t)o->kv * o->dim, rows = (int64_t)o->kv * o->vd;
    float *lanes = space, *s = space + (int64_t)LANES * (o->vd > LANES ? o->vd : LANES);
    for (int32_t h = 0; h < o->heads; h++) {
        int32_t group = h / (o->heads / o->kv), used = o->used;
        const float *own = q + (int64_t)h * o->dim;
        float g[LANES], top = 0.0f, sum = 0.0f, *mixed = out + (int64_t)h * o->vd;
        for (int64_t i = 0; i < n; i++) {
            int run = i >= counts[0];
            const float *k = keys[run] + (run ? i - counts[0] : i) * wide + (int64_t)group * o->dim;
            s[i] = dot(o, own, k, fault);
            top = i == 0 || s[i] > top ? s[i] : top;
        }
        for (int32_t c = 0; c < o->vd; c++) mixed[c] = 0.0f;
        if (far) {
            sum = far_weights(o, far, h, own, g, lanes, &top, fault);
            const float *sums = far->sums + (int64_t)h * used * o->vd;
            for (int32_t b = 0; b < used; b++) add_lane(lanes, b, sums + (int64_t)b * o->vd, g[b], o->vd);
            fold(lanes, used, o->vd);
            memcpy(mixed, lanes, sizeof *mixed * (size_t)o->vd);
        }
        for (int64_t i = 0; i < n; i++) {
            int run = i >= counts[0];
            const float *v = values[run] + (run ? i - counts[0] : i) * rows + (int64_t)group * o->vd;
            s[i] = power(s[i] - top);
            add_lane(lanes, i, v, s[i], o->vd);
        }
        fold(lanes, n, o->vd);
        sum = sum + total(s, n);
        sum = sum > SMALLEST ? sum : SMALLEST;
        for (int32_t c = 0; c < o->vd; c++)
            mixed[c] = cortiq_kernel_snap((mixed[c] + lanes[c]) / sum, fault);
    }
}

/* landmarks.exp64. */
static double exp64(double x)
{
    static const double divisors[] = {6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040,
                                      720, 120, 24, 6, 2, 1, 1};
    if (x < -700.0)
        return 0.0;
    double k = rint(x * 1.4426950408889634);
    double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    double y = 1.0 / divisors[0];
    for (int i = 1; i < 14; i++) y = y * r + 1.0 / divisors[i];
    return ldexp(y, (int)k);
}

/* Means of `used` neighbouring parts of rows [n][heads][dim], to [heads][used][dim]. */
static void means(const options *o, const float *rows, int64_t n, int32_t heads, float *out,
                  uint8_t *fault)
{
    for (int32_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < o->used; i++) {
            int64_t start = i * n / o->used, stop = (i + 1) * n / o->used;
            for (int32_t c = 0; c < o->dim; c++) {
                double sum = 0.0;
                for (int64_t r = start; r < stop; r++)
                    sum = sum + (double)rows[(r * heads + h) * o->dim + c];
                float mean = (float)(sum * (1.0 / (double)(stop - start)));
                out[((int64_t)h * o->used + i) * o->dim + c] = cortiq_kernel_snap(mean, fault);
            }
        }
}

/* B = L·Lᵀ; 0 where a pivot is not above 0. */
static int cholesky(const double *b, double ridge, double *l, int32_t n)
{
    for (int32_t j = 0; j < n; j++)
        for (int32_t i = j; i < n; i++) {
            double rest = b[i * n + j] + (i == j ? ridge : 0.0);
            for (int32_t k = 0; k < j; k++) rest = rest - l[i * n + k] * l[j * n + k];
            if (i == j && !(rest > 0 && isfinite(rest)))
                return 0;
            l[i * n + j] = i == j ? sqrt(rest) : rest / l[j * n + j];
        }
    return 1;
}

/* (AᵀA + λI)⁻¹Aᵀ of a [n][n] to m; b, l and y are of the same size. */
static void ridge_inverse(const double *a, double *b, double *l, double *y, double *m, int32_t n)
{
    double trace = 0.0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int32_t k = 0; k < n; k++) sum = sum + a[k * n + i] * a[k * n + j];
            b[i * n + j] = sum;
        }
    for (int32_t i = 0; i < n; i++) trace = trace + b[i * n + i];
    double mean = trace / n > 2.2250738585072014e-308 ? trace / n : 2.2250738585072014e-308;
    double ridge = 1e-6 * mean;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++, ridge = ridge * 10.0) {
        if (!cholesky(b, ridge, l, n))
            continue;
        for (int32_t j = 0; j < n; j++) {
            for (int32_t i = 0; i < n; i++) {
                double rest = a[j * n + i];
                for (int32_t k = 0; k < i; k++) rest = rest - l[i * n + k] * y[k];
                y[i] = rest / l[i * n + i];
            }
            for (int32_t i = n - 1; i >= 0; i--) {
                double rest = y[i];
                for (int32_t k = i + 1; k < n; k++) rest = rest - l[k * n + i] * m[k * n + j];
                m[i * n + j] = rest / l[i * n + i];
            }
        }
        return;
    }
    for (int32_t i = 0; i < n * n; i++) m[i] = i % (n + 1) ? 0.0 : 1.0 / mean;
}

/* Make landmarks of rows, and empty the far field. 0 without memory. */
static int set_landmarks(const options *o, parts *p, const float *keys, int64_t key_rows,
                         const float *queries, int64_t query_rows, uint8_t *fault)
{
    int32_t n = o->used, square = n * n;
    double *space = malloc(sizeof *space * 5 * (size_t)square);
    if (!space)
        return 0;
    means(o, keys, key_rows, o->kv, p->land_k, fault);
    means(o, queries, query_rows, o->heads, p->land_q, fault);
    for (int32_t h = 0; h < o->heads; h++) {
        double *a = space, *m = space + 4 * square, highest = 0.0;
        const float *group = p->land_k + (int64_t)(h / (o->heads / o->kv)) * n * o->dim;
        for (int32_t at = 0; at < square; at++) {
            const float *q = p->land_q + ((int64_t)h * n + at / n) * o->dim;
            const float *k = group + (int64_t)(at % n) * o->dim;
            double sum = 0.0;
            for (int32_t c = 0; c < o->dim; c++) sum = sum + (double)q[c] * (double)k[c];
            a[at] = sum * (double)o->scale;
            highest = at == 0 || a[at] > highest ? a[at] : highest;
        }
        p->shift[h] = cortiq_kernel_snap((float)highest, fault);
        for (int32_t at = 0; at < square; at++) a[at] = exp64(a[at] - (double)p->shift[h]);
        ridge_inverse(a, space + square, space + 2 * square, space + 3 * square, m, n);
        for (int32_t at = 0; at < square; at++)
            p->middle[(int64_t)h * square + at] = cortiq_kernel_snap((float)m[at], fault);
    }
    free(space);
    int64_t count = (int64_t)o->heads * n;
    memset(p->sums, 0, sizeof(float) * (size_t)(count * o->vd));
    memset(p->masses, 0, sizeof(float) * (size_t)count);
    for (int64_t i = 0; i < count; i++) p->peaks[i] = NO_PEAK;
    return 1;
}

/* Mark the `exact` rows that landmark queries look at most. 0 without memory. */
static int choose(const options *o, const parts *p, const float *keys, uint8_t *kept, uint8_t *fault)
{
    int64_t *mass = calloc((size_t)o->seal, sizeof *mass);
    float *e = malloc(sizeof *e * (size_t)o->seal);
    for (int64_t at = 0; mass && e && at < (int64_t)o->heads * o->used; at++) {
        int64_t group = at / o->used / (o->heads / o->kv);
        float top = 0.0f;
        for (int64_t i = 0; i < o->seal; i++) {
            e[i] = dot(o, p->land_q + at * o->dim, keys + (i * o->kv + group) * o->dim, fault);
            top = i == 0 || e[i] > top ? e[i] : top;
        }
        for (int64_t i = 0; i < o->seal; i++) e[i] = power(e[i] - top);
        float sum = total(e, o->seal);
        for (int64_t i = 0; i < o->seal; i++) mass[i] += (int64_t)floor((double)(e[i] / sum) * 0x1p32);
    }
    for (int32_t taken = 0; mass && e && taken < o->exact; taken++) {
        int64_t best = -1;
        for (int64_t i = o->sinks; i < o->seal - o->window; i++)
            if (!kept[i] && (best < 0 || mass[i] > mass[best]))
                best = i;
        kept[best] = 1;
    }
    int made = mass && e;
    free(mass);
    free(e);
    return made;
}

/* Seal the rows collected. 0 without memory. */
static int seal(const options *o, float *state, uint8_t *fault)
{
    int64_t wide = (int64_t)o->kv * o->dim, rows = (int64_t)o->kv * o->vd, near = 0;
    int64_t queries = (o->seal + o->stride - 1) / o->stride, first = o->seal - o->window;
    float *keys = malloc(sizeof *keys * (size_t)o->size);
    uint8_t *kept = calloc((size_t)o->seal, 1);
    int made = keys && kept;
    if (made) {
        memcpy(keys, state, sizeof *keys * (size_t)o->size);
        memset(state, 0, sizeof *state * (size_t)o->size);
        const float *values = keys + o->seal * wide, *asked = values + o->seal * rows;
        parts p = parts_of(o, state);
        for (int32_t i = 0; i < o->sinks; i++) kept[i] = 1;
        made = set_landmarks(o, &p, keys, o->seal, asked, queries, fault);
        made = made && (!o->exact || choose(o, &p, keys, kept, fault));
        for (int64_t i = 0; made && i < o->seal; i++) {
            const float *k = keys + i * wide, *v = values + i * rows;
            int64_t place = i >= first ? (i - o->sinks) % o->window : near;
            if (i < first && !kept[i]) {
                absorb(o, &p, k, v, fault);
                continue;
            }
            near += i < first;
            memcpy((i < first ? p.kept_k : p.win_k) + place * wide, k, sizeof *k * (size_t)wide);
            memcpy((i < first ? p.kept_v : p.win_v) + place * rows, v, sizeof *v * (size_t)rows);
        }
    }
    free(keys);
    free(kept);
    return made;
}

/* Keep a row that left the window; behind the last, make landmarks anew. 0 without memory. */
static int archive(const options *o, parts *p, int64_t past, const float *q, const float *k,
                   const float *v, uint8_t *fault)
{
    int64_t wide = (int64_t)o->kv * o->dim, rows = (int64_t)o->kv * o->vd;
    int64_t asked = (int64_t)o->heads * o->dim, place = past % o->reseal;
    memcpy(p->old_k + place * wide, k, sizeof *k * (size_t)wide);
    memcpy(p->old_v + place * rows, v, sizeof *v * (size_t)rows);
    memcpy(p->old_q + place * asked, q, sizeof *q * (size_t)asked);
    if (place != o->reseal - 1)
        return 1;
    if (!set_landmarks(o, p, p->old_k, o->reseal, p->old_q, o->reseal, fault))
        return 0;
    for (int64_t i = 0; i < o->reseal; i++)
        absorb(o, p, p->old_k + i * wide, p->old_v + i * rows, fault);
    return 1;
}

/* A row after the seal: what leaves the window is absorbed, the row takes its place, and sees. */
static int sealed_row(const options *o, float *state, const float *q, const float *k, const float *v,
                      int64_t at, float *space, float *out, uint8_t *fault)
{
    int64_t wide = (int64_t)o->kv * o->dim, rows = (int64_t)o->kv * o->vd;
    int64_t place = (at - o->sinks) % o->window;
    parts p = parts_of(o, state);
    float *key = p.win_k + place * wide, *value = p.win_v + place * rows;
    float *left = malloc(sizeof *left * (size_t)(wide + rows));
    if (!left)
        return 0;
    memcpy(left, key, sizeof *left * (size_t)wide);
    memcpy(left + wide, value, sizeof *left * (size_t)rows);
    absorb(o, &p, left, left + wide, fault);
    memcpy(key, k, sizeof *k * (size_t)wide);
    memcpy(value, v, sizeof *v * (size_t)rows);
    const float *const keys[] = {p.kept_k, p.win_k}, *const values[] = {p.kept_v, p.win_v};
    const int64_t counts[] = {o->sinks + o->exact, o->window};
    see(o, &p, q, keys, values, counts, space, out, fault);
    int made = !o->reseal || archive(o, &p, at - o->seal, q, left, left + wide, fault);
    free(left);
    return made;
}

void cortiq_bounded_nystrom(const cortiq_kernel_call *call, float *state, uint8_t *fault, int32_t row,
                            int32_t position)
{
    const options *o = call->constants;
    const float *q = cortiq_kernel_input(call, 0, row), *k = cortiq_kernel_input(call, 1, row);
    const float *v = cortiq_kernel_input(call, 2, row);
    float *out = cortiq_kernel_output(call, 0, row);
    int64_t wide = (int64_t)o->kv * o->dim, rows = (int64_t)o->kv * o->vd, at = position;
    int64_t lanes = (int64_t)LANES * (o->vd > LANES ? o->vd : LANES), near = o->window + o->sinks + o->exact;
    float *space = malloc(sizeof *space * (size_t)(lanes + (o->seal > near ? o->seal : near)));
    int made = space != NULL;
    if (made && at >= o->seal)
        made = sealed_row(o, state, q, k, v, at, space, out, fault);
    else if (made) {
        float *keys = state, *values = keys + o->seal * wide, *asked = values + o->seal * rows;
        int64_t each = (int64_t)o->heads * o->dim;
        memcpy(keys + at * wide, k, sizeof *k * (size_t)wide);
        memcpy(values + at * rows, v, sizeof *v * (size_t)rows);
        if (at % o->stride == 0)
            memcpy(asked + at / o->stride * each, q, sizeof *q * (size_t)each);
        const float *const both[] = {keys, keys}, *const held[] = {values, values};
        const int64_t counts[] = {at + 1, 0};
        see(o, NULL, q, both, held, counts, space, out, fault);
        made = at < o->seal - 1 || seal(o, state, fault);
    }
    if (!made)
        *fault = 1;
    free(space);
}
