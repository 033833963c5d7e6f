/* The matmul kernels in planes of int8, compiled for neon-i8mm. */
#include "cortiq_native.h"

#if defined(CORTIQ_NEON_PLANES)
#define CORTIQ_I8MM 1
#if defined(__clang__)
#define TARGET __attribute__((target("dotprod,i8mm")))
#else
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#endif
#define ISA_NAME(name) name##_neon_i8mm
#include "matmul_planes.h"
#endif
