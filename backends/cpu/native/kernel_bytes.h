/* Codes of a unit as bytes for NEON's products of these, as take_codes has them. */

/* `negated`: the highest bit of what a table gives is the other one: its values less 128. */
INLINE void take_bytes(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                       const int second, int lane, const int negated, vi *b)
{
    take_codes(layout, c, main, unit, second, lane, b);
    if (!layout_has_table(layout))
        return;
    uint8x16_t table = vld1q_u8(layout_offset(layout) == 128 ? cortiq_iq4_nl_table
                                                             : cortiq_mxfp4_table);
    if (negated)
        table = veorq_u8(table, vdupq_n_u8(128));
    for (int j = 0; j < 4; j++)
        b[j] = vi_of_bytes(vqtbl1q_u8(table, vi_bytes(b[j])));
}

INLINE void unpack_bytes(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                         const int second, int lane, vi *b)
{
    take_bytes(layout, c, main, unit, second, lane, 0, b);
}

/* Codes less their offset, as signed bytes. */
INLINE void unpack_signed(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                          const int second, int lane, vi *b)
{
    const int negated = layout_has_table(layout) && layout_offset(layout) == 128;
    uint8x16_t offset = vdupq_n_u8((uint8_t)layout_offset(layout));
    take_bytes(layout, c, main, unit, second, lane, negated, b);
    for (int j = 0; layout_offset(layout) && !negated && j < 4; j++)
        b[j] = vi_of_bytes(vsubq_u8(vi_bytes(b[j]), offset));
}
