/* PACKAGE, PACKAGE_STEP: rows through the kernel of another package. */
#include "args.h"
#include "kernels.h"
#include <string.h>

static void package_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_package *a = op->args;
    int32_t start, stop, total = *op->rows;
    if (a->whole) {
        if (worker->index == 0)
            a->function(&a->call, op->faults, 0, total);
        return;
    }
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        a->function(&a->call, op->faults, start, stop);
}
CORTIQ_REGISTER(CORTIQ_PACKAGE, package_rows)

/* Keep a row's inputs, all of them, where they are read again. */
static void keep_inputs(const cortiq_package_step *a, float *state, int32_t row, int64_t position)
{
    int64_t each = 0;
    for (int i = 0; i < a->call.input_count; i++) each += a->call.inputs[i].count;
    float *to = state + 3 * a->size + position % CORTIQ_KEPT * each;
    for (int i = 0; i < a->call.input_count; to += a->call.inputs[i++].count)
        memcpy(to, cortiq_kernel_input(&a->call, i, row),
               sizeof(float) * (size_t)a->call.inputs[i].count);
}

/* All rows of a segment, in order. */
static void step_segment(const cortiq_op *op, const cortiq_segment *s, float *state)
{
    const cortiq_package_step *a = op->args;
    for (int32_t row = s->start; row < s->stop; row++) {
        uint8_t fault = 0;
        int64_t position = (int64_t)s->position + row - s->start, length = position + 1;
        a->function(&a->call, state, &fault, row, (int32_t)position);
        if (fault)
            cortiq_fault(op, row);
        if (!a->keep)
            continue;
        keep_inputs(a, state, row, position);
        if (length % CORTIQ_MARK == 0)
            memcpy(state + a->size * (1 + length / CORTIQ_MARK % 2), state,
                   sizeof(float) * (size_t)a->size);
    }
}

static void package_steps(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_package_step *a = op->args;
    int32_t start, stop;
    while (cortiq_take(worker, *a->segment_count, 1, &start, &stop))
        for (int32_t i = start; i < stop; i++) step_segment(op, &a->segments[i], a->states[i]);
}
CORTIQ_REGISTER(CORTIQ_PACKAGE_STEP, package_steps)
