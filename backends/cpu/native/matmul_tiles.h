/* The matmul kernels on tiles, compiled for TARGET and named by ISA_NAME. */
#include "tiles.h"

#include "simd_avx512.h"

#include "kernel_unpack.h"

#include "kernel_chunk.h"

#include "kernel_tile_codes.h"

#include "kernel_walk.h"

#include "kernel_tiles.h"

#define TILE_KERNEL(name)                                                                          \
    TARGET static void tiles_##name(chunk *c)                                                      \
    {                                                                                              \
        if (layout_form(CORTIQ_##name) == HALVES)                                                  \
            tiles_of_32(CORTIQ_##name, c);                                                         \
        else                                                                                       \
            tiles_of_256(CORTIQ_##name, c);                                                        \
    }                                                                                              \
    TARGET static void block_##name(const cortiq_tile *t)                                          \
    {                                                                                              \
        block_chunks(CORTIQ_##name, t, tiles_##name);                                              \
    }
CORTIQ_EACH_TILE_LAYOUT(TILE_KERNEL)

#include "kernel_float.h"

/* Tile products on registers: half as many multiply-adds of int16, in two planes. */
TARGET static int32_t probe_dots(int64_t count)
{
    int32_t sums[TILE_ROWS][PANEL];
    tiles_begin();
    TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
    TILE_ZERO(4); TILE_ZERO(6); TILE_ZERO(7);
    for (int64_t n = 0; n < count; n++) {
        TILE_DOT_BYTES(0, 4, 6);
        TILE_DOT_BYTES(1, 4, 7);
        TILE_DOT_BYTES(2, 4, 6);
        TILE_DOT_BYTES(3, 4, 7);
    }
    TILE_STORE(3, sums, sizeof sums[0]);
    tiles_end();
    return sums[0][0];
}

static int form_number(int layout)
{
    return layout == CORTIQ_E2M1 || layout_is_wide(layout) ? -1 : (int)layout_form(layout);
}

/* Measured at 16 rows, which share the work of expanding codes: worth it only for codes that are
 * bytes already, and for Q6_K, whose sums spill most often on vectors; the last layouts.
 */
#define DIRECT_ROWS_OF(name) [CORTIQ_##name] = CORTIQ_##name >= CORTIQ_Q6_K ? 8 : 16,

#define BLOCK_ENTRY(name) [CORTIQ_##name] = block_##name,

const cortiq_matmul_set ISA_NAME(cortiq_matmul) = {
    .panels = TILE / PANEL,
    .direct_rows = {CORTIQ_EACH_LAYOUT(DIRECT_ROWS_OF)[CORTIQ_F32] = 8},
    .direct = cortiq_direct_avx512vnni,
    .one = cortiq_one_avx512vnni,
    .row_ready = cortiq_row_ready_avx512vnni,
    .block = {CORTIQ_EACH_TILE_LAYOUT(BLOCK_ENTRY)[CORTIQ_F32] = float_tile},
    .ready_form = form_number,
    .ready_bytes = tile_block_bytes,
    .ready = tile_rows_ready,
    .begin = tiles_begin,
    .end = tiles_end,
    .otherwise = &cortiq_matmul_avx512vnni,
    .probe_dots = probe_dots,
    .probe_multiplies = 4 * TILE_ROWS * PANEL * TILE_STEP / 2,
};
