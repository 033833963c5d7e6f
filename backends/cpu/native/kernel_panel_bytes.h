/* Dot products of bytes on x86, for kernel_panel.h: one row, of which all outputs of a panel share what is
 * loaded.
 *
 * The row is two planes of int8, q = 256·high + low, |low| ≤ 128: for each 4 columns four bytes of the
 * high plane, then four of the low one, in the order 0 2 1 3, as panels have them. With VNNI four products
 * of a code join a sum of int32 (VPDPBUSD). AVX2 has two, in int16 (VPMADDUBSW): sums of codes up to 15
 * and 32 columns, up to 31 and 16 columns, fit that, and meet in int32 after it. The other layouts have
 * kernels on pairs of int16.
 */

#define PANEL_NAME(name) one_##name

enum { QUARTERS = PANEL / LANES, SETS = CORTIQ_VNNI ? 1 : 2 };

typedef struct {
    const int8_t *planes;
    const int32_t *start;
    const float *sum32;
} panel_row;

/* Of each plane; AVX2: of int16, in a second set where a block's do not fit one. */
typedef struct {
    vi high[SETS][QUARTERS], low[SETS][QUARTERS];
    int32_t start;
} panel_sums;

FOLDED int layout_left(int layout) { return layout_offset(layout); }

INLINE panel_row panel_row_of(const cortiq_tile *t, int row)
{
    int32_t width = t->matrix->width;
    return (panel_row){(const int8_t *)t->ready + (size_t)row * 2 * cortiq_padded(width),
                       t->starts[row], cortiq_record_sum32(t->x[row], width)};
}

/* q + 128 has the high plane as its upper byte, q the low one as its lower. */
TARGET void ISA_NAME(cortiq_row_ready)(const void *record, int32_t width, uint8_t *to)
{
    static const uint8_t order[16] = {1, 5, 3, 7, 0, 4, 2, 6, 9, 13, 11, 15, 8, 12, 10, 14};
    const int16_t *q = cortiq_record_q(record);
    __m256i places = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)order));
    for (int32_t k = 0; k < cortiq_padded(width); k += 16) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(q + k));
        __m256i high = _mm256_add_epi16(low, _mm256_set1_epi16(128));
        high = _mm256_blendv_epi8(low, high, _mm256_set1_epi16((int16_t)0xff00));
        _mm256_storeu_si256((__m256i *)(to + 2 * k), _mm256_shuffle_epi8(high, places));
    }
}

/* Measured on Sapphire Rapids: into the second-level cache, and from nearer than prefetch_unit does. These
 * kernels take so few instructions that what waits for the first-level cache is full otherwise. */
INLINE void ask_unit(const int layout, const cortiq_chunk *c, int unit)
{
    prefetch_ahead(layout, c, unit, 2048, 2);
}

INLINE void widen_bytes(const uint8_t *from, const int is_signed, vi *to)
{
    for (int v = 0; v < QUARTERS; v++)
        to[v] = is_signed ? vi_from_s8(from + v * LANES) : vi_from_u8(from + v * LANES);
}

INLINE void unpack_bytes(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                         const int second, int lane, vi *b)
{
    const int wide = layout_offset(layout) == 128;
    take_codes(layout, c, main, unit, second, lane, b);
    for (int j = 0; layout_has_table(layout) && j < 4; j++)
        b[j] = vi_table(wide ? cortiq_iq4_nl_table : cortiq_mxfp4_table, b[j]);
}

INLINE vi row_bytes(const panel_row *x, int at)
{
    int32_t four;
    memcpy(&four, x->planes + at, 4);
    return vi_set(four);
}

#if CORTIQ_VNNI
INLINE void panel_start(const int layout, panel_sums *sums, int32_t start)
{
    const int apart = layout_subs(layout) && layout_left(layout); /* parts meet sub-scales */
    for (int v = 0; v < QUARTERS; v++) {
        sums->high[0][v] = apart ? vi_set(start >> 8) : vi_zero();
        sums->low[0][v] = vi_set(apart ? start & 255 : start);
    }
}

INLINE void panel_dot(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                      const int second, const panel_row *x, int column, panel_sums *sums)
{
    vi b[QUARTERS][4];
    for (int v = 0; v < QUARTERS; v++)
        unpack_bytes(layout, c, main, unit, second, v * LANES, b[v]);
    _Pragma("GCC unroll 4")
    for (int j = 0; j < 4; j++) {
        vi high = row_bytes(x, 2 * column + 8 * j), low = row_bytes(x, 2 * column + 8 * j + 4);
        for (int v = 0; v < QUARTERS; v++) {
            sums->high[0][v] = vi_dot_bytes(sums->high[0][v], b[v][j], high);
            sums->low[0][v] = vi_dot_bytes(sums->low[0][v], b[v][j], low);
        }
    }
}

INLINE vi panel_total(const int layout, const panel_sums *sums, int v)
{
    (void)layout;
    return vi_add(vi_left(sums->high[0][v], 8), sums->low[0][v]);
}

INLINE void panel_fold(const int layout, const panel_sums *sums, int v, vi scale, vi *high,
                       vi *rest)
{
    (void)layout;
    *high = vi_add(*high, vi_multiply(sums->high[0][v], scale));
    *rest = vi_add(*rest, vi_multiply(sums->low[0][v], scale));
}

INLINE void panel_split(const int layout, const panel_sums *sums, int v, vi *high, vi *rest)
{
    (void)layout;
    *high = vi_add(*high, sums->high[0][v]);
    *rest = vi_add(*rest, sums->low[0][v]);
}
#else
/* Units of 32 columns have sets of their own where 16 products of a code and a byte do not fit int16. */
FOLDED int layout_sets(int layout)
{
    return layout == CORTIQ_MXFP4 || layout_bits(layout) == 5 ? 2 : 1;
}

INLINE void panel_start(const int layout, panel_sums *sums, int32_t start)
{
    (void)layout;
    sums->start = start;
    for (int v = 0; v < QUARTERS; v++)
        sums->high[0][v] = sums->low[0][v] = sums->high[1][v] = sums->low[1][v] = vi_zero();
}

INLINE void panel_dot(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                      const int second, const panel_row *x, int column, panel_sums *sums)
{
    const int set = layout_sets(layout) == 2 ? second : 0;
    vi b[QUARTERS][4];
    for (int v = 0; v < QUARTERS; v++)
        unpack_bytes(layout, c, main, unit, second, v * LANES, b[v]);
    _Pragma("GCC unroll 4")
    for (int j = 0; j < 4; j++) {
        vi high = row_bytes(x, 2 * column + 8 * j), low = row_bytes(x, 2 * column + 8 * j + 4);
        for (int v = 0; v < QUARTERS; v++) {
            sums->high[set][v] = vi_add16(sums->high[set][v], vi_products_bytes(b[v][j], high));
            sums->low[set][v] = vi_add16(sums->low[set][v], vi_products_bytes(b[v][j], low));
        }
    }
}

INLINE vi panel_total(const int layout, const panel_sums *sums, int v)
{
    vi total = layout_left(layout) ? vi_set(sums->start) : vi_zero();
    for (int s = 0; s < layout_sets(layout); s++) {
        total = vi_add(total, vi_products16(sums->high[s][v], vi_set16(256)));
        total = vi_add(total, vi_products16(sums->low[s][v], vi_set16(1)));
    }
    return total;
}

INLINE void panel_fold(const int layout, const panel_sums *sums, int v, vi scale, vi *high,
                       vi *rest)
{
    scale = vi_or(scale, vi_left(scale, 16));
    for (int s = 0; s < layout_sets(layout); s++) {
        *high = vi_add(*high, vi_products16(sums->high[s][v], scale));
        *rest = vi_add(*rest, vi_products16(sums->low[s][v], scale));
    }
}

INLINE void panel_split(const int layout, const panel_sums *sums, int v, vi *high, vi *rest)
{
    *rest = vi_add(*rest, panel_total(layout, sums, v)); /* no layout of AVX2 is split */
    (void)high;
}
#endif
