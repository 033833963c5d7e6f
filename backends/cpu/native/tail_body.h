/* Parts of a vocabulary, for one instruction set: see numerics.sampling and numerics.digest. */
#ifndef TAIL_BODY_H
#define TAIL_BODY_H

#include "rows_body.h"

/* Index of the largest of n values, the lowest on a tie. */
static int32_t tail_argmax(const float *x, int n)
{
    float value[CQ_LANES];
    int32_t index[CQ_LANES];
    vf best = f_all(x[0]);
    vi where = {0};
    int i = 0, at = 0;
    for (; i + CQ_LANES <= n; i += CQ_LANES) {
        vf here = f_load(x + i);
        where = i_select(f_less(best, here), i_iota() + i_all(i), where);
        best = f_max(best, here);
    }
    f_store(value, best);
    i_store(index, where);
    for (int j = 1; j < CQ_LANES; j++)
        if (value[j] > value[at] || (value[j] == value[at] && index[j] < index[at])) at = j;
    float top = value[at];
    int32_t result = index[at];
    for (; i < n; i++)
        if (x[i] > top) {
            top = x[i];
            result = i;
        }
    return result;
}

/* Lanes first … first + count − 1 of canonical_sum(exp(x − highest)). */
static void tail_exp_lanes(const float *x, float highest, int n, int first, int count, float *lanes)
{
    for (int j = first; j < first + count; j += CQ_LANES) {
        vf total = {0};
        for (int at = j; at < n; at += 256) {
            vf p = f_exp(f_load_part(x + at, n - at) - f_all(highest));
            if (n - at < CQ_LANES) p = f_keep(i_less(i_iota(), i_all(n - at)), p);
            total = total + p;
        }
        f_store(lanes + j, total);
    }
}

static float tail_log(float x)
{
    float y[CQ_LANES];
    f_store(y, f_log(f_all(x)));
    return y[0];
}

INLINE vu u_all(uint32_t x) { return (vu)i_all((int32_t)x); }

INLINE vu mix(vu w)
{
    w = (w ^ (w >> 16)) * u_all(0x7feb352d);
    w = (w ^ (w >> 15)) * u_all(0x846ca68b);
    return w ^ (w >> 16);
}

/* Add the digest of n values, of which the first has index `start`, to `words`. */
static void tail_digest(const float *x, int n, uint32_t start, uint32_t words[4])
{
    static const uint32_t key[4] = {0x9e3779b9, 0x3c6ef372, 0xdaa66d2b, 0x78dde6e4};
    vu sum[4] = {{0}};
    EACH(i, count, n) {
        vi exists = count < CQ_LANES ? (vi)(i_iota() < i_all(count)) : i_all(-1);
        vu index = (vu)i_iota() + u_all(start + (uint32_t)i + 0x85ebca6bu);
        vu w = (vu)bits_of(f_load_part(x + i, count)) ^ mix(index);
        for (int l = 0; l < 4; l++) sum[l] = sum[l] + (mix(w + u_all(key[l])) & (vu)exists);
    }
    for (int l = 0; l < 4; l++)
        for (int i = 0; i < CQ_LANES; i++) words[l] += sum[l][i];
}

static int tail_distances(const float *x, float highest, float *d, int n)
{
    vi worst = {0};
    EACH(i, count, n)
        f_store_part(d + i, snap(f_load_part(x + i, count) - f_all(highest), &worst), count);
    return has_fault(worst);
}

static void tail_probabilities(const float *d, float *p, int n)
{
    EACH(i, count, n) f_store_part(p + i, f_exp(f_load_part(d + i, count)), count);
}

/* Sum of ⌊p·2^40⌋ of at most 8192 probabilities, in two parts of 20 bits each: a lane's sum of
 * either is at most 2^31. */
static uint64_t tail_weight(const float *p, int n)
{
    uint64_t high_total = 0, low_total = 0;
    vu high = {0}, low = {0};
    EACH(i, count, n) {
        vf scaled = f_load_part(p + i, count) * f_all(0x1p20f);
        vi h = __builtin_convertvector(scaled, vi);
        vf rest = (scaled - f_from_int(h)) * f_all(0x1p20f);
        high = high + (vu)h;
        low = low + (vu)__builtin_convertvector(rest, vi);
    }
    for (int i = 0; i < CQ_LANES; i++) {
        high_total += high[i];
        low_total += low[i];
    }
    return (high_total << 20) + low_total;
}

typedef uint64_t vl __attribute__((vector_size(CQ_LANES * 4)));

/* Products of the low words of 64-bit lanes with m. */
INLINE vl multiply_words(vl a, uint32_t m)
{
#if CQ_LANES == 16
    return (vl)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m));
#elif CQ_LANES == 8
    return (vl)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m));
#elif defined(CQ_ISA_NEON)
    return (vl)vmull_u32(vmovn_u64((uint64x2_t)a), vdup_n_u32(m));
#else
    return (a & 0xffffffffu) * (uint64_t)m;
#endif
}

INLINE vl l_all(uint32_t x) { return (uint64_t)x - (vl){0}; }

/* First word of Philox 4×32-10 in the low word of each lane; high words are never looked at. */
INLINE vl philox_words(vl c0, const cortiq_draw *draw)
{
    vl c1 = l_all(draw->position), c2 = l_all(draw->choice), c3 = l_all(0x47554d42);
    uint32_t k0 = draw->seed_low, k1 = draw->seed_high;
    for (int round = 0; round < 10; round++) {
        vl first = multiply_words(c0, 0xd2511f53), second = multiply_words(c2, 0xcd9e8d57);
        c0 = (second >> 32) ^ c1 ^ l_all(k0);
        c1 = second;
        c2 = (first >> 32) ^ c3 ^ l_all(k1);
        c3 = first;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    return c0;
}

INLINE vu philox(vu ids, const cortiq_draw *draw)
{
    vl even = philox_words((vl)ids, draw), odd = philox_words((vl)ids >> 32, draw);
    return (vu)((even & 0xffffffffu) | (odd << 32));
}

INLINE vf uniform(vu w)
{
    vi high = (vi)(w >> 8), odd = (vi)(((w & u_all(255)) << 1) + u_all(1));
    return f_from_int(high) * f_all(0x1p-24f) + f_from_int(odd) * f_all(0x1p-33f);
}

/* −ln(E): of E = −log1p(−u(w)) for w < 2^31, else −log(u(~w)). One log serves both, since
 * log1p(y) is log(1 + y) plus a correction. */
INLINE vf gumbel(vu w)
{
    vm low = i_less(i_all(-1), (vi)w);
    vf v = uniform((vu)i_select(low, (vi)w, (vi)~w));
    vf y = f_negate(v), u = f_all(1.0f) + y;
    vf logarithm = f_log(f_select(low, u, v));
    vf corrected = logarithm + (y - (u - f_all(1.0f))) / u;
    return f_negate(f_log(f_negate(f_select(low, corrected, logarithm))));
}

/* d + noise of ids, whose arrays are readable up to a whole vector. */
static void tail_noisy(const float *d, const int32_t *ids, float *out, int n,
                       const cortiq_draw *draw)
{
    for (int i = 0; i < n; i += CQ_LANES) {
        vu word = philox((vu)i_load(ids + i), draw);
        f_store_part(out + i, f_load(d + i) + gumbel(word), n - i);
    }
}

#endif
