/* A chunk's codes and quantised rows in the forms that kernel_planes.h multiplies.
 *
 * A *cell* is two rows and a vector of outputs: two vectors of sums, with SDOT one a row, with SMMLA one
 * for each two outputs: row 0's two, then row 1's. 8 columns of codes for a cell are two vectors as
 * well: with SDOT the first four and the last four columns of all four outputs, with SMMLA all eight of
 * the first two and of the last two outputs.
 */

enum { WORD = 8, CELL_BYTES = 32, WORD_BYTES = TILE_VECTORS * CELL_BYTES };

typedef struct {
    vi r[2];
} cell;

/* Sub-scales as cells meet them, and offsets of sub-blocks: they take the place of codes of 16 bits. */
typedef struct {
    vi scale[16][TILE_VECTORS][2], offset[16][TILE_VECTORS];
} plane_subs;

_Static_assert(sizeof(plane_subs) <= sizeof(((block_scratch *)0)->upper), "there is room for them");

INLINE plane_subs *subs_of(const chunk *c) { return (plane_subs *)(void *)c->scratch->upper; }

INLINE int8x16_t signed_bytes(vi a) { return vreinterpretq_s8_s32(a); }

/* Codes of one vector of outputs of a chunk to vector `to` of the tile. */
INLINE void expand(const int layout, const chunk *c, const cortiq_chunk *from, const uint8_t *main,
                   int lane, int to)
{
    uint8_t *at = (uint8_t *)c->scratch->codes + to * CELL_BYTES;
    for (int u = 0; u < c->units; u++) {
        vi b[4];
        if (u & 1)
            unpack_signed(layout, from, main, u, 1, lane, b);
        else
            unpack_signed(layout, from, main, u, 0, lane, b);
        for (int j = 0; j < 4; j += 2, at += WORD_BYTES) {
            vi_store(at, CORTIQ_I8MM ? vzip1q_s32(b[j], b[j + 1]) : b[j]);
            vi_store(at + 16, CORTIQ_I8MM ? vzip2q_s32(b[j], b[j + 1]) : b[j + 1]);
        }
    }
    for (int s = 0; s < layout_subs(layout); s++) {
        vi scale = load_sub_scale(layout, from->side, s, lane);
        vi *cells = subs_of(c)->scale[s][to];
        cells[0] = CORTIQ_I8MM ? vcombine_s32(vget_low_s32(scale), vget_low_s32(scale)) : scale;
        cells[1] = CORTIQ_I8MM ? vcombine_s32(vget_high_s32(scale), vget_high_s32(scale)) : scale;
        if (layout_has_minimum(layout))
            subs_of(c)->offset[s][to] = load_offset(layout, from->side, s, lane);
    }
}

/* ---- Rows: for each pair of them, and 8 columns, 16 bytes of the upper plane, those of the first
 * row before those of the second, and 16 of the lower one.
 */

enum { READY_PAIRS = READY_ROWS / 2 };

static size_t plane_bytes(int layout, int32_t width)
{
    (void)layout;
    return (size_t)cortiq_padded(width) * 2 * READY_ROWS;
}

/* Up to 16 records; a row that isn't there is as the one before it, and counts nowhere. */
TARGET static void plane_rows_ready(int layout, int32_t width, const void *const *x, int32_t count,
                                    uint8_t *to)
{
    int32_t padded = cortiq_padded(width);
    (void)layout;
    for (int32_t i = 0; i < count; i += 2) {
        const int16_t *first = cortiq_record_q(x[i]);
        const int16_t *second = i + 1 < count ? cortiq_record_q(x[i + 1]) : first;
        for (int32_t k = 0; k < padded; k += WORD, to += 32) {
            int8x8_t high[2], low[2];
            split_planes(first + k, &high[0], &low[0]);
            split_planes(second + k, &high[1], &low[1]);
            store_planes((int8_t *)to, high[0], high[1]);
            store_planes((int8_t *)to + 16, low[0], low[1]);
        }
    }
}
