/* Vectors of 4 lanes in GNU C, on any machine; x86-64's SSE2 where it has the instruction. */
#ifndef CORTIQ_SIMD_H
#define CORTIQ_SIMD_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define TARGET
#define INLINE __attribute__((always_inline)) static inline
#define ISA_NAME(name) name##_portable
enum { LANES = 4 };

typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
typedef float vf __attribute__((vector_size(16)));
typedef int16_t vi16 __attribute__((vector_size(16)));
typedef uint16_t vu16 __attribute__((vector_size(16)));

INLINE vi vi_load(const void *p)
{
    vi a;
    memcpy(&a, p, sizeof a);
    return a;
}
INLINE void vi_store(void *p, vi a) { memcpy(p, &a, sizeof a); }
INLINE vi vi_set(int32_t a) { return (vi){a, a, a, a}; }
INLINE vi vi_zero(void) { return vi_set(0); }
INLINE vi vi_add(vi a, vi b) { return (vi)((vu)a + (vu)b); }
INLINE vi vi_sub(vi a, vi b) { return (vi)((vu)a - (vu)b); }
INLINE vi vi_multiply(vi a, vi b) { return (vi)((vu)a * (vu)b); }
INLINE vi vi_and(vi a, vi b) { return a & b; }
INLINE vi vi_or(vi a, vi b) { return a | b; }
INLINE vi vi_or_masked(vi a, vi b, vi mask) { return a | (b & mask); }
#define vi_left(a, n) ((vi)((vu)(a) << (n)))
#define vi_right(a, n) ((vi)(a) >> (n))

#define vi_left16(a, n) ((vi)((vu16)(a) << (n)))
#define vi_right16(a, n) ((vi)((vu16)(a) >> (n)))
INLINE vi vi_set16(int16_t a) { return (vi)(vi16){a, a, a, a, a, a, a, a}; }
INLINE vi vi_sub16(vi a, vi b) { return (vi)((vu16)a - (vu16)b); }
INLINE vi vi_multiply16(vi a, vi b) { return (vi)((vu16)a * (vu16)b); }
INLINE vi vi_dot(vi total, vi a, vi b)
{
#if defined(__SSE2__)
    return vi_add(total, (vi)_mm_madd_epi16((__m128i)a, (__m128i)b));
#else
    vi low = vi_right(vi_left(a, 16), 16) * vi_right(vi_left(b, 16), 16);
    return vi_add(total, vi_add(low, vi_right(a, 16) * vi_right(b, 16)));
#endif
}

INLINE vi vi_table(const uint8_t *table16, vi index)
{
    uint8_t bytes[16];
    memcpy(bytes, &index, 16);
    for (int i = 0; i < 16; i++)
        bytes[i] = table16[bytes[i]];
    return vi_load(bytes);
}
INLINE vi vi_from_u8(const uint8_t *p) { return (vi){p[0], p[1], p[2], p[3]}; }
INLINE vi vi_from_s8(const uint8_t *p)
{
    return (vi){(int8_t)p[0], (int8_t)p[1], (int8_t)p[2], (int8_t)p[3]};
}

INLINE vf vf_load(const float *p)
{
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}
INLINE void vf_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
INLINE vf vf_set(float a) { return (vf){a, a, a, a}; }
INLINE vf vf_zero(void) { return vf_set(0); }
INLINE vf vf_add(vf a, vf b) { return a + b; }
INLINE vf vf_multiply(vf a, vf b) { return a * b; }
INLINE vf vf_from_int(vi a) { return __builtin_convertvector(a, vf); }
INLINE vf vf_bits(vi a) { return (vf)a; }
/* With integers: a subnormal is its mantissa times 2^-24, which a float32 holds exactly. */
INLINE float half_to_float(const uint8_t *p)
{
    uint32_t half = p[0] | (uint32_t)p[1] << 8, exponent = half >> 10 & 31, mantissa = half & 1023;
    float value = (float)mantissa * 0x1p-24f;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (exponent)
        bits = (exponent + 112) << 23 | mantissa << 13;
    bits |= (half >> 15) << 31;
    memcpy(&value, &bits, 4);
    return value;
}
INLINE vf vf_from_half(const uint8_t *p)
{
    return (vf){half_to_float(p), half_to_float(p + 2), half_to_float(p + 4), half_to_float(p + 6)};
}
INLINE vf vf_snap(vf y, uint32_t *fault)
{
    vi magnitude = (vi)y & vi_set(0x7fffffff);
    vi large = magnitude >= vi_set((127 + 50) << 23);
    vi keep = magnitude >= vi_set((127 - 40) << 23);
    for (int i = 0; i < LANES; i++)
        *fault |= (uint32_t)large[i];
    return (vf)((vi)y & keep & ~large);
}

#endif
