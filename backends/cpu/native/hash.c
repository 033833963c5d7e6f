/* HASH_NGRAMS: rows of a table by the last tokens of a sequence, which its ring keeps. */
#include "kernels.h"

enum { MOST_TOKENS = 16 };

/* The token of a position `back` rows before row `row` of a segment; -1 before the start. */
static int32_t token_before(const cortiq_hash *a, const cortiq_segment *s, const float *ring,
                            int32_t capacity, int32_t row, int32_t back)
{
    int32_t position = s->position + row - back;
    if (row >= back) return a->tokens[s->start + row - back];
    return position < 0 ? -1 : (int32_t)ring[position % capacity] - 1;
}

static void hash_row(const cortiq_hash *a, const cortiq_segment *s, const float *ring,
                     int32_t capacity, int32_t row)
{
    uint64_t mixed[MOST_TOKENS];
    int over = 0;
    for (int32_t back = 0; back < a->size; back++) {
        int32_t token = token_before(a, s, ring, capacity, row, back);
        over |= back && (token < 0 || token == a->end);
        uint64_t product = (uint64_t)(over ? a->end : token) * a->multipliers[back];
        mixed[back] = back ? mixed[back - 1] ^ product : product;
    }
    int32_t *out = a->out + (int64_t)(s->start + row) * a->heads, first = 0;
    for (int32_t head = 0; head < a->heads; head++) {
        int32_t length = 1 + head / (a->heads / (a->size - 1));
        out[head] = first + (int32_t)(mixed[length] % (uint64_t)a->heights[head]);
        first += a->heights[head];
    }
}

static void hash_segment(const cortiq_hash *a, int32_t segment)
{
    const cortiq_segment *s = &a->segments[segment];
    float *ring = a->rings[segment];
    int32_t capacity = a->capacities[segment], rows = s->stop - s->start;
    for (int32_t row = 0; row < rows; row++) hash_row(a, s, ring, capacity, row);
    for (int32_t row = rows > capacity ? rows - capacity : 0; row < rows; row++)
        ring[(s->position + row) % capacity] = (float)(a->tokens[s->start + row] + 1);
}

static void hash_ngrams(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_hash *a = op->args;
    int32_t segment, stop;
    while (cortiq_take(worker, *a->segment_count, 1, &segment, &stop)) hash_segment(a, segment);
}
CORTIQ_REGISTER(CORTIQ_HASH_NGRAMS, hash_ngrams)
