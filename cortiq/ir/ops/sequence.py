"""Primitives that see other positions: rotary embedding, attention, convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cortiq.domains import MAX_COUNT, Count, Integer, Relation, Size, divides
from cortiq.ir.op import Op, Type, expect
from cortiq.ir.options import SLOPES, Pairing, ScoreCap, ScoreScale, Slope
from cortiq.ir.slots import KVRows, Ring, Slot
from cortiq.numerics.compression import Rate
from cortiq.numerics.ngrams import LARGEST_MULTIPLIER, LARGEST_TOKEN, MOST_TOKENS
from cortiq.numerics.rope import RopeTable, Sections

TokenId = Annotated[int, Integer(0, LARGEST_TOKEN)]
"""A token that ends n-grams."""
Multiplier = Annotated[int, Integer(1, LARGEST_MULTIPLIER)]
"""A factor of a token in a hash."""


@dataclass(frozen=True)
class Rope(Op):
    """Rotary position embedding of the first `table.dim` values of every head.

    Inputs x f32[heads, dim] and the position i32[] (`numerics.rope.apply_rope`). With `sections`
    the position is i32[axes], a number for each axis (time, height, width), and each pair turns by
    the position of its axis (`numerics.rope.Sections`); equal numbers give the plain rotation.
    """

    table: RopeTable
    pairing: Pairing = "half"
    sections: Sections | None = None
    relations = (
        Relation(("table",), "a table follows from the scaling", lambda r: r.table.follows()),
        Relation(
            ("table", "sections"), "the sections have as many pairs as the table",
            lambda r: r.sections is None or 2 * sum(r.sections.pairs) == r.table.dim,
        ),
    )  # fmt: skip

    def options(self) -> frozenset[str]:
        """Return the sections, if there are any."""
        return frozenset({"sections"}) if self.sections else frozenset()

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the shape."""
        x, position = inputs
        expect(x.dtype == "f32" and len(x.shape) == 2, f"Rope takes f32[heads, dim], got {x}")
        expect(
            x.shape[1] >= self.table.dim, f"Rope rotates {self.table.dim} of {x.shape[1]} values"
        )
        wanted = Type((self.sections.count,) if self.sections else (), "i32")
        expect(position == wanted, f"Rope takes a position {wanted}, got {position}")
        return (x,)


@dataclass(frozen=True)
class StoreKV(Op):
    """Append a quantised key row and value row to a slot, at the row's position. No output.

    With a value_dim of 0 the slot holds keys only, and there is one input.
    """

    heads: Count
    key_dim: Count
    value_dim: Size
    writes_slots = True

    def options(self) -> frozenset[str]:
        """Return the option of keys without values, if it is used."""
        return frozenset() if self.value_dim else frozenset({"keys only"})

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Require q16[heads, key_dim] and q16[heads, value_dim]."""
        dims = (self.key_dim, self.value_dim)
        wanted = tuple(Type((self.heads, dim), "q16") for dim in dims if dim)
        expect(inputs == wanted, f"StoreKV takes {wanted}, got {inputs}")
        return ()

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the rows written."""
        return {"kv": KVRows(self.heads, self.key_dim, self.value_dim)}


@dataclass(frozen=True)
class Attend(Op):
    """Base-2 softmax attention over a slot's rows (`numerics.attention.attend`).

    Inputs: q q16[heads, key_dim] and the position t; visible keys are max(0, t−window+1) ≤ j ≤ t.
    With `until` the input is the last key that a row sees, an input of the entry that is not
    before the row's own position t and lies within the batch: rows of a block see one another. A
    window counts back from t all the same.
    Output f32[heads, value_dim]. `sinks` adds one value-less logit per head to the denominator.
    `slopes`, one a head, add slope·(j − t) to the scores, t the row's own position (ALiBi).

    `mass` adds an output f32[heads, 1], the logarithm of the sum of e^score
    (`numerics.attention.log_mass`), by which parts of one softmax are merged.

    With `block` there is a third input, i32[sets, n]: of the visible keys a head sees those in the
    blocks j // block that its set names, in ascending order. Head h has set h // (heads / sets).
    """

    heads: Count
    kv_heads: Count
    key_dim: Count
    value_dim: Count
    scale: ScoreScale
    window: Count | None = None
    soft_cap: ScoreCap | None = None
    sinks: bool = False
    block: Size = 0
    until: bool = False
    mass: bool = False
    slopes: tuple[Slope, ...] = ()
    relations = (divides("kv_heads", "heads"), SLOPES)

    def options(self) -> frozenset[str]:
        """Return chosen blocks, last keys supplied by the row, masses, slopes, if used."""
        used = {"blocks": self.block > 0, "until": self.until, "mass": self.mass}
        used["slopes"] = bool(self.slopes)
        return frozenset(name for name, there in used.items() if there)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one output row a head."""
        q, position, *blocks = inputs
        wanted = Type((self.heads, self.key_dim), "q16")
        expect(q == wanted, f"Attend takes {wanted}, got {q}")
        expect(len(blocks) == (self.block > 0), f"Attend takes chosen blocks or none: {inputs}")
        for chosen in blocks:
            self._check_sets(chosen)
        expect(position == Type((), "i32"), f"Attend takes a position, got {position}")
        out = Type((self.heads, self.value_dim))
        return (out, Type((self.heads, 1))) if self.mass else (out,)

    def _check_sets(self, chosen: Type) -> None:
        fits = chosen.dtype == "i32" and len(chosen.shape) == 2
        few, many = sorted((chosen.shape[0] if fits else 0, self.kv_heads))
        fits = fits and few > 0 and many % few == 0 and self.heads % many == 0
        expect(fits, f"Attend takes blocks i32[sets, n] for {self.kv_heads} KV heads: {chosen}")

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the sinks, if there are any."""
        return {"sinks": (self.heads,)} if self.sinks else {}

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the rows read."""
        return {"kv": KVRows(self.kv_heads, self.key_dim, self.value_dim)}


@dataclass(frozen=True)
class Compress(Op):
    """An entry of keys and values for every `rate` rows (`numerics.compression.compress`).

    Inputs: rows f32[parts·width], the position i32[], and gates f32[parts·width]; with `overlap`
    parts is 2: entries are of two windows. A weight `bias` [rate, parts·width] is added to the
    gates, by the place in the window. Output f32[width]: the entry where the row closes a window,
    zeros elsewhere.
    """

    width: Count
    rate: Rate
    overlap: bool = False
    writes_slots = True

    @property
    def parts(self) -> int:
        """Windows that an entry is made of."""
        return 2 if self.overlap else 1

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one entry."""
        row = Type((self.parts * self.width,))
        wanted = (row, Type((), "i32"), row)
        expect(inputs == wanted, f"Compress takes {wanted}, got {inputs}")
        return (Type((self.width,)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare a bias for each place in a window."""
        return {"bias": (self.rate, self.parts * self.width)}

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the rows before, and what their weights are made from."""
        return {"ring": Ring(2 * self.parts * self.width, self.parts * self.rate - 1)}


@dataclass(frozen=True)
class Recall(Op):
    """The key row that a slot of keys only holds for a position, as floats.

    Input: the position i32[]. Output f32[heads, dim]: snap(q·2^e), which is exact but for what is
    below 2⁻⁴⁰ (`numerics.quantise.recalled`). This is how one entry graph is given rows of another:
    the trunk stores a value with `StoreKV`, a draft head recalls it. A batch whose rows would read
    what is not there yet is declined, except where a row supplies the value itself.
    """

    heads: Count
    dim: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the row."""
        expect(inputs == (Type((), "i32"),), f"Recall takes a position, got {inputs}")
        return (Type((self.heads, self.dim)),)

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the rows read: keys only."""
        return {"kv": KVRows(self.heads, self.dim, 0)}


@dataclass(frozen=True)
class HashNGrams(Op):
    """Rows of a table by the last tokens (`numerics.ngrams.ngram_rows`): i32[] → i32[heads].

    The token and the `len(multipliers) − 1` before it, as far as a row of the token `end`, are
    hashed: pairs, triples and so on, each by as many of the heads; head h has `heights[h]` rows of
    the table, below those of the heads before.
    """

    end: TokenId
    multipliers: tuple[Multiplier, ...]
    heights: tuple[Count, ...]
    writes_slots = True
    relations = (
        Relation(
            ("multipliers",), f"an n-gram has 2 to {MOST_TOKENS} tokens",
            lambda op: 2 <= len(op.multipliers) <= MOST_TOKENS,
        ),
        Relation(
            ("multipliers", "heights"), "every length of n-gram has as many heads, one at least",
            lambda op: len(op.heights) >= len(op.multipliers) - 1 > 0
            and len(op.heights) % (len(op.multipliers) - 1) == 0,
        ),
        Relation(
            ("heights",), "the table has a number of rows that fits 31 bits",
            lambda op: sum(op.heights) <= MAX_COUNT,
        ),
    )  # fmt: skip

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer a row of the table for each head."""
        expect(inputs == (Type((), "i32"),), f"HashNGrams takes a token, got {inputs}")
        return (Type((len(self.heights),), "i32"),)

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the tokens before this one."""
        return {"ring": Ring(1, len(self.multipliers) - 1)}


@dataclass(frozen=True)
class CausalConv(Op):
    """Depthwise causal convolution over the last `kernel` rows (`numerics.recurrent.causal_conv`).

    Reads and then extends the ring of the last kernel−1 inputs. f32[width] → f32[width].
    """

    width: Count
    kernel: Count
    biased: bool = False
    writes_slots = True

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the shape."""
        expect(inputs == (Type((self.width,)),), f"CausalConv takes f32[{self.width}]: {inputs}")
        return inputs

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare taps, oldest first, and a bias."""
        taps: dict[str, tuple[int, ...]] = {"weight": (self.width, self.kernel)}
        return taps | {"bias": (self.width,)} if self.biased else taps

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the rows before this one."""
        return {"ring": Ring(self.width, self.kernel - 1)}
