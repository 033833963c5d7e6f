/* Attention of one row: tiles of 64 keys spread over the blocks, for all query heads of a key's head
   at once, and added in the contract's order by whoever comes last. */
#pragma once

/* A sum, and the exponent that it counts at. */
struct Scaled {
    float value;
    int exponent;
};

ON_DEVICE float delta(int n)
{
    return n < FORGET ? 0.0f : exp2_int(n);
}

ON_DEVICE void merge(Scaled& a, Scaled b)
{
    const int top = max(a.exponent, b.exponent);
    a.value = a.value * delta(a.exponent - top) + b.value * delta(b.exponent - top);
    a.exponent = top;
}

/* Whether this block is the last of `expected` that come here; then what they stored is seen. */
ON_DEVICE bool is_last(u32* counter, int expected, u32& came)
{
    sync_consumers();
    if (threadIdx.x == 0) {
        came = ordered_add(counter) + 1;
        if (came == expected)
            *counter = 0;
    }
    sync_consumers();
    return came == expected;
}

/* A column's states at `count` places, `step` apart, merged in order. */
ON_DEVICE void merge_states(const float* sums, const int4* numbers, int count, int step, Scaled& mass,
                            Scaled& sum)
{
    mass = {0.0f, NONE};
    sum = {0.0f, NONE};
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
        const int4 known = __ldcg(numbers + i * step);
        const float value = __ldcg(sums + (long long)i * step * DIM);
        merge(mass, {__int_as_float(known.x), known.y});
        merge(sum, {value, known.z});
    }
}

/* A column's result to `out`; returns the bits of its magnitude. */
ON_DEVICE int finish(Scaled mass, Scaled sum, float* out, int* faults)
{
    const int shift = sum.exponent - mass.exponent + 7;
    const float power = shift < -126 ? 0.0f : exp2_int(min(shift, 127));
    const float y = (sum.value * (1.0f / mass.value)) * power;
    if (outside(y))
        *faults = 1;
    *out = snapped(y);
    return magnitude(snapped(y));
}

/* Tiles as blocks have them: spans of `length`, at most a run, in turns. */
struct Spans {
    int tiles, length, turn, mine;

    INLINE int next(int tile) const
    {
        return (tile + 1) % length && tile + 1 < tiles ? tile + 1 : (tile / length + turn) * length;
    }
};

/* What a block knows of the row from the start: the pages of its first tile and of the last one. */
struct Sight {
    Spans spans;
    int position;
    const long long* pages;
    long long first, last;
};

ON_DEVICE Sight sight_of(const Keys& keys)
{
    const int position = *keys.positions, tiles = position / 64 + 1, turn = gridDim.x / GROUPS;
    const long long* pages = keys.table + (long long)*keys.owners * keys.pages;
    int length = 1;
    while (length < 16 && length * turn < tiles)
        length *= 2;
    const int index = blockIdx.x / GROUPS, mine = index < turn ? index * length : tiles;
    return {{tiles, length, turn, mine}, position, pages, mine < tiles ? pages[mine] : 0, pages[tiles - 1]};
}

/* Ask for the keys and values of a tile, which is in the page at an address, if there is one. */
ON_DEVICE void ask_for_tile(long long page, long long slot)
{
    constexpr int LINES = 64 * DIM / 128;
    const int plane = threadIdx.x / LINES, line = threadIdx.x % LINES, g = blockIdx.x % GROUPS;
    if (page && plane < 4)
        prefetch((const i8*)(page + slot) + (plane * GROUPS + g) * 64 * DIM + line * 128);
}

/* After a span's states are stored: its run's sums if no other span is missing, then all runs'. */
ON_DEVICE void add_up(const Keys& keys, int g, int tile, const Spans& spans, float* out, int* largest,
                      AttentionScratch& scratch, int* faults)
{
    const int run = tile / 16, runs = (spans.tiles + 15) / 16, count = min(16, spans.tiles - run * 16);
    u32* counters = keys.counters + g * (keys.most / 16 + 2);
    if (!is_last(counters + 1 + run, (count + spans.length - 1) / spans.length, scratch.came))
        return;
    if (runs > 1) {
        for (int i = threadIdx.x; i < EACH * DIM; i += CONSUMERS) {
            const long long at = (long long)(g * EACH + i / DIM) * keys.most + run * 16;
            Scaled mass, sum;
            merge_states(keys.sums + at * DIM + i % DIM, keys.numbers + at, count, 1, mass, sum);
            keys.sums[(at + keys.most * HEADS) * DIM + i % DIM] = sum.value;
            if (i % DIM == 0)
                keys.numbers[at + keys.most * HEADS] =
                    make_int4(__float_as_int(mass.value), mass.exponent, sum.exponent, 0);
        }
        if (!is_last(counters, runs, scratch.came))
            return;
    }
    const long long half = runs > 1 ? keys.most * HEADS : 0;
    for (int i = threadIdx.x; i < EACH * DIM; i += CONSUMERS) {
        const long long at = (long long)(g * EACH + i / DIM) * keys.most + half;
        Scaled mass, sum;
        merge_states(keys.sums + at * DIM + i % DIM, keys.numbers + at, runs > 1 ? runs : count,
                     runs > 1 ? 16 : 1, mass, sum);
        const int most = warp_most(finish(mass, sum, out + g * EACH * DIM + i, faults));
        if (i % 32 == 0)
            scratch.maxima[i / 32] = most;
    }
    sync_consumers();
    if (threadIdx.x < EACH) {
        int most = 0;
#pragma unroll
        for (int i = 0; i < DIM / 32; ++i)
            most = max(most, scratch.maxima[threadIdx.x * (DIM / 32) + i]);
        largest[g * EACH + threadIdx.x] = most;
    }
}

/* This block's tiles, each asked for while the one before is computed. x : queries, keys and values
   of the row, [HEADS + 2 * GROUPS][DIM]. */
ON_DEVICE void attend(const float* x, const Keys& keys, const Sight& sight, long long slot, float factor,
                      float* out, int* largest, AttentionScratch& scratch, int* faults)
{
    const Spans& spans = sight.spans;
    const int g = blockIdx.x % GROUPS, last = spans.tiles - 1, position = sight.position;
    if (!sight.first)
        return;
    const bool is_new = last / spans.length % spans.turn == spans.mine / spans.length;
    long long page = sight.first;
    for (int tile = spans.mine; tile < spans.tiles;) {
        Part part = part_of((const i8*)(page + slot), g);
        const int next = spans.next(tile);
        const long long at = (long long)g * EACH * keys.most + tile;
        page = next < spans.tiles ? sight.pages[next] : 0;
        ask_for_tile(page, slot);
        if (tile == spans.mine)
            store_heads(x, g, keys, position, factor, is_new ? (i8*)(sight.last + slot) : nullptr, scratch,
                        faults);
        sync_consumers();
        if (tile == last)
            put_new(part, scratch, position % 64);
        score_tile(part, tile * 64, position, scratch);
        sync_consumers();
        weigh_tile(scratch, keys.numbers + at + (long long)(threadIdx.x / 32) * keys.most);
        sync_consumers();
        add_values(part, scratch, keys.sums + at * DIM, (long long)keys.most * DIM);
        if (next != tile + 1 || next % spans.length == 0)
            add_up(keys, g, tile, spans, out, largest, scratch, faults);
        tile = next;
    }
}
