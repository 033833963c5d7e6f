/* Which instruction sets this machine runs, and the system lets it run. */
#include "cortiq_native.h"

#if defined(__x86_64__)
#include <cpuid.h>

static int leaf7(unsigned subleaf, int output, unsigned bit)
{
    unsigned r[4] = {0};
    if (!__get_cpuid_count(7, subleaf, &r[0], &r[1], &r[2], &r[3]))
        return 0;
    return (r[output] >> bit) & 1;
}

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static int has_avx512vnni(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

int cortiq_isa_supported(int isa)
{
    switch (isa) {
    case CORTIQ_PORTABLE:
        return 1;
    case CORTIQ_AVX2:
        return has_avx2();
    case CORTIQ_AVXVNNI:
        return has_avx2() && leaf7(1, 0, 4);
    case CORTIQ_AVX512VNNI:
        return has_avx512vnni();
    default: /* AMX: no kernels yet */
        return 0;
    }
}
#else
int cortiq_isa_supported(int isa) { return isa == CORTIQ_PORTABLE; }
#endif

int cortiq_isa_best(void)
{
    for (int isa = CORTIQ_ISAS - 1; isa > CORTIQ_PORTABLE; isa--)
        if (cortiq_isa_supported(isa))
            return isa;
    return CORTIQ_PORTABLE;
}
