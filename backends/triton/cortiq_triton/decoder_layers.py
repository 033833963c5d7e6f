"""Finds runs of decoder layers that one launch computes for one row (`layer_launch`).

A layer is: RMSNorm with a weight; queries, keys and values, turned in halves by one rotation;
attention over all positions; a product added to the residual; RMSNorm; silu(gate)·up; a product
added to the residual. Its matrices are w8, without biases. Whatever is different stays the launches
it is, and so does a layer with a value inside that somebody asks for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from cortiq.backend.fuse import FusedAttention, FusedElementwise, FusedProduct, NormChain
from cortiq.backend.plan import Step
from cortiq.ir import Node, ops
from cortiq_triton import layer_launch
from cortiq_triton.host_codes import BYTES
from cortiq_triton.layer_launch import Geometry, Head, Layers, LayerWeights, MatrixRows
from cortiq_triton.qkv_prologue import Way
from cortiq_triton.scales import F32S
from cortiq_triton.steps import Fused
from cortiq_triton.weights import Packed


class _Other(Exception):
    """A step is not what a layer has there."""


@dataclass
class _Found:
    """A layer, its steps, the value that leaves it, its sizes and its rotation."""

    layer: LayerWeights
    steps: list[Step]
    out: str
    geometry: Geometry
    turn: Any


def _need(fact: Any) -> None:
    if not fact:
        raise _Other


def _detail(step: Step, kind: type) -> Any:
    """Return what a fused step of this kind is made of."""
    detail = step.node.op.detail if isinstance(step.node.op, Fused) else None
    _need(isinstance(detail, kind))
    return detail


def _matrix(step: Step) -> Packed:
    """The step's weight, of int8 codes with a scale a row."""
    weight = step.weights.get("weight")
    _need(isinstance(weight, Packed) and weight.kind == BYTES and not weight.block)
    assert isinstance(weight, Packed)
    _need(weight.width == weight.padded and weight.forms[0] == F32S)
    return weight


class _Reader:
    """Reads layers off the steps of a plan. wanted : values that must exist in the end."""

    def __init__(self, steps: Sequence[Step], wanted: Collection[str]) -> None:
        self.wanted = wanted
        self.readers: dict[str, list[Step]] = defaultdict(list)
        for step in steps:
            for name in step.node.inputs:
                self.readers[name].append(step)

    def inner(self, name: str, count: int = 1) -> list[Step]:
        """The steps that read a value, which nobody asks for: so many."""
        found = self.readers[name]
        _need(name not in self.wanted and len(found) == count)
        return found

    def norm(self, x: str) -> tuple[Step, tuple[Any, float]]:
        """The norm that quantises x, its weight and eps."""
        for step in self.readers[x]:
            if isinstance(step.node.op, Fused) and isinstance(step.node.op.detail, NormChain):
                chain: Any = step.node.op.detail
                _need(chain.out is None and chain.norm is not None and "weight" in step.weights)
                _need(isinstance(chain.norm.op, ops.RMSNorm))
                return step, (step.weights["weight"], chain.norm.op.eps)
        raise _Other

    def products(self, step: Step, count: int) -> tuple[list[Step], dict[str, MatrixRows]]:
        """The products of what a norm quantised, and the rows of each value."""
        steps, rows = self.readers[step.node.outputs[0]], {}
        _need(step.node.outputs[0] not in self.wanted)
        for product in steps:
            weight, first = _matrix(product), 0
            op: Any = product.node.op
            is_one = isinstance(op, ops.MatMul)
            _need(is_one or op == Fused("Products"))
            heights = (weight.height,) if is_one else op.detail
            for name, height in zip(product.node.outputs, heights, strict=True):
                rows[name] = MatrixRows(weight, first)
                first += height
        _need(len(rows) == count)
        return steps, rows

    def added(self, record: str, residual: str) -> Step:
        """The product of a record that is added to the residual."""
        (step,) = self.inner(record)
        detail = _detail(step, FusedProduct)
        _need(detail.bias is None and step.node.inputs == (record, residual))
        return step

    def heads(
        self, rows: dict[str, MatrixRows]
    ) -> tuple[list[Step], dict[str, str], dict[str, Way]]:
        """The steps of heads on their way into attention, what role each value has, and how."""
        steps: list[Step] = []
        roles: dict[str, str] = {}
        ways: dict[str, Way] = {}
        for name in rows:
            (step,) = self.inner(name)
            found = step.node.op.detail if isinstance(step.node.op, Fused) else None
            _need(isinstance(found, dict))
            assert isinstance(found, dict)
            _need(len(step.node.inputs) == len(found))  # else they turn by positions on axes
            roles[dict(zip(step.node.inputs, found, strict=True))[name]] = name
            ways |= found
            if step not in steps:
                steps.append(step)
        _need(set(roles) == {"query", "key", "value"})
        return steps, roles, ways

    def attention(self, steps: Sequence[Step]) -> tuple[Step, ops.Attend, str]:
        """Attention over all that a sequence has, and the slot of its keys."""
        (record,) = [name for step in steps for name in step.node.outputs]
        (slot,) = [name for step in steps for name in step.node.slots.values()]
        (step,) = self.inner(record)
        op: Any = _detail(step, FusedAttention).node.op
        plain = not (op.window or op.soft_cap is not None or op.block or op.slopes)
        _need(plain and not step.weights)
        _need(step.node.inputs == (record, "position") and set(step.node.slots.values()) == {slot})
        return step, op, slot

    def layer(self, x: str) -> _Found:
        """The layer that x enters."""
        norm, first = self.norm(x)
        products, rows = self.products(norm, 3)
        heads, roles, ways = self.heads(rows)
        attend, op, slot = self.attention(heads)
        output = self.added(attend.node.outputs[0], x)
        middle = output.node.outputs[0]
        self.inner(middle, 2)
        mlp_norm, second = self.norm(middle)
        gates, gate_rows = self.products(mlp_norm, 2)
        (gate,) = self.inner(next(iter(gate_rows)))
        gated = _detail(gate, FusedElementwise)
        _need(gated.gate is not None and gated.gate.op.function == "silu")
        _need(set(gate.node.inputs) == set(gate_rows))
        down = self.added(gate.node.outputs[0], middle)
        turn = ways["query"].turn
        _need(turn is not None and turn.pairing == "half" and turn == ways["key"].turn)
        _need(ways["value"].turn is None and all(way.norm is None for way in ways.values()))
        _need(op.key_dim == op.value_dim)
        weights = _matrix(output), _matrix(down)
        used = (
            rows[roles["query"]], rows[roles["key"]], MatrixRows(weights[0]),
            *(gate_rows[name] for name in gate.node.inputs), MatrixRows(weights[1]),
        )  # fmt: skip
        key, value = rows[roles["key"]], rows[roles["value"]]
        _need(value == MatrixRows(key.weight, key.first + op.kv_heads * op.key_dim))
        size = Geometry(weights[1].height, op.heads, op.kv_heads, op.key_dim, weights[1].width)
        _need(size.fits() and weights[0].height == size.hidden)
        _need(layer_launch.function_of(size))
        steps = [norm, *products, *heads, attend, output, mlp_norm, *gates, gate, down]
        layer = LayerWeights((first, second), used, slot, op.scale)
        return _Found(layer, steps, down.node.outputs[0], size, turn)

    def head(self, x: str) -> tuple[list[Step], Head]:
        """The last norm and product, of the row that leaves the layers."""
        self.inner(x)
        norm, (weight, eps) = self.norm(x)
        (product,) = self.inner(norm.node.outputs[0])
        _need(isinstance(product.node.op, ops.MatMul))
        return [norm, product], Head(weight, eps, _matrix(product))


def in_one_launch(steps: Sequence[Step], wanted: Collection[str]) -> list[Step]:
    """The steps, with each run of alike layers as one."""
    reader, found = _Reader(steps, wanted), list(steps)
    for step in steps:
        if step in found and isinstance(step.node.op, Fused):
            for name in step.node.inputs:
                found = _replaced(reader, found, name)
    return found


def _replaced(reader: _Reader, steps: list[Step], x: str) -> list[Step]:
    """Steps with the layers that x enters as one, if there are any."""
    run: list[_Found] = []
    start = x
    try:
        while True:
            if run:
                reader.inner(x, 2)  # the next layer's norm, and its residual
            layer = reader.layer(x)
            _need(not run or (layer.geometry, layer.turn) == (run[0].geometry, run[0].turn))
            run.append(layer)
            x = layer.out
    except _Other:
        pass
    if not run:
        return steps
    gone, head = [step for layer in run for step in layer.steps], None
    try:
        after, head = reader.head(run[-1].out)
        gone += after
    except _Other:
        pass
    last = gone[-1]
    layers = Layers(run[0].geometry, [layer.layer for layer in run], run[0].turn, head)
    names = (start, "position")
    node = Node(run[0].steps[0].node.name, Fused("Layers"), names, last.node.outputs)
    at = steps.index(last)
    rest = [step for step in steps[:at] if step not in gone]
    return [*rest, Step(node, layers, {}, last.late), *steps[at + 1 :]]
