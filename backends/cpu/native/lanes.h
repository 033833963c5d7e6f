/* Vectors of one instruction set.
 *
 * A file of kernels is compiled once per instruction set: it includes isa.h, which defines
 * CQ_LANES (4, 8 or 16 floats a vector) and CQ_ISA_NAME, then this file. Arithmetic is the
 * compiler's own on vector types (one rounding each, never contracted: -ffp-contract=off);
 * what C lacks for vectors, selection and comparison masks, is defined here. */
#ifndef CQ_LANES_H
#define CQ_LANES_H

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(CQ_LANES * 4)));
typedef int32_t vi __attribute__((vector_size(CQ_LANES * 4)));
typedef int16_t v16 __attribute__((vector_size(CQ_LANES * 2)));
typedef uint32_t vu __attribute__((vector_size(CQ_LANES * 4)));

INLINE vf f_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}

INLINE void f_store(float *p, vf x) { memcpy(p, &x, sizeof x); }

INLINE vi i_load(const int32_t *p)
{
    vi x;
    memcpy(&x, p, sizeof x);
    return x;
}

INLINE void i_store(int32_t *p, vi x) { memcpy(p, &x, sizeof x); }

/* Copy the n (1 to CQ_LANES − 1) values of `bytes` each, in pieces of known sizes: a call, of memcpy,
 * would take a loop's constants out of its registers, also where it is never made. */
INLINE void copy_part(void *to, const void *from, int n, const int bytes)
{
    uint8_t *a = to;
    const uint8_t *b = from;
#define PIECE(count)                                                                               \
    if (CQ_LANES > count && n & count) {                                                           \
        memcpy(a, b, (size_t)(count * bytes));                                                     \
        a += count * bytes;                                                                        \
        b += count * bytes;                                                                        \
    }
    PIECE(8) PIECE(4) PIECE(2) PIECE(1)
#undef PIECE
}

/* The first n (1 to CQ_LANES) floats at p; the rest are +0. */
INLINE vf f_load_part(const float *p, int n)
{
    if (n >= CQ_LANES) return f_load(p);
    vf x = {0};
    copy_part(&x, p, n, sizeof *p);
    return x;
}

INLINE void f_store_part(float *p, vf x, int n)
{
    if (n >= CQ_LANES) f_store(p, x);
    else copy_part(p, &x, n, sizeof *p);
}

/* The lower halves of the first n lanes. */
INLINE void i16_store_part(int16_t *p, vi x, int n)
{
    v16 y = __builtin_convertvector(x, v16);
    if (n >= CQ_LANES) memcpy(p, &y, sizeof y);
    else copy_part(p, &y, n, sizeof *p);
}

INLINE vf f_all(float x) { return x - (vf){0}; }
INLINE vi i_all(int32_t x) { return x - (vi){0}; }
INLINE vi bits_of(vf x) { return (vi)x; }
INLINE vf from_bits(vi x) { return (vf)x; }
INLINE vf f_from_int(vi x) { return __builtin_convertvector(x, vf); }

#if CQ_LANES == 16
#include <immintrin.h>
typedef __mmask16 vm;
INLINE vm f_less(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
INLINE vm f_at_least(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
INLINE vm i_less(vi a, vi b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
INLINE vm u_less(vi a, vi b) { return _mm512_cmplt_epu32_mask((__m512i)a, (__m512i)b); }
INLINE vf f_select(vm m, vf yes, vf no)
{
    return (vf)_mm512_mask_blend_ps(m, (__m512)no, (__m512)yes);
}
INLINE vi i_select(vm m, vi yes, vi no)
{
    return (vi)_mm512_mask_blend_epi32(m, (__m512i)no, (__m512i)yes);
}
INLINE vf f_keep(vm m, vf x) { return (vf)_mm512_maskz_mov_ps(m, (__m512)x); }
INLINE vi i_keep(vm m, vi x) { return (vi)_mm512_maskz_mov_epi32(m, (__m512i)x); }
INLINE vm m_bits(int32_t bits) { return (vm)bits; } /* bit i says lane i */
INLINE vi i_max(vi a, vi b) { return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b); }
INLINE vf f_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf f_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#else
typedef vi vm;
INLINE vm f_less(vf a, vf b) { return a < b; }
INLINE vm f_at_least(vf a, vf b) { return a >= b; }
INLINE vm i_less(vi a, vi b) { return a < b; }
INLINE vm u_less(vi a, vi b) { return (vm)((vu)a < (vu)b); }
#if defined(CQ_ISA_NEON)
INLINE vi i_select(vm m, vi yes, vi no) { return vbslq_s32((uint32x4_t)m, yes, no); }
#else
INLINE vi i_select(vm m, vi yes, vi no) { return (m & yes) | (~m & no); }
#endif
INLINE vf f_select(vm m, vf yes, vf no) { return (vf)i_select(m, (vi)yes, (vi)no); }
INLINE vf f_keep(vm m, vf x) { return (vf)(m & (vi)x); }
INLINE vi i_keep(vm m, vi x) { return m & x; }
INLINE vm m_bits(int32_t bits)
{
    vi lane;
    for (int i = 0; i < CQ_LANES; i++) lane[i] = 1 << i;
    return (i_all(bits) & lane) != 0;
}
#if CQ_LANES == 8
#include <immintrin.h>
INLINE vi i_max(vi a, vi b) { return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b); }
INLINE vf f_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf f_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
#if defined(CQ_ISA_NEON)
INLINE vi i_max(vi a, vi b) { return vmaxq_s32(a, b); }
#else
INLINE vi i_max(vi a, vi b) { return i_select(a > b, a, b); }
#endif
/* As x86's: b where one is a NaN or both are zeros. NEON's own differ in both. */
INLINE vf f_max(vf a, vf b) { return f_select(a > b, a, b); }
INLINE vf f_min(vf a, vf b) { return f_select(a < b, a, b); }
#endif
#endif

/* The smaller and the larger magnitude of two numbers; b may be negative, neither is a NaN. */
#if CQ_LANES == 16
INLINE vf f_least(vf a, vf b) { return (vf)_mm512_range_ps((__m512)a, (__m512)b, 10); }
INLINE vf f_most(vf a, vf b) { return (vf)_mm512_range_ps((__m512)a, (__m512)b, 11); }
#else
INLINE vf f_least(vf a, vf b) { return f_min(a, from_bits(bits_of(b) & i_all(INT32_MAX))); }
INLINE vf f_most(vf a, vf b) { return f_max(a, from_bits(bits_of(b) & i_all(INT32_MAX))); }
#endif

/* Largest, smallest and sum of the lanes. */
#if CQ_LANES == 16
INLINE int32_t i_highest(vi x) { return _mm512_reduce_max_epi32((__m512i)x); }
INLINE int32_t i_total(vi x) { return _mm512_reduce_add_epi32((__m512i)x); }
#elif CQ_LANES == 8
INLINE int32_t i_highest(vi x)
{
    __m128i y = _mm_max_epi32(_mm256_castsi256_si128((__m256i)x),
                              _mm256_extracti128_si256((__m256i)x, 1));
    y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
}

INLINE int32_t i_total(vi x)
{
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128((__m256i)x),
                              _mm256_extracti128_si256((__m256i)x, 1));
    y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
}
#elif defined(CQ_ISA_NEON)
INLINE int32_t i_highest(vi x) { return vmaxvq_s32(x); }
INLINE int32_t i_total(vi x) { return vaddvq_s32(x); }
#else
INLINE int32_t i_highest(vi x)
{
    int32_t lane[CQ_LANES], best;
    i_store(lane, x);
    best = lane[0];
    for (int i = 1; i < CQ_LANES; i++) best = lane[i] > best ? lane[i] : best;
    return best;
}

INLINE int32_t i_total(vi x)
{
    int32_t lane[CQ_LANES], total = 0;
    i_store(lane, x);
    for (int i = 0; i < CQ_LANES; i++) total = (int32_t)((uint32_t)total + (uint32_t)lane[i]);
    return total;
}
#endif

/* Sums of a quarter of the lanes each. */
typedef int32_t v4 __attribute__((vector_size(16)));
INLINE v4 i_quarters(vi x)
{
#if CQ_LANES == 4
    return x;
#else
#if CQ_LANES == 16
    __m256i y = _mm256_add_epi32(_mm512_castsi512_si256((__m512i)x),
                                 _mm512_extracti64x4_epi64((__m512i)x, 1));
#else
    __m256i y = (__m256i)x;
#endif
    return (v4)_mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
#endif
}

/* Whether a lane of x, none of them negative, is as large as least. */
#if CQ_LANES == 16
INLINE int i_any_at_least(vi x, int32_t least) { return !!i_less(i_all(least - 1), x); }
#elif CQ_LANES == 8
INLINE int i_any_at_least(vi x, int32_t least)
{
    return _mm256_movemask_epi8((__m256i)(x >= i_all(least))) != 0;
}
#else
INLINE int i_any_at_least(vi x, int32_t least) { return i_highest(x) >= least; }
#endif

INLINE int32_t i_lowest(vi x) { return ~i_highest(~x); }

INLINE vi i_iota(void)
{
    vi x;
    for (int i = 0; i < CQ_LANES; i++) x[i] = i;
    return x;
}

#endif
