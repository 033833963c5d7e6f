"""The indexer of block-sparse attention: it chooses blocks of keys."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Size, at_most
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value
from cortiq.ir.layers.basic import linear
from cortiq.ir.op import Described
from cortiq.ir.options import Constant, Epsilon
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.rope import RopeTable


@dataclass(frozen=True)
class Indexer(Described):
    """Scores blocks of keys for attention: queries of a few heads against one key a position.

    Attributes
    ----------
    heads : sets of blocks; the attention's heads are divided among them.
    dim : width of its queries and keys. block : keys of a block.
    top : blocks a query takes. local : number of last blocks that are always taken.
    eps, offset : of the RMSNorm of queries and keys, before RoPE.
    """

    heads: Count
    dim: Count
    block: Count
    top: Count
    local: Size
    eps: Epsilon
    offset: Constant = 0.0
    relations = (at_most("local", "top"),)

    def weight_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Declare projections and norms."""
        return {
            "index_q": (self.heads * self.dim, width),
            "index_k": (self.dim, width),
            "index_q_norm": (self.dim,),
            "index_k_norm": (self.dim,),
        }

    def slot(self) -> Slot:
        """Declare the slot: one key a position."""
        return KVRows(1, self.dim, 0)

    def choose(
        self, scope: Scope, x: Value, position: Value, rope: RopeTable | None, pairing: str
    ) -> Value:
        """Write the primitives and return the chosen blocks, i32[heads, top].

        Linear, Reshape, RMSNorm, Rope, Quantise, StoreKV, ChooseBlocks.
        """
        coded = {}
        for role, heads in (("index_q", self.heads), ("index_k", 1)):
            y = linear(scope, x, role, x.type.shape[-1], heads * self.dim)
            y = scope.add(ops.Reshape((heads, self.dim)), y, name=f"{role}.heads")
            norm = ops.RMSNorm(self.dim, self.eps, self.offset)
            y = scope.add(norm, y, name=f"{role}.norm", weights={"weight": f"{role}_norm"})
            if rope:
                y = scope.add(ops.Rope(rope, pairing), y, position, name=f"{role}.rope")
            coded[role] = scope.add(ops.Quantise(), y, name=f"{role}.quantised")
        slots = {"kv": "index"}
        store = ops.StoreKV(1, self.dim, 0)
        scope.add_node(store, coded["index_k"], name="index_store", slots=slots)
        op = ops.ChooseBlocks(self.heads, self.dim, self.block, self.top, self.local)
        return scope.add(op, coded["index_q"], position, name="blocks", slots=slots)
