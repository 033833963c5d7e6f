/* The matmul kernels in planes of int8, compiled for TARGET and named by ISA_NAME. */
#include "simd_neon.h"

#include "kernel_unpack.h"

#include "kernel_bytes.h"

#include "kernel_chunk.h"

#include "kernel_panel_planes.h"

#include "kernel_panel.h"

#include "kernel_plane_codes.h"

#include "kernel_walk.h"

#include "kernel_planes.h"

#include "kernel_float.h"

CORTIQ_EACH_TILE_LAYOUT(PANEL_KERNEL)
CORTIQ_EACH_TILE_LAYOUT(PLANE_KERNEL)

/* Dot products on registers: half as many multiply-adds of int16, in two planes. */
TARGET static int32_t probe_dots(int64_t count)
{
    vi total[16];
    int8x16_t x = vdupq_n_s8((int8_t)count);
    for (int i = 0; i < 16; i++)
        total[i] = vi_set(i);
    for (int64_t n = 0; n < count; n++) {
        _Pragma("GCC unroll 16")
        for (int i = 0; i < 16; i++) {
#if CORTIQ_I8MM
            total[i] = vmmlaq_s32(total[i], signed_bytes(total[i]), x);
#else
            total[i] = vdotq_laneq_s32(total[i], signed_bytes(total[i]), x, 0);
#endif
        }
    }
    for (int i = 1; i < 16; i++)
        total[0] = vi_add(total[0], total[i]);
    return vgetq_lane_s32(total[0], 0);
}

/* Blocks of 16 and codes of more than 8 bits are multiplied as without these instructions. */
static int form_number(int layout)
{
    return layout == CORTIQ_E2M1 || layout_is_wide(layout) ? -1 : 0;
}

static void nothing(void) {}

#define DIRECT_ENTRY(name) [CORTIQ_##name] = direct_##name,
#define BLOCK_ENTRY(name) [CORTIQ_##name] = block_##name,

static const cortiq_tile_kernel direct_kernels[CORTIQ_LAYOUTS] = {
    CORTIQ_EACH_TILE_LAYOUT(DIRECT_ENTRY)[CORTIQ_F32] = float_tile};

const cortiq_matmul_set ISA_NAME(cortiq_matmul) = {
    .panels = TILE / PANEL,
    .direct_rows = {[0 ... CORTIQ_LAYOUTS - 1] = 1},
    .direct = direct_kernels,
    .one = direct_kernels,
    .block = {CORTIQ_EACH_TILE_LAYOUT(BLOCK_ENTRY)[CORTIQ_F32] = float_tile},
    .row_ready = panel_row_ready,
    .ready_form = form_number,
    .ready_bytes = plane_bytes,
    .ready = plane_rows_ready,
    .begin = nothing,
    .end = nothing,
    .otherwise = &cortiq_matmul_neon,
    .probe_dots = probe_dots,
    .probe_multiplies = 16 * (CORTIQ_I8MM ? 16 : 8),
};
