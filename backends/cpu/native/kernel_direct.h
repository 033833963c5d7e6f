/* Products of few rows: codes go from the panel through registers into the dot products. */

typedef struct {
    const int16_t *q;
    const int32_t *start;
    const float *sum32;
} direct_row;

INLINE void direct_rows_of(const cortiq_tile *t, const int rows, int row, direct_row *x)
{
    for (int i = 0; i < rows; i++) {
        const void *record = t->x[row + i];
        x[i].q = cortiq_record_q(record);
        x[i].start = t->starts[row + i];
        x[i].sum32 = cortiq_record_sum32(record, t->matrix->width);
    }
}

/* total[i] += unit · 16 columns of row i. One or two rows sum in two parts each, so that one
 * product need not wait for the one before.
 */
INLINE void dot_unit(const int rows, const vi *p, const direct_row *x, int column, vi *total)
{
    for (int i = 0; rows <= 2 && i < rows; i++) {
        vi second = vi_zero();
        _Pragma("GCC unroll 4")
        for (int j = 0; j < 8; j += 2) {
            total[i] = vi_dot(total[i], p[j], pair(x[i].q + column + 2 * j));
            second = vi_dot(second, p[j + 1], pair(x[i].q + column + 2 * j + 2));
        }
        total[i] = vi_add(total[i], second);
    }
    if (rows <= 2)
        return;
    _Pragma("GCC unroll 8")
    for (int j = 0; j < 8; j++)
        _Pragma("GCC unroll 8")
        for (int i = 0; i < rows; i++)
            total[i] = vi_dot(total[i], p[j], pair(x[i].q + column + 2 * j));
}

INLINE void direct_32(const int layout, const int rows, const cortiq_tile *t, int row, int lane)
{
    const cortiq_matrix *m = t->matrix;
    direct_row x[8];
    direct_rows_of(t, rows, row, x);
    vf y[8], run[8];
    for (int i = 0; i < rows; i++)
        y[i] = run[i] = vf_zero();
    for (int b = 0; b < m->blocks; b++) {
        vi total[8], p[8];
        for (int i = 0; i < rows; i++)
            total[i] = layout_offset(layout) ? vi_set(x[i].start[b]) : vi_zero();
        unpack_unit(layout, m, t->panel, 2 * b, 0, lane, p);
        dot_unit(rows, p, x, 32 * b, total);
        unpack_unit(layout, m, t->panel, 2 * b + 1, 1, lane, p);
        dot_unit(rows, p, x, 32 * b + 16, total);
        const uint8_t *side = side_of(layout, m, t->panel, b);
        vf scale = load_scale(layout, side, lane), minimum = vf_zero();
        if (layout_has_minimum(layout))
            minimum = load_minimum(layout, side, lane);
        for (int i = 0; i < rows; i++) {
            vf term = vf_multiply(vf_from_int(total[i]), scale);
            if (layout_has_minimum(layout))
                term = vf_add(term, vf_multiply(vf_set(x[i].sum32[b]), minimum));
            run[i] = vf_add(run[i], term);
        }
        if (b % RUN_BLOCKS == RUN_BLOCKS - 1)
            for (int i = 0; i < rows; i++) {
                y[i] = vf_add(y[i], run[i]);
                run[i] = vf_zero();
            }
    }
    for (int i = 0; i < rows; i++)
        finish_row(t, row + i, lane, vf_add(y[i], run[i]));
}

/* high·256 + rest += sub-scale · Σ code·q over sub-block `sub` of block b; odd is sub & 1. */
INLINE void direct_sub(const int layout, const int rows, const cortiq_tile *t, int b, int sub,
                       const int odd, int lane, const direct_row *x, vi *high, vi *rest, vi *low)
{
    const int units = layout_sub(layout) / UNIT, subs = layout_subs(layout);
    const uint8_t *side = side_of(layout, t->matrix, t->panel, b);
    vi total[8], p[8], scale = load_sub_scale(layout, side, sub, lane), offset = vi_zero();
    for (int i = 0; i < rows; i++)
        total[i] = layout_offset(layout) ? vi_set(x[i].start[b * subs + sub]) : vi_zero();
    _Pragma("GCC unroll 2")
    for (int u = 0; u < units; u++) {
        int unit = (b * subs + sub) * units + u;
        unpack_unit(layout, t->matrix, t->panel, unit, units == 2 ? u : odd, lane, p);
        dot_unit(rows, p, x, UNIT * unit, total);
    }
    if (layout_has_minimum(layout))
        offset = load_offset(layout, side, sub, lane);
    const int spill = odd || layout_spill(layout) <= layout_sub(layout);
    for (int i = 0; i < rows; i++) {
        rest[i] = vi_add(rest[i], vi_multiply(total[i], scale));
        if (layout_spill(layout) < 256 && spill) {
            high[i] = vi_add(high[i], vi_right(rest[i], 8));
            rest[i] = vi_and(rest[i], vi_set(255));
        }
        if (layout_has_minimum(layout))
            low[i] = vi_add(low[i], vi_multiply(vi_set(x[i].start[b * subs + sub]), offset));
    }
}

/* The integer of a block of w8b256, of which `units` exist. */
INLINE void direct_units(const int layout, const int rows, const cortiq_tile *t, int b, int units,
                         int lane, const direct_row *x, vi *rest)
{
    for (int i = 0; i < rows; i++)
        rest[i] = vi_set(x[i].start[b]);
    for (int u = 0; u < units; u++) {
        vi p[8];
        unpack_unit(layout, t->matrix, t->panel, 16 * b + u, 0, lane, p);
        dot_unit(rows, p, x, 256 * b + UNIT * u, rest);
    }
}

INLINE void direct_wide(const int layout, const int rows, const cortiq_tile *t, int row, int lane)
{
    const cortiq_matrix *m = t->matrix;
    direct_row x[8];
    direct_rows_of(t, rows, row, x);
    vf y[8], run[8];
    for (int i = 0; i < rows; i++)
        y[i] = run[i] = vf_zero();
    for (int b = 0; b < m->blocks; b++) {
        vi high[8], rest[8], low[8];
        for (int i = 0; i < rows; i++)
            high[i] = rest[i] = low[i] = vi_zero();
        int units = cortiq_padded(m->width) / UNIT - 16 * b;
        if (layout_is_k(layout))
            for (int s = 0; s < layout_subs(layout); s += 2) {
                direct_sub(layout, rows, t, b, s, 0, lane, x, high, rest, low);
                direct_sub(layout, rows, t, b, s + 1, 1, lane, x, high, rest, low);
            }
        else
            direct_units(layout, rows, t, b, units < 16 ? units : 16, lane, x, rest);
        const uint8_t *side = side_of(layout, m, t->panel, b);
        vf scale = load_scale(layout, side, lane);
        for (int i = 0; i < rows; i++) {
            vf sum = layout_spill(layout) < 256 ? round_two(high[i], rest[i]) : vf_from_int(rest[i]);
            vf term = vf_multiply(sum, scale);
            if (layout_has_minimum(layout))
                term = vf_add(term, vf_multiply(vf_from_int(low[i]), load_minimum(layout, side, lane)));
            run[i] = vf_add(run[i], term);
            if (b % RUN_BLOCKS == RUN_BLOCKS - 1) {
                y[i] = vf_add(y[i], run[i]);
                run[i] = vf_zero();
            }
        }
    }
    for (int i = 0; i < rows; i++)
        finish_row(t, row + i, lane, vf_add(y[i], run[i]));
}

/* One plane of a whole row as high·256 + rest, codes still offset by 128. */
INLINE void direct_plane(const int rows, const cortiq_tile *t, const uint8_t *units, int lane,
                         const direct_row *x, vi *high, vi *rest)
{
    int count = cortiq_padded(t->matrix->width) / UNIT;
    for (int i = 0; i < rows; i++)
        high[i] = rest[i] = vi_zero();
    for (int u = 0; u < count; u++) {
        vi p[8];
        unpack_unit(CORTIQ_W8, t->matrix, units, u, 0, lane, p);
        dot_unit(rows, p, x, UNIT * u, rest);
        if (u % 16 == 15 || u == count - 1)
            for (int i = 0; i < rows; i++) {
                high[i] = vi_add(high[i], vi_right(rest[i], 8));
                rest[i] = vi_and(rest[i], vi_set(255));
            }
    }
}

/* w8, w16. start: the offset's part of I in base 256: high, middle, low (w8: high, low). */
INLINE void direct_whole(const int layout, const int rows, const cortiq_tile *t, int row, int lane)
{
    const cortiq_matrix *m = t->matrix;
    direct_row x[8];
    direct_rows_of(t, rows, row, x);
    vi high[8], rest[8], high2[8], rest2[8];
    direct_plane(rows, t, t->panel, lane, x, high, rest);
    if (layout == CORTIQ_W16)
        direct_plane(rows, t, t->panel + m->extra_at / 2, lane, x, high2, rest2);
    vf scale = load_scale(layout, side_of(layout, m, t->panel, 0), lane);
    for (int i = 0; i < rows; i++) {
        vf sum;
        high[i] = vi_add(high[i], vi_set(x[i].start[0]));
        vi middle = vi_add(rest[i], vi_set(x[i].start[1]));
        if (layout == CORTIQ_W16) {
            middle = vi_add(middle, high2[i]);
            sum = round_three(high[i], middle, vi_add(rest2[i], vi_set(x[i].start[2])));
        } else {
            sum = round_two(high[i], middle);
        }
        finish_row(t, row + i, lane, vf_multiply(sum, scale));
    }
}

INLINE void direct(const int layout, const int rows, const cortiq_tile *t, int row, int lane)
{
    if (layout_is_row(layout))
        direct_whole(layout, rows, t, row, lane);
    else if (layout_block(layout) == 256)
        direct_wide(layout, rows, t, row, lane);
    else
        direct_32(layout, rows, t, row, lane);
}

#define DIRECT_KERNEL(name)                                                                        \
    TARGET static void direct_##name(const cortiq_tile *t)                                         \
    {                                                                                              \
        for (int lane = 0; lane < PANEL && lane < t->outputs; lane += LANES) {                     \
            int row = 0;                                                                           \
            for (; LANES > 8 && row + 8 <= t->count; row += 8)                                     \
                direct(CORTIQ_##name, 8, t, row, lane);                                            \
            for (; LANES > 8 && row + 4 <= t->count; row += 4)                                     \
                direct(CORTIQ_##name, 4, t, row, lane);                                            \
            for (; LANES > 4 && row + 2 <= t->count; row += 2)                                     \
                direct(CORTIQ_##name, 2, t, row, lane);                                            \
            for (; row < t->count; row++)                                                          \
                direct(CORTIQ_##name, 1, t, row, lane);                                            \
        }                                                                                          \
    }
CORTIQ_EACH_LAYOUT(DIRECT_KERNEL)
