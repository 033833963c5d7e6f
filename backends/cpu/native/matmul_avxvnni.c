/* The matmul kernels, compiled for avxvnni. */
#if defined(__x86_64__)
#include "simd_avxvnni.h"

#include "kernel_unpack.h"

#include "kernel_direct.h"

#include "kernel_chunk.h"

#include "kernel_expand.h"

#include "kernel_walk.h"

#include "kernel_block.h"

#include "kernel_float.h"

#include "kernel_probe.h"

#include "kernel_set.h"
#endif
