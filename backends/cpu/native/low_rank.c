/* LOW_RANK: what an overlay adds to a product, B·quantise(A·x), for rows that chose one of several.
 *
 * Rows of one overlay meet its factors together. All of A's products are done, A's panels shared by the
 * workers, before B's; a row of r is quantised by each worker that meets it.
 */
#include "kernels.h"
#include "matmul_group.h"
#include "records.h"

#include <string.h>

enum {
    GROUP_ROWS = 64,  /* whose products with B wait to be added */
    GROUP_PANELS = 16 /* of B, at a time */
};

typedef struct {
    const cortiq_op *op;
    const cortiq_low_rank_args *args;
    cortiq_worker *worker;
    sorted_pairs sorted;
    int32_t first;    /* row of the pass */
    int32_t rank;     /* the largest */
    float *r;         /* [parts][BLOCK_ROWS][rank] */
    uint8_t *records; /* of this worker: GROUP_ROWS rows of r */
    float *products;  /* [GROUP_ROWS][GROUP_PANELS·PANEL] */
    uint8_t *ready;
} pass;

typedef void (*member_work)(const pass *p, int part, int32_t member, int32_t panel, int32_t stop);

static size_t products_bytes(void) { return (size_t)GROUP_ROWS * GROUP_PANELS * PANEL * 4; }
static size_t r_bytes(int32_t rank) { return (size_t)BLOCK_ROWS * (size_t)cortiq_padded(rank) * 4; }

int64_t cortiq_low_rank_workspace(int32_t rank, int32_t threads)
{
    size_t own = products_bytes() + GROUP_ROWS * cortiq_record_stride(rank);
    return (int64_t)(CORTIQ_PRODUCTS * r_bytes(rank) + own * (size_t)threads);
}

static int32_t most_rank(const cortiq_low_rank_args *args)
{
    int32_t rank = 0;
    for (int32_t s = 0; s < args->count; s++)
        rank = args->parts[s].a->height > rank ? args->parts[s].a->height : rank;
    return rank;
}

static float *r_of(const pass *p, int part, int32_t row)
{
    size_t rows = (size_t)part * BLOCK_ROWS + (size_t)(row - p->first);
    return p->r + rows * (size_t)p->rank;
}

static void start_group(const cortiq_matrix *m, int32_t member, int32_t count, row_group *group)
{
    group->matrix = m;
    group->index = member;
    group->panel = 0;
    group->count = count;
    group->ready[0] = group->ready[1] = NULL;
}

/* Panels panel … stop − 1 of a member's A. */
static void first_factor(const pass *p, int part, int32_t member, int32_t panel, int32_t stop)
{
    const cortiq_matrix *a = p->args->parts[part].a;
    const int32_t *rows = p->sorted.order + p->sorted.starts[member];
    row_group group;
    start_group(a, member, p->sorted.starts[member + 1] - p->sorted.starts[member], &group);
    for (int32_t i = 0; i < group.count; i++) {
        group.x[i] = (const uint8_t *)p->args->x + (size_t)rows[i] * cortiq_row_stride(a);
        group.out[i] = r_of(p, part, rows[i]);
        group.faults[i] = p->op->faults + rows[i];
    }
    cortiq_make_ready(p->worker, &group, p->ready);
    cortiq_multiply(p->worker, &group, panel, stop);
}

/* Outputs of a few panels for rows of one overlay: products, then sums. */
static void add_panels(const pass *p, int part, row_group *group, const int32_t *rows,
                       int32_t panel, int32_t stop)
{
    const cortiq_low_rank_part *to = &p->args->parts[part];
    const cortiq_row_kernels *k = &cortiq_kernels_of(p->worker->isa)->row;
    int32_t height = to->b->height, from = panel * PANEL;
    int32_t n = (stop * PANEL < height ? stop * PANEL : height) - from;
    group->panel = panel;
    cortiq_multiply(p->worker, group, panel, stop);
    for (int32_t i = 0; i < group->count; i++) {
        int64_t at = (int64_t)rows[i] * height + from;
        if (k->add(to->base + at, group->out[i], to->out + at, n))
            cortiq_fault(p->op, rows[i]);
    }
}

static void copy_panels(const pass *p, int part, const int32_t *rows, int32_t count, int32_t panel,
                        int32_t stop)
{
    const cortiq_low_rank_part *to = &p->args->parts[part];
    int32_t height = to->b->height, from = panel * PANEL;
    int32_t n = (stop * PANEL < height ? stop * PANEL : height) - from;
    for (int32_t i = 0; i < count; i++) {
        int64_t at = (int64_t)rows[i] * height + from;
        memcpy(to->out + at, to->base + at, (size_t)n * sizeof *to->out);
    }
}

/* Panels panel … stop − 1 of a member's B. */
static void second_factor(const pass *p, int part, int32_t member, int32_t panel, int32_t stop)
{
    const cortiq_low_rank_part *to = &p->args->parts[part];
    const int32_t *rows = p->sorted.order + p->sorted.starts[member];
    int32_t count = p->sorted.starts[member + 1] - p->sorted.starts[member];
    row_group group;
    if (!to->changes[member]) {
        copy_panels(p, part, rows, count, panel, stop);
        return;
    }
    for (int32_t start = 0; start < count; start += GROUP_ROWS) {
        int32_t left = count - start < GROUP_ROWS ? count - start : GROUP_ROWS;
        start_group(to->b, member, left, &group);
        for (int32_t i = 0; i < left; i++) {
            int32_t row = rows[start + i];
            cortiq_quantise_to(p->records, i, r_of(p, part, row), to->b->width, p->worker->isa);
            group.x[i] = p->records + (size_t)i * cortiq_row_stride(to->b);
            group.out[i] = p->products + (size_t)i * GROUP_PANELS * PANEL;
            group.faults[i] = p->op->faults + row;
        }
        cortiq_make_ready(p->worker, &group, p->ready);
        for (int32_t at = panel; at < stop; at += GROUP_PANELS)
            add_panels(p, part, &group, rows + start, at,
                       at + GROUP_PANELS < stop ? at + GROUP_PANELS : stop);
    }
}

static int64_t panels_of(const pass *p, int part, int32_t member, int second)
{
    const cortiq_low_rank_part *one = &p->args->parts[part];
    if (p->sorted.starts[member + 1] == p->sorted.starts[member])
        return 0;
    return second ? one->b->panels : one->changes[member] ? one->a->panels : 0;
}

/* One factor's panels of all parts and overlays, shared by the workers. */
static void share_panels(const pass *p, int second, member_work work)
{
    int64_t total = 0, from, to;
    int32_t members = p->args->parts[0].a->matrices;
    for (int32_t s = 0; s < p->args->count; s++)
        for (int32_t m = 0; m < members; m++)
            total += panels_of(p, s, m, second);
    while (cortiq_take_panels(p->worker, total, &from, &to)) {
        int64_t at = 0;
        for (int32_t s = 0; s < p->args->count && at < to; s++)
            for (int32_t m = 0; m < members && at < to; m++) {
                int64_t panels = panels_of(p, s, m, second);
                if (panels && from < at + panels)
                    work(p, s, m, (int32_t)(from > at ? from - at : 0),
                         (int32_t)(to < at + panels ? to - at : panels));
                at += panels;
            }
    }
}

static void low_rank(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_low_rank_args *args = op->args;
    int32_t rows = *op->rows, rank = most_rank(args);
    size_t records = GROUP_ROWS * cortiq_record_stride(rank), own = products_bytes() + records;
    uint8_t *mine = args->workspace + CORTIQ_PRODUCTS * r_bytes(rank) + own * (size_t)worker->index;
    pass p = {.op = op, .args = args, .worker = worker, .rank = rank, .r = (float *)(void *)args->workspace};
    p.products = (float *)(void *)mine;
    p.records = mine + products_bytes();
    const cortiq_matrix *wide = args->parts[0].a;
    for (int32_t s = 0; s < args->count; s++)
        wide = args->parts[s].b->width > wide->width ? args->parts[s].b : wide;
    p.ready = cortiq_ready_memory(worker, wide, rows);
    if (p.ready)
        cortiq_matmul_set_of(worker)->begin();
    for (p.first = 0; p.first < rows; p.first += BLOCK_ROWS) {
        int32_t stop = p.first + BLOCK_ROWS < rows ? p.first + BLOCK_ROWS : rows;
        if (p.first)
            cortiq_barrier(worker);
        p.sorted = cortiq_sort_pairs(args->choice, 1, wide->matrices, p.first, stop, worker);
        share_panels(&p, 0, first_factor);
        cortiq_barrier(worker);
        share_panels(&p, 1, second_factor);
    }
    if (p.ready)
        cortiq_matmul_set_of(worker)->end();
}
CORTIQ_REGISTER(CORTIQ_LOW_RANK, low_rank)
