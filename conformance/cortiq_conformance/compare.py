"""Bit patterns compared: what is live, where the first difference is, and how far it is off."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cortiq.numerics.contract import F32
from cortiq_conformance.wants import Observations


@dataclass(frozen=True)
class Divergence:
    """The first element that differs.

    Attributes
    ----------
    level, op : of the case; `op` is the operator that computes the value.
    value : name of the value; row, element : where in it.
    expected_bits, got_bits : as hexadecimal; `ulps` is their distance for floats.
    differing, compared : elements of this value.
    remark : what the whole array looks like, where that says more.
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

    def sentence(self) -> str:
        """The divergence in one line."""
        where = f"row {self.row}" + (f", element {list(self.element)}" if self.element else "")
        distance = "" if self.ulps is None else f", {self.ulps} ulp"
        text = (
            f"{self.op}: {self.value} differs first at {where}: expected {self.expected} "
            f"({self.expected_bits}), got {self.got} ({self.got_bits}){distance}; "
            f"{self.differing} of {self.compared} differ"
        )
        return f"{text}; {self.remark}" if self.remark else text

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def live_elements(found: Observations) -> tuple[int, int]:
    """Non-zero finite elements, and distinct bit patterns among them; statuses aside."""
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
    """SHA-256 over labels, types, shapes and bits: 32 hexadecimal digits."""
    state = hashlib.sha256()
    for name in sorted(found):
        array = np.ascontiguousarray(found[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        state.update(f"{name}|{array.dtype.kind}{array.shape}|".encode())
        state.update(little.tobytes())
    return state.hexdigest()[:32]


def ordered(words: np.ndarray) -> np.ndarray:
    """Float bits as integers ordered like the numbers, int64."""
    signed = np.ascontiguousarray(words).view(np.int32).astype(np.int64)
    return np.where(signed < 0, -(signed & 0x7FFFFFFF), signed)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether type, shape and every bit agree."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def first_difference(
    expected: Observations, got: Observations, level: int, op: str
) -> Divergence | None:
    """The first label and element that differ, in the order of `expected`."""
    for name, wanted in expected.items():
        if name not in got or got[name].shape != wanted.shape:
            return _shapeless(name, wanted, got.get(name), level, op)
        if not same_bits(wanted, got[name]):
            return _difference(name, wanted, got[name], level, op)
    return None


def _shapeless(
    name: str, wanted: np.ndarray, got: np.ndarray | None, level: int, op: str
) -> Divergence:
    there = "nothing" if got is None else f"shape {list(got.shape)}"
    return Divergence(
        level, op, name, 0, (), "-", "-", f"shape {list(wanted.shape)}", there, None,
        wanted.size, wanted.size,
    )  # fmt: skip


def _difference(name: str, wanted: np.ndarray, got: np.ndarray, level: int, op: str) -> Divergence:
    a, b = (np.ascontiguousarray(x).view(np.uint32) for x in (wanted, got))
    where = np.argwhere(a != b)
    at = tuple(int(i) for i in where[0])
    floating = wanted.dtype == F32
    ulps = int(abs(ordered(a[at].reshape(1)) - ordered(b[at].reshape(1)))[0]) if floating else None
    return Divergence(
        level, op, name, at[0], at[1:], f"0x{int(a[at]):08x}", f"0x{int(b[at]):08x}",
        _shown(wanted[at]), _shown(got[at]), ulps, len(where), wanted.size,
        _remark(got) if floating else "",
    )  # fmt: skip


def _shown(value: Any) -> str:
    return f"{float(value):.9g}" if isinstance(value, np.floating) else str(int(value))


def _remark(got: np.ndarray) -> str:
    if np.isnan(got).all():
        return "every value of the backend is NaN"
    if not got.any():
        return "every value of the backend is zero"
    if np.unique(got).size == 1:
        return "every value of the backend is the same"
    return ""
