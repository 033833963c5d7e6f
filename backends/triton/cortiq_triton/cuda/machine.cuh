/* What kernels ask of the machine: barriers of a block and of the grid, bulk copies, tensor cores, loads
   that pass the L1, which is not coherent. `emulated.h` of the tests has the same for one CPU thread.
   A kernel defines CONSUMERS and THREADS, its threads but those that copy and all of them, before. */
#pragma once

typedef signed char i8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef EMULATED
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1)
#define INLINE __device__ __forceinline__
#define ON_DEVICE static INLINE
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) i8 name[]
#define ARGUMENTS const __grid_constant__ Arguments

/* A matrix of bytes and the box that is copied of it, as the driver encodes them. */
struct alignas(64) TensorMap {
    u64 words[16];
};

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

/* A box from this column and row on; what lies outside of the matrix becomes zeros, and is counted. */
ON_DEVICE void tensor_copy(void* to, const TensorMap* from, int column, int row, u64* barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(shared_address(to)), "l"(from), "r"(column), "r"(row),
                    "r"(shared_address(barrier)) : "memory");
}

/* The next launch may start, as far as there is room for it, and waits for this one's end. */
ON_DEVICE void let_next()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

template <int COUNT> ON_DEVICE void keep_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}

template <int COUNT> ON_DEVICE void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

/* Rows of 128 bytes in shared memory, whose 16-byte pieces are turned within 1,024 bytes. */
ON_DEVICE u64 tile_words(const i8* tile)
{
    return (u64)(shared_address(tile) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

ON_DEVICE void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

ON_DEVICE void products_asked()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Wait for all products but those of the last LATER groups. */
template <int LATER> ON_DEVICE void products_done()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LATER) : "memory");
}

#define EIGHT(i) "+r"(s[i]), "+r"(s[i + 1]), "+r"(s[i + 2]), "+r"(s[i + 3]), "+r"(s[i + 4]), \
    "+r"(s[i + 5]), "+r"(s[i + 6]), "+r"(s[i + 7])

/* s [64, 192] += a [64, 32] * b [192, 32] transposed, of a group of four warps; without `more`, = it. A
   thread's sums are of rows 16 * (warp % 4) + lane / 4 and 8 more, and of columns 2 * (lane % 4) and 1
   more of each eight: s[4 * (column / 8) + 2 * (row / 8 % 2) + column % 2]. */
ON_DEVICE void multiply_tiles(int (&s)[96], u64 a, u64 b, bool more)
{
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %98, 0;"
        " wgmma.mma_async.sync.aligned.m64n192k32.s32.s8.s8"
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
        " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"
        " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95},"
        " %96, %97, p; }"
        : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56),
          EIGHT(64), EIGHT(72), EIGHT(80), EIGHT(88)
        : "l"(a), "l"(b), "r"((int)more));
}

/* The same of step number k of 32 columns of rows of 128. */
ON_DEVICE void multiply_step(int (&s)[96], const i8* a, const i8* b, int k, bool more)
{
    multiply_tiles(s, tile_words(a) + 2 * k, tile_words(b) + 2 * k, more);
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
