/* The matmul kernels in planes of int8, compiled for neon-dotprod. */
#include "cortiq_native.h"

#if defined(CORTIQ_NEON_PLANES)
#define CORTIQ_I8MM 0
#if defined(__clang__)
#define TARGET __attribute__((target("dotprod")))
#else
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define ISA_NAME(name) name##_neon_dotprod
#include "matmul_planes.h"
#endif
