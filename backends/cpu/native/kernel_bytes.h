/* Codes of a unit as bytes, for instruction sets that multiply these: what kernel_unpack.h is for
 * pairs of int16. b[j] holds columns 4j … 4j + 3, in the order 0 2 1 3, of LANES outputs.
 */

INLINE void unpack_bytes(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                         const int second, int lane, vi *b)
{
    const int bits = layout_bits(layout);
    main += 4 * lane + unit * (bits == 16 ? 256 : layout_main_bytes(layout));
    if (bits >= 8) {
        for (int j = 0; j < 4; j++)
            b[j] = vi_load(main + 64 * j);
        return;
    }
    if (bits == 3 || bits == 5 || bits == 6)
        join_parted(bits, unit, second, main, c->extra + 4 * lane, b);
    else if (bits == 2)
        take_bit_pairs(vi_load(main), b);
    else
        take_nibbles(vi_load(main), vi_load(main + 64), b);
    for (int j = 0; layout_has_table(layout) && j < 4; j++)
        b[j] = vi_table(layout_offset(layout) == 128 ? cortiq_iq4_nl_table : cortiq_mxfp4_table,
                        b[j]);
}

/* Codes less their offset, as signed bytes. */
INLINE void unpack_signed(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                          const int second, int lane, vi *b)
{
    uint8x16_t offset = vdupq_n_u8((uint8_t)layout_offset(layout));
    unpack_bytes(layout, c, main, unit, second, lane, b);
    for (int j = 0; layout_offset(layout) && j < 4; j++)
        b[j] = vi_of_bytes(vsubq_u8(vi_bytes(b[j]), offset));
}
