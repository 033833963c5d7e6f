"""Hyper-connections: several residual streams, read, written and mixed by learned weights.

Source: Xie et al., "mHC: manifold-constrained hyper-connections", 2025; DeepSeek-V4, section 2.2;
identity hyper-connections: `modeling_hy_v4.py` of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import Layer, linear
from cortiq.ir.layers.moments import ones
from cortiq.ir.op import Type, expect
from cortiq.ir.options import Constant, Epsilon
from cortiq.numerics.streams import Streams


def _mixes(scope: Scope, streams: Value, eps: float, count: int) -> Value:
    """Write Reshape, RMSNorm, Linear: the numbers that weights are made from."""
    n, width = streams.type.shape
    y = scope.add(ops.Reshape((n * width,)), streams, name="flat")
    y = scope.add(ops.RMSNorm(n * width, eps, weighted=False), y, name="normed")
    return linear(scope, y, "mix", n * width, count)


def _scaled(scope: Scope, mixes: Value, role: str, start: int, stop: int) -> Value:
    """Write Slice, Gain, Bias: a role's numbers, times one and plus those of the file."""
    y = scope.add(ops.Slice(start, stop), mixes, name=role)
    gain = ops.Gain(1, "all")
    y = scope.add(gain, y, name=f"{role}.scaled", weights={"weight": f"{role}_scale"})
    bias = {"bias": f"{role}_base"}
    return scope.add(ops.Bias(stop - start), y, name=f"{role}.biased", weights=bias)


def _reading(scope: Scope, mixes: Value, n: int, floor: float) -> Value:
    """Write the weights of a sum of the streams: σ plus a floor."""
    y = scope.add(ops.Activation("sigmoid"), _scaled(scope, mixes, "pre", 0, n), name="pre.sigmoid")
    return scope.add(ops.Shift(floor), y, name="pre.shifted")


@dataclass(frozen=True)
class StreamEntry(Layer):
    """A row in every stream: f32[width] → f32[streams, width]."""

    streams: Streams
    width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the streams."""
        expect(inputs == (Type((self.width,)),), f"StreamEntry takes f32[{self.width}]: {inputs}")
        return (Type((self.streams, self.width)),)

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Concat, Reshape."""
        y = scope.add(ops.Concat(), *inputs * self.streams, name="copies")
        return scope.add(ops.Reshape((self.streams, self.width)), y, name="streams")


@dataclass(frozen=True)
class StreamRead(Layer):
    """The row that a branch reads of the streams, and how its output is written back.

    f32[n, width] → the sum of the streams by weights `pre` f32[width], weights `post` f32[n, 1] of
    the branch's output, and the mix of the streams f32[n, n]: numbers of Linear(RMSNorm(streams)),
    scaled and shifted; pre = σ + floor, post = 2σ, and the mix is made doubly stochastic. With
    `last` only the sum, for what follows the last layer.

    Attributes
    ----------
    identity : streams are not mixed, there is no third output, and post = magnitude·σ + floor.
    """

    streams: Streams
    width: Count
    eps: Epsilon
    floor: Epsilon
    rounds: Count = 1
    last: bool = False
    identity: bool = False
    magnitude: Constant = 2.0

    @property
    def numbers(self) -> int:
        """Numbers that weights are made from."""
        return sum(self._counts().values())

    def _counts(self) -> dict[str, int]:
        """Return how many numbers each role has."""
        n = self.streams
        counts = {"pre": n} if self.last else {"pre": n, "post": n, "comb": n * n}
        return {role: c for role, c in counts.items() if role != "comb" or not self.identity}

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the row, and the weights."""
        n, wanted = self.streams, Type((self.streams, self.width))
        expect(inputs == (wanted,), f"StreamRead takes {wanted}, got {inputs}")
        types = {"pre": Type((self.width,)), "post": Type((n, 1)), "comb": Type((n, n))}
        return tuple(types[role] for role in self._counts())

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the matrix, and a factor and biases of each role."""
        n, counts = self.streams, self._counts()
        shapes: dict[str, tuple[int, ...]] = {"mix": (self.numbers, n * self.width)}
        shapes |= {f"{role}_scale": (1,) for role in counts}
        return shapes | {f"{role}_base": (count,) for role, count in counts.items()}

    def decompose(self, scope: Scope, *inputs: Value) -> Value | tuple[Value, ...]:
        """Write Reshape, RMSNorm, Linear, Slice, Gain, Bias, Activation, Shift, Scale, Sinkhorn,
        CombineExperts.
        """
        (streams,), n = inputs, self.streams
        mixes = _mixes(scope, streams, self.eps, self.numbers)
        pre = _reading(scope, mixes, n, self.floor)
        row = scope.add(ops.CombineExperts(), pre, streams, name="row")
        if self.last:
            return row
        post = _scaled(scope, mixes, "post", n, 2 * n)
        post = scope.add(ops.Activation("sigmoid"), post, name="post.sigmoid")
        post = scope.add(ops.Scale(self.magnitude), post, name="post.doubled")
        if self.identity:
            post = scope.add(ops.Shift(self.floor), post, name="post.shifted")
        post = scope.add(ops.Reshape((n, 1)), post, name="post.column")
        if self.identity:
            return row, post
        comb = _scaled(scope, mixes, "comb", 2 * n, self.numbers)
        comb = scope.add(ops.Reshape((n, n)), comb, name="comb.matrix")
        comb = scope.add(ops.Sinkhorn(n, self.rounds, self.floor), comb, name="comb.stochastic")
        return row, post, comb


@dataclass(frozen=True)
class StreamWrite(Layer):
    """post[k]·branch + Σ_j mix[j, k]·stream j, for every k.

    f32[n, width], the branch f32[width], post f32[n, 1], the mix f32[n, n] → f32[n, width]. With
    `identity` there is no mix: post[k]·branch + stream k.
    """

    streams: Streams
    width: Count
    identity: bool = False

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the streams."""
        n, row = self.streams, Type((self.width,))
        wanted = (Type((n, self.width)), row, Type((n, 1)), Type((n, n)))[: 4 - self.identity]
        expect(inputs == wanted, f"StreamWrite takes {wanted}, got {inputs}")
        return inputs[:1]

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Concat, Reshape, ScaleRows; Slice, CombineExperts; Add."""
        (streams, branch, post, *comb), n = inputs, self.streams
        y = scope.add(ops.Concat(), *(branch,) * n, name="copies")
        y = scope.add(ops.Reshape((n, self.width)), y, name="written")
        y = scope.add(ops.ScaleRows(), y, post, name="written.scaled")
        mixed = self._mixed(scope, streams, comb[0]) if comb else streams
        return scope.add(ops.Add(), y, mixed, name="sum")

    def _mixed(self, scope: Scope, streams: Value, comb: Value) -> Value:
        """Write Reshape, Slice, CombineExperts, Concat: every stream a sum of all."""
        n, rows = self.streams, []
        flat = scope.add(ops.Reshape((n * n,)), comb, name="mix.flat")
        for k in range(n):
            weights = scope.add(ops.Slice(k, n * n, n), flat, name=f"mix.{k}")
            rows.append(scope.add(ops.CombineExperts(), weights, streams, name=f"mixed.{k}"))
        mixed = scope.add(ops.Concat(), *rows, name="mixed")
        return scope.add(ops.Reshape((n, self.width)), mixed, name="mixed.streams")


@dataclass(frozen=True)
class StreamMean(Layer):
    """The mean of the streams, for what follows the last layer: f32[n, width] → f32[width]."""

    streams: Streams
    width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the row."""
        wanted = Type((self.streams, self.width))
        expect(inputs == (wanted,), f"StreamMean takes {wanted}, got {inputs}")
        return (Type((self.width,)),)

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Reshape, Slice, Scale, Shift (shares of 1/n); CombineExperts."""
        (streams,), n = inputs, self.streams
        flat = scope.add(ops.Reshape((n * self.width,)), streams, name="flat")
        shares = scope.add(ops.Scale(1 / n), ones(scope, flat, n, "one"), name="shares")
        return scope.add(ops.CombineExperts(), shares, streams, name="mean")
