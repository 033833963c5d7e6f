/* The native core of the CPU backend: op lists, the thread pool, instruction sets, records of
 * quantised rows. One call of `cortiq_run` executes a list of ops in order; every worker enters
 * every kernel and takes its share, and a barrier stands between two ops.
 *
 * All arithmetic is that of docs/NUMERICS.md. Float code is compiled without contraction; which
 * instruction set runs, and on how many threads, changes no bit.
 */
#ifndef CORTIQ_NATIVE_H
#define CORTIQ_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define CORTIQ_API __declspec(dllexport)
#else
#define CORTIQ_API __attribute__((visibility("default")))
#endif

/* ---- Instruction sets, ascending on each kind of processor; a kernel without a variant for one
 * takes the next lower. */
typedef enum {
    CORTIQ_PORTABLE,
    CORTIQ_AVX2,       /* AVX2, F16C */
    CORTIQ_AVXVNNI,    /* AVX2 and AVX-VNNI */
    CORTIQ_AVX512VNNI, /* AVX512 F, BW, VL, DQ, VNNI */
    CORTIQ_AMX,        /* AVX512VNNI, AMX-INT8 and AMX-BF16 */
    CORTIQ_AMX_EMULATED, /* its kernels with tiles in plain C, for tests; never the best */
    CORTIQ_NEON,         /* what every aarch64 has */
    CORTIQ_NEON_DOTPROD, /* with SDOT */
    CORTIQ_NEON_I8MM,    /* with SDOT, SMMLA and USDOT */
    CORTIQ_ISAS
} cortiq_isa;

/* Whether the compiler knows AMX. */
#if defined(__x86_64__) && defined(__linux__) && __has_include(<amxint8intrin.h>)
#define CORTIQ_TILES
#endif

/* Whether the compiler has SDOT and SMMLA for functions that say so, whatever it compiles for:
 * GCC 10, LLVM 16 and Apple's of it. */
#if defined(__aarch64__) && defined(__clang__)
#if __clang_major__ >= 16 || (defined(__apple_build_version__) && __clang_major__ >= 15)
#define CORTIQ_NEON_PLANES
#endif
#elif defined(__aarch64__) && __GNUC__ >= 10
#define CORTIQ_NEON_PLANES
#endif

CORTIQ_API int cortiq_isa_supported(int isa); /* 1 if this machine (and system) runs it */
CORTIQ_API int cortiq_isa_best(void);

/* ---- Ops. */
typedef enum {
    CORTIQ_NOTHING,
    CORTIQ_EMBED_ROWS,
    CORTIQ_QUANTISE,
    CORTIQ_MATMUL,
    CORTIQ_MATMUL_CHOSEN, /* experts and head stacks: a matrix per (row, slot) */
    CORTIQ_ADD,
    CORTIQ_MULTIPLY,
    CORTIQ_SCALE,
    CORTIQ_BIAS,
    CORTIQ_ACTIVATION,
    CORTIQ_SOFT_CAP,
    CORTIQ_RMS_NORM,
    CORTIQ_LAYER_NORM,
    CORTIQ_L2_NORM,
    CORTIQ_ROPE,
    CORTIQ_STORE_KV,
    CORTIQ_ATTEND,
    CORTIQ_CAUSAL_CONV,
    CORTIQ_GATED_DELTA,
    CORTIQ_ROUTE,
    CORTIQ_COMBINE_EXPERTS,
    CORTIQ_COPY,   /* slices, concatenations, gathers of rows */
    CORTIQ_ARGMAX,
    CORTIQ_TOP,
    CORTIQ_DRAW,
    CORTIQ_DIGEST,
    CORTIQ_SPARE_1, CORTIQ_SPARE_2, CORTIQ_SPARE_3, CORTIQ_SPARE_4, CORTIQ_SPARE_5,
    CORTIQ_PACKAGE, /* the kernel of another package */
    CORTIQ_CHOOSE_KEYS,
    CORTIQ_COMPRESS,
    CORTIQ_LOW_RANK, /* what overlays add to products */
    CORTIQ_PACKAGE_STEP, /* the kernel of another package, with a state */
    CORTIQ_HASH_NGRAMS, /* rows of a table by the last tokens */
    CORTIQ_PROBE_FLOATS = 61, /* what the machine can do, for benchmarks */
    CORTIQ_PROBE_READ,
    CORTIQ_PROBE_DOTS,
    CORTIQ_KINDS
} cortiq_kind;

/* One op. `rows` points to the row count, which the caller changes from batch to batch; `faults`
 * holds one byte a row, or-ed with 1 where a value leaves the canonical domain; `args` is the
 * struct of the kind, declared beside its kernel.
 */
typedef struct {
    int32_t kind;
    int32_t flags;
    const int32_t *rows;
    uint8_t *faults;
    void *args;
    int32_t alone_rows; /* up to so many rows worker 0 executes the op by itself, and no barrier
                           stands before a next op of that kind: a barrier costs more than a row */
} cortiq_op;

typedef struct cortiq_pool cortiq_pool;

/* What a kernel knows about the worker it runs on. */
typedef struct {
    cortiq_pool *pool;
    int32_t index; /* 0 … threads − 1; 0 is the thread that called cortiq_run */
    int32_t threads;
    int32_t isa;
    uint8_t *scratch; /* of this worker, 64-byte aligned */
    size_t scratch_bytes;
} cortiq_worker;

typedef void (*cortiq_kernel)(const cortiq_op *op, cortiq_worker *worker);

/* Kernels enter the table when the library is loaded: CORTIQ_REGISTER(CORTIQ_ADD, add_rows) at
 * file scope.
 */
void cortiq_register(int kind, cortiq_kernel kernel);
#define CORTIQ_REGISTER(kind, kernel)                                                              \
    __attribute__((constructor)) static void register_##kernel(void)                              \
    {                                                                                              \
        cortiq_register(kind, kernel);                                                             \
    }

/* ---- The pool. */

/* Threads are started once and sleep between runs. `scratch_bytes` for each worker; NULL when
 * memory or threads are not to be had. `isa` must be supported.
 */
CORTIQ_API cortiq_pool *cortiq_pool_create(int32_t threads, int32_t isa, size_t scratch_bytes);
CORTIQ_API void cortiq_pool_destroy(cortiq_pool *pool);

/* Execute ops in order. 0, or −1 − i if op i has no kernel (nothing was executed then).
 * `nanoseconds`, if not NULL, receives count times: wall time of each op.
 */
CORTIQ_API int32_t cortiq_run(cortiq_pool *pool, const cortiq_op *ops, int32_t count,
                              int64_t *nanoseconds);

/* Inside a kernel. cortiq_take hands out [*start, *stop) of 0 … total − 1 in pieces of `grain`
 * (the last may be shorter) to whichever worker asks first: while (cortiq_take(…)) { … }.
 * A result must not depend on who took what. One take loop per op, or a cortiq_barrier
 * (which all workers must reach) between two of them.
 */
int cortiq_take(cortiq_worker *worker, int32_t total, int32_t grain, int32_t *start,
                int32_t *stop);
void cortiq_barrier(cortiq_worker *worker);

/* Memory that all workers of the pool share, 64-byte aligned, for the time of an op; NULL where there
 * isn't any. It grows and stays. All workers call this, with the same size.
 */
uint8_t *cortiq_shared(cortiq_worker *worker, size_t bytes);

/* ---- Records: quantised rows as kernels keep them (NUMERICS.md, section 9).
 *
 * A record of width K, padded with zeros to P = K rounded up to 32:
 *     int16 q[P]
 *     int32 sum[P/16]       sums S of 16 columns
 *     float sum32[P/32]     sums of 32 columns, exact
 *     int16 high16[P/16], low16[P/16]   S = 256·high + low, 0 ≤ low < 256
 *     int16 high32[P/32], low32[P/32]   the same for 32 columns
 *     int32 e
 * filled up to a multiple of 64 bytes. A buffer of records is 64-byte aligned.
 */
static inline int32_t cortiq_padded(int32_t width) { return (width + 31) & ~31; }
static inline size_t cortiq_record_stride(int32_t width)
{
    size_t blocks = (size_t)cortiq_padded(width) / 32;
    return (blocks * 88 + 4 + 63) & ~(size_t)63;
}
static inline int16_t *cortiq_record_q(const void *record) { return (int16_t *)record; }
static inline int32_t *cortiq_record_sums(const void *record, int32_t width)
{
    return (int32_t *)((int8_t *)record + 2 * (size_t)cortiq_padded(width));
}
static inline float *cortiq_record_sum32(const void *record, int32_t width)
{
    return (float *)(cortiq_record_sums(record, width) + cortiq_padded(width) / 16);
}
static inline int16_t *cortiq_record_high16(const void *record, int32_t width)
{
    return (int16_t *)(cortiq_record_sum32(record, width) + cortiq_padded(width) / 32);
}
static inline int16_t *cortiq_record_low16(const void *record, int32_t width)
{
    return cortiq_record_high16(record, width) + cortiq_padded(width) / 16;
}
static inline int16_t *cortiq_record_high32(const void *record, int32_t width)
{
    return cortiq_record_low16(record, width) + cortiq_padded(width) / 16;
}
static inline int16_t *cortiq_record_low32(const void *record, int32_t width)
{
    return cortiq_record_high32(record, width) + cortiq_padded(width) / 32;
}
static inline int32_t *cortiq_record_e(const void *record, int32_t width)
{
    return (int32_t *)(cortiq_record_low32(record, width) + cortiq_padded(width) / 32);
}
CORTIQ_API size_t cortiq_record_bytes(int32_t width); /* cortiq_record_stride, for ctypes */
CORTIQ_API size_t cortiq_record_exponent_at(int32_t width); /* where e lies in a record */

/* Given q: zero its padding and fill the sums. Whoever writes q and e of a record that a matmul
 * will read calls this last.
 */
CORTIQ_API void cortiq_record_finish(void *record, int32_t width);

#endif
