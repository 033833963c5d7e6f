"""Ops that see positions and state: rotary embedding, attention and its cache, convolution."""

from __future__ import annotations

import ctypes

import numpy as np

from cortiq.backend.fuse import FusedAttention, HeadGroup, QKVPrologue
from cortiq.backend.lower import LoweredStep
from cortiq.ir import ops
from cortiq.numerics.scores import steepness
from cortiq_cpu import arguments
from cortiq_cpu.arguments import OpKind, address
from cortiq_cpu.binder import OpArgs, OpBinder, fields
from cortiq_cpu.recurrent_states import RecurrentLayout

F32 = np.float32
PAIRINGS = ("half", "interleaved")
TARGETS = ("record", "keys", "values")
"""Each by the number the native core gives them."""


def bind_rope(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind ROPE."""
    op: ops.Rope = step.op  # type: ignore[assignment]
    heads, width = b.shape(step.nodes[0].inputs[0])
    cos, sin = b.angles.place(step.nodes[0], b.rows)
    args = arguments.RopeArgs(
        x=b.at(step.inputs[0]),
        out=b.at(step.outputs[0]),
        cos=cos,
        sin=sin,
        x_stride=heads * width,
        out_stride=heads * width,
        heads=heads,
        width=width,
        pairs=op.table.dim // 2,
        interleaved=PAIRINGS.index(op.pairing),
    )
    return [(OpKind.ROPE, args)]


def _part(b: OpBinder, part: HeadGroup) -> arguments.HeadGroupArgs:
    heads, width = b.shape(part.quantise.inputs[0])
    args = arguments.HeadGroupArgs(
        x=b.at(part.x),
        x_stride=heads * width,
        heads=heads,
        width=width,
        target=TARGETS.index(part.target),
        inverse_width=F32(1) / F32(width),
    )
    if part.target == "record":
        args.record = b.at(part.quantise.outputs[0])
    if part.norm is not None:
        args.normed, args.eps = 1, F32(fields(part.norm).eps)
        args.weight = b.vector(part.norm, "weight")
    if part.rope is not None:
        op = fields(part.rope)
        args.cos, args.sin = b.angles.place(part.rope, b.rows)
        args.pairs, args.interleaved = op.table.dim // 2, PAIRINGS.index(op.pairing)
    return args


def bind_qkv_prologue(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind HEADS: q, k and v on their way into attention."""
    op: QKVPrologue = step.op  # type: ignore[assignment]
    parts = (arguments.HeadGroupArgs * len(op.parts))(*(_part(b, part) for part in op.parts))
    b.kept.append(parts)
    args = arguments.QKVPrologueArgs(parts=ctypes.addressof(parts), count=len(parts))
    if op.store is not None:
        args.kv = b.kv(op.store.slots["kv"])
    return [(OpKind.HEADS, args)]


def bind_store_kv(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind STORE_KV."""
    kv = b.kv(step.nodes[0].slots["kv"])
    return [(OpKind.STORE_KV, arguments.StoreKVArgs(kv, *(b.at(name) for name in step.inputs)))]


def bind_attend(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind ATTEND, perhaps with the quantised row of all heads."""
    attention: FusedAttention = step.op  # type: ignore[assignment]
    node, op = attention.node, fields(attention.node)
    constants = b.weights.scoring(op)
    args = arguments.AttendArgs(
        kv=b.kv(node.slots["kv"]),
        q=b.at(step.inputs[0]),
        sinks=b.vector(node, "sinks"),
        out=b.at(attention.out),
        record=b.at(attention.record),
        workspace=b.workspace.address,
        workspace_bytes=b.workspace.size,
        out_stride=op.heads * op.value_dim,
        heads=op.heads,
        window=op.window or 0,
        factor=constants.factor,
        cap=constants.cap,
        inverse_cap=constants.inverse_cap,
    )
    if op.slopes:
        b.kept.append(steepness(op.slopes))
        args.steep = address(b.kept[-1])
    if op.until:
        args.last = b.at(step.inputs[1])
    if op.mass:
        args.mass = b.at(node.outputs[1])
    if op.block:
        chosen = step.inputs[2]
        args.chosen, args.block = b.at(chosen), op.block
        args.sets, args.chosen_count = b.shape(chosen)
    return [(OpKind.ATTEND, args)]


def bind_choose(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind CHOOSE_BLOCKS."""
    op: ops.ChooseBlocks = step.op  # type: ignore[assignment]
    args = arguments.ChooseBlocksArgs(
        kv=b.kv(step.nodes[0].slots["kv"]),
        q=b.at(step.inputs[0]),
        out=b.at(step.outputs[0]),
        heads=op.heads,
        block=op.block,
        top=op.top,
        local=op.local,
    )
    return [(OpKind.CHOOSE_BLOCKS, args)]


def bind_choose_keys(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind CHOOSE_KEYS."""
    op: ops.ChooseKeys = step.op  # type: ignore[assignment]
    query, weights = (b.at(step.inputs[i]) for i in (0, 2))
    kv = b.kv(step.nodes[0].slots["kv"])
    out, how = b.at(step.outputs[0]), (op.heads, op.top, op.every)
    args = arguments.ChooseKeysArgs(kv, query, weights, out, *how)
    return [(OpKind.CHOOSE_KEYS, args)]


def bind_recall(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind RECALL."""
    kv, (out,) = b.kv(step.nodes[0].slots["kv"]), step.outputs
    return [(OpKind.RECALL, arguments.RecallArgs(kv, b.at(out), b.stride(out)))]


def bind_conv(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind CAUSAL_CONV."""
    node = step.nodes[0]
    op: ops.CausalConv = node.op  # type: ignore[assignment]
    args = arguments.ConvArgs(
        x=b.at(step.inputs[0]),
        out=b.at(step.outputs[0]),
        weight=b.weights.taps(node.weights["weight"]),
        bias=b.vector(node, "bias"),
        **b.ring(node.slots["ring"]),
        x_stride=op.width,
        out_stride=op.width,
        width=op.width,
        taps=op.kernel,
    )
    return [(OpKind.CAUSAL_CONV, args)]


def bind_hash(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind HASH_NGRAMS."""
    op: ops.HashNGrams = step.op  # type: ignore[assignment]
    multipliers, heights = np.array(op.multipliers, np.uint64), np.array(op.heights, np.int32)
    b.kept += [multipliers, heights]
    args = arguments.HashArgs(
        tokens=address(b.rows.tokens),
        multipliers=address(multipliers),
        heights=address(heights),
        out=b.at(step.outputs[0]),
        **b.ring(step.nodes[0].slots["ring"]),
        size=len(multipliers),
        heads=len(heights),
        end=op.end,
    )
    return [(OpKind.HASH_NGRAMS, args)]


def bind_compress(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind COMPRESS."""
    node = step.nodes[0]
    op: ops.Compress = node.op  # type: ignore[assignment]
    args = arguments.CompressArgs(
        x=b.at(step.inputs[0]),
        gates=b.at(step.inputs[2]),
        bias=b.vector(node, "bias"),
        out=b.at(step.outputs[0]),
        **b.ring(node.slots["ring"]),
        width=op.width,
        rate=op.rate,
        parts=op.parts,
    )
    return [(OpKind.COMPRESS, args)]


def bind_recurrence(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind GATED_DELTA: a delta rule, or the state-space step with C, B and x as q, k and v."""
    slot = step.nodes[0].slots["state"]
    number, layout = b.layout.fixed_numbers[slot], b.layout.recurrences[slot]
    assert isinstance(layout, RecurrentLayout)
    first, second, third, *rest = step.inputs
    names = step.inputs if layout.delta else (third, second, first, *rest)
    args = layout.args()
    *addresses, last = (b.at(name) for name in names)
    args.q, args.k, args.v, args.alpha, *kappa = addresses
    args.beta = last
    if kappa:
        (args.kappa,) = kappa
    args.out, args.states = b.at(step.outputs[0]), b.rows.fixed[number].ctypes.data
    args.segments, args.segment_count = address(b.rows.segments), address(b.rows.segment_count)
    return [(OpKind.GATED_DELTA, args)]
