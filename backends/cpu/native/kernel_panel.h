/* Products of one row with the 16 outputs of a panel at a time: codes go from the panel through
 * registers into the dot products, once for all that is loaded of the row. Included after a
 * kernel_panel_*.h, which says what a dot product is.
 *
 *     panel_row                       a row in the form that dot products take
 *     panel_sums                      the sums of the panel's outputs
 *     panel_start(layout, sums, start)  all of them are `start`
 *     panel_dot(…)                    a unit joins them
 *     panel_total(layout, sums, v)    vector v of them
 *     panel_fold(layout, sums, v, scale, …)  256·high + rest += scale·sum
 *     panel_split(layout, sums, v, …)         256·high + rest += sum
 *     layout_left(layout)             what its codes are too large by
 *     widen_bytes(from, is_signed, to)  the bytes of a panel's outputs as int32
 *     PANEL_NAME(name)                the kernel of a layout (direct_…, unless defined)
 *     ask_unit(layout, c, unit)       ask memory for what comes later (prefetch_unit, likewise)
 */
#ifndef PANEL_NAME
#define PANEL_NAME(name) direct_##name
#define ask_unit prefetch_unit
#endif

typedef struct {
    vi high[QUARTERS], rest[QUARTERS];
} panel_parts;

/* Sums of `count` units (known when compiled) of a chunk, from `first` on, column `column` of the
 * row; odd: of one unit, first & 1. */
INLINE panel_sums panel_units(const int layout, const cortiq_chunk *c, int first, const int count,
                              const int odd, const panel_row *x, int32_t start, int column)
{
    panel_sums sums;
    panel_start(layout, &sums, start);
    _Pragma("GCC unroll 2")
    for (int u = 0; u < count; u++) {
        ask_unit(layout, c, first + u);
        panel_dot(layout, c, c->main, first + u, count == 2 ? u : odd, x, column + UNIT * u, &sums);
    }
    return sums;
}

/* A block of 32 or 16 columns joins the run: block b of a chunk, `all` of the row. */
INLINE void panel_block(const int layout, const cortiq_chunk *c, int b, int all, const panel_row *x,
                        vf *run)
{
    const int units = layout_block(layout) / UNIT;
    const uint8_t *side = c->side + b * layout_side_bytes(layout);
    int32_t start = layout_left(layout) ? x->start[all] : 0;
    panel_sums sums = panel_units(layout, c, units * b, units, 0, x, start, units * UNIT * all);
    _Pragma("GCC unroll 4")
    for (int v = 0; v < QUARTERS; v++) {
        vf term = vf_multiply(vf_from_int(panel_total(layout, &sums, v)),
                              load_scale(layout, side, v * LANES));
        if (layout_has_minimum(layout))
            term = vf_add(term, vf_multiply(vf_set(x->sum32[all]),
                                            load_minimum(layout, side, v * LANES)));
        run[v] = vf_add(run[v], term);
    }
}

INLINE void finish_panel(const cortiq_tile *t, int row, const vf *y)
{
    for (int v = 0; v < QUARTERS; v++)
        finish_row(t, row, v * LANES, y[v]);
}

INLINE void panel_small(const int layout, const cortiq_tile *t, int row)
{
    const int blocks = CHUNK / layout_block(layout);
    panel_row x = panel_row_of(t, row);
    vf y[QUARTERS], run[QUARTERS];
    for (int v = 0; v < QUARTERS; v++)
        y[v] = run[v] = vf_zero();
    for (int index = 0; index < chunks_of(t->matrix); index++) {
        cortiq_chunk c = chunk_at(layout, t->matrix, t->panel, index);
        touch_chunk(&c);
        for (int b = 0; b < chunk_blocks(layout, c.units); b++) {
            for (int v = 0; b % RUN_BLOCKS == 0 && v < QUARTERS; v++) {
                if (b)
                    y[v] = vf_add(y[v], run[v]);
                run[v] = vf_zero();
            }
            panel_block(layout, &c, b, index * blocks + b, &x, run);
        }
        for (int v = 0; v < QUARTERS; v++)
            y[v] = vf_add(y[v], run[v]);
    }
    finish_panel(t, row, y);
}

/* Integers of a 256-block's sub-blocks. */
INLINE void panel_subs(const int layout, const cortiq_chunk *c, int index, const panel_row *x,
                       panel_parts *parts)
{
    const int units = layout_sub(layout) / UNIT, subs = layout_subs(layout);
    for (int s = 0; s < subs; s += 2)
        _Pragma("GCC unroll 2")
        for (int odd = 0; odd < 2; odd++) {
            int all = index * subs + s + odd;
            int32_t start = layout_left(layout) ? x->start[all] : 0;
            panel_sums sums = panel_units(layout, c, (s + odd) * units, units, odd, x, start,
                                          all * units * UNIT);
            vi scale[QUARTERS];
            widen_bytes(c->side + layout_subs_at(layout) + PANEL * (s + odd),
                        layout_signed_subs(layout), scale);
            _Pragma("GCC unroll 4")
            for (int v = 0; v < QUARTERS; v++)
                panel_fold(layout, &sums, v, scale[v], &parts->high[v], &parts->rest[v]);
        }
}

/* Σ offset · sum of a sub-block */
INLINE void panel_lows(const int layout, const cortiq_chunk *c, const int32_t *sums, vi *low)
{
    for (int v = 0; v < QUARTERS; v++)
        low[v] = vi_zero();
    for (int s = 0; s < layout_subs(layout); s++) {
        vi offset[QUARTERS];
        widen_bytes(c->side + layout_offsets_at(layout) + PANEL * s, 0, offset);
        for (int v = 0; v < QUARTERS; v++)
            low[v] = vi_add(low[v], vi_multiply(offset[v], vi_set(sums[s])));
    }
}

/* A 256-block without sub-blocks fits one integer. */
INLINE void panel_term(const int layout, const cortiq_chunk *c, int index, const panel_row *x,
                       vf *run)
{
    const int subs = layout_subs(layout);
    panel_parts parts;
    vi low[QUARTERS];
    panel_sums sums;
    memset(&parts, 0, sizeof parts);
    panel_start(layout, &sums, !subs && layout_left(layout) ? x->start[index] : 0);
    for (int u = 0; !subs && u < c->units; u++) {
        ask_unit(layout, c, u);
        panel_dot(layout, c, c->main, u, 0, x, CHUNK * index + UNIT * u, &sums);
    }
    if (subs)
        panel_subs(layout, c, index, x, &parts);
    if (layout_has_minimum(layout))
        panel_lows(layout, c, x->start + index * subs, low);
    _Pragma("GCC unroll 4")
    for (int v = 0; v < QUARTERS; v++) {
        vf sum = subs ? round_two(parts.high[v], parts.rest[v])
                      : vf_from_int(panel_total(layout, &sums, v));
        vf term = vf_multiply(sum, load_scale(layout, c->side, v * LANES));
        if (layout_has_minimum(layout))
            term = vf_add(term, vf_multiply(vf_from_int(low[v]),
                                            load_minimum(layout, c->side, v * LANES)));
        run[v] = vf_add(run[v], term);
    }
}

INLINE void panel_wide(const int layout, const cortiq_tile *t, int row)
{
    panel_row x = panel_row_of(t, row);
    vf y[QUARTERS], run[QUARTERS];
    for (int v = 0; v < QUARTERS; v++)
        y[v] = run[v] = vf_zero();
    for (int index = 0; index < chunks_of(t->matrix); index++) {
        cortiq_chunk c = chunk_at(layout, t->matrix, t->panel, index);
        touch_chunk(&c);
        panel_term(layout, &c, index, &x, run);
        for (int v = 0; index % RUN_BLOCKS == RUN_BLOCKS - 1 && v < QUARTERS; v++) {
            y[v] = vf_add(y[v], run[v]);
            run[v] = vf_zero();
        }
    }
    for (int v = 0; v < QUARTERS; v++)
        y[v] = vf_add(y[v], run[v]);
    finish_panel(t, row, y);
}

/* A chunk of one plane of weights. */
INLINE void panel_plane(const int layout, const cortiq_chunk *c, const uint8_t *main, int column,
                        const panel_row *x, panel_parts *parts)
{
    panel_sums sums;
    panel_start(layout, &sums, 0);
    for (int u = 0; u < c->units; u++) {
        ask_unit(CORTIQ_W8, c, u + (main == c->main ? 0 : c->units));
        panel_dot(layout, c, main, u, 0, x, column + UNIT * u, &sums);
    }
    for (int v = 0; v < QUARTERS; v++)
        panel_split(layout, &sums, v, &parts->high[v], &parts->rest[v]);
}

/* w8, w16. start: the offset's part of I in base 256, high, middle, low (w8: high, low). */
INLINE void panel_whole(const int layout, const cortiq_tile *t, int row)
{
    panel_row x = panel_row_of(t, row);
    panel_parts upper, lower;
    memset(&upper, 0, sizeof upper);
    memset(&lower, 0, sizeof lower);
    for (int index = 0; index < chunks_of(t->matrix); index++) {
        cortiq_chunk c = chunk_at(layout, t->matrix, t->panel, index);
        touch_chunk(&c);
        panel_plane(layout, &c, c.main, CHUNK * index, &x, &upper);
        if (layout == CORTIQ_W16)
            panel_plane(layout, &c, c.main_low, CHUNK * index, &x, &lower);
    }
    const int left = layout_left(layout) != 0;
    for (int v = 0; v < QUARTERS; v++) {
        vi high = vi_add(upper.high[v], vi_set(left ? x.start[0] : 0));
        vi rest = vi_add(upper.rest[v], vi_set(left ? x.start[1] : 0));
        vi last = vi_add(lower.rest[v], vi_set(left && layout == CORTIQ_W16 ? x.start[2] : 0));
        vf sum = layout == CORTIQ_W16 ? round_three(high, vi_add(rest, lower.high[v]), last)
                                      : round_two(high, rest);
        finish_row(t, row, v * LANES, vf_multiply(sum, load_scale(layout, t->panel, v * LANES)));
    }
}

#define PANEL_KERNEL(name)                                                                         \
    TARGET static void PANEL_NAME(name)(const cortiq_tile *tile)                                      \
    {                                                                                              \
        for (EACH_PANEL(t, tile))                                                                  \
            for (int row = 0; row < t.count; row++) {                                              \
                if (layout_is_row(CORTIQ_##name))                                                  \
                    panel_whole(CORTIQ_##name, &t, row);                                           \
                else if (layout_block(CORTIQ_##name) == 256)                                       \
                    panel_wide(CORTIQ_##name, &t, row);                                            \
                else                                                                               \
                    panel_small(CORTIQ_##name, &t, row);                                           \
            }                                                                                      \
    }
