/* Worker threads that sleep between runs, spin between ops, and share work by tickets. */
#define _GNU_SOURCE
#include "cortiq_native.h"
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define RELAX() _mm_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("isb") /* `yield` does nothing on most of these */
#else
#define RELAX() ((void)0)
#endif

#if defined(_WIN32)
#include <malloc.h>
#define ALIGNED_ALLOC(alignment, bytes) _aligned_malloc(bytes, alignment)
#define ALIGNED_FREE _aligned_free
#else
#define ALIGNED_ALLOC aligned_alloc
#define ALIGNED_FREE free
#endif

/* Turns of a waiting thread before it lets others run, and how often it does before it sleeps:
 * some 50 µs together, longer than most ops.
 */
enum { SPINS = 300, YIELDS = 60 };

typedef struct {
    _Alignas(64) atomic_int value;
} counter;

struct cortiq_pool {
    counter ticket;     /* next index cortiq_take hands out */
    counter arrived;    /* workers at the barrier */
    counter generation; /* barriers passed */
    counter run;        /* runs published; a worker that sees a new number starts */
    counter sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    int stop;
    int32_t threads;
    cortiq_job job;
    int64_t passed;
    pthread_t *handles;
    cortiq_worker *workers;
    uint8_t *shared;
    size_t shared_bytes;
};

/* Wait until *value differs from `old`: spin, then sleep. */
static void wait_change(cortiq_pool *pool, counter *watched, int old)
{
    for (int i = 0; i < SPINS + YIELDS; i++) {
        if (atomic_load_explicit(&watched->value, memory_order_acquire) != old)
            return;
        if (i < SPINS)
            RELAX();
        else
            sched_yield();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers.value, 1);
    while (atomic_load(&watched->value) == old)
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers.value, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void change(cortiq_pool *pool, counter *watched)
{
    atomic_fetch_add(&watched->value, 1);
    if (atomic_load(&pool->sleepers.value) == 0)
        return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

int64_t cortiq_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t cortiq_passed(const cortiq_worker *worker) { return worker->pool->passed; }

void cortiq_barrier(cortiq_worker *worker)
{
    cortiq_pool *pool = worker->pool;
    if (worker->threads == 1) {
        atomic_store_explicit(&pool->ticket.value, 0, memory_order_relaxed);
        return;
    }
    int generation = atomic_load(&pool->generation.value);
    if (atomic_fetch_add(&pool->arrived.value, 1) + 1 < pool->threads) {
        wait_change(pool, &pool->generation, generation);
        return;
    }
    if (pool->job.nanoseconds)
        pool->passed = cortiq_now();
    atomic_store(&pool->arrived.value, 0);
    atomic_store(&pool->ticket.value, 0);
    change(pool, &pool->generation);
}

int cortiq_take(cortiq_worker *worker, int32_t total, int32_t grain, int32_t *start, int32_t *stop)
{
    int32_t ticket = atomic_fetch_add_explicit(&worker->pool->ticket.value, 1,
                                               memory_order_relaxed);
    int64_t first = (int64_t)ticket * grain;
    if (first >= total)
        return 0;
    *start = (int32_t)first;
    *stop = total - *start < grain ? total : *start + grain;
    return 1;
}

uint8_t *cortiq_shared(cortiq_worker *worker, size_t bytes)
{
    cortiq_pool *pool = worker->pool;
    if (bytes <= pool->shared_bytes)
        return pool->shared;
    cortiq_barrier(worker); /* all have looked, and none uses the old memory */
    if (worker->index == 0) {
        ALIGNED_FREE(pool->shared);
        bytes = (bytes + 4095) & ~(size_t)4095;
        pool->shared = ALIGNED_ALLOC(4096, bytes);
        pool->shared_bytes = pool->shared ? bytes : 0;
    }
    cortiq_barrier(worker);
    return pool->shared;
}

static void *work(void *argument)
{
    cortiq_worker *worker = argument;
    cortiq_pool *pool = worker->pool;
    int seen = 0;
    for (;;) {
        wait_change(pool, &pool->run, seen);
        seen++;
        if (pool->stop)
            return NULL;
        /* A copy: after the last barrier the next job may already be written. */
        cortiq_job job = pool->job;
        cortiq_work(worker, &job);
    }
}

void cortiq_pool_execute(cortiq_pool *pool, const cortiq_job *job)
{
    pool->job = *job;
    if (pool->threads > 1)
        change(pool, &pool->run);
    cortiq_work(&pool->workers[0], &pool->job);
}

static int start_workers(cortiq_pool *pool, int32_t isa, size_t scratch_bytes)
{
    size_t bytes = (scratch_bytes + 4095) & ~(size_t)4095;
    for (int32_t i = 0; i < pool->threads; i++) {
        cortiq_worker *worker = &pool->workers[i];
        void *scratch = ALIGNED_ALLOC(4096, bytes ? bytes : 4096);
        if (!scratch)
            return 0;
        *worker = (cortiq_worker){pool, i, pool->threads, isa, scratch, bytes};
    }
    for (int32_t i = 1; i < pool->threads; i++)
        if (pthread_create(&pool->handles[i], NULL, work, &pool->workers[i])) {
            pool->handles[i] = 0;
            return 0;
        }
    return 1;
}

cortiq_pool *cortiq_pool_create(int32_t threads, int32_t isa, size_t scratch_bytes)
{
    if (threads < 1 || !cortiq_isa_supported(isa))
        return NULL;
    cortiq_pool *pool = ALIGNED_ALLOC(64, (sizeof *pool + 63) & ~(size_t)63);
    if (!pool)
        return NULL;
    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->handles = calloc((size_t)threads, sizeof *pool->handles);
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    if (pool->handles && pool->workers && start_workers(pool, isa, scratch_bytes))
        return pool;
    cortiq_pool_destroy(pool);
    return NULL;
}

void cortiq_pool_destroy(cortiq_pool *pool)
{
    if (!pool)
        return;
    pool->stop = 1;
    change(pool, &pool->run);
    for (int32_t i = 1; pool->handles && i < pool->threads; i++)
        if (pool->handles[i])
            pthread_join(pool->handles[i], NULL);
    for (int32_t i = 0; pool->workers && i < pool->threads; i++)
        ALIGNED_FREE(pool->workers[i].scratch);
    ALIGNED_FREE(pool->shared);
    free(pool->workers);
    free(pool->handles);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->wake);
    ALIGNED_FREE(pool);
}
