/* Products of float weights: snap(canonical_sum(snap(x·w))). */

enum { SUM_LANES = 256 };

/* Halves of the 256 lanes are added until one is left. */
INLINE float sum_of_lanes(float *lanes)
{
    for (int half = SUM_LANES / 2; half >= LANES; half /= 2)
        for (int i = 0; i < half; i += LANES)
            vf_store(lanes + i, vf_add(vf_load(lanes + i), vf_load(lanes + i + half)));
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

INLINE float canonical_dot(const float *x, const float *w, int32_t width, uint32_t *fault)
{
    float lanes[SUM_LANES] = {0};
    int32_t k = 0;
    for (; k + LANES <= width; k += LANES) {
        float *lane = lanes + k % SUM_LANES;
        vf product = vf_snap(vf_multiply(vf_load(x + k), vf_load(w + k)), fault);
        vf_store(lane, vf_add(vf_load(lane), product));
    }
    if (k < width) {
        float tail[2][LANES] = {{0}};
        memcpy(tail[0], x + k, 4 * (size_t)(width - k));
        memcpy(tail[1], w + k, 4 * (size_t)(width - k));
        float *lane = lanes + k % SUM_LANES;
        vf product = vf_snap(vf_multiply(vf_load(tail[0]), vf_load(tail[1])), fault);
        vf_store(lane, vf_add(vf_load(lane), product));
    }
    return sum_of_lanes(lanes);
}

TARGET static void float_tile(const cortiq_tile *t)
{
    for (int32_t n = 0; n < t->outputs; n++) {
        const float *w = (const float *)t->panel + (size_t)n * t->matrix->width;
        for (int32_t i = 0; i < t->count; i++) {
            uint32_t fault = 0;
            float y[LANES] = {canonical_dot(t->x[i], w, t->matrix->width, &fault)};
            vf_store(y, vf_snap(vf_load(y), &fault));
            t->out[i][n] = y[0];
            if (fault)
                cortiq_raise_fault(t->faults[i]);
        }
    }
}
