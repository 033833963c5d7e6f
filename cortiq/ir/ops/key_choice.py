"""Primitives that name the keys that an attention sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cortiq.domains import Count, Integer, Size, at_most
from cortiq.ir.op import Op, Type, expect
from cortiq.ir.slots import KVRows, Slot
from cortiq.numerics.key_blocks import MOST_HEADS

IndexHeads = Annotated[int, Integer(1, MOST_HEADS)]
"""Heads whose scores of a key are added up."""


@dataclass(frozen=True)
class ChooseBlocks(Op):
    """The blocks of keys that a query scores best (`numerics.key_blocks.choose_blocks`).

    Inputs: q q16[heads, key_dim] and the position t. A block's score is its visible keys' largest
    q·k; of the blocks up to the query's own, the `local` last ones and then the best are taken,
    `top` in all, in ascending order. Output i32[heads, top].
    """

    heads: Count
    key_dim: Count
    block: Count
    top: Count
    local: Size = 1
    relations = (at_most("local", "top"),)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer blocks of each head."""
        wanted = (Type((self.heads, self.key_dim), "q16"), Type((), "i32"))
        expect(inputs == wanted, f"ChooseBlocks takes {wanted}, got {inputs}")
        return (Type((self.heads, self.top), "i32"),)

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare one key a position, for all heads, and no values."""
        return {"kv": KVRows(1, self.key_dim, 0)}


@dataclass(frozen=True)
class ChooseKeys(Op):
    """The keys that a query scores best (`numerics.key_blocks.choose_keys`).

    Inputs: q q16[heads, key_dim], the position t, and a weight of each head f32[heads]. A key's
    score is the sum over the heads of weight·ReLU(q·k); of the keys up to the query's own the best
    `top` are taken, in ascending order. Output i32[1, top]: blocks of one key for `Attend`.
    With `every` above 1 keys are the rows that close a window of so many (`Compress`).
    """

    heads: IndexHeads
    key_dim: Count
    top: Count
    every: Count = 1

    def options(self) -> frozenset[str]:
        """Return `every` if it is above 1."""
        return frozenset({"every"}) if self.every > 1 else frozenset()

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one list for all heads of the attention."""
        query, weights = Type((self.heads, self.key_dim), "q16"), Type((self.heads,))
        wanted = (query, Type((), "i32"), weights)
        expect(inputs == wanted, f"ChooseKeys takes {wanted}, got {inputs}")
        return (Type((1, self.top), "i32"),)

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare one key a position, for all heads, and no values."""
        return {"kv": KVRows(1, self.key_dim, 0)}


@dataclass(frozen=True)
class ListKeys(Op):
    """The last keys that close a window of `every` rows (`numerics.key_blocks.list_keys`).

    Input: the position i32[]. Output i32[1, top], in ascending order: blocks of one key for
    `Attend`.
    """

    every: Count
    top: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one list for all heads of the attention."""
        expect(inputs == (Type((), "i32"),), f"ListKeys takes a position, got {inputs}")
        return (Type((1, self.top), "i32"),)


@dataclass(frozen=True)
class WindowBlocks(Op):
    """Windows of `every` rows that listed keys close, and the row's own, if it is not closed
    (`numerics.key_blocks.window_blocks`).

    Inputs: keys i32[1, top] of `ChooseKeys` or `ListKeys`, and the position i32[]. Output
    i32[1, top + 1], in ascending order: blocks of `every` keys for `Attend`.
    """

    every: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one list for all heads of the attention."""
        keys, position = inputs
        fits = keys.dtype == "i32" and len(keys.shape) == 2 and keys.shape[0] == 1
        expect(fits and position == Type((), "i32"),
               f"WindowBlocks takes i32[1, top] and a position, got {inputs}")  # fmt: skip
        return (Type((1, keys.shape[1] + 1), "i32"),)


@dataclass(frozen=True)
class OwnBlock(Op):
    """The block of keys that the row's own position is in (`numerics.key_blocks.own_block`).

    Input: the position t, i32[]. Output i32[1, 1]: t // block, blocks of so many keys for `Attend`,
    whose rows then see the keys of their own chunk only.
    """

    block: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one block for all heads of the attention."""
        expect(inputs == (Type((), "i32"),), f"OwnBlock takes a position, got {inputs}")
        return (Type((1, 1), "i32"),)
