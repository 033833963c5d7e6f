/* The table of an instruction set; included last. */
#define DIRECT_ENTRY(name) [CORTIQ_##name] = direct_##name,
#define BLOCK_ENTRY(name) [CORTIQ_##name] = block_##name,

const cortiq_tile_kernel ISA_NAME(cortiq_direct)[CORTIQ_LAYOUTS] = {
    CORTIQ_EACH_LAYOUT(DIRECT_ENTRY)[CORTIQ_F32] = float_tile};

#ifdef ONE_LAYOUTS /* those of kernel_panel_bytes.h */
#define ONE_ENTRY(name) [CORTIQ_##name] = one_##name,
const cortiq_tile_kernel ISA_NAME(cortiq_one)[CORTIQ_LAYOUTS] = {ONE_LAYOUTS(ONE_ENTRY)};
#endif

const cortiq_matmul_set ISA_NAME(cortiq_matmul) = {
    .panels = TILE / PANEL,
    .direct_rows = {[0 ... CORTIQ_LAYOUTS - 1] = LANES == 16 ? 16 : LANES == 8 ? 4 : 1},
    .direct = ISA_NAME(cortiq_direct),
#ifdef ONE_LAYOUTS
    .one = ISA_NAME(cortiq_one),
    .row_ready = ISA_NAME(cortiq_row_ready),
#endif
    .block = {CORTIQ_EACH_LAYOUT(BLOCK_ENTRY)[CORTIQ_F32] = float_tile},
    .probe_dots = probe_dots,
    .probe_multiplies = 8 * 2 * LANES,
};
