/* y = x / (mean |x| + eps) * gain; built with
 *     cc -O2 -shared -fPIC -ffp-contract=off -I INCLUDE mean_norm.c -o mean_norm.so
 * where INCLUDE is `cortiq_cpu.INCLUDE`. */
#include <cortiq_kernel.h>
#include <math.h>

typedef struct {
    float eps, inverse;
    int32_t width;
} constants;

__attribute__((visibility("default")))
void mean_norm(const cortiq_kernel_call *call, uint8_t *faults, int32_t start, int32_t stop)
{
    const constants *c = call->constants;
    const float *gain = call->weights[0].data;
    for (int32_t row = start; row < stop; row++) {
        const float *x = cortiq_kernel_input(call, 0, row);
        float *out = cortiq_kernel_output(call, 0, row);
        for (int64_t part = 0; part < call->inputs[0].count; part += c->width) {
            float *magnitudes = out + part;
            for (int32_t i = 0; i < c->width; i++) magnitudes[i] = fabsf(x[part + i]);
            float mean = cortiq_kernel_sum(magnitudes, c->width) * c->inverse;
            float factor = 1.0f / (mean + c->eps);
            for (int32_t i = 0; i < c->width; i++)
                out[part + i] = cortiq_kernel_snap(x[part + i] * factor * gain[i], &faults[row]);
        }
    }
}
