/* Attention of up to three queries to a tile; continues attention_body.h. */

/* Queries against a tile: query who[i] sees its keys low[i] … stop[i] − 1, and of these, where
 * `seen` isn't NULL, those whose bits are set in seen[i]. */
typedef struct {
    int who[3], low[3], stop[3];
    uint64_t seen[3];
    partial *runs[3];
} visitors;

/* `count` of them (1 to 3); `chosen` says whether `seen` counts. */
INLINE void tile_of_queries(int count, int chosen, const block *b, const cortiq_attend *a,
                            const visitors *q)
{
    float dots[3 * TILE];
    tile_weights w[3];
    int first = TILE, last = 0;
    dots_rounded(count, b, q->who, dots);
    for (int i = 0; i < count; i++) {
        const float *of = dots + i * TILE;
        if (chosen) tile_softmax_seen(b, q->who[i], a, of, &q->seen[i], q->runs[i], &w[i]);
        else tile_softmax(b, q->who[i], a, of, q->low[i], q->stop[i], q->runs[i], &w[i]);
        first = q->low[i] < first ? q->low[i] : first;
        last = q->stop[i] > last ? q->stop[i] : last;
    }
    add_value_rows(count, b, w, first / 2, (last + 1) / 2, q->runs);
}

#define TILE_OF(name, count, chosen)                                                               \
    static void name(const block *b, const cortiq_attend *a, const visitors *q)                    \
    {                                                                                              \
        tile_of_queries(count, chosen, b, a, q);                                                   \
    }
TILE_OF(one_query, 1, 0)
TILE_OF(two_queries, 2, 0)
TILE_OF(three_queries, 3, 0)
TILE_OF(one_query_seen, 1, 1)
TILE_OF(two_queries_seen, 2, 1)
TILE_OF(three_queries_seen, 3, 1)
