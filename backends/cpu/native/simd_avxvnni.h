/* Vectors of 8 lanes: AVX2 with AVX-VNNI. */
#ifndef CORTIQ_SIMD_H
#define CORTIQ_SIMD_H

#define TARGET __attribute__((target("avx2,f16c,avxvnni")))
#define ISA_NAME(name) name##_avxvnni
#define CORTIQ_VNNI 1
#include "simd_avx2_body.h"

#endif
