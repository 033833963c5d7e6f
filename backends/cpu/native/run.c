/* Op lists: the table of kernels and the loop that every worker runs. */
#include "cortiq_native.h"
#include "pool.h"

static cortiq_kernel kernels[CORTIQ_KINDS];

void cortiq_register(int kind, cortiq_kernel kernel) { kernels[kind] = kernel; }

static int is_alone(const cortiq_job *job, int32_t i)
{
    if (i >= job->count || !job->ops[i].alone_rows)
        return 0;
    return *job->ops[i].rows <= job->ops[i].alone_rows;
}

static void execute(const cortiq_job *job, int32_t i, cortiq_worker *worker)
{
    const cortiq_op *op = &job->ops[i];
    if (!is_alone(job, i)) {
        kernels[op->kind](op, worker);
        cortiq_barrier(worker);
        return;
    }
    if (worker->index == 0) {
        cortiq_worker lone = *worker;
        lone.threads = 1;
        kernels[op->kind](op, &lone);
        cortiq_barrier(&lone);
    }
    if (!is_alone(job, i + 1))
        cortiq_barrier(worker);
}

/* When op i was done: the next one begins then. */
static int64_t end_of(const cortiq_job *job, int32_t i, const cortiq_worker *worker)
{
    int passed = worker->threads > 1 && !(is_alone(job, i) && is_alone(job, i + 1));
    return passed ? cortiq_passed(worker) : cortiq_now();
}

void cortiq_work(cortiq_worker *worker, const cortiq_job *job)
{
    int timed = job->nanoseconds && worker->index == 0;
    int64_t before = timed ? cortiq_now() : 0;
    for (int32_t i = 0; i < job->count; i++) {
        execute(job, i, worker);
        if (timed) {
            int64_t after = end_of(job, i, worker);
            job->nanoseconds[i] = after - before;
            before = after;
        }
    }
}

int32_t cortiq_run(cortiq_pool *pool, const cortiq_op *ops, int32_t count, int64_t *nanoseconds)
{
    for (int32_t i = 0; i < count; i++)
        if (ops[i].kind < 0 || ops[i].kind >= CORTIQ_KINDS || !kernels[ops[i].kind])
            return -1 - i;
    cortiq_job job = {ops, count, nanoseconds};
    cortiq_pool_execute(pool, &job);
    return 0;
}

static void nothing(const cortiq_op *op, cortiq_worker *worker)
{
    (void)op;
    (void)worker;
}
CORTIQ_REGISTER(CORTIQ_NOTHING, nothing)
