/* Matrix products: the ops' arguments, and what matmul.c hands to the kernels of an instruction
 * set.
 */
#ifndef CORTIQ_MATMUL_H
#define CORTIQ_MATMUL_H

#include "layouts.h"

/* One product of CORTIQ_MATMUL: row i's outputs go to out + i·stride. */
typedef struct {
    const cortiq_matrix *matrix;
    float *out;
    int64_t stride; /* floats */
} cortiq_product;

enum { CORTIQ_PRODUCTS = 4 };

/* CORTIQ_MATMUL: the same rows times up to four matrices (q, k, v; gate, up) of one width.
 * x: records of width K, one a row; for F32 matrices float32 [rows, K], and every matrix is F32.
 * `inner` rows of x belong to one row of the op (1, or the heads): rows·inner products.
 */
typedef struct {
    const void *x;
    int32_t inner, count;
    cortiq_product products[CORTIQ_PRODUCTS];
} cortiq_matmul_args;

/* CORTIQ_MATMUL_CHOSEN: slot j of row i times matrix choice[i·slots + j] of a stack; without
 * `choice`, slot j meets matrix j (a matrix a head). x holds a record (or float row) a slot, or
 * with `shared` one a row. out: float32 [rows, slots, height].
 */
typedef struct {
    const cortiq_matrix *matrix;
    const void *x;
    const int32_t *choice;
    float *out;
    int32_t slots, shared;
} cortiq_chosen_args;

/* CORTIQ_LOW_RANK: out = base + B·quantise(A·x) for up to four weights of one input; row i's A and B are
 * members choice[i] of stacks. x: records, one a row; base, out: float32 [rows, height of B].
 * changes: a byte a member of A, 0 where A is zero, so that out is base.
 */
typedef struct {
    const cortiq_matrix *a, *b;
    const uint8_t *changes;
    const float *base;
    float *out;
} cortiq_low_rank_part;

typedef struct {
    const void *x;
    const int32_t *choice;
    uint8_t *workspace; /* cortiq_low_rank_workspace bytes */
    int32_t count;
    cortiq_low_rank_part parts[CORTIQ_PRODUCTS];
} cortiq_low_rank_args;

/* Bytes of workspace for products of this rank at most. */
CORTIQ_API int64_t cortiq_low_rank_workspace(int32_t rank, int32_t threads);

/* CORTIQ_EMBED_ROWS: out[i] = row ids[i] of the matrix; ids were checked, `inner` of them a row of
 * the batch. float32 [rows, inner, width]. */
typedef struct {
    const cortiq_matrix *matrix;
    const int32_t *ids;
    float *out;
    int64_t inner;
} cortiq_embed_args;

/* CORTIQ_PROBE_READ: read `count` bytes of data (whole MiB), shared by the workers.
 * CORTIQ_PROBE_DOTS: `count` rounds of dot products on every worker, each `multiplies`
 * multiply-adds of int16. CORTIQ_PROBE_FLOATS: as many of float operations, each rounded.
 */
typedef struct {
    const void *data;
    int64_t count, multiplies, result;
} cortiq_probe_args;

enum {
    DIRECT_ROWS = 16, /* up to here weights are unpacked in registers, for every panel anew */
    BLOCK_ROWS = 256 /* rows that meet an expanded tile at a time */
};

/* Some rows and some outputs of a product. */
typedef struct {
    const cortiq_matrix *matrix;
    const uint8_t *panel; /* the first, others follow; of F32: the first row of the weight */
    int32_t outputs;      /* that exist from there on */
    int32_t at;           /* of the panel's first output in a row of out */
    int32_t count;        /* rows */
    const void *const *x; /* their records, or float rows */
    float *const *out;    /* where each row's first output of this tile goes */
    uint8_t *const *faults;
    int32_t *const *starts; /* direct kernels: see starts_of in matmul.c */
    const uint8_t *ready;   /* the rows in the form that the set's `ready` gave them, or for a
                             * kernel of one row `row_ready` */
    uint8_t *scratch;
    size_t exponent_at; /* where a record has it, in bytes */
} cortiq_tile;

/* A tile's panels one after the other: narrow matrices have little to do in each. */
#define EACH_PANEL(one, tile)                                                                      \
    cortiq_tile one = *(tile); one.outputs > 0;                                                    \
    one.panel += one.matrix->panel_bytes, one.at += PANEL, one.outputs -= PANEL

typedef void (*cortiq_tile_kernel)(const cortiq_tile *tile);

/* The kernels of an instruction set. A direct kernel takes any panels and up to DIRECT_ROWS rows,
 * a block kernel `panels` panels and up to BLOCK_ROWS rows. A set with tile registers has its rows
 * made ready for block kernels, READY_ROWS at a time, in one of READY_FORMS forms, by the layout.
 */
enum { READY_ROWS = 16, READY_FORMS = 2 };

typedef struct cortiq_matmul_set {
    int32_t panels;
    uint8_t direct_rows[CORTIQ_LAYOUTS]; /* more rows than this take the block kernel */
    const cortiq_tile_kernel *direct; /* by layout */
    const cortiq_tile_kernel *one;    /* NULL, or by layout NULL or a kernel of one row in the form that */
    /* row_ready gives it, twice its padded width in bytes */
    void (*row_ready)(const void *record, int32_t width, uint8_t *to);
    cortiq_tile_kernel block[CORTIQ_LAYOUTS];
    int (*ready_form)(int layout);                    /* NULL, as the five below: no such form;
                                                       * −1: this layout has none */
    size_t (*ready_bytes)(int layout, int32_t width); /* of READY_ROWS rows */
    void (*ready)(int layout, int32_t width, const void *const *x, int32_t count, uint8_t *to);
    void (*begin)(void); /* block kernels are called between these two, on each thread */
    void (*end)(void);
    const struct cortiq_matmul_set *otherwise; /* where rows are not made ready */
    int32_t (*probe_dots)(int64_t count);
    int64_t probe_multiplies; /* of a round */
} cortiq_matmul_set;

const cortiq_matmul_set *cortiq_matmul_set_of(const cortiq_worker *worker);

extern const cortiq_matmul_set cortiq_matmul_portable, cortiq_matmul_avx2, cortiq_matmul_avxvnni,
    cortiq_matmul_avx512vnni, cortiq_matmul_amx, cortiq_matmul_amx_emulated, cortiq_matmul_neon,
    cortiq_matmul_neon_dotprod, cortiq_matmul_neon_i8mm;
extern const cortiq_tile_kernel cortiq_direct_avx512vnni[CORTIQ_LAYOUTS],
    cortiq_one_avx512vnni[CORTIQ_LAYOUTS];
void cortiq_row_ready_avx512vnni(const void *record, int32_t width, uint8_t *to);

#define CORTIQ_EACH_LAYOUT(X)                                                                      \
    CORTIQ_EACH_TILE_LAYOUT(X) X(E2M1) X(E4M3) X(NF4) X(FP4)
#define CORTIQ_EACH_TILE_LAYOUT(X)                                                                 \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4) X(I4) X(I4M) X(I8) X(I8M)           \
    X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(IQ4_XS) X(Q6_K) X(K8) X(W8) X(W8B256) X(W16)

static inline void cortiq_raise_fault(uint8_t *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
}

#endif
