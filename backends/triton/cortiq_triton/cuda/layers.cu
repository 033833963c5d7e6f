/* Decoder layers of one row in one launch: as many blocks as the machine holds, one a processor,
   which wait for one another between products. */
constexpr int WARPS = 16, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32;

#include "machine.cuh"
#include "numbers.cuh"
#include "products.cuh"
#include "rows.cuh"
#include "heads.cuh"
#include "tiles.cuh"
#include "attention.cuh"

constexpr int QUERIES = HEADS * DIM, OTHERS = 2 * GROUPS * DIM;

/* Weights of a layer: codes [rows, columns], a scale a row. keys : of keys, then of values. */
struct Layer {
    const float *norm, *mlp_norm;
    const i8 *queries, *keys, *output, *gates, *ups, *down;
    const float *query_scale, *key_scale, *output_scale, *gate_scale, *up_scale, *down_scale;
    long long slot;
    float eps, mlp_eps, factor, unused;
};

/* x : the row that comes in; out : the one that leaves. Between : what blocks hand to one another.
   head : a last product, of the row normalised by `norm`, to `logits`; null for none. */
struct Arguments {
    const Layer* layers;
    const float *x, *norm, *head_scale;
    const i8* head;
    float *out, *middle, *heads, *attended, *gated, *logits;
    int *largest, *gated_largest, *faults;
    u32* counters;
    Keys keys;
    int count, vocabulary;
    float eps, one_over_n;
};

/* A product's result, as a value of the graph. */
ON_DEVICE float value_of(float dot, float scale, int e, bool& fault)
{
    const float y = (dot * scale) * exp2_int(e);
    fault |= outside(y);
    return snapped(y);
}

/* Added to the residual; or, where there is none, stored. */
struct Store {
    float* out;
    const float* residual;
    int* faults;
    int e;

    INLINE void operator()(int row, float dot, float scale) const
    {
        bool fault = false;
        float y = value_of(dot, scale, e, fault);
        if (residual) {
            y = __ldcg(residual + row) + y;
            fault |= outside(y);
            y = snapped(y);
        }
        out[row] = y;
        if (fault)
            *faults = 1;
    }
};

/* silu(gate) * up, and the largest magnitude that a thread saw. */
struct Gate {
    float* out;
    int *faults, *most;
    int e;

    INLINE void operator()(int pair, float2 dots, float2 scales) const
    {
        bool fault = false;
        const float gate = value_of(dots.x, scales.x, e, fault), up = value_of(dots.y, scales.y, e, fault);
        const float a = silu(gate), y = snapped(a) * up;
        fault |= outside(a) || outside(y);
        out[pair] = snapped(y);
        *most = max(*most, magnitude(snapped(y)));
        if (fault)
            *faults = 1;
    }
};

/* All that is read of the weights, in order: a norm's weight, then products. */
ON_DEVICE void bring_all(const Arguments& given, Ring ring)
{
    for (int i = 0; i < given.count; ++i) {
        const Layer& l = given.layers[i];
        ring.copy(ring.claim(4 * HIDDEN), l.norm, 4 * HIDDEN);
        bring_rows<HIDDEN>(ring, l.queries, l.keys, l.query_scale, l.key_scale, QUERIES, QUERIES + OTHERS);
        bring_rows<QUERIES>(ring, l.output, l.output, l.output_scale, l.output_scale, HIDDEN, HIDDEN);
        ring.copy(ring.claim(4 * HIDDEN), l.mlp_norm, 4 * HIDDEN);
        bring_pairs<HIDDEN>(ring, l.gates, l.ups, l.gate_scale, l.up_scale, WIDE);
        bring_rows<WIDE>(ring, l.down, l.down, l.down_scale, l.down_scale, HIDDEN, HIDDEN);
    }
    if (given.head) {
        const int rows = given.vocabulary;
        ring.copy(ring.claim(4 * HIDDEN), given.norm, 4 * HIDDEN);
        bring_rows<HIDDEN>(ring, given.head, given.head, given.head_scale, given.head_scale, rows, rows);
    }
}

/* What the consumers of a block share. */
struct Inner {
    int2* parts;
    NormScratch& scratch;
    Layer* known;
    const Sight& sight;
};

/* The attention half of a layer: x to given.middle. */
ON_DEVICE void attention_half(const Arguments& given, const Layer& l, const float* x, Ring& ring,
                              u32& passed, const Inner& inner)
{
    {
        Row<HIDDEN> row;
        norm_quantise<HIDDEN>(x, ring, l.eps, given.one_over_n, (i8*)inner.parts, inner.scratch,
                              given.faults, row);
        const Store end = {given.heads, nullptr, given.faults, row.e};
        multiply_rows<HIDDEN>(ring, row, inner.parts, QUERIES + OTHERS, end);
        ask_for_tile(inner.sight.first, l.slot);
    }
    sync_grid(given.counters, passed);
    attend(given.heads, given.keys, inner.sight, l.slot, l.factor, given.attended, given.largest,
           *(AttentionScratch*)inner.parts, given.faults);
    sync_grid(given.counters, passed);
    Row<QUERIES> row;
    quantise<QUERIES>(given.attended, given.largest, HEADS, (i8*)inner.parts, row);
    const Store end = {given.middle, x, given.faults, row.e};
    multiply_rows<QUERIES>(ring, row, inner.parts, HIDDEN, end);
    sync_grid(given.counters, passed);
}

/* Words of a layer, from the device's memory to a block's. */
ON_DEVICE void copy_layer(const Layer* from, Layer* to)
{
    const int word = threadIdx.x % 32;
    if (word < int(sizeof(Layer) / 8))
        ((long long*)to)[word] = ((const long long*)from)[word];
}

/* The other half: given.middle to given.out; the last warp brings the next layer's words. */
ON_DEVICE void mlp_half(const Arguments& given, const Layer& l, const Layer* coming, Layer* next,
                        Ring& ring, u32& passed, const Inner& inner)
{
    {
        Row<HIDDEN> row;
        norm_quantise<HIDDEN>(given.middle, ring, l.mlp_eps, given.one_over_n, (i8*)inner.parts,
                              inner.scratch, given.faults, row);
        if (coming && threadIdx.x / 32 == WARPS - 1)
            copy_layer(coming, next);
        int most = 0;
        const Gate end = {given.gated, given.faults, &most, row.e};
        multiply_pairs<HIDDEN>(ring, row, inner.parts, WIDE, end);
        most = warp_most(most);
        if (threadIdx.x % 32 == 0)
            inner.scratch.maxima[threadIdx.x / 32] = most;
        sync_consumers();
        if (threadIdx.x < 32)
            most = warp_most(inner.scratch.maxima[threadIdx.x % WARPS]);
        if (threadIdx.x == 0)
            given.gated_largest[blockIdx.x] = most;
    }
    sync_grid(given.counters, passed);
    Row<WIDE> row;
    quantise<WIDE>(given.gated, given.gated_largest, gridDim.x, (i8*)inner.parts, row);
    const Store end = {given.out, given.middle, given.faults, row.e};
    multiply_rows<WIDE>(ring, row, inner.parts, HIDDEN, end);
    sync_grid(given.counters, passed);
}

ON_DEVICE void compute_all(const Arguments& given, Ring ring, const Inner& inner)
{
    u32 passed = 0;
    for (int i = 0; i < given.count; ++i) {
        const Layer &l = inner.known[i % 2], *coming = i + 1 < given.count ? given.layers + i + 1 : nullptr;
        attention_half(given, l, i ? given.out : given.x, ring, passed, inner);
        mlp_half(given, l, coming, inner.known + (i + 1) % 2, ring, passed, inner);
    }
    if (given.head) {
        Row<HIDDEN> row;
        norm_quantise<HIDDEN>(given.out, ring, given.eps, given.one_over_n, (i8*)inner.parts,
                              inner.scratch, given.faults, row);
        const Store end = {given.logits, nullptr, given.faults, row.e};
        multiply_rows<HIDDEN>(ring, row, inner.parts, given.vocabulary, end);
    }
    if (threadIdx.x == 0 && ordered_add(given.counters + 1) + 1 == gridDim.x)
        given.counters[0] = given.counters[1] = 0;
}

/* Shared memory: stages; room for parts of dots, planes of rows and attention's scratch, one after the
   other; scratch of norms; words of this layer and the next; what is known of the row; barriers. */
KERNEL layers(ARGUMENTS given)
{
    SHARED_MEMORY(memory);
    int2* parts = (int2*)(memory + STAGES * STAGE);
    NormScratch& scratch = *(NormScratch*)(parts + SLOTS);
    Layer* known = (Layer*)(&scratch + 1);
    Sight* sight = (Sight*)(known + 2);
    u64* barriers = (u64*)(sight + 1);
    static_assert(sizeof(AttentionScratch) <= SLOTS * sizeof(int2), "room for attention");
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(barriers + i, 1);
            barrier_init(barriers + STAGES + i, ARRIVALS);
        }
        barriers_are_there();
        *sight = sight_of(given.keys);
    }
    if (threadIdx.x < 32)
        copy_layer(given.layers, known);
    __syncthreads();
    const Ring ring = {memory, barriers, barriers + STAGES, 0};
    if (threadIdx.x < CONSUMERS)
        compute_all(given, ring, {parts, scratch, known, *sight});
    else if (threadIdx.x == CONSUMERS)
        bring_all(given, ring);
}
