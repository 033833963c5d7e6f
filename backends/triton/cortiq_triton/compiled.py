"""Compiled kernels, by what they are launched with.

Triton's own way from a launch to the driver takes some 50 µs of Python. What decides which binary
runs are a kernel's compile-time constants and, of each argument, its type, whether it is a multiple
of 16 bytes or 1, and its width. With the same of these the binary is the same, and its launcher is
called at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime import driver

LOG = logging.getLogger("cortiq.triton")
Progress = Callable[[int, int], None]
"""Called with how many kernels are ready, and how many there are."""


class Compiled(NamedTuple):
    """A kernel on the device: its launcher, and what that takes besides the arguments."""

    run: Callable[..., None]
    function: Any
    metadata: Any
    constants: tuple[Any, ...]


class Compilations:
    """Counts kernels that Triton compiled, or found in its cache on the disk.

    Attributes
    ----------
    expected : whether compiling is in order now; a compilation that is not is logged.
    late : kernels that were compiled when it was not: a request waited for them.
    """

    def __init__(self) -> None:
        self.compiled = self.loaded = self.late = 0
        self.expected = True

    def note(self, *, src: Any, cache_hit: bool, **_: Any) -> None:
        """Count a kernel: Triton's listener."""
        if cache_hit:
            self.loaded += 1
            return
        self.compiled += 1
        if not self.expected:
            self.late += 1
            LOG.warning("kernel %s was compiled while a request waited", getattr(src, "name", src))


COMPILATIONS = Compilations()
_KNOWN: dict[Hashable, Compiled] = {}
Found = dict[Hashable, tuple[Any, tuple[Any, ...]]]
_collected: list[Found] = []
"""The launches that are being collected, while some are."""


def watch() -> None:
    """Count compilations from now on, unless somebody else listens to Triton."""
    if getattr(triton.knobs.compilation, "listener", None) is None:
        triton.knobs.compilation.listener = COMPILATIONS.note


def _kind(value: Any) -> Any:
    """Return the key that Triton specialises an argument on that is no tensor."""
    if type(value) is not int:
        return type(value)
    if value == 1:
        return 1
    if -(1 << 31) <= value < 1 << 31:
        return 0 if value & 15 else 16
    return (value & 15, value >= 1 << 63)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Sequence[Any],
    how: dict[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Launch a kernel, which is compiled if it was never launched like this.

    Parameters
    ----------
    how : compile-time constants, and options of this kernel's own. options : of its launch.
    """
    device = driver.active.get_current_device()
    tensor = torch.Tensor
    kinds = [
        (v.dtype if not v.data_ptr() & 15 else (v.dtype, False)) if type(v) is tensor else _kind(v)
        for v in arguments
    ]
    key = (id(kernel), device, *how.items(), *options.items(), *kinds)
    if _collected:
        _collect(key, kernel, arguments, how, options)
        return
    known = _KNOWN.get(key)
    if known is None:
        made = kernel[grid](*arguments, **how, **options)
        _KNOWN[key] = _compiled(made, _constants(kernel, arguments, how))
        return
    x, y, z = (*grid, 1, 1)[:3]
    stream = driver.active.get_current_stream(device)
    known.run(
        x, y, z, stream, known.function, known.metadata, None, None, None, *arguments,
        *known.constants,
    )  # fmt: skip


def _constants(kernel: Any, arguments: Sequence[Any], how: Mapping[str, Any]) -> tuple[Any, ...]:
    """The compile-time constants in the kernel's order: they follow all other parameters."""
    return tuple(how[name] for name in kernel.arg_names[len(arguments) :])


def _compiled(made: Any, constants: tuple[Any, ...]) -> Compiled:
    """A kernel of Triton's, loaded onto the current device."""
    run = made.run
    return Compiled(run, made.function, made.packed_metadata, constants)


def _collect(
    key: Hashable,
    kernel: Any,
    arguments: Sequence[Any],
    how: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Begin to compile a kernel, unless that has begun."""
    found = _collected[-1]
    if key not in _KNOWN and key not in found:
        made = kernel.warmup(*arguments, grid=(1,), **how, **options)
        found[key] = (made, _constants(kernel, arguments, how))


def workers() -> int:
    """Threads that compile at once."""
    return max(2, min(32, os.cpu_count() or 2))


def is_collecting() -> bool:
    """Whether launches are collected, not made."""
    return bool(_collected)


@contextmanager
def collecting(progress: Progress = lambda done, total: None) -> Iterator[None]:
    """Compile what is launched inside, by several threads at once, instead of launching it.

    All is ready, and loaded onto the device, when this ends.
    """
    device, expected = driver.active.get_current_device(), COMPILATIONS.expected
    COMPILATIONS.expected = True
    found: Found = {}
    pool = ThreadPoolExecutor(workers(), "compile", torch.cuda.set_device, (device,))
    try:
        with pool, _compiling(pool):
            _collected.append(found)
            try:
                yield
            finally:
                _collected.pop()
            _load(pool, found, progress)
    finally:
        COMPILATIONS.expected = expected


def _compiling(pool: ThreadPoolExecutor) -> AbstractContextManager[Any]:
    """Triton's way of compiling in threads, if this version has it."""
    mode = getattr(triton, "AsyncCompileMode", None)
    return mode(pool) if mode is not None else nullcontext()


def _load(pool: ThreadPoolExecutor, found: Found, progress: Progress) -> None:
    """Wait for kernels, and load them."""
    progress(0, len(found))
    loading = {}
    for key, (made, constants) in found.items():
        kernel = made.result() if hasattr(made, "result") else made
        loading[key] = pool.submit(_compiled, kernel, constants)
        progress(len(loading), len(found))
    for key, task in loading.items():
        _KNOWN[key] = task.result()
