/* CHOOSE_KEYS: the tiles of a row's keys over threads, then rows. */
#include "kernels.h"

#include <string.h>

enum {
    PART_TILES = 16,         /* tiles that a worker scores at a time */
    SCORE_BYTES = 8 << 20,   /* of the scores of rows that are chosen from together */
    DIGIT = 11, DIGITS = 3   /* bits of a score that are looked at together */
};

/* Integers in the order of the scores, none of which is -0 or a NaN. */
static uint32_t ordered(float score)
{
    int32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return (uint32_t)(bits ^ ((bits >> 31) & INT32_MAX)) ^ 0x80000000u;
}

/* The `top`-th largest of the scores, digit by digit; *more are larger. */
static uint32_t threshold(const float *scores, int32_t count, int32_t top, int32_t *more)
{
    uint32_t found = 0;
    *more = 0;
    for (int32_t digit = DIGITS - 1; digit >= 0; digit--) {
        int32_t bins[1 << DIGIT] = {0}, bin = (1 << DIGIT) - 1;
        int32_t shift = digit * DIGIT - 1 < 0 ? 0 : digit * DIGIT - 1;
        int32_t width = digit ? DIGIT : DIGIT - 1;
        for (int32_t i = 0; i < count; i++) {
            uint32_t key = ordered(scores[i]);
            if ((uint64_t)key >> (shift + width) == (uint64_t)found >> (shift + width))
                bins[key >> shift & ((1u << width) - 1)]++;
        }
        for (; *more + bins[bin] < top; bin--) *more += bins[bin];
        found |= (uint32_t)bin << shift;
    }
    return found;
}

/* The best keys in ascending order; of equal ones the first. */
static void select_keys(const float *scores, int32_t count, int32_t top, int32_t *out)
{
    int32_t more, kept = 0;
    uint32_t least = threshold(scores, count, top, &more);
    int32_t equal = top - more;
    for (int32_t i = 0; i < count && kept < top; i++) {
        uint32_t key = ordered(scores[i]);
        if (key > least || (key == least && equal-- > 0)) out[kept++] = i;
    }
}

/* The segment of a row, whose position is given. */
static int32_t segment_of(const cortiq_kv *kv, int32_t row, int32_t *position)
{
    int32_t segment = 0;
    while (row >= kv->segments[segment].stop) segment++;
    *position = kv->segments[segment].position + row - kv->segments[segment].start;
    return segment;
}

static int32_t most_tiles(const cortiq_kv *kv)
{
    int32_t most = 0;
    for (int32_t i = 0; i < *kv->segment_count; i++) {
        const cortiq_segment *s = &kv->segments[i];
        int32_t tiles = (s->position + s->stop - s->start - 1) / TILE + 1;
        most = tiles > most ? tiles : most;
    }
    return most;
}

/* Part `part` of a row's tiles, where its keys are too many to be all taken. */
static void score_part(const cortiq_choose_keys *how, cortiq_worker *worker, int32_t row,
                       int32_t part, float *scores)
{
    int32_t position, segment = segment_of(&how->kv, row, &position);
    const cortiq_attend a = {.kv = how->kv, .q = how->q, .heads = how->heads};
    attention_task t = {
        .args = &a, .pages = how->kv.pages[segment], .group = how->heads, .position = position,
        .row = row, .tile = part * PART_TILES, .scratch = worker->scratch,
    };
    t.tile_stop = position / TILE + 1;
    if ((position + 1) / how->every <= how->top || t.tile >= t.tile_stop) return;
    if (t.tile_stop > t.tile + PART_TILES) t.tile_stop = t.tile + PART_TILES;
    size_t record = (size_t)row * (size_t)how->heads;
    t.q = (const uint8_t *)how->q + record * cortiq_record_stride(how->kv.key_dim);
    cortiq_kernels_of(worker->isa)->score(&t, how->weights + record, scores + t.tile * TILE);
}

static void choose_row(const cortiq_choose_keys *how, int32_t row, float *scores)
{
    int32_t position, *out = how->out + (size_t)row * (size_t)how->top, every = how->every;
    segment_of(&how->kv, row, &position);
    int32_t count = (position + 1) / every;
    if (count > how->top) {
        if (every > 1)
            for (int32_t i = 0; i < count; i++) scores[i] = scores[(i + 1) * every - 1];
        select_keys(scores, count, how->top, out);
    } else
        for (int32_t i = 0; i < how->top; i++) out[i] = i;
    for (int32_t i = 0; i < how->top; i++)
        out[i] = out[i] < count ? (out[i] + 1) * every - 1 : position + 1 + out[i] - count;
}

static void choose_key_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_choose_keys *how = op->args;
    int32_t start, stop, tiles = most_tiles(&how->kv), rows = *op->rows;
    size_t stride = (size_t)tiles * TILE;
    int32_t parts = (tiles + PART_TILES - 1) / PART_TILES;
    int32_t at_once = (int32_t)(SCORE_BYTES / (stride * sizeof(float)));
    at_once = at_once < 1 ? 1 : at_once < rows ? at_once : rows;
    float *scores = (float *)(void *)cortiq_shared(worker, at_once * stride * sizeof(float));
    for (int32_t first = 0; first < rows; first += at_once) {
        int32_t count = rows - first < at_once ? rows - first : at_once;
        if (!scores) { /* no memory: the rows' requests fail */
            for (int32_t row = first; row < first + count; row++) cortiq_fault(op, row);
            continue;
        }
        if (first) cortiq_barrier(worker);
        while (cortiq_take(worker, count * parts, 1, &start, &stop))
            score_part(how, worker, first + start / parts, start % parts,
                       scores + start / parts * stride);
        cortiq_barrier(worker);
        while (cortiq_take(worker, count, 1, &start, &stop))
            choose_row(how, first + start, scores + start * stride);
    }
}
CORTIQ_REGISTER(CORTIQ_CHOOSE_KEYS, choose_key_rows)
