"""Options of attention that are more than a number, and the split of a joint projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cortiq.domains import Count, OneOf, Relation, divides
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import linear
from cortiq.ir.op import Described, Type
from cortiq.ir.options import SLOPES, Constant, Epsilon, Function
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.rope_scaling import Growth, Proportional

PROJECTIONS = ("q", "k", "v")
Projection = Annotated[str, OneOf(PROJECTIONS)]


@dataclass(frozen=True)
class QKNorm(Described):
    """Norm of queries and keys, an RMSNorm if not told otherwise.

    Attributes
    ----------
    after_rope : the norm comes after RoPE, not before it (HunYuan).
    full_width : one norm over all heads together, before they are split (OLMo 2).
    weighted : it has a weight (Llama 4's has none).
    centred : it is a LayerNorm, with a bias (Persimmon).
    by_head : every head has a weight of its own, and no bias (Command R+).
    """

    eps: Epsilon
    offset: Constant = 0.0
    after_rope: bool = False
    full_width: bool = False
    weighted: bool = True
    centred: bool = False
    by_head: bool = False

    @property
    def biased(self) -> bool:
        """Whether the norm has a bias."""
        return self.centred and not self.by_head


@dataclass(frozen=True)
class AttentionGate(Described):
    """A factor on the output of every head, f(W·x).

    Attributes
    ----------
    function : f, an activation.
    per_head : one factor a head, W [heads, width]; else one an element, W [heads·value_dim, width].
    """

    function: Function = "softplus"
    per_head: bool = False

    def rows(self, heads: int, value_width: int) -> int:
        """Count the rows of W."""
        return heads * (1 if self.per_head else value_width)

    def applied(
        self, scope: Scope, x: Value, y: Value, width: int, heads: int, value_width: int
    ) -> Value:
        """Write y times f(W·x), the gate of the row x of an attention of these sizes, by head."""
        rows = self.rows(heads, value_width)
        gate = linear(scope, x, "gate", width, rows)
        gate = scope.add(ops.Activation(self.function), gate, name="gate.activation")
        gate = scope.add(ops.Reshape((heads, rows // heads)), gate, name="gate.heads")
        op = ops.ScaleRows() if self.per_head else ops.Multiply()
        return scope.add(op, y, gate, name="gated")


GROWING = RopeTable(10000.0, 2, Growth(Proportional(0.0), 1.0, 1))
"""A pair that is not turned and has the amplitude 1 + ln(1 + position)."""


def scaled_by_position(scope: Scope, q: Value, position: Value, role: str) -> Value:
    """Write every head's query times s·ln(1 + position) + b, its own s and b of the weights
    `role`_growth and `role`_start.

    The logarithm is what `GROWING` makes of ones, less 1. Source: Nakanishi, "Scalable-Softmax Is
    Superior for Attention" (arXiv 2501.19399), section 2.
    """
    heads = q.type.shape[0]
    y = scope.add(ops.Slice(0, GROWING.dim), q, name=f"{role}.pair")
    y = scope.add(ops.Scale(0.0), y, name=f"{role}.zeros")
    y = scope.add(ops.Shift(1.0), y, name=f"{role}.ones")
    y = scope.add(ops.Rope(GROWING), y, position, name=f"{role}.grown")
    y = scope.add(ops.Slice(0, 1), y, name=f"{role}.amplitude")
    y = scope.add(ops.Reshape((heads,)), y, name=f"{role}.amplitudes")
    y = scope.add(ops.Shift(-1.0), y, name=f"{role}.logarithm")
    y = scope.add(ops.Gain(heads), y, name=f"{role}.growing", weights={"weight": f"{role}_growth"})
    y = scope.add(ops.Bias(heads), y, name=f"{role}.factor", weights={"bias": f"{role}_start"})
    y = scope.add(ops.Reshape((heads, 1)), y, name=f"{role}.factors")
    return scope.add(ops.ScaleRows(), q, y, name=f"{role}.scaled")


@dataclass(frozen=True)
class ListedBlocks(Described):
    """Keys that rows see of all visible ones: those of blocks that each row supplies, ascending.

    Attributes
    ----------
    size : keys of a block. count : blocks of a row's list; it goes on with blocks that hold no
        visible key where there are fewer.
    """

    size: Count
    count: Count

    @property
    def type(self) -> Type:
        """Type of a row's list, one for all heads."""
        return Type((1, self.count), "i32")


RELATIONS = (
    divides("kv_heads", "heads"),
    SLOPES,
    Relation(
        ("rope", "head_dim"), "a head holds the rotary dimensions",
        lambda a: a.rope is None or a.rope.dim <= a.head_dim,
    ),
    Relation(
        ("query_rope", "head_dim"), "a head holds the queries' rotary dimensions",
        lambda a: a.query_rope is None or a.query_rope.dim <= a.head_dim,
    ),
    Relation(
        ("sections", "rope"), "the sections have as many pairs as the table",
        lambda a: a.sections is None or (a.rope and 2 * sum(a.sections.pairs) == a.rope.dim),
    ),
    Relation(
        ("indexer", "rope"), "a head of the indexer holds the rotary dimensions",
        lambda a: not (a.indexer and a.rope) or a.rope.dim <= a.indexer.dim,
    ),
    Relation(
        ("output_gate", "head_dim", "value_dim"), "a gate is as wide as a value head",
        lambda a: not a.output_gate or a.value_width == a.head_dim,
    ),
    Relation(
        ("output_gate", "qk_norm"), "no norm is over queries and their gates together",
        lambda a: not (a.output_gate and a.qk_norm and a.qk_norm.full_width),
    ),
    Relation(
        ("qk_norm",), "a norm with a bias has a weight",
        lambda a: not (a.qk_norm and a.qk_norm.biased) or a.qk_norm.weighted,
    ),
    Relation(
        ("qk_norm",), "weights of heads are the factors themselves, of norms of heads",
        lambda a: not (a.qk_norm and a.qk_norm.by_head)
        or (a.qk_norm.weighted and not a.qk_norm.full_width and not a.qk_norm.offset),
    ),
    Relation(
        ("shares_kv", "value_input"), "a layer without values takes no row for them",
        lambda a: not (a.shares_kv and a.value_input),
    ),
    Relation(
        ("indexer", "shares_kv", "sections", "until"),
        "an indexer goes with earlier keys, and positions, of the layer's own",
        lambda a: a.indexer is None or not (a.shares_kv or a.sections or a.until),
    ),
    Relation(
        ("joint", "shares_kv", "value_input", "output_gate", "biased", "value_dim"),
        "a joint matrix has heads of one width, whose biases are all there or none",
        lambda a: not a.joint or not (
            a.shares_kv or a.value_input or a.output_gate or isinstance(a.biased, tuple)
            or a.value_width != a.head_dim
        ),
    ),
    Relation(
        ("chunk", "listed", "indexer", "until"),
        "blocks of keys are named once, and a chunk's rows see earlier keys",
        lambda a: not (a.chunk and a.until)
        and sum(map(bool, (a.chunk, a.listed, a.indexer))) <= 1,
    ),
)  # fmt: skip
"""Relations between the options of `Attention`."""


def clipped(scope: Scope, y: Value, bound: float | None, role: str) -> Value:
    """Write a projection whose magnitudes are bounded, if they are."""
    if bound is None:
        return y
    return scope.add(ops.Clamp(-bound, bound), y, name=f"{role}.clipped")


def parted(scope: Scope, x: Value, how: Any) -> dict[str, Value]:
    """Write the joint projection of x for an attention `how`, and the heads of q, k and v in it.

    A row of the projection is, by KV head, its queries, its key, its value.
    """
    dim, group = how.head_dim, how.heads // how.kv_heads
    width = (group + 2) * dim
    y = linear(scope, x, "qkv", how.width, how.kv_heads * width, bool(how.biased))
    y = clipped(scope, y, how.clip, "qkv")
    rows = scope.add(ops.Reshape((how.kv_heads, width)), y, name="qkv.heads")
    q = scope.add(ops.Slice(0, group * dim), rows, name="q.groups")
    ends = {role: (group + n) * dim for n, role in enumerate("kv")}
    found = {r: scope.add(ops.Slice(e, e + dim), rows, name=f"{r}.heads") for r, e in ends.items()}
    return {"q": scope.add(ops.Reshape((how.heads, dim)), q, name="q.heads"), **found}
