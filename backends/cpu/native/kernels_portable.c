/* The kernels for any machine. */
#define CQ_ISA_PORTABLE
#include "kernels_body.h"
