"""Weights that are only part of a file's tensor, or transposed in it.

A file may hold q, k and v as one matrix, gate and up as another, or a head's key and value matrices
as one. `FusedTensor` declares this once for a family; every weight is then a `TensorSlice` of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import LAYOUTS, Weight

LAYER_PREFIXES = "model.layers.", "mtp.layers."


@dataclass(frozen=True)
class FusedTensor:
    """A tensor of the file that holds several weights, one after the other.

    Matrices lie one below the other; of a stack [heads or experts, rows, columns], those of every
    member do.

    Attributes
    ----------
    tensor : its name in a Hugging Face file, without the layer's prefix and `.weight` (or `.bias`).
    parts : canonical names of the weights, in order, written alike.
    swapped : those whose matrices are the other way round in the file, [columns, rows]. A tensor
        all of whose parts are swapped holds them side by side.
    bare : the tensor's name has no `.weight` at its end.
    either : files have its matrices one way round or the other: the shape decides, and what the
        other fields say counts where both fit.
    skipped : rows before the first part that no weight has.
    padded : files may have rows after the last part that no weight has.
    """

    tensor: str
    parts: tuple[str, ...]
    swapped: tuple[str, ...] = ()
    bare: bool = False
    either: bool = False
    skipped: int = 0
    padded: bool = False

    @property
    def turned(self) -> FusedTensor:
        """The tensor with all matrices the other way round."""
        return replace(self, swapped=() if self.swapped else self.parts)

    @property
    def beside(self) -> bool:
        """Whether the parts lie side by side, along the last axis."""
        return len(self.parts) > 1 and set(self.parts) == set(self.swapped)


@dataclass(frozen=True)
class TensorSlice:
    """The part of a tensor that makes a weight.

    Attributes
    ----------
    tensor : its name in the file.
    shape : that the tensor should have.
    axis, start, stop : the part taken.
    swapped : the last two axes change places after that.
    """

    tensor: str
    shape: tuple[int, ...]
    axis: int = 0
    start: int = 0
    stop: int | None = None
    swapped: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the weight is the whole tensor."""
        stop = self.shape[self.axis] if self.stop is None else self.stop
        return not self.swapped and (self.start, stop) == (0, self.shape[self.axis])

    @property
    def height(self) -> int:
        """Rows of the part, of all matrices of a stack together; numbers of a vector."""
        rows = list(self.shape)
        rows[self.axis] = (rows[self.axis] if self.stop is None else self.stop) - self.start
        return prod(rows[:-1]) if len(rows) > 1 else rows[0]


@dataclass(frozen=True)
class LoadedSlice:
    """A piece of a tensor that was read: `raw` has one more axis, of bytes, and may have gaps.

    Attributes
    ----------
    raw : uint8 [..., bytes of an element], or of a row's blocks.
    """

    name: str
    type: str
    raw: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class StoredSlice:
    """Rows of a tensor whose weight has several parts: `stored` as they are in it, perhaps with
    gaps.
    """

    name: str
    type: str
    stored: Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ComputedSlice:
    """A piece of a tensor whose rows are made on demand: `raw` as `LoadedSlice` has it."""

    source: Any
    piece: TensorSlice
    lazy: bool = True

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.source.name

    @property
    def type(self) -> str:
        """The tensor's layout."""
        return self.source.type

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """The piece's bytes."""
        return np.ascontiguousarray(_taken(_by_row(self.source, self.piece), self.piece))


@dataclass(frozen=True)
class DequantisedSlice:
    """A piece of a quantised tensor that crosses blocks: floats, computed on demand.

    Blocks run along the rows of the file; a transposed matrix has no codes.
    """

    source: Any
    piece: TensorSlice
    type = "F32"

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.source.name

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """The floats' bytes, as `LoadedSlice.raw`."""
        rows, columns = prod(self.piece.shape[:-1]), self.piece.shape[-1]
        layout, stored = LAYOUTS[self.source.type], getattr(self.source, "stored", None)
        if stored is None:
            weight = Weight.from_bytes(layout, self.source.raw, (rows, columns))
        else:
            parts = {name: part.reshape(rows, -1) for name, part in stored.items()}
            weight = Weight(layout, (rows, columns), parts)
        values = embedding_rows(weight, np.arange(rows), name=self.name)
        part = _taken(values.reshape(*self.piece.shape, 1), self.piece)
        return np.ascontiguousarray(part, "<f4").view(np.uint8)


def locate_piece(
    fused: FusedTensor,
    part: str,
    shapes: Mapping[str, tuple[int, ...]],
    tensor: str,
    found: Sequence[int] = (),
) -> TensorSlice:
    """Return the place of the weight `part` in a tensor of the file.

    Parameters
    ----------
    shapes : of every part, as the graph has them.
    found : shape of the file's tensor, if it is there.
    """
    stored = {name: _stored(shapes[name], name in fused.swapped) for name in fused.parts}
    axis = max(len(shapes[part]) - (1 if fused.beside else 2), 0)
    sizes = [stored[name][axis] for name in fused.parts]
    start = fused.skipped + sum(sizes[: fused.parts.index(part)])
    whole = list(stored[part])
    whole[axis] = fused.skipped + sum(sizes)
    if fused.padded and len(found) == len(whole):
        whole[axis] = max(whole[axis], found[axis])
    size = stored[part][axis]
    swapped = part in fused.swapped and len(whole) > 1
    return TensorSlice(tensor, tuple(whole), axis, start, start + size, swapped)


def _stored(shape: tuple[int, ...], swapped: bool) -> tuple[int, ...]:
    """Return a weight's shape in the file."""
    return (*shape[:-2], shape[-1], shape[-2]) if swapped and len(shape) > 1 else shape


def read_piece(tensor: Any, piece: TensorSlice) -> Any:
    """Return the piece of a tensor as a view; nothing is copied or computed yet."""
    if piece.is_whole:
        return tensor
    quantised = LAYOUTS[tensor.type].kind != "float"
    if quantised and (piece.swapped or piece.axis == len(piece.shape) - 1):
        return DequantisedSlice(tensor, piece)
    if hasattr(tensor, "make"):
        return ComputedSlice(tensor, piece)
    if hasattr(tensor, "stored"):
        rows = {n: part.reshape(*piece.shape[:-1], -1) for n, part in tensor.stored.items()}
        cut = {n: _taken(part, piece) for n, part in rows.items()}
        return StoredSlice(tensor.name, tensor.type, cut)
    return LoadedSlice(tensor.name, tensor.type, _taken(_by_row(tensor, piece), piece))


def _by_row(tensor: Any, piece: TensorSlice) -> npt.NDArray[np.uint8]:
    """Return a tensor's bytes by element, or by row where elements share bytes."""
    layout = LAYOUTS[tensor.type]
    if layout.kind == "float":
        return tensor.raw.reshape(*piece.shape, layout.block_bytes)
    return tensor.raw.reshape(*piece.shape[:-1], 1, -1)


def _taken(values: npt.NDArray[Any], piece: TensorSlice) -> npt.NDArray[Any]:
    """Return the slice of [..., elements or bytes], with its matrices transposed if swapped."""
    values = values[(slice(None),) * piece.axis + (slice(piece.start, piece.stop),)]
    return values.swapaxes(-2, -3) if piece.swapped else values


def split_name(name: str) -> tuple[str, str, str]:
    """Split a canonical name: layer (`model.layers.3.`, `mtp.layers.0.` or empty), stem, end
    (`.weight`).

    The end of a parameter that belongs to a module itself is empty.
    """
    stem, end = name, ""
    if name.endswith((".weight", ".bias")):
        stem, _, suffix = name.rpartition(".")
        end = f".{suffix}"
    for before in LAYER_PREFIXES:
        if stem.startswith(before):
            index, _, stem = stem.removeprefix(before).partition(".")
            return f"{before}{index}.", stem, end
    return "", stem, end


def fused_of(table: Sequence[FusedTensor], name: str) -> tuple[FusedTensor, str, str] | None:
    """Return the entry that has the weight of a canonical name, and the name's other parts.

    Returns
    -------
    The entry, the layer's prefix (`model.layers.3.`, or nothing) and the end (`.weight`).
    """
    prefix, stem, end = split_name(name)
    entry = next((fused for fused in table if stem in fused.parts), None)
    return None if entry is None else (entry, prefix, end)
