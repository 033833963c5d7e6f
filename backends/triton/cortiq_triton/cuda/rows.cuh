/* Quantised rows: every block computes the whole row, and each thread keeps its columns of it. */
#pragma once

constexpr int ROOM = SLOTS * 8;

/* Scratch of a norm in shared memory: the lanes of the sum, and each warp's largest magnitude. */
struct NormScratch {
    float lanes[256];
    int maxima[WARPS];
};

/* A row of floats that other blocks wrote, whose parts' largest magnitudes are known. Where `room`
   holds one plane it is used for one after the other. */
template <int K> ON_DEVICE void quantise(const float* y, const int* maxima, int count, i8* room, Row<K>& x)
{
    constexpr int FOURS = K / 4, MINE = (FOURS + CONSUMERS - 1) / CONSUMERS, SECOND = 2 * K <= ROOM ? K : 0;
    float4 value[MINE];
    int low[MINE], most = 0;
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        const int at = threadIdx.x + i * CONSUMERS;
        value[i] = at < FOURS ? __ldcg((const float4*)y + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    for (int i = threadIdx.x % 32; i < count; i += 32)
        most = max(most, __ldcg(maxima + i));
    most = warp_most(most);
    x.e = exponent_of(most);
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        const int at = threadIdx.x + i * CONSUMERS;
        const int a = quantised(value[i].x, most, x.e), b = quantised(value[i].y, most, x.e);
        const int c = quantised(value[i].z, most, x.e), d = quantised(value[i].w, most, x.e);
        low[i] = word_of(a, b, c, d);
        if (at < FOURS)
            ((int*)room)[at] = word_of(upper(a), upper(b), upper(c), upper(d));
    }
    if (!SECOND) {
        sync_consumers();
        take<K>(room, 0, 0, x);
        sync_consumers();
    }
#pragma unroll
    for (int i = 0; i < MINE; ++i)
        if (threadIdx.x + i * CONSUMERS < FOURS)
            ((int*)(room + SECOND))[threadIdx.x + i * CONSUMERS] = low[i];
    sync_consumers();
    take<K>(room, 1, SECOND, x);
    sync_consumers();
}

/* The sum of all lanes, lane i + h added to lane i for h = 128, 64, ..., by each warp. */
ON_DEVICE float fold(const float* lanes)
{
    float part[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
        part[i] = lanes[threadIdx.x % 32 + 32 * i];
#pragma unroll
    for (int half = 4; half; half /= 2)
#pragma unroll
        for (int i = 0; i < half; ++i)
            part[i] = part[i] + part[i + half];
    float sum = part[0];
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
        sum = sum + from_lane_across(sum, distance);
    return sum;
}

/* A thread's columns of a row of K: the first or the second half of a lane's terms. */
template <int K> struct Terms {
    static constexpr int MINE = ((K + 255) / 256 + 1) / 2;
    float value[MINE];

    static INLINE int column(int i)
    {
        return threadIdx.x % 256 + 256 * (threadIdx.x / 256 * MINE + i);
    }
};

/* The canonical sum of the squares of a row; the squares of second halves go through `room`. */
template <int K> ON_DEVICE float sum_of_squares(const Terms<K>& x, float* room, NormScratch& scratch)
{
    constexpr int MINE = Terms<K>::MINE;
    static_assert(MINE * 1024 <= ROOM && 2 * K <= ROOM, "a norm's row");
    const int lane = threadIdx.x % 256;
    if (threadIdx.x >= 256)
#pragma unroll
        for (int i = 0; i < MINE; ++i)
            room[i * 256 + lane] = x.value[i] * x.value[i];
    sync_consumers();
    if (threadIdx.x < 256) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < MINE; ++i)
            sum = sum + x.value[i] * x.value[i];
#pragma unroll
        for (int i = 0; i < MINE; ++i)
            sum = sum + room[i * 256 + lane];
        scratch.lanes[lane] = sum;
    }
    sync_consumers();
    return fold(scratch.lanes);
}

/* RMSNorm of x, whose weight is the ring's next stage, quantised. Faults are flagged. */
template <int K> ON_DEVICE void norm_quantise(const float* x, Ring& ring, float eps, float one_over_n,
                                              i8* room, NormScratch& scratch, int* faults, Row<K>& out)
{
    Terms<K> terms;
#pragma unroll
    for (int i = 0; i < Terms<K>::MINE; ++i)
        terms.value[i] = Terms<K>::column(i) < K ? __ldcg(x + Terms<K>::column(i)) : 0.0f;
    const float root = 1.0f / sqrtf(sum_of_squares<K>(terms, (float*)room, scratch) * one_over_n + eps);
    const float* weight = (const float*)ring.wait_full(ring.number);
    int most = 0;
    bool fault = false;
#pragma unroll
    for (int i = 0; i < Terms<K>::MINE; ++i) {
        const float y = Terms<K>::column(i) < K ? terms.value[i] * root * weight[Terms<K>::column(i)] : 0.0f;
        fault |= outside(y);
        terms.value[i] = snapped(y);
        most = max(most, magnitude(terms.value[i]));
    }
    ring.release(ring.number++, WARPS);
    if (fault)
        *faults = 1;
    most = warp_most(most);
    if (threadIdx.x % 32 == 0)
        scratch.maxima[threadIdx.x / 32] = most;
    sync_consumers();
    most = warp_most(scratch.maxima[threadIdx.x % WARPS]);
    out.e = exponent_of(most);
#pragma unroll
    for (int i = 0; i < Terms<K>::MINE; ++i) {
        const int q = quantised(terms.value[i], most, out.e), at = Terms<K>::column(i);
        if (at < K) {
            room[at] = i8(upper(q));
            room[K + at] = i8(q);
        }
    }
    sync_consumers();
    take<K>(room, 0, K, out);
    sync_consumers();
}
