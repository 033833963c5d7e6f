/* The products of kernel_block.h with NEON alone, whose products of int16 pairs are added to two sums
 * each (SMLAL, SMLAL2), which meet at the end.
 */
#define CORTIQ_OWN_DOT_PAIRS

INLINE void dot_pairs(const int rows, const int16_t (*codes)[TILE][2], const int16_t *const *q,
                      int start, int stop, vi total[][TILE_VECTORS])
{
    vi low[MOST_ROWS][TILE_VECTORS], high[MOST_ROWS][TILE_VECTORS];
    memset(low, 0, sizeof low);
    memset(high, 0, sizeof high);
    for (int k = start; k < stop; k++) {
        int16x8_t w[TILE_VECTORS];
        _Pragma("GCC unroll 4")
        for (int v = 0; v < TILE_VECTORS; v++)
            w[v] = vld1q_s16(codes[k][v * LANES]);
        _Pragma("GCC unroll 2")
        for (int i = 0; i < rows; i++) {
            int16x8_t x = vi_halves(pair(q[i] + 2 * k));
            _Pragma("GCC unroll 4")
            for (int v = 0; v < TILE_VECTORS; v++) {
                low[i][v] = vmlal_s16(low[i][v], vget_low_s16(w[v]), vget_low_s16(x));
                high[i][v] = vmlal_high_s16(high[i][v], w[v], x);
            }
        }
    }
    _Pragma("GCC unroll 2")
    for (int i = 0; i < rows; i++)
        _Pragma("GCC unroll 4")
        for (int v = 0; v < TILE_VECTORS; v++)
            total[i][v] = vi_add(total[i][v], vpaddq_s32(low[i][v], high[i][v]));
}
