/* Dot products of bytes, for kernel_panel.h: SDOT, and USDOT where CORTIQ_I8MM says that there is.
 *
 * A row is two planes of int8, q = 256·high + low, |low| ≤ 128, and for each 8 columns 16 bytes:
 * those of the high plane, then those of the low one, in the order 0 2 1 3 4 6 5 7, as panels have
 * them. A product of a plane with 32768 codes fits int32, so that sums of planes stay apart as long
 * as they need to.
 */

enum { QUARTERS = PANEL / LANES };

typedef struct {
    const int8_t *planes;
    const int32_t *start;
    const float *sum32;
} panel_row;

typedef struct {
    vi high[QUARTERS], low[QUARTERS];
} panel_sums;

/* SDOT wants signed codes: those of 8 bits have their offset taken out by one operation. */
FOLDED int layout_left(int layout)
{
    int offset = layout_offset(layout);
    return !CORTIQ_I8MM && offset == 128 ? 0 : offset;
}

INLINE panel_row panel_row_of(const cortiq_tile *t, int row)
{
    int32_t width = t->matrix->width;
    return (panel_row){(const int8_t *)t->ready + (size_t)row * 2 * cortiq_padded(width),
                       t->starts[row], cortiq_record_sum32(t->x[row], width)};
}

/* The planes of 8 columns. */
INLINE void split_planes(const int16_t *q, int8x8_t *high, int8x8_t *low)
{
    int16x8_t both = vld1q_s16(q);
    *high = vrshrn_n_s16(both, 8);
    *low = vmovn_s16(both);
}

/* Of both halves the order that panels have. */
INLINE void store_planes(int8_t *to, int8x8_t first, int8x8_t second)
{
    static const uint8_t order[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    vst1q_s8(to, vqtbl1q_s8(vcombine_s8(first, second), vld1q_u8(order)));
}

TARGET static void panel_row_ready(const void *record, int32_t width, uint8_t *to)
{
    const int16_t *q = cortiq_record_q(record);
    for (int32_t k = 0; k < cortiq_padded(width); k += 8) {
        int8x8_t high, low;
        split_planes(q + k, &high, &low);
        store_planes((int8_t *)to + 2 * k, high, low);
    }
}

INLINE void panel_start(const int layout, panel_sums *sums, int32_t start)
{
    (void)layout;
    for (int v = 0; v < QUARTERS; v++) {
        sums->high[v] = vi_set(start >> 8);
        sums->low[v] = vi_set(start & 255);
    }
}

#if CORTIQ_I8MM
#define DOT_LANE(sum, codes, x, lane) vusdotq_laneq_s32(sum, vi_bytes(codes), x, lane)
#else
#define DOT_LANE(sum, codes, x, lane)                                                              \
    vdotq_laneq_s32(sum, vreinterpretq_s8_s32(codes), x, lane)
#endif

INLINE void panel_dot(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                      const int second, const panel_row *x, int column, panel_sums *sums)
{
    const int bits = layout_bits(layout);
    int8x16_t first = vld1q_s8(x->planes + 2 * column), last = vld1q_s8(x->planes + 2 * column + 16);
    _Pragma("GCC unroll 4")
    for (int v = 0; v < QUARTERS; v++) {
        vi b[4];
        if (layout_left(layout) == layout_offset(layout))
            unpack_bytes(layout, c, main, unit, second, v * LANES, b);
        else
            unpack_signed(layout, c, main, unit, second, v * LANES, b);
        sums->high[v] = DOT_LANE(sums->high[v], b[0], first, 0);
        sums->low[v] = DOT_LANE(sums->low[v], b[0], first, 2);
        sums->high[v] = DOT_LANE(sums->high[v], b[1], first, 1);
        sums->low[v] = DOT_LANE(sums->low[v], b[1], first, 3);
        sums->high[v] = DOT_LANE(sums->high[v], b[2], last, 0);
        sums->low[v] = DOT_LANE(sums->low[v], b[2], last, 2);
        sums->high[v] = DOT_LANE(sums->high[v], b[3], last, 1);
        sums->low[v] = DOT_LANE(sums->low[v], b[3], last, 3);
        if (bits == 3 || bits == 5 || bits == 6)
            FENCE;
    }
}

INLINE vi panel_total(const int layout, const panel_sums *sums, int v)
{
    (void)layout;
    return vi_add(vi_left(sums->high[v], 8), sums->low[v]);
}

INLINE void panel_fold(const int layout, const panel_sums *sums, int v, vi scale, vi *high,
                       vi *rest)
{
    (void)layout;
    *high = vmlaq_s32(*high, sums->high[v], scale);
    *rest = vmlaq_s32(*rest, sums->low[v], scale);
}

INLINE void panel_split(const int layout, const panel_sums *sums, int v, vi *high,
                        vi *rest)
{
    (void)layout;
    *high = vi_add(*high, sums->high[v]);
    *rest = vi_add(*rest, sums->low[v]);
}
