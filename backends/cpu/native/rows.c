/* Ops on rows: elementwise functions, norms, quantised rows, copies. */
#include "kernels.h"
#include "records.h"

#include <string.h>

/* Values of a row that one worker takes: wide rows, such as logits, are shared. */
enum { CHUNK = 8192 };

const cortiq_kernels *cortiq_kernels_of(int isa)
{
#if defined(__x86_64__)
    if (isa >= CORTIQ_AVX512VNNI) return &cortiq_kernels_avx512;
    if (isa == CORTIQ_AVXVNNI) return &cortiq_kernels_avxvnni;
    if (isa == CORTIQ_AVX2) return &cortiq_kernels_avx2;
#elif defined(__aarch64__)
    if (isa >= CORTIQ_NEON) return &cortiq_kernels_neon;
#endif
    (void)isa;
    return &cortiq_kernels_portable;
}

static const cortiq_row_kernels *row_kernels(const cortiq_worker *worker)
{
    return &cortiq_kernels_of(worker->isa)->row;
}

static int elementwise(const cortiq_row_kernels *k, int kind, const cortiq_elementwise *e,
                       const float *a, const float *b, float *out, int n)
{
    switch (kind) {
    case CORTIQ_MULTIPLY: return k->multiply(a, b, out, n);
    case CORTIQ_SCALE: return k->scale(a, e->factor, out, n);
    case CORTIQ_ACTIVATION: return k->activation(a, b, out, n, e->function);
    case CORTIQ_SOFT_CAP: return k->soft_cap(a, e->factor, e->inverse, out, n);
    default: return k->add(a, b, out, n);
    }
}

/* Values from … from + n − 1 of part `part` of row `row`. */
static void elementwise_part(const cortiq_op *op, cortiq_worker *worker, int32_t row, int32_t part,
                             int32_t from, int32_t n)
{
    const cortiq_elementwise *e = op->args;
    int64_t at = (int64_t)part * e->width + from;
    const float *a = e->a + row * e->a_stride + at, *b = NULL;
    if (e->b && op->kind == CORTIQ_BIAS) b = e->b + from;
    else if (e->b) b = e->b + row * e->b_stride + at;
    float *out = e->out ? e->out + row * e->out_stride + at : (float *)worker->scratch;
    if (elementwise(row_kernels(worker), op->kind, e, a, b, out, n)) cortiq_fault(op, row);
    if (e->record)
        cortiq_quantise_to(e->record, (int64_t)row * e->inner + part, out, n, worker->isa);
}

static void elementwise_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_elementwise *e = op->args;
    int32_t chunk = e->record || e->width < CHUNK ? e->width : CHUNK;
    int32_t chunks = (e->width + chunk - 1) / chunk, total = *op->rows * e->inner * chunks;
    int32_t start, stop;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t i = start; i < stop; i++) {
            int32_t part = i / chunks, from = i % chunks * chunk;
            int32_t n = e->width - from < chunk ? e->width - from : chunk;
            elementwise_part(op, worker, part / e->inner, part % e->inner, from, n);
        }
}

CORTIQ_REGISTER(CORTIQ_ADD, elementwise_rows)
static void multiply_rows(const cortiq_op *op, cortiq_worker *w) { elementwise_rows(op, w); }
static void scale_rows(const cortiq_op *op, cortiq_worker *w) { elementwise_rows(op, w); }
static void bias_rows(const cortiq_op *op, cortiq_worker *w) { elementwise_rows(op, w); }
static void activation_rows(const cortiq_op *op, cortiq_worker *w) { elementwise_rows(op, w); }
static void soft_cap_rows(const cortiq_op *op, cortiq_worker *w) { elementwise_rows(op, w); }
CORTIQ_REGISTER(CORTIQ_MULTIPLY, multiply_rows)
CORTIQ_REGISTER(CORTIQ_SCALE, scale_rows)
CORTIQ_REGISTER(CORTIQ_BIAS, bias_rows)
CORTIQ_REGISTER(CORTIQ_ACTIVATION, activation_rows)
CORTIQ_REGISTER(CORTIQ_SOFT_CAP, soft_cap_rows)

static int norm_of(const cortiq_row_kernels *k, int kind, const cortiq_norm *a, const float *x,
                   float *out)
{
    if (kind == CORTIQ_LAYER_NORM)
        return k->layer_norm(x, a->weight, a->bias, a->inverse_width, a->eps, out, a->width);
    if (kind == CORTIQ_L2_NORM) return k->l2_norm(x, a->eps, out, a->width);
    return k->rms_norm(x, a->weight, a->inverse_width, a->eps, out, a->width);
}

/* One part of a row through the chain that args.h describes. */
static void norm_part(const cortiq_op *op, cortiq_worker *worker, int32_t row, int32_t part)
{
    const cortiq_norm *a = op->args;
    const cortiq_row_kernels *k = row_kernels(worker);
    int64_t at = (int64_t)part * a->width;
    int n = a->width, fault = 0;
    const float *y = a->x + row * a->x_stride + at;
    float *scratch = (float *)worker->scratch;
    if (a->after) {
        fault |= k->rms_norm(y, a->after_weight, a->inverse_width, a->after_eps, scratch, n);
        y = scratch;
    }
    if (a->residual) {
        float *sum = a->sum + row * a->sum_stride + at;
        fault |= k->add(a->residual + row * a->residual_stride + at, y, sum, n);
        y = sum;
    }
    if (a->out || a->record) {
        float *out = a->out ? a->out + row * a->out_stride + at : scratch;
        fault |= norm_of(k, op->kind, a, y, out);
        if (a->record)
            cortiq_quantise_to(a->record, (int64_t)row * a->inner + part, out, n, worker->isa);
    }
    if (fault) cortiq_fault(op, row);
}

static void rms_norm_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_norm *a = op->args;
    int32_t start, stop, total = *op->rows * a->inner;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t i = start; i < stop; i++) norm_part(op, worker, i / a->inner, i % a->inner);
}

static void layer_norm_rows(const cortiq_op *op, cortiq_worker *w) { rms_norm_rows(op, w); }
static void l2_norm_rows(const cortiq_op *op, cortiq_worker *w) { rms_norm_rows(op, w); }
CORTIQ_REGISTER(CORTIQ_RMS_NORM, rms_norm_rows)
CORTIQ_REGISTER(CORTIQ_LAYER_NORM, layer_norm_rows)
CORTIQ_REGISTER(CORTIQ_L2_NORM, l2_norm_rows)

static void quantise_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_quantise *a = op->args;
    int32_t start, stop, total = *op->rows * a->inner;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t i = start; i < stop; i++) {
            const float *x = a->x + i / a->inner * a->x_stride + i % a->inner * (int64_t)a->width;
            cortiq_quantise_to(a->record, i, x, a->width, worker->isa);
        }
}
CORTIQ_REGISTER(CORTIQ_QUANTISE, quantise_rows)

static void rope_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_rope *a = op->args;
    int32_t start, stop, total = *op->rows * a->heads;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t i = start; i < stop; i++) {
            int64_t row = i / a->heads, at = i % a->heads * (int64_t)a->width;
            const float *cos = a->cos + row * a->pairs, *sin = a->sin + row * a->pairs;
            if (row_kernels(worker)->rope(a->x + row * a->x_stride + at, cos, sin,
                                          a->out + row * a->out_stride + at, a->pairs, a->width,
                                          a->interleaved))
                cortiq_fault(op, (int32_t)row);
        }
}
CORTIQ_REGISTER(CORTIQ_ROPE, rope_rows)

static void copy_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_copy *a = op->args;
    int32_t start, stop, total = *op->rows;
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        for (int32_t i = start; i < stop; i++) {
            const float *x = a->x + (a->from ? a->from[i] : i) * a->x_stride;
            float *out = a->out + i * a->out_stride;
            if (!a->snapped) memcpy(out, x, (size_t)a->width * sizeof *out);
            else if (row_kernels(worker)->snap(x, out, a->width)) cortiq_fault(op, i);
        }
}
CORTIQ_REGISTER(CORTIQ_COPY, copy_rows)
