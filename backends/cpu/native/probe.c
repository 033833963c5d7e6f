/* What this machine can do: reading memory, and dot products and float operations on registers. */
#include "kernels.h"
#include "matmul.h"

/* Bytes that a worker reads at a time: more than the caches of a core. */
enum { PIECE = 1 << 20 };

static void probe_read(const cortiq_op *op, cortiq_worker *worker)
{
    cortiq_probe_args *args = op->args;
    int32_t first, stop, pieces = (int32_t)(args->count / PIECE);
    uint64_t sums[8] = {0};
    while (cortiq_take(worker, pieces, 4, &first, &stop)) {
        const uint64_t *words = (const uint64_t *)args->data + (size_t)first * (PIECE / 8);
        const uint64_t *end = (const uint64_t *)args->data + (size_t)stop * (PIECE / 8);
        for (; words < end; words += 8)
            for (int i = 0; i < 8; i++)
                sums[i] ^= words[i];
    }
    for (int i = 1; i < 8; i++)
        sums[0] ^= sums[i];
    __atomic_fetch_xor(&args->result, (int64_t)sums[0], __ATOMIC_RELAXED);
}
CORTIQ_REGISTER(CORTIQ_PROBE_READ, probe_read)

static void probe_dots(const cortiq_op *op, cortiq_worker *worker)
{
    cortiq_probe_args *args = op->args;
    const cortiq_matmul_set *set = cortiq_matmul_set_of(worker);
    int64_t result = set->probe_dots(args->count);
    args->multiplies = set->probe_multiplies;
    __atomic_fetch_xor(&args->result, result, __ATOMIC_RELAXED);
}
CORTIQ_REGISTER(CORTIQ_PROBE_DOTS, probe_dots)

static void probe_floats(const cortiq_op *op, cortiq_worker *worker)
{
    cortiq_probe_args *args = op->args;
    int64_t multiplies = 0;
    int64_t result = cortiq_kernels_of(worker->isa)->probe_floats(args->count, &multiplies);
    __atomic_store_n(&args->multiplies, multiplies, __ATOMIC_RELAXED);
    __atomic_fetch_xor(&args->result, result, __ATOMIC_RELAXED);
}
CORTIQ_REGISTER(CORTIQ_PROBE_FLOATS, probe_floats)
