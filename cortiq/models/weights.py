"""Weights from the tensors of a file: views of their codes, or floats converted when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, RequestError
from cortiq.numerics.layouts import LAYOUTS, Weight, floats
from cortiq.numerics.parts_by_rows import PartsByRows
from cortiq.numerics.weights import TARGETS, convert, target_layout

Parts = Mapping[str, npt.NDArray[Any]]

FLOAT_TARGET = "f32"
"""The format that only float matrices are converted to: codes are exact as they are."""


class StoredTensor(Protocol):
    """A tensor in the file's own codes: `formats.checkpoint.RawTensor`."""

    @property
    def name(self) -> str:
        """Name in the file."""

    @property
    def type(self) -> str:
        """Storage type as GGUF names it."""

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """Bytes, rows in order; the last axis may be split."""


class LazyParts(PartsByRows):
    """Parts of a weight that are made on first use, and then kept.

    Loading a model reads nothing; a tensor with NaN or infinity is named when it is converted.

    Parameters
    ----------
    make : makes all. make_rows : makes those of some rows; None where only all can be made.
    """

    def __init__(
        self, make: Callable[[], Parts], make_rows: Callable[[int, int], Parts] | None = None
    ) -> None:
        self._make, self._make_rows, self._lock = make, make_rows, Lock()
        self._parts: Parts | None = None
        self.in_passing = False

    def once(self) -> LazyParts:
        """Return the same parts, rows of which are made whenever they are asked for."""
        if self._parts is not None or self._make_rows is None:
            return self
        found = LazyParts(self._make, self._make_rows)
        found.in_passing = True
        return found

    def rows(self, start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        """Make the parts of some rows."""
        assert self._make_rows is not None
        return dict(self._make_rows(start, stop))

    def _made(self) -> Parts:
        with self._lock:
            if self._parts is None:
                self._parts = self._make()
        return self._parts

    def __getitem__(self, key: str) -> npt.NDArray[Any]:
        return self._made()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())


class MadeRows:
    """Rows of bytes that are made whenever they are asked for, and not kept.

    It takes the place of an array [rows, bytes of a row] among a weight's parts: slices and picked
    rows of it are arrays.
    """

    def __init__(
        self, make: Callable[[int, int], npt.NDArray[np.uint8]], shape: tuple[int, int]
    ) -> None:
        self._make, self.shape = make, shape
        self.nbytes = shape[0] * shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice | npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
        if isinstance(key, slice):
            start, stop, _ = key.indices(len(self))
            return self._make(start, max(start, stop))
        rows = [self._make(int(i), int(i) + 1) for i in key]
        return np.concatenate(rows) if rows else self._make(0, 0)

    def reshape(self, *shape: int) -> npt.NDArray[np.uint8]:
        """Make all rows, in another shape."""
        return self[:].reshape(*shape)


def _rows_of(parts: Sequence[Any]) -> Callable[[int, int], npt.NDArray[np.uint8]]:
    """Return rows of several arrays, or `MadeRows`, one below the other."""
    ends = np.cumsum([0, *(len(part) for part in parts)])

    def make(start: int, stop: int) -> npt.NDArray[np.uint8]:
        found = [
            part[max(start - first, 0) : stop - first]
            for part, first, end in zip(parts, ends, ends[1:], strict=False)
            if start < end and stop > first
        ]
        return np.concatenate(found) if found else np.asarray(parts[0][:0])

    return make


def _converted(
    tensors: Sequence[StoredTensor],
    sizes: Sequence[tuple[int, int]],
    target: str,
    start: int,
    stop: int,
) -> dict[str, npt.NDArray[Any]]:
    """Return parts of rows of tensors in a format, the rows of all one after the other."""
    done: list[Parts] = []
    for index, (tensor, size) in enumerate(zip(tensors, sizes, strict=True)):
        first, last = (min(max(n, 0), size[0]) for n in (start, stop))
        start, stop = start - size[0], stop - size[0]
        if first < last or (index == len(tensors) - 1 and not done):
            rows = raw_weight(tensor, size).rows(first, last)
            done.append(convert(rows, target, tensor.name).parts)
    if len(done) == 1:
        return dict(done[0])
    return {key: np.concatenate([parts[key] for parts in done]) for key in done[0]}


def matrix_weight(
    tensors: Sequence[StoredTensor],
    shape: tuple[int, ...],
    target: str,
    requantise: bool = False,
    rows: Sequence[int] = (),
) -> Weight:
    """Make a matrix, or a stack of them, as a `Weight` of E·N rows.

    The rows of several tensors lie one after the other: so many of each, or equally many.

    F32, F16 and BF16 become `target`. Other layouts stay in the file's codes and are not copied,
    unless `requantise` asks for `target` of them, too; `f32` leaves them in any case.
    """
    if target not in TARGETS:
        hint = f"one of {', '.join(TARGETS)}"
        raise RequestError(f"no weight format is called {target!r}", where="format", hint=hint)
    count, columns = prod(shape[:-1]), shape[-1]
    layouts = {LAYOUTS[t.type] for t in tensors}
    kinds, floating = {w.name for w in layouts}, all(w.kind == "float" for w in layouts)
    requantise = requantise and target != FLOAT_TARGET
    if len(kinds) > 1 and not (floating or requantise):
        message = f"experts of one stack are in several layouts: {', '.join(sorted(kinds))}"
        raise FormatError(message, where=tensors[0].name)
    sizes = [(n, columns) for n in rows or [count // len(tensors)] * len(tensors)]
    layout = target_layout(target, columns)
    exact = layouts == {layout} or (target == FLOAT_TARGET and len(kinds) == 1)
    if exact or not (floating or requantise):
        return _stacked([raw_weight(t, size) for t, size in zip(tensors, sizes, strict=True)])

    def make_rows(start: int, stop: int) -> Parts:
        return _converted(tensors, sizes, target, start, stop)

    return Weight(layout, (count, columns), LazyParts(lambda: make_rows(0, count), make_rows))


def _stacked(weights: Sequence[Weight]) -> Weight:
    """Return the rows of all weights one after the other; a single one stays a view.

    Rows that are asked for are views of the file where they are of one weight; all of them are
    put together for callers only that ask for whole parts.
    """
    if len(weights) == 1:
        return weights[0]
    first, rows = weights[0], sum(w.shape[0] for w in weights)
    size = (rows, first.shape[1])
    if any(isinstance(part, MadeRows) for w in weights for part in _held(w)):
        arrays = [w.parts["raw"] for w in weights]
        made: Any = MadeRows(_rows_of(arrays), (rows, arrays[0].shape[1]))
        return Weight(first.layout, size, {"raw": made})

    def make_rows(start: int, stop: int) -> Parts:
        return _rows_of_weights(weights, start, stop)

    parts = LazyParts(lambda: make_rows(0, rows), make_rows)
    parts.in_passing = True
    return Weight(first.layout, size, parts)


def _held(weight: Weight) -> Sequence[Any]:
    """Return the parts of a weight, but none that would have to be made."""
    return () if isinstance(weight.parts, LazyParts) else tuple(weight.parts.values())


def _rows_of_weights(weights: Sequence[Weight], start: int, stop: int) -> Parts:
    """Return the parts of some rows of weights that lie one below the other."""
    found: list[Parts] = []
    first = 0
    for weight in weights:
        low, high = (min(max(n - first, 0), weight.shape[0]) for n in (start, stop))
        if low < high or (weight is weights[-1] and not found):
            found.append(weight.rows(low, high).parts)
        first += weight.shape[0]
    if len(found) == 1:
        return found[0]
    return {name: np.concatenate([parts[name] for parts in found]) for name in found[0]}


def vector_weight(
    tensors: Sequence[StoredTensor], shape: tuple[int, ...], rows: Sequence[int] = ()
) -> Weight:
    """Make a float32 `Weight` (1, n), or (N, K) taps, from a small float tensor.

    The rows of several tensors, or of a vector its numbers, lie one after the other: so many of
    each, or equally many.
    """
    is_vector = len(shape) == 1
    size = (1, shape[0]) if is_vector else (prod(shape[:-1]), shape[-1])
    if len(tensors) == 1:
        return _float_weight(tensors[0], size)
    counts = rows or [size[is_vector] // len(tensors)] * len(tensors)
    parts = [
        floats(_float_weight(tensor, (1, count) if is_vector else (count, size[1])), tensor.name)
        for tensor, count in zip(tensors, counts, strict=True)
    ]
    return Weight.from_floats(np.concatenate(parts, axis=-1 if is_vector else 0))


def _float_weight(tensor: StoredTensor, size: tuple[int, int]) -> Weight:
    """Return a float tensor of the file in float32."""
    weight = raw_weight(tensor, size)
    if weight.layout.kind != "float":
        message = f"is quantised ({tensor.type}), but a graph takes it as floats"
        raise FormatError(message, where=tensor.name)
    if weight.layout is LAYOUTS["f32"]:
        return weight
    return Weight.from_floats(floats(weight, tensor.name))


def raw_weight(tensor: Any, shape: tuple[int, int]) -> Weight:
    """Return the tensor's bytes as a weight in the file's layout; copies are made on use."""
    layout = LAYOUTS[tensor.type]
    if layout.kind == "parts":
        rows = {name: part.reshape(shape[0], -1) for name, part in tensor.stored.items()}
        return Weight(layout, shape, rows)
    size = (shape[0], layout.row_bytes(shape[1]))
    if hasattr(tensor, "make") and layout.kind != "float":  # a matrix that a folder holds in parts
        made: Any = MadeRows(tensor.make, size)
        return Weight(layout, shape, {"raw": made})
    if getattr(tensor, "lazy", False):
        return Weight(layout, shape, LazyParts(lambda: {"raw": tensor.raw.reshape(size)}))
    raw = tensor.raw
    if raw.flags.c_contiguous:
        return Weight.from_bytes(layout, raw, shape)
    return Weight(layout, shape, LazyParts(lambda: {"raw": raw.reshape(size)}))
