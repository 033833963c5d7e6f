"""Answers of many rows as few arrays: what neighbouring rows brought that want the same values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from cortiq.backend.admission import drawn_token
from cortiq.backend.batch import Named, Want
from cortiq.ir import Type

Brought = Mapping[Want, Any]
"""Outputs of a row, by want."""
NOTHING: Brought = MappingProxyType({})


class Columns(Sequence[Brought]):
    """Rows that brought the same values, each made when somebody looks at it.

    Attributes
    ----------
    arrays : by want, which names a value: [rows, ...].
    """

    def __init__(self, arrays: Mapping[Want, npt.NDArray[Any]]) -> None:
        self.arrays = arrays
        lengths = {len(array) for array in arrays.values()}
        if len(lengths) != 1 or not all(type(want) is Named for want in arrays):
            raise ValueError(f"columns of {sorted(lengths)} rows, for {[*arrays]}")
        (self._count,) = lengths

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Brought: ...
    @overload
    def __getitem__(self, index: slice) -> Columns: ...
    def __getitem__(self, index: int | slice) -> Brought | Columns:
        found = {want: array[index] for want, array in self.arrays.items()}
        return Columns(found) if isinstance(index, slice) else found


class Answered(Sequence[Brought]):
    """Rows of a batch with what they brought, sequence by sequence.

    Parameters
    ----------
    count : of rows. parts : ranges of rows with what these brought, ascending; others bring
        nothing.
    """

    def __init__(self, count: int, parts: Sequence[tuple[range, Sequence[Brought]]]) -> None:
        self._count, self.parts = count, [part for part in parts if part[0]]
        self._starts = [rows.start for rows, _ in self.parts]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Brought: ...
    @overload
    def __getitem__(self, index: slice) -> list[Brought]: ...
    def __getitem__(self, index: int | slice) -> Brought | list[Brought]:
        if isinstance(index, slice):
            return [self[at] for at in range(self._count)[index]]
        at = range(self._count)[index]
        number = bisect_right(self._starts, at) - 1
        if number < 0:
            return NOTHING
        rows, found = self.parts[number]
        return found[at - rows.start] if at in rows else NOTHING

    def columns(self, rows: range) -> Columns | None:
        """Return the columns of neighbouring rows of a part that is columns."""
        number = bisect_right(self._starts, rows.start) - 1
        part, found = self.parts[number] if number >= 0 else (range(0), ())
        if not isinstance(found, Columns) or rows.stop > part.stop:
            return None
        return found[rows.start - part.start : rows.stop - part.start]


def answered(
    count: int, parts: Sequence[tuple[range, Sequence[Brought]]]
) -> list[Brought] | Answered:
    """Return what the rows of a batch brought, as a list unless some of it is columns.

    Parameters
    ----------
    count, parts : see `Answered`; in any order.
    """
    if any(isinstance(found, Columns) for _, found in parts):
        return Answered(count, sorted(parts, key=lambda part: part[0].start))
    brought = [NOTHING] * count
    for rows, found in parts:
        brought[rows.start : rows.stop] = found
    return brought


def columns_of(rows: Sequence[Brought], part: range) -> Columns | None:
    """Return what neighbouring rows of a batch brought as columns; None where they are not."""
    return rows.columns(part) if isinstance(rows, Answered) else None


def column(rows: Sequence[Brought], part: range, want: Want) -> npt.NDArray[Any]:
    """Return what neighbouring rows brought for a want, an array [rows, ...]."""
    found = columns_of(rows, part)
    if found is not None:
        return found.arrays[want]
    return np.stack([np.asarray(rows[at][want]) for at in part])


def drawn_tokens(rows: Sequence[Brought]) -> Sequence[int | None]:
    """Return the token that each row drew, for rows of the next batch that continue it."""
    if not isinstance(rows, Answered):
        return [drawn_token(wants) for wants in rows]
    drawn: list[int | None] = [None] * len(rows)
    for part, found in rows.parts:
        if not isinstance(found, Columns):
            drawn[part.start : part.stop] = [drawn_token(wants) for wants in found]
    return drawn


def named_alike(
    asked: Collection[tuple[Want, ...]], values: Mapping[str, Type]
) -> tuple[Want, ...]:
    """Return the wants of all rows, where they are the same and name arrays of numbers; else none.

    Parameters
    ----------
    asked : the different wants of rows. values : types of the graph's values, by name.
    """
    (first, *others) = asked
    good = (type(want) is Named and values[want.name].dtype != "q16" for want in first)
    return first if not others and all(good) else ()
