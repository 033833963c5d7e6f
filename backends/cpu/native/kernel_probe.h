/* The dot product instruction at its best, on registers: what a matmul is measured against. */

/* `count` times 8 vectors of dot products, each from the one before, so that none can be left out;
 * the result keeps the compiler honest.
 */
TARGET static int32_t probe_dots(int64_t count)
{
    vi total[8], x = vi_set((int32_t)count);
    for (int i = 0; i < 8; i++)
        total[i] = vi_set(i);
    for (int64_t n = 0; n < count; n++) {
        _Pragma("GCC unroll 8")
        for (int i = 0; i < 8; i++)
            total[i] = vi_dot(total[i], total[i], x);
    }
    int32_t lanes[LANES];
    for (int i = 1; i < 8; i++)
        total[0] = vi_add(total[0], total[i]);
    vi_store(lanes, total[0]);
    return lanes[0];
}
