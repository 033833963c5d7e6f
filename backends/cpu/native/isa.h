/* Which instruction set this translation unit is compiled for.
 *
 * The unit defines one of CQ_ISA_PORTABLE, CQ_ISA_AVX2, CQ_ISA_AVXVNNI, CQ_ISA_AVX512,
 * CQ_ISA_NEON before it includes this file; every function after it may use that set, and none is called on a machine
 * that lacks it. The build machine's own set is never used. FMA is part of AVX-512 and AVX2
 * machines have it, so contraction is off in the compiler's flags and no intrinsic asks for it. */
#ifndef CQ_ISA_H
#define CQ_ISA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(CQ_ISA_NEON)
#include <arm_neon.h>
#elif !defined(CQ_ISA_PORTABLE)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#define CQ_PASTE_(a, b) a##_##b
#define CQ_PASTE(a, b) CQ_PASTE_(a, b)
#define CQ_NAME(function) CQ_PASTE(function, CQ_ISA_NAME)

#if defined(CQ_ISA_AVX512)
#define CQ_ISA_NAME avx512
#define CQ_LANES 16
#define CQ_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
#elif defined(CQ_ISA_AVXVNNI)
#define CQ_ISA_NAME avxvnni
#define CQ_LANES 8
#define CQ_TARGET "avx2,avxvnni"
#elif defined(CQ_ISA_AVX2)
#define CQ_ISA_NAME avx2
#define CQ_LANES 8
#define CQ_TARGET "avx2"
#elif defined(CQ_ISA_NEON)
#define CQ_ISA_NAME neon
#define CQ_LANES 4
#else
#define CQ_ISA_NAME portable
#define CQ_LANES 4
#endif

#ifdef CQ_TARGET
#if defined(__clang__)
#define CQ_PRAGMA_(text) _Pragma(#text)
#define CQ_PRAGMA(text) CQ_PRAGMA_(text)
CQ_PRAGMA(clang attribute push(__attribute__((target(CQ_TARGET))), apply_to = function))
#define CQ_TARGET_END CQ_PRAGMA(clang attribute pop)
#else
#define CQ_PRAGMA_(text) _Pragma(#text)
#define CQ_PRAGMA(text) CQ_PRAGMA_(text)
CQ_PRAGMA(GCC push_options)
CQ_PRAGMA(GCC target(CQ_TARGET))
#define CQ_TARGET_END CQ_PRAGMA(GCC pop_options)
#endif
#else
#define CQ_TARGET_END
#endif

#endif
