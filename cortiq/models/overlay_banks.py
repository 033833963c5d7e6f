"""Overlays of a program, and the banks that hold several of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

import numpy as np

from cortiq.ir import Program, WeightSpec
from cortiq.ir.overlay_graphs import with_overlays
from cortiq.ir.overlays import (
    BANK_LAYOUT,
    FACTORS,
    PARTS,
    VECTORS,
    OverlayChange,
    bank_name,
)
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.layouts import LAYOUTS, Weight, floats

Key = tuple[str, bool]
"""A weight, and whether its rows are looked up."""
NO_WEIGHTS: Mapping[str, Weight] = MappingProxyType({})


@dataclass(frozen=True)
class OverlayPart:
    """An overlay's part for one weight; vectors are float32, None where there are none.

    Attributes
    ----------
    a, b : factors, [r, in] (or [vocabulary, r] of a table) and [out, r]; those of a stack lie one
        below the other.
    before, gain, after, shift : see `cortiq.ir.overlays.OverlayChange`; of a stack one after the
        other.
    whole : a matrix in the weight's place, in its layout.
    count : matrices of the stack that the weight is.
    """

    a: Weight | None = None
    b: Weight | None = None
    before: Floats | None = None
    gain: Floats | None = None
    after: Floats | None = None
    shift: Floats | None = None
    whole: Weight | None = None
    count: int = 1

    @property
    def rank(self) -> int:
        """The rank of the product, 0 for none."""
        return 0 if self.b is None else self.b.shape[1]

    def change(self, table: bool) -> OverlayChange:
        """Return the nodes that it takes."""
        there = {part: getattr(self, part) is not None for part in VECTORS}
        return OverlayChange(self.rank, table=table, whole=self.whole is not None, **there)


@dataclass(frozen=True)
class Overlay:
    """An adapter as an overlay.

    Attributes
    ----------
    sha256 : hash of the adapter's files. scale : what the caller multiplies it with.
    members : what it does to each weight.
    """

    sha256: str
    scale: float
    members: Mapping[Key, OverlayPart] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        held = (getattr(m, n) for m in self.members.values() for n in PARTS)
        return sum(part.nbytes for part in held if part is not None)


def changes_of(overlays: Sequence[Overlay | None]) -> dict[Key, OverlayChange]:
    """Return the changes of a program whose rows choose one of these."""
    found: dict[Key, OverlayChange] = {}
    for overlay in filter(None, overlays):
        for key, member in overlay.members.items():
            mine, before = member.change(key[1]), found.get(key, OverlayChange(table=key[1]))
            both = {part: getattr(mine, part) or getattr(before, part) for part in VECTORS}
            both["whole"] = mine.whole or before.whole
            found[key] = OverlayChange(max(mine.rank, before.rank), table=key[1], **both)
    return found


def bank_bytes(program: Program, overlays: Sequence[Overlay | None]) -> int:
    """Return the bytes of the banks of these overlays and of member 0."""
    varied = with_overlays(program, 1 + len(overlays), changes_of(overlays))
    banks = varied.weights.keys() - program.weights.keys()
    return sum(_nbytes(varied.weights[name]) for name in banks)


def _nbytes(spec: WeightSpec) -> int:
    """Return the bytes of a bank."""
    layout = LAYOUTS[spec.layout or "f32"]
    if layout.kind != "parts":
        return prod(spec.shape[:-1]) * layout.row_bytes(spec.shape[-1])
    return prod(spec.shape) * (1 if "16" not in layout.name else 2)


def fits(overlay: Overlay, changes: Mapping[Key, OverlayChange]) -> bool:
    """Check whether banks made for these changes have room for an overlay."""
    for key, member in overlay.members.items():
        mine, there = member.change(key[1]), changes.get(key, OverlayChange())
        vectors = (getattr(mine, p) <= getattr(there, p) for p in VECTORS)
        if mine.rank > there.rank or mine.whole or there.whole or not all(vectors):
            return False
    return True


def part_of(
    varied: Program, changes: Mapping[Key, OverlayChange], members: int, overlay: Overlay
) -> dict[str, Weight]:
    """Return an overlay's part of each bank of a program that it fits."""
    return dict(_parts(varied, changes, members, [overlay], NO_WEIGHTS))


def _parts(
    varied: Program,
    changes: Mapping[Key, OverlayChange],
    members: int,
    overlays: Sequence[Overlay | None],
    base: Mapping[str, Weight],
) -> Iterator[tuple[str, Weight]]:
    """Yield banks of these overlays alone, of as many rows each as those of `members` have."""
    for key in changes:
        name, table = key
        held = [None if o is None else o.members.get(key) for o in overlays]
        for part in PARTS:
            bank = bank_name(name, part, table)
            if bank not in varied.weights:
                continue
            shape = varied.weights[bank].shape
            own = [None if m is None else getattr(m, part) for m in held]
            size = (len(own) * (prod(shape[:-1]) // members), shape[-1])
            if part == "whole":
                yield bank, _members([base[name] if one is None else one for one in own])
            elif part in FACTORS:
                count = next((m.count for m in held if m is not None), 1)
                yield bank, _stack(own, size, count)
            else:
                yield bank, _vectors(own, size, 0 if part == "shift" else 1)


def banks_of(
    program: Program,
    overlays: Sequence[Overlay | None],
    base: Mapping[str, Weight] = NO_WEIGHTS,
) -> tuple[Program, dict[str, Weight]]:
    """Return the program whose rows choose an overlay, and its banks; None leaves a number free.

    Parameters
    ----------
    base : the program's weights, where an overlay has a matrix of its own.
    """
    changes = changes_of(overlays)
    varied = with_overlays(program, 1 + len(overlays), changes)
    return varied, dict(_parts(varied, changes, 1 + len(overlays), (None, *overlays), base))


def _members(held: Sequence[Weight]) -> Weight:
    """Return matrices of one layout, or of floats, one below the other."""
    if held[0].layout.kind == "float":
        return Weight.from_floats(np.concatenate([floats(weight, "bank") for weight in held]))
    first, rows = held[0], sum(weight.shape[0] for weight in held)
    parts = {n: np.concatenate([weight.parts[n] for weight in held]) for n in first.parts}
    return Weight(first.layout, (rows, first.shape[1]), parts)


def _vectors(held: Sequence[Floats | None], size: tuple[int, int], neutral: int) -> Weight:
    """Return a table of vectors; where there is none it is of the number that changes nothing."""
    none = np.full(prod(size) // len(held), neutral, F32)
    rows = np.stack([none if v is None else v for v in held])
    return Weight.from_floats(rows.reshape(size))


def _stack(held: Sequence[Weight | None], size: tuple[int, int], count: int) -> Weight:
    """Return matrices one below the other, padded with zeros to equal ranks.

    Parameters
    ----------
    count : matrices that each of these is a stack of.
    """
    parts = {part: np.zeros(size, np.int8) for part in ("hi", "lo")}
    parts["scale"] = np.zeros((size[0], 1), F32)
    places = {part: v.reshape(len(held), count, -1, v.shape[1]) for part, v in parts.items()}
    for number, one in enumerate(held):
        if one is None:
            continue
        for part, values in places.items():
            own = one.parts[part].reshape(count, one.shape[0] // count, -1)
            values[number, :, : own.shape[1], : own.shape[2]] = own
    return Weight(LAYOUTS[BANK_LAYOUT], size, parts)
