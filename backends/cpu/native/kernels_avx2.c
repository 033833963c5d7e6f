/* The kernels for avx2. */
#if defined(__x86_64__)
#define CQ_ISA_AVX2
#include "kernels_body.h"
#endif
