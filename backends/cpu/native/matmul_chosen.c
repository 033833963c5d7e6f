/* Matrix products of stacks: a matrix for each (row, slot). */
#include "matmul_group.h"

static int32_t chosen_by(const int32_t *choice, int32_t slots, int32_t pair)
{
    return choice ? choice[pair] : pair % slots;
}

sorted_pairs cortiq_sort_pairs(const int32_t *choice, int32_t slots, int32_t matrices, int32_t first,
                               int32_t stop, const cortiq_worker *worker)
{
    int32_t *memory = (int32_t *)(worker->scratch + (1 << 20));
    sorted_pairs sorted = {memory, memory + MOST_PAIRS};
    for (int32_t m = 0; m <= matrices; m++)
        sorted.starts[m] = 0;
    for (int32_t pair = first; pair < stop; pair++)
        sorted.starts[chosen_by(choice, slots, pair) + 1]++;
    for (int32_t m = 0; m < matrices; m++)
        sorted.starts[m + 1] += sorted.starts[m];
    for (int32_t pair = first; pair < stop; pair++)
        sorted.order[sorted.starts[chosen_by(choice, slots, pair)]++] = pair;
    for (int32_t m = matrices; m > 0; m--)
        sorted.starts[m] = sorted.starts[m - 1];
    sorted.starts[0] = 0;
    return sorted;
}

void cortiq_make_ready(const cortiq_worker *worker, row_group *group, uint8_t *memory)
{
    const cortiq_matmul_set *set = cortiq_matmul_set_of(worker);
    const cortiq_matrix *m = group->matrix;
    if (!memory || !cortiq_wants_ready(set, m, group->count))
        return;
    for (int32_t i = 0; i < group->count; i += READY_ROWS) {
        int32_t rows = group->count - i < READY_ROWS ? group->count - i : READY_ROWS;
        uint8_t *to = memory + (size_t)(i / READY_ROWS) * set->ready_bytes(m->layout, m->width);
        set->ready(m->layout, m->width, group->x + i, rows, to);
    }
    group->ready[set->ready_form(m->layout)] = memory;
}

uint8_t *cortiq_ready_memory(cortiq_worker *worker, const cortiq_matrix *m, int32_t rows)
{
    const cortiq_matmul_set *set = cortiq_matmul_set_of(worker);
    if (!cortiq_wants_ready(set, m, rows))
        return NULL;
    size_t each = READY_BLOCKS * set->ready_bytes(m->layout, m->width);
    uint8_t *memory = cortiq_shared(worker, each * (size_t)worker->threads);
    return memory ? memory + each * (size_t)worker->index : NULL;
}

static void multiply_pairs(const cortiq_op *op, cortiq_worker *worker, int32_t index,
                           const int32_t *pairs, int32_t count, int32_t panel, int32_t stop,
                           uint8_t *ready)
{
    const cortiq_chosen_args *args = op->args;
    size_t stride = cortiq_row_stride(args->matrix);
    row_group group = {.matrix = args->matrix, .index = index};
    for (int32_t start = 0; start < count; start += BLOCK_ROWS) {
        group.count = count - start < BLOCK_ROWS ? count - start : BLOCK_ROWS;
        for (int32_t i = 0; i < group.count; i++) {
            int32_t pair = pairs[start + i], row = pair / args->slots;
            size_t at = args->shared ? (size_t)row : (size_t)pair;
            group.x[i] = (const uint8_t *)args->x + at * stride;
            group.out[i] = args->out + (size_t)pair * args->matrix->height;
            group.faults[i] = op->faults + row;
        }
        cortiq_make_ready(worker, &group, ready);
        cortiq_multiply(worker, &group, panel, stop);
    }
}

static void chosen_pass(const cortiq_op *op, cortiq_worker *worker, int32_t first, int32_t stop,
                        uint8_t *ready)
{
    const cortiq_chosen_args *args = op->args;
    int64_t panels = args->matrix->panels, used = 0, from, to;
    sorted_pairs sorted =
        cortiq_sort_pairs(args->choice, args->slots, args->matrix->matrices, first, stop, worker);
    for (int32_t m = 0; m < args->matrix->matrices; m++)
        used += sorted.starts[m + 1] > sorted.starts[m];
    while (cortiq_take_panels(worker, used * panels, &from, &to)) {
        int64_t at = 0; /* where the panels of this used matrix start */
        for (int32_t m = 0; m < args->matrix->matrices && at < to; m++) {
            int32_t count = sorted.starts[m + 1] - sorted.starts[m];
            if (!count)
                continue;
            if (from < at + panels)
                multiply_pairs(op, worker, m, sorted.order + sorted.starts[m], count,
                               (int32_t)(from > at ? from - at : 0),
                               (int32_t)(to < at + panels ? to - at : panels), ready);
            at += panels;
        }
    }
}

static void matmul_chosen(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_chosen_args *args = op->args;
    int32_t rows = *op->rows, step = MOST_PAIRS / args->slots;
    uint8_t *ready = cortiq_ready_memory(worker, args->matrix, rows * args->slots);
    if (ready)
        cortiq_matmul_set_of(worker)->begin();
    for (int32_t row = 0; row < rows; row += step) {
        int32_t stop = row + step < rows ? row + step : rows;
        if (row)
            cortiq_barrier(worker);
        chosen_pass(op, worker, row * args->slots, stop * args->slots, ready);
    }
    if (ready)
        cortiq_matmul_set_of(worker)->end();
}
CORTIQ_REGISTER(CORTIQ_MATMUL_CHOSEN, matmul_chosen)
