/* The machine of `cortiq_triton/cuda` on one CPU thread: every thread of the grid is a coroutine, which
   lets others run where it waits. Copies arrive some turns later, and threads take turns in an order
   drawn anew each round. */
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#define EMULATED
#define INLINE inline
#define ON_DEVICE static inline
#define KERNEL static void
#define ARGUMENTS const Arguments&
#define SHARED_MEMORY(name) signed char* name = current->block->memory
#define __syncwarp() warp_meet()
#define __grid_constant__
struct TensorMap { const signed char* data; long long rows, columns, box, unused[12]; };

using std::max;
using std::min;
typedef unsigned int u32;
typedef unsigned long long u64;
struct int2 { int x, y; };
struct float2 { float x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct Waiting { int pending, count; long bytes; u32 phase; };
struct Meeting { int came; u32 turn; };
struct Block {
    signed char* memory;
    std::map<u64*, Waiting> barriers;
    Meeting all, consumers, warps[32];
    int exchanged[32][32], operands[32][32][6];
};
struct Thread {
    void* context;
    Block* block;
    u32 x, block_x;
    const u32* watched;
    u32 before;
    bool done;
    char* stack;
};
struct Copy { Block* block; void* to; const void* from; u32 bytes; u64* barrier; int left; };
extern "C" void swap_stacks(void** mine, void* other);
__asm__(".text\nswap_stacks:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        " mov %rsp, (%rdi)\n mov %rsi, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n"
        " pop %rbp\n ret\n");
static Thread* current;
static void* scheduler;
static std::vector<Copy> copies;
static u32 grid_size, block_size;
static struct { struct { operator u32() const { return current->x; } } x; } threadIdx;
static struct { struct { operator u32() const { return current->block_x; } } x; } blockIdx;
static struct { struct { operator u32() const { return grid_size; } } x; } gridDim;

static void wait_while(const u32* word, u32 value)
{
    while (*word == value) {
        current->watched = word;
        current->before = value;
        swap_stacks(&current->context, scheduler);
        current->watched = nullptr;
    }
}

static void meet(Meeting& m, int count)
{
    const u32 turn = m.turn;
    if (++m.came == count) {
        m.came = 0;
        ++m.turn;
    } else
        wait_while(&m.turn, turn);
}

static void warp_meet()
{
    meet(current->block->warps[current->x / 32], 32);
}

static const int* warp_gather(int x)
{
    const int warp = current->x / 32;
    current->block->exchanged[warp][current->x % 32] = x;
    meet(current->block->warps[warp], 32);
    return current->block->exchanged[warp];
}

template <class F> static int warp_fold(int x, F f)
{
    const int* all = warp_gather(x);
    int result = all[0];
    for (int i = 1; i < 32; ++i)
        result = f(result, all[i]);
    warp_meet();
    return result;
}

static inline int warp_sum(int x) { return warp_fold(x, [](int a, int b) { return a + b; }); }
static inline int warp_most(int x) { return warp_fold(x, [](int a, int b) { return max(a, b); }); }
static inline int from_lane_across(int x, int distance)
{
    const int found = warp_gather(x)[(current->x % 32) ^ distance];
    warp_meet();
    return found;
}
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline float from_lane_across(float x, int distance)
{
    return __int_as_float(from_lane_across(__float_as_int(x), distance));
}
template <class T> static inline T __ldcg(const T* p)
{
    if ((u64)p % sizeof(T)) { fprintf(stderr, "a load that is not aligned\n"); abort(); }
    return *p;
}
template <class T> static inline T __ldg(const T* p) { return __ldcg(p); }
static inline u32 __byte_perm(u32 a, u32 b, u32 choice)
{
    const u64 both = (u64)b << 32 | a;
    u32 found = 0;
    for (int i = 0; i < 4; ++i)
        found |= (u32)(both >> 8 * (choice >> 4 * i & 7) & 255) << 8 * i;
    return found;
}
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int)(signed char)(a >> i) * (int)(signed char)(b >> i);
    return c;
}
static inline void barrier_init(u64* b, int count) { current->block->barriers[b] = {count, count, 0, 0}; }
static inline void barriers_are_there() {}
static void settle(Waiting& w)
{
    if (w.pending == 0 && w.bytes == 0) {
        w.pending = w.count;
        ++w.phase;
    }
}
static inline void barrier_arrive(u64* b, int count)
{
    Waiting& w = current->block->barriers.at(b);
    if ((w.pending -= count) < 0) { fprintf(stderr, "too many arrivals\n"); abort(); }
    settle(w);
}
static inline void barrier_expect(u64* b, u32 bytes)
{
    current->block->barriers.at(b).bytes += bytes;
    barrier_arrive(b, 1);
}
static inline void barrier_wait(u64* b, u32 parity)
{
    Waiting& w = current->block->barriers.at(b);
    while ((w.phase & 1) == parity)
        wait_while(&w.phase, w.phase);
}
static std::mt19937 chance(1);
static inline void bulk_copy(void* to, const void* from, u32 bytes, u64* barrier)
{
    if (((u64)to | (u64)from | bytes) % 16 || !bytes) { fprintf(stderr, "a copy that is not aligned\n"); abort(); }
    copies.push_back({current->block, to, from, bytes, barrier, int(chance() % 20)});
}
static signed char zeros[128];
/* Rows of 128 bytes, each a copy of its own; columns come in groups of 64. */
static inline void tensor_copy(signed char* to, const TensorMap* from, int column, int row, u64* barrier)
{
    for (int at = row; at < row + from->box; ++at)
        for (int k = column; k < column + 128; k += 64, to += 64) {
            const bool inside = at < from->rows && k < from->columns;
            bulk_copy(to, inside ? from->data + at * from->columns + k : zeros, 64, barrier);
        }
}
static inline void let_next() {}
template <int COUNT> static inline void keep_registers() {}
template <int COUNT> static inline void take_registers() {}
static inline void products_begin() {}
static inline void products_asked() {}
template <int LATER> static inline void products_done() {}
static inline void multiply_step(int (&s)[96], const signed char* a, const signed char* b, int k, bool more)
{
    const int lane = current->x % 32, warp = current->x / 32 % 4;
    for (int i = 0; i < 96; ++i) {
        const int row = 16 * warp + lane / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + 2 * (lane % 4) + i % 2;
        int sum = more ? s[i] : 0;
        for (int c = 32 * k; c < 32 * k + 32; ++c)
            sum += (int)a[row * 128 + c] * (int)b[column * 128 + c];
        s[i] = sum;
    }
}
static inline void sync_consumers() { meet(current->block->consumers, block_size - 32); }
static inline void __syncthreads() { meet(current->block->all, block_size); }
static inline void release_add(u32* c) { ++*c; }
static inline u32 acquire(const u32* c)
{
    swap_stacks(&current->context, scheduler);
    return *c;
}
static inline u32 ordered_add(u32* c) { return (*c)++; }
static inline void multiply_words(int (&sums)[4], int a0, int a8, int more0, int more8, int b, int more)
{
    const int lane = current->x % 32;
    int (*all)[6] = current->block->operands[current->x / 32];
    const int mine[6] = {a0, a8, more0, more8, b, more};
    memcpy(all[lane], mine, sizeof mine);
    warp_meet();
    for (int i = 0; i < 4; ++i)
        for (int t = 0; t < 4; ++t)
            for (int half = 0; half < 2; ++half) {
                const int row = lane / 4 * 4 + t, column = (lane % 4 * 2 + i % 2) * 4 + t;
                sums[i] = __dp4a(all[row][2 * half + i / 2], all[column][4 + half], sums[i]);
            }
    warp_meet();
}
static inline void prefetch(const void*) {}
