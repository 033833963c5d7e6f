/* Matrix products: who multiplies what. The kernels are in kernel_*.h. */
#include "matmul_group.h"

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
#if defined(CORTIQ_TILES)
    case CORTIQ_AMX:
        return &cortiq_matmul_amx;
#endif
    case CORTIQ_AMX_EMULATED:
        return &cortiq_matmul_amx_emulated;
    }
#elif defined(__aarch64__)
    switch (worker->isa) {
    case CORTIQ_NEON:
        return &cortiq_matmul_neon;
#if defined(CORTIQ_NEON_PLANES)
    case CORTIQ_NEON_DOTPROD:
        return &cortiq_matmul_neon_dotprod;
    case CORTIQ_NEON_I8MM:
        return &cortiq_matmul_neon_i8mm;
#endif
    }
#endif
    (void)worker;
    return &cortiq_matmul_portable;
}

static int32_t sum_of(const int32_t *sums, int32_t count)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < count; i++)
        sum += sums[i];
    return sum;
}

/* What direct kernels start their sums with, since their codes are offset: −offset·Σq of each
 * block or sub-block; where there is no offset the sums of sub-blocks alone, for minima; for one
 * scale a row that number in base 256, high part first, and for w16 that of a plane.
 */
static void starts_of(const cortiq_matrix *m, const void *record, int32_t *starts)
{
    int layout = m->layout, offset = layout_offset(layout);
    const int32_t *sums = cortiq_record_sums(record, m->width);
    int32_t count = cortiq_padded(m->width) / 16;
    if (layout_is_row(layout)) {
        int64_t total = (int64_t)sum_of(sums, count) * -128;
        if (layout == CORTIQ_W16) {
            starts[3] = (int32_t)total; /* of a plane */
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

/* What direct kernels need of the group's rows, in a worker's scratch: where sums start, and for a kernel
 * of one row the row's own form, which is returned. */
static const uint8_t *direct_rows(const cortiq_matmul_set *set, const row_group *group,
                                  uint8_t *scratch, int32_t **starts, int alone)
{
    const cortiq_matrix *m = group->matrix;
    size_t words = ((size_t)cortiq_padded(m->width) / 16 + 31) & ~(size_t)15;
    uint8_t *form = scratch + 4 * words * (size_t)group->count;
    for (int32_t i = 0; i < group->count; i++) {
        starts[i] = (int32_t *)(void *)scratch + (size_t)i * words;
        starts_of(m, group->x[i], starts[i]);
    }
    if (alone)
        set->row_ready(group->x[0], m->width, form);
    return alone ? form : NULL;
}

void cortiq_multiply(cortiq_worker *worker, const row_group *group, int32_t first, int32_t stop)
{
    const cortiq_matmul_set *set = cortiq_matmul_set_of(worker);
    const cortiq_matrix *m = group->matrix;
    const uint8_t *ready = NULL;
    if (cortiq_wants_ready(set, m, group->count)) {
        ready = group->ready[set->ready_form(m->layout)];
        set = ready ? set : set->otherwise;
    } else if (set->ready && m->layout != CORTIQ_F32 && set->ready_form(m->layout) < 0) {
        set = set->otherwise;
    }
    int direct = group->count <= set->direct_rows[m->layout];
    int alone = group->count == 1 && m->layout != CORTIQ_F32 && set->one && set->one[m->layout];
    const cortiq_tile_kernel *kernels = alone ? set->one : direct ? set->direct : set->block;
    int32_t step = direct ? stop - first : set->panels, *starts[DIRECT_ROWS];
    size_t exponent_at = cortiq_record_exponent_at(m->width);
    if (direct && m->layout != CORTIQ_F32)
        ready = direct_rows(set, group, worker->scratch, starts, alone);
    for (int32_t panel = first; panel < stop; panel += step) {
        int32_t end = panel + step < stop ? panel + step : stop;
        int32_t outputs = (end * PANEL < m->height ? end * PANEL : m->height) - panel * PANEL;
        float *out[BLOCK_ROWS];
        for (int32_t i = 0; i < group->count; i++)
            out[i] = group->out[i] + (int64_t)(panel - group->panel) * PANEL;
        cortiq_tile tile = {m, panel_at(m, group->index, panel), outputs, 0, group->count, group->x,
                            out, group->faults, starts, ready, worker->scratch, exponent_at};
        kernels[m->layout](&tile);
    }
}

int cortiq_take_panels(cortiq_worker *worker, int64_t total, int64_t *start, int64_t *stop)
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
    size_t stride = cortiq_row_stride(product->matrix);
    group->matrix = product->matrix;
    group->index = group->panel = 0;
    group->count = stop - first;
    for (int32_t i = 0; i < group->count; i++) {
        group->x[i] = (const uint8_t *)args->x + (size_t)(first + i) * stride;
        group->out[i] = product->out + (first + i) * product->stride;
        group->faults[i] = op->faults + (first + i) / args->inner;
    }
}

/* Rows of a pass in the forms that the products' layouts take. */
typedef struct {
    int32_t layout[READY_FORMS]; /* one of the form's layouts, or −1: no product takes it */
    size_t bytes[READY_FORMS];   /* of READY_ROWS rows */
    uint8_t *memory[READY_FORMS];
} ready_rows;

enum { READY_BYTES = 3 << 19 };

static ready_rows forms_of(const cortiq_matmul_args *args, const cortiq_matmul_set *set)
{
    ready_rows ready = {.layout = {-1, -1}};
    for (int32_t p = 0; p < args->count; p++) {
        const cortiq_matrix *m = args->products[p].matrix;
        int form = set->ready_form(m->layout);
        if (form < 0)
            continue;
        ready.layout[form] = m->layout;
        ready.bytes[form] = set->ready_bytes(m->layout, m->width);
    }
    return ready;
}

/* All workers: rows first … stop − 1 made ready; a barrier ends it. */
static void make_ready(const cortiq_op *op, cortiq_worker *worker, int32_t first, int32_t stop,
                       const ready_rows *ready)
{
    const cortiq_matmul_args *args = op->args;
    int32_t width = args->products[0].matrix->width, start, end;
    size_t stride = cortiq_record_stride(width);
    while (cortiq_take(worker, stop - first, READY_ROWS, &start, &end)) {
        const void *x[READY_ROWS];
        for (int32_t i = start; i < end; i++)
            x[i - start] = (const uint8_t *)args->x + (size_t)(first + i) * stride;
        for (int form = 0; form < READY_FORMS; form++)
            if (ready->layout[form] >= 0)
                cortiq_matmul_set_of(worker)->ready(
                    ready->layout[form], width, x, end - start,
                    ready->memory[form] + (size_t)(start / READY_ROWS) * ready->bytes[form]);
    }
    cortiq_barrier(worker);
}

/* Panels first … stop − 1 of all products side by side, for rows from … end − 1. */
static void multiply_products(const cortiq_op *op, cortiq_worker *worker, int32_t from, int32_t end,
                              int64_t first, int64_t stop, const ready_rows *ready)
{
    const cortiq_matmul_args *args = op->args;
    for (int32_t p = 0; p < args->count; p++) {
        int64_t panels = args->products[p].matrix->panels;
        if (first < panels && stop > 0) {
            row_group group;
            product_rows(op, &args->products[p], from, end, &group);
            for (int form = 0; form < READY_FORMS; form++)
                group.ready[form] = ready->memory[form];
            cortiq_multiply(worker, &group, first > 0 ? (int32_t)first : 0,
                            (int32_t)(stop < panels ? stop : panels));
        }
        first -= panels;
        stop -= panels;
    }
}

static int64_t panels_of(const cortiq_matmul_args *args)
{
    int64_t panels = 0;
    for (int32_t p = 0; p < args->count; p++)
        panels += args->products[p].matrix->panels;
    return panels;
}

/* Rows of a pass, as many in each: READY_BYTES at most, which stay in a second-level cache while
 * every tile of outputs reads them.
 */
static int32_t pass_rows(const ready_rows *ready, int32_t rows)
{
    int32_t most = (int32_t)(READY_BYTES / (ready->bytes[0] + ready->bytes[1])) * READY_ROWS;
    if (most < 4 * READY_ROWS || most > BLOCK_ROWS) /* too few share the expanding of codes */
        most = BLOCK_ROWS;
    int32_t passes = (rows + most - 1) / most, each = (rows + passes - 1) / passes;
    return (each + READY_ROWS - 1) / READY_ROWS * READY_ROWS;
}

/* Pass after pass, each made ready by all workers first. 0: there is no memory for it. */
static int matmul_ready(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_matmul_args *args = op->args;
    const cortiq_matmul_set *set = cortiq_matmul_set_of(worker);
    int32_t rows = *op->rows * args->inner;
    ready_rows ready = forms_of(args, set);
    uint8_t *memory = cortiq_shared(worker, (ready.bytes[0] + ready.bytes[1]) * READY_BLOCKS);
    if (!memory)
        return 0;
    ready.memory[0] = memory;
    ready.memory[1] = memory + ready.bytes[0] * READY_BLOCKS;
    set->begin();
    int32_t each = pass_rows(&ready, rows);
    for (int32_t from = 0; from < rows; from += each) {
        int32_t end = from + each < rows ? from + each : rows;
        int64_t start, stop;
        if (from)
            cortiq_barrier(worker);
        make_ready(op, worker, from, end, &ready);
        while (cortiq_take_panels(worker, panels_of(args), &start, &stop))
            multiply_products(op, worker, from, end, start, stop, &ready);
    }
    set->end();
    return 1;
}

static void matmul(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_matmul_args *args = op->args;
    const ready_rows none = {.layout = {-1, -1}};
    int32_t rows = *op->rows * args->inner;
    int64_t passes = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, panels = panels_of(args), start, stop;
    if (cortiq_wants_ready(cortiq_matmul_set_of(worker), args->products[0].matrix, rows) &&
        matmul_ready(op, worker))
        return;
    while (cortiq_take_panels(worker, panels * passes, &start, &stop))
        while (start < stop) {
            int64_t pass = start / panels, end = (pass + 1) * panels;
            int32_t from = (int32_t)pass * BLOCK_ROWS;
            multiply_products(op, worker, from, from + BLOCK_ROWS < rows ? from + BLOCK_ROWS : rows,
                              start - pass * panels, (stop < end ? stop : end) - pass * panels,
                              &none);
            start = end;
        }
}
CORTIQ_REGISTER(CORTIQ_MATMUL, matmul)
