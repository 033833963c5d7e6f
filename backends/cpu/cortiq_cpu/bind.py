"""Native ops for the steps of a request."""

from __future__ import annotations

from collections.abc import Callable

from cortiq.backend.fuse import (
    FusedAttention,
    FusedElementwise,
    FusedLowRank,
    NormChain,
    QKVPrologue,
)
from cortiq.backend.lower import Admit, Gather, LoweredStep, PackageOp
from cortiq.ir import ops
from cortiq_cpu.bind_matrices import (
    bind_chosen,
    bind_combine,
    bind_embed,
    bind_low_rank,
    bind_matmul,
    bind_route,
)
from cortiq_cpu.bind_rows import (
    bind_admit,
    bind_concat,
    bind_elementwise,
    bind_gather,
    bind_norm,
    bind_quantise,
    bind_slice,
)
from cortiq_cpu.bind_scaling import bind_l2_norm, bind_own_block, bind_scaled
from cortiq_cpu.bind_sequence import (
    bind_attend,
    bind_choose,
    bind_choose_keys,
    bind_compress,
    bind_conv,
    bind_hash,
    bind_qkv_prologue,
    bind_recall,
    bind_recurrence,
    bind_rope,
    bind_store_kv,
)
from cortiq_cpu.binder import OpArgs, OpBinder
from cortiq_cpu.native import NativeOp
from cortiq_cpu.package import bind_package
from cortiq_cpu.supported_ops import SCALED

BINDERS: dict[type, Callable[[OpBinder, LoweredStep], OpArgs]] = {
    Gather: bind_gather,
    Admit: bind_admit,
    PackageOp: bind_package,
    ops.EmbedRows: bind_embed,
    ops.MatMul: bind_matmul,
    ops.HeadMatMul: bind_chosen,
    ops.ExpertMatMul: bind_chosen,
    FusedLowRank: bind_low_rank,
    ops.Quantise: bind_quantise,
    FusedElementwise: bind_elementwise,
    NormChain: bind_norm,
    ops.Rope: bind_rope,
    QKVPrologue: bind_qkv_prologue,
    ops.StoreKV: bind_store_kv,
    FusedAttention: bind_attend,
    ops.ChooseBlocks: bind_choose,
    ops.ChooseKeys: bind_choose_keys,
    ops.Recall: bind_recall,
    ops.OwnBlock: bind_own_block,
    ops.CausalConv: bind_conv,
    ops.Compress: bind_compress,
    ops.HashNGrams: bind_hash,
    ops.DeltaRule: bind_recurrence,
    ops.DiagonalDeltaRule: bind_recurrence,
    ops.StateSpace: bind_recurrence,
    ops.Route: bind_route,
    ops.CombineExperts: bind_combine,
    ops.Slice: bind_slice,
    ops.Concat: bind_concat,
    ops.L2Norm: bind_l2_norm,
    **dict.fromkeys(SCALED, bind_scaled),
}
"""How each step becomes ops."""


def ops_of(binder: OpBinder, step: LoweredStep) -> list[NativeOp]:
    """Make a step's ops: usually one; concatenations take one for each part."""
    return [binder.op(kind, args) for kind, args in BINDERS[type(step.op)](binder, step)]
