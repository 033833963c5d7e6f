/* Between pool.c and run.c. */
#ifndef CORTIQ_POOL_H
#define CORTIQ_POOL_H

#include "cortiq_native.h"

typedef struct {
    const cortiq_op *ops;
    int32_t count;
    int64_t *nanoseconds;
} cortiq_job;

/* Hand the job to all workers; returns when it is done. */
void cortiq_pool_execute(cortiq_pool *pool, const cortiq_job *job);

int64_t cortiq_now(void); /* nanoseconds */

/* When the last worker came to the last barrier, of a job that is timed. A worker that was asleep
 * sees it later, and what it took to wake belongs to the op in which the others waited. */
int64_t cortiq_passed(const cortiq_worker *worker);

/* One worker's part of a job. */
void cortiq_work(cortiq_worker *worker, const cortiq_job *job);

#endif
