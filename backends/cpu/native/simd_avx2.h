/* Vectors of 8 lanes: AVX2. */
#ifndef CORTIQ_SIMD_H
#define CORTIQ_SIMD_H

#define TARGET __attribute__((target("avx2,f16c")))
#define ISA_NAME(name) name##_avx2
#define CORTIQ_VNNI 0
#include "simd_avx2_body.h"

#endif
