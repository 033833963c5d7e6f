/* Weights into panels: see layouts.h for what lies where. */
#include "layouts.h"

#include <string.h>

int64_t cortiq_matrix_init(cortiq_matrix *matrix)
{
    int layout = matrix->layout, block = layout_block(layout);
    int32_t width = matrix->width;
    matrix->panels = (matrix->height + PANEL - 1) / PANEL;
    if (layout == CORTIQ_F32) {
        matrix->blocks = 0;
        matrix->panel_bytes = (int64_t)PANEL * width * 4;
        return (int64_t)matrix->matrices * matrix->height * width * 4;
    }
    matrix->blocks = block ? (width + block - 1) / block : 1;
    int32_t last = chunks_of(matrix) - 1;
    matrix->panel_bytes = (int64_t)(intptr_t)chunk_at(layout, matrix, NULL, last).end;
    return matrix->panel_bytes * matrix->panels * matrix->matrices;
}

/* Four codes as a dword in the byte order 0 2 1 3. */
FOLDED uint32_t four(const uint8_t *codes)
{
    uint32_t w;
    memcpy(&w, codes, 4); /* little-endian */
    return (w & 0xff0000ffu) | (w >> 8 & 0xff00u) | (w << 8 & 0xff0000u);
}

FOLDED void put(uint8_t *vectors, int vector, int output, uint32_t dword)
{
    memcpy(vectors + 64 * vector + 4 * output, &dword, 4);
}

FOLDED void put_or(uint8_t *vector, int output, uint32_t dword)
{
    uint32_t old;
    memcpy(&old, vector + 4 * output, 4);
    put(vector, 0, output, old | dword);
}

/* The 16 codes of one output and one unit. `extra` must be zero where bits are or-ed in. */
FOLDED void put_unit(int layout, uint8_t *main, uint8_t *extra, int unit, int output,
                     const uint8_t *codes)
{
    uint32_t w[4];
    int bits = layout_bits(layout);
    for (int j = 0; j < 4; j++)
        w[j] = four(codes + 4 * j);
    main += (size_t)unit * layout_main_bytes(layout);
    if (bits == 8 || bits == 16) {
        for (int j = 0; j < 4; j++)
            put(main, j, output, w[j]);
        return;
    }
    int low = bits < 4 ? 2 : 4;
    uint32_t low_mask = 0x01010101u * ((1u << low) - 1), high = 0;
    for (int j = 0; j < 4; j++) {
        uint32_t rest = w[j] >> low & 0x03030303u;
        high |= rest << (bits == 6 ? 2 * j : 4 * (unit & 1) + j);
        w[j] &= low_mask;
    }
    if (low == 2)
        put(main, 0, output, w[0] | w[1] << 2 | w[2] << 4 | w[3] << 6);
    else
        for (int i = 0; i < 2; i++)
            put(main, i, output, w[2 * i] | w[2 * i + 1] << 4);
    if (bits == 6)
        put(extra + 64 * (size_t)unit, 0, output, high);
    else if (bits == 3 || bits == 5)
        put_or(extra + 64 * (size_t)(unit / 2), output, high);
}

FOLDED void put_side(int layout, uint8_t *side, int output, const cortiq_block *block)
{
    int bytes = layout_scale_bytes(layout);
    memcpy(side + bytes * output, &block->scale, (size_t)bytes); /* little-endian */
    if (!layout_has_minimum(layout) && !layout_subs(layout))
        return;
    if (layout_has_minimum(layout))
        memcpy(side + layout_minimum_at(layout) + bytes * output, &block->minimum, (size_t)bytes);
    for (int s = 0; s < layout_subs(layout); s++) {
        side[layout_subs_at(layout) + PANEL * s + output] = block->subs[s];
        if (layout_has_minimum(layout))
            side[layout_offsets_at(layout) + PANEL * s + output] = block->offsets[s];
    }
}

FOLDED int pack_blocks_as(int layout, const cortiq_matrix *matrix, uint8_t *panel, int output,
                          const uint8_t *raw)
{
    int units = layout_block(layout) / UNIT, failed = 0;
    cortiq_block block;
    for (int32_t b = 0; b < matrix->blocks; b++) {
        failed |= cortiq_unpack_block(layout, raw + (size_t)b * cortiq_block_bytes(layout), &block);
        cortiq_chunk chunk = chunk_at(layout, matrix, panel, b * units / CHUNK_UNITS);
        int32_t within = b % (CHUNK_UNITS / units);
        for (int u = 0; u < units; u++)
            put_unit(layout, chunk.main, chunk.extra, within * units + u, output,
                     block.codes + UNIT * u);
        put_side(layout, chunk.side + within * layout_side_bytes(layout), output, &block);
    }
    return failed;
}

/* Each layout's loop by itself: what the layout says is known when it is compiled. */
#define PACK(layout)                                                                               \
    case layout:                                                                                   \
        return pack_blocks_as(layout, matrix, panel, output, raw);

static int pack_blocks(const cortiq_matrix *matrix, uint8_t *panel, int output, const uint8_t *raw)
{
    switch (matrix->layout) {
        PACK(CORTIQ_Q4_0)
        PACK(CORTIQ_Q4_1)
        PACK(CORTIQ_Q5_0)
        PACK(CORTIQ_Q5_1)
        PACK(CORTIQ_Q8_0)
        PACK(CORTIQ_I4)
        PACK(CORTIQ_I4M)
        PACK(CORTIQ_E2M1)
        PACK(CORTIQ_E4M3)
        PACK(CORTIQ_Q4_K)
        PACK(CORTIQ_Q5_K)
        PACK(CORTIQ_Q6_K)
    default:
        return pack_blocks_as(matrix->layout, matrix, panel, output, raw);
    }
}

/* 16 int8 codes, of which so many there are, 128 added; the others are zeros. */
FOLDED void shift_unit(const uint8_t *codes, int32_t count, uint8_t *shifted)
{
    uint64_t words[2];
    memset(shifted, 0, UNIT);
    memcpy(shifted, codes, (size_t)(count < UNIT ? count : UNIT));
    memcpy(words, shifted, sizeof words);
    words[0] ^= 0x8080808080808080u;
    words[1] ^= 0x8080808080808080u;
    memcpy(shifted, words, sizeof words);
}

/* A row of int8 codes as 8-bit units; columns beyond the width are zeros. */
FOLDED void pack_plane_as(int layout, const cortiq_matrix *matrix, uint8_t *panel, int output,
                          int low, const uint8_t *codes)
{
    int32_t chunks = chunks_of(matrix), width = matrix->width;
    for (int32_t c = 0; c < chunks; c++) {
        cortiq_chunk chunk = chunk_at(layout, matrix, panel, c);
        for (int32_t u = 0, k = c * CHUNK_UNITS * UNIT; u < chunk.units; u++, k += UNIT) {
            uint8_t shifted[UNIT];
            if (k + UNIT <= width)
                shift_unit(codes + k, UNIT, shifted);
            else
                shift_unit(codes + k, k < width ? width - k : 0, shifted);
            put_unit(CORTIQ_W8, low ? chunk.main_low : chunk.main, NULL, u, output, shifted);
        }
    }
}

static void pack_plane(const cortiq_matrix *matrix, uint8_t *panel, int output, int low,
                       const uint8_t *codes)
{
    if (matrix->layout == CORTIQ_W8)
        pack_plane_as(CORTIQ_W8, matrix, panel, output, low, codes);
    else if (matrix->layout == CORTIQ_W16)
        pack_plane_as(CORTIQ_W16, matrix, panel, output, low, codes);
    else
        pack_plane_as(CORTIQ_W8B256, matrix, panel, output, low, codes);
}

static int pack_scales(const cortiq_matrix *matrix, uint8_t *panel, int output, const float *scales)
{
    int failed = 0;
    for (int32_t b = 0; b < matrix->blocks; b++) {
        uint32_t bits;
        memcpy(&bits, scales + b, 4);
        uint32_t magnitude = bits & 0x7fffffff;
        failed |= magnitude >= (127u + 50) << 23;
        if (magnitude < (127u - 40) << 23)
            bits = 0;
        memcpy(chunk_at(matrix->layout, matrix, panel, b).side + 4 * output, &bits, 4);
    }
    return -failed;
}

static int pack_row(const cortiq_matrix *matrix, uint8_t *panel, int output, int32_t row,
                    const uint8_t *codes, const int8_t *low, const float *scales)
{
    int bytes = cortiq_block_bytes(matrix->layout);
    if (bytes)
        return pack_blocks(matrix, panel, output, codes + (size_t)row * matrix->blocks * bytes);
    size_t at = (size_t)row * matrix->width;
    pack_plane(matrix, panel, output, 0, codes + at);
    if (matrix->layout == CORTIQ_W16)
        pack_plane(matrix, panel, output, 1, (const uint8_t *)low + at);
    return pack_scales(matrix, panel, output, scales + (size_t)row * matrix->blocks);
}

int32_t cortiq_matrix_pack(const cortiq_matrix *matrix, int32_t index, int32_t first, int32_t count,
                           const uint8_t *codes, const int8_t *low, const float *scales)
{
    int failed = 0;
    for (int32_t p = first; p < first + count; p++) {
        uint8_t *panel = matrix->data + ((int64_t)index * matrix->panels + p) * matrix->panel_bytes;
        memset(panel, 0, (size_t)matrix->panel_bytes);
        for (int32_t o = 0; o < PANEL && p * PANEL + o < matrix->height; o++)
            failed |= pack_row(matrix, panel, o, p * PANEL + o, codes, low, scales);
    }
    return failed;
}
