/* Records of quantised rows: planes and sums from q. */
#include "cortiq_native.h"

size_t cortiq_record_bytes(int32_t width) { return cortiq_record_stride(width); }

void cortiq_record_planes(void *record, int32_t width, int32_t isa)
{
    (void)isa;
    static const uint8_t order[4] = {0, 2, 1, 3};
    int16_t *q = cortiq_record_q(record);
    int8_t *hi = cortiq_record_hi(record, width), *lo = cortiq_record_lo(record, width);
    int16_t *sum_hi = cortiq_record_sum_hi(record, width);
    int16_t *sum_lo = cortiq_record_sum_lo(record, width);
    for (int32_t s = 0; s < cortiq_padded(width) / 16; s++) {
        int32_t high = 0, low = 0;
        for (int32_t i = 0; i < 16; i++) {
            int32_t value = q[16 * s + (i & ~3) + order[i & 3]];
            hi[16 * s + i] = (int8_t)((value + 128) >> 8);
            lo[16 * s + i] = (int8_t)(value - hi[16 * s + i] * 256);
            high += hi[16 * s + i];
            low += lo[16 * s + i];
        }
        sum_hi[s] = (int16_t)high;
        sum_lo[s] = (int16_t)low;
    }
}
