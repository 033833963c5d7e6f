/* Products of many rows in planes of int8: SDOT, or SMMLA where CORTIQ_I8MM says that there is. The
 * codes of a tile of 16 outputs, up to 256 columns at a time, are expanded to signed bytes less their
 * offset, and met by all rows, two at a time, first by the upper plane, q = 256·high + low, and then
 * by the lower one. What a row has summed so far waits between two such chunks in `state`.
 */

/* Where the row and the one after it are ready, from the chunk's first column on. */
INLINE const int8_t *ready_at(const chunk *c, int row)
{
    size_t pair = (size_t)cortiq_padded(c->tile->matrix->width) * 4;
    return (const int8_t *)c->tile->ready + (size_t)(row / 2) * pair + (size_t)c->column * 4;
}

/* cells[i][v] += `words` times 8 columns of plane `low` (0: upper), from `word` on. */
INLINE void plane_dots(const chunk *c, const int pairs, const int vectors, int first_vector,
                       const int low, int word, const int words, const int8_t *const *x,
                       cell cells[][2])
{
    const int8_t *at = (const int8_t *)c->scratch->codes + first_vector * CELL_BYTES;
    for (int k = word; k < word + words; k++) {
        int8x16_t w[2][2];
        _Pragma("GCC unroll 2")
        for (int v = 0; v < vectors; v++) {
            w[v][0] = vld1q_s8(at + k * WORD_BYTES + v * CELL_BYTES);
            w[v][1] = vld1q_s8(at + k * WORD_BYTES + v * CELL_BYTES + 16);
        }
        _Pragma("GCC unroll 4")
        for (int i = 0; i < pairs; i++) {
            int8x16_t rows = vld1q_s8(x[i] + 32 * k + 16 * low);
            _Pragma("GCC unroll 2")
            for (int v = 0; v < vectors; v++) {
                vi *r = cells[i][v].r;
#if CORTIQ_I8MM
                r[0] = vmmlaq_s32(r[0], rows, w[v][0]);
                r[1] = vmmlaq_s32(r[1], rows, w[v][1]);
#else
                r[0] = vdotq_laneq_s32(r[0], w[v][0], rows, 0);
                r[1] = vdotq_laneq_s32(r[1], w[v][0], rows, 2);
                r[0] = vdotq_laneq_s32(r[0], w[v][1], rows, 1);
                r[1] = vdotq_laneq_s32(r[1], w[v][1], rows, 3);
#endif
            }
        }
    }
}

/* A vector a row. */
INLINE cell rows_of(cell a)
{
#if CORTIQ_I8MM
    int64x2_t first = vreinterpretq_s64_s32(a.r[0]), second = vreinterpretq_s64_s32(a.r[1]);
    a.r[0] = vreinterpretq_s32_s64(vtrn1q_s64(first, second));
    a.r[1] = vreinterpretq_s32_s64(vtrn2q_s64(first, second));
#endif
    return a;
}

/* Pairs of rows and vectors of outputs that are in registers at a time; with three pairs a product
 * takes more instructions, those that move sums to memory and back. */
enum { MOST_PAIRS = 2, ABREAST = 2 };

typedef cell plane_cells[MOST_PAIRS][ABREAST];

/* Both planes of some words together, where that fits int32: 256·high + low. */
INLINE void plane_sums(const chunk *c, const int pairs, int v, int word, const int words,
                       const int8_t *const *x, plane_cells cells)
{
    memset(cells, 0, sizeof(plane_cells));
    plane_dots(c, pairs, ABREAST, v, 0, word, words, x, cells);
    _Pragma("GCC unroll 4")
    for (int i = 0; i < pairs; i++)
        _Pragma("GCC unroll 2")
        for (int a = 0; a < ABREAST; a++)
            for (int half = 0; half < 2; half++)
                cells[i][a].r[half] = vi_left(cells[i][a].r[half], 8);
    plane_dots(c, pairs, ABREAST, v, 1, word, words, x, cells);
}

/* 32-blocks: a chunk is a run. */
INLINE void plane_blocks(const int layout, const int pairs, const chunk *c, int v,
                         const int8_t *const *x)
{
    vf run[2 * MOST_PAIRS][ABREAST];
    const float *sums[2 * MOST_PAIRS];
    for (int i = 0; i < 2 * pairs; i++) {
        const void *record = c->tile->x[c->row + i < c->tile->count ? c->row + i : c->row];
        sums[i] = cortiq_record_sum32(record, c->tile->matrix->width) + c->block;
        for (int a = 0; a < ABREAST; a++)
            run[i][a] = vf_zero();
    }
    for (int b = 0; b < c->units / 2; b++) {
        plane_cells cells;
        plane_sums(c, pairs, v, 4 * b, 4, x, cells);
        _Pragma("GCC unroll 2")
        for (int a = 0; a < ABREAST; a++) {
            vf scale = vf_load(c->scratch->scale[b] + (v + a) * LANES);
            vf minimum = vf_load(c->scratch->minimum[b] + (v + a) * LANES);
            _Pragma("GCC unroll 8")
            for (int i = 0; i < 2 * pairs; i++) {
                vi total = rows_of(cells[i / 2][a]).r[i % 2];
                vf term = vf_multiply(vf_from_int(total), scale);
                if (layout_has_minimum(layout))
                    term = vf_add(term, vf_multiply(vf_set(sums[i][b]), minimum));
                run[i][a] = vf_add(run[i][a], term);
            }
        }
    }
    for (int i = 0; i < 2 * pairs && c->row + i < c->tile->count; i++)
        for (int a = 0; a < ABREAST; a++) {
            vf before = c->first ? vf_zero() : kept(c, 0, c->row + i, v + a);
            keep(c, c->row + i, v + a, c->first ? run[i][a] : vf_add(before, run[i][a]));
        }
}

/* J of a row: Σ offset · sum of a sub-block. */
INLINE vi plane_low_sum(const int layout, const chunk *c, int row, int v)
{
    const int each = layout_sub(layout) / 16;
    const int32_t *sums = cortiq_record_sums(c->tile->x[row], c->tile->matrix->width);
    vi total = vi_zero();
    sums += c->column / 16;
    for (int s = 0; s < layout_subs(layout); s++) {
        int32_t sum = each == 2 ? sums[2 * s] + sums[2 * s + 1] : sums[s];
        total = vmlaq_n_s32(total, subs_of(c)->offset[s][v], sum);
    }
    return total;
}

/* Sums of a plane over a chunk, those of sub-blocks times their sub-scales. */
INLINE void plane_parts(const int layout, const int pairs, const chunk *c, int v, const int low,
                        const int8_t *const *x, plane_cells parts)
{
    const int words = layout_sub(layout) / WORD;
    memset(parts, 0, sizeof(plane_cells));
    if (!words)
        plane_dots(c, pairs, ABREAST, v, low, 0, 2 * c->units, x, parts);
    for (int s = 0; s < layout_subs(layout); s++) {
        plane_cells cells;
        memset(cells, 0, sizeof cells);
        plane_dots(c, pairs, ABREAST, v, low, s * words, words, x, cells);
        _Pragma("GCC unroll 2")
        for (int a = 0; a < ABREAST; a++) {
            const vi *scale = subs_of(c)->scale[s][v + a];
            _Pragma("GCC unroll 4")
            for (int i = 0; i < pairs; i++) {
                parts[i][a].r[0] = vmlaq_s32(parts[i][a].r[0], cells[i][a].r[0], scale[0]);
                parts[i][a].r[1] = vmlaq_s32(parts[i][a].r[1], cells[i][a].r[1], scale[1]);
            }
        }
    }
}

/* One scale a row: planes wait in `state`. Of w16 the vectors of a tile are those of the high plane of
 * its codes, then those of the low one. */
INLINE void plane_row_sums(const chunk *c, int row, int v, vi high, vi low)
{
    int32_t *at[2] = {c->scratch->state[0][row] + v * LANES, c->scratch->state[1][row] + v * LANES};
    if (!c->first) {
        high = vi_add(high, vi_load(at[0]));
        low = vi_add(low, vi_load(at[1]));
    }
    vi_store(at[0], high);
    vi_store(at[1], low);
}

INLINE void plane_finish_row(const int layout, const chunk *c, int row)
{
    const int three = layout == CORTIQ_W16, vectors = three ? TILE_VECTORS / 2 : TILE_VECTORS;
    const int32_t *high = c->scratch->state[0][row], *low = c->scratch->state[1][row];
    for (int at = 0; at < vectors * LANES; at += LANES) {
        vi first = vi_load(high + at), last = vi_load(low + at);
        vf sum = round_two(first, last);
        if (three)
            sum = round_three(first, vi_add(last, vi_load(high + at + vectors * LANES)),
                              vi_load(low + at + vectors * LANES));
        finish_row(c->tile, row, c->lane + at, vf_multiply(sum, vf_load(c->scratch->scale[0] + at)));
    }
}

INLINE void plane_wide(const int layout, const int pairs, const chunk *c, int v,
                       const int8_t *const *x)
{
    plane_cells high, low;
    plane_parts(layout, pairs, c, v, 0, x, high);
    plane_parts(layout, pairs, c, v, 1, x, low);
    for (int i = 0; i < 2 * pairs && c->row + i < c->tile->count; i++)
        for (int a = 0; a < ABREAST; a++) {
            vi first = rows_of(high[i / 2][a]).r[i % 2], last = rows_of(low[i / 2][a]).r[i % 2];
            if (layout_is_row(layout)) {
                plane_row_sums(c, c->row + i, v + a, first, last);
                continue;
            }
            vi minimum = layout_has_minimum(layout) ? plane_low_sum(layout, c, c->row + i, v + a)
                                                    : vi_zero();
            block_term(layout, c, c->row + i, v + a, round_two(first, last), minimum);
        }
}

INLINE void plane_rows(const int layout, const int pairs, chunk *c)
{
    const int8_t *x[MOST_PAIRS];
    ask_next(c, c->row, 2 * pairs);
    for (int i = 0; i < pairs; i++)
        x[i] = ready_at(c, c->row + 2 * i);
    for (int v = 0; v < TILE_VECTORS; v += ABREAST) {
        if (layout_block(layout) == 32)
            plane_blocks(layout, pairs, c, v, x);
        else
            plane_wide(layout, pairs, c, v, x);
    }
    for (int i = 0; layout_is_row(layout) && c->last && i < 2 * pairs; i++)
        if (c->row + i < c->tile->count)
            plane_finish_row(layout, c, c->row + i);
}

#define PLANE_KERNEL(name)                                                                         \
    TARGET static void planes_##name(chunk *c)                                                     \
    {                                                                                              \
        for (; c->row + 3 <= c->tile->count; c->row += 4)                                          \
            plane_rows(CORTIQ_##name, 2, c);                                                       \
        for (; c->row < c->tile->count; c->row += 2)                                               \
            plane_rows(CORTIQ_##name, 1, c);                                                       \
    }                                                                                              \
    TARGET static void block_##name(const cortiq_tile *t)                                          \
    {                                                                                              \
        block_chunks(CORTIQ_##name, t, planes_##name);                                             \
    }
