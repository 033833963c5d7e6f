/* The matmul kernels, compiled for neon. */
#if defined(__aarch64__)
#include "simd_neon.h"

#include "kernel_unpack.h"

#include "kernel_chunk.h"

/* Kernels of whole panels take the other layouts. */
#define DIRECT_LAYOUTS(X) X(E4M3) X(NF4) X(FP4)
#include "kernel_direct.h"

#include "kernel_panel_pairs.h"

#include "kernel_panel.h"

#include "kernel_expand.h"

#include "kernel_walk.h"

#include "kernel_block_pairs.h"

#include "kernel_block.h"

#include "kernel_float.h"

#include "kernel_probe.h"

CORTIQ_EACH_TILE_LAYOUT(PANEL_KERNEL) PANEL_KERNEL(E2M1)

#include "kernel_set.h"
#endif
