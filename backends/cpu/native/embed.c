/* Embedding rows: single outputs of a packed matrix as floats. */
#include "matmul.h"

#include "simd_portable.h"

/* An E4M3 number in units of 2^-9. */
static int32_t e4m3_integer(int byte)
{
    int exponent = byte >> 3 & 15, mantissa = byte & 7;
    int32_t size = exponent ? (8 + mantissa) << (exponent - 1) : mantissa;
    return byte >> 7 ? -size : size;
}

/* The code of column k of one output, without its offset, sub-scales not multiplied in. */
static int32_t code_at(const cortiq_matrix *m, const uint8_t *panel, int output, int32_t k)
{
    static const uint8_t place[4] = {0, 2, 1, 3};
    int layout = m->layout, bits = layout_bits(layout), vector = k / 4 % 4;
    int32_t unit = k / UNIT % CHUNK_UNITS, byte = 4 * output + place[k % 4];
    const cortiq_chunk chunk = chunk_at(layout, m, panel, k / UNIT / CHUNK_UNITS);
    const uint8_t *main = chunk.main + unit * layout_main_bytes(layout) + byte;
    const uint8_t *extra = chunk.extra + byte;
    if (layout == CORTIQ_E4M3)
        return e4m3_integer(main[64 * vector]);
    if (bits == 8)
        return main[64 * vector] - 128;
    if (bits == 16) {
        int at = 256 * unit + 64 * vector + byte;
        return (chunk.main[at] - 128) * 256 + chunk.main_low[at] - 128;
    }
    int code = bits < 4 ? main[0] >> (2 * vector) & 3
                        : main[64 * (vector / 2)] >> (4 * (vector % 2)) & 15;
    if (layout == CORTIQ_NF4)
        return (cortiq_nf4_high[code] - 128) * 256 + cortiq_nf4_low[code] - 128;
    if (layout == CORTIQ_FP4)
        return (cortiq_fp4_high[code] - 128) * 256 + cortiq_fp4_low[code] - 128;
    if (layout == CORTIQ_IQ4_NL || layout == CORTIQ_IQ4_XS)
        code = cortiq_iq4_nl_table[code];
    else if (layout_has_table(layout))
        code = cortiq_mxfp4_table[code];
    if (bits == 6)
        code |= (extra[64 * unit] >> (2 * vector) & 3) << 4;
    else if (bits == 3 || bits == 5)
        code |= (extra[64 * (unit / 2)] >> (unit % 2 * 4 + vector) & 1) << (bits - 1);
    return code - layout_offset(layout);
}

static float scale_at(int layout, const uint8_t *side, int output)
{
    uint32_t bits = (uint32_t)side[output] << 23;
    float scale;
    if (layout_scale_bytes(layout) == 2)
        return half_to_float(side + 2 * output);
    memcpy(&scale, layout_scale_bytes(layout) == 1 ? (const uint8_t *)&bits : side + 4 * output, 4);
    return scale;
}

/* RN(scale·code), with a minimum RN(RN(scale·code) + RN(minimum·offset)). */
static float element_at(const cortiq_matrix *m, const uint8_t *panel, int output, int32_t k)
{
    int layout = m->layout, block = layout_block(layout), sub = layout_sub(layout);
    const cortiq_chunk chunk = chunk_at(layout, m, panel, k / UNIT / CHUNK_UNITS);
    const uint8_t *side = chunk.side;
    if (block == 32 || block == 16)
        side += k % (UNIT * CHUNK_UNITS) / block * layout_side_bytes(layout);
    int32_t code = code_at(m, panel, output, k), offset = 1;
    if (sub) {
        int s = k % block / sub, at = layout_subs_at(layout) + PANEL * s + output;
        code *= layout_signed_subs(layout) ? (int8_t)side[at] : side[at];
        if (layout_has_minimum(layout))
            offset = side[layout_offsets_at(layout) + PANEL * s + output];
    }
    float value = scale_at(layout, side, output) * (float)code;
    if (!layout_has_minimum(layout))
        return value;
    side += layout_minimum_at(layout);
    return value + scale_at(layout, side, output) * (float)offset;
}

static void embed_row(const cortiq_matrix *m, int32_t id, float *out, uint8_t *fault_flag)
{
    const uint8_t *panel = m->data + (int64_t)(id / PANEL) * m->panel_bytes;
    uint32_t fault = 0;
    if (id >= m->height) { /* a table of a part of the vocabulary: other ids have no row */
        memset(out, 0, (size_t)m->width * sizeof *out);
        return;
    }
    for (int32_t k = 0; k < m->width; k++) {
        float value = m->layout == CORTIQ_F32 ? ((const float *)m->data)[(int64_t)id * m->width + k]
                                              : element_at(m, panel, id % PANEL, k);
        out[k] = vf_snap(vf_set(value), &fault)[0];
    }
    if (fault)
        cortiq_raise_fault(fault_flag);
}

static void embed_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_embed_args *args = op->args;
    int32_t at, stop, inner = (int32_t)args->inner;
    while (cortiq_take(worker, *op->rows * inner, 1, &at, &stop))
        embed_row(args->matrix, args->ids[at], args->out + (int64_t)at * args->matrix->width,
                  op->faults + at / inner);
}
CORTIQ_REGISTER(CORTIQ_EMBED_ROWS, embed_rows)
