/* A task of attention, tile by tile; continues attention_body.h. */

static void clear_partials(void *partials, int count, int32_t value_dim)
{
    for (int i = 0; i < count; i++) {
        partial *p = partial_at(partials, (size_t)i, value_dim);
        memset(p, 0, partial_bytes(value_dim));
        p->m = p->n = NONE;
    }
}

/* Contract steps 8 and 9. An empty `before` is taken over by what is added: 0·0 + x·1. */
static void merge_partial(partial *before, const partial *after, int32_t value_dim)
{
    int32_t m = larger(before->m, after->m), n = larger(before->n, after->n);
    vf keep = f_all(power(before->n - n, -60)), take = f_all(power(after->n - n, -60));
    before->mass =
        before->mass * power(before->m - m, -60) + after->mass * power(after->m - m, -60);
    for (int d = 0; d < sixteens(value_dim); d += CQ_LANES)
        f_store(before->o + d, f_load(before->o + d) * keep + f_load(after->o + d) * take);
    before->m = m;
    before->n = n;
}

/* Planes, exponents and positions of the task's queries. */
static void take_queries(const attention_task *t, block *b)
{
    const cortiq_attend *a = t->args;
    int32_t dim = a->kv.key_dim;
    size_t stride = cortiq_record_stride(dim);
    for (int i = 0; i < t->count; i++) {
        int32_t row = (t->first + i) / t->group, head = (t->first + i) % t->group;
        const void *record = t->q + ((size_t)row * a->heads + head) * stride;
        const int16_t *q = record;
        int16_t *restrict high = b->high + i * 2 * b->pairs;
        int16_t *restrict low = b->low + i * 2 * b->pairs;
        high[2 * b->pairs - 1] = low[2 * b->pairs - 1] = 0; /* of an odd width's padding */
        for (int d = 0; d < dim; d++) {
            high[d] = (int16_t)((q[d] + 128) >> 8);
            low[d] = (int16_t)(q[d] - high[d] * 256);
        }
        b->exponent[i] = *cortiq_record_e(record, dim);
        b->position[i] = a->last ? a->last[t->row + row] : t->position + row;
        b->own[i] = t->position + row;
        b->first[i] = a->window ? larger(0, b->own[i] - a->window + 1) : 0;
        b->steep[i] = a->steep ? a->steep[t->head * t->group + head] : 0;
    }
}

static void take_tile(const attention_task *t, block *b, int32_t tile)
{
    if (b->few) b->few->keys = 0;
    b->start = tile * TILE;
    const cortiq_kv *kv = &t->args->kv;
    const uint8_t *base = tile_of(kv, t->pages, tile, t->head), *next = t->after;
    if (tile + 1 < t->tile_stop) next = tile_of(kv, t->pages, tile + 1, t->head);
    b->keys = (const int16_t *)(const void *)base;
    b->values = b->keys + TILE * 2 * b->pairs;
    b->ahead = (next ? next : base) - base;
    const int8_t *exponents = (const int8_t *)(b->values + TILE * b->value_width);
    ASK(exponents, b->ahead);
    ASK(exponents + TILE, b->ahead);
    for (int i = 0; i < TILE; i++) {
        b->key_exponent[i] = exponents[i];
        b->value_exponent[i] = exponents[TILE + i];
    }
}

static void attend_some(int count, const block *b, const cortiq_attend *a, const visitors *q)
{
    if (a->chosen && count) {
        uint64_t any = q->seen[0] | (count > 1 ? q->seen[1] : 0) | (count > 2 ? q->seen[2] : 0);
        if (__builtin_popcountll(any) <= FEW_KEYS && b->pairs <= WIDEST * 4) {
            attend_few(count, b, a, q);
            return;
        }
        if (count == 3) three_queries_seen(b, a, q);
        if (count == 2) two_queries_seen(b, a, q);
        if (count == 1) one_query_seen(b, a, q);
        return;
    }
    if (count == 3) three_queries(b, a, q);
    if (count == 2) two_queries(b, a, q);
    if (count == 1) one_query(b, a, q);
}

/* Bits low … stop − 1; at least one. */
INLINE uint64_t bits_between(int64_t low, int64_t stop)
{
    return ~(uint64_t)0 >> (TILE - (stop - low)) << low;
}

/* Keys of the run that is at hand which block `index` holds, by tile. */
static void see_block(uint64_t *keys, int64_t start, int64_t index, int64_t size)
{
    int64_t from = index * size - start, stop = from + size;
    from = from > 0 ? from : 0;
    stop = stop < RUN_TILES * TILE ? stop : RUN_TILES * TILE;
    for (; from < stop; from = (from / TILE + 1) * TILE) {
        int64_t end = (from / TILE + 1) * TILE;
        keys[from / TILE] |= bits_between(from % TILE, (stop < end ? stop - 1 : end - 1) % TILE + 1);
    }
}

/* Keys of a run's tiles that each query chose; neighbours have a set in common. */
static void look_at_run(const attention_task *t, sight *s, int32_t run)
{
    const cortiq_attend *a = t->args;
    int64_t before = -1;
    int32_t found = -1;
    s->run = run;
    for (int32_t i = 0; i < t->count; i++) {
        int64_t row = t->row + (t->first + i) / t->group;
        int32_t head = t->head * t->group + (t->first + i) % t->group;
        int64_t set = row * a->sets + head / (a->heads / a->sets);
        if (set != before) {
            const int32_t *chosen = a->chosen + set * a->chosen_count;
            memset(s->keys[++found], 0, sizeof s->keys[0]);
            for (int32_t c = 0; c < a->chosen_count; c++)
                see_block(s->keys[found], (int64_t)run * RUN_TILES * TILE, chosen[c], a->block);
        }
        before = set;
        s->set[i] = found;
    }
}

/* Whether query i sees keys of a tile, and which: as visitor `found`. */
static int visits(const attention_task *t, const block *b, int32_t i, int32_t tile, visitors *q,
                  int found)
{
    int32_t position = b->position[i], start = tile * TILE;
    int low = larger(b->first[i] - start, 0);
    int stop = position + 1 - start < TILE ? position + 1 - start : TILE;
    if (low >= stop) return 0;
    if (t->args->chosen) {
        uint64_t seen = b->sight->keys[b->sight->set[i]][tile % RUN_TILES];
        seen &= bits_between(low, stop);
        if (!seen) return 0;
        q->seen[found] = seen;
        low = __builtin_ctzll(seen);
        stop = TILE - __builtin_clzll(seen);
    }
    q->who[found] = i;
    q->low[found] = low;
    q->stop[found] = stop;
    return 1;
}

#if defined(CQ_TILES)
/* All queries of the task against a tile, if one sees its keys. */
static void attend_whole_tile(const attention_task *t, block *b, int32_t tile, void *runs)
{
    planes *p = b->planes;
    visitors q;
    int taken = 0;
    for (int i = 0; i < t->count; i++) {
        int seen = visits(t, b, i, tile, &q, 0);
        p->low[i] = seen ? q.low[0] : 0;
        p->stop[i] = seen ? q.stop[0] : 0;
        taken += seen;
    }
    if (!taken) return;
    take_tile(t, b, tile);
    attend_planes(t, b, p, runs);
}

/* Where a task's planes lie, behind what else it has in its scratch. */
static void place_planes(const attention_task *t, const block *b, uint8_t *at, planes *p)
{
    int32_t depth = plane_depth(t->args->kv.key_dim);
    int fits = depth <= PLANE_WIDTH && b->value_width <= PLANE_WIDTH;
    p->steps = fits && t->count >= PLANE_QUERIES && !t->args->chosen ? depth / TILE_STEP : 0;
    p->queries = (uint8_t *)(((uintptr_t)at + 63) & ~(uintptr_t)63);
    p->weights = p->queries + 2 * BLOCK * depth;
    p->keys = p->weights + 2 * BLOCK * TILE;
    p->values = p->keys + 2 * TILE * depth;
    p->dots = (float *)(void *)(p->values + 2 * TILE * b->value_width);
    p->sums = (plane_sums *)(void *)(p->dots + BLOCK * TILE);
    if (p->steps) query_planes(b, t->count, p);
}
#endif

/* The task's queries that see keys of the tile, three at a time. A tile that none sees is not
 * read. */
static void attend_tile(const attention_task *t, block *b, int32_t tile, void *runs)
{
    visitors q;
    int found = 0, taken = 0, run = tile / RUN_TILES;
#if defined(CQ_TILES)
    if (b->planes->steps) {
        attend_whole_tile(t, b, tile, runs);
        return;
    }
#endif
    if (t->args->chosen && b->sight->run != run) look_at_run(t, b->sight, run);
    for (int i = 0; i < t->count; i++) {
        int left = t->count - i;
        if (found == 3 || (found == 2 && left == 2)) {
            attend_some(found, b, t->args, &q);
            b->ahead = found = 0; /* the next tile was asked for */
        }
        if (!visits(t, b, i, tile, &q, found)) continue;
        if (!taken++) take_tile(t, b, tile);
        q.runs[found++] = partial_at(runs, (size_t)i, t->args->kv.value_dim);
    }
    attend_some(found, b, t->args, &q);
}

/* A partial for every tile and query, for someone else to merge. */
static void attend_separately(const attention_task *t, block *b)
{
    int32_t value_dim = t->args->kv.value_dim;
    for (int32_t tile = t->tile; tile < t->tile_stop; tile++) {
        size_t first = (size_t)(tile - t->tile) * (size_t)t->separate;
        void *partials = partial_at(t->totals, first, value_dim);
        clear_partials(partials, t->count, value_dim);
        attend_tile(t, b, tile, partials);
    }
}

static void attend_task(const attention_task *t)
{
    sight seen;
    few_keys few;
    block b;
    int32_t value_dim = t->args->kv.value_dim;
    seen.run = -1;
    b.sight = &seen;
    b.few = &few;
    b.pairs = even(t->args->kv.key_dim) / 2;
    b.value_width = sixteens(value_dim);
    uintptr_t aligned = ((uintptr_t)t->scratch + 63) & ~(uintptr_t)63;
    void *runs = (void *)aligned;
    int32_t room = sixteens(t->count);
    b.high = (int16_t *)(void *)((uint8_t *)runs + (size_t)room * partial_bytes(value_dim));
    b.low = b.high + room * 2 * b.pairs;
    few.gathered = b.low + room * 2 * b.pairs;
    few.values = few.gathered + FEW_KEYS * (sixteens(t->args->kv.key_dim) + 32);
    take_queries(t, &b);
#if defined(CQ_TILES)
    planes tiles;
    b.planes = &tiles;
    place_planes(t, &b, (uint8_t *)few.gathered + few_bytes(t->args->kv.key_dim, value_dim), &tiles);
#endif
    if (t->separate) {
        attend_separately(t, &b);
        return;
    }
    clear_partials(t->totals, t->count, value_dim);
    for (int32_t tile = t->tile; tile < t->tile_stop; tile++) {
        if (tile == t->tile || tile % RUN_TILES == 0) clear_partials(runs, t->count, value_dim);
        attend_tile(t, &b, tile, runs);
        if (tile % RUN_TILES == RUN_TILES - 1 || tile == t->tile_stop - 1)
            for (int i = 0; i < t->count; i++)
                merge_partial(partial_at(t->totals, (size_t)i, value_dim),
                              partial_at(runs, (size_t)i, value_dim), value_dim);
    }
}
