/* Codes of a unit from a panel into registers, roundings, and the end of a row; included after a
 * simd_*.h.
 */
#include "matmul.h"

/* Vectors of int16 pairs: p[i] holds columns 2i, 2i + 1 of a unit for LANES outputs. */
#define TAKE_FOUR_BIT(a, at)                                                                       \
    p[at] = vi_and(a, vi_set16(15));                                                               \
    p[at + 1] = vi_and(vi_right16(a, 8), vi_set16(15));                                            \
    p[at + 2] = vi_and(vi_right16(a, 4), vi_set16(15));                                            \
    p[at + 3] = vi_right16(a, 12);

#define TAKE_BYTES(a, at)                                                                          \
    p[at] = vi_and(a, vi_set16(255));                                                              \
    p[at + 1] = vi_right16(a, 8);

/* Bytes of a vector |= bits of `word` moved left or right, where the mask is set. */
#define ADD_LEFT(i, n, mask) b[i] = vi_or_masked(b[i], vi_left16(word, n), vi_set16(mask));
#define ADD_RIGHT(i, n, mask) b[i] = vi_or_masked(b[i], vi_right16(word, n), vi_set16(mask));

#ifndef vi_right_bytes /* bytes moved right, of which the bits of the 16-bit mask stay: all there are */
#define vi_right_bytes(a, n, mask) vi_and(vi_right16(a, n), vi_set16(mask))
#endif

INLINE void take_table(const uint8_t *table, vi word, vi *p)
{
    vi even = vi_table(table, vi_and(word, vi_set16(0x0f0f)));
    vi odd = vi_table(table, vi_right_bytes(word, 4, 0x0f0f));
    TAKE_BYTES(even, 0)
    TAKE_BYTES(odd, 2)
}

INLINE void take_two_bit(vi word, vi *p)
{
    p[0] = vi_and(word, vi_set16(3));
    p[1] = vi_and(vi_right16(word, 8), vi_set16(3));
    p[2] = vi_and(vi_right16(word, 2), vi_set16(3));
    p[3] = vi_and(vi_right16(word, 10), vi_set16(3));
    p[4] = vi_and(vi_right16(word, 4), vi_set16(3));
    p[5] = vi_and(vi_right16(word, 12), vi_set16(3));
    p[6] = vi_and(vi_right16(word, 6), vi_set16(3));
    p[7] = vi_right16(word, 14);
}

/* Codes with bits in two places are put together as bytes, two at a time: b[i] holds those of
 * columns 4i … 4i + 3 of a unit, of which TAKE_BYTES makes two vectors of pairs.
 */
INLINE void take_nibbles(vi first, vi second, vi *b)
{
    b[0] = vi_and(first, vi_set16(0x0f0f));
    b[1] = vi_right_bytes(first, 4, 0x0f0f);
    b[2] = vi_and(second, vi_set16(0x0f0f));
    b[3] = vi_right_bytes(second, 4, 0x0f0f);
}

INLINE void take_bit_pairs(vi word, vi *b)
{
    b[0] = vi_and(word, vi_set16(0x0303));
    b[1] = vi_and(vi_right16(word, 2), vi_set16(0x0303));
    b[2] = vi_and(vi_right16(word, 4), vi_set16(0x0303));
    b[3] = vi_right_bytes(word, 6, 0x0303);
}

INLINE void add_upper_two(vi word, vi *b)
{
    ADD_LEFT(0, 4, 0x3030) ADD_LEFT(1, 2, 0x3030) ADD_LEFT(2, 0, 0x3030) ADD_RIGHT(3, 2, 0x3030)
}

/* The fifth bits of a block's first or second unit. */
INLINE void add_fifth(int second, vi word, vi *b)
{
    if (!second) {
        ADD_LEFT(0, 4, 0x1010) ADD_LEFT(1, 3, 0x1010) ADD_LEFT(2, 2, 0x1010)
        ADD_LEFT(3, 1, 0x1010)
    } else {
        ADD_LEFT(0, 0, 0x1010) ADD_RIGHT(1, 1, 0x1010) ADD_RIGHT(2, 2, 0x1010)
        ADD_RIGHT(3, 3, 0x1010)
    }
}

INLINE void add_third(int second, vi word, vi *b)
{
    if (!second) {
        ADD_LEFT(0, 2, 0x0404) ADD_LEFT(1, 1, 0x0404) ADD_LEFT(2, 0, 0x0404)
        ADD_RIGHT(3, 1, 0x0404)
    } else {
        ADD_RIGHT(0, 2, 0x0404) ADD_RIGHT(1, 3, 0x0404) ADD_RIGHT(2, 4, 0x0404)
        ADD_RIGHT(3, 5, 0x0404)
    }
}

/* Codes of 3, 5 or 6 bits of a unit, as bytes. */
INLINE void join_parted(const int bits, int unit, const int second, const uint8_t *main,
                        const uint8_t *extra, vi *b)
{
    if (bits == 3)
        take_bit_pairs(vi_load(main), b);
    else
        take_nibbles(vi_load(main), vi_load(main + 64), b);
    if (bits == 6)
        add_upper_two(vi_load(extra + 64 * unit), b);
    else if (bits == 5)
        add_fifth(second, vi_load(extra + 64 * (unit / 2)), b);
    else
        add_third(second, vi_load(extra + 64 * (unit / 2)), b);
}

/* Codes of a unit, of a table its indices, as bytes: b[j] holds columns 4j … 4j + 3, in the order 0 2 1 3,
 * of LANES outputs. */
INLINE void take_codes(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                       const int second, int lane, vi *b)
{
    const int bits = layout_bits(layout);
    main += 4 * lane + unit * (bits == 16 ? 256 : layout_main_bytes(layout));
    if (bits >= 8) {
        for (int j = 0; j < 4; j++)
            b[j] = vi_load(main + 64 * j);
    } else if (bits == 3 || bits == 5 || bits == 6) {
        join_parted(bits, unit, second, main, c->extra + 4 * lane, b);
    } else if (bits == 2) {
        take_bit_pairs(vi_load(main), b);
    } else {
        take_nibbles(vi_load(main), vi_load(main + 64), b);
    }
}

INLINE void take_parted(const int bits, int unit, const int second, const uint8_t *main,
                        const uint8_t *extra, vi *p)
{
    vi b[4];
    join_parted(bits, unit, second, main, extra, b);
    TAKE_BYTES(b[0], 0) TAKE_BYTES(b[1], 2) TAKE_BYTES(b[2], 4) TAKE_BYTES(b[3], 6)
}

/* Ask for the sides and extra bits of a chunk before its first unit, so that memory is asked for
 * from front to back and the machine's own prefetching sees one stream. Measured: without it,
 * layouts with minima or fifth bits are read at a third of the bandwidth.
 */
INLINE void touch_chunk(const cortiq_chunk *c)
{
    for (const uint8_t *line = c->base; line < c->main; line += 64)
        __builtin_prefetch(line);
}

/* A unit takes longer than the machine looks ahead: ask, with every unit, for its share of a chunk
 * AHEAD bytes on. Measured: layouts of 4 to 6 bits are read 1.4 to 1.7 times as fast by one row.
 */
enum { AHEAD = 4096 };

INLINE void prefetch_ahead(const int layout, const cortiq_chunk *c, int unit, const int ahead,
                           const int locality)
{
    const int lines = (int)(chunk_bytes(layout, CHUNK_UNITS) / CHUNK_UNITS + 63) / 64;
    for (int line = 0; line < lines; line++)
        __builtin_prefetch(c->base + ahead + 64 * (unit * lines + line), 0, locality);
}

INLINE void prefetch_unit(const int layout, const cortiq_chunk *c, int unit)
{
    prefetch_ahead(layout, c, unit, AHEAD, 3);
}

/* Unit `unit` of a chunk, outputs from `lane` on; `second` is unit & 1 (known when compiled).
 * `main` is the chunk's, or main_low.
 */
INLINE void unpack_unit(const int layout, const cortiq_chunk *c, const uint8_t *main, int unit,
                        const int second, int lane, vi *p)
{
    const int bits = layout_bits(layout);
    const uint8_t *extra = c->extra + 4 * lane;
    main += 4 * lane + unit * (bits == 16 ? 256 : layout_main_bytes(layout));
    if (bits >= 8) {
        vi a = vi_load(main), b = vi_load(main + 64), c = vi_load(main + 128);
        vi d = vi_load(main + 192);
        TAKE_BYTES(a, 0) TAKE_BYTES(b, 2) TAKE_BYTES(c, 4) TAKE_BYTES(d, 6)
        return;
    }
    if (bits == 3 || bits == 5 || bits == 6) {
        take_parted(bits, unit, second, main, extra, p);
    } else if (bits == 2) {
        take_two_bit(vi_load(main), p);
    } else if (layout_has_table(layout)) {
        const int wide = layout_offset(layout) == 128;
        const uint8_t *table = wide ? cortiq_iq4_nl_table : cortiq_mxfp4_table;
        take_table(table, vi_load(main), p);
        take_table(table, vi_load(main + 64), p + 4);
    } else {
        vi a = vi_load(main), b = vi_load(main + 64);
        TAKE_FOUR_BIT(a, 0) TAKE_FOUR_BIT(b, 4)
    }
}

/* E4M3: an integer mantissa of four bits times 2^n, n = 0 … 14, is 128·high + low, of which one is
 * 0: factors of both by the exponent's field, and the mantissa's upper bit.
 */
INLINE void take_e4m3(vi word, vi *low, vi *high)
{
    static const uint8_t low_factor[16] = {1, 1, 2, 4, 8, 16, 32, 64, 128};
    static const uint8_t high_factor[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 8, 16, 32, 64, 128};
    static const uint8_t upper[16] = {0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
    vi exponent = vi_and(vi_right16(word, 3), vi_set16(0x0f0f)), one = vi_set16(1);
    vi by_low = vi_table(low_factor, exponent), by_high = vi_table(high_factor, exponent);
    vi mantissa = vi_or(vi_and(word, vi_set16(0x0707)), vi_table(upper, exponent));
    for (int odd = 0; odd < 2; odd++) {
        vi sign = vi_and(odd ? vi_right16(word, 14) : vi_right16(word, 6), vi_set16(2));
        vi part = odd ? vi_right16(mantissa, 8) : vi_and(mantissa, vi_set16(255));
        part = vi_multiply16(part, vi_sub16(one, sign));
        low[odd] = vi_multiply16(part, odd ? vi_right16(by_low, 8) : vi_and(by_low, vi_set16(255)));
        high[odd] =
            vi_multiply16(part, odd ? vi_right16(by_high, 8) : vi_and(by_high, vi_set16(255)));
    }
}

/* As unpack_unit, of wide codes. E4M3: 128·high + low, both within ±1920. Tables: 256·high + low,
 * both 128 too large.
 */
INLINE void unpack_wide(const int layout, const uint8_t *main, int unit, int lane, vi *low, vi *high)
{
    main += 4 * lane + unit * layout_main_bytes(layout);
    if (layout == CORTIQ_E4M3) {
        for (int j = 0; j < 4; j++)
            take_e4m3(vi_load(main + 64 * j), low + 2 * j, high + 2 * j);
        return;
    }
    const int nf4 = layout == CORTIQ_NF4;
    for (int j = 0; j < 2; j++) {
        vi word = vi_load(main + 64 * j);
        take_table(nf4 ? cortiq_nf4_low : cortiq_fp4_low, word, low + 4 * j);
        take_table(nf4 ? cortiq_nf4_high : cortiq_fp4_high, word, high + 4 * j);
    }
}

INLINE vf load_scale(const int layout, const uint8_t *side, int lane)
{
    if (layout_scale_bytes(layout) == 1)
        return vf_bits(vi_left(vi_from_u8(side + lane), 23));
    if (layout_scale_bytes(layout) == 4)
        return vf_load((const float *)side + lane);
    return vf_from_half(side + 2 * lane);
}

INLINE vf load_minimum(const int layout, const uint8_t *side, int lane)
{
    if (layout_is_float_scaled(layout))
        return vf_load((const float *)(side + layout_minimum_at(layout)) + lane);
    return vf_from_half(side + layout_minimum_at(layout) + 2 * lane);
}

INLINE vi load_sub_scale(const int layout, const uint8_t *side, int sub, int lane)
{
    const uint8_t *at = side + layout_subs_at(layout) + PANEL * sub + lane;
    return layout_signed_subs(layout) ? vi_from_s8(at) : vi_from_u8(at);
}

INLINE vi load_offset(const int layout, const uint8_t *side, int sub, int lane)
{
    return vi_from_u8(side + layout_offsets_at(layout) + PANEL * sub + lane);
}

/* Two columns of a quantised row, for every output. */
INLINE vi pair(const int16_t *q)
{
    int32_t both;
    memcpy(&both, q, 4);
    return vi_set(both);
}

/* RN(256·high + low): numerics/planes.py. */
INLINE vf round_two(vi high, vi low)
{
    vi carry = vi_right(vi_add(low, vi_set(128)), 8);
    high = vi_add(high, carry);
    low = vi_sub(low, vi_left(carry, 8));
    vi a = vi_right(vi_add(high, vi_set(16384)), 15);
    vi m = vi_add(vi_left(vi_sub(high, vi_left(a, 15)), 8), low);
    return vf_add(vf_multiply(vf_from_int(a), vf_set(8388608.0f)), vf_from_int(m));
}

/* RN of sums of 32 columns of wide codes: 128·high + low of E4M3, |low| < 2^31 − 256 */
INLINE vf round_wide(const int layout, vi high, vi low)
{
    if (layout != CORTIQ_E4M3)
        return round_two(high, low);
    low = vi_add(low, vi_left(vi_and(high, vi_set(1)), 7));
    return round_two(vi_right(high, 1), low);
}

/* RN(65536·high + 256·middle + low) */
INLINE vf round_three(vi high, vi middle, vi low)
{
    vi carry = vi_right(vi_add(low, vi_set(128)), 8);
    low = vi_sub(low, vi_left(carry, 8));
    middle = vi_add(middle, carry);
    carry = vi_right(vi_add(middle, vi_set(128)), 8);
    middle = vi_sub(middle, vi_left(carry, 8));
    high = vi_add(high, carry);
    vi a = vi_right(vi_add(high, vi_set(64)), 7);
    vi m = vi_left(vi_sub(high, vi_left(a, 7)), 16);
    m = vi_add(vi_add(m, vi_left(middle, 8)), low);
    return vf_add(vf_multiply(vf_from_int(a), vf_set(8388608.0f)), vf_from_int(m));
}

/* snap(y·2^e) to outputs lane … of a row of the tile. */
INLINE void finish_row(const cortiq_tile *tile, int row, int lane, vf y)
{
    if (lane >= tile->outputs)
        return;
    int32_t e = *(const int32_t *)((const uint8_t *)tile->x[row] + tile->exponent_at);
    uint32_t fault = 0;
    y = vf_snap(vf_multiply(y, vf_bits(vi_set((e + 127) << 23))), &fault);
    int32_t left = tile->outputs - lane;
    float *out = tile->out[row] + tile->at + lane, all[LANES];
    if (left >= LANES) {
        vf_store(out, y);
    } else {
        vf_store(all, y);
        memcpy(out, all, 4 * (size_t)left);
    }
    if (fault)
        cortiq_raise_fault(tile->faults[row]);
}
