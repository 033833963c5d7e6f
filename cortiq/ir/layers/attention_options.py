"""Options of attention that are more than a number, and the split of a joint projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cortiq.domains import Count, OneOf
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import linear
from cortiq.ir.op import Described, Type
from cortiq.ir.options import Constant, Epsilon, Function

PROJECTIONS = ("q", "k", "v")
Projection = Annotated[str, OneOf(PROJECTIONS)]


@dataclass(frozen=True)
class QKNorm(Described):
    """RMSNorm of queries and keys.

    Attributes
    ----------
    after_rope : the norm comes after RoPE, not before it (HunYuan).
    full_width : one norm over all heads together, before they are split (OLMo 2).
    weighted : it has a weight (Llama 4's has none).
    """

    eps: Epsilon
    offset: Constant = 0.0
    after_rope: bool = False
    full_width: bool = False
    weighted: bool = True


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

    def factors(self, scope: Scope, x: Value, width: int, heads: int, rows: int) -> Value:
        """Write f(W·x) by head, f32[heads, rows / heads], of the layer's row f32[width]."""
        y = linear(scope, x, "gate", width, rows)
        y = scope.add(ops.Activation(self.function), y, name="gate.activation")
        return scope.add(ops.Reshape((heads, rows // heads)), y, name="gate.heads")


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


def parted(scope: Scope, x: Value, how: Any) -> dict[str, Value]:
    """Write the joint projection of x for an attention `how`, and the heads of q, k and v in it.

    A row of the projection is, by KV head, its queries, its key, its value.
    """
    dim, group = how.head_dim, how.heads // how.kv_heads
    width = (group + 2) * dim
    y = linear(scope, x, "qkv", how.width, how.kv_heads * width, bool(how.biased))
    rows = scope.add(ops.Reshape((how.kv_heads, width)), y, name="qkv.heads")
    q = scope.add(ops.Slice(0, group * dim), rows, name="q.groups")
    ends = {role: (group + n) * dim for n, role in enumerate("kv")}
    found = {r: scope.add(ops.Slice(e, e + dim), rows, name=f"{r}.heads") for r, e in ends.items()}
    return {"q": scope.add(ops.Reshape((how.heads, dim)), q, name="q.heads"), **found}
