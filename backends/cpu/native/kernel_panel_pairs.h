/* Dot products of NEON alone, for kernel_panel.h: pairs of int16, whose products are added to two
 * sums each (SMLAL, SMLAL2), which meet at the end.
 */

enum { QUARTERS = PANEL / LANES };

typedef struct {
    const int16_t *q;
    const int32_t *start;
    const float *sum32;
} panel_row;

/* Outputs 0 and 1 of a vector in the lanes of `low`, in pairs, 2 and 3 in those of `high`. */
typedef struct {
    vi low[QUARTERS], high[QUARTERS];
} panel_sums;

FOLDED int layout_left(int layout) { return layout_offset(layout); }

INLINE panel_row panel_row_of(const cortiq_tile *t, int row)
{
    const void *record = t->x[row];
    return (panel_row){cortiq_record_q(record), t->starts[row],
                       cortiq_record_sum32(record, t->matrix->width)};
}

INLINE void panel_start(const int layout, panel_sums *sums, int32_t start)
{
    (void)layout;
    vi first = vreinterpretq_s32_s64(vdupq_n_s64((uint32_t)start));
    for (int v = 0; v < QUARTERS; v++)
        sums->low[v] = sums->high[v] = first;
}

INLINE void panel_dot(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                      const int second, const panel_row *x, int column, panel_sums *sums)
{
    int16x8_t pairs[8];
    _Pragma("GCC unroll 8")
    for (int j = 0; j < 8; j++)
        pairs[j] = vi_halves(pair(x->q + column + 2 * j));
    _Pragma("GCC unroll 4")
    for (int v = 0; v < QUARTERS; v++) {
        vi p[8];
        unpack_unit(layout, c, main, unit, second, v * LANES, p);
        _Pragma("GCC unroll 8")
        for (int j = 0; j < 8; j++) {
            int16x8_t codes = vi_halves(p[j]);
            sums->low[v] = vmlal_s16(sums->low[v], vget_low_s16(codes), vget_low_s16(pairs[j]));
            sums->high[v] = vmlal_high_s16(sums->high[v], codes, pairs[j]);
        }
        FENCE;
    }
}

INLINE vi panel_total(const int layout, const panel_sums *sums, int v)
{
    (void)layout;
    return vpaddq_s32(sums->low[v], sums->high[v]);
}

INLINE void panel_fold(const int layout, const panel_sums *sums, int v, vi scale, vi *high,
                       vi *rest)
{
    (void)layout;
    *rest = vmlaq_s32(*rest, panel_total(layout, sums, v), scale);
    *high = vsraq_n_s32(*high, *rest, 8);
    *rest = vi_and(*rest, vi_set(255));
}

INLINE void panel_split(const int layout, const panel_sums *sums, int v, vi *high,
                        vi *rest)
{
    (void)layout;
    *rest = vi_add(*rest, panel_total(layout, sums, v));
    *high = vsraq_n_s32(*high, *rest, 8);
    *rest = vi_and(*rest, vi_set(255));
}
