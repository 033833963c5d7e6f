/* Vectors of 4 lanes: NEON, of which every aarch64 has at least this. See simd_avx512.h for what the
 * names mean. The includer of a wider set defines TARGET and ISA_NAME.
 */
#ifndef CORTIQ_SIMD_H
#define CORTIQ_SIMD_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#ifndef TARGET
#define TARGET
#define ISA_NAME(name) name##_neon
#endif
#define INLINE TARGET __attribute__((always_inline)) static inline
enum { LANES = 4 };

/* Keeps loads of vectors from moving before products that stand ahead of them, where compilers run out of
 * registers. */
#define FENCE __asm__ volatile("" ::: "memory")

typedef int32x4_t vi;
typedef float32x4_t vf;

INLINE vi vi_load(const void *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
INLINE void vi_store(void *p, vi a) { vst1q_u8(p, vreinterpretq_u8_s32(a)); }
INLINE vi vi_set(int32_t a) { return vdupq_n_s32(a); }
INLINE vi vi_zero(void) { return vdupq_n_s32(0); }
INLINE vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
INLINE vi vi_sub(vi a, vi b) { return vsubq_s32(a, b); }
INLINE vi vi_multiply(vi a, vi b) { return vmulq_s32(a, b); }
INLINE vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
INLINE vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
/* One instruction, since a has none of the mask's bits. */
INLINE vi vi_or_masked(vi a, vi b, vi mask)
{
    return vbslq_s32(vreinterpretq_u32_s32(mask), b, a);
}
#define vi_left(a, n) vshlq_n_s32(a, n)
#define vi_right(a, n) vshrq_n_s32(a, n)

INLINE int16x8_t vi_halves(vi a) { return vreinterpretq_s16_s32(a); }
INLINE vi vi_of_halves(int16x8_t a) { return vreinterpretq_s32_s16(a); }
INLINE uint8x16_t vi_bytes(vi a) { return vreinterpretq_u8_s32(a); }
INLINE vi vi_of_bytes(uint8x16_t a) { return vreinterpretq_s32_u8(a); }

#define vi_left16(a, n) vi_of_halves(vshlq_n_s16(vi_halves(a), n))
#define vi_right16(a, n)                                                                           \
    vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a), n))
#define vi_right_bytes(a, n, mask) vi_of_bytes(vshrq_n_u8(vi_bytes(a), n))
INLINE vi vi_set16(int16_t a) { return vi_of_halves(vdupq_n_s16(a)); }
INLINE vi vi_sub16(vi a, vi b) { return vi_of_halves(vsubq_s16(vi_halves(a), vi_halves(b))); }
INLINE vi vi_multiply16(vi a, vi b) { return vi_of_halves(vmulq_s16(vi_halves(a), vi_halves(b))); }
INLINE vi vi_dot(vi total, vi a, vi b)
{
    int16x8_t x = vi_halves(a), y = vi_halves(b);
    vi low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_high_s16(x, y);
    return vi_add(total, vpaddq_s32(low, high));
}

INLINE vi vi_table(const uint8_t *table16, vi index)
{
    return vi_of_bytes(vqtbl1q_u8(vld1q_u8(table16), vi_bytes(index)));
}
INLINE vi vi_from_u8(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, 4);
    uint16x8_t wide = vmovl_u8(vcreate_u8(four));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
}
INLINE vi vi_from_s8(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
}

INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
INLINE void vf_store(float *p, vf a) { vst1q_f32(p, a); }
INLINE vf vf_set(float a) { return vdupq_n_f32(a); }
INLINE vf vf_zero(void) { return vdupq_n_f32(0); }
INLINE vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
INLINE vf vf_multiply(vf a, vf b) { return vmulq_f32(a, b); }
INLINE vf vf_from_int(vi a) { return vcvtq_f32_s32(a); }
INLINE vf vf_bits(vi a) { return vreinterpretq_f32_s32(a); }
/* FCVTL doesn't flush subnormals of f16, whatever FPCR says. */
INLINE vf vf_from_half(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
INLINE vf vf_snap(vf y, uint32_t *fault)
{
    vi bits = vreinterpretq_s32_f32(y), magnitude = vi_and(bits, vi_set(0x7fffffff));
    uint32x4_t large = vcgeq_s32(magnitude, vi_set((127 + 50) << 23));
    uint32x4_t keep = vcgeq_s32(magnitude, vi_set((127 - 40) << 23));
    *fault |= vmaxvq_u32(large);
    return vf_bits(vi_and(bits, vreinterpretq_s32_u32(vbicq_u32(keep, large))));
}

/* 16 bytes as four vectors of int32. */
INLINE void widen_bytes(const uint8_t *from, const int is_signed, vi *to)
{
    if (is_signed) {
        int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(from));
        int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
        to[0] = vmovl_s16(vget_low_s16(low));
        to[1] = vmovl_high_s16(low);
        to[2] = vmovl_s16(vget_low_s16(high));
        to[3] = vmovl_high_s16(high);
        return;
    }
    uint8x16_t bytes = vld1q_u8(from);
    uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    to[0] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low)));
    to[1] = vreinterpretq_s32_u32(vmovl_high_u16(low));
    to[2] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high)));
    to[3] = vreinterpretq_s32_u32(vmovl_high_u16(high));
}

#endif
