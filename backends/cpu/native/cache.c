/* Key and value rows: into the cache, out of it, and the op that prepares heads for attention. */
#include "kernels.h"
#include "records.h"

#include <math.h>
#include <string.h>

CORTIQ_API int64_t cortiq_kv_page_bytes(int32_t heads, int32_t key_dim, int32_t value_dim,
                                        int32_t page_tiles)
{
    cortiq_kv kv = {.heads = heads, .key_dim = key_dim, .value_dim = value_dim};
    return (int64_t)tile_bytes(&kv) * heads * page_tiles;
}

/* Where a row of one head lies: first key pair, first value, exponents. */
typedef struct {
    int16_t *key, *value;
    int8_t *key_exponent, *value_exponent;
} place;

static place place_of(const cortiq_kv *kv, uint8_t *const *pages, int32_t position, int32_t head)
{
    uint8_t *base = tile_of(kv, pages, position / TILE, head);
    int32_t slot = position % TILE, width = sixteens(kv->value_dim);
    int16_t *keys = (int16_t *)(void *)base, *values = keys + TILE * even(kv->key_dim);
    int8_t *exponents = (int8_t *)(values + TILE * width);
    return (place){keys + 2 * slot, values + slot / 2 * 2 * width + slot % 2, exponents + slot,
                   exponents + TILE + slot};
}

static void put_key(const place *at, const int16_t *q, int32_t e, int32_t dim)
{
    for (int32_t d = 0; d < dim; d++) at->key[d / 2 * 2 * TILE + d % 2] = q[d];
    if (dim % 2) at->key[dim / 2 * 2 * TILE + 1] = 0;
    *at->key_exponent = (int8_t)e;
}

static void put_value(const place *at, const int16_t *q, int32_t e, int32_t dim)
{
    for (int32_t d = 0; d < dim; d++) at->value[2 * d] = q[d];
    *at->value_exponent = (int8_t)e;
}

/* The segment of a row of the batch, and the row's position. */
static int32_t segment_of(const cortiq_kv *kv, int32_t row, int32_t *position)
{
    int32_t i = 0;
    while (row >= kv->segments[i].stop) i++;
    *position = kv->segments[i].position + row - kv->segments[i].start;
    return i;
}

static void store_row(const cortiq_store_kv *a, int32_t row)
{
    const cortiq_kv *kv = &a->kv;
    int32_t position, segment = segment_of(kv, row, &position);
    size_t key_stride = cortiq_record_stride(kv->key_dim);
    size_t value_stride = cortiq_record_stride(kv->value_dim);
    for (int32_t head = 0; head < kv->heads; head++) {
        size_t index = (size_t)row * kv->heads + head;
        const uint8_t *key = (const uint8_t *)a->keys + index * key_stride;
        const uint8_t *value = (const uint8_t *)a->values + index * value_stride;
        place at = place_of(kv, kv->pages[segment], position, head);
        put_key(&at, cortiq_record_q(key), *cortiq_record_e(key, kv->key_dim), kv->key_dim);
        if (kv->value_dim)
            put_value(&at, cortiq_record_q(value), *cortiq_record_e(value, kv->value_dim),
                      kv->value_dim);
    }
}

static void store_kv_rows(const cortiq_op *op, cortiq_worker *worker)
{
    int32_t start, stop, total = *op->rows;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t row = start; row < stop; row++) store_row(op->args, row);
}
CORTIQ_REGISTER(CORTIQ_STORE_KV, store_kv_rows)

/* q·2^e is exact, and canonical but for what is below 2^-40; it never faults. */
static void recall_row(const cortiq_recall *a, const cortiq_row_kernels *k, int32_t row)
{
    const cortiq_kv *kv = &a->kv;
    int32_t position, segment = segment_of(kv, row, &position), dim = kv->key_dim;
    for (int32_t head = 0; head < kv->heads; head++) {
        place at = place_of(kv, kv->pages[segment], position, head);
        float *out = a->out + row * a->out_stride + (int64_t)head * dim;
        float scale = ldexpf(1.0f, *at.key_exponent);
        for (int32_t d = 0; d < dim; d++)
            out[d] = (float)at.key[d / 2 * 2 * TILE + d % 2] * scale;
        k->snap(out, out, dim);
    }
}

static void recall_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_row_kernels *k = &cortiq_kernels_of(worker->isa)->row;
    int32_t start, stop, total = *op->rows;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t row = start; row < stop; row++) recall_row(op->args, k, row);
}
CORTIQ_REGISTER(CORTIQ_RECALL, recall_rows)

/* Norm and rope of one head; where the result is. */
static const float *shape_head(const cortiq_op *op, cortiq_worker *worker,
                               const cortiq_heads_part *p, int32_t row, int32_t head)
{
    const cortiq_row_kernels *k = &cortiq_kernels_of(worker->isa)->row;
    const float *x = p->x + row * p->x_stride + (int64_t)head * p->width;
    float *y = (float *)(void *)worker->scratch;
    int fault = 0;
    if (p->normed) {
        fault |= k->rms_norm(x, p->weight, p->inverse_width, p->eps, y, p->width);
        x = y;
    }
    if (p->pairs) {
        const float *cos = p->cos + (int64_t)row * p->pairs;
        const float *sin = p->sin + (int64_t)row * p->pairs;
        float *turned = y + p->width;
        fault |= k->rope(x, cos, sin, turned, p->pairs, p->width, p->interleaved);
        x = turned;
    }
    if (fault) cortiq_fault(op, row);
    return x;
}

static void heads_row(const cortiq_op *op, cortiq_worker *worker, const cortiq_heads_part *p,
                      int32_t row, int32_t head)
{
    const cortiq_heads *a = op->args;
    const cortiq_row_kernels *k = &cortiq_kernels_of(worker->isa)->row;
    const float *x = shape_head(op, worker, p, row, head);
    if (p->target == CORTIQ_TO_RECORD) {
        size_t index = (size_t)row * p->heads + head;
        uint8_t *record = (uint8_t *)p->record + index * cortiq_record_stride(p->width);
        int16_t *q = cortiq_record_q(record);
        *cortiq_record_e(record, p->width) = k->quantise(x, q, p->width);
        return;
    }
    int32_t position, segment = segment_of(&a->kv, row, &position);
    int16_t *q = (int16_t *)(void *)((float *)(void *)worker->scratch + 2 * p->width);
    int32_t e = k->quantise(x, q, p->width);
    place at = place_of(&a->kv, a->kv.pages[segment], position, head);
    if (p->target == CORTIQ_TO_KEYS) put_key(&at, q, e, p->width);
    else put_value(&at, q, e, p->width);
}

static void heads_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_heads *a = op->args;
    int32_t start, stop, per_row = 0;
    for (int32_t i = 0; i < a->count; i++) per_row += a->parts[i].heads;
    int32_t total = *op->rows * per_row, grain = cortiq_grain(total, worker->threads);
    while (cortiq_take(worker, total, grain, &start, &stop))
        for (int32_t i = start; i < stop; i++) {
            int32_t head = i % per_row;
            const cortiq_heads_part *p = a->parts;
            for (; head >= p->heads; p++) head -= p->heads;
            heads_row(op, worker, p, i / per_row, head);
        }
}
CORTIQ_REGISTER(CORTIQ_HEADS, heads_rows)

/* Rows first … first + count − 1 of a cache as arrays [count][heads][dim] and [count][heads], or
 * such arrays into the cache. */
CORTIQ_API void cortiq_kv_read(const cortiq_kv *kv, uint8_t *const *pages, int32_t first,
                               int32_t count, int16_t *keys, int8_t *key_exponents, int16_t *values,
                               int8_t *value_exponents)
{
    for (int32_t i = 0; i < count * kv->heads; i++) {
        place at = place_of(kv, pages, first + i / kv->heads, i % kv->heads);
        int16_t *key = keys + (size_t)i * kv->key_dim, *value = values + (size_t)i * kv->value_dim;
        for (int32_t d = 0; d < kv->key_dim; d++) key[d] = at.key[d / 2 * 2 * TILE + d % 2];
        for (int32_t d = 0; d < kv->value_dim; d++) value[d] = at.value[2 * d];
        key_exponents[i] = *at.key_exponent;
        value_exponents[i] = *at.value_exponent;
    }
}

CORTIQ_API void cortiq_kv_write(const cortiq_kv *kv, uint8_t *const *pages, int32_t first,
                                int32_t count, const int16_t *keys, const int8_t *key_exponents,
                                const int16_t *values, const int8_t *value_exponents)
{
    for (int32_t i = 0; i < count * kv->heads; i++) {
        place at = place_of(kv, pages, first + i / kv->heads, i % kv->heads);
        put_key(&at, keys + (size_t)i * kv->key_dim, key_exponents[i], kv->key_dim);
        put_value(&at, values + (size_t)i * kv->value_dim, value_exponents[i], kv->value_dim);
    }
}
