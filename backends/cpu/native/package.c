/* PACKAGE: rows through the kernel of another package. */
#include "args.h"
#include "kernels.h"

static void package_rows(const cortiq_op *op, cortiq_worker *worker)
{
    const cortiq_package *a = op->args;
    int32_t start, stop, total = *op->rows;
    if (a->whole) {
        if (worker->index == 0)
            a->function(&a->call, op->faults, 0, total);
        return;
    }
    while (cortiq_take(worker, total, cortiq_grain(total, worker->threads), &start, &stop))
        a->function(&a->call, op->faults, start, stop);
}
CORTIQ_REGISTER(CORTIQ_PACKAGE, package_rows)
