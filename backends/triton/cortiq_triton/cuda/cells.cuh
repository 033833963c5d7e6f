/* Rows that blocks hand to one another: each word beside the number of the turn that it is of, in a cell
   of eight bytes. A reader looks until the turn is there; nothing else says that a word is.

   Every block has rows of every product, and reads all of a row before it writes to the next but one.
   So whoever writes a cell again has read, through others, what follows from everybody's last look at
   it (`layers.cu` lists the rows of a layer). */
#pragma once

#ifndef LOOK_FIRST
#define LOOK_FIRST 0
#endif
ON_DEVICE void put_word(u64* cell, int word, u32 turn)
{
    write_cell(cell, (u64)turn << 32 | (u32)word);
}

ON_DEVICE bool is_of(u64 cell, u32 turn)
{
    return u32(cell >> 32) == turn;
}

/* A row of floats: as it came with the launch, or in cells. */
struct Source {
    const float* plain;
    const u64* cells;
    u32 turn;
};

/* A row in cells from a column on. */
ON_DEVICE Source part(const Source& row, int column)
{
    return {nullptr, row.cells + column, row.turn};
}

/* N floats of a row, those at `column(i)` below K; zeros beyond. */
template <int K, int N, class Column>
ON_DEVICE void take_floats(const Source& from, const Column& column, float (&found)[N])
{
    if (from.plain) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            found[i] = column(i) < K ? __ldcg(from.plain + column(i)) : 0.0f;
        return;
    }
    if (LOOK_FIRST)
        while (!is_of(read_cell(from.cells + (column(0) < K ? column(0) : 0)), from.turn))
            look_again();
    u64 cells[N];
#pragma unroll
    for (int i = 0; i < N; ++i)
        cells[i] = column(i) < K ? ~(u64)from.turn << 32 : (u64)from.turn << 32;
    for (bool missing = true; missing;) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (!is_of(cells[i], from.turn))
                cells[i] = read_cell(from.cells + column(i));
        missing = false;
#pragma unroll
        for (int i = 0; i < N; ++i)
            missing |= !is_of(cells[i], from.turn);
        if (missing)
            look_again();
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
        found[i] = __int_as_float(int(cells[i]));
}

/* The same of pairs of neighbours. */
template <int K, int N, class Pair>
ON_DEVICE void take_pairs(const Source& from, const Pair& pair, float2 (&found)[N])
{
    u64 first[N], second[N];
#pragma unroll
    for (int i = 0; i < N; ++i)
        first[i] = second[i] = 2 * pair(i) < K ? ~(u64)from.turn << 32 : (u64)from.turn << 32;
    for (bool missing = true; missing;) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (!is_of(first[i], from.turn) || !is_of(second[i], from.turn))
                read_cells(from.cells + 2 * pair(i), first[i], second[i]);
        missing = false;
#pragma unroll
        for (int i = 0; i < N; ++i)
            missing |= !is_of(first[i], from.turn) || !is_of(second[i], from.turn);
        if (missing)
            look_again();
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
        found[i] = make_float2(__int_as_float(int(first[i])), __int_as_float(int(second[i])));
}

/* The largest of so many words, by each warp. */
ON_DEVICE int take_most(const u64* cells, int count, u32 turn)
{
    int most = 0;
    for (bool missing = true; missing;) {
        missing = false;
        for (int i = threadIdx.x % 32; i < count; i += 32) {
            const u64 cell = read_cell(cells + i);
            missing |= !is_of(cell, turn);
            most = max(most, is_of(cell, turn) ? int(cell) : 0);
        }
        if (missing)
            look_again();
    }
    return warp_most(most);
}
