/* Vectors of 8 lanes, shared by AVX2 and AVX-VNNI: the includer defines TARGET, ISA_NAME and
 * CORTIQ_VNNI. See simd_avx512.h for what the names mean.
 */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE TARGET __attribute__((always_inline)) static inline
enum { LANES = 8 };

typedef __m256i vi;
typedef __m256 vf;

INLINE vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void vi_store(void *p, vi a) { _mm256_storeu_si256((__m256i *)p, a); }
INLINE vi vi_set(int32_t a) { return _mm256_set1_epi32(a); }
INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
INLINE vi vi_multiply(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
INLINE vi vi_or_masked(vi a, vi b, vi mask) { return vi_or(a, vi_and(b, mask)); }
#define vi_left(a, n) _mm256_slli_epi32(a, n)
#define vi_right(a, n) _mm256_srai_epi32(a, n)

#define vi_left16(a, n) _mm256_slli_epi16(a, n)
#define vi_right16(a, n) _mm256_srli_epi16(a, n)
INLINE vi vi_set16(int16_t a) { return _mm256_set1_epi16(a); }
INLINE vi vi_sub16(vi a, vi b) { return _mm256_sub_epi16(a, b); }
INLINE vi vi_multiply16(vi a, vi b) { return _mm256_mullo_epi16(a, b); }
/* total + a0·b0 + a1·b1 for the int16 pairs of each lane. The sum is written out: GCC 12 takes sums of
 * integers apart and puts them together in another order, which needs more registers than there are,
 * and gives a loop's sums other registers than it began with.
 */
INLINE vi vi_dot(vi total, vi a, vi b)
{
#if CORTIQ_VNNI
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(total) : "x"(a), "x"(b));
    return total;
#else
    vi product = _mm256_madd_epi16(a, b);
    __asm__("vpaddd %1, %0, %0" : "+x"(total) : "x"(product));
    return total;
#endif
}

#if CORTIQ_VNNI
/* total + the four products of each lane's unsigned bytes of a with signed ones of b */
INLINE vi vi_dot_bytes(vi total, vi a, vi b)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(total) : "x"(a), "x"(b));
    return total;
}
#else
INLINE vi vi_products_bytes(vi a, vi b) { return _mm256_maddubs_epi16(a, b); }
INLINE vi vi_products16(vi a, vi b) { return _mm256_madd_epi16(a, b); }
INLINE vi vi_add16(vi a, vi b)
{
    __asm__("vpaddw %1, %0, %0" : "+x"(a) : "x"(b));
    return a;
}
#endif

INLINE vi vi_table(const uint8_t *table16, vi index)
{
    __m128i table = _mm_loadu_si128((const __m128i *)table16);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
}
INLINE vi vi_from_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
INLINE vi vi_from_s8(const uint8_t *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
INLINE vf vf_set(float a) { return _mm256_set1_ps(a); }
INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf vf_multiply(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf vf_from_int(vi a) { return _mm256_cvtepi32_ps(a); }
INLINE vf vf_bits(vi a) { return _mm256_castsi256_ps(a); }
INLINE vf vf_from_half(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
INLINE vf vf_snap(vf y, uint32_t *fault)
{
    vi magnitude = vi_and(_mm256_castps_si256(y), vi_set(0x7fffffff));
    vi large = _mm256_cmpgt_epi32(magnitude, vi_set(((127 + 50) << 23) - 1));
    vi keep = _mm256_cmpgt_epi32(magnitude, vi_set(((127 - 40) << 23) - 1));
    *fault |= (uint32_t)_mm256_movemask_epi8(large);
    return vf_bits(vi_and(_mm256_castps_si256(y), _mm256_andnot_si256(large, keep)));
}
