/* The kernels for avx512. */
#if defined(__x86_64__)
#define CQ_ISA_AVX512
#include "kernels_body.h"
#endif
