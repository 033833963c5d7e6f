"""Alternating updates: several copies of a row, of which every layer computes one.

A layer predicts all copies from all of them, computes the active one, and corrects the others by
what it found. Sources: Baykal et al., "Alternating updates for efficient transformers", 2023;
Gemma 3n.
"""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation, Size
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.moments import matched, root_mean_square
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Epsilon
from cortiq.numerics.streams import Streams

ACTIVE = (
    Relation(("active", "streams"), "active is below streams", lambda a: a.active < a.streams),
)


@dataclass(frozen=True)
class AltUpEntry(Layer):
    """A row, and projections of it with its magnitude: f32[width] → f32[streams, width]."""

    streams: Streams
    width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the copies."""
        expect(inputs == (Type((self.width,)),), f"AltUpEntry takes f32[{self.width}]: {inputs}")
        return (Type((self.streams, self.width)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare a matrix for every copy but the first."""
        return _projections(self.streams, self.width)

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Linear, RMSNorm, ScaleRows for every copy; Concat, Reshape."""
        (x,) = inputs
        size = root_mean_square(scope, x, "size")
        rows = [x]
        for role in self.weight_shapes():
            y = linear(scope, x, role, self.width, self.width)
            rows.append(matched(scope, y, size, f"{role}.matched"))
        return _stacked(scope, rows, self.width, "streams")


@dataclass(frozen=True)
class AltUpExit(Layer):
    """The mean of projections of the copies with the first one's magnitude: → f32[width]."""

    streams: Streams
    width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one row."""
        _expect(self, inputs, Type((self.streams, self.width)))
        return (Type((self.width,)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare a matrix for every copy but the first."""
        return _projections(self.streams, self.width)

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Slice, Linear, RMSNorm, ScaleRows for every copy; Add, Scale."""
        rows = _rows(scope, inputs[0])
        size = root_mean_square(scope, rows[0], "size")
        total = rows[0]
        for n, role in enumerate(self.weight_shapes(), 1):
            y = linear(scope, rows[n], role, self.width, self.width)
            y = matched(scope, y, size, f"{role}.matched")
            total = scope.add(ops.Add(), total, y, name=f"sum.{n}")
        return scope.add(ops.Scale(1 / self.streams), total, name="mean")


@dataclass(frozen=True)
class AltUpPredict(Layer):
    """f32[n, width] → predicted copies f32[n, width], and the active one f32[width].

    copy i becomes h_i + Σ_j c[i, j]·h_j; c = Linear(tanh(Linear(RMSNorm(h_active) / width))).
    """

    streams: Streams
    width: Count
    active: Size
    eps: Epsilon
    relations = ACTIVE

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the copies, and infer a row."""
        _expect(self, inputs, Type((self.streams, self.width)))
        return (inputs[0], Type((self.width,)))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the router, its norm, and the coefficients."""
        n = self.streams
        return _router(n, self.width) | {"coefs": (n * n, n)}

    def decompose(self, scope: Scope, *inputs: Value) -> tuple[Value, ...]:
        """Write RMSNorm, Scale, Linear, Activation, Linear; Slice, CombineExperts, Add."""
        (streams,), n = inputs, self.streams
        routed = _routed(scope, _rows(scope, streams)[self.active], n, self.eps)
        coefs, rows = linear(scope, routed, "coefs", n, n * n), []
        for k in range(n):
            own = scope.add(ops.Slice(k * n, (k + 1) * n), coefs, name=f"coefs.{k}")
            rows.append(scope.add(ops.CombineExperts(), own, streams, name=f"mixed.{k}"))
        mixed = _stacked(scope, rows, self.width, "mixed")
        predicted = scope.add(ops.Add(), mixed, streams, name="predicted")
        return predicted, _rows(scope, predicted, "predicted")[self.active]


@dataclass(frozen=True)
class AltUpCorrect(Layer):
    """Predictions f32[n, width] and the row computed f32[width] → corrected copies, the active row.

    copy i becomes p_i + (1 + c[i])·(y − p_active); c = Linear(tanh(Linear(RMSNorm(y) / width))).
    The active row is multiplied by `scale` if it is `scaled`.
    """

    streams: Streams
    width: Count
    active: Size
    eps: Epsilon
    scaled: bool = True
    relations = ACTIVE

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the copies, and the row."""
        _expect(self, inputs, Type((self.streams, self.width)), Type((self.width,)))
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the router, its norm, the coefficients, and the scale."""
        n, scale = self.streams, {"scale": (self.width,)} if self.scaled else {}
        return _router(n, self.width) | {"coefs": (n, n)} | scale

    def decompose(self, scope: Scope, *inputs: Value) -> tuple[Value, ...]:
        """Write RMSNorm, Scale, Linear, Activation, Linear, Shift; Add, ScaleRows, Add; Gain."""
        (predicted, found), n = inputs, self.streams
        coefs = linear(scope, _routed(scope, found, n, self.eps), "coefs", n, n)
        coefs = scope.add(ops.Shift(1.0), coefs, name="coefs.shifted")
        coefs = scope.add(ops.Reshape((n, 1)), coefs, name="coefs.column")
        active = _rows(scope, predicted)[self.active]
        less = scope.add(ops.Scale(-1.0), active, name="active.negated")
        news = scope.add(ops.Add(), found, less, name="innovation")
        copies = _stacked(scope, [news] * n, self.width, "copies")
        copies = scope.add(ops.ScaleRows(), copies, coefs, name="copies.scaled")
        corrected = scope.add(ops.Add(), copies, predicted, name="corrected")
        row = _rows(scope, corrected, "corrected")[self.active]
        if self.scaled:
            row = scope.add(ops.Gain(self.width), row, name="row", weights={"weight": "scale"})
        return corrected, row


@dataclass(frozen=True)
class AltUpAdd(Layer):
    """A row added to every copy but the first: f32[n, width], f32[width] → f32[n, width]."""

    streams: Streams
    width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the copies."""
        _expect(self, inputs, Type((self.streams, self.width)), Type((self.width,)))
        return inputs[:1]

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Scale, Concat, Reshape, Add."""
        streams, row = inputs
        nothing = scope.add(ops.Scale(0.0), row, name="nothing")
        rows = [nothing, *[row] * (self.streams - 1)]
        return scope.add(ops.Add(), streams, _stacked(scope, rows, self.width, "rows"), name="sum")


def _expect(op: Layer, inputs: tuple[Type, ...], *wanted: Type) -> None:
    expect(inputs == wanted, f"{op.kind} takes {wanted}, got {inputs}")


def _projections(streams: int, width: int) -> dict[str, tuple[int, ...]]:
    return {f"projection_{n}": (width, width) for n in range(1, streams)}


def _router(streams: int, width: int) -> dict[str, tuple[int, ...]]:
    return {"norm": (width,), "router": (streams, width)}


def _routed(scope: Scope, x: Value, streams: int, eps: float) -> Value:
    """Return what coefficients are made from."""
    (width,) = x.type.shape
    y = scope.add(ops.RMSNorm(width, eps), x, name="routed.norm", weights={"weight": "norm"})
    y = scope.add(ops.Scale(1 / width), y, name="routed.scaled")
    y = linear(scope, y, "router", width, streams)
    return scope.add(ops.Activation("tanh"), y, name="routed.tanh")


def _rows(scope: Scope, streams: Value, name: str = "row") -> list[Value]:
    """Return each of the copies."""
    n, width = streams.type.shape
    flat = scope.add(ops.Reshape((n * width,)), streams, name=f"{name}.flat")
    cuts = (ops.Slice(k * width, (k + 1) * width) for k in range(n))
    return [scope.add(cut, flat, name=f"{name}.{k}") for k, cut in enumerate(cuts)]


def _stacked(scope: Scope, rows: list[Value], width: int, name: str) -> Value:
    y = scope.add(ops.Concat(), *rows, name=f"{name}.flat")
    return scope.add(ops.Reshape((len(rows), width)), y, name=f"{name}.rows")
