/* CHOOSE_BLOCKS: queries of all heads over threads; they share the keys. */
#include "kernels.h"

static int32_t items_of(const cortiq_segment *s, int32_t heads, int32_t size)
{
    return ((s->stop - s->start) * heads + size - 1) / size;
}

/* The queries of item `index`, each item having up to `size` of one segment. */
static attention_task task_of(const cortiq_attend *a, int32_t index, int32_t size)
{
    int32_t segment = 0;
    const cortiq_segment *s = a->kv.segments;
    for (; index >= items_of(s, a->heads, size); s++, segment++)
        index -= items_of(s, a->heads, size);
    attention_task t = {
        .args = a, .pages = a->kv.pages[segment], .group = a->heads, .position = s->position,
        .row = s->start, .first = index * size, .count = (s->stop - s->start) * a->heads,
    };
    t.count = t.count - t.first < size ? t.count - t.first : size;
    t.tile_stop = (s->position + (t.first + t.count - 1) / t.group) / TILE + 1;
    size_t record = (size_t)s->start * (size_t)a->heads;
    t.q = (const uint8_t *)a->q + record * cortiq_record_stride(a->kv.key_dim);
    return t;
}

/* Each worker gets some; no more than its scratch takes. */
static int32_t queries_at_once(const cortiq_choose *how, const cortiq_worker *worker, int32_t rows)
{
    size_t bytes = 4 * (size_t)even(how->kv.key_dim) + (size_t)how->top * sizeof(ranked);
    size_t room = (worker->scratch_bytes - 64) / bytes;
    int32_t most = room < BLOCK ? (int32_t)room : BLOCK;
    int32_t share = (rows * how->heads + worker->threads - 1) / worker->threads;
    return share < 1 ? 1 : share < most ? share : most;
}

static void choose_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_choose *how = op->args;
    const cortiq_attend a = {.kv = how->kv, .q = how->q, .heads = how->heads};
    int32_t start, stop, items = 0;
    int32_t size = queries_at_once(how, worker, *op->rows);
    for (int32_t i = 0; i < *how->kv.segment_count; i++)
        items += items_of(&how->kv.segments[i], how->heads, size);
    while (cortiq_take(worker, items, 1, &start, &stop)) {
        attention_task t = task_of(&a, start, size);
        t.scratch = worker->scratch;
        cortiq_kernels_of(worker->isa)->choose(&t, how);
    }
}
CORTIQ_REGISTER(CORTIQ_CHOOSE_BLOCKS, choose_rows)
