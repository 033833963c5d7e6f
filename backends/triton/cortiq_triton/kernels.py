"""One function a primitive: (call, *inputs) → output(s), each a launch or a few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from cortiq.backend.extents import ring_rows
from cortiq.ir import Op, ops
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight, floats
from cortiq.numerics.norms import offset_weight
from cortiq.numerics.scaling import gain
from cortiq_triton import compressed, mixers, ngrams, products, recurrences, rotary, routing
from cortiq_triton import elementwise as ew
from cortiq_triton.attend import attend, choose_blocks, choose_keys, recall, store_kv
from cortiq_triton.call import LaunchCall
from cortiq_triton.language import INTERPRETED, ceil_div, launch, pow2
from cortiq_triton.products import EXPERTS, HEADS, PLAIN, Stack
from cortiq_triton.rows import L2, LAYER, RMS, Rows, normalised, quantise_rows, softmaxed
from cortiq_triton.weights import pack

Value: TypeAlias = torch.Tensor | Rows
MATRICES = (ops.EmbedRows, ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul)
LARGEST_STATE = 2048
"""Rows of a recurrent state up to which one program holds its columns."""
LIMIT = 2.0**50


def prepare(op: Op, role: str, weight: Weight, name: str, device: str) -> Any:
    """A weight as the kernel of `op` takes it: packed, or a tensor of floats."""
    if isinstance(op, MATRICES):
        return pack(weight, name, device)
    values = floats(weight, name)
    if isinstance(op, ops.Gain):
        values = gain(values, op.form, name)
    if isinstance(op, ops.RMSNorm | ops.LayerNorm) and op.offset and role == "weight":
        values = offset_weight(values, op.offset)
    return torch.from_numpy(values.copy()).to(device)


def _leading(x: Value) -> tuple[int, ...]:
    """Rows, and the axes before the last."""
    return tuple(x.e.shape if isinstance(x, Rows) else x.shape[:-1])


def _matmul(call: LaunchCall, x: Value) -> torch.Tensor:
    weight, lead = call.weights["weight"], _leading(x)
    count = 1
    for size in lead:
        count *= size
    each = max(1, count // max(1, lead[0]))
    how = Stack(PLAIN, weight.height, group=each)
    return products.product(weight, x, count, call.faults, how).view(*lead, -1)


def _head_matmul(call: LaunchCall, x: Value) -> torch.Tensor:
    heads, rows = call.op.heads, _leading(x)[0]
    how = Stack(HEADS, call.op.out_width, count=heads, group=heads)
    return products.product(call.weights["weight"], x, rows * heads, call.faults, how).view(
        rows, heads, -1
    )


def _expert_matmul(call: LaunchCall, x: Value, index: torch.Tensor) -> torch.Tensor:
    rows, chosen = index.shape
    per = chosen if len(_leading(x)) == 1 else 1
    groups = call.rows.groups(index)
    how = Stack(EXPERTS, call.op.out_width, per=per, group=chosen, index=index, groups=groups)
    return products.product(call.weights["weight"], x, rows * chosen, call.faults, how).view(
        rows, chosen, -1
    )


def _gain(call: LaunchCall, x: torch.Tensor) -> torch.Tensor:
    mode = {"value": ew.LAST, "head": ew.HEAD, "all": ew.ONE}[call.op.per]
    if mode == ew.HEAD and x.ndim == 2:
        raise AssertionError("a gain a head is for heads")
    return ew.apply(
        ew.multiply,
        x,
        call.faults,
        y=call.weights["weight"],
        mode=mode,
        heads=call.op.width,
    )


def _expert_gain(call: LaunchCall, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    flat = x[..., None] if x.ndim == index.ndim else x
    y = ew.apply(
        ew.multiply,
        flat,
        call.faults,
        y=call.weights["weight"],
        mode=ew.EXPERT,
        index=index,
    )
    return y.view(x.shape)


def _stack_index(
    call: LaunchCall, number: torch.Tensor, index: torch.Tensor | None = None
) -> torch.Tensor:
    if index is None:
        index = torch.arange(call.op.size, dtype=number.dtype, device=number.device)
    return number[:, None] * call.op.size + index


def _expert_bias(call: LaunchCall, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return ew.apply(
        ew.add, x, call.faults, y=call.weights["bias"], mode=ew.EXPERT, index=index,
        heads=call.op.width,
    )  # fmt: skip


def _clamp(call: LaunchCall, x: torch.Tensor) -> torch.Tensor:
    low, high = call.op.low, call.op.high
    a = -LIMIT if low is None else float(F32(low))
    b = LIMIT if high is None else float(F32(high))
    return ew.apply(ew.bounded, x, call.faults, a=a, b=b)


def _soft_cap(call: LaunchCall, x: torch.Tensor) -> torch.Tensor:
    cap = F32(call.op.cap)
    return ew.apply(ew.soft_cap, x, call.faults, a=float(cap), b=float(F32(1) / cap))


def _norm(kind: int) -> Callable[..., torch.Tensor]:
    def kernel(call: LaunchCall, x: torch.Tensor) -> torch.Tensor:
        weights = call.weights
        return normalised(
            kind, x, call.faults, call.op.eps, weights.get("weight"), weights.get("bias")
        )

    return kernel


def _causal_conv(call: LaunchCall, x: torch.Tensor) -> torch.Tensor:
    slot, offset = call.slot("ring")
    rows, (count, width) = call.rows, x.shape
    rb, bc = (64, 1024) if INTERPRETED else (4, 256)
    rb, bc = min(rb, pow2(count)), min(bc, pow2(width))
    out, weight, bias = torch.empty_like(x), call.weights["weight"], call.weights.get("bias")
    grid, ring = (ceil_div(count, rb), ceil_div(width, bc)), ring_rows(slot)
    launch(
        mixers.causal_conv, grid, x, weight, x if bias is None else bias, rows.fixed, rows.owners,
        rows.positions, rows.starts, out, call.faults, count, width, offset, ring,
        TAPS=call.op.kernel, BIAS=bias is not None, RB=rb, BC=bc,
    )  # fmt: skip
    launch(
        mixers.keep_rows, grid, x, rows.fixed, rows.owners, rows.positions, rows.stops, count,
        width, offset, ring, RB=rb, BC=bc,
    )  # fmt: skip
    return out


def _combine(call: LaunchCall, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    rows, chosen, n = values.shape
    width = min(pow2(n), 1 << 14 if INTERPRETED else 1024)
    out = torch.empty((rows, n), dtype=torch.float32, device=values.device)
    grid = (rows, ceil_div(n, width))
    launch(
        mixers.combine_experts, grid, weights, values, out, call.faults, n, K=chosen, WIDTH=width
    )
    return out


def _embed_rows(call: LaunchCall, token: torch.Tensor) -> torch.Tensor:
    table = call.weights["table"]
    if token.ndim == 1:
        return products.look_up(table, token, call.faults)
    flags = torch.zeros(token.numel(), dtype=call.faults.dtype, device=token.device)
    rows = products.look_up(table, token.reshape(-1), flags)
    call.faults |= flags.reshape(token.shape).amax(dim=1)
    return rows.reshape(*token.shape, -1)


def _route(call: LaunchCall, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = call.weights
    return routing.routed(
        scores, call.op.router, weights.get("bias"), weights.get("mask"), call.faults
    )


def _rope(call: LaunchCall, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return rotary.rope(call.op, call.shared.angles, x, position, call.faults)


def _pairwise(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    return lambda call, x, y: ew.apply(function, x, call.faults, y=y, mode=ew.SAME)


KERNELS: Mapping[type[Op], Callable[..., Any]] = {
    ops.EmbedRows: _embed_rows,
    ops.Quantise: lambda call, x: quantise_rows(x),
    ops.MatMul: _matmul,
    ops.HeadMatMul: _head_matmul,
    ops.ExpertMatMul: _expert_matmul,
    ops.Add: _pairwise(ew.add),
    ops.Multiply: _pairwise(ew.multiply),
    ops.Scale: lambda call, x: ew.apply(ew.scale, x, call.faults, a=float(F32(call.op.factor))),
    ops.Bias: lambda call, x: ew.apply(
        ew.add, x, call.faults, y=call.weights["bias"], mode=ew.LAST
    ),
    ops.Activation: lambda call, x: ew.apply(ew.ACTIVATIONS[call.op.function], x, call.faults),
    ops.SoftCap: _soft_cap,
    ops.RMSNorm: _norm(RMS),
    ops.LayerNorm: _norm(LAYER),
    ops.L2Norm: _norm(L2),
    ops.Softmax: lambda call, x: softmaxed(x, call.faults),
    ops.Rope: _rope,
    ops.StoreKV: store_kv,
    ops.Attend: attend,
    ops.ChooseBlocks: choose_blocks,
    ops.ChooseKeys: choose_keys,
    ops.OwnBlock: lambda call, position: (position // call.op.block)[:, None, None],
    ops.Recall: recall,
    ops.CausalConv: _causal_conv,
    ops.Compress: compressed.compress,
    ops.Sinkhorn: compressed.sinkhorn,
    ops.ListKeys: compressed.list_keys,
    ops.WindowBlocks: compressed.window_blocks,
    ops.HashNGrams: ngrams.hash_ngrams,
    ops.KeepListed: compressed.keep_listed,
    ops.IndexSelect: compressed.index_select,
    ops.StackIndex: _stack_index,
    ops.DeltaRule: recurrences.delta_rule,
    ops.DiagonalDeltaRule: recurrences.diagonal_delta_rule,
    ops.StateSpace: recurrences.state_space,
    ops.Route: _route,
    ops.CombineExperts: _combine,
    ops.Slice: lambda call, x: x[..., call.op.start : call.op.stop : call.op.step].contiguous(),
    ops.Concat: lambda call, *parts: torch.cat(parts, dim=-1),
    ops.Permute: lambda call, x: x.index_select(-1, call.shared.order(call.op.order)),
    ops.Reshape: lambda call, x: x.reshape(len(x), *call.op.shape),
    ops.Gain: _gain,
    ops.ScaleRows: lambda call, x, y: ew.apply(ew.multiply, x, call.faults, y=y, mode=ew.OUTER),
    ops.Shift: lambda call, x: ew.apply(ew.shift, x, call.faults, a=float(F32(call.op.amount))),
    ops.Clamp: _clamp,
    ops.ExpertGain: _expert_gain,
    ops.ExpertBias: _expert_bias,
}
"""The kernel of every primitive."""
OPTIONS = frozenset(
    {*ew.ACTIVATIONS, "step", "missing", "sections", "groups", "mask", "tau", "blocks",
     "keys only", "until", "mass", "every", "slopes",
     "sqrt_softplus", "sparse_mixer"}
)  # fmt: skip
"""Options that the kernels know, as `Op.options` names them."""


def limit_of(op: Op) -> str | None:
    """Why a node is beyond what the kernels hold in one program; None if it is not."""
    rows = {
        ops.DeltaRule: "key_dim",
        ops.DiagonalDeltaRule: "key_dim",
        ops.StateSpace: "state_dim",
    }.get(type(op))
    if rows and getattr(op, rows) > LARGEST_STATE:
        return f"a state of {getattr(op, rows)} rows; one program holds {LARGEST_STATE}"
    if isinstance(op, ops.Route) and op.experts > routing.LARGEST:
        return f"{op.experts} experts; one program holds {routing.LARGEST}"
    if isinstance(op, ops.Route) and op.router.top_k > routing.LANES:
        return f"{op.router.top_k} experts a row; one program holds {routing.LANES}"
    return None
