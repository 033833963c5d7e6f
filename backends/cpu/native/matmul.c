/* Matrix products: who multiplies what. The kernels are in kernel_*.h. */
#include "matmul.h"

const cortiq_matmul_set *cortiq_matmul_set_of(const cortiq_worker *worker)
{
#if defined(__x86_64__)
    switch (worker->isa) {
    case CORTIQ_AVX2:
        return &cortiq_matmul_avx2;
    case CORTIQ_AVXVNNI:
        return &cortiq_matmul_avxvnni;
    case CORTIQ_AVX512VNNI:
        return &cortiq_matmul_avx512vnni;
    }
#endif
    (void)worker;
    return &cortiq_matmul_portable;
}

/* Rows that meet the same matrix. */
typedef struct {
    const cortiq_matrix *matrix;
    int32_t index; /* of the matrix in its stack */
    int32_t count;
    const void *x[BLOCK_ROWS];
    float *out[BLOCK_ROWS]; /* output 0 */
    uint8_t *faults[BLOCK_ROWS];
} row_group;

static int32_t sum_of(const int32_t *sums, int32_t count)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < count; i++)
        sum += sums[i];
    return sum;
}

/* What direct kernels start their sums with, since their codes are offset: −offset·Σq of each
 * block or sub-block; where there is no offset the sums of sub-blocks alone, for minima; for one
 * scale a row that number in base 256, high part first.
 */
static void starts_of(const cortiq_matrix *m, const void *record, int32_t *starts)
{
    int layout = m->layout, offset = layout_offset(layout);
    const int32_t *sums = cortiq_record_sums(record, m->width);
    int32_t count = cortiq_padded(m->width) / 16;
    if (layout_is_row(layout)) {
        int64_t total = (int64_t)sum_of(sums, count) * -128;
        if (layout == CORTIQ_W16) {
            total *= 257;
            starts[2] = (int32_t)(total & 255);
            total >>= 8;
        }
        starts[0] = (int32_t)(total >> 8);
        starts[1] = (int32_t)(total & 255);
        return;
    }
    int32_t each = (layout_is_k(layout) ? layout_sub(layout) : layout_block(layout)) / 16;
    if (!offset && !layout_is_k(layout))
        return;
    for (int32_t s = 0; s * each < count; s++) {
        int32_t left = count - s * each;
        starts[s] = sum_of(sums + s * each, left < each ? left : each) * (offset ? -offset : 1);
    }
}

static const uint8_t *panel_at(const cortiq_matrix *m, int32_t index, int32_t panel)
{
    if (m->layout == CORTIQ_F32)
        return m->data + ((int64_t)index * m->height + (int64_t)panel * PANEL) * m->width * 4;
    return m->data + ((int64_t)index * m->panels + panel) * m->panel_bytes;
}

/* Outputs of panels first … stop − 1 for all rows of the group. */
static void multiply(cortiq_worker *worker, const row_group *group, int32_t first, int32_t stop)
{
    const cortiq_matmul_set *set = cortiq_matmul_set_of(worker);
    const cortiq_matrix *m = group->matrix;
    int direct = group->count <= set->direct_rows;
    int32_t step = direct ? 1 : set->panels, *starts[DIRECT_ROWS];
    for (int32_t i = 0; direct && m->layout != CORTIQ_F32 && i < group->count; i++) {
        starts[i] = (int32_t *)worker->scratch + (size_t)i * (cortiq_padded(m->width) / 16 + 16);
        starts_of(m, group->x[i], starts[i]);
    }
    for (int32_t panel = first; panel < stop; panel += step) {
        int32_t end = panel + step < stop ? panel + step : stop;
        int32_t outputs = (end * PANEL < m->height ? end * PANEL : m->height) - panel * PANEL;
        float *out[BLOCK_ROWS];
        for (int32_t i = 0; i < group->count; i++)
            out[i] = group->out[i] + (size_t)panel * PANEL;
        cortiq_tile tile = {m, panel_at(m, group->index, panel), outputs, group->count, group->x,
                            out, group->faults, starts, worker->scratch};
        (direct ? set->direct : set->block)[m->layout](&tile);
    }
}

/* Bytes from one row of x to the next. */
static size_t row_stride(const cortiq_matrix *m)
{
    return m->layout == CORTIQ_F32 ? (size_t)m->width * 4 : cortiq_record_stride(m->width);
}

/* A worker's next share [*start, *stop) of `total` panels: large shares at first, then ever smaller
 * ones, so that memory is read in long stretches and nobody waits long at the end.
 */
static int take_panels(cortiq_worker *worker, int64_t total, int64_t *start, int64_t *stop)
{
    int32_t ticket, end, threads = worker->threads;
    if (!cortiq_take(worker, INT32_MAX, 1, &ticket, &end))
        return 0;
    int64_t tile = cortiq_matmul_set_of(worker)->panels, taken = 0, share = 0;
    for (int32_t level = 0; level <= ticket / threads && taken < total; level++) {
        taken += share * threads;
        share = (total - taken) / (2 * threads) / tile * tile;
        share = share < tile ? tile : share;
    }
    *start = taken + ticket % threads * share;
    *stop = *start + share < total ? *start + share : total;
    return *start < total;
}

static void product_rows(const cortiq_op *op, const cortiq_product *product, int32_t first,
                         int32_t stop, row_group *group)
{
    const cortiq_matmul_args *args = op->args;
    size_t stride = row_stride(product->matrix);
    group->matrix = product->matrix;
    group->index = 0;
    group->count = stop - first;
    for (int32_t i = 0; i < group->count; i++) {
        group->x[i] = (const uint8_t *)args->x + (size_t)(first + i) * stride;
        group->out[i] = product->out + (first + i) * product->stride;
        group->faults[i] = op->faults + (first + i) / args->inner;
    }
}

/* Panels first … stop − 1 of all products side by side, for one pass of rows. */
static void multiply_products(const cortiq_op *op, cortiq_worker *worker, int32_t pass,
                              int64_t first, int64_t stop)
{
    const cortiq_matmul_args *args = op->args;
    int32_t rows = *op->rows * args->inner, from = pass * BLOCK_ROWS;
    int32_t end = from + BLOCK_ROWS < rows ? from + BLOCK_ROWS : rows;
    for (int32_t p = 0; p < args->count; p++) {
        int64_t panels = args->products[p].matrix->panels;
        if (first < panels && stop > 0) {
            row_group group;
            product_rows(op, &args->products[p], from, end, &group);
            multiply(worker, &group, first > 0 ? (int32_t)first : 0,
                     (int32_t)(stop < panels ? stop : panels));
        }
        first -= panels;
        stop -= panels;
    }
}

static void matmul(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_matmul_args *args = op->args;
    int32_t rows = *op->rows * args->inner;
    int64_t passes = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, panels = 0, start, stop;
    for (int32_t p = 0; p < args->count; p++)
        panels += args->products[p].matrix->panels;
    while (take_panels(worker, panels * passes, &start, &stop))
        while (start < stop) {
            int64_t pass = start / panels, end = (pass + 1) * panels;
            multiply_products(op, worker, (int32_t)pass, start - pass * panels,
                              (stop < end ? stop : end) - pass * panels);
            start = end;
        }
}
CORTIQ_REGISTER(CORTIQ_MATMUL, matmul)

/* ---- A matrix of a stack for each (row, slot). */

enum { MOST_PAIRS = 1 << 16 };

/* Pairs (row·slots + slot) in the order of their matrices. */
typedef struct {
    int32_t *order;  /* [pairs] */
    int32_t *starts; /* [matrices + 1] */
} sorted_pairs;

static int32_t chosen_by(const cortiq_chosen_args *args, int32_t pair)
{
    return args->choice ? args->choice[pair] : pair % args->slots;
}

/* A counting sort into the worker's scratch, behind what the kernels use. */
static sorted_pairs sort_pairs(const cortiq_chosen_args *args, int32_t first, int32_t stop,
                               const cortiq_worker *worker)
{
    int32_t matrices = args->matrix->matrices;
    int32_t *memory = (int32_t *)(worker->scratch + (1 << 20));
    sorted_pairs sorted = {memory, memory + MOST_PAIRS};
    for (int32_t m = 0; m <= matrices; m++)
        sorted.starts[m] = 0;
    for (int32_t pair = first; pair < stop; pair++)
        sorted.starts[chosen_by(args, pair) + 1]++;
    for (int32_t m = 0; m < matrices; m++)
        sorted.starts[m + 1] += sorted.starts[m];
    for (int32_t pair = first; pair < stop; pair++)
        sorted.order[sorted.starts[chosen_by(args, pair)]++] = pair;
    for (int32_t m = matrices; m > 0; m--)
        sorted.starts[m] = sorted.starts[m - 1];
    sorted.starts[0] = 0;
    return sorted;
}

static void multiply_pairs(const cortiq_op *op, cortiq_worker *worker, int32_t index,
                           const int32_t *pairs, int32_t count, int32_t panel, int32_t stop)
{
    const cortiq_chosen_args *args = op->args;
    size_t stride = row_stride(args->matrix);
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
        multiply(worker, &group, panel, stop);
    }
}

static void chosen_pass(const cortiq_op *op, cortiq_worker *worker, int32_t first, int32_t stop)
{
    const cortiq_chosen_args *args = op->args;
    int64_t panels = args->matrix->panels, used = 0, from, to;
    sorted_pairs sorted = sort_pairs(args, first, stop, worker);
    for (int32_t m = 0; m < args->matrix->matrices; m++)
        used += sorted.starts[m + 1] > sorted.starts[m];
    while (take_panels(worker, used * panels, &from, &to)) {
        int64_t at = 0; /* where the panels of this used matrix start */
        for (int32_t m = 0; m < args->matrix->matrices && at < to; m++) {
            int32_t count = sorted.starts[m + 1] - sorted.starts[m];
            if (!count)
                continue;
            if (from < at + panels)
                multiply_pairs(op, worker, m, sorted.order + sorted.starts[m], count,
                               (int32_t)(from > at ? from - at : 0),
                               (int32_t)(to < at + panels ? to - at : panels));
            at += panels;
        }
    }
}

static void matmul_chosen(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_chosen_args *args = op->args;
    int32_t rows = *op->rows, step = MOST_PAIRS / args->slots;
    for (int32_t row = 0; row < rows; row += step) {
        int32_t stop = row + step < rows ? row + step : rows;
        if (row)
            cortiq_barrier(worker);
        chosen_pass(op, worker, row * args->slots, stop * args->slots);
    }
}
CORTIQ_REGISTER(CORTIQ_MATMUL_CHOSEN, matmul_chosen)
