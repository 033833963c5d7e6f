/* The matmul kernels, compiled for avx2. */
#if defined(__x86_64__)
#include "simd_avx2.h"

#include "kernel_unpack.h"

#include "kernel_direct.h"

#include "kernel_chunk.h"

#include "kernel_panel_bytes.h"

#include "kernel_panel.h"

#include "kernel_expand.h"

#include "kernel_walk.h"

#include "kernel_block.h"

#include "kernel_float.h"

#include "kernel_probe.h"

/* Those whose sums fit int16. */
#define ONE_LAYOUTS(X)                                                                             \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(MXFP4) X(I4) X(I4M) X(E2M1) X(Q2_K) X(Q4_K) X(Q5_K)
ONE_LAYOUTS(PANEL_KERNEL)

#include "kernel_set.h"
#endif
