/* Asking for memory before it is used. */
#ifndef CORTIQ_EXPECT_H
#define CORTIQ_EXPECT_H

/* A line that will be written: another core that has it gives it up now. Compilers emit the
 * instruction for __builtin_prefetch(p, 1) only where they are told that a machine has it; to
 * others of this architecture it is a no-op. */
static inline __attribute__((always_inline)) void expect_write(const void *p)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1);
#endif
}

#endif
