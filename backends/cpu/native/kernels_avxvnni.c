/* The kernels for avxvnni. */
#if defined(__x86_64__)
#define CQ_ISA_AVXVNNI
#include "kernels_body.h"
#endif
