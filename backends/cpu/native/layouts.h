/* Weight layouts as the kernels keep them: panels of 16 outputs.
 *
 * A *unit* is 16 columns of the 16 outputs of a panel. Its codes are unsigned (a layout's offset is
 * what was added) and lie as four vectors of 16 dwords, one dword an output: vector j holds columns
 * 4j … 4j + 3 in the byte order 0 2 1 3, so that the even bytes of a vector are a pair of columns
 * as int16, and the odd bytes the next pair. Narrow codes share bytes:
 *     8 bits   four vectors, 256 bytes
 *     4 bits   vector 2i in the low, 2i + 1 in the high nibbles of 64 bytes, 128 bytes
 *     2 bits   vector j in bits 2j and 2j + 1 of each of 64 bytes
 *     6 bits   4 low bits as above in `main`; the upper 2 as above in `extra`
 *     5, 3     4 or 2 low bits in `main`; the highest of two units in 64 bytes of `extra`, vector j
 *              of the first unit in bit j, of the second in bit 4 + j
 *     16       w16: the units of the high plane, then those of the low plane, each as 8 bits
 * Every block of columns under one scale has a *side*: 16 scales, 16 minima (both f16, exact),
 * 16 bytes a sub-block of sub-scales, then of offsets. Scales of w8, w16 and w8b256 are float32, as
 * scales and minima of I4 to FP4 are; those of MXFP4 are the exponent byte of one.
 *
 * A *chunk* is up to 256 columns: the sides of its blocks (filled up to 64 bytes), its `extra`, its
 * `main`. A panel is its chunks in order, so that a product reads memory from front to back; the
 * sides of w8 and w16, one a row, come before the first.
 */
#ifndef CORTIQ_LAYOUTS_H
#define CORTIQ_LAYOUTS_H

#include "cortiq_native.h"

typedef enum {
    CORTIQ_Q4_0, CORTIQ_Q4_1, CORTIQ_Q5_0, CORTIQ_Q5_1, CORTIQ_Q8_0, CORTIQ_IQ4_NL, CORTIQ_MXFP4,
    CORTIQ_I4, CORTIQ_I4M, CORTIQ_I8, CORTIQ_I8M, CORTIQ_E2M1, CORTIQ_E4M3,
    CORTIQ_NF4, CORTIQ_FP4,
    CORTIQ_Q2_K, CORTIQ_Q3_K, CORTIQ_Q4_K, CORTIQ_Q5_K, CORTIQ_IQ4_XS, CORTIQ_Q6_K,
    CORTIQ_K8,
    CORTIQ_W8, CORTIQ_W8B256, CORTIQ_W16, CORTIQ_F32,
    CORTIQ_LAYOUTS
} cortiq_layout;

enum { PANEL = 16, UNIT = 16, CHUNK_UNITS = 16, RUN_BLOCKS = 8 };

/* Matrices [matrices, height, width] in panels; the fields after `matrices` are computed by
 * cortiq_matrix_init. F32 matrices are plain rows of floats.
 */
typedef struct {
    int32_t layout, height, width, matrices;
    int32_t panels; /* of one matrix */
    int32_t blocks; /* of one output: scales */
    int64_t panel_bytes;
    uint8_t *data; /* 64-byte aligned */
} cortiq_matrix;

/* The functions below are folded away where `layout` is a constant. */
#define FOLDED static inline __attribute__((always_inline))

FOLDED int layout_bits(int layout)
{
    switch (layout) {
    case CORTIQ_Q2_K:
        return 2;
    case CORTIQ_Q3_K:
        return 3;
    case CORTIQ_Q5_0: case CORTIQ_Q5_1: case CORTIQ_Q5_K:
        return 5;
    case CORTIQ_Q6_K:
        return 6;
    case CORTIQ_Q8_0: case CORTIQ_W8: case CORTIQ_W8B256:
    case CORTIQ_I8: case CORTIQ_I8M: case CORTIQ_E4M3: case CORTIQ_K8:
        return 8;
    case CORTIQ_W16:
        return 16;
    default:
        return 4;
    }
}

/* What was added to a code; for layouts with a table, to its value, or to both parts of it. */
FOLDED int layout_offset(int layout)
{
    switch (layout) {
    case CORTIQ_Q4_0: case CORTIQ_I4:
        return 8;
    case CORTIQ_Q5_0:
        return 16;
    case CORTIQ_MXFP4: case CORTIQ_E2M1:
        return 12;
    case CORTIQ_Q3_K:
        return 4;
    case CORTIQ_Q6_K:
        return 32;
    case CORTIQ_Q8_0: case CORTIQ_IQ4_NL: case CORTIQ_W8: case CORTIQ_W8B256: case CORTIQ_W16:
    case CORTIQ_I8: case CORTIQ_I8M: case CORTIQ_K8: case CORTIQ_NF4: case CORTIQ_FP4:
    case CORTIQ_IQ4_XS:
        return 128;
    default:
        return 0;
    }
}

FOLDED int layout_is_k(int layout) { return layout >= CORTIQ_Q2_K && layout <= CORTIQ_K8; }
FOLDED int layout_is_row(int layout) { return layout == CORTIQ_W8 || layout == CORTIQ_W16; }
FOLDED int layout_has_table(int layout)
{
    return layout == CORTIQ_IQ4_NL || layout == CORTIQ_MXFP4 || layout == CORTIQ_E2M1 ||
           layout == CORTIQ_IQ4_XS;
}
FOLDED int layout_is_float_scaled(int layout) /* and in blocks of 32 or 16 */
{
    return layout >= CORTIQ_I4 && layout <= CORTIQ_FP4;
}
/* Codes of more than 8 bits, as two integers that meet the row: 128·high + low of E4M3, 256·high +
 * low of the tables of 16 bits.
 */
FOLDED int layout_is_wide(int layout) { return layout >= CORTIQ_E4M3 && layout <= CORTIQ_FP4; }
FOLDED int layout_has_minimum(int layout)
{
    return layout == CORTIQ_Q4_1 || layout == CORTIQ_Q5_1 || layout == CORTIQ_Q2_K ||
           layout == CORTIQ_Q4_K || layout == CORTIQ_Q5_K || layout == CORTIQ_I4M ||
           layout == CORTIQ_I8M;
}
/* Sub-scales are int8 in Q3_K, IQ4_XS, Q6_K and K8, else unsigned. */
FOLDED int layout_signed_subs(int layout)
{
    return layout == CORTIQ_Q3_K || (layout >= CORTIQ_IQ4_XS && layout <= CORTIQ_K8);
}

/* Columns under one scale; 0: the whole row. */
FOLDED int layout_block(int layout)
{
    if (layout == CORTIQ_E2M1)
        return 16;
    return layout_is_row(layout) ? 0 : layout_is_k(layout) || layout == CORTIQ_W8B256 ? 256 : 32;
}
FOLDED int layout_sub(int layout)
{
    return layout == CORTIQ_Q4_K || layout == CORTIQ_Q5_K ? 32 : layout_is_k(layout) ? 16 : 0;
}
FOLDED int layout_subs(int layout) { return layout_is_k(layout) ? 256 / layout_sub(layout) : 0; }

/* Columns whose folded codes (at most 945, 1953, 4096 of the last three, or 127 in magnitude) times 32512 add up
 * within int32, together with a rest of 255. 256: a whole block does.
 */
FOLDED int layout_spill(int layout)
{
    switch (layout) {
    case CORTIQ_Q4_K:
        return 64;
    case CORTIQ_Q5_K:
        return 32;
    case CORTIQ_IQ4_XS: case CORTIQ_Q6_K: case CORTIQ_K8:
        return 16;
    default:
        return 256;
    }
}

FOLDED int layout_scale_bytes(int layout)
{
    if (layout_is_row(layout) || layout == CORTIQ_W8B256 || layout == CORTIQ_K8 ||
        layout_is_float_scaled(layout))
        return 4;
    return layout == CORTIQ_MXFP4 ? 1 : 2;
}
FOLDED int layout_main_bytes(int layout) /* of a unit */
{
    int bits = layout_bits(layout);
    return bits < 4 ? 64 : bits < 8 ? 128 : 32 * bits;
}
FOLDED int layout_extra_bytes(int layout) /* of a unit */
{
    int bits = layout_bits(layout);
    return bits == 6 ? 64 : bits == 3 || bits == 5 ? 32 : 0;
}
FOLDED int layout_minimum_at(int layout) { return PANEL * layout_scale_bytes(layout); }
FOLDED int layout_subs_at(int layout)
{
    int minimum = layout_is_float_scaled(layout) ? 4 : 2;
    return layout_minimum_at(layout) + (layout_has_minimum(layout) ? minimum * PANEL : 0);
}
FOLDED int layout_offsets_at(int layout)
{
    return layout_subs_at(layout) + PANEL * layout_subs(layout);
}
FOLDED int layout_side_bytes(int layout) /* of a block */
{
    int offsets = layout_has_minimum(layout) ? layout_subs(layout) : 0;
    return layout_offsets_at(layout) + PANEL * offsets;
}

/* ---- Chunks. */

typedef struct {
    uint8_t *side, *extra, *main;
    uint8_t *main_low; /* of w16 */
    uint8_t *base, *end;
    int32_t units;
} cortiq_chunk;

FOLDED int32_t chunk_blocks(int layout, int32_t units)
{
    int block = layout_block(layout);
    return block == 16 ? units : block == 32 ? units / 2 : layout_is_row(layout) ? 0 : 1;
}
FOLDED int64_t chunk_sides(int layout, int32_t units) /* bytes */
{
    return ((int64_t)chunk_blocks(layout, units) * layout_side_bytes(layout) + 63) & ~(int64_t)63;
}
FOLDED int64_t chunk_bytes(int layout, int32_t units)
{
    int unit = layout_main_bytes(layout) + layout_extra_bytes(layout);
    return chunk_sides(layout, units) + (int64_t)units * unit;
}
/* Units of a row: layouts of one scale a row need no pairs of them, so that the narrow factors of
 * low-rank products take no more room than they have numbers.
 */
FOLDED int32_t units_of(const cortiq_matrix *m)
{
    return (layout_is_row(m->layout) ? m->width + UNIT - 1 : cortiq_padded(m->width)) / UNIT;
}
FOLDED int32_t chunks_of(const cortiq_matrix *m)
{
    return (units_of(m) + CHUNK_UNITS - 1) / CHUNK_UNITS;
}
FOLDED cortiq_chunk chunk_at(int layout, const cortiq_matrix *m, const uint8_t *panel,
                             int32_t index)
{
    cortiq_chunk c;
    int32_t left = units_of(m) - index * CHUNK_UNITS;
    int64_t head = layout_is_row(layout) ? layout_side_bytes(layout) : 0;
    c.units = left < CHUNK_UNITS ? left : CHUNK_UNITS;
    c.base = c.side = (uint8_t *)panel + head + index * chunk_bytes(layout, CHUNK_UNITS);
    c.extra = c.side + chunk_sides(layout, c.units);
    c.main = c.extra + (int64_t)c.units * layout_extra_bytes(layout);
    c.main_low = c.main + (int64_t)c.units * (32 * 8);
    c.end = c.main + (int64_t)c.units * layout_main_bytes(layout);
    if (layout_is_row(layout))
        c.side = (uint8_t *)panel;
    return c;
}

/* IQ4_NL's (and IQ4_XS's) and MXFP4's (and E2M1's) codes by nibble, layout_offset added. */
extern const uint8_t cortiq_iq4_nl_table[16], cortiq_mxfp4_table[16];
/* The upper and lower bytes of NF4's and FP4's integers by nibble, 128 added to each. */
extern const uint8_t cortiq_nf4_high[16], cortiq_nf4_low[16], cortiq_fp4_high[16], cortiq_fp4_low[16];

/* One output's block of a GGUF layout, unpacked. */
typedef struct {
    uint8_t codes[256]; /* natural order; nibbles for layouts with a table */
    uint32_t scale, minimum; /* bits of an f16 or float32; MXFP4: the exponent byte of one */
    uint8_t subs[16], offsets[16];
} cortiq_block;

/* Bytes of a block in the file, 0 for layouts of separate arrays. */
int cortiq_block_bytes(int layout);

/* 0, or −1 where a scale is infinite, NaN or too large. */
int cortiq_unpack_block(int layout, const uint8_t *raw, cortiq_block *block);

/* Fill in the computed fields; the bytes of `data`. */
CORTIQ_API int64_t cortiq_matrix_init(cortiq_matrix *matrix);

/* Pack panels first … first + count − 1 of one matrix from its rows: `codes` are raw blocks, or
 * int8 codes or high planes [height, width]; `low` the low planes of w16; `scales` float32
 * [height, blocks] of our own layouts. 0, or −1 if a scale is not a finite canonical number.
 */
CORTIQ_API int32_t cortiq_matrix_pack(const cortiq_matrix *matrix, int32_t index, int32_t first,
                                      int32_t count, const uint8_t *codes, const int8_t *low,
                                      const float *scales);

#endif
