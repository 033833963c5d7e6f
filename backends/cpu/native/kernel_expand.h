/* A chunk's codes for products of int16. */

/* Codes of one vector of outputs of a chunk to vector `to` of the tile. */
INLINE void expand(const int layout, const chunk *c, const cortiq_chunk *from, const uint8_t *main,
                   int lane, int to)
{
    for (int u = 0; layout_is_wide(layout) && u < c->units; u++) {
        vi low[8], high[8], offset = vi_set16(layout_offset(layout));
        unpack_wide(layout, main, u, lane, low, high);
        for (int j = 0; j < 8; j++) {
            vi_store(c->scratch->codes[8 * u + j][to * LANES], vi_sub16(low[j], offset));
            vi_store(c->scratch->upper[8 * u + j][to * LANES], vi_sub16(high[j], offset));
        }
    }
    for (int u = 0; !layout_is_wide(layout) && u < c->units; u++) {
        vi p[8];
        fold_unit(layout, from, main, u, lane, p);
        for (int j = 0; j < 8; j++)
            vi_store(c->scratch->codes[8 * u + j][to * LANES], p[j]);
    }
}
