/* A tile of 64 keys for the query heads of its head, by tensor cores: scores, weights, sums of values.
   Arithmetic is that of `tile.py`, which says why it has the contract's bits. */
#pragma once

/* MAGIC + g * 2^(kappa - top + places), as an integer. */
ON_DEVICE int weighed(float fraction, int kappa, int top, int places)
{
    const u32 shift = (u32)(places - top) << 23, exponent = (u32)max(kappa, top + VANISHED) << 23;
    return __float_as_int(__int_as_float((u32)__float_as_int(fraction) + shift + exponent) + MAGIC);
}

/* A lane's part of a tile. The first warps have 16 keys each, a lane two of them (lane / 4 and 8 more):
   16 of each 64 columns, high and low planes, and exponents. The next have 16 columns of values. */
struct Part {
    int4 words[QUADS > 1 ? 2 : 1][2][2]; /* of 64 columns, plane, row */
    int key_exponents[2], value_exponents[2];
};

ON_DEVICE Part part_of(const i8* page, int g)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Part part = {};
#pragma unroll
    for (int row = 0; row < 2; ++row)
        if (warp < KEY_WARPS) {
            const int key = warp * 16 + lane / 4 + 8 * row;
            const i8* exponents = page + 64 * GROUPS * 4 * DIM + g * 64 + key;
#pragma unroll
            for (int quad = 0; quad < QUADS; ++quad)
#pragma unroll
                for (int plane = 0; plane < 2; ++plane)
                    part.words[quad][plane][row] = __ldcg((const int4*)(
                        page + ((plane * GROUPS + g) * 64 + key) * DIM + quad * 64 + lane % 4 * 16));
            part.key_exponents[row] = __ldcg(exponents);
            part.value_exponents[row] = __ldcg(exponents + GROUPS * 64);
        } else if (warp < KEY_WARPS + DIM / 16) {
            const int column = (warp - KEY_WARPS) * 16 + lane / 4 + 8 * row;
#pragma unroll
            for (int plane = 0; plane < 2; ++plane)
                part.words[0][plane][row] = __ldcg((const int4*)(
                    page + ((2 + plane) * GROUPS + g) * 64 * DIM + column * 64 + lane % 4 * 16));
        }
    return part;
}

/* Byte number i of 16, replaced. */
ON_DEVICE void put_byte(int4& words, int i, int byte)
{
    const int shift = i % 4 * 8, mask = ~(255 << shift), given = (byte & 255) << shift;
    words.x = i / 4 == 0 ? (words.x & mask) | given : words.x;
    words.y = i / 4 == 1 ? (words.y & mask) | given : words.y;
    words.z = i / 4 == 2 ? (words.z & mask) | given : words.z;
    words.w = i / 4 == 3 ? (words.w & mask) | given : words.w;
}

/* The new key and value, row t of a tile that was asked for before they were there. */
ON_DEVICE void put_new(Part& part, const AttentionScratch& scratch, int t)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < 2; ++row)
        if (warp * 16 + lane / 4 + 8 * row == t) {
#pragma unroll
            for (int quad = 0; quad < QUADS; ++quad) {
                part.words[quad][0][row] = ((const int4*)scratch.high[EACH])[quad * 4 + lane % 4];
                part.words[quad][1][row] = ((const int4*)scratch.low[EACH])[quad * 4 + lane % 4];
            }
            part.key_exponents[row] = scratch.new_exponents[0];
            part.value_exponents[row] = scratch.new_exponents[1];
        } else if (warp >= KEY_WARPS && warp < KEY_WARPS + DIM / 16 && lane % 4 == t / 16) {
            const int column = (warp - KEY_WARPS) * 16 + lane / 4 + 8 * row;
            put_byte(part.words[0][0][row], t % 16, scratch.value_high[column]);
            put_byte(part.words[0][1][row], t % 16, scratch.value_low[column]);
        }
}

/* A lane's 16 bytes of the second operand: a column for each head and plane, quads of 64 bytes. */
ON_DEVICE int4 operand(const i8* high, const i8* low, int width, int quad)
{
    const int lane = threadIdx.x % 32, head = lane / 8;
    const i8* plane = (lane / 4 % 2 ? low : high) + head * width + quad * 64 + lane % 4 * 16;
    return head < EACH ? *(const int4*)plane : make_int4(0, 0, 0, 0);
}

/* One key's score for a head: 2^s = g * 2^kappa, and kappa + ev, to scratch. */
ON_DEVICE void put_score(float dot, int head, int key, bool seen, int ke, int ve, AttentionScratch& scratch)
{
    const float score = dot * scratch.factor[head] * exp2_int(seen ? ke : 0);
    const float s = fminf(fmaxf(score, -16384.0f), 16384.0f), shifted = s + MAGIC;
    const int kappa = seen ? __float_as_int(shifted) : MAGIC_BITS + NONE;
    scratch.kappa[head][key] = kappa;
    scratch.epsilon[head][key] = kappa + (seen ? ve : 0);
    scratch.fraction[head][key] = exp2_fraction(s - (shifted - MAGIC));
}

/* Scores of a tile from position `start` on, by the first warps. */
ON_DEVICE void score_tile(const Part& tile, int start, int position, AttentionScratch& scratch)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = lane % 4;
    int high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
    if (warp >= KEY_WARPS)
        return;
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) {
        const int4 queries = operand(scratch.high[0], scratch.low[0], DIM, quad);
        multiply_quads(high, tile.words[quad][0][0], tile.words[quad][0][1], queries);
        multiply_quads(low, tile.words[quad][1][0], tile.words[quad][1][1], queries);
    }
    if (head < EACH)
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const int key = warp * 16 + lane / 4 + 8 * row, i = 2 * row;
            put_score(rounded_dot(high[i], high[i + 1] + low[i], low[i + 1]), head, key,
                      start + key <= position, tile.key_exponents[row], tile.value_exponents[row], scratch);
        }
}

/* Weights of a tile's keys, by a warp a head, and its state's numbers. */
ON_DEVICE void weigh_tile(AttentionScratch& scratch, int4* numbers)
{
    const int head = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= EACH)
        return;
    const int *kappa = scratch.kappa[head], *epsilon = scratch.epsilon[head];
    const int K = warp_most(max(kappa[lane], kappa[lane + 32]));
    const int E = warp_most(max(epsilon[lane], epsilon[lane + 32]));
    int mass = 0;
#pragma unroll
    for (int key = lane; key < 64; key += 32) {
        const float g = scratch.fraction[head][key];
        mass += weighed(g, kappa[key], K, 21) - MAGIC_BITS;
        const int w = weighed(g, epsilon[key], E, 14) - MAGIC_BITS;
        scratch.weight_low[head][key] = i8(w);
        scratch.weight_high[head][key] = i8(upper(w));
    }
    mass = warp_sum(mass);
    if (lane == 0)
        *numbers = make_int4(__float_as_int(float(mass)), K - MAGIC_BITS, E - MAGIC_BITS, 0);
}

/* Sums of a tile's values to the states of its heads, `apart` floats from head to head. */
ON_DEVICE void add_values(const Part& tile, const AttentionScratch& scratch, float* sums, long long apart)
{
    const int warp = threadIdx.x / 32 - KEY_WARPS, lane = threadIdx.x % 32, head = lane % 4;
    int high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
    if (warp < 0 || warp >= DIM / 16)
        return;
    const int4 weights = operand(scratch.weight_high[0], scratch.weight_low[0], 64, 0);
    multiply_quads(high, tile.words[0][0][0], tile.words[0][0][1], weights);
    multiply_quads(low, tile.words[0][1][0], tile.words[0][1][1], weights);
    if (head < EACH)
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const int column = warp * 16 + lane / 4 + 8 * row, i = 2 * row;
            const float sum = rounded_dot(high[i], high[i + 1] + low[i], low[i + 1]);
            sums[head * apart + column] = sum * 65536.0f;
        }
}
