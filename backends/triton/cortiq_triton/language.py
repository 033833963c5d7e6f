"""Decorators, launches and constants that all kernels are written with.

A `kernel` is launched over a grid; a `device` function is called by kernels. In Triton's
interpreter device functions stay plain Python, since it would patch its language anew at each call
of a decorated one. Every launch keeps a·b + c two operations (`enable_fp_fusion=False`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.target_info import cuda_capability_geq

from cortiq_triton import compiled

Tensor: TypeAlias = tl.tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
"""Whether kernels run in Triton's interpreter: what the variable says when this is imported."""

VARYING = ("M", "R", "rows", "most", "mark", "until")
"""Parameters that count rows, or tiles: no binary is made for one of their values."""
kernel: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=VARYING)
device: Callable[[Callable[..., Any]], Any] = (lambda f: f) if INTERPRETED else triton.jit


def _without_overflow_checks() -> None:
    """Interpret each integer operation once: checks that nobody reads take twice as long again."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


if INTERPRETED:
    _without_overflow_checks()
else:
    compiled.watch()


LARGEST_TILE = 1 << 20
"""Elements that Triton lets a tensor of a program have."""


def helpers_are_interpreted() -> bool:
    """Whether Triton's own functions agree: they do not if triton was imported before the variable
    was set.
    """
    return type(tl.zeros).__name__ == "InterpretedFunction"


def constant(value: Any) -> Any:
    """A number or tuple that device functions name: plain in the interpreter, as they are."""
    return value if INTERPRETED else tl.constexpr(value)


def exact(values: Iterable[Any]) -> Any:
    """Float32 constants as a compile-time tuple; as Python floats they are the same numbers."""
    return constant(tuple(map(float, values)))


def signed(word: int) -> int:
    """A 32-bit word as the int32 of the same bits."""
    return word - (1 << 32) if word >> 31 else word


@triton.jit
def _open() -> None:
    if cuda_capability_geq(9, 0):
        gdc_launch_dependents()


@triton.jit
def _join() -> None:
    if cuda_capability_geq(9, 0):
        gdc_wait()


@triton.jit
def _began() -> None:
    _open()
    _join()


def _in_turn() -> None:
    """Launches of the interpreter follow one another."""


let_next: Callable[[], None] = _in_turn if INTERPRETED else _open
"""Let the next launch start, if it is an early one, once every program has come here."""
join: Callable[[], None] = _in_turn if INTERPRETED else _join
"""Wait for the launches before this one, which is an early one."""
begin: Callable[[], None] = _in_turn if INTERPRETED else _began
"""First thing of a kernel that is launched `early`: let the next early one come, then wait for the
launches before this one. Before it such a kernel may read weights, and nothing that a launch
writes. Every program of an early launch must call it: what comes later relies on its having waited.
"""


def ceil_div(n: int, d: int) -> int:
    """⌈n/d⌉."""
    return -(-n // d)


def pow2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


@cache
def starts_early() -> bool:
    """Whether the device knows early launches."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


@cache
def shared_memory() -> int:
    """Bytes of shared memory that a program may have."""
    if INTERPRETED or not torch.cuda.is_available():
        return 227 << 10
    device = torch.cuda.current_device()
    return int(triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"])


@cache
def processors() -> int:
    """Multiprocessors of the device."""
    if INTERPRETED or not torch.cuda.is_available():
        return 1
    device = torch.cuda.current_device()
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def launch(
    which: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    warps: int = 4,
    stages: int = 3,
    early: bool = False,
    registers: int = 0,
    **how: Any,
) -> None:
    """Run a kernel; `how` are its compile-time constants. An empty grid runs nothing.

    registers : of a thread at most; 0 for as many as the compiler likes.

    early : it may start while the launch before it ends (CUDA's programmatic dependent launch,
        compute capability 9.0 and later); the kernel calls `begin`.
    """
    if 0 in grid:
        return
    if INTERPRETED:
        which[grid](*arguments, **how)
        return
    options = {
        "num_warps": warps,
        "num_stages": stages,
        "enable_fp_fusion": False,
        "launch_pdl": early and starts_early(),
    }
    if registers:
        options["maxnreg"] = registers
    compiled.launch(which, grid, arguments, how, options)
