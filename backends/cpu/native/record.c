/* Records of quantised rows: padding and sums. */
#include "cortiq_native.h"

size_t cortiq_record_bytes(int32_t width) { return cortiq_record_stride(width); }

void cortiq_record_finish(void *record, int32_t width)
{
    int16_t *q = cortiq_record_q(record);
    int32_t *sums = cortiq_record_sums(record, width);
    for (int32_t k = width; k < cortiq_padded(width); k++)
        q[k] = 0;
    for (int32_t s = 0; s < cortiq_padded(width) / 16; s++) {
        int32_t sum = 0;
        for (int32_t i = 0; i < 16; i++)
            sum += q[16 * s + i];
        sums[s] = sum;
    }
}
