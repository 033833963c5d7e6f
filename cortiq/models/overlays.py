"""Adapters as overlays: what one does to each weight of a program.

A low-rank change keeps its two factors, A and B times its scale, each converted to `w16`; DoRA's
lengths become a vector, computed once, and IA³'s vectors stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.adapter import Adapter, LowRank
from cortiq.formats.ia3 import ModuleVector
from cortiq.ir import Program
from cortiq.ir.overlays import BANK_LAYOUT, changeable
from cortiq.models.adapters import Factors, WithAdapters, doubles
from cortiq.models.bind import LoadedProgram
from cortiq.models.column_orders import orders_of
from cortiq.models.exact_products import row_sums
from cortiq.models.overlay_banks import Key, Overlay, OverlayPart
from cortiq.models.tensor_pieces import TensorSlice
from cortiq.models.weights import raw_weight
from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import F32_LAYOUT, LAYOUTS, Weight, floats
from cortiq.numerics.weights import convert

_ROWS = 1 << 12
"""Rows of a matrix whose lengths are computed at a time."""


class _Shapes:
    """A program's weights as the tensors of a file, for models that have none."""

    def __init__(self, program: Program) -> None:
        self.program, self.path = program, "the model"
        self.tensor_names = tuple(program.weights)

    def __contains__(self, name: object) -> bool:
        return name in self.program.weights

    def tensor(self, name: str) -> Any:
        """Return what has a tensor's shape."""
        return self.program.weights[name]


class _Place(NamedTuple):
    """A weight that a tensor of the file makes: alone, or together with others."""

    weight: str
    piece: TensorSlice
    alone: bool


def read_overlay(adapter: Adapter, loaded: LoadedProgram, program: Program) -> Overlay:
    """Return what an adapter does to the weights of a program.

    Parameters
    ----------
    program : as it was compiled, of the weights of `loaded`.

    Raises
    ------
    FormatError : the adapter is of another model, or a number in it is not finite.
    UnsupportedError : it changes what no overlay can.
    """
    where = str(adapter.path)
    if loaded.config is None or loaded.module is None:
        raise UnsupportedError("the model takes no adapters", where=where)
    base: Any = loaded.checkpoint if loaded.pieces else _Shapes(program)
    names = WithAdapters(base, [], loaded.module, loaded.config)
    for name, tensor in adapter.whole.items():
        _check_same(adapter, name, tensor, names)
    names.add(replace(adapter, whole={}, vectors={}))
    reader = _AdapterReader(adapter, loaded, changeable(program).keys(), names)
    return Overlay(adapter.sha256(), adapter.scale, dict(reader.members()))


def _check_same(adapter: Adapter, name: str, tensor: str, names: WithAdapters) -> None:
    """Refuse a whole tensor that is not the model's own, as PEFT saves those of tables beside a
    change of them.
    """
    base = names.base.tensor(names.found(name, adapter)[1])
    shape = adapter.shape(tensor)
    if LAYOUTS.get(base.type, F32_LAYOUT).kind == "float" and tuple(base.shape) == shape:
        own = floats(raw_weight(base, (prod(shape[:-1]), shape[-1])), name)
        if np.array_equal(own.reshape(shape), doubles(adapter, tensor)):
            return
    what = f"holds {name} whole, and it is not the model's"
    hint = "merge it when the model is loaded: --lora PATH"
    raise UnsupportedError(what, where=str(adapter.path), hint=hint)


@dataclass
class _AdapterReader:
    """Reads an adapter for the weights of a program."""

    adapter: Adapter
    loaded: LoadedProgram
    known: Any
    names: WithAdapters

    def __post_init__(self) -> None:
        self.places: dict[str, list[_Place]] = {}
        self.orders = orders_of(self.loaded.program)
        specs = self.loaded.program.weights
        for name, spec in specs.items():
            pieces = self.loaded.pieces.get(name) or [TensorSlice(name, spec.shape)]
            for piece in pieces:
                place = _Place(name, piece, len(pieces) == 1)
                self.places.setdefault(piece.tensor, []).append(place)

    def members(self) -> Iterator[tuple[Key, OverlayPart]]:
        """Yield what is done to each weight."""
        for tensor, changes in self.names.changes.items():
            for _, change, rows in changes:
                assert isinstance(change, LowRank)
                shape = tuple(self.names.base.tensor(tensor).shape)
                factors = Factors(self.adapter, change, shape, rows)
                for place in self._places(tensor, change.is_table):
                    yield (place.weight, change.is_table), self._low_rank(place, factors, change)
        for name, vector in self.adapter.vectors.items():
            yield from self._scaled(name, vector)

    def _places(self, tensor: str, table: bool) -> list[_Place]:
        """Return the weights that a tensor makes, if overlays can change all of them."""
        places = [p for p in self.places.get(tensor, []) if (p.weight, table) in self.known]
        sound = [p for p in places if p.alone and not p.piece.swapped and p.piece.axis == 0]
        if not sound or len(sound) < len(self.places[tensor]):
            what = f"changes {tensor}, which the model multiplies in a form that no overlay changes"
            hint = "merge it when the model is loaded: --lora PATH"
            raise UnsupportedError(what, where=str(self.adapter.path), hint=hint)
        return sound

    def _low_rank(self, place: _Place, factors: Factors, change: LowRank) -> OverlayPart:
        """Return both factors for a weight that is some rows of a tensor."""
        piece, where = place.piece, f"{self.adapter.path}: {place.weight}"
        cut = slice(piece.start, piece.stop)
        a, b = self._ordered(place, factors.a[0]), factors.b[0][cut] * factors.scale
        if change.is_table:
            if change.magnitude:
                what = f"changes the lengths of {place.weight}, a table"
                raise UnsupportedError(what, where=str(self.adapter.path), hint="use --lora PATH")
            # rows of the table are b's, and a has the columns
            return OverlayPart(_matrix(factors.b[0], where), _matrix(a.T * factors.scale, where))
        gain = None
        if factors.magnitude is not None:
            gain = self._gain(place, a, b, factors.magnitude[cut])
        return OverlayPart(_matrix(a, where), _matrix(b, where), gain=gain)

    def _ordered(self, place: _Place, columns: Any) -> Any:
        """Return what has a matrix's columns in the order of the rows that it multiplies."""
        order = self.orders.get(place.weight)
        return columns if order is None else columns[..., order.columns]

    def _gain(self, place: _Place, a: Any, b: Any, magnitude: Any) -> Floats:
        """Return DoRA's lengths over those of the changed rows, which are of the loaded weight."""
        weight, found = self.loaded.weights[place.weight], []
        for start in range(0, len(b), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(b)))
            values = embedding_rows(weight, rows, name=place.weight).astype(np.float64)
            changed = values + b[rows] @ a
            with np.errstate(divide="ignore", invalid="ignore"):
                found.append(magnitude[rows] / np.sqrt(row_sums(changed * changed)))
        return _vector(np.concatenate(found), f"{self.adapter.path}: {place.weight}")

    def _scaled(self, name: str, vector: ModuleVector) -> Iterator[tuple[Key, OverlayPart]]:
        """Yield what a vector of IA³ does to weights."""
        canonical, tensor = self.names.found(name, self.adapter)
        rows = self.names.rows_of(self.adapter).get(canonical)
        values = doubles(self.adapter, vector.tensor).reshape(-1)
        scale = 1.0 + self.adapter.scale * (values - 1.0)
        for place in self._places(tensor, False):
            out, inner = place.piece.shape
            if len(scale) != (inner if vector.is_input else out):
                what = f"multiplies {name} [{out}, {inner}] by {len(scale)} numbers"
                hint = "it was made for another model"
                raise FormatError(what, where=str(self.adapter.path), hint=hint)
            where = f"{self.adapter.path}: {place.weight}"
            if vector.is_input:
                before = _vector(self._ordered(place, scale), where)
                yield (place.weight, False), OverlayPart(before=before)
                continue
            turned = scale if rows is None else scale[rows]
            cut = turned[place.piece.start : place.piece.stop]
            yield (place.weight, False), OverlayPart(after=_vector(cut, where))


def _matrix(values: npt.NDArray[np.float64], where: str) -> Weight:
    """Return a factor as a bank holds it."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(values, F32)
    return convert(Weight.from_floats(rounded), BANK_LAYOUT, where)


def _vector(values: npt.NDArray[np.float64], where: str) -> Floats:
    """Return a vector as a bank holds it; FormatError where it is no vector of the contract's."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(values.reshape(-1), F32)
    if not np.isfinite(rounded).all() or (np.abs(rounded) >= 2.0**50).any():
        raise FormatError("holds a length that is not finite, or too large", where=where)
    return snap(rounded)
