/* Heads of one row on their way into attention, and what attention keeps in shared memory. */
#pragma once

constexpr int EACH = HEADS / GROUPS, HALF = DIM / 2, QUADS = DIM / 64, KEY_WARPS = 4;
static_assert(EACH <= 4 && DIM % 64 == 0 && DIM <= 128, "heads of this shape");

/* Where the rows of a sequence lie, and the states of tiles in between: `sums` [HEADS][most][DIM],
   `numbers` [HEADS][most] of mass, its exponent, and that of the sums. */
struct Keys {
    const float *cos, *sin;
    const int *positions, *owners;
    const long long* table;
    float* sums;
    int4* numbers;
    u32* counters;
    int pages, most;
};

/* Planes of queries, and last of the new key; of weights; of the new value. Exponents of the new two. */
struct alignas(16) AttentionScratch {
    i8 high[EACH + 1][DIM], low[EACH + 1][DIM], weight_high[EACH][64], weight_low[EACH][64];
    i8 value_high[DIM], value_low[DIM];
    int new_exponents[2];
    float factor[EACH], fraction[EACH][64];
    int kappa[EACH][64], epsilon[EACH][64], maxima[EACH * DIM / 32];
    u32 came;
};

/* Where planes of a head go: columns `across` bytes apart. */
struct Planes {
    i8 *high, *low;
    int across;
};

/* A head of DIM floats by a warp, turned by angles if there are any, quantised to one or two places.
   Returns the exponent; faults are flagged. */
ON_DEVICE int store_head(const float* x, const float* cos, const float* sin, Planes to, Planes too,
                         int* faults)
{
    const int lane = threadIdx.x % 32;
    float a[HALF / 32], b[HALF / 32];
    int most = 0;
#pragma unroll
    for (int i = 0; i < HALF / 32; ++i) {
        const int pair = lane + 32 * i;
        a[i] = __ldcg(x + pair);
        b[i] = __ldcg(x + pair + HALF);
        if (cos) {
            const float c = cos[pair], s = sin[pair];
            const float first = a[i] * c - b[i] * s, second = b[i] * c + a[i] * s;
            if (outside(first) || outside(second))
                *faults = 1;
            a[i] = snapped(first);
            b[i] = snapped(second);
        }
        most = max(most, max(magnitude(a[i]), magnitude(b[i])));
    }
    most = warp_most(most);
    const int e = exponent_of(most);
#pragma unroll
    for (int i = 0; i < HALF / 32; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int q = quantised(j ? b[i] : a[i], most, e), column = lane + 32 * i + j * HALF;
            to.high[column * to.across] = i8(upper(q));
            to.low[column * to.across] = i8(q);
            if (too.high) {
                too.high[column * too.across] = i8(upper(q));
                too.low[column * too.across] = i8(q);
            }
        }
    return e;
}

/* The queries of a key's head to scratch, by warps 0 ...; with `page`, its new key and value to scratch
   and to their row of that page, by the next two. */
ON_DEVICE void store_heads(const float* x, int g, const Keys& keys, int position, float factor, i8* page,
                           AttentionScratch& scratch, int* faults)
{
    const int warp = threadIdx.x / 32, t = position % 64;
    const float *cos = keys.cos + (long long)position * HALF, *sin = keys.sin + (long long)position * HALF;
    i8* exponents = page + 64 * GROUPS * 4 * DIM;
    if (warp < EACH) {
        const int e = store_head(x + (g * EACH + warp) * DIM, cos, sin,
                                 {scratch.high[warp], scratch.low[warp], 1}, {nullptr, nullptr, 0}, faults);
        scratch.factor[warp] = exp2_int(e + 16) * factor;
    } else if (warp == EACH && page) {
        i8* to = page + (g * 64 + t) * DIM;
        const int e = store_head(x + (HEADS + g) * DIM, cos, sin, {scratch.high[EACH], scratch.low[EACH], 1},
                                 {to, to + GROUPS * 64 * DIM, 1}, faults);
        exponents[g * 64 + t] = i8(scratch.new_exponents[0] = e);
    } else if (warp == EACH + 1 && page) {
        i8* to = page + 2 * GROUPS * 64 * DIM + g * DIM * 64 + t;
        const int e = store_head(x + (HEADS + GROUPS + g) * DIM, nullptr, nullptr,
                                 {scratch.value_high, scratch.value_low, 1},
                                 {to, to + GROUPS * 64 * DIM, 64}, faults);
        exponents[(GROUPS + g) * 64 + t] = i8(scratch.new_exponents[1] = e);
    }
}
