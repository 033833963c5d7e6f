/* The matmul kernels, compiled for avx512vnni. */
#if defined(__x86_64__)
#include "simd_avx512.h"

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

#define ONE_LAYOUTS(X)                                                                             \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4) X(I4) X(I4M) X(I8) X(I8M) X(E2M1)   \
    X(Q2_K) X(Q4_K) X(Q5_K) X(IQ4_XS) X(Q6_K) X(K8) X(W8) X(W8B256)
ONE_LAYOUTS(PANEL_KERNEL)

#include "kernel_set.h"
#endif
