"""Programs of one operator, with the inputs they take and rows to feed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from cortiq.ir import Builder, Op, Program, Type, Value, ops
from cortiq.numerics.layouts import W8, Weight
from cortiq_conformance.case import Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import SequenceInput

CONTEXT = 4096
TOKEN = Type((), "i32")
OUTPUT = "y"


@dataclass(frozen=True)
class ProbeProgram:
    """A program with its weights, and the types of the extra inputs that a row supplies.

    Attributes
    ----------
    limits : one past the largest integer of an i32 input.
    """

    program: Program
    weights: Mapping[str, Weight]
    inputs: Mapping[str, Type]
    limits: Mapping[str, int] = field(default_factory=dict)

    def feed(self, source: CaseData, rows: int, amplitude: float = 1.0) -> SequenceInput:
        """Return random rows."""
        given = {n: self._random(source, n, t, rows, amplitude) for n, t in self.inputs.items()}
        return SequenceInput(source.integers(0, self.limits.get("token", 2), rows), given)

    def _random(
        self, source: CaseData, name: str, kind: Type, rows: int, amplitude: float
    ) -> np.ndarray:
        if kind.dtype == "f32":
            return source.floats(rows, *kind.shape, amplitude=amplitude)
        chosen = [source.permutation(self.limits[name])[: prod(kind.shape)] for _ in range(rows)]
        return np.sort(np.array(chosen, np.int32), axis=1).reshape(rows, *kind.shape)

    def scenario(self, source: CaseData, rows: int = 8, amplitude: float = 1.0) -> Scenario:
        """Return a scenario of one sequence of random rows."""
        return Scenario(self.program, self.weights, [self.feed(source, rows, amplitude)])

    def given(self, **inputs: np.ndarray) -> Scenario:
        """Return a scenario of one sequence of these rows."""
        count = len(next(iter(inputs.values())))
        return Scenario(
            self.program, self.weights, [SequenceInput(np.zeros(count, np.int32), inputs)]
        )


def bound(program: Program, weights: Mapping[str, Weight]) -> Program:
    """Return the program with the layouts of these weights."""
    names = {n: "f32" if w.layout.kind == "float" else w.layout.name for n, w in weights.items()}
    return program.with_layouts(names)


def one(
    op: Op,
    inputs: Mapping[str, Type],
    weights: Mapping[str, Weight] | None = None,
    quantised: tuple[str, ...] = (),
    limits: Mapping[str, int] | None = None,
) -> ProbeProgram:
    """Build a program of one node, `y`; inputs named in `quantised` pass through Quantise.

    Inputs named `token` and `position` are the row's own.
    """
    b, weights = Builder(context=CONTEXT), dict(weights or {})
    known = {"token": b.input("token"), "position": b.input("position")}
    taken = [_input(b, known, name, kind, name in quantised) for name, kind in inputs.items()]
    roles = {role: role for role in op.weight_shapes()}
    slots = {role: role for role in op.slot_kinds()}
    outputs = b.add_node(op, *taken, name=OUTPUT, weights=roles, slots=slots)
    program = b.program(tuple(value.name for value in outputs))
    extra = {n: t for n, t in inputs.items() if n not in known}
    return ProbeProgram(bound(program, weights), weights, extra, limits or {})


def _input(b: Builder, known: Mapping[str, Value], name: str, kind: Type, quantised: bool) -> Value:
    if name in known:
        return known[name]
    value = b.input(name, kind.shape, kind.dtype)
    return b.add(ops.Quantise(), value, name=f"{name}.quantised") if quantised else value


def floats(*shape: int) -> Type:
    """Return an f32 type."""
    return Type(shape)


def vector(values: np.ndarray) -> Weight:
    """Return a norm, bias or other vector, or a matrix of floats, as a weight."""
    return Weight.from_floats(values if values.ndim == 2 else values[None])


def identity(width: int) -> Weight:
    """Return the identity matrix in w8: codes 1 under scales of 1."""
    codes = np.eye(width, dtype=np.int8)
    return Weight(W8, (width, width), {"codes": codes, "scale": np.ones((width, 1), np.float32)})


def through_quantise(width: int) -> ProbeProgram:
    """Build a probe of Quantise through a product with the identity: exactly q·2^e."""
    weights = {"weight": identity(width)}
    return one(ops.MatMul(width, width), {"x": floats(width)}, weights, quantised=("x",))


def logits(vocabulary: int, factor: float = 1.0) -> ProbeProgram:
    """Build a probe whose rows supply their logits: `logits` is `x` times a factor."""
    b = Builder(context=CONTEXT)
    b.input("token")
    b.input("position")
    x = b.input("x", (vocabulary,), "f32")
    b.add(ops.Scale(factor), x, name="logits")
    return ProbeProgram(
        b.program(("logits",)), {}, {"x": floats(vocabulary)}, {"token": vocabulary}
    )


def attend(op: ops.Attend, sinks: np.ndarray | None = None) -> ProbeProgram:
    """Build attention whose rows supply q, k and v."""
    b = Builder(context=CONTEXT)
    b.input("token")
    position = b.input("position")
    shapes = {
        "q": floats(op.heads, op.key_dim),
        "k": floats(op.kv_heads, op.key_dim),
        "v": floats(op.kv_heads, op.value_dim),
    }
    rows = {n: b.input(n, kind.shape, "f32") for n, kind in shapes.items()}
    q, k, v = (b.add(ops.Quantise(), x, name=f"{n}.quantised") for n, x in rows.items())
    store = ops.StoreKV(op.kv_heads, op.key_dim, op.value_dim)
    b.add_node(store, k, v, name="store", slots={"kv": "kv"})
    weights = {} if sinks is None else {"sinks": vector(sinks)}
    roles = {role: role for role in weights}
    b.add(op, q, position, name=OUTPUT, weights=roles, slots={"kv": "kv"})
    return ProbeProgram(bound(b.program((OUTPUT,)), weights), weights, shapes)
