/* Products of many rows on tile registers, sixteen rows at a time. Tiles of a step are stored to
 * one of two buffers, and what is computed from them on vectors comes after the next step's tile
 * products have been asked for, so that both units work at once.
 */

/* What a step leaves: sums of two panels, or of two blocks or planes of them, and whose they are. */
typedef struct {
    int32_t sums[4][TILE_ROWS][PANEL];
} step_sums;

typedef struct {
    block_scratch block;
    step_sums steps[2] __attribute__((aligned(64)));
    float run[TILE_ROWS][TILE] __attribute__((aligned(64)));
} tile_scratch;

_Static_assert(sizeof(tile_scratch) <= 1 << 20, "a worker's scratch is at least a MiB");

typedef struct {
    int32_t row, count; /* rows of the chunk's tile: count of them from `row` on */
    int32_t at;         /* the first block of the chunk, or the panel */
    int32_t parity;     /* of its buffer; −1: no step */
} tile_step;

INLINE step_sums *sums_of(const chunk *c, int parity)
{
    return &((tile_scratch *)c->scratch)->steps[parity];
}

/* Rows of the block that holds row `row`, from column `column` of the chunk on. */
INLINE const uint8_t *rows_at(const int layout, const chunk *c, int row, int column)
{
    int32_t columns = form_columns(layout_form(layout));
    const uint8_t *block =
        c->tile->ready + row / TILE_ROWS * tile_block_bytes(layout, c->tile->matrix->width);
    return block + (c->column + column) / columns * 2 * TILE_BYTES;
}

/* `bytes` into the chunk's codes, panel v. */
INLINE const uint8_t *codes_at(const chunk *c, size_t bytes, int v)
{
    return (const uint8_t *)c->scratch->codes + bytes + 4 * PANEL * v;
}

enum { CODES_STRIDE = 4 * TILE };

/* ---- Blocks of 32 columns: a step is two blocks, or one whose planes are summed apart. */

#define LOAD_ROWS_AND_PANELS(rows, codes)                                                          \
    TILE_LOAD(4, rows, TILE_STEP);                                                                 \
    TILE_LOAD(5, (rows) + TILE_BYTES, TILE_STEP);                                                  \
    TILE_LOAD(6, codes, CODES_STRIDE);                                                             \
    TILE_LOAD(7, (codes) + 4 * PANEL, CODES_STRIDE);

#define STORE_SUM(t, to) TILE_STORE(t, (to)->sums[t], 4 * PANEL)

INLINE void multiply_blocks(const int layout, const chunk *c, const tile_step *s, int blocks)
{
    const uint8_t *rows = rows_at(layout, c, s->row, 32 * s->at);
    const uint8_t *codes = codes_at(c, (size_t)s->at * 16 * CODES_STRIDE, 0);
    step_sums *to = sums_of(c, s->parity);
    TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
    LOAD_ROWS_AND_PANELS(rows, codes)
    TILE_DOT_HALVES(0, 4, 6);
    TILE_DOT_HALVES(1, 4, 7);
    if (layout_sums(layout) == 2) {
        TILE_DOT_HALVES(2, 5, 6);
        TILE_DOT_HALVES(3, 5, 7);
    } else {
        TILE_DOT_HALVES(0, 5, 6);
        TILE_DOT_HALVES(1, 5, 7);
        if (blocks >= 2) {
            LOAD_ROWS_AND_PANELS(rows + 2 * TILE_BYTES, codes + 16 * CODES_STRIDE)
            TILE_DOT_HALVES(2, 4, 6);
            TILE_DOT_HALVES(3, 4, 7);
            TILE_DOT_HALVES(2, 5, 6);
            TILE_DOT_HALVES(3, 5, 7);
        }
    }
    STORE_SUM(0, to); STORE_SUM(1, to); STORE_SUM(2, to); STORE_SUM(3, to);
}

/* The term of a row and panel, of the step's block n; `sum` is that of the row's columns. */
INLINE vf block_term_32(const int layout, const step_sums *sums, int n, int i, int v, vf scale,
                        vf minimum, const float *sum)
{
    vf integer = vf_load((const float *)sums->sums[2 * n + v][i]);
    if (layout_sums(layout) == 2)
        integer = vf_add(integer, vf_load((const float *)sums->sums[2 + v][i]));
    if (layout_lowered(layout))
        integer = vf_add(integer, vf_multiply(vf_set(*sum), vf_set(layout_lowered(layout))));
    vf term = vf_multiply(integer, scale);
    if (layout_has_minimum(layout))
        term = vf_add(term, vf_multiply(vf_set(*sum), minimum));
    return term;
}

/* The run of a row and vector is whole: it joins the row's sums, or ends them. */
INLINE void keep_run(const cortiq_tile *tile, float (*state)[TILE], int row, int v, int first,
                     int last, vf run)
{
    vf y = first ? run : vf_add(vf_load(state[row] + v * LANES), run);
    if (last)
        finish_row(tile, row, v * LANES, y);
    else
        vf_store(state[row] + v * LANES, y);
}

/* The step's blocks join the run of its rows, which `ends` with them or not. */
INLINE void join_run(const int layout, const chunk *c, const tile_step *s, const int blocks,
                     const int first, int ends)
{
    const cortiq_tile tile = *c->tile;
    const step_sums *sums = sums_of(c, s->parity);
    const size_t at = (size_t)cortiq_record_sum32(NULL, tile.matrix->width) +
                      sizeof(float) * (size_t)(c->block + s->at);
    float (*run)[TILE] = ((tile_scratch *)c->scratch)->run;
    float (*state)[TILE] = (float (*)[TILE])(void *)c->scratch->state[0];
    const int begun = !c->first, last = c->last;
    vf scale[2][2], minimum[2][2];
    for (int n = 0; n < blocks; n++)
        for (int v = 0; v < 2; v++) {
            scale[n][v] = vf_load(c->scratch->scale[s->at + n] + v * LANES);
            minimum[n][v] = vf_load(c->scratch->minimum[s->at + n] + v * LANES);
        }
    for (int i = 0; i < s->count; i++) {
        const float *sum = (const float *)((const uint8_t *)tile.x[s->row + i] + at);
        _Pragma("GCC unroll 2")
        for (int v = 0; v < 2; v++) {
            vf total = first ? vf_zero() : vf_load(run[i] + v * LANES);
            _Pragma("GCC unroll 2")
            for (int n = 0; n < blocks; n++)
                total = vf_add(total, block_term_32(layout, sums, n, i, v, scale[n][v],
                                                    minimum[n][v], sum + n));
            if (ends)
                keep_run(&tile, state, s->row + i, v, !begun, last, total);
            else
                vf_store(run[i] + v * LANES, total);
        }
    }
}

INLINE void finish_blocks(const int layout, const chunk *c, const tile_step *s)
{
    const int each = 3 - layout_sums(layout);
    int blocks = c->units / 2, ends = s->at + each >= blocks;
    int both = each == 2 && s->at + 2 <= blocks;
    if (both && s->at)
        join_run(layout, c, s, 2, 0, ends);
    else if (both)
        join_run(layout, c, s, 2, 1, ends);
    else if (s->at)
        join_run(layout, c, s, 1, 0, ends);
    else
        join_run(layout, c, s, 1, 1, ends);
}

INLINE void tiles_of_32(const int layout, const chunk *c)
{
    const int each = 3 - layout_sums(layout);
    tile_step last = {.parity = -1};
    for (int row = 0; row < c->tile->count; row += TILE_ROWS) {
        int left = c->tile->count - row;
        ask_next(c, row, TILE_ROWS);
        for (int b = 0; b < c->units / 2; b += each) {
            tile_step s = {row, left < TILE_ROWS ? left : TILE_ROWS, b, last.parity == 0};
            multiply_blocks(layout, c, &s, c->units / 2 - b);
            if (last.parity >= 0)
                finish_blocks(layout, c, &last);
            last = s;
        }
    }
    finish_blocks(layout, c, &last);
}

/* ---- Whole chunks of int8. One weight plane: sums high of both panels, then low. Two: a panel is
 * a step, with sums of high·high, of both mixed products, and of low·low.
 */

FOLDED int chunk_sums(int layout) /* tiles of a step */
{
    return layout == CORTIQ_W16 || layout_planes(layout) == 2 ? 3 : 4;
}

INLINE int chunk_steps(const chunk *c) { return (c->units + 3) / 4; }

/* Where sums of layouts with one scale a row wait between chunks. */
#define STATE(c, s, t)                                                                             \
    (&(c)->scratch->state[(t) / 2][(s)->row][PANEL * ((t) % 2)])
#define EACH_SUM(layout, X) X(0) X(1) X(2) if (chunk_sums(layout) == 4) { X(3) }

INLINE void multiply_chunk(const int layout, const chunk *c, const tile_step *s)
{
    const uint8_t *rows = rows_at(layout, c, s->row, 0), *high, *low;
    step_sums *to = sums_of(c, s->parity);
    high = codes_at(c, 0, s->at);
    low = layout == CORTIQ_W16 ? codes_at(c, 0, 1) : codes_at(c, WEIGHT_PLANE, s->at);
    if (layout_is_row(layout) && !c->first) {
#define SUM(t) TILE_LOAD(t, STATE(c, s, t), CODES_STRIDE);
        EACH_SUM(layout, SUM)
#undef SUM
    } else {
        TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
    }
    for (int k = 0; k < chunk_steps(c); k++) {
        if (chunk_sums(layout) == 4) {
            LOAD_ROWS_AND_PANELS(rows, high)
            TILE_DOT_BYTES(0, 4, 6);
            TILE_DOT_BYTES(1, 4, 7);
            TILE_DOT_BYTES(2, 5, 6);
            TILE_DOT_BYTES(3, 5, 7);
        } else {
            TILE_LOAD(4, rows, TILE_STEP);
            TILE_LOAD(5, rows + TILE_BYTES, TILE_STEP);
            TILE_LOAD(6, high, CODES_STRIDE);
            TILE_LOAD(7, low, CODES_STRIDE);
            TILE_DOT_BYTES(1, 4, 7);
            TILE_DOT_BYTES(0, 4, 6);
            TILE_DOT_BYTES(2, 5, 7);
            TILE_DOT_BYTES(1, 5, 6);
        }
        rows += 2 * TILE_BYTES;
        high += 16 * CODES_STRIDE;
        low += 16 * CODES_STRIDE;
    }
    if (layout_is_row(layout) && !c->last) {
#define SUM(t) TILE_STORE(t, STATE(c, s, t), CODES_STRIDE);
        EACH_SUM(layout, SUM)
#undef SUM
        return;
    }
#define SUM(t) STORE_SUM(t, to);
    EACH_SUM(layout, SUM)
#undef SUM
}

INLINE vi sum_at(const step_sums *sums, int t, int i) { return vi_load(sums->sums[t][i]); }

/* RN(I) of a row and panel. */
INLINE vf chunk_integer(const int layout, const step_sums *sums, int i, int v)
{
    if (layout == CORTIQ_W16)
        return round_three(sum_at(sums, 0, i), sum_at(sums, 1, i), sum_at(sums, 2, i));
    if (layout_planes(layout) == 2) {
        vi high = vi_add(vi_left(sum_at(sums, 0, i), 8), sum_at(sums, 1, i));
        return round_two(high, sum_at(sums, 2, i));
    }
    vi high = sum_at(sums, v, i), low = sum_at(sums, 2 + v, i);
    if (layout == CORTIQ_W8)
        return round_two(high, low);
    vi whole = vi_add(vi_left(high, 8), low);
    return vf_from_int(layout_negative(layout) ? vi_sub(vi_zero(), whole) : whole);
}

INLINE void finish_chunk(const int layout, const chunk *c, const tile_step *s)
{
    const step_sums *sums = sums_of(c, s->parity);
    const int panels = chunk_sums(layout) == 4 ? 2 : 1;
    for (int i = 0; i < s->count; i++)
        for (int n = 0; n < panels; n++) {
            int v = panels == 2 ? n : s->at;
            vf integer = chunk_integer(layout, sums, i, v);
            if (!layout_is_row(layout)) {
                block_term(layout, c, s->row + i, v, integer,
                           low_sum(layout, c, s->row + i, v));
                continue;
            }
            vf scale = vf_load(c->scratch->scale[0] + v * LANES);
            finish_row(c->tile, s->row + i, c->lane + v * LANES, vf_multiply(integer, scale));
        }
}

INLINE void tiles_of_256(const int layout, const chunk *c)
{
    const int panels = layout_planes(layout); /* steps of sixteen rows */
    const int waits = layout_is_row(layout) && !c->last;
    tile_step last = {.parity = -1};
    for (int row = 0; row < c->tile->count; row += TILE_ROWS) {
        int left = c->tile->count - row;
        ask_next(c, row, TILE_ROWS);
        for (int v = 0; v < panels; v++) {
            tile_step s = {row, left < TILE_ROWS ? left : TILE_ROWS, v, last.parity == 0};
            multiply_chunk(layout, c, &s);
            if (last.parity >= 0 && !waits)
                finish_chunk(layout, c, &last);
            last = s;
        }
    }
    if (!waits)
        finish_chunk(layout, c, &last);
}
