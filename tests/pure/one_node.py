"""Programs of one operator of the catalogue, with rows and weights that fit its options."""

from __future__ import annotations

from math import prod

import numpy as np

from cortiq.ir import Builder, Type, ops
from cortiq.ir.layers import (
    AltUpAdd,
    AltUpCorrect,
    AltUpEntry,
    AltUpExit,
    AltUpPredict,
    Blend,
    CentredNorm,
    PerLayerGate,
    PerLayerInputs,
    StreamEntry,
    StreamRead,
    StreamWrite,
)
from cortiq.models.weight_rules import MATRIX_OPERATORS
from cortiq.numerics.column_order import ColumnOrder
from cortiq.numerics.layouts import Weight, floats
from cortiq.numerics.rope import RopeTable, Sections
from cortiq.numerics.rope_scaling import Linear
from cortiq.numerics.route import Router
from cortiq_conformance.layer_options import OPTIONS
from cortiq_conformance.layers import LAYERS as DRAWN
from cortiq_conformance.layers import _Dice, layer_probe, weights_of
from cortiq_conformance.probes import ProbeProgram, bound

TABLE = RopeTable(1e4, 8)
PRIMITIVES = (
    ops.EmbedRows(5, 8), ops.EmbedRows(5, 8, missing=True), ops.Quantise(), ops.MatMul(8, 4),
    ops.HeadMatMul(2, 8, 4), ops.ExpertMatMul(4, 8, 4), ops.Add(), ops.Multiply(), ops.Scale(0.3),
    ops.Bias(8), ops.Activation("silu"), ops.SoftCap(3.0), ops.RMSNorm(8, 1e-6),
    ops.LayerNorm(8, 1e-6), ops.Rope(TABLE), ops.Rope(RopeTable(1e4, 8, Linear(2.0))),
    ops.Rope(TABLE, "half", Sections((2, 1, 1), True)), ops.StoreKV(2, 8, 4), ops.StoreKV(2, 8, 0),
    ops.Attend(4, 2, 8, 4, 0.3), ops.Attend(4, 2, 8, 4, 0.3, 3, 5.0, True, 4),
    ops.Attend(2, 2, 8, 4, 0.3, until=True), ops.CausalConv(8, 3), ops.CausalConv(8, 3, True),
    ops.Route(4, Router(2)), ops.Route(4, Router(1, groups=2, tau=0.5), True, True),
    ops.CombineExperts(), ops.Slice(1, 4), ops.Slice(0, 6, 2), ops.Concat(), ops.Reshape((2, 4)),
    ops.Gain(8), ops.Gain(1, "all"), ops.ScaleRows(), ops.Shift(0.5), ops.Clamp(-1.0, 1.0),
    ops.Clamp(), ops.L2Norm(8, 1e-6), ops.Softmax(8), ops.ExpertGain(4), ops.ExpertBias(4, 8),
    ops.DeltaRule(2, 8, 4), ops.DeltaRule(2, 8, 4, 1), ops.StateSpace(2, 8, 4),
    ops.DiagonalDeltaRule(2, 8, 4),
    ops.ChooseBlocks(2, 8, 4, 2), ops.ChooseKeys(2, 8, 4), ops.Recall(2, 8),
    ops.ChooseKeys(2, 8, 4, 3), ops.Attend(2, 2, 8, 4, 0.3, mass=True), ops.Sinkhorn(3, 4, 0.01),
    ops.Compress(8, 3), ops.Compress(8, 2, True), ops.ListKeys(3, 4), ops.KeepListed(4, 5, 2),
    ops.Route(4, Router(2, "sqrt_softplus")), ops.Rope(RopeTable(1e4, 8, lag=3, inverse=True)),
    ops.OwnBlock(4), ops.Permute(ColumnOrder.of((3, 0, 1, 2, 7, 5, 4, 6))), ops.IndexSelect(8, 11),
    ops.StackIndex(4), ops.WindowBlocks(3), ops.HashNGrams(1, (3, 5, 9), (11, 13)),
)  # fmt: skip
SPECIMENS = (
    *PRIMITIVES,
    *(draw(_Dice("a specimen")) for kind, draw in DRAWN.items() if kind not in dir(ops)),
    *OPTIONS, Blend(0.3), CentredNorm(24, 1e-6), PerLayerInputs(7, 16, 3, 8, 1e-6),
    PerLayerGate(16, 3, 8, 1),
    StreamEntry(3, 8), StreamRead(3, 8, 1e-6, 1e-6, 2), StreamRead(3, 8, 1e-6, 1e-6, last=True),
    StreamWrite(3, 8), AltUpEntry(3, 8), AltUpPredict(3, 8, 1, 1e-6), AltUpCorrect(3, 8, 1, 1e-6),
    AltUpAdd(3, 8), AltUpExit(3, 8),
)  # fmt: skip
"""One operator at least of every kind, and one with every option in use."""


def f32(*shape):
    return Type(shape)


TAKES = {
    ops.EmbedRows: lambda op: {"token": Type((), "i32")},
    ops.Quantise: lambda op: {"x": f32(8)},
    ops.MatMul: lambda op: {"q.x": f32(op.in_width)},
    ops.HeadMatMul: lambda op: {"q.x": f32(op.heads, op.in_width)},
    ops.ExpertMatMul: lambda op: {"q.x": f32(op.in_width), "index": Type((1,), "i32")},
    ops.Add: lambda op: {"a": f32(8), "b": f32(8)},
    ops.Multiply: lambda op: {"a": f32(8), "b": f32(8)},
    ops.Rope: lambda op: {"x": f32(2, op.table.dim + 2), **(
        {"turns": Type((op.sections.count,), "i32")} if op.sections
        else {"position": Type((), "i32")})},
    ops.StoreKV: lambda op: {"q.k": f32(op.heads, op.key_dim), **(
        {"q.v": f32(op.heads, op.value_dim)} if op.value_dim else {})},
    ops.Attend: lambda op: {"q.q": f32(op.heads, op.key_dim),
        ("last" if op.until else "position"): Type((), "i32"),
        **({"blocks": Type((1, 2), "i32")} if op.block else {})},
    ops.CausalConv: lambda op: {"x": f32(op.width)},
    ops.Route: lambda op: {"x": f32(op.experts)},
    ops.CombineExperts: lambda op: {"w": f32(2), "x": f32(2, 8)},
    ops.Concat: lambda op: {"a": f32(8), "b": f32(3)},
    ops.ScaleRows: lambda op: {"x": f32(2, 8), "s": f32(2, 1)},
    ops.Gain: lambda op: {"x": f32(op.width, 3) if op.per == "head" else f32(2, op.width)},
    ops.ExpertGain: lambda op: {"x": f32(1, 3), "index": Type((1,), "i32")},
    ops.ExpertBias: lambda op: {"x": f32(1, op.width), "index": Type((1,), "i32")},
    ops.DeltaRule: lambda op: {"q": f32(op.groups, op.key_dim), "k": f32(op.groups, op.key_dim),
        "v": f32(op.heads, op.value_dim), "alpha": f32(op.heads), "beta": f32(op.heads)},
    ops.DiagonalDeltaRule: lambda op: {
        name: f32(op.heads, op.value_dim if name == "v" else op.key_dim)
        for name in ("q", "k", "v", "alpha", "kappa", "beta")},
    ops.StateSpace: lambda op: {"x": f32(op.heads, op.head_dim), "b": f32(op.groups, op.state_dim),
        "c": f32(op.groups, op.state_dim), "alpha": f32(op.heads), "delta": f32(op.heads)},
    ops.ChooseBlocks: lambda op: {"q.q": f32(op.heads, op.key_dim), "position": Type((), "i32")},
    ops.ChooseKeys: lambda op: {"q.q": f32(op.heads, op.key_dim), "position": Type((), "i32"),
        "w": f32(op.heads)},
    ops.Sinkhorn: lambda op: {"x": f32(op.streams, op.streams)},
    ops.Compress: lambda op: {"x": f32(op.parts * op.width), "position": Type((), "i32"),
        "gates": f32(op.parts * op.width)},
    ops.ListKeys: lambda op: {"position": Type((), "i32")},
    ops.KeepListed: lambda op: {"x": f32(op.experts), "token": Type((), "i32")},
    ops.IndexSelect: lambda op: {"x": f32(op.in_width)},
    ops.Recall: lambda op: {"position": Type((), "i32")},
    ops.WindowBlocks: lambda op: {"keys": Type((1, 2), "i32"), "position": Type((), "i32")},
    ops.HashNGrams: lambda op: {"token": Type((), "i32")},
    ops.OwnBlock: lambda op: {"position": Type((), "i32")},
    ops.StackIndex: lambda op: {"number": Type((), "i32")}
        | ({} if op.every else {"index": Type((1,), "i32")}),
}  # fmt: skip
"""Inputs by name; `q.` before one that passes through Quantise."""


def shapes_of(op):
    """Types of the operator's inputs, by name."""
    if type(op) in TAKES:
        return TAKES[type(op)](op)
    if isinstance(op, ops.Slice):
        return {"x": f32(max(op.stop, 8))}
    if isinstance(op, ops.Reshape):
        return {"x": f32(prod(op.shape))}
    return {"x": f32(2, getattr(op, "width", 8))}


def probe_of(op, source):
    """The operator alone, with weights and rows; key and value rows are stored before it."""
    if not op.primitive:
        return layer_probe(op, "w16", source)
    b = Builder(context=256)
    known = {"token": b.input("token"), "position": b.input("position")}
    inputs, slots = shapes_of(op), {role: role for role in op.slot_kinds()}
    node, slot = op, op.slot_kinds().get("kv")
    if isinstance(op, ops.StoreKV):  # seen by who reads the slot
        dims = (op.heads, op.key_dim, op.value_dim)
        node = ops.Attend(op.heads, *dims, 0.3) if op.value_dim else ops.Recall(*dims[:2])
        inputs = shapes_of(node)
    given = {}
    if slot is not None:
        given = {"q.stored_k": f32(slot.heads, slot.key_dim)}
        given |= {"q.stored_v": f32(slot.heads, slot.value_dim)} if slot.value_dim else {}
        store = op if node is not op else ops.StoreKV(slot.heads, slot.key_dim, slot.value_dim)
        rows = [_rows(b, name, kind) for name, kind in given.items()]
        b.add_node(store, *rows, name="y" if store is op else "store", slots=slots)
    taken = [known.get(n) or _rows(b, n, kind) for n, kind in inputs.items()]
    weights = weights_of(op, "w16" if op.kind in MATRIX_OPERATORS else "f32", source)
    if getattr(op, "form", "") == "negative":
        weights = {role: Weight.from_floats(-np.abs(floats(w))) for role, w in weights.items()}
    roles, name = {role: role for role in weights}, "y" if node is op else "z"
    outputs = b.add_node(node, *taken, name=name, weights=roles, slots=slots)
    program = b.program(tuple(value.name for value in outputs))
    given |= {n: kind for n, kind in inputs.items() if n not in known}
    most = getattr(op, "experts", getattr(op, "size", 1))
    limits = {"token": min(2, getattr(op, "vocab", 2)), "index": most}
    limits |= {"turns": 50, "blocks": 8, "last": 1, "number": 3, "keys": 8}
    return ProbeProgram(bound(program, weights), weights, given, limits)


def _rows(b, name, kind):
    value = b.input(name, kind.shape, kind.dtype)
    return b.add(ops.Quantise(), value, name=f"{name}.quantised") if name[:2] == "q." else value
