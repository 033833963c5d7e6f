/* Records of quantised rows: padding and sums. */
#include "cortiq_native.h"

size_t cortiq_record_bytes(int32_t width) { return cortiq_record_stride(width); }

size_t cortiq_record_exponent_at(int32_t width)
{
    return (size_t)((uint8_t *)cortiq_record_e(NULL, width) - (uint8_t *)NULL);
}

static int32_t sum_of_16(const int16_t *q)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < 16; i++)
        sum += q[i];
    return sum;
}

void cortiq_record_finish(void *record, int32_t width)
{
    int16_t *q = cortiq_record_q(record);
    int32_t *sums = cortiq_record_sums(record, width);
    float *sum32 = cortiq_record_sum32(record, width);
    int16_t *high16 = cortiq_record_high16(record, width);
    int16_t *low16 = cortiq_record_low16(record, width);
    int16_t *high32 = cortiq_record_high32(record, width);
    int16_t *low32 = cortiq_record_low32(record, width);
    for (int32_t k = width; k < cortiq_padded(width); k++)
        q[k] = 0;
    for (int32_t s = 0; s < cortiq_padded(width) / 16; s++) {
        sums[s] = sum_of_16(q + 16 * s);
        high16[s] = (int16_t)(sums[s] >> 8);
        low16[s] = (int16_t)(sums[s] & 255);
    }
    for (int32_t s = 0; s < cortiq_padded(width) / 32; s++) {
        int32_t sum = sums[2 * s] + sums[2 * s + 1];
        sum32[s] = (float)sum;
        high32[s] = (int16_t)(sum >> 8);
        low32[s] = (int16_t)(sum & 255);
    }
}
