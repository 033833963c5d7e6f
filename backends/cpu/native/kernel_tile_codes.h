/* A chunk's codes and quantised rows in the forms that tile products take.
 *
 * Layouts whose blocks are 32 columns take bf16, in which a block's integer comes out of the tile as
 * a float: rows as two planes, 256·high and low, of which every product with a code is exact. A sum
 * of both is below 2^24 where codes are within ±16 (15·32640·32 or 16·32640·32), so that a tile holds
 * RN(I); of larger codes the planes are summed apart, each exactly, and added with one rounding.
 *
 * The others take int8: rows as planes high and low, weights as one plane (codes within −128 … 127,
 * sub-scales multiplied in) or two. A dword holds columns 4j … 4j + 3 in the order 0 2 1 3, as panels
 * do. Sums of a plane pair fit int32 up to 32768 columns.
 */

enum { WEIGHT_PLANE = CHUNK / 4 * TILE * 4 }; /* bytes of a plane of a chunk */

typedef enum { HALVES, BYTES } tile_form;

FOLDED tile_form layout_form(int layout) { return layout_block(layout) == 32 ? HALVES : BYTES; }

/* Sums a block: one if 256·high + low fits a float's 24 bits. Q5_1 is taken 16 lower for it. */
FOLDED int layout_sums(int layout)
{
    return layout == CORTIQ_Q8_0 || layout == CORTIQ_IQ4_NL || layout == CORTIQ_I8 ||
                   layout == CORTIQ_I8M
               ? 2
               : 1;
}
FOLDED int layout_lowered(int layout) { return layout == CORTIQ_Q5_1 ? 16 : 0; }

/* Weight planes of int8. Q3_K's folded codes are within −124 … 128, and are taken negative. */
FOLDED int layout_planes(int layout)
{
    return (layout == CORTIQ_Q4_K || layout == CORTIQ_Q5_K || layout == CORTIQ_Q6_K ||
            layout == CORTIQ_IQ4_XS || layout == CORTIQ_K8)
               ? 2
               : 1;
}
FOLDED int layout_negative(int layout) { return layout == CORTIQ_Q3_K; }

/* bf16 of the 32 numbers of five bits, two's complement. */
INLINE vi small_halves(void)
{
    static const uint16_t table[32] __attribute__((aligned(64))) = {
        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
        0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130,
        0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
    return vi_load(table);
}

/* int16 pairs of up to eight significant bits to bf16 pairs, exactly. */
INLINE vi halves_of(vi pairs)
{
    vi even = (vi)vf_from_int(vi_right(vi_left(pairs, 16), 16));
    vi odd = (vi)vf_from_int(vi_right(pairs, 16));
    return vi_or_masked(_mm512_srli_epi32(even, 16), odd, vi_set((int32_t)0xffff0000));
}

/* Low bytes of two vectors of int16, those of the second in the odd bytes. */
INLINE vi join_bytes(vi first, vi second)
{
    return vi_or(vi_and(first, vi_set16(255)), vi_left16(second, 8));
}

INLINE void keep_halves(const int layout, const chunk *c, int unit, int to, const vi *p)
{
    vi table = small_halves(), lowered = vi_set16(layout_lowered(layout));
    for (int j = 0; j < 8; j++) {
        vi halves = layout_sums(layout) == 2
                        ? halves_of(p[j])
                        : _mm512_permutexvar_epi16(vi_sub16(p[j], lowered), table);
        vi_store(c->scratch->codes[8 * unit + j][to * LANES], halves);
    }
}

INLINE void keep_bytes(const int layout, const chunk *c, int unit, int to, vi *p)
{
    uint8_t *at = (uint8_t *)c->scratch->codes + 4 * (unit * UNIT / 4 * TILE + to * LANES);
    for (int j = 0; j < 8 && layout_negative(layout); j++)
        p[j] = vi_sub16(vi_zero(), p[j]);
    for (int j = 0; j < 4; j++) {
        vi low = join_bytes(p[2 * j], p[2 * j + 1]);
        if (layout_planes(layout) == 2) {
            vi half = vi_set16(128);
            vi a = _mm512_srai_epi16(_mm512_add_epi16(p[2 * j], half), 8);
            vi b = _mm512_srai_epi16(_mm512_add_epi16(p[2 * j + 1], half), 8);
            vi_store(at + 4 * TILE * j, join_bytes(a, b));
            vi_store(at + 4 * TILE * j + WEIGHT_PLANE, low);
        } else {
            vi_store(at + 4 * TILE * j, low);
        }
    }
}

/* Codes of one vector of outputs of a chunk to vector `to` of the tile. */
INLINE void expand(const int layout, const chunk *c, const cortiq_chunk *from, const uint8_t *main,
                   int lane, int to)
{
    if (layout_is_row(layout) || layout == CORTIQ_W8B256) { /* already bytes, 128 too large */
        uint8_t *at = (uint8_t *)c->scratch->codes + 4 * to * LANES;
        for (int j = 0; j < 4 * c->units; j++) {
            vi bytes = vi_load(main + 64 * j + 4 * lane);
            vi_store(at + 4 * TILE * j, _mm512_xor_si512(bytes, vi_set((int32_t)0x80808080)));
        }
        return;
    }
    for (int u = 0; u < c->units; u++) {
        vi p[8];
        fold_unit(layout, from, main, u, lane, p);
        if (layout_form(layout) == HALVES)
            keep_halves(layout, c, u, to, p);
        else
            keep_bytes(layout, c, u, to, p);
    }
}

/* ---- Rows. Sixteen rows make a block: for each 64 bytes of columns the tile of the high plane,
 * then that of the low one.
 */

/* Columns of a tile: 32 or 64. */
FOLDED int32_t form_columns(tile_form form) { return form == HALVES ? 32 : 64; }

static size_t tile_block_bytes(int layout, int32_t width)
{
    int32_t columns = form_columns(layout_form(layout));
    return (size_t)((width + columns - 1) / columns) * 2 * TILE_BYTES;
}

INLINE void ready_halves(const int16_t *q, uint8_t *to)
{
    vi pairs = vi_load(q);
    vi low = _mm512_srai_epi16(vi_left16(pairs, 8), 8);
    vi_store(to, halves_of(vi_sub16(pairs, low)));
    vi_store(to + TILE_BYTES, halves_of(low));
}

/* 32 columns as bytes in the order 0 2 1 3. */
INLINE void ready_bytes(const int16_t *q, uint8_t *to)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    vi pairs = vi_load(q);
    vi high = _mm512_srai_epi16(_mm512_add_epi16(pairs, vi_set16(128)), 8);
    __m256i bytes = _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(high), order);
    _mm256_storeu_si256((__m256i *)to, bytes);
    bytes = _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(pairs), order);
    _mm256_storeu_si256((__m256i *)(to + TILE_BYTES), bytes);
}

/* A block of up to 16 records; rows that there aren't are zeros. */
TARGET static void tile_rows_ready(int layout, int32_t width, const void *const *x, int32_t count,
                                   uint8_t *to)
{
    int32_t padded = cortiq_padded(width), columns = form_columns(layout_form(layout));
    if (count < TILE_ROWS || padded % columns)
        memset(to, 0, tile_block_bytes(layout, width));
    for (int32_t i = 0; i < count; i++) {
        const int16_t *q = cortiq_record_q(x[i]);
        for (int32_t k = 0; k < padded; k += 32) {
            uint8_t *at = to + k / columns * 2 * TILE_BYTES + i * TILE_STEP + k % columns;
            if (layout_form(layout) == HALVES)
                ready_halves(q + k, at);
            else
                ready_bytes(q + k, at);
        }
    }
}
