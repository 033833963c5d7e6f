"""Weights on the device, in parts that a buffer holds: packed by threads, uploaded in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from cortiq.numerics.layouts import Weight, floats, unpack
from cortiq_wgpu.device import GpuDevice
from cortiq_wgpu.packing import FLOATS, GROUP, CodePacking, Words, form_of, packed
from cortiq_wgpu.staging import StagingRing

MOST_LINES = 65535
"""Lines of floats in a buffer, and fours of others: each is a workgroup of some kernel, and so many
there are in one direction."""
PACK_CODES = 1 << 23
"""Codes that a thread packs at a time: threads wait for each other between NumPy's calls."""
PACKERS = min(16, os.cpu_count() or 1)
AHEAD = PACKERS + 2
"""Pieces that are packed, or wait to be uploaded."""

PackedRows = tuple[Words, dict[str, Words]]
"""Words of codes [rows, n], and those of each stretch beside them."""
Place = tuple[Any, int]
"""A buffer, and bytes of it before the place."""


@dataclass(frozen=True)
class MatrixSlice:
    """Rows start…stop−1 of a matrix on the device.

    Attributes
    ----------
    codes, side : buffers. places : in words, where each stretch of `side` begins.
    """

    start: int
    stop: int
    codes: Any
    side: Any
    places: dict[str, int]


@dataclass(frozen=True)
class WgpuMatrix:
    """A weight [height, width] on the device.

    Attributes
    ----------
    base : its first row among those of `parts`, which other weights may lie in, too.
    """

    form: CodePacking
    height: int
    width: int
    parts: tuple[MatrixSlice, ...]
    base: int = 0

    @property
    def groups(self) -> int:
        """Groups of 32 columns."""
        return -(-self.width // GROUP)


class Uploader:
    """Puts weights on a device, a matrix at a time; all of them are there once it is closed.

    Parameters
    ----------
    limit : bytes of a buffer; larger matrices are split by rows.
    """

    def __init__(self, gpu: GpuDevice, limit: int) -> None:
        self.gpu, self.limit = gpu, limit
        self._ring = StagingRing(gpu)
        self._packers = ThreadPoolExecutor(PACKERS)
        self._under_way: deque[tuple[Future[PackedRows], list[Place]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            while self._under_way and failed is None:
                self._put_first()
        finally:
            self._packers.shutdown(cancel_futures=True)
            self._ring.close()

    def _put_first(self) -> None:
        """Upload the piece that was begun first."""
        future, places = self._under_way.popleft()
        words, side = future.result()
        for array, (buffer, offset) in zip((words, *side.values()), places, strict=True):
            self._ring.put(buffer, offset, array)

    def joined(self, weights: Mapping[str, Weight]) -> dict[str, WgpuMatrix] | None:
        """Upload weights of one format to one buffer, in order; None if they do not fit."""
        forms, rows = set(), []
        for name, weight in weights.items():
            if weight.layout.kind == "float":
                return None
            form, first = _first(weight, name)
            forms.add((form, weight.shape[1]))
            rows.append(max(_widths(first)))
        height = sum(weight.shape[0] for weight in weights.values())
        too_large = 4 * max(rows) * height > self.limit or height > 4 * MOST_LINES
        if len(forms) != 1 or too_large:
            return None
        ((form, width),) = forms
        part = self._part(weights, form, (0, height), first)
        bases = np.cumsum([0, *(weight.shape[0] for weight in weights.values())]).tolist()
        return {
            name: WgpuMatrix(form, weight.shape[0], width, (part,), base)
            for (name, weight), base in zip(weights.items(), bases, strict=False)
        }

    def matrix(self, weight: Weight, name: str) -> WgpuMatrix:
        """Upload a weight's codes and scales, or its floats."""
        height, width = weight.shape
        if weight.layout.kind == "float":
            step = min(MOST_LINES, max(1, self.limit // (4 * width)))
            parts = [
                MatrixSlice(a, b, self.gpu.uploaded(floats(weight.rows(a, b), name)), None, {})
                for a, b in _spans(height, step)
            ]
            return WgpuMatrix(FLOATS, height, width, tuple(parts))
        form, first = _first(weight, name)
        step = min(4 * MOST_LINES, max(1, self.limit // (4 * max(_widths(first)))))
        spans = _spans(height, step)
        parts = [self._part({name: weight}, form, span, first) for span in spans]
        return WgpuMatrix(form, height, width, tuple(parts))

    def _part(
        self,
        weights: Mapping[str, Weight],
        form: CodePacking,
        span: tuple[int, int],
        first: PackedRows,
    ) -> MatrixSlice:
        """Begin to pack and upload rows of a matrix, or all of several, some at a time."""
        start, stop = span
        words, side = first
        codes, beside = (self.gpu.buffer(4 * n * (stop - start)) for n in _widths(first))
        places: dict[str, int] = {}
        end = 0
        for stretch, row in side.items():
            places[stretch] = end
            end += row.shape[1] * (stop - start)
        for a, pack in _pieces(weights, form, span):
            to: list[Place] = [(codes, 4 * a * words.shape[1])]
            to += [(beside, 4 * (places[n] + a * row.shape[1])) for n, row in side.items()]
            self._under_way.append((self._packers.submit(pack), to))
            if len(self._under_way) > AHEAD:
                self._put_first()
        return MatrixSlice(start, stop, codes, beside, places)


def _first(weight: Weight, name: str) -> tuple[CodePacking, PackedRows]:
    """Return a weight's format, and its first row as it is packed."""
    fields = unpack(weight.rows(0, 1), name)
    form = form_of(weight, fields)
    return form, packed(form, fields)


def _widths(first: PackedRows) -> tuple[int, int]:
    """Count a row's words of codes, and those beside them."""
    words, side = first
    return words.shape[1], sum(row.shape[1] for row in side.values())


def _pieces(
    weights: Mapping[str, Weight], form: CodePacking, span: tuple[int, int]
) -> Iterator[tuple[int, Callable[[], PackedRows]]]:
    """Yield the places of a few rows at a time in their part, and how they are packed."""
    place = 0
    for name, weight in weights.items():
        first, last = span if len(weights) == 1 else (0, weight.shape[0])
        step = max(1, PACK_CODES // max(1, weight.shape[1]))
        for a, b in _spans(last - first, step):
            yield place + a, partial(_pack, form, weight.rows(first + a, first + b), name)
        place += last - first


def _pack(form: CodePacking, rows: Weight, name: str) -> PackedRows:
    return packed(form, unpack(rows, name))


def _spans(count: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, step):
        yield start, min(start + step, count)
