/* Writing quantised rows. */
#ifndef CORTIQ_RECORDS_H
#define CORTIQ_RECORDS_H

#include "kernels.h"

/* Quantise n values to record `index` of a buffer of records. */
static inline void cortiq_quantise_to(void *records, int64_t index, const float *x, int32_t n,
                                      int isa)
{
    uint8_t *record = (uint8_t *)records + (size_t)index * cortiq_record_stride(n);
    int16_t *q = cortiq_record_q(record);
    const cortiq_row_kernels *k = &cortiq_kernels_of(isa)->row;
    *cortiq_record_e(record, n) = k->quantise(x, q, n);
    k->finish(record, n);
}

#endif
