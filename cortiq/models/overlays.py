"""Adapters as overlays: what one does to each weight of a program.

A low-rank change keeps its two factors, A and B times its scale, each converted to `w16`; DoRA's
lengths become a vector, computed once, and IA³'s vectors stay as they are. A tensor that an adapter
holds in place of the model's is converted to the layout of the weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.adapter import Adapter, LowRank
from cortiq.formats.ia3 import ModuleVector
from cortiq.ir import Program
from cortiq.ir.overlays import changeable
from cortiq.models.adapters import Factors, WithAdapters, check_shape, doubles
from cortiq.models.bind import LoadedProgram
from cortiq.models.column_orders import orders_of
from cortiq.models.expert_overlays import experts_changes, shares_its_row
from cortiq.models.overlay_banks import Key, Overlay, OverlayPart
from cortiq.models.overlay_numbers import (
    changed_lengths,
    own_matrix,
    same_tensor,
    stored_matrix,
    stored_vector,
)
from cortiq.models.overlay_pieces import (
    MatrixChange,
    OverlayPlace,
    StackChange,
    columns_of,
    factors_of,
    rows_of,
    taken,
)
from cortiq.models.parts import TABLE
from cortiq.models.tensor_pieces import TensorSlice

MERGE = "merge it when the model is loaded: --lora PATH"


class _Shapes:
    """A program's weights as the tensors of a file, for models that have none."""

    def __init__(self, program: Program) -> None:
        self.program, self.path = program, "in memory"
        self.tensor_names = tuple(program.weights)

    def __contains__(self, name: object) -> bool:
        return name in self.program.weights

    def tensor(self, name: str) -> Any:
        """Return what has a tensor's shape."""
        return self.program.weights[name]


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
    names.add(replace(adapter, whole={}, vectors={}, stacks=()))
    reader = _AdapterReader(adapter, loaded, program, names)
    members: dict[Key, OverlayPart] = {}
    for key, part in reader.members():
        if key in members:
            what = f"changes {key[0]} twice, or changes it and holds it whole"
            raise FormatError(what, where=where)
        members[key] = part
    return Overlay(adapter.sha256(), adapter.scale, members)


@dataclass
class _AdapterReader:
    """Reads an adapter for the weights of a program."""

    adapter: Adapter
    loaded: LoadedProgram
    program: Program
    names: WithAdapters

    def __post_init__(self) -> None:
        self.where, self.known = str(self.adapter.path), changeable(self.program)
        self.places: dict[str, list[OverlayPlace]] = {}
        self.orders = orders_of(self.loaded.program)
        for name, spec in self.loaded.program.weights.items():
            pieces = self.loaded.pieces.get(name) or [TensorSlice(name, spec.shape)]
            count, stacked = prod(spec.shape[:-2]), len(spec.shape) > 2 and len(pieces) > 1
            alone = len(pieces) == (count if stacked else 1)
            for i, piece in enumerate(pieces):
                place = OverlayPlace(name, piece, i if stacked else None, count, alone)
                self.places.setdefault(piece.tensor, []).append(place)

    def members(self) -> Iterator[tuple[Key, OverlayPart]]:
        """Yield what is done to each weight."""
        stacks: dict[Key, StackChange] = {}
        for key, place, change in self._changes():
            if place.index is None:
                yield key, self._part(key, change, place.count)
            else:
                stacks.setdefault(key, StackChange(place.count)).found[place.index] = change
        for key, stack in stacks.items():
            yield key, self._part(key, stack.joined(), stack.count)
        yield from self._tables()
        yield from self._whole()
        for stacked in self.adapter.stacks:
            for name, change in experts_changes(self.adapter, stacked, self.loaded.program):
                count = len(change.b) if change.b is not None else 1
                yield (name, False), self._part((name, False), change, count)

    def _changes(self) -> Iterator[tuple[Key, OverlayPlace, MatrixChange]]:
        """Yield low-rank changes and vectors of matrices."""
        for tensor, change, factors in self._factors():
            for place in () if change.is_table else self._places(tensor, False):
                yield (place.weight, False), place, self._low_rank(place, factors)
        for name, vector in self.adapter.vectors.items():
            yield from self._scaled(name, vector)

    def _factors(self) -> Iterator[tuple[str, LowRank, Factors]]:
        for tensor, changes in self.names.changes.items():
            for _, change, rows in changes:
                assert isinstance(change, LowRank)
                shape = tuple(self.names.base.tensor(tensor).shape)
                yield tensor, change, Factors(self.adapter, change, shape, rows)

    def _places(self, tensor: str, table: bool) -> list[OverlayPlace]:
        """Return the weights that a tensor makes, if overlays can change all of them."""
        places = [p for p in self.places.get(tensor, []) if (p.weight, table) in self.known]
        sound = [place for place in places if place.is_sound]
        if not sound or len(sound) < len(self.places[tensor]):
            what = f"changes {tensor}, which the model multiplies in a form that no overlay changes"
            raise UnsupportedError(what, where=self.where, hint=MERGE)
        return sound

    def _part(self, key: Key, change: MatrixChange, count: int) -> OverlayPart:
        """Return a change as banks hold it."""
        where = f"{self.adapter.path}: {key[0]}"
        node = self.known.get(key)
        if node is None:
            what = f"changes {key[0]}, which the model multiplies in a form that no overlay changes"
            raise UnsupportedError(what, where=self.where, hint=MERGE)
        if change.before is not None and shares_its_row(node, self.program):
            what = f"multiplies the input of {key[0]}, a row that all its experts share"
            raise UnsupportedError(what, where=self.where)
        a, b = (None if v is None else stored_matrix(v, where) for v in (change.a, change.b))
        vectors: dict[str, Any] = {
            name: stored_vector(values, where)
            for name in ("before", "gain", "after")
            if (values := getattr(change, name)) is not None
        }
        return OverlayPart(a, b, **vectors, count=count)

    def _tables(self) -> Iterator[tuple[Key, OverlayPart]]:
        """Yield low-rank changes of looked up rows: b has the table's rows, a its width."""
        for tensor, change, factors in self._factors():
            for place in self._places(tensor, True) if change.is_table else ():
                where = f"{self.adapter.path}: {place.weight}"
                if change.magnitude:
                    what = f"changes the lengths of {place.weight}, a table"
                    raise UnsupportedError(what, where=self.where, hint=MERGE)
                outer = self._ordered(place, factors.a[0]).T * factors.scale
                a, b = (stored_matrix(values, where) for values in (factors.b[0], outer))
                yield (place.weight, True), OverlayPart(a, b)

    def _low_rank(self, place: OverlayPlace, factors: Factors) -> MatrixChange:
        """Return what a change of a tensor is for a weight."""
        made = factors_of(place.piece, factors.b * factors.scale, factors.a)
        made.a = self._ordered(place, made.a)
        if factors.magnitude is None:
            return made
        lengths = rows_of(place.piece, factors.magnitude)
        gain = lengths / changed_lengths(self.loaded.weights[place.weight], place, made)
        return replace(made, before=gain) if place.piece.swapped else replace(made, gain=gain)

    def _ordered(self, place: OverlayPlace, columns: Any) -> Any:
        """Return what has a matrix's columns in the order of the rows that it multiplies."""
        order = self.orders.get(place.weight)
        return columns if order is None else columns[..., order.columns]

    def _scaled(
        self, name: str, vector: ModuleVector
    ) -> Iterator[tuple[Key, OverlayPlace, MatrixChange]]:
        """Yield what a vector of IA³ does to weights."""
        canonical, tensor = self.names.found(name, self.adapter)
        rows = self.names.rows_of(self.adapter).get(canonical)
        values = doubles(self.adapter, vector.tensor).reshape(-1)
        scale = 1.0 + self.adapter.scale * (values - 1.0)
        for place in self._places(tensor, False):
            piece = place.piece
            out, inner = prod(piece.shape[:-1]), piece.shape[-1]
            if len(scale) != (inner if vector.is_input else out):
                what = f"multiplies {name} [{out}, {inner}] by {len(scale)} numbers"
                raise FormatError(what, where=self.where, hint="it was made for another model")
            if vector.is_input:
                made = self._ordered(place, columns_of(piece, scale))
            else:
                made = rows_of(piece, scale if rows is None else scale[rows])
            before = vector.is_input != piece.swapped
            change = MatrixChange(before=made) if before else MatrixChange(after=made)
            yield (place.weight, False), place, change

    def _whole(self) -> Iterator[tuple[Key, OverlayPart]]:
        """Yield the tensors that the adapter holds in place of the model's, but equal ones, which
        PEFT saves beside a change of tables.
        """
        for name, tensor in self.adapter.whole.items():
            canonical, found = self.names.found(name, self.adapter)
            check_shape(self.adapter, tensor, found, tuple(self.names.base.tensor(found).shape))
            values, table = doubles(self.adapter, tensor), canonical == TABLE
            if self.loaded.pieces and same_tensor(self.names.base.tensor(found), values):
                continue
            matrix = values.ndim > 1 and canonical not in self.names.rows_of(self.adapter)
            if not matrix:
                what = f"holds {name} whole, and it is not the model's"
                raise UnsupportedError(what, where=self.where, hint=MERGE)
            for place in self._places(found, table):
                if place.index is not None:
                    what = f"holds {name} whole, one matrix of a stack"
                    raise UnsupportedError(what, where=self.where, hint=MERGE)
                own = self._ordered(place, taken(place.piece, values))
                where, weight = f"{self.adapter.path}: {place.weight}", self.loaded.weights
                whole = own_matrix(own, weight[place.weight], where)
                yield (place.weight, table), OverlayPart(whole=whole, count=place.count)
