/* What ends a query; continues attention_body.h. */

#include "rows_body.h"

/* A sink joins the denominator, after all keys. */
static void add_sink(partial *p, float sink)
{
    float limited, g, lane[CQ_LANES];
    vf s = f_min(f_max(f_all(sink) * f_all(LOG2_E), f_all(-16384.0f)), f_all(16384.0f));
    vf whole = f_rint(s);
    f_store(lane, f_exp2_fraction(s - whole));
    g = lane[0] * 2097152.0f;
    f_store(lane, whole);
    limited = lane[0];
    int32_t kappa = (int32_t)limited, m = larger(p->m, kappa);
    p->mass = p->mass * power(p->m - m, -60) + g * power(kappa - m, -60);
    p->m = m;
}

/* The output of query head `head`: snap((o/mass)·2^(n − m + 7)). Changes the partial. */
static int attend_finish(const cortiq_attend *a, partial *p, float *out, int head)
{
    vi worst = {0};
    int32_t dim = a->kv.value_dim;
    if (p->n == NONE) {
        memset(out, 0, (size_t)dim * sizeof *out);
        return 0;
    }
    if (a->sinks) add_sink(p, a->sinks[head]);
    vf inverse = f_all(1.0f / p->mass), scale = f_all(power(p->n - p->m + 7, -126));
    EACH(i, count, dim) {
        vf y = (f_load_part(p->o + i, count) * inverse) * scale;
        f_store_part(out + i, snap(y, &worst), count);
    }
    return has_fault(worst);
}
