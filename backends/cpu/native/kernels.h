/* The kernels that exist once per instruction set, behind one table.
 *
 * kernels_*.c each compile the *_body.h files for one set. Float code has one definition and one
 * order of operations, so that the sets differ in speed only. Functions that return int return 1
 * where a value left the canonical domain. */
#ifndef CORTIQ_KERNELS_H
#define CORTIQ_KERNELS_H

#include "args.h"
#include "attention.h"
#include "cortiq_native.h"

/* n channels of the rows of one sequence; see conv.c. Pointers are to the first of these channels,
 * weight, bias, ring and out as in cortiq_conv; out may be x. */
typedef struct {
    const float *x, *weight, *bias;
    float *out, *ring;
    const float *const *before; /* the taps − 1 rows before the first, NULL: zeros */
    uint8_t *faults;            /* of the rows */
    int64_t x_stride, out_stride, width;
    int32_t rows, n, taps, capacity;
    int32_t place; /* of the first row in the ring */
} conv_rows;

/* Columns `from` … from + n − 1 of the entries of one sequence; see compress.c. Pointers are to the
 * first row. */
typedef struct {
    const float *x, *gates, *bias;
    float *out, *ring;
    uint8_t *faults;
    int32_t position, rows, from, n, width, rate, parts, capacity;
} compress_rows;

/* One row or part of a row of n values; no alignment is needed, an output may be an input. */
typedef struct {
    int (*add)(const float *a, const float *b, float *out, int n);
    int (*multiply)(const float *a, const float *b, float *out, int n);
    int (*scale)(const float *a, float factor, float *out, int n);
    int (*snap)(const float *a, float *out, int n);
    int (*activation)(const float *a, const float *up, float *out, int n, int kind);
    int (*soft_cap)(const float *a, float cap, float inverse, float *out, int n);
    int (*rms_norm)(const float *x, const float *w, float inverse_n, float eps, float *out, int n);
    int (*l2_norm)(const float *x, float eps, float *out, int n);
    int (*layer_norm)(const float *x, const float *w, const float *bias, float inverse_n, float eps,
                      float *out, int n);
    int (*rope)(const float *x, const float *cos, const float *sin, float *out, int pairs,
                int width, int interleaved);
    int32_t (*quantise)(const float *x, int16_t *q, int n);
    void (*finish)(void *record, int32_t width);
    int (*softmax)(const float *x, float *out, int n);
    int (*sigmoid)(const float *x, float *out, int n);
    void (*conv)(const conv_rows *rows);
    void (*compress)(const compress_rows *rows);
    int (*weighted_sum)(const float *weights, const float *rows, float *out, int count,
                        int64_t stride, int n);
} cortiq_row_kernels;

/* Parts of a vocabulary; see tail.c. */
typedef struct {
    float (*highest)(const float *x, int n);
    int32_t (*argmax)(const float *x, int n);
    void (*exp_lanes)(const float *x, float highest, int n, int first, int count, float *lanes);
    float (*log)(float x);
    void (*digest)(const float *x, int n, uint32_t start, uint32_t words[4]);
    int (*distances)(const float *x, float highest, float *d, int n);
    void (*probabilities)(const float *d, float *p, int n);
    uint64_t (*weight)(const float *p, int n);
    void (*noisy)(const float *d, const int32_t *ids, float *out, int n, const cortiq_draw *draw);
} cortiq_tail_kernels;

/* One row and head of a recurrence; see recurrence.c. */
typedef struct {
    const float *q, *k, *alpha;
    const float *faded; /* snap(k·alpha) of the delta rule; NULL for a state-space step */
    const float *removed; /* beta of a diagonal delta rule, whose kappa is `faded`; or NULL */
    float beta;
    int32_t rows, per_channel;
    int32_t columns; /* of the block of the state */
    int64_t ahead;   /* floats to the block that is likely the next, which is asked for; 0: none */
} recurrence_row;

/* Queries of one head group against tiles; see attention.c. */
typedef struct {
    cortiq_row_kernels row;
    cortiq_tail_kernels tail;
    int (*faded)(const float *k, const float *alpha, int per_channel, float *out, int rows);
    int (*recur)(const recurrence_row *row, const float *v, float *out, float *state);
    int64_t (*probe_floats)(int64_t rounds, int64_t *operations); /* those of a round */
    void (*attend)(const attention_task *task);
    void (*merge)(partial *before, const partial *after, int32_t value_dim);
    int (*finish)(const cortiq_attend *args, partial *total, float *out, int head);
    void (*score)(const attention_task *task, const float *weights, float *scores);
    void (*choose)(const attention_task *task, const cortiq_choose *how);
} cortiq_kernels;

const cortiq_kernels *cortiq_kernels_of(int isa);

extern const cortiq_kernels cortiq_kernels_portable;
#if defined(__x86_64__)
extern const cortiq_kernels cortiq_kernels_avx2, cortiq_kernels_avxvnni, cortiq_kernels_avx512;
#elif defined(__aarch64__)
extern const cortiq_kernels cortiq_kernels_neon;
#endif

static inline void cortiq_note(uint8_t *fault) { __atomic_store_n(fault, 1, __ATOMIC_RELAXED); }
static inline void cortiq_fault(const cortiq_op *op, int32_t row) { cortiq_note(&op->faults[row]); }

/* Rows a worker takes at a time: a few pieces each, so that the last one isn't waited for long. */
static inline int32_t cortiq_grain(int32_t total, int32_t threads)
{
    int32_t grain = total / (threads * 4);
    return grain < 1 ? 1 : grain;
}

#endif
