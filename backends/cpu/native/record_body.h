/* Rows quantised to records, for one instruction set; continues rows_body.h. */

/* Exponent of a row of canonical values: see numerics.quantise. */
static int32_t row_exponent(const float *x, int n)
{
    vi worst = {0};
    EACH(i, count, n)
        worst = i_max(worst, bits_of(f_load_part(x + i, count)) & i_all(MAGNITUDE));
    int32_t m = i_highest(worst);
    return m < SMALLEST_BITS ? ZERO_ROW_EXPONENT : ((m + 0x20000) >> 23) - 141;
}

/* q = rint(x*2^-e) as int16. A row of zeros needs no case of its own: its q are 0. */
static int32_t row_quantise(const float *x, int16_t *q, int n)
{
    int32_t e = row_exponent(x, n);
    vf factor = f_all(exp2_int(-e));
    EACH(i, count, n) {
        vi whole = i_rint(f_load_part(x + i, count) * factor);
        i16_store_part(q + i, whole, count);
    }
    return e;
}

/* Everything of a record but q and e; see cortiq_native.h. */
static void row_finish(void *record, int32_t width)
{
    int16_t *restrict q = cortiq_record_q(record);
    int32_t *restrict sums = cortiq_record_sums(record, width);
    float *restrict sum32 = cortiq_record_sum32(record, width);
    int16_t *restrict high16 = cortiq_record_high16(record, width);
    int16_t *restrict low16 = cortiq_record_low16(record, width);
    int16_t *restrict high32 = cortiq_record_high32(record, width);
    int16_t *restrict low32 = cortiq_record_low32(record, width);
    int32_t padded = cortiq_padded(width);
    for (int32_t k = width; k < padded; k++) q[k] = 0;
    for (int32_t s = 0; s < padded / 16; s++) {
        vi total = {0};
        for (int j = 0; j < 16; j += CQ_LANES) {
            v16 part;
            memcpy(&part, q + 16 * s + j, sizeof part);
            total = total + __builtin_convertvector(part, vi);
        }
        sums[s] = i_total(total);
    }
    for (int32_t s = 0; s < padded / 16; s++) {
        high16[s] = (int16_t)(sums[s] >> 8);
        low16[s] = (int16_t)(sums[s] & 255);
    }
    for (int32_t s = 0; s < padded / 32; s++) {
        int32_t sum = sums[2 * s] + sums[2 * s + 1];
        sum32[s] = (float)sum;
        high32[s] = (int16_t)(sum >> 8);
        low32[s] = (int16_t)(sum & 255);
    }
}
