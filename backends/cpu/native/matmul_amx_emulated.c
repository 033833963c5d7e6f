/* The kernels of matmul_amx.c with tiles in plain C: what tests run where there is no AMX. */
#if defined(__x86_64__)
#define CORTIQ_EMULATE_AMX
#define TARGET __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define ISA_NAME(name) name##_amx_emulated
#include "matmul_tiles.h"
#endif
