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

/* total[i] += unit · 16 columns of row i. One or two rows sum in two parts each, which start anew, so
 * that one product need not wait for the one before.
 */
INLINE void dot_unit(const int rows, const vi *p, const direct_row *x, int column, vi *total)
{
    for (int i = 0; rows <= 2 && i < rows; i++) {
        vi first = vi_zero(), second = vi_zero();
        _Pragma("GCC unroll 4")
        for (int j = 0; j < 8; j += 2) {
            first = vi_dot(first, p[j], pair(x[i].q + column + 2 * j));
            second = vi_dot(second, p[j + 1], pair(x[i].q + column + 2 * j + 2));
        }
        total[i] = vi_add(total[i], vi_add(first, second));
    }
    if (rows <= 2)
        return;
    _Pragma("GCC unroll 8")
    for (int j = 0; j < 8; j++)
        _Pragma("GCC unroll 8")
        for (int i = 0; i < rows; i++)
            total[i] = vi_dot(total[i], p[j], pair(x[i].q + column + 2 * j));
}

/* total[i] += units first … first + count − 1 (known when compiled) of a chunk */
INLINE void dot_units(const int layout, const int rows, const cortiq_chunk *c, int first,
                      const int count, const int odd, int lane, const direct_row *x, int column,
                      vi *total)
{
    _Pragma("GCC unroll 2")
    for (int u = 0; u < count; u++) {
        vi p[8];
        if (lane == 0)
            prefetch_unit(layout, c, first + u);
        unpack_unit(layout, c, c->main, first + u, count == 2 ? u : odd, lane, p);
        dot_unit(rows, p, x, column + UNIT * u, total);
    }
}

/* A 32-block of a chunk joins the run. */
INLINE void direct_block(const int layout, const int rows, const cortiq_chunk *c, int b, int all,
                         int lane, const direct_row *x, vf *run)
{
    vi total[8];
    for (int i = 0; i < rows; i++)
        total[i] = layout_offset(layout) ? vi_set(x[i].start[all]) : vi_zero();
    dot_units(layout, rows, c, 2 * b, 2, 0, lane, x, 32 * all, total);
    const uint8_t *side = c->side + b * layout_side_bytes(layout);
    vf scale = load_scale(layout, side, lane), minimum = vf_zero();
    if (layout_has_minimum(layout))
        minimum = load_minimum(layout, side, lane);
    for (int i = 0; i < rows; i++) {
        vf term = vf_multiply(vf_from_int(total[i]), scale);
        if (layout_has_minimum(layout))
            term = vf_add(term, vf_multiply(vf_set(x[i].sum32[all]), minimum));
        run[i] = vf_add(run[i], term);
    }
}

/* As direct_block, of 16 columns: block b of a chunk, `all` of the row. */
INLINE void direct_block_16(const int layout, const int rows, const cortiq_chunk *c, int b, int all,
                            int lane, const direct_row *x, vf *run)
{
    vi total[8];
    for (int i = 0; i < rows; i++)
        total[i] = vi_set(x[i].start[all]);
    dot_units(layout, rows, c, b, 1, 0, lane, x, 16 * all, total);
    vf scale = load_scale(layout, c->side + b * layout_side_bytes(layout), lane);
    for (int i = 0; i < rows; i++)
        run[i] = vf_add(run[i], vf_multiply(vf_from_int(total[i]), scale));
}

INLINE void direct_16(const int layout, const int rows, const cortiq_tile *t, int row, int lane)
{
    direct_row x[8];
    vf y[8], run[8];
    direct_rows_of(t, rows, row, x);
    for (int i = 0; i < rows; i++)
        y[i] = run[i] = vf_zero();
    for (int index = 0; index < chunks_of(t->matrix); index++) {
        cortiq_chunk c = chunk_at(layout, t->matrix, t->panel, index);
        if (lane == 0)
            touch_chunk(&c);
        for (int b = 0; b < c.units; b++) {
            direct_block_16(layout, rows, &c, b, index * CHUNK_UNITS + b, lane, x, run);
            for (int i = 0; b % RUN_BLOCKS == RUN_BLOCKS - 1 && i < rows; i++) {
                y[i] = vf_add(y[i], run[i]);
                run[i] = vf_zero();
            }
        }
    }
    for (int i = 0; i < rows; i++)
        finish_row(t, row + i, lane, vf_add(y[i], run[i]));
}

/* As direct_block, of wide codes. */
INLINE void direct_block_wide(const int layout, const int rows, const cortiq_chunk *c, int b,
                              int all, int lane, const direct_row *x, vf *run)
{
    vi low[8], high[8], p[8], upper[8];
    for (int i = 0; i < rows; i++)
        low[i] = high[i] = layout_offset(layout) ? vi_set(x[i].start[all]) : vi_zero();
    for (int u = 0; u < 2; u++) {
        if (lane == 0)
            prefetch_unit(layout, c, 2 * b + u);
        unpack_wide(layout, c->main, 2 * b + u, lane, p, upper);
        dot_unit(rows, p, x, 32 * all + UNIT * u, low);
        dot_unit(rows, upper, x, 32 * all + UNIT * u, high);
    }
    vf scale = load_scale(layout, c->side + b * layout_side_bytes(layout), lane);
    for (int i = 0; i < rows; i++)
        run[i] = vf_add(run[i], vf_multiply(round_wide(layout, high[i], low[i]), scale));
}

INLINE void direct_32(const int layout, const int rows, const cortiq_tile *t, int row, int lane)
{
    direct_row x[8];
    vf y[8];
    direct_rows_of(t, rows, row, x);
    for (int i = 0; i < rows; i++)
        y[i] = vf_zero();
    for (int index = 0; index < chunks_of(t->matrix); index++) {
        cortiq_chunk c = chunk_at(layout, t->matrix, t->panel, index);
        if (lane == 0)
            touch_chunk(&c);
        vf run[8];
        for (int i = 0; i < rows; i++)
            run[i] = vf_zero();
        for (int b = 0; b < c.units / 2; b++) {
            int all = index * RUN_BLOCKS + b;
            if (layout_is_wide(layout))
                direct_block_wide(layout, rows, &c, b, all, lane, x, run);
            else
                direct_block(layout, rows, &c, b, all, lane, x, run);
        }
        for (int i = 0; i < rows; i++)
            y[i] = vf_add(y[i], run[i]);
    }
    for (int i = 0; i < rows; i++)
        finish_row(t, row + i, lane, y[i]);
}

/* high·256 + rest += sub-scale · Σ code·q over sub-block `sub` of the chunk (`all` of the row); odd
 * is sub & 1.
 */
INLINE void direct_sub(const int layout, const int rows, const cortiq_chunk *c, int sub,
                       const int odd, int all, int lane, const direct_row *x, vi *high, vi *rest,
                       vi *low)
{
    const int units = layout_sub(layout) / UNIT;
    vi total[8], scale = load_sub_scale(layout, c->side, sub, lane), offset = vi_zero();
    for (int i = 0; i < rows; i++)
        total[i] = layout_offset(layout) ? vi_set(x[i].start[all]) : vi_zero();
    dot_units(layout, rows, c, sub * units, units, odd, lane, x, all * units * UNIT, total);
    if (layout_has_minimum(layout))
        offset = load_offset(layout, c->side, sub, lane);
    const int spill = odd || layout_spill(layout) <= layout_sub(layout);
    for (int i = 0; i < rows; i++) {
        rest[i] = vi_add(rest[i], vi_multiply(total[i], scale));
        if (layout_spill(layout) < 256 && spill) {
            high[i] = vi_add(high[i], vi_right(rest[i], 8));
            rest[i] = vi_and(rest[i], vi_set(255));
        }
        if (layout_has_minimum(layout))
            low[i] = vi_add(low[i], vi_multiply(vi_set(x[i].start[all]), offset));
    }
}

/* Integers of a 256-block: 256·high + rest and, for the minimum, low. */
INLINE void direct_sums(const int layout, const int rows, const cortiq_chunk *c, int index,
                        int lane, const direct_row *x, vi *high, vi *rest, vi *low)
{
    const int subs = layout_subs(layout);
    for (int i = 0; i < rows; i++) {
        high[i] = low[i] = vi_zero();
        rest[i] = subs ? vi_zero() : vi_set(x[i].start[index]);
    }
    for (int u = 0; !subs && u < c->units; u++)
        dot_units(layout, rows, c, u, 1, 0, lane, x, 256 * index + UNIT * u, rest);
    for (int s = 0; s < subs; s += 2) {
        int all = index * subs + s;
        direct_sub(layout, rows, c, s, 0, all, lane, x, high, rest, low);
        direct_sub(layout, rows, c, s + 1, 1, all + 1, lane, x, high, rest, low);
    }
}

INLINE void direct_wide(const int layout, const int rows, const cortiq_tile *t, int row, int lane)
{
    direct_row x[8];
    vf y[8], run[8];
    direct_rows_of(t, rows, row, x);
    for (int i = 0; i < rows; i++)
        y[i] = run[i] = vf_zero();
    for (int index = 0; index < chunks_of(t->matrix); index++) {
        cortiq_chunk c = chunk_at(layout, t->matrix, t->panel, index);
        if (lane == 0)
            touch_chunk(&c);
        vi high[8], rest[8], low[8];
        direct_sums(layout, rows, &c, index, lane, x, high, rest, low);
        vf scale = load_scale(layout, c.side, lane), minimum = vf_zero();
        if (layout_has_minimum(layout))
            minimum = load_minimum(layout, c.side, lane);
        for (int i = 0; i < rows; i++) {
            const int spills = layout_spill(layout) < 256;
            vf sum = spills ? round_two(high[i], rest[i]) : vf_from_int(rest[i]);
            vf term = vf_multiply(sum, scale);
            if (layout_has_minimum(layout))
                term = vf_add(term, vf_multiply(vf_from_int(low[i]), minimum));
            run[i] = vf_add(run[i], term);
            if (index % RUN_BLOCKS == RUN_BLOCKS - 1) {
                y[i] = vf_add(y[i], run[i]);
                run[i] = vf_zero();
            }
        }
    }
    for (int i = 0; i < rows; i++)
        finish_row(t, row + i, lane, vf_add(y[i], run[i]));
}

/* A chunk of one plane: 256·high + rest, codes still offset by 128. */
INLINE void direct_plane(const int rows, const cortiq_chunk *c, const uint8_t *main, int column,
                         int lane, const direct_row *x, vi *high, vi *rest)
{
    for (int u = 0; u < c->units; u++) {
        vi p[8];
        if (lane == 0)
            prefetch_unit(CORTIQ_W8, c, u + (main == c->main ? 0 : c->units));
        unpack_unit(CORTIQ_W8, c, main, u, 0, lane, p);
        dot_unit(rows, p, x, column + UNIT * u, rest);
    }
    for (int i = 0; i < rows; i++) {
        high[i] = vi_add(high[i], vi_right(rest[i], 8));
        rest[i] = vi_and(rest[i], vi_set(255));
    }
}

/* w8, w16. start: the offset's part of I in base 256, high, middle, low (w8: high, low). */
INLINE void direct_whole(const int layout, const int rows, const cortiq_tile *t, int row, int lane)
{
    direct_row x[8];
    vi high[8], rest[8], high2[8], rest2[8];
    direct_rows_of(t, rows, row, x);
    for (int i = 0; i < rows; i++)
        high[i] = rest[i] = high2[i] = rest2[i] = vi_zero();
    for (int index = 0; index < chunks_of(t->matrix); index++) {
        cortiq_chunk c = chunk_at(layout, t->matrix, t->panel, index);
        if (lane == 0)
            touch_chunk(&c);
        direct_plane(rows, &c, c.main, 256 * index, lane, x, high, rest);
        if (layout == CORTIQ_W16)
            direct_plane(rows, &c, c.main_low, 256 * index, lane, x, high2, rest2);
    }
    vf scale = load_scale(layout, t->panel, lane);
    for (int i = 0; i < rows; i++) {
        vf sum;
        high[i] = vi_add(high[i], vi_set(x[i].start[0]));
        rest[i] = vi_add(rest[i], vi_set(x[i].start[1]));
        if (layout == CORTIQ_W16)
            sum = round_three(high[i], vi_add(rest[i], high2[i]),
                              vi_add(rest2[i], vi_set(x[i].start[2])));
        else
            sum = round_two(high[i], rest[i]);
        finish_row(t, row + i, lane, vf_multiply(sum, scale));
    }
}

/* w16 of one or two units and a row: sums of a plane of the weight fit int32. Measured: B of rank 16
 * takes 0.4 of the time that it takes with the parts of long rows. */
INLINE void narrow_panel(const cortiq_tile *t, const direct_row *x, const int units, int lane)
{
    cortiq_chunk c = chunk_at(CORTIQ_W16, t->matrix, t->panel, 0);
    vi high = vi_set(x->start[3]), low = high;
    for (int line = 0; lane == 0 && line < 8 * units; line++)
        __builtin_prefetch(c.base + AHEAD + 64 * line);
    for (int u = 0; u < units; u++) {
        vi p[8];
        unpack_unit(CORTIQ_W8, &c, c.main, u, 0, lane, p);
        dot_unit(1, p, x, UNIT * u, &high);
        unpack_unit(CORTIQ_W8, &c, c.main + 256 * units, u, 0, lane, p);
        dot_unit(1, p, x, UNIT * u, &low);
    }
    finish_row(t, 0, lane, vf_multiply(round_two(high, low), load_scale(CORTIQ_W16, t->panel, lane)));
}

INLINE void direct(const int layout, const int rows, const cortiq_tile *t, int row, int lane)
{
    if (layout_is_row(layout))
        direct_whole(layout, rows, t, row, lane);
    else if (layout_block(layout) == 256)
        direct_wide(layout, rows, t, row, lane);
    else if (layout_block(layout) == 16)
        direct_16(layout, rows, t, row, lane);
    else
        direct_32(layout, rows, t, row, lane);
}

INLINE void direct_panel(const int layout, const cortiq_tile *t, int lane)
{
    int row = 0, units = units_of(t->matrix);
    if (layout == CORTIQ_W16 && t->count == 1 && units <= 2) {
        direct_row x;
        direct_rows_of(t, 1, 0, &x);
        if (units == 1)
            narrow_panel(t, &x, 1, lane);
        else
            narrow_panel(t, &x, 2, lane);
        return;
    }
    for (; LANES > 8 && row + 8 <= t->count; row += 8)
        direct(layout, 8, t, row, lane);
    for (; LANES > 8 && row + 4 <= t->count; row += 4)
        direct(layout, 4, t, row, lane);
    for (; LANES > 4 && row + 2 <= t->count; row += 2)
        direct(layout, 2, t, row, lane);
    for (; row < t->count; row++)
        direct(layout, 1, t, row, lane);
}

#define DIRECT_KERNEL(name)                                                                        \
    TARGET static void direct_##name(const cortiq_tile *tile)                                      \
    {                                                                                              \
        for (EACH_PANEL(t, tile))                                                                  \
            for (int lane = 0; lane < PANEL && lane < t.outputs; lane += LANES)                    \
                direct_panel(CORTIQ_##name, &t, lane);                                             \
    }
#ifndef DIRECT_LAYOUTS /* those that no other kernels take */
#define DIRECT_LAYOUTS CORTIQ_EACH_LAYOUT
#endif
DIRECT_LAYOUTS(DIRECT_KERNEL)
