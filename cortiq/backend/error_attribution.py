"""Attribution of errors: what a backend raises becomes an error that names the backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cortiq.backend import Executable
from cortiq.errors import BackendError, CortiqError

OWN_BACKENDS = frozenset({"reference", "cpu"})
"""Backends of this project: after a failure the weights are looked at first, not the backend."""


@contextmanager
def attributed_to(backend: str) -> Iterator[None]:
    """Turn whatever a call of a backend raises into a BackendError, with the first one as cause.

    Our own errors say already what they are about, and a lack of memory is nobody's mistake.
    """
    try:
        yield
    except (CortiqError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        sentence = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise BackendError(f"backend {backend} failed: {sentence}") from error


def backend_names(executable: Executable) -> str:
    """Name the backends that compute an executable."""
    return ", ".join(dict.fromkeys(executable.placement.values()))


def failure_hint(executable: Executable) -> str:
    """Return the hint for a value outside the contract's domain: the weights, or the backend."""
    strangers = [n for n in dict.fromkeys(executable.placement.values()) if n not in OWN_BACKENDS]
    if not strangers:
        return "`cortiq inspect MODEL --check` looks for damaged weights"
    backend = strangers[0].partition("/")[0]  # NAME/KERNEL where a kernel was given to it
    return f"`cortiq conform --backend {backend}` says whether that backend is right"
