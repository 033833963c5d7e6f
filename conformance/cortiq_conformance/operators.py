"""Inputs, outputs and state of every primitive, derived from the IR, for tables and stubs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.ir import KVRows, Op, Recurrent, Ring, Slot, Type, ops
from cortiq.ir.op import TypeMismatchError
from cortiq.numerics.column_order import ColumnOrder
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router

ANY, LAST, SLOTS, HEADS, PART = 89, 97, 83, 79, 44
"""Sizes that stand for any leading axes, a last axis, chosen experts, heads, and a slice."""
NAMES = {
    ANY: "…",
    LAST: "n",
    SLOTS: "k",
    HEADS: "heads",
    SLOTS + 1: "k + 1",
    PART: "(stop − start) / step",
    2 * LAST: "n + n",
    2 * 7: "parts·width",
    ANY * LAST: "*shape",
}
VALUE, ROW, TOKEN = Type((ANY,)), Type((ANY, LAST)), Type((), "i32")
CHOSEN = Type((SLOTS,), "i32")


def _last(width: int, dtype: str = "f32") -> Type:
    return Type((ANY, width), dtype)


SAMPLES: Mapping[type[Op], tuple[Sequence[Op], Sequence[Type]]] = {
    ops.EmbedRows: ([ops.EmbedRows(50, 7)], [TOKEN]),
    ops.Quantise: ([ops.Quantise()], [ROW]),
    ops.MatMul: ([ops.MatMul(7, 11)], [_last(7, "q16")]),
    ops.HeadMatMul: ([ops.HeadMatMul(5, 7, 11)], [Type((5, 7), "q16")]),
    ops.ExpertMatMul: ([ops.ExpertMatMul(5, 7, 11)], [Type((SLOTS, 7), "q16"), CHOSEN]),
    ops.Add: ([ops.Add()], [VALUE, VALUE]),
    ops.Multiply: ([ops.Multiply()], [VALUE, VALUE]),
    ops.Scale: ([ops.Scale(0.5)], [VALUE]),
    ops.Bias: ([ops.Bias(7)], [_last(7)]),
    ops.Activation: ([ops.Activation("silu")], [VALUE]),
    ops.SoftCap: ([ops.SoftCap(30.0)], [VALUE]),
    ops.RMSNorm: ([ops.RMSNorm(7, 1e-6), ops.RMSNorm(7, 1e-6, weighted=False)], [_last(7)]),
    ops.LayerNorm: (
        [
            ops.LayerNorm(7, 1e-6),
            ops.LayerNorm(7, 1e-6, biased=False),
            ops.LayerNorm(7, 1e-6, biased=False, weighted=False),
        ],
        [_last(7)],
    ),
    ops.Rope: ([ops.Rope(RopeTable(1e4, 8))], [Type((HEADS, LAST)), TOKEN]),
    ops.StoreKV: ([ops.StoreKV(3, 7, 11)], [Type((3, 7), "q16"), Type((3, 11), "q16")]),
    ops.Attend: (
        [ops.Attend(6, 3, 7, 11, 0.1, sinks=True), ops.Attend(6, 3, 7, 11, 0.1)],
        [Type((6, 7), "q16"), TOKEN],
    ),
    ops.CausalConv: ([ops.CausalConv(7, 4, biased=True), ops.CausalConv(7, 4)], [Type((7,))]),
    ops.Route: (
        [
            ops.Route(7, Router(3), selection_bias=True, masked=True),
            ops.Route(7, Router(3)),
        ],
        [Type((7,))],
    ),
    ops.CombineExperts: ([ops.CombineExperts()], [Type((SLOTS,)), Type((SLOTS, LAST))]),
    ops.Slice: ([ops.Slice(2, 2 + PART)], [ROW]),
    ops.Concat: ([ops.Concat()], [ROW, ROW]),
    ops.Permute: ([ops.Permute(ColumnOrder.of(np.arange(LAST)[::-1]))], [ROW]),
    ops.Reshape: ([ops.Reshape((ANY * LAST,))], [ROW]),
    ops.Gain: ([ops.Gain(7)], [_last(7)]),
    ops.ScaleRows: ([ops.ScaleRows()], [ROW, _last(1)]),
    ops.Shift: ([ops.Shift(1.0)], [VALUE]),
    ops.Clamp: ([ops.Clamp()], [VALUE]),
    ops.L2Norm: ([ops.L2Norm(7, 1e-6)], [_last(7)]),
    ops.Softmax: ([ops.Softmax(7)], [_last(7)]),
    ops.ExpertGain: ([ops.ExpertGain(5)], [Type((SLOTS, LAST)), CHOSEN]),
    ops.ExpertBias: ([ops.ExpertBias(5, 7)], [Type((SLOTS, 7)), CHOSEN]),
    ops.DeltaRule: (
        [ops.DeltaRule(6, 7, 11, 3)],
        [*[Type((3, 7))] * 2, Type((6, 11)), *[Type((6,))] * 2],
    ),
    ops.DiagonalDeltaRule: (
        [ops.DiagonalDeltaRule(6, 7, 11)],
        [*[Type((6, 7))] * 2, Type((6, 11)), *[Type((6, 7))] * 3],
    ),
    ops.StateSpace: (
        [ops.StateSpace(6, 7, 11, 3)],
        [Type((6, 7)), *[Type((3, 11))] * 2, *[Type((6,))] * 2],
    ),
    ops.ChooseBlocks: ([ops.ChooseBlocks(5, 7, 16, 3)], [Type((5, 7), "q16"), TOKEN]),
    ops.Recall: ([ops.Recall(5, 7)], [TOKEN]),
    ops.Sinkhorn: ([ops.Sinkhorn(5, 3, 1e-6)], [Type((5, 5))]),
    ops.Compress: ([ops.Compress(7, 4, overlap=True)], [Type((2 * 7,)), TOKEN, Type((2 * 7,))]),
    ops.ListKeys: ([ops.ListKeys(5, 3)], [TOKEN]),
    ops.KeepListed: ([ops.KeepListed(5, 11, 3)], [Type((5,)), TOKEN]),
    ops.IndexSelect: ([ops.IndexSelect(5, 11)], [Type((5,))]),
    ops.StackIndex: ([ops.StackIndex(5)], [TOKEN, CHOSEN]),
    ops.ChooseKeys: ([ops.ChooseKeys(5, 7, 3)], [Type((5, 7), "q16"), TOKEN, Type((5,))]),
    ops.OwnBlock: ([ops.OwnBlock(16)], [TOKEN]),
    ops.WindowBlocks: ([ops.WindowBlocks(16)], [Type((1, SLOTS), "i32"), TOKEN]),
    ops.HashNGrams: ([ops.HashNGrams(1, (3, 5, 9), (11, 13, 17, 19))], [TOKEN]),
}
"""Geometries of each primitive in which different sizes differ: one with all weights, then others
with as few as there may be; and the inputs."""


@dataclass(frozen=True)
class OperatorFacts:
    """A primitive in words.

    Attributes
    ----------
    name, summary : of the operator, and the first line of its docstring.
    fields : its geometry and options.
    inputs, outputs : types of a row; a batch has an axis of rows before.
    weights : by role, with its shape; those that may be absent end with `?`.
    state : slots by role, with what is done to them.
    """

    name: str
    summary: str
    fields: tuple[str, ...]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[str, ...]


def operators() -> list[OperatorFacts]:
    """Return every primitive's facts, in the order of the catalogue."""
    return [_facts(kind, *SAMPLES[kind]) for kind in ops.PRIMITIVES]


def _facts(kind: type[Op], samples: Sequence[Op], inputs: Sequence[Type]) -> OperatorFacts:
    full, names = samples[0], NAMES | _sizes(samples[0])
    always = set.intersection(*(set(sample.weight_shapes()) for sample in samples))
    weights = [
        f"{role}{_shape(shape, names)}{'' if role in always else '?'}"
        for role, shape in full.weight_shapes().items()
    ]
    writes = getattr(full, "writes_slots", False)
    state = [
        f"{'writes' if writes else 'reads'} {role}: {_slot(slot, names)}"
        for role, slot in full.slot_kinds().items()
    ]
    return OperatorFacts(
        kind.__name__,
        (kind.__doc__ or "").strip().splitlines()[0],
        tuple(field.name for field in dataclasses.fields(kind)),  # type: ignore[arg-type]
        tuple(_input(full, inputs, at, names) for at in range(len(inputs))),
        tuple(weights),
        tuple(_type(found, names) for found in full.infer(*inputs)),
        tuple(state),
    )


def _sizes(op: Any) -> dict[int, str]:
    """Return the names of sizes that are fields, including those of a router."""
    found: dict[int, str] = {}
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if isinstance(value, Router):
            found |= {value.top_k: "top_k"}
        elif type(value) is int and value > 1:
            found[value] = field.name
        elif isinstance(value, tuple) and len(value) > 1:
            found[len(value)] = f"len({field.name})"
    return found


def _size(size: int, names: Mapping[int, str]) -> str:
    below = names.get(size + 1)
    return names.get(size) or (f"{below} − 1" if below and size > 1 else str(size))


def _shape(shape: Sequence[int], names: Mapping[int, str]) -> str:
    return f"[{', '.join(_size(size, names) for size in shape)}]"


def _type(found: Type, names: Mapping[int, str]) -> str:
    return f"{found.dtype}{_shape(found.shape, names)}"


def _input(op: Op, inputs: Sequence[Type], at: int, names: Mapping[int, str]) -> str:
    """Return the type of an input; both types if a quantised row may also be one of floats."""
    text = _type(inputs[at], names)
    if inputs[at].dtype != "q16":
        return text
    plain = [Type(t.shape, "f32") if i == at else t for i, t in enumerate(inputs)]
    try:
        op.infer(*plain)
    except TypeMismatchError:
        return text
    return f"{text} or f32"


def _slot(slot: Slot, names: Mapping[int, str]) -> str:
    if isinstance(slot, KVRows):
        sizes = slot.heads, slot.key_dim, slot.value_dim
        return f"KVRows({', '.join(_size(size, names) for size in sizes)})"
    if isinstance(slot, Ring):
        return f"Ring({_size(slot.width, names)}, {_size(slot.length, names)})"
    assert isinstance(slot, Recurrent)
    return f"Recurrent{_shape(slot.shape, names)}"
