"""The native core, loaded with ctypes: ops, the thread pool and instruction sets.

`library()` finds the shared library that the package built, or the one that the environment
variable `CORTIQ_CPU_NATIVE` names (a build outside the package). `CORTIQ_CPU_ISA` names the
instruction set where the option `isa` does not.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from cortiq.errors import BackendError

ISAS = (
    "portable", "avx2", "avxvnni", "avx512vnni", "amx", "amx-emulated",
    "neon", "neon-dotprod", "neon-i8mm",
)  # fmt: skip
"""Instruction sets by the number the native core gives them, ascending on each kind of processor;
`amx-emulated` is for tests.
"""
NATIVE_VARIABLE = "CORTIQ_CPU_NATIVE"
ISA_VARIABLE = "CORTIQ_CPU_ISA"


class NativeOp(ctypes.Structure):
    """`cortiq_op`: kind, flags, pointers to the row count, the fault flags and the args, and up to
    how many rows one thread executes it alone.
    """

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("rows", ctypes.c_void_p),
        ("faults", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("alone_rows", ctypes.c_int32),
    )


def _path() -> Path:
    """Find the library; `BackendError` if it was never built."""
    named = os.environ.get(NATIVE_VARIABLE)
    folder = Path(__file__).parent
    candidates = [Path(named)] if named else [folder / f"_native{s}" for s in EXTENSION_SUFFIXES]
    if found := newest(candidates):
        if named is None:
            refuse_older(found, folder.parent / "native")
        return found
    raise BackendError(
        "the native kernels of cortiq-cpu were not built",
        where=named,
        hint="install a C compiler, then pip install -e backends/cpu (in a clone) builds them",
    )


def newest(candidates: Sequence[Path]) -> Path | None:
    """Return the library that was built last: others were left behind under another name."""
    built = [path for path in candidates if path.exists()]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def refuse_older(library: Path, sources: Path) -> None:
    """Raise for a library that is older than the sources beside the package, in a checkout.

    Arguments have the layout that the sources say; an older library would compute other things.
    """
    built = library.stat().st_mtime
    newer = sorted(path.name for path in sources.glob("*.[ch]") if path.stat().st_mtime > built)
    if newer:
        raise BackendError(
            f"the native kernels were built before {newer[0]} changed",
            where=str(library),
            hint="Build them again: pip install -e backends/cpu",
        )


@cache
def library() -> ctypes.CDLL:
    """Load the native core and set the signatures of its functions.

    Raises
    ------
    BackendError : no compiler built it, or it can't be loaded.
    """
    path = _path()
    try:
        native = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(
            f"the native kernels can't be loaded: {error}", where=str(path)
        ) from None
    pointer, int32, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t
    signatures = {
        "cortiq_isa_supported": (int32, [int32]),
        "cortiq_isa_best": (int32, []),
        "cortiq_pool_create": (pointer, [int32, int32, size]),
        "cortiq_pool_destroy": (None, [pointer]),
        "cortiq_run": (int32, [pointer, pointer, int32, pointer]),
        "cortiq_record_bytes": (size, [int32]),
        "cortiq_record_finish": (None, [pointer, int32]),
        "cortiq_record_exponent_at": (size, [int32]),
        "cortiq_attend_workspace": (ctypes.c_int64, [int32, int32, int32]),
        "cortiq_low_rank_workspace": (ctypes.c_int64, [int32, int32]),
        "cortiq_tail_workspace": (ctypes.c_int64, [int32, int32]),
        "cortiq_matrix_init": (ctypes.c_int64, [pointer]),
        "cortiq_matrix_pack": (int32, [pointer, int32, int32, int32, pointer, pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(native, name, None)
        if function is None:
            raise BackendError(
                f"the native library has no {name!r}: it was built from other sources",
                where=str(path),
                hint="install cortiq-cpu again, which builds it",
            )
        function.restype, function.argtypes = result, arguments
    return native


@cache
def library_hash() -> str:
    """Return the SHA-256, in hex, of the library's file."""
    return hashlib.sha256(_path().read_bytes()).hexdigest()


def supported_isas() -> tuple[str, ...]:
    """List the instruction sets with kernels that run on this machine, in `ISAS`' order."""
    return tuple(name for i, name in enumerate(ISAS) if library().cortiq_isa_supported(i))


def best_isa() -> str:
    """Return the fastest instruction set of this machine."""
    return ISAS[library().cortiq_isa_best()]


def isa_number(name: str | None) -> int:
    """Return the number of an instruction set: the named, the environment's, or the best.

    Raises
    ------
    BackendError : it can't run here.
    """
    name = name or os.environ.get(ISA_VARIABLE) or best_isa()
    if name not in supported_isas():
        raise BackendError(
            f"this machine doesn't run the instruction set {name!r}",
            hint=f"Choose from {', '.join(supported_isas())}.",
        )
    return ISAS.index(name)


class ThreadPool:
    """Threads that execute op lists; `close` ends them."""

    def __init__(self, threads: int, isa: str | None = None, scratch_bytes: int = 1 << 21) -> None:
        number = isa_number(isa)
        self.threads, self.isa = threads, ISAS[number]
        self._handle = library().cortiq_pool_create(threads, number, scratch_bytes)
        if not self._handle:
            raise BackendError(f"no {threads} threads, or no memory for them")

    def run(
        self, ops: ctypes.Array[NativeOp], count: int, nanoseconds: ctypes.Array | None = None
    ) -> None:
        """Execute the first `count` ops in order; `nanoseconds` receives each one's time."""
        failed = library().cortiq_run(self._handle, ops, count, nanoseconds)
        if failed:
            raise BackendError(f"no kernel for op {-1 - failed}, kind {ops[-1 - failed].kind}")

    def close(self) -> None:
        """End the threads and free their memory."""
        if self._handle:
            library().cortiq_pool_destroy(self._handle)
            self._handle = None


def op_list(ops: Sequence[NativeOp]) -> ctypes.Array[NativeOp]:
    """Return ops as the array that `ThreadPool.run` takes."""
    return (NativeOp * len(ops))(*ops)
