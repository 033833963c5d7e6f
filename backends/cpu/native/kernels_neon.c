/* The kernels for NEON. */
#if defined(__aarch64__)
#define CQ_ISA_NEON
#include "kernels_body.h"
#endif
