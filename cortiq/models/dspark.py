"""DSpark: a block drafter that sees keys of the trunk's rows, and chains a block's tokens.

    c = norm(W·[tapped rows])                       a context row, once for each position
    h = embed(token)                                the block: the last token, then mask tokens
    h = layers(h), which attend to keys of c        written by the trunk, and to the whole block
    scores of row k = head·norm(h) + W2·W1[token before]        from left to right
    confidence = σ(w·[h ; W1[token before]])

The trunk stores each layer's keys of c. A block's rows have positions of their own, from 0; what
they are in the text is an input (`ir.heads.PLACE`). A second entry adds to a row's scores what
the token before contributes, since that is known only when the row before has drafted.
Source: the description of DSpark in the repository ROCm/ATOM, `recipes/DSpark.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cortiq.domains import Count
from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.ir import Builder, Graph, Program, Value, ops
from cortiq.ir.graph import Scope
from cortiq.ir.heads import (
    BASE_SCORES,
    CONFIDENCE,
    DSPARK,
    LAST_CONTEXT,
    LAST_ROW,
    LISTED,
    MARKOV_BLOCK,
    PLACE,
    REDUCED,
    DraftHead,
)
from cortiq.ir.layers import Embedding, Layer, Linear, RMSNorm
from cortiq.ir.layers.basic import rows_for
from cortiq.ir.op import Type, expect
from cortiq.models.heads import resume, trunk_logits
from cortiq.numerics.rope import RopeTable, Sections

MARKOV = f"{DSPARK}.markov"
MOST_ROWS = 64
"""Rows of a block at most."""


@dataclass(frozen=True)
class BlockRows:
    """Inputs of the rows of a block: see `ir.heads.PLACE`; `listed` where a window is seen."""

    token: Value
    place: Value
    last: Value
    context: Value
    listed: Value | None = None


@dataclass(frozen=True)
class Scoring:
    """Tensors of the scores that follow the token before, and of confidence if it is computed.

    Attributes
    ----------
    before, after : W1 [vocab, rank] and W2 [vocab, rank]. confidence : w [1, width + rank].
    """

    rank: int
    before: str
    after: str
    confidence: str = ""


class Backbone(Protocol):
    """The layers of a drafter.

    Attributes
    ----------
    taps : the trunk's layers whose outputs it reads. window : context rows that it sees; 0: all.
    size, mask_token : of a block.
    """

    taps: tuple[int, ...]
    size: int
    mask_token: int
    window: int
    scoring: Scoring

    def context(self, b: Builder) -> None:
        """Write the trunk's part: a context row, and the keys that each layer sees of it."""
        ...

    def block(self, b: Builder, rows: BlockRows, embedded: Value) -> tuple[Value, Value]:
        """Write the layers; return what confidence is computed of, and that after the last norm."""
        ...


@dataclass(frozen=True)
class HeadLinear(Layer):
    """A matrix for each head: f32[heads, in_width] → f32[heads, out_width]; no catalogue layer."""

    heads: Count
    in_width: Count
    out_width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Require the heads' rows."""
        wanted = Type((self.heads, self.in_width))
        expect(inputs == (wanted,), f"HeadLinear takes {wanted}, got {inputs}")
        return (Type((self.heads, self.out_width)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the stack of matrices."""
        return {"weight": (self.heads, self.out_width, self.in_width)}

    def decompose(self, scope: Scope, *inputs: Value) -> Value:
        """Write Quantise (not for an `f32` weight), HeadMatMul."""
        rows = rows_for(scope, "weight", inputs[0], "rows")
        matmul = ops.HeadMatMul(self.heads, self.in_width, self.out_width)
        return scope.add(matmul, rows, name="product", weights={"weight": "weight"})


def checked_taps(taps: Sequence[int], program: Program, key: str, where: str) -> tuple[int, ...]:
    """Return the layers that are tapped.

    Raises
    ------
    FormatError : there are none, or they are no layers of the model, one after the other.
    """
    layers = program.facts["layers"]
    sound = all(type(n) is int and 0 <= n < layers for n in taps) and list(taps) == sorted({*taps})
    if not taps or not sound:
        hint = f"{key} lists layers of the model in order, from 0 to {layers - 1}"
        raise FormatError(f"taps the layers {shown(taps)} of {layers}", where=where, hint=hint)
    return tuple(taps)


def with_block(program: Program, backbone: Backbone) -> Program:
    """Return the program with the drafter's entries, and a trunk that stores its context.

    Raises
    ------
    UnsupportedError : there is another block drafter, or the trunk's embedding is no plain table.
    """
    if "block_drafter" in program.facts:
        raise UnsupportedError("two block drafters for one model", where="heads")
    sources = ",".join(f"layers.{n}.out" for n in backbone.taps)
    entries = DSPARK, MARKOV
    head = DraftHead(MARKOV_BLOCK, entries, sources, backbone.size, backbone.mask_token)
    b = Builder(context=program.context, facts={**program.facts, "block_drafter": head})
    b.weights.update(program.weights)
    b.slots.update(program.slots)
    b.graphs.update(program.graphs)
    resume(b, program.trunk)
    backbone.context(b)
    b.graph("trunk", program.trunk.outputs)
    _write_block(b, program.trunk, backbone)
    b.graph(DSPARK, (REDUCED, "logits"))
    width, vocab = program.facts["width"], program.facts["vocab_size"]
    _write_scores(b, width, vocab, backbone.scoring)
    b.graph(MARKOV, ("logits", *([CONFIDENCE] if backbone.scoring.confidence else [])))
    return b.program()


def _write_block(b: Builder, trunk: Graph, backbone: Backbone) -> None:
    token = b.input("token")
    b.input("position")
    listed = b.input(LISTED, (1, backbone.window)) if backbone.window else None
    places = b.input(PLACE, (1,)), b.input(LAST_ROW), b.input(LAST_CONTEXT)
    table = next(node for node in trunk.nodes if "embed" in node.outputs)
    if not isinstance(table.op, Embedding):
        raise UnsupportedError("a block drafter of a model whose embedding is no plain table")
    plain = replace(table.op, multiplier=1.0)
    embedded = b.add(plain, token, name=f"{DSPARK}.embed", weights=table.weights)
    reduced, normed = backbone.block(b, BlockRows(token, *places, listed), embedded)
    assert reduced.name == REDUCED
    trunk_logits(b, trunk, DSPARK, normed)


def _write_scores(b: Builder, width: int, vocab: int, how: Scoring) -> None:
    """Write a row's scores after the token before, and its confidence."""
    token = b.input("token")
    b.input("position")
    scores = b.input(BASE_SCORES, (vocab,), "f32")
    embedded = b.add(
        Embedding(vocab, how.rank), token, name=f"{MARKOV}.before", weights={"table": how.before}
    )
    bias = Linear(how.rank, vocab)
    y = b.add(bias, embedded, name=f"{MARKOV}.after", weights={"weight": how.after})
    b.add(ops.Add(), scores, y, name="logits")
    if how.confidence:
        row = b.input(REDUCED, (width,), "f32")
        joined = b.add(ops.Concat(), row, embedded, name=f"{MARKOV}.joined")
        weights = {"weight": how.confidence}
        y = b.add(Linear(width + how.rank, 1), joined, name=f"{MARKOV}.chance", weights=weights)
        b.add(ops.Activation("sigmoid"), y, name=CONFIDENCE)


def context_row(b: Builder, rows: Sequence[Value], project: str, norm: str, eps: float) -> Value:
    """Write norm(W·[rows]), f32[width] of the first; `project` and `norm` are tensors."""
    (width,) = rows[0].type.shape
    joined = b.add(ops.Concat(), *rows, name=f"{DSPARK}.taps") if len(rows) > 1 else rows[0]
    op = Linear(width * len(rows), width)
    c = b.add(op, joined, name=f"{DSPARK}.projected", weights={"weight": project})
    return b.add(RMSNorm(width, eps), c, name=f"{DSPARK}.context", weights={"weight": norm})


def turned(b: Builder, y: Value, place: Value, table: RopeTable, name: str) -> Value:
    """Write heads whose last `table.dim` elements are rotated, pairs of neighbours.

    Parameters
    ----------
    place : the position, i32[], or that of a row of a block, i32[1].
    """
    dim = y.type.shape[-1]
    still, sections = dim - table.dim, Sections((table.dim // 2,)) if place.type.shape else None
    part = b.add(ops.Slice(still, dim), y, name=f"{name}.rotary") if still else y
    rope = ops.Rope(table, "interleaved", sections)
    part = b.add(rope, part, place, name=f"{name}.rope")
    if not still:
        return part
    rest = b.add(ops.Slice(0, still), y, name=f"{name}.still")
    return b.add(ops.Concat(), rest, part, name=f"{name}.turned")


def attended(
    b: Builder,
    q: Value,
    rows: BlockRows,
    name: str,
    context: str,
    near: ops.Attend,
    sinks: str = "",
) -> Value:
    """Write attention to the block and to the context: one softmax, in two parts by their masses.

    Parameters
    ----------
    q : quantised queries by head. name : of the layer; its slot is `NAME.kv`.
    context : the slot of the trunk that holds the layer's keys. near : without sinks.
    sinks : tensor of the heads' sinks, which are in the softmax once; empty for none.
    """
    near = replace(near, until=True, mass=True)
    far = replace(near, block=1 if rows.listed else 0)
    weights = {"sinks": sinks} if sinks else {}
    own = b.add_node(
        replace(near, sinks=bool(sinks)), q, rows.last, name=f"{name}.near", weights=weights,
        slots={"kv": f"{name}.kv"},
    )  # fmt: skip
    seen = [q, rows.context, *([rows.listed] if rows.listed else [])]
    other = b.add_node(far, *seen, name=f"{name}.far", slots={"kv": context})
    masses = b.add(ops.Concat(), own[1], other[1], name=f"{name}.masses")
    shares = b.add(ops.Softmax(2), masses, name=f"{name}.shares")
    parts = []
    for i, (y, _) in enumerate((own, other)):
        share = b.add(ops.Slice(i, i + 1), shares, name=f"{name}.share.{i}")
        parts.append(b.add(ops.ScaleRows(), y, share, name=f"{name}.part.{i}"))
    return b.add(ops.Add(), *parts, name=f"{name}.attended")
