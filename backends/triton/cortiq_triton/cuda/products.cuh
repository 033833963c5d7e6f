/* Products of one row. One thread of a block brings what the weights' side needs into a ring of stages
   in shared memory, as far ahead as the ring is long: through barriers of the grid, past the end of a
   product, into the next layer. The others multiply. */
#pragma once

constexpr int ARRIVALS = 64;

/* Stages in shared memory, numbered in the order in which they are brought and read. `full` is
   completed by the copies of a stage, `empty` by the warps that have read it. At most FLIGHT stages
   are on their way at a time: loads of the others would wait behind more. */
struct Ring {
    i8* data;
    u64 *full, *empty;
    u32 number;

    INLINE i8* wait_full(u32 n) const
    {
        barrier_wait(full + n % STAGES, n / STAGES & 1);
        return data + n % STAGES * STAGE;
    }

    INLINE void release(u32 n, int readers) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(empty + n % STAGES, ARRIVALS / readers);
    }

    /* The next stage, for so many bytes. */
    INLINE i8* claim(u32 bytes)
    {
        const u32 n = number++;
        barrier_wait(empty + n % STAGES, n / STAGES & 1 ^ 1);
        if (n >= FLIGHT)
            wait_full(n - FLIGHT);
        barrier_expect(full + n % STAGES, bytes);
        return data + n % STAGES * STAGE;
    }

    INLINE void copy(i8* to, const void* from, u32 bytes) const
    {
        if (bytes)
            bulk_copy(to, from, bytes, full + (number - 1) % STAGES);
    }
};

ON_DEVICE constexpr int power_up(int n)
{
    return n > 1 ? 2 * power_up((n + 1) / 2) : 1;
}

/* How a product with rows of K columns is shared out. A warp multiplies `UNIT` rows by `EACH` times 256
   columns; `GROUP` warps have all columns of a unit, `ACROSS` units are computed at once, a stage has
   `ROWS` rows or `UNITS` units, and at most `LIMIT` rows are added up at a time. */
template <int K> struct Shape {
    static constexpr int STEPS = (K + 255) / 256, LEAST = power_up((STEPS + WIDTHS - 1) / WIDTHS);
    static constexpr int GROUP = LEAST < WARPS / 4 ? WARPS / 4 : LEAST;
    static constexpr int ACROSS = WARPS / GROUP, EACH = (STEPS + GROUP - 1) / GROUP;
    static constexpr int ROWS = power_up(STAGE / K / 2 + 1), PAIRS = ROWS / 2;
    static constexpr int UNIT = ROWS < 4 ? ROWS : 4, UNITS = ROWS / UNIT;
    static constexpr int SLOTS_EACH = SLOTS / GROUP < CONSUMERS ? SLOTS / GROUP : CONSUMERS;
    static constexpr int LIMIT = SLOTS_EACH / ROWS * ROWS;
    static_assert(GROUP <= WARPS && ROWS * K <= STAGE && UNITS * GROUP <= ARRIVALS, "rows of this size");
    /* A warp that waits for a stage must find the one before in its place full, or it would take the
       parity of that one's missing phase for its own. */
    static_assert((ACROSS + UNITS - 1) / UNITS + FLIGHT <= STAGES, "stages enough");
};

/* A lane's part of a quantised row. Of 256 columns there are four slices of 64, and in the product's
   second operand a column for each slice and plane: lane / 4 = 2 * slice + plane, 16 columns a lane. */
template <int K> struct Row {
    int4 words[Shape<K>::EACH];
    int e;
};

/* Takes a plane of a row, or, where the other one is `apart` bytes further, both. */
template <int K> ON_DEVICE void take(const i8* plane, int which, int apart, Row<K>& x)
{
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % Shape<K>::GROUP, mine = lane / 4 % 2;
    if (!apart && mine != which)
        return;
#pragma unroll
    for (int i = 0; i < Shape<K>::EACH; ++i) {
        const int column = (part + i * Shape<K>::GROUP) * 256 + lane / 8 * 64 + lane % 4 * 16;
        x.words[i] = column < K ? *(const int4*)(plane + mine * apart + column) : make_int4(0, 0, 0, 0);
    }
}

/* Scales of rows at ... stop - 1, in whole words of 16 bytes, and the rows; those from `split` on are
   rows of `second`. */
template <int K>
ON_DEVICE void bring_rows(Ring& ring, const i8* first, const i8* second, const float* first_scale,
                          const float* second_scale, int split, int rows)
{
    constexpr int ROWS = Shape<K>::ROWS;
    const Share share = share_of(rows);
    for (int batch = share.first; batch < share.last; batch += Shape<K>::LIMIT) {
        const int stop = min(batch + Shape<K>::LIMIT, share.last);
        const int from = batch & ~3, to = (stop + 3) & ~3, cut = max(from, min(to, split));
        i8* scales = ring.claim((to - from) * 4);
        ring.copy(scales, first_scale + from, (cut - from) * 4);
        ring.copy(scales + (cut - from) * 4, second_scale + (cut - split), (to - cut) * 4);
        for (int at = batch; at < stop; at += ROWS) {
            const int count = min(ROWS, stop - at), of_first = max(0, min(count, split - at));
            i8* codes = ring.claim(count * K);
            ring.copy(codes, first + (long long)at * K, of_first * K);
            ring.copy(codes + of_first * K, second + (long long)(at + of_first - split) * K,
                      (count - of_first) * K);
        }
    }
}

/* Pairs of rows: of gates, and in the second half of a stage of what they gate. */
template <int K>
ON_DEVICE void bring_pairs(Ring& ring, const i8* gates, const i8* ups, const float* gate_scale,
                           const float* up_scale, int pairs)
{
    constexpr int PAIRS = Shape<K>::PAIRS, LIMIT = Shape<K>::LIMIT / 2;
    const Share share = share_of(pairs);
    for (int batch = share.first; batch < share.last; batch += LIMIT) {
        const int stop = min(batch + LIMIT, share.last);
        const int from = batch & ~3, bytes = (((stop + 3) & ~3) - from) * 4;
        i8* scales = ring.claim(2 * bytes);
        ring.copy(scales, gate_scale + from, bytes);
        ring.copy(scales + STAGE / 2, up_scale + from, bytes);
        for (int at = batch; at < stop; at += PAIRS) {
            const int count = min(PAIRS, stop - at);
            i8* codes = ring.claim(2 * count * K);
            ring.copy(codes, gates + (long long)at * K, count * K);
            ring.copy(codes + PAIRS * K, ups + (long long)at * K, count * K);
        }
    }
}

/* The dots of a unit's columns of a warp, by tensor cores: rows of the first operand are those of the
   unit in four slices each, so that of the 16 x 8 results those count in which slices agree; lanes 0
   and 16 have rows 0 and 2, 1 and 3: `found` is high and low planes of one, then of the other. */
template <int K> ON_DEVICE void multiply_unit(const i8* codes, const Row<K>& x, int (&found)[4])
{
    typedef Shape<K> S;
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % S::GROUP, row = lane / 16;
    const i8* first = codes + row % S::UNIT * K + part * 256 + lane / 4 % 4 * 64 + lane % 4 * 16;
    const i8* second = first + (S::UNIT > 2 ? 2 * K : 0);
#pragma unroll
    for (int i = 0; i < S::EACH; ++i) {
        const int4 a = *(const int4*)(first + i * S::GROUP * 256);
        multiply_quads(found, a, S::UNIT > 2 ? *(const int4*)(second + i * S::GROUP * 256) : a, x.words[i]);
    }
}

/* The dots of so many rows of codes: each warp's part of each to `parts` [GROUP][LIMIT]. Rows of the
   last stage that there are no codes for are computed from whatever is there, and never read. */
template <int K> ON_DEVICE void multiply(Ring& ring, const Row<K>& x, int2* parts, int rows)
{
    typedef Shape<K> S;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int stages = (rows + S::ROWS - 1) / S::ROWS;
    for (int unit = warp / S::GROUP; unit < stages * S::UNITS; unit += S::ACROSS) {
        const u32 n = ring.number + unit / S::UNITS;
        int found[4] = {0, 0, 0, 0};
        multiply_unit<K>(ring.wait_full(n) + unit % S::UNITS * S::UNIT * K, x, found);
        ring.release(n, S::UNITS * S::GROUP);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            found[i] = lane % 4 == lane / 4 % 4 ? found[i] : 0;
            found[i] += from_lane_across(found[i], 5);
            found[i] += from_lane_across(found[i], 10);
        }
        int2* to = parts + warp % S::GROUP * S::LIMIT + unit * S::UNIT + lane / 16;
        if (lane % 16 == 0 && lane / 16 < S::UNIT)
            to[0] = make_int2(found[0], found[1]);
        if (lane % 16 == 0 && S::UNIT > 2)
            to[2] = make_int2(found[2], found[3]);
    }
    ring.number += stages;
}

/* The whole dot in a slot, rounded. */
template <int K> ON_DEVICE float dot_in(const int2* parts, int slot)
{
    int high = 0, low = 0;
#pragma unroll
    for (int part = 0; part < Shape<K>::GROUP; ++part) {
        const int2 p = parts[part * Shape<K>::LIMIT + slot];
        high += p.x;
        low += p.y;
    }
    return rounded_dot(high, low);
}

/* This block's rows to `end(row, RN(dot), scale)`. */
template <int K, class End>
ON_DEVICE void multiply_rows(Ring& ring, const Row<K>& x, int2* parts, int rows, const End& end)
{
    const Share share = share_of(rows);
    for (int at = share.first; at < share.last; at += Shape<K>::LIMIT) {
        const int count = min(Shape<K>::LIMIT, share.last - at), mine = threadIdx.x;
        const float* scales = (const float*)ring.wait_full(ring.number) + at % 4;
        const float scale = mine < count ? scales[mine] : 0.0f;
        ring.release(ring.number++, WARPS);
        multiply<K>(ring, x, parts, count);
        sync_consumers();
        if (mine < count)
            end(at + mine, dot_in<K>(parts, mine), scale);
        sync_consumers();
    }
}

/* This block's pairs to `end(pair, both dots, both scales)`. */
template <int K, class End>
ON_DEVICE void multiply_pairs(Ring& ring, const Row<K>& x, int2* parts, int pairs, const End& end)
{
    constexpr int PAIRS = Shape<K>::PAIRS, LIMIT = Shape<K>::LIMIT / 2;
    const Share share = share_of(pairs);
    for (int at = share.first; at < share.last; at += LIMIT) {
        const int count = min(LIMIT, share.last - at), mine = threadIdx.x;
        const float* scales = (const float*)ring.wait_full(ring.number) + at % 4;
        const float2 scale = mine < count ? make_float2(scales[mine], scales[mine + STAGE / 8])
                                          : make_float2(0.0f, 0.0f);
        ring.release(ring.number++, WARPS);
        multiply<K>(ring, x, parts, (count + PAIRS - 1) / PAIRS * (2 * PAIRS));
        sync_consumers();
        const int slot = mine / PAIRS * (2 * PAIRS) + mine % PAIRS;
        if (mine < count)
            end(at + mine, make_float2(dot_in<K>(parts, slot), dot_in<K>(parts, slot + PAIRS)), scale);
        sync_consumers();
    }
}
