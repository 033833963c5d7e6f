/* Products of many rows with int8 codes, a scale a row, by Hopper's tensor cores. A block has TEAMS groups
   of four warps that multiply, each the high and the low bytes of 64 rows of x by 192 rows of the weight,
   and one group that copies, as far ahead as there are stages. Blocks stay and take tiles in turn, so
   that a tile's first columns come while the one before ends. */
constexpr int TEAMS = 2, CONSUMERS = 128 * TEAMS, THREADS = CONSUMERS + 128;

#include "machine.cuh"
#include "numbers.cuh"

constexpr int DOWN = 64 * TEAMS, ACROSS = 192, DEPTH = 128, PLANE = DOWN * DEPTH, SUMS = ACROSS / 2;
constexpr int STAGE = 2 * PLANE + ACROSS * DEPTH, STAGES = 4, KEPT = 24, TAKEN = 240;

/* high, low : planes of x [rows, columns]. weight : codes [height, columns]. exponents : of x. out :
   float [rows, height]; with PARTED matrices of outputs up to `cut`, `cut2` and `height` follow one
   another; all three are even. bias, residual : read if there are any. group : rows of the output that share a flag. */
struct Arguments {
    TensorMap high, low, weight;
    const float *scale, *bias, *residual;
    float* out;
    const int* exponents;
    int* faults;
    int rows, height, columns, cut, cut2, group;
};

struct Place {
    int row, column;
};

/* Tiles in turn: BAND tiles of rows of x for each of the weight's. */
struct Turn {
    int tile, down, across;

    INLINE Turn(const Arguments& a) : tile(blockIdx.x)
    {
        down = (a.rows + DOWN - 1) / DOWN;
        across = (a.height + ACROSS - 1) / ACROSS;
    }

    INLINE bool more() const { return tile < down * across; }
    INLINE void next() { tile += gridDim.x; }

    INLINE Place place() const
    {
        const int band = tile / (BAND * across) * BAND, inner = tile - band * across;
        const int size = down - band < BAND ? down - band : BAND;
        return {(band + inner % size) * DOWN, inner / size * ACROSS};
    }
};

/* Stages in shared memory, in the order in which they are filled and read. */
struct Ring {
    i8* data;
    u64 *full, *empty;

    INLINE i8* stage(u32 n) const { return data + n % STAGES * STAGE; }
    INLINE u64* filled(u32 n) const { return full + n % STAGES; }
    INLINE u64* freed(u32 n) const { return empty + n % STAGES; }

    INLINE void release(u32 n) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(freed(n), 1);
    }
};

ON_DEVICE void copy_tiles(const Arguments& a, const Ring& ring)
{
    const int steps = (a.columns + DEPTH - 1) / DEPTH;
    u32 n = 0;
    for (Turn turn(a); turn.more(); turn.next()) {
        const Place at = turn.place();
        for (int step = 0; step < steps; ++step, ++n) {
            i8* stage = ring.stage(n);
            u64* filled = ring.filled(n);
            barrier_wait(ring.freed(n), n / STAGES & 1 ^ 1);
            barrier_expect(filled, STAGE);
            tensor_copy(stage, &a.high, step * DEPTH, at.row, filled);
            tensor_copy(stage + PLANE, &a.low, step * DEPTH, at.row, filled);
            tensor_copy(stage + 2 * PLANE, &a.weight, step * DEPTH, at.column, filled);
        }
    }
}

constexpr u32 BEYOND = 2u * (LARGEST_BITS - SMALLEST_BITS);

/* Below BEYOND where y is as it is among values of the graph: neither too small nor a fault. */
ON_DEVICE u32 beyond(float y)
{
    return 2u * (u32)__float_as_int(y) - 2u * SMALLEST_BITS;
}

/* One output; `most` is the largest of `beyond` of its sums. */
ON_DEVICE float ended(float y, float bias, float residual, u32& most)
{
    most = max(most, beyond(y));
    if (BIASED) {
        y = y + bias;
        most = max(most, beyond(y));
    }
    if (RESIDUAL) {
        y = residual + y;
        most = max(most, beyond(y));
    }
    return y;
}

/* The same where a sum may be too small, or a fault. */
ON_DEVICE float snapped_end(float y, float bias, float residual, bool& fault)
{
    fault |= outside(y);
    y = snapped(y);
    if (BIASED) {
        y = y + bias;
        fault |= outside(y);
        y = snapped(y);
    }
    if (RESIDUAL) {
        y = residual + y;
        fault |= outside(y);
        y = snapped(y);
    }
    return y;
}

/* The matrix whose outputs those of row n of the weight are among. */
struct Part {
    int start, stop;

    INLINE long long place(const Arguments& a, int row, int n) const
    {
        return (long long)start * a.rows + (long long)row * (stop - start) + n - start;
    }
};

ON_DEVICE Part part_of(const Arguments& a, int n)
{
    if (!PARTED || n >= a.cut2)
        return {PARTED ? a.cut2 : 0, a.height};
    return n >= a.cut ? Part{a.cut, a.cut2} : Part{0, a.cut};
}

ON_DEVICE float2 pair_at(const float* from)
{
    return __ldg((const float2*)from);
}

/* Ends a group's outputs, pairs of them. WHOLE : all of the tile are there, and of
   one matrix; no sum is expected to be too small, or a fault. Returns whether none was. */
template <bool WHOLE> ON_DEVICE bool end_pairs(
    const Arguments& a, const Place& at, const int (&high)[SUMS], const int (&low)[SUMS])
{
    const int lane = threadIdx.x % 32, first = at.row + threadIdx.x / 32 * 16 + lane / 4;
    const int column = at.column + lane % 4 * 2, left = a.height - column, rows[2] = {first, first + 8};
    const Part part = part_of(a, at.column);
    const long long places[2] = {part.place(a, rows[0], column), part.place(a, rows[1], column)};
    const float *scales = a.scale + column, *biases = BIASED ? a.bias + column : scales;
    float units[2];
    bool fault[2] = {false, false};
    u32 most = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        units[half] = exp2_int(WHOLE || rows[half] < a.rows ? __ldg(a.exponents + rows[half]) : 0);
    float2 scale = make_float2(0.0f, 0.0f), bias = scale;
    if (WHOLE || left > 0) {
        scale = pair_at(scales);
        bias = pair_at(biases);
    }
#pragma unroll
    for (int j = 0; j < ACROSS / 8; ++j) {
        const int here = 8 * j, ahead = j + 1 < ACROSS / 8 ? here + 8 : here;
        float2 next = scale, more = bias;
        if (WHOLE || ahead < left) {
            next = pair_at(scales + ahead);
            more = pair_at(biases + ahead);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (!WHOLE && (rows[half] >= a.rows || here >= left))
                continue;
            const int i = 4 * j + 2 * half;
            const long long place = WHOLE ? places[half] + here
                                          : part_of(a, column + here).place(a, rows[half], column + here);
            const float2 before = RESIDUAL ? pair_at(a.residual + place) : make_float2(0.0f, 0.0f);
            const float x = rounded_dot(high[i], low[i]) * scale.x * units[half];
            const float y = rounded_dot(high[i + 1], low[i + 1]) * scale.y * units[half];
            *(float2*)(a.out + place) =
                WHOLE ? make_float2(ended(x, bias.x, before.x, most), ended(y, bias.y, before.y, most))
                      : make_float2(snapped_end(x, bias.x, before.x, fault[half]),
                                    snapped_end(y, bias.y, before.y, fault[half]));
        }
        scale = next;
        bias = more;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
        if (fault[half])
            a.faults[rows[half] / a.group] = 1;
    return most < BEYOND;
}

ON_DEVICE void end_tile(const Arguments& a, const Place& at, const int (&high)[SUMS], const int (&low)[SUMS])
{
    const bool whole = at.row + DOWN <= a.rows && at.column + ACROSS <= part_of(a, at.column).stop;
    if (!whole || !end_pairs<true>(a, at, high, low))
        end_pairs<false>(a, at, high, low);
}

ON_DEVICE void multiply_all(const Arguments& a, const Ring& ring)
{
    const int steps = (a.columns + DEPTH - 1) / DEPTH, team = threadIdx.x / 128;
    int high[SUMS] = {}, low[SUMS] = {};
    u32 n = 0;
    for (Turn turn(a); turn.more(); turn.next()) {
        for (int step = 0; step < steps; ++step, ++n) {
            const i8 *rows = ring.stage(n) + team * PLANE / TEAMS, *weight = ring.stage(n) + 2 * PLANE;
            barrier_wait(ring.filled(n), n / STAGES & 1);
            products_begin();
#pragma unroll
            for (int k = 0; k < DEPTH / 32; ++k) {
                multiply_step(high, rows, weight, k, step || k);
                multiply_step(low, rows + PLANE, weight, k, step || k);
            }
            products_asked();
            products_done<1>();
            if (step)
                ring.release(n - 1);
        }
        products_done<0>();
        ring.release(n - 1);
        end_tile(a, turn.place(), high, low);
    }
}

KERNEL matmul_codes(ARGUMENTS a)
{
    SHARED_MEMORY(memory);
    u64* barriers = (u64*)(memory + STAGES * STAGE);
    const Ring ring = {memory, barriers, barriers + STAGES};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(ring.full + i, 1);
            barrier_init(ring.empty + i, CONSUMERS / 32);
        }
        barriers_are_there();
    }
    __syncthreads();
    let_next();
    if (threadIdx.x >= CONSUMERS) {
        keep_registers<KEPT>();
        if (threadIdx.x == CONSUMERS)
            copy_tiles(a, ring);
    } else {
        take_registers<TAKEN>();
        multiply_all(a, ring);
    }
}
