/* ATTEND: query blocks over threads, or, when there are few, their tiles over threads. */
#include "kernels.h"
#include "records.h"

#include <string.h>

/* Parts are single tiles while a query block has at most so many, else whole runs. */
enum { SINGLE_TILES = 64 };

typedef struct {
    const cortiq_attend *args;
    int32_t group, items;
    int32_t block;   /* queries of an item */
    int32_t queries; /* of the largest item */
    int32_t unit;    /* tiles of a part: 0 whole items, else 1 or a run */
    int32_t parts;   /* of an item, at most */
    int32_t at_once; /* parts a worker takes */
} plan;

static int32_t blocks_of(const cortiq_segment *s, const plan *p)
{
    return ((s->stop - s->start) * p->group + p->block - 1) / p->block;
}

/* Scratch of a worker for items of so many queries. */
static size_t attend_scratch(int32_t queries, int32_t key_dim, int32_t value_dim)
{
    return (size_t)queries * partial_bytes(value_dim) + task_scratch(queries, key_dim, value_dim);
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static int32_t first_tile(const cortiq_attend *a, int32_t position)
{
    int32_t first = a->window ? position - a->window + 1 : 0;
    return first < 0 ? 0 : first / TILE;
}

/* The last key that a row of a segment sees. */
static int32_t last_key(const cortiq_attend *a, const cortiq_segment *s, int32_t row)
{
    return a->last ? a->last[s->start + row] : s->position + row;
}

/* Bytes of the partials when tiles are split. */
static size_t split_bytes(const plan *p)
{
    size_t parts = (size_t)p->items * (size_t)p->parts;
    return parts * (size_t)p->queries * partial_bytes(p->args->kv.value_dim);
}

/* Items are (segment, KV head, block of queries), heads within a block's tiles being neighbours. */
static plan plan_blocks(const cortiq_attend *a, int32_t block, int32_t threads)
{
    plan p = {.args = a, .group = a->heads / a->kv.heads, .block = block};
    int32_t last = 0, count = *a->kv.segment_count;
    for (int32_t i = 0; i < count; i++) {
        const cortiq_segment *s = &a->kv.segments[i];
        int32_t queries = least(block, (s->stop - s->start) * p.group);
        p.queries = queries > p.queries ? queries : p.queries;
        p.items += blocks_of(s, &p) * a->kv.heads;
        int32_t tiles = last_key(a, s, s->stop - s->start - 1) / TILE + 1;
        tiles -= first_tile(a, s->position);
        last = tiles > last ? tiles : last;
    }
    if (threads == 1 || p.items >= 4 * threads) return p;
    p.unit = last <= SINGLE_TILES ? 1 : RUN_TILES;
    p.parts = last / p.unit + (p.unit > 1) + 1;
    p.at_once = p.unit > 1 ? 1 : p.items * p.parts / (4 * threads) + 1;
    if ((int64_t)split_bytes(&p) > a->workspace_bytes) p.unit = 0;
    return p;
}

/* Chosen keys are taken out of a tile once for a wide block, where a worker's scratch has room for
 * one and the blocks, or their tiles, still go round. */
static plan make_plan(const cortiq_attend *a, const cortiq_worker *worker)
{
    size_t room = attend_scratch(WIDE_BLOCK, a->kv.key_dim, a->kv.value_dim);
    if (a->chosen && room <= worker->scratch_bytes) {
        plan p = plan_blocks(a, WIDE_BLOCK, worker->threads);
        if (p.unit || worker->threads == 1 || p.items >= 4 * worker->threads) return p;
    }
    return plan_blocks(a, BLOCK, worker->threads);
}

/* Fill in the task of item `index`: its whole range of tiles. */
static void find_item(const plan *p, int32_t index, attention_task *t, int32_t *row)
{
    const cortiq_attend *a = p->args;
    const cortiq_segment *s = a->kv.segments;
    int32_t segment = 0;
    while (index >= blocks_of(s, p) * a->kv.heads) {
        index -= blocks_of(s, p) * a->kv.heads;
        s++;
        segment++;
    }
    int32_t queries = (s->stop - s->start) * p->group;
    t->args = a;
    t->pages = a->kv.pages[segment];
    t->head = index % a->kv.heads;
    t->group = p->group;
    t->position = s->position;
    t->first = index / a->kv.heads * p->block;
    t->count = least(p->block, queries - t->first);
    t->tile = first_tile(a, s->position + t->first / p->group);
    t->tile_stop = last_key(a, s, (t->first + t->count - 1) / p->group) / TILE + 1;
    *row = t->row = s->start;
    size_t record = (size_t)s->start * a->heads + (size_t)t->head * p->group;
    t->q = (const uint8_t *)a->q + record * cortiq_record_stride(a->kv.key_dim);
}

/* The logarithm of the sum of e^score, after the sink: numerics.attention.log_mass. */
static float log_mass(const cortiq_kernels *k, const partial *total)
{
    float y;
    if (total->n == NONE) return -0x1p15f;
    y = k->tail.log(total->mass) + (float)(total->m - 21) * 0.6931471805599453f;
    return y < 0x1p-40f && y > -0x1p-40f ? 0.0f : y;
}

static void finish_query(const cortiq_op *op, const cortiq_kernels *k, const attention_task *t,
                         int32_t first_row, int32_t query, partial *total)
{
    const cortiq_attend *a = op->args;
    int32_t row = first_row + (t->first + query) / t->group;
    int32_t head = t->head * t->group + (t->first + query) % t->group;
    float *out = a->out + row * a->out_stride + (int64_t)head * a->kv.value_dim;
    if (k->finish(a, total, out, head)) cortiq_fault(op, row);
    if (a->mass) a->mass[(int64_t)row * a->heads + head] = log_mass(k, total);
}

/* A task on this worker's instruction set. */
static void attend(const cortiq_worker *worker, const attention_task *t)
{
#if defined(CORTIQ_TILES)
    if (worker->isa == CORTIQ_AMX) {
        cortiq_attend_amx(t);
        return;
    }
#endif
#if defined(__x86_64__)
    if (worker->isa == CORTIQ_AMX_EMULATED) {
        cortiq_attend_amx_emulated(t);
        return;
    }
#endif
    cortiq_kernels_of(worker->isa)->attend(t);
}

/* The first block of an item's tile, or NULL where there is no such item or tile. */
static const uint8_t *block_of(const plan *p, int32_t item, int32_t part)
{
    int32_t row;
    attention_task t;
    if (item >= p->items) return NULL;
    find_item(p, item, &t, &row);
    int32_t tile = p->unit ? (t.tile / p->unit + part) * p->unit : t.tile;
    tile = tile > t.tile ? tile : t.tile;
    return tile < t.tile_stop ? tile_of(&p->args->kv, t.pages, tile, t.head) : NULL;
}

static void attend_whole(const cortiq_op *op, cortiq_worker *worker, const plan *p)
{
    const cortiq_kernels *k = cortiq_kernels_of(worker->isa);
    int32_t start, stop, row, value_dim = p->args->kv.value_dim;
    while (cortiq_take(worker, p->items, 1, &start, &stop)) {
        attention_task t = {.totals = worker->scratch};
        t.after = block_of(p, start + worker->threads, 0);
        t.scratch = worker->scratch + (size_t)p->queries * partial_bytes(value_dim);
        find_item(p, start, &t, &row);
        attend(worker, &t);
        for (int32_t i = 0; i < t.count; i++)
            finish_query(op, k, &t, row, i, partial_at(t.totals, (size_t)i, value_dim));
    }
}

static partial *partial_of(const plan *p, int32_t item, int32_t part, int32_t query)
{
    size_t index = ((size_t)item * p->parts + part) * p->queries + query;
    return partial_at(p->args->workspace, index, p->args->kv.value_dim);
}

/* Compute parts first … first + at_once − 1 of an item, as far as it has them. Parts that are
 * runs begin and end where runs do. */
static void attend_parts(cortiq_worker *worker, const plan *p, int32_t item, int32_t first,
                         const uint8_t *after)
{
    int32_t row;
    attention_task t = {.scratch = worker->scratch};
    find_item(p, item, &t, &row);
    int32_t start = (t.tile / p->unit + first) * p->unit, stop = start + p->at_once * p->unit;
    if (start >= t.tile_stop) return;
    t.tile = start > t.tile ? start : t.tile;
    t.tile_stop = least(stop, t.tile_stop);
    t.totals = partial_of(p, item, first, 0);
    t.separate = p->unit == 1 ? p->queries : 0;
    t.after = after;
    attend(worker, &t);
}

static void attend_split(cortiq_worker *worker, const plan *p)
{
    int32_t start, stop, tasks = (p->parts + p->at_once - 1) / p->at_once;
    while (cortiq_take(worker, p->items * tasks, 1, &start, &stop)) {
        int32_t next = start + worker->threads;
        attend_parts(worker, p, start / tasks, start % tasks * p->at_once,
                     block_of(p, next / tasks, next % tasks * p->at_once));
    }
}

/* Merge a query's parts in order: tiles to runs and runs to the whole, or runs at once. */
static void merge_query(const cortiq_op *op, cortiq_worker *worker, const plan *p, int32_t item,
                        int32_t query)
{
    const cortiq_kernels *k = cortiq_kernels_of(worker->isa);
    int32_t row, value_dim = p->args->kv.value_dim;
    attention_task t = {0};
    find_item(p, item, &t, &row);
    if (query >= t.count) return;
    partial *total = (partial *)worker->scratch, *run = partial_at(total, 1, value_dim);
    memset(total, 0, partial_bytes(value_dim));
    total->m = total->n = NONE;
    int32_t base = t.tile / p->unit, parts = (t.tile_stop - 1) / p->unit + 1 - base;
    for (int32_t part = 0; part < parts; part++) {
        int32_t tile = (base + part) * p->unit;
        const partial *next = partial_of(p, item, part, query);
        if (p->unit == RUN_TILES) {
            k->merge(total, next, value_dim);
            continue;
        }
        if (part == 0 || tile % RUN_TILES == 0) memcpy(run, next, partial_bytes(value_dim));
        else k->merge(run, next, value_dim);
        if (tile % RUN_TILES == RUN_TILES - 1 || part == parts - 1)
            k->merge(total, run, value_dim);
    }
    finish_query(op, k, &t, row, query, total);
}

static void attend_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_attend *a = op->args;
    plan p = make_plan(a, worker);
    int32_t start, stop, width = a->heads * a->kv.value_dim;
    if (!p.unit) attend_whole(op, worker, &p);
    else {
        attend_split(worker, &p);
        cortiq_barrier(worker);
        while (cortiq_take(worker, p.items * p.queries, 1, &start, &stop))
            merge_query(op, worker, &p, start / p.queries, start % p.queries);
    }
    if (!a->record) return;
    cortiq_barrier(worker);
    while (cortiq_take(worker, *op->rows, 1, &start, &stop))
        cortiq_quantise_to(a->record, start, a->out + start * a->out_stride, width, worker->isa);
}
CORTIQ_REGISTER(CORTIQ_ATTEND, attend_rows)

/* Bytes of workspace with which tiles can be split, for sequences of up to `positions`. Without
 * it attention is as right, and slower where few queries meet many keys. */
CORTIQ_API int64_t cortiq_attend_workspace(int32_t value_dim, int32_t positions, int32_t threads)
{
    int64_t tiles = positions / TILE + 2;
    int64_t parts = tiles <= SINGLE_TILES ? tiles + 1 : SINGLE_TILES + 2 + tiles / RUN_TILES;
    return threads == 1 ? 0 : 4 * threads * parts * BLOCK * (int64_t)partial_bytes(value_dim);
}
