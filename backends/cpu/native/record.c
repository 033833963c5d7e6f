/* Records of quantised rows: padding and sums. */
#include "kernels.h"

size_t cortiq_record_bytes(int32_t width) { return cortiq_record_stride(width); }

size_t cortiq_record_exponent_at(int32_t width)
{
    return (size_t)((uint8_t *)cortiq_record_e(NULL, width) - (uint8_t *)NULL);
}

void cortiq_record_finish(void *record, int32_t width)
{
    cortiq_kernels_of(CORTIQ_PORTABLE)->row.finish(record, width);
}
