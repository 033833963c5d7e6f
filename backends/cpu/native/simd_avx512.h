/* Vectors of 16 lanes: AVX512 with VNNI. The four simd_*.h give the same names; kernels that are
 * written in them are compiled once for each. Every operation is exact or rounds once.
 */
#ifndef CORTIQ_SIMD_H
#define CORTIQ_SIMD_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef TARGET /* matmul_amx.c has a wider one */
#define TARGET __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define ISA_NAME(name) name##_avx512vnni
#endif
#define CORTIQ_VNNI 1
#define INLINE TARGET __attribute__((always_inline)) static inline
enum { LANES = 16 };

typedef __m512i vi;
typedef __m512 vf;

/* int32 lanes */
INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
INLINE vi vi_set(int32_t a) { return _mm512_set1_epi32(a); }
INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi vi_multiply(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi vi_or_masked(vi a, vi b, vi mask) /* a | (b & mask); a & mask is 0 */
{
    return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}
#define vi_left(a, n) _mm512_slli_epi32(a, n)
#define vi_right(a, n) _mm512_srai_epi32(a, n) /* arithmetic */

/* int16 lanes */
#define vi_left16(a, n) _mm512_slli_epi16(a, n)
#define vi_right16(a, n) _mm512_srli_epi16(a, n) /* logical */
INLINE vi vi_set16(int16_t a) { return _mm512_set1_epi16(a); }
INLINE vi vi_sub16(vi a, vi b) { return _mm512_sub_epi16(a, b); }
INLINE vi vi_multiply16(vi a, vi b) { return _mm512_mullo_epi16(a, b); }
/* total + a0·b0 + a1·b1 for the int16 pairs of each lane, modulo 2^32. Written out: GCC 12 gives the
 * intrinsic's result another register than its sum, and copies it back and forth in loops. */
INLINE vi vi_dot(vi total, vi a, vi b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(total) : "v"(a), "v"(b));
    return total;
}

/* total + the four products of each lane's unsigned bytes of a with signed ones of b */
INLINE vi vi_dot_bytes(vi total, vi a, vi b)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(a), "v"(b));
    return total;
}

/* bytes */
INLINE vi vi_table(const uint8_t *table16, vi index) /* indices below 16 */
{
    __m128i table = _mm_loadu_si128((const __m128i *)table16);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index);
}
INLINE vi vi_from_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
INLINE vi vi_from_s8(const uint8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* float32 lanes */
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE vf vf_set(float a) { return _mm512_set1_ps(a); }
INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_multiply(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }
/* f16 to float32, exactly: VCVTPH2PS doesn't flush subnormals, whatever MXCSR says. */
INLINE vf vf_from_half(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
/* snap: +0 for |y| < 2^-40 and for |y| >= 2^50; *fault becomes nonzero for the latter. */
INLINE vf vf_snap(vf y, uint32_t *fault)
{
    vi magnitude = vi_and(_mm512_castps_si512(y), vi_set(0x7fffffff));
    __mmask16 large = _mm512_cmpge_epi32_mask(magnitude, vi_set((127 + 50) << 23));
    __mmask16 small = _mm512_cmplt_epi32_mask(magnitude, vi_set((127 - 40) << 23));
    *fault |= large;
    return _mm512_maskz_mov_ps((__mmask16) ~(large | small), y);
}

#endif
