/* The contract's elementwise functions on vectors (docs/NUMERICS.md, sections 1 and 2).
 *
 * Each takes the steps of its namesake in cortiq.numerics.scalar, in that order. Functions don't
 * snap; snap() is applied by the kernel that ends a primitive. */
#ifndef CQ_SCALAR_H
#define CQ_SCALAR_H

#include "lanes.h"

#define SMALLEST_BITS ((127 - 40) << 23)
#define LARGEST_BITS ((127 + 50) << 23)
#define MAGNITUDE 0x7fffffff
#define ROUNDER 12582912.0f /* 1.5 * 2^23 */
#define ROUNDER_BITS 0x4b400000

/* Half to even for |x| < 2^22: the sum is rounded to an integer by its own last place. */
INLINE vf f_rint(vf x) { return (x + f_all(ROUNDER)) - f_all(ROUNDER); }
INLINE vi i_rint(vf x) { return bits_of(x + f_all(ROUNDER)) - i_all(ROUNDER_BITS); }

INLINE vf f_abs(vf x) { return from_bits(bits_of(x) & i_all(MAGNITUDE)); }
INLINE vf f_negate(vf x) { return from_bits(bits_of(x) ^ i_all(INT32_MIN)); }

/* Make y canonical: +0 or 2^-40 <= |y| < 2^50. `worst` gathers the largest magnitude bits seen:
 * a fault has happened where it is LARGEST_BITS or more. */
INLINE vf snap(vf y, vi *worst)
{
    vi bits = bits_of(y) & i_all(MAGNITUDE);
    *worst = i_max(*worst, bits);
    return f_keep(u_less(bits - i_all(SMALLEST_BITS), i_all(LARGEST_BITS - SMALLEST_BITS)), y);
}

INLINE int has_fault(vi worst) { return i_highest(worst) >= LARGEST_BITS; }

/* x <= 0; below -80 it is exp(-80). */
INLINE vf f_exp(vf x)
{
    x = f_max(x, f_all(-80.0f));
    vf k = f_rint(x * f_all(1.44269504f));
    vf r = x - k * f_all(0.693359375f);
    r = r - k * f_all(-2.12194440e-4f);
    vf y = f_all(1.9875691500e-4f);
    y = y * r + f_all(1.3981999507e-3f);
    y = y * r + f_all(8.3334519073e-3f);
    y = y * r + f_all(4.1665795894e-2f);
    y = y * r + f_all(1.6666665459e-1f);
    y = y * r + f_all(5.0000001201e-1f);
    y = y * (r * r);
    y = y + r;
    y = y + f_all(1.0f);
    return from_bits(bits_of(y) + (__builtin_convertvector(k, vi) << 23));
}

/* 2^f for -1/2 <= f <= 1/2. */
INLINE vf f_exp2_fraction(vf f)
{
    vf y = f_all(1.5353362e-4f);
    y = y * f + f_all(1.3398874e-3f);
    y = y * f + f_all(9.6184373e-3f);
    y = y * f + f_all(5.5503324e-2f);
    y = y * f + f_all(2.4022648e-1f);
    y = y * f + f_all(6.9314718e-1f);
    return y * f + f_all(1.0f);
}

/* e^x of either sign. */
INLINE vf f_exponential(vf x)
{
    vf e = f_exp(f_negate(f_abs(x)));
    return f_select(f_less(f_all(0.0f), x), f_all(1.0f) / e, e);
}

INLINE vf f_sigmoid(vf x)
{
    vf e = f_exp(f_negate(f_abs(x)));
    vf r = f_all(1.0f) / (f_all(1.0f) + e);
    return f_select(f_at_least(x, f_all(0.0f)), r, e * r);
}

INLINE vf f_silu(vf x) { return x * f_sigmoid(x); }

INLINE vf f_gelu_tanh(vf x)
{
    vf v = f_min(f_max(x, f_all(-16.0f)), f_all(16.0f));
    vf u = f_all(0.7978846f) * (v + f_all(0.044715f) * ((v * v) * v));
    return x * f_sigmoid(u + u);
}

/* The tail of the normal distribution by a polynomial in 1/(1 + 0.39*a). */
INLINE vf f_gelu(vf x)
{
    vf a = f_min(f_abs(x), f_all(16.0f));
    vf t = f_all(1.0f) / (f_all(1.0f) + f_all(0.39f) * a);
    vf p = f_all(0.0538464143f);
    p = p * t + f_all(-0.258241403f);
    p = p * t + f_all(0.37516483f);
    p = p * t + f_all(-0.0166327644f);
    p = p * t + f_all(0.194435738f);
    p = p * t + f_all(0.151427195f);
    vf tail = f_exp(f_all(-0.5f) * (a * a)) * (p * t);
    return x * f_select(f_at_least(x, f_all(0.0f)), f_all(1.0f) - tail, tail);
}

INLINE vf f_tanh(vf x)
{
    vf a = f_abs(x), least = f_min(a, f_all(0.625f)), z = least * least;
    vf p = f_all(-0.00570497848f);
    p = p * z + f_all(0.0206390787f);
    p = p * z + f_all(-0.0537397116f);
    p = p * z + f_all(0.133314416f);
    p = p * z + f_all(-0.333332807f);
    vf small = (p * z) * x + x;
    vf e = f_exp(f_all(-2.0f) * a);
    vf large = (f_all(1.0f) - e) / (f_all(1.0f) + e);
    large = f_select(f_less(x, f_all(0.0f)), f_negate(large), large);
    return f_select(f_less(a, f_all(0.625f)), small, large);
}

/* x positive and normal. */
INLINE vf f_log(vf x)
{
    vi shift = (bits_of(x) - i_all(0x3f3504f3)) >> 23;
    vf f = from_bits(bits_of(x) - (shift << 23)) - f_all(1.0f);
    vf k = f_from_int(shift);
    vf s = f / (f_all(2.0f) + f), z = s * s;
    vf y = f_all(0.298723131f);
    y = y * z + f_all(0.399775207f);
    y = y * z + f_all(0.666667759f);
    vf rest = z * y, h = (f_all(0.5f) * f) * f;
    vf c = h - (s * (h + rest) + k * f_all(-2.12194440e-4f));
    return k * f_all(0.693359375f) + (f - c);
}

/* -1/2 <= y <= 1. */
INLINE vf f_log1p(vf y)
{
    vf u = f_all(1.0f) + y;
    return f_log(u) + (y - (u - f_all(1.0f))) / u;
}

INLINE vf f_relu(vf x) { return f_keep(f_less(f_all(0.0f), x), x); }

INLINE vf f_relu2(vf x)
{
    vf r = f_relu(x);
    return r * r;
}

/* The root of the magnitude, above a floor, with the sign. Below 2^-40 there is zero only. */
INLINE vf f_signed_root(vf x)
{
    vf least = f_all(0x1p-40f), r = f_max(f_abs(x), f_all(1e-6f));
    for (int i = 0; i < CQ_LANES; i++) r[i] = sqrtf(r[i]);
    vf down = f_keep(f_at_least(f_negate(x), least), f_negate(r));
    return f_select(f_at_least(x, least), r, down);
}

INLINE vf f_softplus(vf x) { return f_relu(x) + f_log1p(f_exp(f_negate(f_abs(x)))); }

/* Kinds of `activation`, in the order of numerics.scalar.ACTIVATIONS. */
enum {
    ACT_SILU, ACT_GELU_TANH, ACT_GELU, ACT_EXP, ACT_SIGMOID, ACT_TANH, ACT_SOFTPLUS, ACT_RELU,
    ACT_RELU2, ACT_SIGNED_ROOT
};

INLINE vf f_activation(vf x, int kind)
{
    switch (kind) {
    case ACT_SILU: return f_silu(x);
    case ACT_GELU_TANH: return f_gelu_tanh(x);
    case ACT_GELU: return f_gelu(x);
    case ACT_EXP: return f_exponential(x);
    case ACT_SIGMOID: return f_sigmoid(x);
    case ACT_TANH: return f_tanh(x);
    case ACT_SOFTPLUS: return f_softplus(x);
    case ACT_RELU: return f_relu(x);
    case ACT_RELU2: return f_relu2(x);
    default: return f_signed_root(x);
    }
}

/* 2^n from bits, -126 <= n <= 127. */
INLINE vf f_exp2_int(vi n) { return from_bits((n + i_all(127)) << 23); }
INLINE float exp2_int(int32_t n)
{
    int32_t bits = (n + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
