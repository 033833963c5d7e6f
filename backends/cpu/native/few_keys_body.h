/* Few keys of a tile, taken out of it: what a query that chose its keys sees. Continues
 * attention_body.h. The tile's sums are of integers, so that leaving out keys without a weight
 * changes no bit. */

/* Keys of one tile, one beside the other. */
struct few_keys {
    uint64_t keys; /* which; 0: none yet */
    int count, vectors;
    int32_t index[FEW_KEYS]; /* in the tile */
    int32_t key_exponent[FEW_KEYS], value_exponent[FEW_KEYS];
    int16_t *gathered; /* a row for each key, filled up to whole vectors with zeros */
    int16_t *values;   /* as in a tile: [count / 2][value_width][2] */
};
typedef struct few_keys few_keys;

static void list_keys(few_keys *f, const block *b, uint64_t keys)
{
    f->keys = keys;
    f->count = 0;
    for (uint64_t rest = keys; rest; rest &= rest - 1) {
        int at = __builtin_ctzll(rest), i = f->count++;
        f->index[i] = at;
        f->key_exponent[i] = b->key_exponent[at];
        f->value_exponent[i] = b->value_exponent[at];
    }
    f->vectors = (f->count + CQ_LANES - 1) / CQ_LANES;
    for (int i = f->count; i < f->vectors * CQ_LANES; i++)
        f->key_exponent[i] = f->value_exponent[i] = f->index[i] = 0;
}

/* Values of keys i and i + 1, beside one another. */
static void gather_values(few_keys *f, const block *b, int i)
{
    int two = i + 1 < f->count, first = f->index[i], second = two ? f->index[i + 1] : 0;
    int left = first % 2 ? 0 : 16, right = second % 2 ? 16 : 0;
    const int16_t *of = b->values + first / 2 * 2 * b->value_width;
    const int16_t *with = b->values + second / 2 * 2 * b->value_width;
    int16_t *to = f->values + i * b->value_width;
    for (int d = 0; d < 2 * b->value_width; d += 2 * CQ_LANES) {
        vu x = (vu)i_load((const int32_t *)(const void *)(of + d)), y = {0};
        if (two) y = (vu)i_load((const int32_t *)(const void *)(with + d));
        i_store((int32_t *)(void *)(to + d), (vi)((x << left) >> 16 | (y >> right) << 16));
    }
}

static void gather_keys(few_keys *f, const block *b, uint64_t keys)
{
    list_keys(f, b, keys);
    const pair_word *from = (const pair_word *)b->keys;
    int width = (b->pairs + CQ_LANES - 1) / CQ_LANES * CQ_LANES;
    pair_word *to = (pair_word *)f->gathered;
    for (int p = 0; p < b->pairs; p++)
        for (int i = 0; i < f->count; i++) to[i * width + p] = from[p * TILE + f->index[i]];
    for (int p = b->pairs; p < width; p++)
        for (int i = 0; i < f->count; i++) to[i * width + p] = 0;
    for (int i = 0; i < f->count; i += 2) gather_values(f, b, i);
}

/* 256·Σ high + Σ low, rounded once. Sums of four lanes still fit int32. */
INLINE float plane_total(vi high, vi low)
{
    typedef int64_t four __attribute__((vector_size(32)));
    four sum = __builtin_convertvector(i_quarters(high), four) * 256 +
               __builtin_convertvector(i_quarters(low), four);
    return (float)((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* RN(q·k) of `count` queries with the keys: dots [count][TILE]. Dimensions lie along the lanes; what
 * follows a query's row meets zeros of the key. */
INLINE void few_rounded(int count, const block *b, const few_keys *f, const int *who, float *dots)
{
    int width = (b->pairs + CQ_LANES - 1) / CQ_LANES * CQ_LANES;
    for (int key = 0; key < f->count; key++) {
        const int16_t *row = f->gathered + 2 * key * width;
        pair_sums h[3], l[3];
        memset(h, 0, sizeof h);
        memset(l, 0, sizeof l);
        for (int p = 0; p < width; p += CQ_LANES) {
            vi k = i_load((const int32_t *)(const void *)(row + 2 * p));
            UNROLL for (int i = 0; i < count; i++) {
                int at = 2 * (who[i] * b->pairs + p);
                h[i] = add_pairs(h[i], i_load((const int32_t *)(const void *)(b->high + at)), k);
                l[i] = add_pairs(l[i], i_load((const int32_t *)(const void *)(b->low + at)), k);
            }
        }
        UNROLL for (int i = 0; i < count; i++)
            dots[i * TILE + key] = plane_total(joined(h[i]), joined(l[i]));
    }
    for (int key = f->count; key < f->vectors * CQ_LANES; key++)
        for (int i = 0; i < count; i++) dots[i * TILE + key] = 0;
}

/* `count` queries (1 to 3) against the keys that any of them sees, at most FEW_KEYS. */
INLINE void few_of_queries(int count, const block *b, few_keys *f, const cortiq_attend *a,
                           const visitors *q)
{
    float dots[3 * TILE], *o[3];
    tile_weights w[3];
    uint64_t any = q->seen[0];
    for (int i = 1; i < count; i++) any |= q->seen[i];
    if (any != f->keys) gather_keys(f, b, any);
    int pairs = (f->count + 1) / 2;
    few_rounded(count, b, f, q->who, dots);
    for (int i = 0; i < count; i++) {
        uint64_t seen = 0;
        for (int j = 0; j < f->count; j++) seen |= (q->seen[i] >> f->index[j] & 1) << j;
        softmax_of(b->exponent[q->who[i]], f->key_exponent, f->value_exponent, f->vectors, a,
                   slope_of(b, q->who[i], f->index), dots + i * TILE, 0, 0, &seen, q->runs[i], &w[i]);
    }
    for (int d = 0; d < b->value_width;) {
        int abreast = d + ABREAST * CQ_LANES <= b->value_width ? ABREAST : 1;
        for (int i = 0; i < count; i++) o[i] = q->runs[i]->o + d;
        if (abreast == ABREAST)
            add_values(count, ABREAST, w, f->values + 2 * d, 0, b->value_width, 0, pairs, o);
        else add_values(count, 1, w, f->values + 2 * d, 0, b->value_width, 0, pairs, o);
        d += abreast * CQ_LANES;
    }
}

static void attend_few(int count, const block *b, const cortiq_attend *a, const visitors *q)
{
    if (count == 3) few_of_queries(3, b, b->few, a, q);
    if (count == 2) few_of_queries(2, b, b->few, a, q);
    if (count == 1) few_of_queries(1, b, b->few, a, q);
}
