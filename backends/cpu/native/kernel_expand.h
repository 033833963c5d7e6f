/* A tile's chunk of codes as int16, sub-scales multiplied in, and its scales as floats. */

enum {
    TILE_VECTORS = LANES == 4 ? 4 : 2,
    TILE = TILE_VECTORS * LANES,
    CHUNK = 256, /* columns: a run of 32-blocks, or a 256-block */
    MOST_ROWS = LANES == 16 ? 6 : LANES == 8 ? 3 : 2
};

typedef struct {
    int16_t codes[CHUNK / 2][TILE][2];
    float scale[RUN_BLOCKS][TILE], minimum[RUN_BLOCKS][TILE];
    int16_t offsets[RUN_BLOCKS][TILE][2]; /* of two sub-blocks each */
    int32_t state[2][BLOCK_ROWS][TILE];
} block_scratch;

_Static_assert(sizeof(block_scratch) <= 1 << 20, "a worker's scratch is at least a MiB");

/* A chunk on its way: columns from `column` on, of block `block`. */
typedef struct {
    const cortiq_tile *tile;
    block_scratch *scratch;
    int32_t index, column, units, block, row;
    int32_t first, last; /* chunk of the row? */
    int32_t lane;        /* outputs from here on: w16 takes half a tile at a time */
} chunk;

/* Codes of one vector of outputs of a chunk to vector `to` of the tile. */
INLINE void expand(const int layout, const chunk *c, const cortiq_chunk *from, const uint8_t *main,
                   int lane, int to)
{
    const int sub = layout_sub(layout);
    vi offset = vi_set16((int16_t)layout_offset(layout));
    for (int u = 0; u < c->units; u++) {
        vi p[8], scale = vi_zero();
        if (u & 1)
            unpack_unit(layout, from, main, u, 1, lane, p);
        else
            unpack_unit(layout, from, main, u, 0, lane, p);
        if (sub) {
            scale = load_sub_scale(layout, from->side, u * UNIT / sub, lane);
            scale = vi_or(vi_and(scale, vi_set(0xffff)), vi_left(scale, 16));
        }
        for (int j = 0; j < 8; j++) {
            if (layout_offset(layout))
                p[j] = vi_sub16(p[j], offset);
            if (sub)
                p[j] = vi_multiply16(p[j], scale);
            vi_store(c->scratch->codes[8 * u + j][to * LANES], p[j]);
        }
    }
}

INLINE void expand_sides(const int layout, const chunk *c, const cortiq_chunk *from, int lane,
                         int to)
{
    block_scratch *scratch = c->scratch;
    int blocks = layout_block(layout) == 32 ? c->units / 2 : 1;
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
