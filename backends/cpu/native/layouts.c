/* GGUF blocks to codes, scales and sub-scales: the byte layouts of numerics/blockquants.py and
 * numerics/kquants.py, one output and one block at a time.
 */
#include "layouts.h"

#include <string.h>

const uint8_t cortiq_iq4_nl_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                         129, 141, 153, 166, 181, 197, 217, 241};
const uint8_t cortiq_mxfp4_table[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                        12, 11, 10, 9,  8,  6,  4,  0};
const uint8_t cortiq_nf4_high[16] = {3, 41, 63, 79, 93, 105, 117, 128, 138, 148, 159, 170, 183, 198, 218, 253};
const uint8_t cortiq_nf4_low[16] = {220, 186, 14, 71, 12, 120, 39, 128, 107, 143, 45, 158, 110, 160, 156, 36};
const uint8_t cortiq_fp4_high[16] = {128, 128, 129, 129, 128, 128, 128, 128, 128, 128, 128, 127, 128, 128, 128, 128};
const uint8_t cortiq_fp4_low[16] = {128, 129, 0, 64, 192, 224, 160, 176, 128, 127, 0, 192, 64, 32, 96, 80};

int cortiq_block_bytes(int layout)
{
    static const uint16_t bytes[CORTIQ_LAYOUTS] = {18, 20, 22, 24, 34, 18, 17,  20,  24,  36,  40,
                                                   12, 36, 20, 20, 84, 110, 144, 176, 210, 276};
    return bytes[layout];
}

static uint16_t half(const uint8_t *raw) { return (uint16_t)(raw[0] | raw[1] << 8); }

static int finite(uint32_t bits) { return (bits & 0x7c00) != 0x7c00; }

/* A float32 of the file as its canonical bits; nonzero if it has none. */
static int canonical_float(const uint8_t *raw, uint32_t *bits)
{
    memcpy(bits, raw, 4);
    uint32_t magnitude = *bits & 0x7fffffff;
    if (magnitude < (127u - 40) << 23)
        *bits = 0;
    return magnitude >= (127u + 50) << 23;
}

/* 16 bytes of nibbles: the low ones are elements 0 … 15, the high ones 16 … 31. */
static void nibbles(const uint8_t *packed, uint8_t *codes)
{
    for (int i = 0; i < 16; i++) {
        codes[i] = packed[i] & 15;
        codes[i + 16] = packed[i] >> 4;
    }
}

/* Add bit i of 32 little-endian bits, times 16, to element i. */
static void fifth_bits(const uint8_t *packed, uint8_t *codes)
{
    for (int i = 0; i < 32; i++)
        codes[i] |= (uint8_t)((packed[i >> 3] >> (i & 7) & 1) << 4);
}

/* Codes of `width` bits: byte j of a run of `run` bytes holds elements j, j + run, …, the lowest
 * bits first; or-ed in at bit `at`.
 */
static void bit_planes(const uint8_t *packed, int bytes, int run, int width, int at, uint8_t *codes)
{
    int mask = (1 << width) - 1, each = 8 / width;
    for (int start = 0; start < bytes; start += run)
        for (int part = 0; part < each; part++)
            for (int j = 0; j < run; j++)
                codes[start * each + part * run + j] |=
                    (uint8_t)((packed[start + j] >> (part * width) & mask) << at);
}

static void unpack_mxfp4(const uint8_t *raw, cortiq_block *block)
{
    nibbles(raw + 1, block->codes);
    int exponent = raw[0] - 1;
    /* Below 2^-40 a scale is +0. */
    block->scale = exponent < 87 ? 0 : (uint16_t)exponent;
}

/* E4M3's NaN is the one code that no weight has. */
static int copy_e4m3(const uint8_t *raw, uint8_t *codes)
{
    int failed = 0;
    for (int i = 0; i < 32; i++) {
        codes[i] = raw[i];
        failed |= (raw[i] & 127) == 127;
    }
    return failed;
}

static int unpack_float_scaled(int layout, const uint8_t *raw, cortiq_block *block)
{
    int failed = canonical_float(raw, &block->scale);
    raw += 4;
    if (layout_has_minimum(layout)) {
        failed |= canonical_float(raw, &block->minimum);
        raw += 4;
    }
    if (layout == CORTIQ_E4M3)
        return -(failed | copy_e4m3(raw, block->codes));
    if (layout_bits(layout) == 8)
        for (int i = 0; i < 32; i++)
            block->codes[i] = raw[i] ^ 128;
    int half_block = layout_block(layout) / 2;
    for (int i = 0; layout_bits(layout) == 4 && i < half_block; i++) {
        block->codes[i] = raw[i] & 15;
        block->codes[i + half_block] = raw[i] >> 4;
    }
    return -failed;
}

static void unpack_32(int layout, const uint8_t *raw, cortiq_block *block)
{
    int minimum = layout_has_minimum(layout), bits = layout_bits(layout);
    block->scale = half(raw);
    raw += 2;
    if (minimum) {
        block->minimum = half(raw);
        raw += 2;
    }
    if (bits == 8) {
        for (int i = 0; i < 32; i++)
            block->codes[i] = raw[i] ^ 128;
        return;
    }
    nibbles(bits == 5 ? raw + 4 : raw, block->codes);
    if (bits == 5)
        fifth_bits(raw, block->codes);
}

static void unpack_q2_k(const uint8_t *raw, cortiq_block *block)
{
    for (int i = 0; i < 16; i++) {
        block->subs[i] = raw[i] & 15;
        block->offsets[i] = raw[i] >> 4;
    }
    bit_planes(raw + 16, 64, 32, 2, 0, block->codes);
    block->scale = half(raw + 80);
    block->minimum = half(raw + 82) ^ 0x8000;
}

static void unpack_q3_k(const uint8_t *raw, cortiq_block *block)
{
    bit_planes(raw, 32, 32, 1, 2, block->codes);
    bit_planes(raw + 32, 64, 32, 2, 0, block->codes);
    const uint8_t *packed = raw + 96;
    uint8_t high[16] = {0};
    bit_planes(packed + 8, 4, 4, 2, 4, high);
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
        block->subs[i] = (uint8_t)((low | high[i]) - 32);
    }
    block->scale = half(raw + 108);
}

/* Q4_K and Q5_K: eight 6-bit scales and offsets in 12 bytes. */
static void unpack_with_offsets(int layout, const uint8_t *raw, cortiq_block *block)
{
    const uint8_t *packed = raw + 4;
    for (int i = 0; i < 4; i++) {
        block->subs[i] = packed[i] & 63;
        block->offsets[i] = packed[i + 4] & 63;
        block->subs[i + 4] = (packed[i + 8] & 15) | (packed[i] >> 2 & 48);
        block->offsets[i + 4] = packed[i + 8] >> 4 | (packed[i + 4] >> 2 & 48);
    }
    block->scale = half(raw);
    block->minimum = half(raw + 2) ^ 0x8000;
    if (layout == CORTIQ_Q5_K)
        bit_planes(raw + 16, 32, 32, 1, 4, block->codes);
    bit_planes(raw + (layout == CORTIQ_Q5_K ? 48 : 16), 128, 32, 4, 0, block->codes);
}

static void unpack_q6_k(const uint8_t *raw, cortiq_block *block)
{
    bit_planes(raw, 128, 64, 4, 0, block->codes);
    bit_planes(raw + 128, 64, 32, 2, 4, block->codes);
    memcpy(block->subs, raw + 192, 16);
    block->scale = half(raw + 208);
}

/* Not a file's: scale, 16 sub-scales, 256 codes; |code·sub-scale| is at most 4096. */
static int unpack_k8(const uint8_t *raw, cortiq_block *block)
{
    memcpy(block->subs, raw + 4, 16);
    for (int i = 0; i < 256; i++)
        block->codes[i] = raw[20 + i] ^ 128;
    return -canonical_float(raw, &block->scale);
}

int cortiq_unpack_block(int layout, const uint8_t *raw, cortiq_block *block)
{
    if (layout == CORTIQ_MXFP4) {
        unpack_mxfp4(raw, block);
        return block->scale < 127 + 50 ? 0 : -1;
    }
    block->minimum = 0;
    if (layout == CORTIQ_K8)
        return unpack_k8(raw, block);
    if (layout_is_float_scaled(layout))
        return unpack_float_scaled(layout, raw, block);
    if (layout_is_k(layout))
        memset(block->codes, 0, sizeof block->codes);
    switch (layout) {
    case CORTIQ_Q2_K:
        unpack_q2_k(raw, block);
        break;
    case CORTIQ_Q3_K:
        unpack_q3_k(raw, block);
        break;
    case CORTIQ_Q4_K: case CORTIQ_Q5_K:
        unpack_with_offsets(layout, raw, block);
        break;
    case CORTIQ_Q6_K:
        unpack_q6_k(raw, block);
        break;
    default:
        unpack_32(layout, raw, block);
    }
    return finite(block->scale) && finite(block->minimum) ? 0 : -1;
}
