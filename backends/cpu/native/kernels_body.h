/* All kernels of one instruction set, and their table. Included by kernels_*.c only. */
#include "kernels.h"

#include "isa.h"

#include "rows_body.h"
#include "compress_body.h"
#include "conv_body.h"
#include "recurrence_body.h"
#include "probe_body.h"
#include "tail_body.h"
#include "attention_body.h"
#include "attention_end_body.h"
#include "blocks_body.h"
#include "keys_body.h"

const cortiq_kernels CQ_NAME(cortiq_kernels) = {
    .row = {
        .add = row_add, .multiply = row_multiply, .scale = row_scale, .snap = row_snap,
        .activation = row_activation, .soft_cap = row_soft_cap, .rms_norm = row_rms_norm,
        .l2_norm = row_l2_norm, .layer_norm = row_layer_norm, .rope = row_rope,
        .quantise = row_quantise, .finish = row_finish,
        .softmax = row_softmax, .sigmoid = row_sigmoid,
        .conv = rows_conv, .compress = rows_compress, .weighted_sum = row_weighted_sum,
    },
    .tail = {
        .highest = row_highest, .argmax = tail_argmax, .exp_lanes = tail_exp_lanes,
        .log = tail_log, .digest = tail_digest, .distances = tail_distances,
        .probabilities = tail_probabilities, .weight = tail_weight,
        .noisy = tail_noisy,
    },
    .faded = row_faded,
    .recur = row_recur,
    .probe_floats = probe_floats,
    .attend = attend_task,
    .merge = merge_partial,
    .finish = attend_finish,
    .score = score_task,
    .choose = choose_task,
};

CQ_TARGET_END
