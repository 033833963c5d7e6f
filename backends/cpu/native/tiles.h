/* Tile registers of AMX: eight of 16 rows of 64 bytes, numbered by constants 0 … 7.
 *
 * The instructions are written out here, because compilers' own intrinsics let loads pass earlier
 * stores. With CORTIQ_EMULATE_AMX the same names are plain C: matmul_amx_emulated.c.
 * Functions that use them stand between tiles_begin and tiles_end, on one thread.
 *
 *     TILE_ZERO(t)                   t = 0
 *     TILE_LOAD(t, base, stride)     row i of t is the 64 bytes at base + i·stride
 *     TILE_STORE(t, base, stride)    the reverse
 *     TILE_DOT_BYTES(c, a, b)        int32 c[i][j] += Σ over k < 64 of int8 a[i][k] · b[k/4][j][k%4]
 *     TILE_DOT_HALVES(c, a, b)       float c[i][j] += Σ over k < 32 of bf16 a[i][k] · b[k/2][j][k%2]
 *
 * The latter's order of sums is the machine's own and it flushes subnormals: it is used where every
 * term and every partial sum is an integer below 2^24 times one power of two, and so exact.
 */
#ifndef CORTIQ_TILES_H
#define CORTIQ_TILES_H

#include <stdint.h>
#include <string.h>

enum { TILE_ROWS = 16, TILE_STEP = 64, TILE_BYTES = 1024 };

#if defined(CORTIQ_EMULATE_AMX)

typedef struct {
    uint8_t rows[TILE_ROWS][TILE_STEP];
} emulated_tile;
static _Thread_local emulated_tile emulated_tiles[8];
static _Thread_local int emulated_ready;

static inline emulated_tile *emulated_tile_at(int t)
{
    if (!emulated_ready)
        __builtin_trap(); /* as the machine would */
    return &emulated_tiles[t];
}
static inline void emulated_load(emulated_tile *t, const void *base, int64_t stride)
{
    for (int i = 0; i < TILE_ROWS; i++)
        memcpy(t->rows[i], (const uint8_t *)base + i * stride, TILE_STEP);
}
static inline void emulated_store(const emulated_tile *t, void *base, int64_t stride)
{
    for (int i = 0; i < TILE_ROWS; i++)
        memcpy((uint8_t *)base + i * stride, t->rows[i], TILE_STEP);
}
static inline void emulated_dot_bytes(emulated_tile *c, const emulated_tile *a,
                                      const emulated_tile *b)
{
    int32_t sums[16];
    for (int i = 0; i < TILE_ROWS; i++) {
        memcpy(sums, c->rows[i], sizeof sums);
        for (int k = 0; k < TILE_STEP; k++)
            for (int j = 0; j < 16; j++)
                sums[j] += (int8_t)a->rows[i][k] * (int8_t)b->rows[k / 4][4 * j + k % 4];
        memcpy(c->rows[i], sums, sizeof sums);
    }
}
static inline float emulated_half(const uint8_t *at)
{
    uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline void emulated_dot_halves(emulated_tile *c, const emulated_tile *a,
                                       const emulated_tile *b)
{
    float sums[16];
    for (int i = 0; i < TILE_ROWS; i++) {
        memcpy(sums, c->rows[i], sizeof sums);
        for (int k = 0; k < TILE_STEP / 2; k++)
            for (int j = 0; j < 16; j++)
                sums[j] += emulated_half(&a->rows[i][2 * k]) *
                           emulated_half(&b->rows[k / 2][4 * j + 2 * (k % 2)]);
        memcpy(c->rows[i], sums, sizeof sums);
    }
}

#define TILE_ZERO(t) memset(emulated_tile_at(t), 0, TILE_BYTES)
#define TILE_LOAD(t, base, stride) emulated_load(emulated_tile_at(t), base, stride)
#define TILE_STORE(t, base, stride) emulated_store(emulated_tile_at(t), base, stride)
#define TILE_DOT_BYTES(c, a, b)                                                                    \
    emulated_dot_bytes(emulated_tile_at(c), emulated_tile_at(a), emulated_tile_at(b))
#define TILE_DOT_HALVES(c, a, b)                                                                   \
    emulated_dot_halves(emulated_tile_at(c), emulated_tile_at(a), emulated_tile_at(b))

static inline void tiles_begin(void) { emulated_ready = 1; }
static inline void tiles_end(void) { emulated_ready = 0; }

#else

#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, base, stride)                                                                 \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(base), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, base, stride)                                                                \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(base), "r"((int64_t)(stride))       \
                     : "memory")
#define TILE_DOT_BYTES(c, a, b)                                                                    \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define TILE_DOT_HALVES(c, a, b)                                                                   \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

/* Palette 1; eight tiles of 16 rows of 64 bytes. */
__attribute__((target("amx-tile"))) static inline void tiles_begin(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.bytes[t] = TILE_STEP;
        config.rows[t] = TILE_ROWS;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}
__attribute__((target("amx-tile"))) static inline void tiles_end(void)
{
    __asm__ volatile("tilerelease" ::);
}

#endif

#endif
