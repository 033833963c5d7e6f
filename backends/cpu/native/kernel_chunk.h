/* A tile's chunk: its codes, expanded for the products, and its scales as floats. */

enum {
    TILE_VECTORS = LANES == 4 ? 4 : 2,
    TILE = TILE_VECTORS * LANES,
    CHUNK = 256, /* columns: a run of 32-blocks, or a 256-block */
    MOST_ROWS = LANES == 16 ? 6 : LANES == 8 ? 4 : 2
};

typedef struct {
    int16_t codes[CHUNK / 2][TILE][2];
    float scale[2 * RUN_BLOCKS][TILE], minimum[RUN_BLOCKS][TILE]; /* 16-blocks are two runs */
    int16_t offsets[RUN_BLOCKS][TILE][2]; /* of two sub-blocks each */
    int32_t state[2][BLOCK_ROWS][TILE];
    int16_t upper[CHUNK / 2][TILE][2]; /* of wide codes, whose lower parts are `codes` */
} block_scratch;

_Static_assert(sizeof(block_scratch) <= 1 << 20, "a worker's scratch is at least a MiB");

/* A chunk on its way: columns from `column` on, of block `block`. */
typedef struct {
    const cortiq_tile *tile;
    block_scratch *scratch;
    int32_t index, column, units, block, row;
    int32_t first, last; /* chunk of the row? */
    int32_t lane;        /* outputs from here on: w16 takes half a tile at a time */
    int32_t next_lines;  /* of 64 bytes of a panel of what is expanded next, */
    const uint8_t *next; /* and of its first one */
} chunk;

/* Unit u of a chunk without its offset, sub-scales multiplied in: int16 pairs of columns. */
INLINE void fold_unit(const int layout, const cortiq_chunk *from, const uint8_t *main, int u,
                      int lane, vi *p)
{
    const int sub = layout_sub(layout);
    vi offset = vi_set16((int16_t)layout_offset(layout)), scale = vi_zero();
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
    }
}
