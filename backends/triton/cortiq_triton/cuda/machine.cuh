/* What the kernel asks of the machine: barriers of a block and of the grid, bulk copies, loads that
   pass the L1, which is not coherent. `emulated.h` of the tests has the same for one CPU thread. */
#pragma once

typedef signed char i8;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WARPS = 16, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32;

#ifndef EMULATED
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1)
#define INLINE __device__ __forceinline__
#define ON_DEVICE static INLINE
#define SHARED_MEMORY(name) extern __shared__ __align__(128) i8 name[]
#define ARGUMENTS const __grid_constant__ Arguments

ON_DEVICE u32 shared_address(const void* p)
{
    return (u32)__cvta_generic_to_shared(p);
}

ON_DEVICE void barrier_init(u64* barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(count) : "memory");
}

/* What was initialised is seen by the copy engine too. */
ON_DEVICE void barriers_are_there()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

ON_DEVICE void barrier_arrive(u64* barrier, int count)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(count) : "memory");
}

ON_DEVICE void barrier_expect(u64* barrier, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}

ON_DEVICE void barrier_wait(u64* barrier, u32 parity)
{
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     " selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
}

/* Bytes from global to shared memory, 16 at least, which nobody reads again soon; the barrier counts
   them. */
ON_DEVICE void bulk_copy(void* to, const void* from, u32 bytes, u64* barrier)
{
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;"
                 :: "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes),
                    "r"(shared_address(barrier)), "l"(policy) : "memory");
}

ON_DEVICE void sync_consumers()
{
    asm volatile("bar.sync 1, %0;" :: "n"(CONSUMERS) : "memory");
}

ON_DEVICE void release_add(u32* counter)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;"
                 :: "l"(__cvta_generic_to_global(counter)) : "memory");
}

ON_DEVICE u32 acquire(const u32* counter)
{
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(value) : "l"(__cvta_generic_to_global(counter)) : "memory");
    return value;
}

ON_DEVICE u32 ordered_add(u32* counter)
{
    u32 value;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(value) : "l"(__cvta_generic_to_global(counter)) : "memory");
    return value;
}

ON_DEVICE void prefetch(const void* p)
{
    asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(p)));
}

ON_DEVICE int warp_sum(int x)
{
    return __reduce_add_sync(~0u, x);
}

ON_DEVICE int warp_most(int x)
{
    return __reduce_max_sync(~0u, x);
}

/* sums [16, 8] + a [16, 32] * b [32, 8] of a warp: a lane's bytes of a are those of rows lane / 4 and 8
   more, of b those of column lane / 4; its sums are of these rows and columns 2 * (lane % 4) and 1
   more. Which columns of a and rows of b a word stands for is the caller's, if it is the same. */
ON_DEVICE void multiply_words(int (&sums)[4], int a0, int a8, int more0, int more8, int b, int more)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                 : "r"(a0), "r"(a8), "r"(more0), "r"(more8), "r"(b), "r"(more));
}

template <class T> ON_DEVICE T from_lane_across(T x, int distance)
{
    return __shfl_xor_sync(~0u, x, distance);
}
#endif

/* The same of 64 columns of a: 16 bytes of each row a lane. */
ON_DEVICE void multiply_quads(int (&sums)[4], int4 a0, int4 a8, int4 b)
{
    multiply_words(sums, a0.x, a8.x, a0.y, a8.y, b.x, b.y);
    multiply_words(sums, a0.z, a8.z, a0.w, a8.w, b.z, b.w);
}

/* A barrier of all blocks, which are on the machine together: every store of theirs before it is
   seen by every load after it that passes the L1. `passed` counts arrivals, and starts at 0. */
ON_DEVICE void sync_grid(u32* counter, u32& passed)
{
    sync_consumers();
    passed += gridDim.x;
    if (threadIdx.x == 0) {
        release_add(counter);
        while (acquire(counter) < passed)
            ;
    }
    sync_consumers();
}

struct Share {
    int first, last;
};

/* The part of so many units that is this block's. */
ON_DEVICE Share share_of(int units)
{
    const long long blocks = gridDim.x, block = blockIdx.x;
    return {int(units * block / blocks), int(units * (block + 1) / blocks)};
}
