/* Rows that meet one matrix: what matmul.c and matmul_chosen.c share. */
#ifndef CORTIQ_MATMUL_GROUP_H
#define CORTIQ_MATMUL_GROUP_H

#include "matmul.h"

enum { READY_BLOCKS = BLOCK_ROWS / READY_ROWS };

typedef struct {
    const cortiq_matrix *matrix;
    int32_t index; /* of the matrix in its stack */
    int32_t panel; /* whose first output is out[i][0] */
    int32_t count;
    const void *x[BLOCK_ROWS];
    float *out[BLOCK_ROWS];
    uint8_t *faults[BLOCK_ROWS];
    const uint8_t *ready[READY_FORMS]; /* the rows for the set's block kernels, or NULL */
} row_group;

/* Whether so many rows meet the matrix in a kernel that has them made ready. */
static inline int cortiq_wants_ready(const cortiq_matmul_set *set, const cortiq_matrix *m,
                                     int32_t rows)
{
    return set->ready && m->layout != CORTIQ_F32 && set->ready_form(m->layout) >= 0 &&
           rows > set->direct_rows[m->layout];
}

/* Bytes from one row of x to the next. */
static inline size_t cortiq_row_stride(const cortiq_matrix *m)
{
    return m->layout == CORTIQ_F32 ? (size_t)m->width * 4 : cortiq_record_stride(m->width);
}

/* Outputs of panels first … stop − 1 for all rows of the group. */
void cortiq_multiply(cortiq_worker *worker, const row_group *group, int32_t first, int32_t stop);

/* Pairs (row·slots + slot) in the order of the matrices that they chose. */
typedef struct {
    int32_t *order;  /* [pairs] */
    int32_t *starts; /* [matrices + 1] */
} sorted_pairs;

enum { MOST_PAIRS = 1 << 16 };

/* A counting sort of pairs first … stop − 1 into the worker's scratch, behind what the kernels use.
 * Without `choice` slot j meets matrix j. */
sorted_pairs cortiq_sort_pairs(const int32_t *choice, int32_t slots, int32_t matrices, int32_t first,
                               int32_t stop, const cortiq_worker *worker);

/* Memory of a worker's own in which so many rows of a matrix are made ready; NULL if none are. All
 * workers call this. */
uint8_t *cortiq_ready_memory(cortiq_worker *worker, const cortiq_matrix *m, int32_t rows);

/* The group's rows for the block kernels, if these want them, into such memory. */
void cortiq_make_ready(const cortiq_worker *worker, row_group *group, uint8_t *memory);

/* A worker's next share [*start, *stop) of `total` panels: large shares at first, then ever smaller
 * ones, so that memory is read in long stretches and nobody waits long at the end.
 */
int cortiq_take_panels(cortiq_worker *worker, int64_t total, int64_t *start, int64_t *stop);

#endif
