/* Products of many rows on AMX tiles; few rows are multiplied as on avx512vnni. */
#include "cortiq_native.h"

#if defined(CORTIQ_TILES)
#define TARGET                                                                                     \
    __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,"               \
                          "amx-tile,amx-int8,amx-bf16")))
#define ISA_NAME(name) name##_amx
#include "matmul_tiles.h"
#endif
