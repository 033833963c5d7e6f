/* Sums of products of int16 pairs, for attention on one instruction set. */
#ifndef PAIR_SUMS_H
#define PAIR_SUMS_H

#include "lanes.h"

/* Sums of products of int16 pairs, one a lane; where products can't be added to their neighbours
 * at once, two. */
#if defined(CQ_ISA_NEON)
typedef struct {
    vi low, high;
} pair_sums;

INLINE pair_sums add_pairs(pair_sums sum, vi a, vi b)
{
    int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
    sum.low = vmlal_s16(sum.low, vget_low_s16(x), vget_low_s16(y));
    sum.high = vmlal_high_s16(sum.high, x, y);
    return sum;
}

INLINE vi joined(pair_sums sum) { return vpaddq_s32(sum.low, sum.high); }
#else
typedef vi pair_sums;

INLINE vi joined(pair_sums sum) { return sum; }

/* sum + a[2i]·b[2i] + a[2i+1]·b[2i+1] in lane i. */
INLINE vi add_pairs(vi sum, vi a, vi b)
{
#if defined(CQ_ISA_AVX512)
    return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(CQ_ISA_AVXVNNI)
    return (vi)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(CQ_ISA_AVX2)
    return sum + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return sum + (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    vi even = ((a << 16) >> 16) * ((b << 16) >> 16), odd = (a >> 16) * (b >> 16);
    return (vi)((vu)sum + (vu)even + (vu)odd);
#endif
}
#endif

typedef int32_t pair_word __attribute__((may_alias, aligned(2)));

INLINE vi pair_at(const int16_t *p, int index) { return i_all(((const pair_word *)p)[index]); }

/* sums[v] = add_pairs(sums[v], pair `index` of q, with[v]) for the first `abreast` v. */
INLINE void add_pair_of(int abreast, pair_sums *sums, const int16_t *q, int index, const vi *with)
{
    vi x = pair_at(q, index);
#if defined(CQ_ISA_AVX2)
    /* Written out: three queries' sums leave four registers, and GCC 12 wants a fifth, so that a sum
     * goes through memory with every pair. */
    if (abreast == 2) {
        vi first = sums[0], second = sums[1], product;
        __asm__("vpmaddwd %4, %2, %3\n\tvpmaddwd %5, %2, %2\n\t"
                "vpaddd %3, %0, %0\n\tvpaddd %2, %1, %1"
                : "+x"(first), "+x"(second), "+x"(x), "=&x"(product) : "x"(with[0]), "x"(with[1]));
        sums[0] = first;
        sums[1] = second;
        return;
    }
#endif
    _Pragma("GCC unroll 4") for (int v = 0; v < abreast; v++) sums[v] = add_pairs(sums[v], x, with[v]);
}

#endif
