"""Compare bit patterns: live elements, the first difference, and its size."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cortiq.backend import Status
from cortiq.numerics.contract import F32, SMALLEST_EXPONENT
from cortiq_conformance.outputs import Observations

MOST_STRETCHES = 8
"""Stretches of differing rows that a sentence names; a report holds all."""


@dataclass(frozen=True)
class Divergence:
    """The first element that differs.

    Attributes
    ----------
    level, op : of the case; `op` is the operator that computes the value.
    value : name of the value; row, element : where in it.
    expected_bits, got_bits : as hexadecimal; `ulps` is their distance for floats.
    differing, compared : elements of this value.
    rows : the rows that differ, as (first, last) of each stretch.
    remark : a description of the whole array, if it helps.
    message : the sentence, where there are no two elements to show.
    dubious : whether it is untypical of the case's family; then the operator is blamed.
    """

    level: int
    op: str
    value: str
    row: int
    element: tuple[int, ...]
    expected_bits: str
    got_bits: str
    expected: str
    got: str
    ulps: int | None
    differing: int
    compared: int
    remark: str = ""
    message: str = ""
    dubious: bool = False
    rows: tuple[tuple[int, int], ...] = ()

    def remarked(self, remark: str) -> Divergence:
        """Return the divergence with one more remark."""
        return replace(self, remark=f"{self.remark}; {remark}" if self.remark else remark)

    def sentence(self) -> str:
        """Describe the divergence in one line."""
        where = f"row {self.row}" + (f", element {list(self.element)}" if self.element else "")
        distance = "" if self.ulps is None else f", {self.ulps} ulp"
        text = (
            f"{self.op}: {self.message}"
            if self.message
            else (
                f"{self.op}: {self.value} differs first at {where}: expected {self.expected} "
                f"({self.expected_bits}), got {self.got} ({self.got_bits}){distance}; "
                f"{self.differing} of {self.compared} differ{self._where()}"
            )
        )
        return f"{text}; {self.remark}" if self.remark else text

    def _where(self) -> str:
        """Return the rows that differ, if there are several."""
        ranges = [f"{a}" if a == b else f"{a}-{b}" for a, b in self.rows[:MOST_STRETCHES]]
        more = sum(b - a + 1 for a, b in self.rows[MOST_STRETCHES:])
        ranges += [f"{more} more"] if more else []
        if ranges in ([], [str(self.row)]):
            return ""
        return (
            f" in rows {', '.join(ranges[:-1])} and {ranges[-1]}"
            if ranges[1:]
            else (f" in rows {ranges[0]}")
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the divergence for JSON."""
        return asdict(self)


def contiguous_ranges(places: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Return the first and last of each run of consecutive places in ascending order."""
    cuts = np.flatnonzero(np.diff(places) > 1) + 1
    return tuple((int(part[0]), int(part[-1])) for part in np.split(places, cuts) if len(part))


def live_elements(found: Observations) -> tuple[int, int]:
    """Count non-zero finite elements, and distinct bit patterns among them; statuses excluded."""
    patterns = []
    for name, array in found.items():
        if name.endswith("outcome"):
            continue
        words = np.ascontiguousarray(array).view(np.uint32).reshape(-1)
        if array.dtype == F32:
            magnitude = words & np.uint32(0x7FFFFFFF)
            words = words[(magnitude > 0) & (magnitude < np.uint32(0x7F800000))]
        patterns.append(words)
    joined = np.concatenate(patterns) if patterns else np.zeros(0, np.uint32)
    return joined.size, int(np.unique(joined).size)


def digest_of(found: Observations) -> str:
    """Return the SHA-256 over labels, types, shapes and bits: 32 hexadecimal digits."""
    state = hashlib.sha256()
    for name in sorted(found):
        array = np.ascontiguousarray(found[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        state.update(f"{name}|{array.dtype.kind}{array.shape}|".encode())
        state.update(little.tobytes())
    return state.hexdigest()[:32]


def ordered_bits(words: np.ndarray) -> np.ndarray:
    """Return float bits as integers ordered like the numbers, int64."""
    signed = np.ascontiguousarray(words).view(np.int32).astype(np.int64)
    return np.where(signed < 0, -(signed & 0x7FFFFFFF), signed)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether type, shape and every bit agree."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def first_difference(
    expected: Observations, got: Observations, level: int, op: str
) -> Divergence | None:
    """Return the first label and element that differ, in the order of `expected`."""
    for name, wanted in expected.items():
        there = got.get(name)
        if there is None or (there.shape, there.dtype) != (wanted.shape, wanted.dtype):
            return _shapeless(name, wanted, there, level, op)
        if not same_bits(wanted, got[name]):
            return _difference(name, wanted, got[name], level, op)
    return None


def _shapeless(
    name: str, wanted: np.ndarray, got: np.ndarray | None, level: int, op: str
) -> Divergence:
    there, expected = "is missing", str(list(wanted.shape[1:]))
    if got is not None and got.dtype != wanted.dtype:
        there, expected = f"is {got.dtype}", str(wanted.dtype)
    elif got is not None and got.shape[1:] == wanted.shape[1:]:
        there, expected = f"has {len(got)} rows", str(len(wanted))
    elif got is not None:
        there = f"has shape {list(got.shape[1:])}"
    return Divergence(
        level, op, name, 0, (), "-", "-", expected, there, None, wanted.size, wanted.size,
        message=f"{name} {there}, expected {expected}", dubious=True,
    )  # fmt: skip


def _difference(name: str, wanted: np.ndarray, got: np.ndarray, level: int, op: str) -> Divergence:
    a, b = (np.ascontiguousarray(x).view(np.uint32) for x in (wanted, got))
    where = np.argwhere(a != b)
    at = tuple(int(i) for i in where[0])
    floating = wanted.dtype == F32
    ulps = (
        int(abs(ordered_bits(a[at].reshape(1)) - ordered_bits(b[at].reshape(1)))[0])
        if floating
        else None
    )
    message = _outcome(name, wanted, got) if name.endswith("outcome") else ""
    dead = _dead(got) if floating else ""
    remarks = [dead, _unsnapped(wanted[a != b], got[a != b]) if floating else ""]
    rows = np.unique(where[:, 0])
    if not dead and len(wanted) > 1 and len(rows) == 1:
        remarks.append(f"only row {at[0]} of {len(wanted)} differs")
    return Divergence(
        level, op, name, at[0], at[1:], f"0x{int(a[at]):08x}", f"0x{int(b[at]):08x}",
        format_number(wanted[at]), format_number(got[at]), ulps, len(where), wanted.size,
        "; ".join(filter(None, remarks)), message, bool(dead or message),
        contiguous_ranges(rows),
    )  # fmt: skip


def _outcome(name: str, wanted: np.ndarray, got: np.ndarray) -> str:
    statuses = [Status.COMPLETED, Status.DECLINED, Status.FAILED, Status.LOST]
    expected, there = (statuses[int(x[0])].value for x in (wanted, got))
    why = " (a value was NaN, infinite, or 2^50 or more)" if there == Status.FAILED.value else ""
    return f"{name}: the sequence {there}{why}, expected {expected}"


def format_number(value: Any) -> str:
    """Format a number as reports show it."""
    return f"{float(value):.9g}" if isinstance(value, np.floating) else str(int(value))


def _dead(got: np.ndarray) -> str:
    if np.isnan(got).all():
        return "every value of the backend is NaN"
    if not got.any():
        return "every value of the backend is zero"
    if got.size > 1 and np.unique(got).size == 1:
        return "every value of the backend is the same"
    return ""


def _unsnapped(wanted: np.ndarray, got: np.ndarray) -> str:
    """Describe differing values that are small or −0 where the contract gives zero."""
    small = (np.abs(got) < F32(2.0**SMALLEST_EXPONENT)) & (got.view(np.uint32) != 0)
    if (small & (wanted == 0)).all():
        return "every wrong value is below 2^-40, or -0, where 0 is right: not snapped?"
    return ""
