/* The contract's scalars. Compiled without fused multiply-adds and with IEEE division and roots. */
#pragma once

constexpr int SMALLEST_BITS = (127 - 40) << 23, LARGEST_BITS = (127 + 50) << 23, ZERO_ROW = -54;
constexpr int NONE = -(1 << 20), FORGET = -60, VANISHED = -80, MAGIC_BITS = 0x4B400000;
constexpr float MAGIC = 12582912.0f;

ON_DEVICE int magnitude(float x)
{
    return __float_as_int(x) & 0x7FFFFFFF;
}

ON_DEVICE bool outside(float y)
{
    return magnitude(y) >= LARGEST_BITS;
}

ON_DEVICE float snapped(float y)
{
    const int bits = magnitude(y);
    return bits >= SMALLEST_BITS && bits < LARGEST_BITS ? y : 0.0f;
}

ON_DEVICE float rounded_to_integer(float a)
{
    return (a + MAGIC) - MAGIC;
}

ON_DEVICE float exp2_int(int n)
{
    return __int_as_float((n + 127) << 23);
}

/* e^a for a <= 0. */
ON_DEVICE float exp_below(float a)
{
    const float x = a < -80.0f ? -80.0f : a;
    const float k = rounded_to_integer(x * 1.44269504f);
    float r = x - k * 0.693359375f;
    r = r - k * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r);
    y = (y + r) + 1.0f;
    return __int_as_float(__float_as_int(y) + (int(k) << 23));
}

ON_DEVICE float exp2_fraction(float f)
{
    float y = 1.5353362e-4f;
    y = y * f + 1.3398874e-3f;
    y = y * f + 9.6184373e-3f;
    y = y * f + 5.5503324e-2f;
    y = y * f + 2.4022648e-1f;
    y = y * f + 6.9314718e-1f;
    return y * f + 1.0f;
}

ON_DEVICE float silu(float x)
{
    const float e = exp_below(-fabsf(x)), r = 1.0f / (1.0f + e);
    return x * (x >= 0.0f ? r : e * r);
}

/* RN(high * 256 + low), |high| < 2^30: of the number's upper and lower half, floats whose bits are made
   and whose constants the subtraction takes away. Its lower half is that of a sum that may overflow. */
ON_DEVICE float rounded_dot(int high, int low)
{
    const int rest = __byte_perm((u32)high * 256u + (u32)low, 0x4B000000, 0x7610);
    const int a = ((high + (low >> 8)) >> 8) + 0x53400000;
    return (__int_as_float(a) - 824642109440.0f) + __int_as_float(rest);
}

/* RN(high * 65536 + middle * 256 + low) / 65536 of dots of at most 256 terms. */
ON_DEVICE float rounded_dot(int high, int middle, int low)
{
    const int rest = (middle << 8) + low, whole = (high + MAGIC_BITS) + (rest >> 16);
    const int part = (rest & 0xFFFF) | 0x43000000;
    return (__int_as_float(whole) - 12583040.0f) + __int_as_float(part);
}

/* The exponent of a row whose largest magnitude has these bits. */
ON_DEVICE int exponent_of(int largest)
{
    return largest < SMALLEST_BITS ? ZERO_ROW : ((largest + 0x20000) >> 23) - 141;
}

ON_DEVICE int quantised(float value, int largest, int e)
{
    return largest < SMALLEST_BITS ? 0 : int(rounded_to_integer(value * exp2_int(-e)));
}

ON_DEVICE int upper(int q)
{
    return (q + 128) >> 8;
}

/* The low bytes of four integers. */
ON_DEVICE int word_of(int a, int b, int c, int d)
{
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (d & 255) << 24;
}
