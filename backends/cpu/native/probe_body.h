/* Float operations on registers, as fast as they go. */
#ifndef PROBE_BODY_H
#define PROBE_BODY_H

#include "scalar.h"

enum { CHAINS = 12 };

/* Sums and products in turn, each of which waits for its own chain only. */
static int64_t probe_floats(int64_t rounds, int64_t *operations)
{
    vf x[CHAINS], factor = f_all(0.999f), addend = f_all(0.001f), sum = {0};
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) x[c] = f_all((float)c);
    for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) x[c] = x[c] * factor + addend;
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) sum = sum + x[c];
    *operations = 2 * CHAINS * CQ_LANES;
    return i_highest(bits_of(sum));
}

#endif
