"""`NystromAttend` in C for the backend `cpu`, where the package was built with a compiler."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from cortiq_bounded.ops import NystromAttend

FUNCTION = "cortiq_bounded_nystrom"


class NystromConstants(ctypes.Structure):
    """`options` of nystrom.c."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in (
            "heads", "kv", "dim", "vd", "seal", "window", "sinks", "exact", "stride", "reseal",
            "used", "fm",
        )),
        ("scale", ctypes.c_float),
        ("size", ctypes.c_int64),
    )  # fmt: skip


def constants(op: NystromAttend) -> NystromConstants:
    """Return what the function reads of an operator."""
    (size,) = op.slot_kinds()["state"].shape  # type: ignore[attr-defined]
    return NystromConstants(
        op.heads, op.kv_heads, op.dim, op.value_dim, op.seal, op.window, op.sinks, op.exact,
        op.stride, op.reseal, op.used, op.rectifier == "fm", op.scale, size,
    )  # fmt: skip


def library() -> Path | None:
    """Return the compiled function's library; None where the package has none."""
    found = sorted(Path(__file__).parent.glob("_nystrom*.so"))
    return found[0] if found else None


@cache
def _loaded(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def nystrom_kernel() -> Any:
    """Return the kernel for `cpu`; None without a library."""
    from cortiq_cpu import NativeKernel

    path = library()
    if path is None:
        return None
    return NativeKernel(getattr(_loaded(path), FUNCTION), constants, steps=True)
