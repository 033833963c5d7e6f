/* Kernels of other packages for the CPU backend: docs/writing-a-backend.md, "A kernel for another
 * backend". A kernel is a function of this type, given to `cortiq_cpu.NativeKernel`:
 *
 *     void acme_norm(const cortiq_kernel_call *call, uint8_t *faults, int32_t start, int32_t stop);
 *
 * It computes rows start … stop − 1 of the outputs. Threads call it at once for other rows, so a row
 * of the outputs may depend on that row of the inputs, the weights and the constants only. Where a
 * value leaves the canonical domain, faults[row] is set to 1. All float arithmetic is that of
 * docs/NUMERICS.md: compile with -ffp-contract=off and without -ffast-math.
 */
#ifndef CORTIQ_KERNEL_H
#define CORTIQ_KERNEL_H

#include <stdint.h>
#include <string.h>

#define CORTIQ_KERNEL_VERSION 1

/* A value of the graph: float or int32_t, `count` of them a row, rows `stride` apart. */
typedef struct {
    void *data;
    int64_t stride, count;
} cortiq_kernel_rows;

/* A weight as floats; NULL and 0 where the node has none in this role. */
typedef struct {
    const float *data;
    int64_t count;
} cortiq_kernel_vector;

/* Inputs and outputs in the node's order, weights in the order of the operator's `weight_shapes`;
 * `constants` is what `NativeKernel.constants` made of the operator, or NULL. */
typedef struct {
    int32_t version; /* CORTIQ_KERNEL_VERSION of the backend */
    int32_t input_count, output_count, weight_count;
    const cortiq_kernel_rows *inputs, *outputs;
    const cortiq_kernel_vector *weights;
    const void *constants;
} cortiq_kernel_call;

typedef void (*cortiq_kernel_function)(const cortiq_kernel_call *call, uint8_t *faults,
                                       int32_t start, int32_t stop);

/* A kernel with a state (`NativeKernel(steps=True)`): computes one row, and makes of the state what it
 * is behind it. `state` has the floats of the operator's `Recurrent` slot, all zeros before the first
 * row. Rows of a sequence come in order, those of several sequences at once from several threads;
 * `position` is the row's own. *fault is set to 1 where a value leaves the canonical domain. */
typedef void (*cortiq_step_function)(const cortiq_kernel_call *call, float *state, uint8_t *fault,
                                     int32_t row, int32_t position);

/* The first value of a row. */
static inline const float *cortiq_kernel_input(const cortiq_kernel_call *call, int32_t which,
                                               int32_t row)
{
    return (const float *)call->inputs[which].data + row * call->inputs[which].stride;
}

static inline float *cortiq_kernel_output(const cortiq_kernel_call *call, int32_t which,
                                          int32_t row)
{
    return (float *)call->outputs[which].data + row * call->outputs[which].stride;
}

/* `snap` (NUMERICS.md, section 2): what every kernel passes its results through. */
static inline float cortiq_kernel_snap(float y, uint8_t *fault)
{
    uint32_t magnitude;
    memcpy(&magnitude, &y, sizeof magnitude);
    magnitude &= 0x7fffffffu;
    if (magnitude >= 0x58800000u) { /* 2^50, infinities and NaN */
        *fault = 1;
        return 0.0f;
    }
    return magnitude >= 0x2b800000u ? y : 0.0f; /* 2^-40 */
}

/* `canonical_sum`: the one written order of a float sum. */
static inline float cortiq_kernel_sum(const float *x, int64_t count)
{
    float lanes[256] = {0};
    for (int64_t i = 0; i < count; i++) lanes[i % 256] += x[i];
    for (int half = 128; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

#endif
