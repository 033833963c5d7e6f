/* What kernels of many rows share: a walk over chunks of a tile's weights, and how sums of a chunk
 * join those before it, which wait in `state`.
 */

INLINE void expand_sides(const int layout, const chunk *c, const cortiq_chunk *from, int lane,
                         int to)
{
    block_scratch *scratch = c->scratch;
    int blocks = layout_is_row(layout) ? 1 : chunk_blocks(layout, c->units);
    for (int b = 0; b < blocks; b++) {
        const uint8_t *side = from->side + b * layout_side_bytes(layout);
        vf_store(scratch->scale[b] + to * LANES, load_scale(layout, side, lane));
        if (layout_has_minimum(layout))
            vf_store(scratch->minimum[b] + to * LANES, load_minimum(layout, side, lane));
        for (int s = 0; layout_has_minimum(layout) && s < layout_subs(layout); s += 2) {
            vi first = load_offset(layout, side, s, lane);
            vi second = load_offset(layout, side, s + 1, lane);
            vi_store(scratch->offsets[s / 2][to * LANES], vi_or(first, vi_left(second, 16)));
        }
    }
}

/* The tile's vectors: outputs from c->lane on, of w16 the high plane and then the low one. A tile
 * may lack its second panel, whose place repeats the first.
 */
INLINE void expand_tile(const int layout, const chunk *c)
{
    const cortiq_tile *t = c->tile;
    const int planes = layout == CORTIQ_W16 ? 2 : 1, vectors = TILE_VECTORS / planes;
    for (int v = 0; v < TILE_VECTORS; v++) {
        int output = c->lane + v % vectors * LANES;
        int panel = output < t->outputs ? output / PANEL : 0;
        const uint8_t *at = t->panel + panel * t->matrix->panel_bytes;
        cortiq_chunk from = chunk_at(layout, t->matrix, at, c->index);
        expand(layout, c, &from, v < vectors ? from.main : from.main_low, output % PANEL, v);
        expand_sides(layout, c, &from, output % PANEL, v);
    }
}

/* Where lies what is expanded after this chunk: the next one, or the next tile's first. */
INLINE void find_next(const int layout, chunk *c)
{
    const cortiq_tile *t = c->tile;
    const uint8_t *panel = t->panel + c->lane / PANEL * t->matrix->panel_bytes;
    cortiq_chunk from = chunk_at(layout, t->matrix, panel, c->index);
    c->next = c->last ? panel + TILE / PANEL * t->matrix->panel_bytes : from.end;
    c->next_lines = (int32_t)((from.end - from.base + 63) / 64);
}

/* Ask memory for the share of it that falls to `rows` rows from `row` on: the machine's own
 * prefetching does not see so far, and all at once fill what waits for memory.
 */
INLINE void ask_next(const chunk *c, int row, int rows)
{
    int32_t lines = TILE / PANEL * c->next_lines, count = c->tile->count;
    int32_t stop = row + rows < count ? lines * (row + rows) / count : lines;
    for (int32_t n = lines * row / count; n < stop; n++)
        __builtin_prefetch(c->next + n / c->next_lines * c->tile->matrix->panel_bytes +
                           n % c->next_lines * 64);
}

/* y of a row and vector is complete up to this chunk: keep it, or finish the row. */
INLINE void keep(const chunk *c, int row, int v, vf y)
{
    if (c->last)
        finish_row(c->tile, row, v * LANES, y);
    else
        vf_store((float *)c->scratch->state[0][row] + v * LANES, y);
}

INLINE vf kept(const chunk *c, int which, int row, int v)
{
    return vf_load((const float *)c->scratch->state[which][row] + v * LANES);
}

/* J of a row, where the layout has minima: Σ offset · sum of a sub-block, sums as 256·high + low. */
INLINE vi low_sum(const int layout, const chunk *c, int row, int v)
{
    if (!layout_has_minimum(layout))
        return vi_zero();
    const void *record = c->tile->x[row];
    int32_t width = c->tile->matrix->width;
    const int16_t *high = layout_sub(layout) == 32 ? cortiq_record_high32(record, width)
                                                   : cortiq_record_high16(record, width);
    const int16_t *low = layout_sub(layout) == 32 ? cortiq_record_low32(record, width)
                                                  : cortiq_record_low16(record, width);
    int at = c->column / layout_sub(layout);
    vi sum_high = vi_zero(), sum_low = vi_zero();
    for (int s = 0; s < layout_subs(layout) / 2; s++) {
        vi offsets = vi_load(c->scratch->offsets[s][v * LANES]);
        sum_high = vi_dot(sum_high, offsets, pair(high + at + 2 * s));
        sum_low = vi_dot(sum_low, offsets, pair(low + at + 2 * s));
    }
    return vi_add(vi_left(sum_high, 8), sum_low);
}

/* A 256-block is one term, with a minimum that `low` meets; terms join runs of 8. */
INLINE void block_term(const int layout, const chunk *c, int row, int v, vf sum, vi low)
{
    vf term = vf_multiply(sum, vf_load(c->scratch->scale[0] + v * LANES));
    if (layout_has_minimum(layout)) {
        vf minimum = vf_load(c->scratch->minimum[0] + v * LANES);
        term = vf_add(term, vf_multiply(vf_from_int(low), minimum));
    }
    vf run = c->block % RUN_BLOCKS ? vf_add(kept(c, 1, row, v), term) : term;
    if (c->last || c->block % RUN_BLOCKS == RUN_BLOCKS - 1)
        keep(c, row, v, c->block < RUN_BLOCKS ? run : vf_add(kept(c, 0, row, v), run));
    else
        vf_store((float *)c->scratch->state[1][row] + v * LANES, run);
}

INLINE void block_chunks(const int layout, const cortiq_tile *t, void (*rows)(chunk *))
{
    chunk c = {.tile = t, .scratch = (block_scratch *)t->scratch};
    int32_t units = units_of(t->matrix), chunks = chunks_of(t->matrix);
    for (; c.lane < t->outputs; c.lane += layout == CORTIQ_W16 ? TILE / 2 : TILE)
        for (c.index = 0; c.index < chunks; c.index++) {
            int32_t left = units - c.index * CHUNK_UNITS;
            c.column = c.index * CHUNK;
            c.units = left < CHUNK_UNITS ? left : CHUNK_UNITS;
            c.block = layout_is_row(layout) ? 0 : c.column / layout_block(layout);
            c.first = c.index == 0;
            c.last = c.index == chunks - 1;
            c.row = 0;
            expand_tile(layout, &c);
            find_next(layout, &c);
            rows(&c);
        }
}
