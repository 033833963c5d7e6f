/* What each op's `args` points to, for all ops but the matrix products.
 *
 * Strides are in floats, from one row of the batch to the next. `record`s are those of
 * cortiq_native.h: a row of the batch has `inner` of them, one after the other. Pointers that may
 * be NULL say so. cortiq_cpu/arguments.py mirrors this file. */
#ifndef CORTIQ_ARGS_H
#define CORTIQ_ARGS_H

#include "cortiq_kernel.h"

#include <stdint.h>

/* Kinds that take the header's spare numbers. */
#define CORTIQ_HEADS CORTIQ_SPARE_1
#define CORTIQ_LOG_SUM_EXP CORTIQ_SPARE_2
#define CORTIQ_SCALED CORTIQ_SPARE_3
#define CORTIQ_CHOOSE_BLOCKS CORTIQ_SPARE_4
#define CORTIQ_RECALL CORTIQ_SPARE_5

/* ADD, MULTIPLY: a and b. BIAS: b is the vector (b_stride is not read). SCALE: a·factor.
 * ACTIVATION: function(a), with b (may be NULL) then multiply by b. SOFT_CAP: factor is C, inverse
 * RN(1/C). Rows are `inner` parts of `width` values. `record` (may be NULL) also takes the
 * result's quantised rows; then `out` may be NULL. `out` may be a or b. */
typedef struct {
    const float *a, *b;
    float *out;
    void *record;
    int64_t a_stride, b_stride, out_stride;
    int32_t inner, width;
    int32_t function; /* of ACTIVATION: silu gelu_tanh gelu exp sigmoid tanh softplus … */
    float factor, inverse;
} cortiq_elementwise;

/* SCALED: `inner` parts of `width` values, each part in the way `how` says:
 *     BY_VALUE      x·factor[i]                    a vector over the last axis
 *     BY_PART       x·factor[part]                 a vector over the parts
 *     BY_ONE        x·factor[0]
 *     BY_ROW        x·factor[row][part]            factors of the row itself (factor_stride)
 *     BY_EXPERT     x·factor[index[row][part]]
 *     PLUS_EXPERT   x + factor[index[row][part]][i]
 *     PLUS          x + low
 *     BETWEEN       bounded by low and high (infinite for none), exact
 *     SOFTMAX_OF    softmax of each part
 *     EVERY         values first, first + step, … of parts of `from_width`; exact
 *     STOCHASTIC    numerics.streams.sinkhorn of a matrix of `step` rows: `first` rounds, eps low
 *     LISTED        x where factor[index[row]] lists the value, `step` of them; else low
 *     KEYS          numerics.key_blocks.list_keys of the position index[row], every `step`; int32
 *     DIVIDED       x and out are int32: x / step
 *     PERMUTED      x[index[i]], the same index for every part; exact
 *     SELECTED      x[factor[i]], low where that is none of `from_width`; exact
 *     STACKED       int32: x[row]·step + index[row][i], or + i where there is no index
 *     WINDOWS       numerics.key_blocks.window_blocks of the `from_width` keys x, int32, of a row at
 *                   the position index[row], windows of `step`
 * Of the others, index has `inner` values a row. */
enum {
    CORTIQ_BY_VALUE, CORTIQ_BY_PART, CORTIQ_BY_ONE, CORTIQ_BY_ROW, CORTIQ_BY_EXPERT,
    CORTIQ_PLUS_EXPERT, CORTIQ_PLUS, CORTIQ_BETWEEN, CORTIQ_SOFTMAX_OF, CORTIQ_EVERY,
    CORTIQ_STOCHASTIC, CORTIQ_LISTED, CORTIQ_KEYS, CORTIQ_DIVIDED, CORTIQ_PERMUTED,
    CORTIQ_SELECTED, CORTIQ_STACKED, CORTIQ_WINDOWS
};
typedef struct {
    const float *x, *factor;
    const int32_t *index;
    float *out;
    int64_t x_stride, factor_stride, out_stride;
    int32_t inner, width, how, first, from_width, step;
    float low, high;
} cortiq_scaled;

/* RMS_NORM, LAYER_NORM, L2_NORM, with what may surround an RMS norm in one op:
 *     y = x; if `after`: y = rms_norm(y, after_weight, after_eps);
 *     if residual: y = residual + y, stored to `sum` (may be the residual itself);
 *     out = norm(y, weight, bias, eps), stored where out isn't NULL, quantised to `record` where
 *     that isn't NULL. With neither out nor record there is no second norm.
 * `inverse_width` is RN(1/width). Weights hold the whole factor (offset + w), or are NULL for
 * RMS_NORM without one; bias may be NULL. */
typedef struct {
    const float *x, *residual, *weight, *bias, *after_weight;
    float *sum, *out;
    void *record;
    int64_t x_stride, residual_stride, sum_stride, out_stride;
    int32_t inner, width;
    int32_t after; /* 1: y is normed before the residual is added */
    float inverse_width, eps, after_eps;
} cortiq_norm;

/* QUANTISE. */
typedef struct {
    const float *x;
    void *record;
    int64_t x_stride;
    int32_t inner, width;
} cortiq_quantise;

/* ROPE: cos and sin have `pairs` values for each row of the batch. */
typedef struct {
    const float *x, *cos, *sin;
    float *out;
    int64_t x_stride, out_stride;
    int32_t heads, width, pairs;
    int32_t interleaved;
} cortiq_rope;

/* Rows start … stop − 1 of the batch belong to one sequence; the first stands at `position`. */
typedef struct {
    int32_t start, stop, position;
} cortiq_segment;

/* The rows of a KVRows slot. pages[s] is the page table of segment s's sequence: page i holds
 * positions i·page_tiles·64 …; cortiq_kv_page_bytes gives its size; pages are 64-byte aligned.
 * Inside a page lie, for each tile of 64 positions and each head, one block: keys as int16
 * [key_dim/2][64][2], values as int16 [32][value_dim][2] (position pairs), then int8 exponents of
 * the 64 keys and of the 64 values. key_dim is padded to even, value_dim to 16s; padding is 0. With
 * a value_dim of 0 there are keys only, and nothing is known of the values' exponents. */
typedef struct {
    uint8_t *const *const *pages;
    const cortiq_segment *segments;
    const int32_t *segment_count;
    int32_t heads, key_dim, value_dim, page_tiles;
} cortiq_kv;

/* STORE_KV: records of keys [rows, heads] of width key_dim, and of values (NULL: keys only). */
typedef struct {
    cortiq_kv kv;
    const void *keys, *values;
} cortiq_store_kv;

/* HEADS: several groups of heads of a projection on their way into attention, in one op:
 * for every head [rms_norm with weight], [rope], quantise, and to the cache or to records. */
enum { CORTIQ_TO_RECORD, CORTIQ_TO_KEYS, CORTIQ_TO_VALUES };
typedef struct {
    const float *x;      /* [rows][heads][width] */
    const float *weight; /* of the norm; NULL with normed: a norm without weight */
    const float *cos, *sin; /* pairs values a row */
    void *record;           /* TO_RECORD: [rows][heads]; its sums are not filled in */
    int64_t x_stride;
    int32_t heads, width, pairs; /* pairs 0: no rope */
    int32_t interleaved, normed, target;
    float inverse_width, eps;
} cortiq_heads_part;

typedef struct {
    cortiq_kv kv; /* read only if a part goes to the cache */
    const cortiq_heads_part *parts;
    int32_t count;
} cortiq_heads;

/* ATTEND: q are records [rows, heads] of width key_dim (sums not needed). `factor`, `cap`,
 * `inverse_cap` are numerics.attention.scoring's. window 0: all. sinks (may be NULL) [heads].
 * out [rows][heads][value_dim]; record (may be NULL) takes each row of heads·value_dim quantised;
 * then out may not be NULL either. workspace of cortiq_attend_workspace bytes.
 * last (NULL: a row's own position) [rows]: the last key a row sees, ascending within a sequence;
 * windows count back from its own position.
 * chosen (NULL: all keys are seen): blocks [rows][sets][chosen_count]; of its visible keys j a head
 * sees those whose j / block its set h / (heads / sets) names.
 * mass (NULL: not wanted) [rows][heads]: the logarithm of the sum of e^score.
 * steep (NULL: none) [heads]: numerics.attention.steepness, by which scores fall with distance. */
typedef struct {
    cortiq_kv kv;
    const void *q;
    const float *sinks;
    float *out;
    void *record;
    void *workspace;
    int64_t out_stride;
    int64_t workspace_bytes;
    int32_t heads, window;
    float factor, cap, inverse_cap;
    const int32_t *chosen;
    int32_t sets, chosen_count, block;
    const int32_t *last;
    float *mass;
    const float *steep;
} cortiq_attend;

/* CHOOSE_BLOCKS (numerics.key_blocks): q are records [rows, heads] of width key_dim (sums not needed),
 * kv has one head and is read for its keys; out [rows][heads][top], ascending. */
typedef struct {
    cortiq_kv kv;
    const void *q;
    int32_t *out;
    int32_t heads, block, top, local;
} cortiq_choose;

/* CHOOSE_KEYS (numerics.key_blocks): as CHOOSE_BLOCKS, with weights [rows][heads], at most
 * MOST_INDEX_HEADS heads; out [rows][top], ascending. */
enum { MOST_INDEX_HEADS = 256 };
typedef struct {
    cortiq_kv kv;
    const void *q;
    const float *weights;
    int32_t *out;
    int32_t heads, top, every;
} cortiq_choose_keys;

/* RECALL: out [rows][heads][key_dim] takes the keys of each row's position, as snap(q·2^e). Pages
 * of all positions are there; what lies at one that was never written is not known, but finite. */
typedef struct {
    cortiq_kv kv;
    float *out;
    int64_t out_stride;
} cortiq_recall;

/* CAUSAL_CONV: weight [⌈width / CORTIQ_TAP_BLOCK⌉][taps][CORTIQ_TAP_BLOCK], oldest tap first, what
 * is beyond the width 0; bias may be NULL; out may be x. rings[s] holds, for segment s's sequence,
 * the row of position p at index p mod capacities[s] (at least taps − 1). */
enum { CORTIQ_TAP_BLOCK = 16, CORTIQ_MOST_TAPS = 64 };
typedef struct {
    const float *x, *weight, *bias;
    float *out;
    float *const *rings;
    const int32_t *capacities;
    const cortiq_segment *segments;
    const int32_t *segment_count;
    int64_t x_stride, out_stride;
    int32_t width, taps;
} cortiq_conv;

/* HASH_NGRAMS (numerics.ngrams): multipliers [size], heights [heads], out [rows][heads]. rings as
 * those of CAUSAL_CONV, of token + 1 as floats and at least size - 1 of them. */
typedef struct {
    const int32_t *tokens;
    const uint64_t *multipliers;
    const int32_t *heights;
    int32_t *out;
    float *const *rings;
    const int32_t *capacities;
    const cortiq_segment *segments;
    const int32_t *segment_count;
    int32_t size, heads, end;
} cortiq_hash;

/* COMPRESS (numerics.compression): x and gates [rows][parts·width], bias [rate][parts·width]. rings
 * as those of CAUSAL_CONV, of rows [x | gates and bias] and at least parts·rate of them. */
typedef struct {
    const float *x, *gates, *bias;
    float *out;
    float *const *rings;
    const int32_t *capacities;
    const cortiq_segment *segments;
    const int32_t *segment_count;
    int32_t width, rate, parts;
} cortiq_compress;

/* GATED_DELTA: a head's state S is [state_rows][columns]. In memory its columns are cut into blocks
 * of CORTIQ_COLUMNS (the last may have fewer), one after the other, each row by row, and rows are
 * in the order in which a canonical sum meets them: those of i + 16·m (+ 256·n) for i = 0 … 15, of
 * an i those of m = 0 8 4 12 2 10 6 14 1 9 5 13 3 11 7 15, as many as there are. Head h takes q and
 * k of group h / (heads / groups), [rows][groups][state_rows]; v and out are [rows][heads][columns]; alpha
 * [rows][heads], or [rows][heads][state_rows] per_channel; beta [rows][heads]. states[s] is the
 * state of segment s's sequence, all heads; with `keep`, behind it come two marks, which take the
 * state at the last two lengths m that CORTIQ_MARK divides, in turn by m / CORTIQ_MARK % 2, and
 * then CORTIQ_KEPT rows, each q k v alpha beta of position p at p % CORTIQ_KEPT, those since the mark
 * before the last.
 *     d = snap((v − Sᵀ·snap(k·alpha))·beta) with `delta`, else snap(beta·v);
 *     S = snap(S·alpha + k·dᵀ); out = snap(Sᵀq)
 * With kappa, [rows][heads][state_rows] as beta is then and alpha, per_channel; a kept row ends with it:
 *     m = snap(Sᵀ·kappa); S = snap((S·alpha − beta·mᵀ) + k·vᵀ); out = snap(Sᵀq) */
typedef struct {
    const float *q, *k, *v, *alpha, *beta, *kappa; /* kappa may be NULL */
    float *out;
    float *const *states;
    const cortiq_segment *segments;
    const int32_t *segment_count;
    int32_t heads, groups, state_rows, columns, per_channel, delta, keep;
} cortiq_recurrence;
enum { CORTIQ_MARK = 64, CORTIQ_KEPT = 128, CORTIQ_COLUMNS = 32 };

/* ROUTE: index and weights have top_k values a row, out of `experts` scores. */
enum { CORTIQ_SOFTMAX, CORTIQ_SIGMOID, CORTIQ_SOFTMAX_TOPK, CORTIQ_SQRT_SOFTPLUS,
       CORTIQ_SPARSE_MIXER };
typedef struct {
    const float *scores, *bias, *mask; /* bias and mask may be NULL */
    int32_t *index;
    float *weights;
    int64_t scores_stride;
    int32_t experts, top_k, router; /* CORTIQ_SOFTMAX … */
    int32_t renormalise;
    int32_t groups, kept_groups; /* groups up to 1: none */
    int32_t best_two; /* a group's score is the sum of its two best values, not its best key */
    float floor, scaling;
    float tau; /* 0: all of the chosen experts are kept */
    float margin; /* of a sparse mixer */
} cortiq_route;

/* COMBINE_EXPERTS: weights [rows][count], outputs [rows][count][width]. */
typedef struct {
    const float *weights, *outputs;
    float *out;
    int64_t outputs_stride, out_stride;
    int32_t count, width;
} cortiq_combine;

/* COPY: rows of `width` floats; row i comes from row `from[i]` where that isn't NULL. `snapped`
 * passes every value through snap (values a caller supplies). */
typedef struct {
    const float *x;
    float *out;
    const int32_t *from;
    int64_t x_stride, out_stride;
    int32_t width, snapped;
} cortiq_copy;

/* What a row wants of logits (or of any value of `width` floats). For each of the op's rows, row
 * `from[i]` of x (row i if from is NULL) is looked at.
 *     ARGMAX       index[i]
 *     TOP          index[i·count …], values[i·count …]
 *     LOG_SUM_EXP  values[i]
 *     DIGEST       words[4·i …]
 *     DRAW         index[i], with draws[i]
 * workspace of cortiq_tail_workspace bytes. */
typedef struct {
    const float *bias; /* bias_count values and ids; adjusted: distinct ids */
    const int32_t *bias_ids;
    const int32_t *seen_ids; /* distinct ids of the history and how often each occurs */
    const int32_t *seen_counts;
    const uint8_t *mask; /* bit id % 8 of byte id / 8: whether an id may be drawn; NULL: all */
    int32_t bias_count, seen_count;
    float inverse_temperature; /* RN(1/T); 0: the argmax */
    float repetition, inverse_repetition, presence, frequency; /* 1, 1, 0, 0: off */
    int32_t top_k;        /* 0: all */
    uint32_t top_p, min_p; /* rint(share·2^24); top_p_on says whether top_p counts */
    int32_t top_p_on;
    uint32_t seed_low, seed_high, choice, position;
} cortiq_draw;

typedef struct {
    const float *x;
    const int32_t *from;
    const cortiq_draw *draws;
    int32_t *index;
    float *values;
    uint32_t *words;
    void *workspace;
    int64_t x_stride;
    int32_t width, count;
} cortiq_tail;

/* PACKAGE: the kernel of another package, with the call that it is given; `whole`: one thread calls
 * it once, with all rows. */
typedef struct {
    cortiq_kernel_function function;
    cortiq_kernel_call call;
    int32_t whole;
} cortiq_package;

/* PACKAGE_STEP: the kernel of another package whose state each row replaces. states[s] is the state
 * of segment s's sequence, `size` floats; with `keep`, behind it come two marks and CORTIQ_KEPT rows
 * as those of GATED_DELTA, each all inputs one after the other. */
typedef struct {
    cortiq_step_function function;
    cortiq_kernel_call call;
    float *const *states;
    const cortiq_segment *segments;
    const int32_t *segment_count;
    int64_t size;
    int32_t keep;
} cortiq_package_step;

#endif
