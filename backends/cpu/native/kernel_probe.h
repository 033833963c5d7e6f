/* The dot product instruction at its best, on registers alone: what a matmul is measured against. */

/* `count` times 12 vectors of dot products; the result only keeps the compiler honest. */
TARGET static int32_t probe_dots(int64_t count)
{
    vi total[12], x = vi_set(3), w = vi_set((int32_t)count);
    for (int i = 0; i < 12; i++)
        total[i] = vi_set(i);
    for (int64_t n = 0; n < count; n++) {
        _Pragma("GCC unroll 12")
        for (int i = 0; i < 12; i++)
            total[i] = vi_dot(total[i], w, x);
        __asm__ volatile("" ::: "memory");
    }
    int32_t lanes[LANES];
    for (int i = 1; i < 12; i++)
        total[0] = vi_add(total[0], total[i]);
    vi_store(lanes, total[0]);
    return lanes[0];
}
