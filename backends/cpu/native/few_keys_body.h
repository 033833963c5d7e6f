/* Few keys of a tile, taken out of it: what a query that chose its keys sees. Continues
 * attention_body.h. The tile's sums are of integers, so that leaving out keys without a weight
 * changes no bit. */

/* Keys of one tile, one beside the other. */
struct few_keys {
    uint64_t keys; /* which; 0: none yet */
    int count, vectors, pairs;
    int32_t index[FEW_KEYS], place[FEW_KEYS];       /* in the tile; among the pairs: 2·pair + side */
    int32_t pair[FEW_KEYS];                    /* of the tile's positions: those that hold a key */
    int32_t key_exponent[FEW_KEYS], value_exponent[FEW_KEYS];
    int16_t *gathered; /* [pairs of dimensions][vectors·CQ_LANES][2] */
};
typedef struct few_keys few_keys;

static void list_keys(few_keys *f, const block *b, uint64_t keys)
{
    f->keys = keys;
    f->count = f->pairs = 0;
    for (uint64_t rest = keys; rest; rest &= rest - 1) {
        int at = __builtin_ctzll(rest), i = f->count++;
        f->index[i] = at;
        f->key_exponent[i] = b->key_exponent[at];
        f->value_exponent[i] = b->value_exponent[at];
        if (!f->pairs || f->pair[f->pairs - 1] != at / 2) f->pair[f->pairs++] = at / 2;
        f->place[i] = 2 * (f->pairs - 1) + at % 2;
    }
    f->vectors = (f->count + CQ_LANES - 1) / CQ_LANES;
    for (int i = f->count; i < f->vectors * CQ_LANES; i++)
        f->key_exponent[i] = f->value_exponent[i] = 0;
}

static void gather_keys(few_keys *f, const block *b, uint64_t keys)
{
    list_keys(f, b, keys);
    const pair_word *from = (const pair_word *)b->keys;
    pair_word *to = (pair_word *)f->gathered;
    int width = f->vectors * CQ_LANES;
    for (int p = 0; p < b->pairs; p++, from += TILE, to += width) {
        for (int i = 0; i < f->count; i++) to[i] = from[f->index[i]];
        for (int i = f->count; i < width; i++) to[i] = 0;
    }
}

/* Plane products of `count` queries with vector v of the keys, over pairs from … stop − 1. */
INLINE void few_dots(int count, const block *b, const few_keys *f, const int *who, int v, int from,
                     int stop, vi *h, vi *l)
{
    int width = f->vectors * CQ_LANES;
    memset(h, 0, 3 * sizeof *h);
    memset(l, 0, 3 * sizeof *l);
    for (int p = from; p < stop; p++) {
        const int16_t *at = f->gathered + 2 * (p * width + v * CQ_LANES);
        vi key = i_load((const int32_t *)(const void *)at);
        UNROLL for (int i = 0; i < count; i++) {
            h[i] = add_pairs(h[i], pair_at(b->high + who[i] * 2 * b->pairs, p), key);
            l[i] = add_pairs(l[i], pair_at(b->low + who[i] * 2 * b->pairs, p), key);
        }
    }
}

/* RN(q·k) of `count` queries with the keys: dots [count][TILE]. */
INLINE void few_rounded(int count, const block *b, const few_keys *f, const int *who, float *dots)
{
    vi h[3], l[3];
    for (int v = 0; v < f->vectors; v++) {
        if (b->pairs <= WIDEST) {
            few_dots(count, b, f, who, v, 0, b->pairs, h, l);
            for (int i = 0; i < count; i++)
                f_store(dots + i * TILE + v * CQ_LANES, round_planes(h[i], l[i]));
            continue;
        }
        int64_t sums[3][CQ_LANES] = {{0}};
        for (int from = 0; from < b->pairs; from += WIDEST) {
            int stop = b->pairs - from < WIDEST ? b->pairs : from + WIDEST;
            few_dots(count, b, f, who, v, from, stop, h, l);
            for (int i = 0; i < count; i++)
                for (int lane = 0; lane < CQ_LANES; lane++)
                    sums[i][lane] += (int64_t)h[i][lane] * 256 + l[i][lane];
        }
        for (int i = 0; i < count; i++)
            for (int lane = 0; lane < CQ_LANES; lane++)
                dots[i * TILE + v * CQ_LANES + lane] = (float)sums[i][lane];
    }
}

/* Weights of the keys in the places of their pairs. */
static void place_weights(const few_keys *f, const tile_weights *from, tile_weights *to)
{
    memset(to->high, 0, 2 * (size_t)f->pairs * sizeof *to->high);
    memset(to->low, 0, 2 * (size_t)f->pairs * sizeof *to->low);
    for (int i = 0; i < f->count; i++) {
        to->high[f->place[i]] = from->high[i];
        to->low[f->place[i]] = from->low[i];
    }
    to->keep = from->keep;
    to->take = from->take;
}

/* `count` queries (1 to 3) against the keys that any of them sees, at most FEW_KEYS. */
INLINE void few_of_queries(int count, const block *b, few_keys *f, const cortiq_attend *a,
                           const visitors *q)
{
    float dots[3 * TILE], *o[3];
    tile_weights beside, w[3];
    uint64_t any = q->seen[0];
    for (int i = 1; i < count; i++) any |= q->seen[i];
    if (any != f->keys) gather_keys(f, b, any);
    few_rounded(count, b, f, q->who, dots);
    for (int i = 0; i < count; i++) {
        uint64_t seen = 0;
        for (int j = 0; j < f->count; j++) seen |= (q->seen[i] >> f->index[j] & 1) << j;
        softmax_of(b->exponent[q->who[i]], f->key_exponent, f->value_exponent, f->vectors, a,
                   dots + i * TILE, 0, 0, &seen, q->runs[i], &beside);
        place_weights(f, &beside, &w[i]);
    }
    for (int d = 0; d < b->value_width;) {
        int abreast = d + ABREAST * CQ_LANES <= b->value_width ? ABREAST : 1;
        for (int i = 0; i < count; i++) o[i] = q->runs[i]->o + d;
        if (abreast == ABREAST)
            add_values(count, ABREAST, w, b->values + 2 * d, 0, b->value_width, f->pair, 0,
                       f->pairs, o);
        else add_values(count, 1, w, b->values + 2 * d, 0, b->value_width, f->pair, 0, f->pairs, o);
        d += abreast * CQ_LANES;
    }
}

static void attend_few(int count, const block *b, const cortiq_attend *a, const visitors *q)
{
    if (count == 3) few_of_queries(3, b, b->few, a, q);
    if (count == 2) few_of_queries(2, b, b->few, a, q);
    if (count == 1) few_of_queries(1, b, b->few, a, q);
}
