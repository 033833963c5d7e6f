/* A kernel of cortiq_triton, the file SOURCE and its function ENTRY, on one CPU thread. */
#include "emulated.h"
#include SOURCE

static const Arguments* given;

static void enter()
{
    ENTRY(*given);
    current->done = true;
    swap_stacks(&current->context, scheduler);
}

/* Runs the kernel; returns the rounds it took, or -1 if every thread waits for another. */
extern "C" int run_kernel(const void* arguments, int blocks, int threads, int shared)
{
    given = (const Arguments*)arguments;
    grid_size = blocks;
    block_size = threads;
    std::vector<Block> all(blocks);
    std::vector<Thread> everyone((size_t)blocks * threads);
    std::vector<Thread*> order;
    for (u32 i = 0; i < everyone.size(); ++i) {
        Thread& t = everyone[i];
        t.block_x = i / threads;
        t.x = i % threads;
        t.block = &all[t.block_x];
        if (t.x == 0) {
            t.block->memory = (signed char*)aligned_alloc(128, (shared + 127) / 128 * 128);
            memset(t.block->memory, 0x5A, shared);
        }
        t.watched = nullptr;
        t.done = false;
        t.stack = (char*)malloc(1 << 16);
        void** top = (void**)(t.stack + (1 << 16)) - 1;
        *--top = (void*)enter;
        t.context = top - 6;
        order.push_back(&t);
    }
    int idle = 0, rounds = 0;
    size_t left = everyone.size();
    for (; left && idle < 1000; ++rounds) {
        bool moved = false;
        if (rounds % 16 == 0)
            std::shuffle(order.begin(), order.end(), chance);
        for (Thread* t : order) {
            if (t->done || (t->watched && *t->watched == t->before))
                continue;
            moved |= t->watched != nullptr || rounds == 0;
            current = t;
            swap_stacks(&scheduler, t->context);
            left -= t->done;
        }
        for (size_t i = 0; i < copies.size();) {
            Copy& c = copies[i];
            if (c.left-- > 0) {
                ++i;
                continue;
            }
            memcpy(c.to, c.from, c.bytes);
            Waiting& w = c.block->barriers.at(c.barrier);
            w.bytes -= c.bytes;
            settle(w);
            copies[i] = copies.back();
            copies.pop_back();
            moved = true;
        }
        idle = moved || !copies.empty() ? 0 : idle + 1;
    }
    for (Thread& t : everyone)
        free(t.stack);
    for (Block& b : all)
        free(b.memory);
    return left ? -1 : rounds;
}
