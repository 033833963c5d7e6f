/* Which instruction sets this machine runs, and the system lets it run. */
#define _GNU_SOURCE
#include "cortiq_native.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

/* Whether the system saves tile registers (bits 17 and 18 of XCR0), and grants them to this process,
 * which has to ask.
 */
static int may_use_tiles(void)
{
#if defined(CORTIQ_TILES)
    enum { TILES = 3 << 17, REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1))
        return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & TILES) == TILES && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return 0;
#endif
}

static int has_amx(void) /* with bf16, tiles, int8 */
{
    return has_avx512vnni() && leaf7(0, 3, 22) && leaf7(0, 3, 24) && leaf7(0, 3, 25) &&
           may_use_tiles();
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
    case CORTIQ_AMX:
        return has_amx();
    case CORTIQ_AMX_EMULATED:
        return has_avx512vnni();
    default:
        return 0;
    }
}
#elif defined(__aarch64__)
#if !defined(CORTIQ_NEON_PLANES)
#elif defined(__linux__)
#include <sys/auxv.h>

/* The kernel's names for these bits may be missing from older headers. */
static int has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; } /* HWCAP_ASIMDDP */
static int has_i8mm(void) { return getauxval(26) >> 13 & 1; } /* AT_HWCAP2, HWCAP2_I8MM */
#elif defined(__APPLE__)
#include <sys/sysctl.h>

static int has(const char *feature)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, NULL, 0) == 0 && value;
}

static int has_dotprod(void) { return has("hw.optional.arm.FEAT_DotProd"); }
static int has_i8mm(void) { return has("hw.optional.arm.FEAT_I8MM"); }
#else
static int has_dotprod(void) { return 0; }
static int has_i8mm(void) { return 0; }
#endif

int cortiq_isa_supported(int isa)
{
    switch (isa) {
    case CORTIQ_PORTABLE:
    case CORTIQ_NEON:
        return 1;
#if defined(CORTIQ_NEON_PLANES)
    case CORTIQ_NEON_DOTPROD:
        return has_dotprod();
    case CORTIQ_NEON_I8MM:
        return has_dotprod() && has_i8mm();
#endif
    default:
        return 0;
    }
}
#else
int cortiq_isa_supported(int isa) { return isa == CORTIQ_PORTABLE; }
#endif

int cortiq_isa_best(void)
{
    for (int isa = CORTIQ_ISAS - 1; isa > CORTIQ_PORTABLE; isa--)
        if (isa != CORTIQ_AMX_EMULATED && cortiq_isa_supported(isa))
            return isa;
    return CORTIQ_PORTABLE;
}
