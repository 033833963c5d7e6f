"""Ops of the native core from the steps of a request: addresses, shapes and constants filled in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cortiq.ir import Type, ops
from cortiq_cpu import arguments
from cortiq_cpu.angles import Angles
from cortiq_cpu.arena import Arena, Places
from cortiq_cpu.arguments import Kind, address
from cortiq_cpu.fuse import Attention, Heads, NormChain, Part, Wise
from cortiq_cpu.lower import Admit, Gather, Lowered, Step
from cortiq_cpu.native import Op, library
from cortiq_cpu.profile import Label
from cortiq_cpu.rows import RowSet
from cortiq_cpu.state import StateLayout
from cortiq_cpu.structs import PRODUCTS, ChosenArgs, EmbedArgs, MatmulArgs
from cortiq_cpu.weights import Weights

F32 = np.float32
ACTIVATIONS = ("silu", "gelu_tanh", "sigmoid", "tanh", "softplus", "relu", "relu2")
"""By the number the native core gives them."""
ROUTERS = ("softmax", "sigmoid", "softmax_topk")
PAIRINGS = ("half", "interleaved")
TARGETS = ("record", "keys", "values")
FLOAT_BYTES = 4


def row_bytes(type_: Type) -> int:
    """Bytes of one row of a value."""
    if type_.dtype != "q16":
        return FLOAT_BYTES * prod(type_.shape)
    return prod(type_.shape[:-1]) * library().cortiq_record_bytes(type_.shape[-1])


def _matrices_of(node: Any) -> list[str]:
    """Names of the matrices that a node multiplies by."""
    multiplies = isinstance(node.op, ops.MatMul | ops.HeadMatMul | ops.ExpertMatMul)
    return [node.weights["weight"]] if multiplies else []


@dataclass
class Binder:
    """Binds the steps of one row set.

    Attributes
    ----------
    kept : what ops point at, besides the arena and the weights.
    """

    lowered: Lowered
    places: Places
    arena: Arena
    rows: RowSet
    angles: Angles
    layout: StateLayout
    weights: Weights
    workspace: Any
    kept: list[Any] = field(default_factory=list)

    def ops(self, steps: tuple[Step, ...]) -> list[Op]:
        """One op for each step, in order; concatenations take one for each part."""
        return [op for step in steps for op in self._bound(step)]

    def _bound(self, step: Step) -> list[Op]:
        made = BINDERS[type(step.op)](self, step)
        return [self._op(kind, args) for kind, args in made]

    def _op(self, kind: Kind, args: ctypes.Structure) -> Op:
        self.kept.append(args)
        rows, faults = address(self.rows.count), address(self.rows.faults)
        return Op(int(kind), 0, rows, faults, ctypes.addressof(args))

    def label(self, step: Step) -> Label:
        """The step's name in a profile, and what its products cost."""
        names = [(node, name) for node in step.nodes for name in _matrices_of(node)]
        nbytes = sum(self.weights.nbytes(name) for _, name in names)
        products = sum(self.weights.elements(name) for _, name in names)
        experts = [node.op.experts for node, _ in names if isinstance(node.op, ops.ExpertMatMul)]
        if experts:
            chosen = self.shape(step.outputs[0])[0]
            nbytes, products = (n * chosen // experts[0] for n in (nbytes, products))
        return Label(step.label, nbytes, products)

    def at(self, name: str | None) -> int | None:
        """Address of a value's first row."""
        if name is None:
            return None
        return self.arena.address + self.places.offsets[self.lowered.root(name)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a row."""
        return self.lowered.types[name].shape

    def stride(self, name: str | None) -> int:
        """Floats from one row to the next."""
        return 0 if name is None else prod(self.shape(name))

    def split(self, name: str) -> dict[str, int]:
        """`inner` vectors of `width` values in a row."""
        *lead, width = self.shape(name) or (1,)
        return {"inner": prod(lead), "width": width}

    def vector(self, node: Any, role: str) -> int | None:
        """Address of a norm's, bias' or other vector, if the node has one in this role."""
        if node is None or role not in node.weights:
            return None
        return self.weights.vector(node.weights[role], getattr(node.op, "offset", 0.0))

    def kv(self, slot: str) -> arguments.KV:
        """The rows of a slot, for the sequences of this set."""
        number, layout = self.layout.kv_numbers[slot], self.layout.kv[slot]
        geometry = layout.slot
        return arguments.KV(
            pages=self.rows.pages[number].ctypes.data,
            segments=address(self.rows.segments),
            segment_count=address(self.rows.segment_count),
            heads=geometry.heads,
            key_dim=geometry.key_dim,
            value_dim=geometry.value_dim,
            page_tiles=layout.tiles,
        )


Bound = list[tuple[Kind, ctypes.Structure]]


def _gather(b: Binder, step: Step) -> Bound:
    (source,), (out,) = step.inputs, step.outputs
    floats = row_bytes(b.lowered.types[out]) // FLOAT_BYTES
    copy = arguments.Copy(
        x=b.at(source), out=b.at(out), from_rows=address(b.rows.source),
        x_stride=floats, out_stride=floats, width=floats,
    )  # fmt: skip
    return [(Kind.COPY, copy)]


def _admit(b: Binder, step: Step) -> Bound:
    (name,) = step.inputs
    floats = b.stride(name)
    place = b.at(name)
    copy = arguments.Copy(
        x=place, out=place, x_stride=floats, out_stride=floats, width=floats, snapped=1
    )
    return [(Kind.COPY, copy)]


def _quantise(b: Binder, step: Step) -> Bound:
    (x,), (record,) = step.inputs, step.outputs
    split = b.split(record)
    args = arguments.Quantise(x=b.at(x), record=b.at(record), x_stride=prod(split.values()), **split)
    return [(Kind.QUANTISE, args)]


WISE_KINDS: Mapping[type, Kind] = {
    ops.Add: Kind.ADD,
    ops.Multiply: Kind.MULTIPLY,
    ops.Scale: Kind.SCALE,
    ops.Bias: Kind.BIAS,
    ops.Activation: Kind.ACTIVATION,
    ops.SoftCap: Kind.SOFT_CAP,
}


def _wise(b: Binder, step: Step) -> Bound:
    wise: Wise = step.op  # type: ignore[assignment]
    node = wise.gate or wise.node
    shape = wise.node.outputs[0]
    stride = b.stride(shape)
    args = arguments.Elementwise(
        a=b.at(step.inputs[0]), out=b.at(wise.out), record=b.at(wise.record),
        a_stride=stride, b_stride=stride, out_stride=stride, **b.split(shape),
    )  # fmt: skip
    if len(step.inputs) > 1:
        args.b = b.at(step.inputs[1])
    op = node.op
    if isinstance(op, ops.Bias):
        args.b = b.vector(node, "bias")
    elif isinstance(op, ops.Activation):
        args.function = ACTIVATIONS.index(op.function)
    elif isinstance(op, ops.Scale):
        args.factor = F32(op.factor)
    elif isinstance(op, ops.SoftCap):
        args.factor, args.inverse = F32(op.cap), F32(1) / F32(op.cap)
    return [(WISE_KINDS[type(op)], args)]


def _norm(b: Binder, step: Step) -> Bound:
    chain: NormChain = step.op  # type: ignore[assignment]
    node = chain.norm
    split = b.split(node.inputs[0] if node else step.inputs[0])
    stride = prod(split.values())
    args = arguments.Norm(
        x=b.at(chain.x), residual=b.at(chain.residual), sum=b.at(chain.total),
        out=b.at(chain.out), record=b.at(chain.record), weight=b.vector(node, "weight"),
        bias=b.vector(node, "bias"), after_weight=b.vector(chain.after, "weight"),
        x_stride=stride, residual_stride=stride, sum_stride=stride, out_stride=stride,
        after=chain.after is not None, inverse_width=F32(1) / F32(split["width"]), **split,
    )  # fmt: skip
    if node is not None:
        args.eps = F32(node.op.eps)
    if chain.after is not None:
        args.after_eps = F32(chain.after.op.eps)
    layer = node is not None and isinstance(node.op, ops.LayerNorm)
    return [(Kind.LAYER_NORM if layer else Kind.RMS_NORM, args)]


def _rope(b: Binder, step: Step) -> Bound:
    op: ops.Rope = step.op  # type: ignore[assignment]
    heads, width = b.shape(step.nodes[0].inputs[0])
    cos, sin = b.angles.rows(op.table, b.rows)
    args = arguments.Rope(
        x=b.at(step.inputs[0]), out=b.at(step.outputs[0]), cos=cos, sin=sin,
        x_stride=heads * width, out_stride=heads * width, heads=heads, width=width,
        pairs=op.table.dim // 2, interleaved=PAIRINGS.index(op.pairing),
    )  # fmt: skip
    return [(Kind.ROPE, args)]


def _part(b: Binder, part: Part) -> arguments.HeadsPart:
    heads, width = b.shape(part.quantise.inputs[0])
    args = arguments.HeadsPart(
        x=b.at(part.x), x_stride=heads * width, heads=heads, width=width,
        target=TARGETS.index(part.target), inverse_width=F32(1) / F32(width),
    )  # fmt: skip
    if part.target == "record":
        args.record = b.at(part.quantise.outputs[0])
    if part.norm is not None:
        args.normed, args.eps = 1, F32(part.norm.op.eps)
        args.weight = b.vector(part.norm, "weight")
    if part.rope is not None:
        op = part.rope.op
        args.cos, args.sin = b.angles.rows(op.table, b.rows)
        args.pairs, args.interleaved = op.table.dim // 2, PAIRINGS.index(op.pairing)
    return args


def _heads(b: Binder, step: Step) -> Bound:
    op: Heads = step.op  # type: ignore[assignment]
    parts = (arguments.HeadsPart * len(op.parts))(*(_part(b, part) for part in op.parts))
    b.kept.append(parts)
    args = arguments.Heads(parts=ctypes.addressof(parts), count=len(parts))
    if op.store is not None:
        args.kv = b.kv(op.store.slots["kv"])
    return [(Kind.HEADS, args)]


def _store_kv(b: Binder, step: Step) -> Bound:
    keys, values = (b.at(name) for name in step.inputs)
    slot = step.nodes[0].slots["kv"]
    return [(Kind.STORE_KV, arguments.StoreKV(kv=b.kv(slot), keys=keys, values=values))]


def _attend(b: Binder, step: Step) -> Bound:
    attention: Attention = step.op  # type: ignore[assignment]
    node = attention.node
    op = node.op
    constants = b.weights.scoring(op)
    args = arguments.Attend(
        kv=b.kv(node.slots["kv"]), q=b.at(step.inputs[0]), sinks=b.vector(node, "sinks"),
        out=b.at(attention.out), record=b.at(attention.record),
        workspace=b.workspace.address, workspace_bytes=b.workspace.size,
        out_stride=op.heads * op.value_dim, heads=op.heads, window=op.window or 0,
        factor=constants.factor, cap=constants.cap, inverse_cap=constants.inverse_cap,
    )  # fmt: skip
    return [(Kind.ATTEND, args)]


def _conv(b: Binder, step: Step) -> Bound:
    node = step.nodes[0]
    op: ops.CausalConv = node.op  # type: ignore[assignment]
    number = b.layout.ring_numbers[node.slots["ring"]]
    args = arguments.Conv(
        x=b.at(step.inputs[0]), out=b.at(step.outputs[0]),
        weight=b.weights.taps(node.weights["weight"]), bias=b.vector(node, "bias"),
        rings=b.rows.rings[number].ctypes.data,
        capacities=b.rows.ring_capacities[number].ctypes.data,
        segments=address(b.rows.segments), segment_count=address(b.rows.segment_count),
        x_stride=op.width, out_stride=op.width, width=op.width, taps=op.kernel,
    )  # fmt: skip
    return [(Kind.CAUSAL_CONV, args)]


def _route(b: Binder, step: Step) -> Bound:
    node = step.nodes[0]
    router = node.op.router  # type: ignore[attr-defined]
    index, weights = step.outputs
    args = arguments.Route(
        scores=b.at(step.inputs[0]), bias=b.vector(node, "bias"), index=b.at(index),
        weights=b.at(weights), scores_stride=b.stride(node.inputs[0]),
        experts=node.op.experts, top_k=router.top_k,  # type: ignore[attr-defined]
        router=ROUTERS.index(router.kind), renormalise=router.renormalise,
        floor=F32(router.denominator_floor), scaling=F32(router.routed_scaling),
    )  # fmt: skip
    return [(Kind.ROUTE, args)]


def _combine(b: Binder, step: Step) -> Bound:
    weights, outputs = step.inputs
    count, width = b.shape(step.nodes[0].inputs[1])
    args = arguments.Combine(
        weights=b.at(weights), outputs=b.at(outputs), out=b.at(step.outputs[0]),
        outputs_stride=count * width, out_stride=width, count=count, width=width,
    )  # fmt: skip
    return [(Kind.COMBINE_EXPERTS, args)]


def _slice(b: Binder, step: Step) -> Bound:
    op: ops.Slice = step.op  # type: ignore[assignment]
    *lead, width = b.shape(step.nodes[0].inputs[0])
    pieces = [(step.inputs[0], op.start, 0)]
    return _copies(b, step.outputs[0], pieces, prod(lead), width, op.stop - op.start)


Piece = tuple[str, int, int]
"""A source, the first element taken of it, and where it goes."""


def _copies(b: Binder, out: str, pieces: list[Piece], inner: int, width: int, taken: int) -> Bound:
    whole = b.stride(out)
    step = whole // inner
    return [
        (
            Kind.COPY,
            arguments.Copy(
                x=b.at(source) + FLOAT_BYTES * (i * width + start),
                out=b.at(out) + FLOAT_BYTES * (i * step + to),
                x_stride=inner * width, out_stride=whole, width=taken,
            ),
        )
        for source, start, to in pieces
        for i in range(inner)
    ]  # fmt: skip


def _concat(b: Binder, step: Step) -> Bound:
    bound: Bound = []
    to = 0
    for source, declared in zip(step.inputs, step.nodes[0].inputs, strict=True):
        *lead, width = b.shape(declared)
        bound += _copies(b, step.outputs[0], [(source, 0, to)], prod(lead), width, width)
        to += width
    return bound


def _embed(b: Binder, step: Step) -> Bound:
    matrix = b.weights.matrix(step.nodes[0].weights["table"])
    args = EmbedArgs(matrix, address(b.rows.tokens), b.at(step.outputs[0]))
    return [(Kind.EMBED_ROWS, args)]


def _matmul(b: Binder, step: Step) -> Bound:
    bound: Bound = []
    pairs = list(zip(step.nodes, step.outputs, strict=True))
    for start in range(0, len(pairs), PRODUCTS):
        part = pairs[start : start + PRODUCTS]
        args = MatmulArgs(x=b.at(step.inputs[0]), inner=1, count=len(part))
        for product, (node, out) in zip(args.products, part, strict=False):
            split = b.split(out)
            args.inner = split["inner"]
            product.matrix = b.weights.matrix(node.weights["weight"])
            product.out, product.stride = b.at(out), split["width"]
        bound.append((Kind.MATMUL, args))
    return bound


def _chosen(b: Binder, step: Step) -> Bound:
    node = step.nodes[0]
    slots, _ = b.shape(step.outputs[0])
    args = ChosenArgs(
        matrix=b.weights.matrix(node.weights["weight"]), x=b.at(step.inputs[0]),
        out=b.at(step.outputs[0]), slots=slots, shared=len(b.shape(node.inputs[0])) == 1,
    )  # fmt: skip
    if isinstance(node.op, ops.ExpertMatMul):
        args.choice = b.at(step.inputs[1])
    return [(Kind.MATMUL_CHOSEN, args)]


BINDERS: dict[type, Callable[[Binder, Step], Bound]] = {
    Gather: _gather,
    Admit: _admit,
    ops.EmbedRows: _embed,
    ops.MatMul: _matmul,
    ops.HeadMatMul: _chosen,
    ops.ExpertMatMul: _chosen,
    ops.Quantise: _quantise,
    Wise: _wise,
    NormChain: _norm,
    ops.Rope: _rope,
    Heads: _heads,
    ops.StoreKV: _store_kv,
    Attention: _attend,
    ops.CausalConv: _conv,
    ops.Route: _route,
    ops.CombineExperts: _combine,
    ops.Slice: _slice,
    ops.Concat: _concat,
}
"""How each step becomes ops."""
