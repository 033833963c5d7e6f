/* Products of many rows: the codes of a tile of outputs, up to 256 columns at a time, are expanded
 * to int16 with sub-scales multiplied in, small enough for the first-level cache, and met by all
 * rows. What a row has summed so far waits between two such chunks in `state`.
 */

/* With each block of 32 columns its part of the rows that follow those at hand is asked for: all rows
 * of a pass exceed the first-level cache, wide ones the second. Measured with 8 lanes: 5% of the time.
 */
INLINE void ask_rows(const int rows, const chunk *c, int b)
{
    const cortiq_tile *t = c->tile;
    int row = c->row + 2 * rows <= t->count ? c->row + rows : c->row;
    for (int i = 0; LANES == 8 && i < rows; i++)
        __builtin_prefetch(cortiq_record_q(t->x[row + i]) + c->column + 32 * b);
}

/* total[i][v] += column pairs start … stop − 1 of a chunk's codes */
#ifndef CORTIQ_OWN_DOT_PAIRS
INLINE void dot_pairs(const int rows, const int16_t (*codes)[TILE][2], const int16_t *const *q,
                      int start, int stop, vi total[][TILE_VECTORS])
{
    for (int k = start; k < stop; k++) {
        vi w[TILE_VECTORS];
        _Pragma("GCC unroll 4")
        for (int v = 0; v < TILE_VECTORS; v++)
            w[v] = vi_load(codes[k][v * LANES]);
        _Pragma("GCC unroll 8")
        for (int i = 0; i < rows; i++) {
            vi x = pair(q[i] + 2 * k);
            _Pragma("GCC unroll 4")
            for (int v = 0; v < TILE_VECTORS; v++)
                total[i][v] = vi_dot(total[i][v], w[v], x);
        }
    }
}
#endif

/* 32-blocks: a chunk is a run. */
INLINE void block_32(const int layout, const int rows, const chunk *c)
{
    const block_scratch *scratch = c->scratch;
    const int16_t *q[MOST_ROWS];
    const float *sums[MOST_ROWS];
    vf run[MOST_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++) {
        const void *record = c->tile->x[c->row + i];
        q[i] = cortiq_record_q(record) + c->column;
        sums[i] = cortiq_record_sum32(record, c->tile->matrix->width) + c->block;
        for (int v = 0; v < TILE_VECTORS; v++)
            run[i][v] = vf_zero();
    }
    for (int b = 0; b < c->units / 2; b++) {
        vi total[MOST_ROWS][TILE_VECTORS];
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < TILE_VECTORS; v++)
                total[i][v] = vi_zero();
        ask_rows(rows, c, b);
        dot_pairs(rows, scratch->codes, q, 16 * b, 16 * b + 16, total);
        for (int v = 0; v < TILE_VECTORS; v++) {
            vf scale = vf_load(scratch->scale[b] + v * LANES);
            vf minimum = vf_load(scratch->minimum[b] + v * LANES);
            for (int i = 0; i < rows; i++) {
                vf term = vf_multiply(vf_from_int(total[i][v]), scale);
                if (layout_has_minimum(layout))
                    term = vf_add(term, vf_multiply(vf_set(sums[i][b]), minimum));
                run[i][v] = vf_add(run[i][v], term);
            }
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < TILE_VECTORS; v++) {
            vf y = c->first ? run[i][v] : vf_add(kept(c, 0, c->row + i, v), run[i][v]);
            keep(c, c->row + i, v, y);
        }
}

/* 16-blocks: a chunk is two runs, or one where the row ends. */
INLINE void block_16(const int rows, const chunk *c)
{
    const int16_t *q[MOST_ROWS];
    vf y[MOST_ROWS][TILE_VECTORS], run[MOST_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++) {
        q[i] = cortiq_record_q(c->tile->x[c->row + i]) + c->column;
        for (int v = 0; v < TILE_VECTORS; v++)
            y[i][v] = run[i][v] = c->first ? vf_zero() : kept(c, 0, c->row + i, v);
    }
    for (int b = 0; b < c->units; b++) {
        vi total[MOST_ROWS][TILE_VECTORS];
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < TILE_VECTORS; v++)
                total[i][v] = vi_zero();
        dot_pairs(rows, c->scratch->codes, q, 8 * b, 8 * b + 8, total);
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < TILE_VECTORS; v++) {
                vf scale = vf_load(c->scratch->scale[b] + v * LANES);
                vf term = vf_multiply(vf_from_int(total[i][v]), scale);
                run[i][v] = b % RUN_BLOCKS ? vf_add(run[i][v], term) : term;
                if (b % RUN_BLOCKS == RUN_BLOCKS - 1 || b == c->units - 1)
                    y[i][v] = vf_add(y[i][v], run[i][v]);
            }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < TILE_VECTORS; v++)
            keep(c, c->row + i, v, y[i][v]);
}

/* Blocks of 32 columns whose wide codes are `upper` and `codes`. */
INLINE void block_upper(const int layout, const int rows, const chunk *c)
{
    const int16_t *q[MOST_ROWS];
    vf run[MOST_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++) {
        q[i] = cortiq_record_q(c->tile->x[c->row + i]) + c->column;
        for (int v = 0; v < TILE_VECTORS; v++)
            run[i][v] = vf_zero();
    }
    for (int b = 0; b < c->units / 2; b++) {
        vi low[MOST_ROWS][TILE_VECTORS], high[MOST_ROWS][TILE_VECTORS];
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < TILE_VECTORS; v++)
                low[i][v] = high[i][v] = vi_zero();
        dot_pairs(rows, c->scratch->codes, q, 16 * b, 16 * b + 16, low);
        dot_pairs(rows, c->scratch->upper, q, 16 * b, 16 * b + 16, high);
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < TILE_VECTORS; v++) {
                vf scale = vf_load(c->scratch->scale[b] + v * LANES);
                vf term = vf_multiply(round_wide(layout, high[i][v], low[i][v]), scale);
                run[i][v] = vf_add(run[i][v], term);
            }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < TILE_VECTORS; v++) {
            vf y = c->first ? run[i][v] : vf_add(kept(c, 0, c->row + i, v), run[i][v]);
            keep(c, c->row + i, v, y);
        }
}

/* One scale a row: integers wait as 256·state[0] + state[1]. */
INLINE void row_sums(const int layout, const chunk *c, int row, vi total[TILE_VECTORS])
{
    vi high[TILE_VECTORS], low[TILE_VECTORS];
    for (int v = 0; v < TILE_VECTORS; v++) {
        int32_t *state_high = c->scratch->state[0][row] + v * LANES;
        int32_t *state_low = c->scratch->state[1][row] + v * LANES;
        high[v] = vi_right(total[v], 8);
        low[v] = vi_and(total[v], vi_set(255));
        if (!c->first) {
            high[v] = vi_add(high[v], vi_load(state_high));
            low[v] = vi_add(low[v], vi_load(state_low));
        }
        if (!c->last) {
            vi_store(state_high, high[v]);
            vi_store(state_low, low[v]);
        }
    }
    const int half = TILE_VECTORS / 2, three = layout == CORTIQ_W16;
    for (int v = 0; c->last && v < (three ? half : TILE_VECTORS); v++) {
        vf scale = vf_load(c->scratch->scale[0] + v * LANES);
        vf sum = three ? round_three(high[v], vi_add(low[v], high[v + half]), low[v + half])
                       : round_two(high[v], low[v]);
        finish_row(c->tile, row, c->lane + v * LANES, vf_multiply(sum, scale));
    }
}

INLINE void block_wide(const int layout, const int rows, const chunk *c)
{
    const int spill = layout_spill(layout);
    const int16_t *q[MOST_ROWS];
    vi rest[MOST_ROWS][TILE_VECTORS], high[MOST_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++) {
        q[i] = cortiq_record_q(c->tile->x[c->row + i]) + c->column;
        for (int v = 0; v < TILE_VECTORS; v++)
            rest[i][v] = high[i][v] = vi_zero();
    }
    for (int k = 0; spill < 256 && k < CHUNK / 2; k += spill / 2) {
        dot_pairs(rows, c->scratch->codes, q, k, k + spill / 2, rest);
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < TILE_VECTORS; v++) {
                high[i][v] = vi_add(high[i][v], vi_right(rest[i][v], 8));
                rest[i][v] = vi_and(rest[i][v], vi_set(255));
            }
    }
    if (spill == 256)
        dot_pairs(rows, c->scratch->codes, q, 0, 8 * c->units, rest);
    for (int i = 0; i < rows; i++) {
        if (layout_is_row(layout)) {
            row_sums(layout, c, c->row + i, rest[i]);
            continue;
        }
        for (int v = 0; v < TILE_VECTORS; v++)
            block_term(layout, c, c->row + i, v,
                       spill < 256 ? round_two(high[i][v], rest[i][v]) : vf_from_int(rest[i][v]),
                       low_sum(layout, c, c->row + i, v));
    }
}

INLINE void block_rows(const int layout, const int rows, const chunk *c)
{
    ask_next(c, c->row, rows);
    if (layout_is_wide(layout))
        block_upper(layout, rows, c);
    else if (layout_block(layout) == 16)
        block_16(rows, c);
    else if (layout_block(layout) == 32)
        block_32(layout, rows, c);
    else
        block_wide(layout, rows, c);
}

#define ROWS_AT_A_TIME(layout, n)                                                                  \
    for (; n <= MOST_ROWS && c->row + n <= c->tile->count; c->row += n)                            \
        block_rows(layout, n, c);

#define BLOCK_ROWS_KERNEL(name)                                                                    \
    TARGET static void rows_##name(chunk *c)                                                       \
    {                                                                                              \
        ROWS_AT_A_TIME(CORTIQ_##name, 6)                                                           \
        ROWS_AT_A_TIME(CORTIQ_##name, 4)                                                           \
        ROWS_AT_A_TIME(CORTIQ_##name, 3)                                                           \
        ROWS_AT_A_TIME(CORTIQ_##name, 2)                                                           \
        ROWS_AT_A_TIME(CORTIQ_##name, 1)                                                           \
    }
/* Once expanded, layouts differ only in how their sums go on. */
BLOCK_ROWS_KERNEL(Q8_0) BLOCK_ROWS_KERNEL(Q4_1) BLOCK_ROWS_KERNEL(Q2_K) BLOCK_ROWS_KERNEL(Q3_K)
BLOCK_ROWS_KERNEL(Q4_K) BLOCK_ROWS_KERNEL(Q5_K) BLOCK_ROWS_KERNEL(Q6_K)
BLOCK_ROWS_KERNEL(W8) BLOCK_ROWS_KERNEL(W16) BLOCK_ROWS_KERNEL(E2M1) BLOCK_ROWS_KERNEL(E4M3)
BLOCK_ROWS_KERNEL(NF4)

#define BLOCK_KERNEL(name, like)                                                                   \
    TARGET static void block_##name(const cortiq_tile *t)                                          \
    {                                                                                              \
        block_chunks(CORTIQ_##name, t, rows_##like);                                               \
    }
BLOCK_KERNEL(Q4_0, Q8_0) BLOCK_KERNEL(Q5_0, Q8_0) BLOCK_KERNEL(Q8_0, Q8_0)
BLOCK_KERNEL(IQ4_NL, Q8_0) BLOCK_KERNEL(MXFP4, Q8_0)
BLOCK_KERNEL(I4, Q8_0) BLOCK_KERNEL(I8, Q8_0) BLOCK_KERNEL(I4M, Q4_1) BLOCK_KERNEL(I8M, Q4_1)
BLOCK_KERNEL(E2M1, E2M1) BLOCK_KERNEL(E4M3, E4M3) BLOCK_KERNEL(NF4, NF4) BLOCK_KERNEL(FP4, NF4)
BLOCK_KERNEL(Q4_1, Q4_1) BLOCK_KERNEL(Q5_1, Q4_1)
BLOCK_KERNEL(Q2_K, Q2_K) BLOCK_KERNEL(Q3_K, Q3_K) BLOCK_KERNEL(Q4_K, Q4_K) BLOCK_KERNEL(Q5_K, Q5_K)
BLOCK_KERNEL(Q6_K, Q6_K) BLOCK_KERNEL(K8, Q6_K) BLOCK_KERNEL(IQ4_XS, Q6_K) BLOCK_KERNEL(W8B256, Q3_K) BLOCK_KERNEL(W8, W8) BLOCK_KERNEL(W16, W16)
