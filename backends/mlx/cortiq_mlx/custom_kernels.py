"""Custom kernels in place of array operations: compiled, tried on the device, used if they agree.

A kernel is used on a device only after it gave the bits of the array operations there, when the
device was opened. Where it does not compile, or one bit differs, the array operations stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from cortiq_mlx.kernel_sources import MATVEC, QUANTISE, TILE, KernelSource, source_of
from cortiq_mlx.library import mx

FEW_ROWS = 8
"""Rows up to which a matvec of our own takes the place of a matmul."""
GROUP = 256
_active: ContextVar[frozenset[str]] = ContextVar("cortiq_mlx kernels", default=frozenset())


def target_of(device: str) -> str | None:
    """Return the language of a device's kernels; None for none."""
    if device != "gpu":
        return None
    return "metal" if mx.metal.is_available() else "cuda"


@contextmanager
def using(names: frozenset[str]) -> Iterator[None]:
    """Use these kernels, by name, in place of array operations."""
    token = _active.set(names)
    try:
        yield
    finally:
        _active.reset(token)


def active(body: KernelSource) -> bool:
    """Check whether the kernel is in use."""
    return body.name in _active.get()


@cache
def _built(body: KernelSource, target: str) -> Any:
    header, source = source_of(body, target)
    make = mx.fast.metal_kernel if target == "metal" else mx.fast.cuda_kernel
    names = [*body.inputs], [*body.outputs]
    return make(body.name, *names, source=source, header=header)


@cache
def _nothing() -> mx.array:
    zero = mx.zeros(1, mx.uint32)
    mx.eval(zero)
    return zero


def launched(
    body: KernelSource,
    arrays: Sequence[mx.array],
    numbers: Mapping[str, int],
    groups: int,
    outputs: Sequence[tuple[tuple[int, ...], mx.Dtype]],
) -> list[mx.array]:
    """Launch a kernel and return its outputs, lazy.

    Parameters
    ----------
    arrays : its inputs but the last, which is the zero. groups : groups of threads, or threads.
    outputs : shape and type of each.
    """
    target = target_of("gpu")
    assert target is not None
    threads = body.threads or GROUP
    total = groups * threads if body.threads else -(-groups // GROUP) * GROUP
    return _built(body, target)(
        inputs=[*arrays, _nothing()],
        template=[(name, numbers[name]) for name in body.numbers],
        grid=(total, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[shape for shape, _ in outputs],
        output_dtypes=[dtype for _, dtype in outputs],
    )


def quantise(x: mx.array) -> tuple[mx.array, mx.array]:
    """Quantise each row of the last axis: q int16 and e int32."""
    rows = x.size // x.shape[-1]
    shapes = [(tuple(x.shape), mx.int16), (tuple(x.shape[:-1]), mx.int32)]
    q, e = launched(QUANTISE, [x], {"WIDTH": x.shape[-1]}, rows, shapes)
    return q, e


def matvec(weight: Any, q: mx.array) -> mx.array:
    """Sums of blocks of one part of a weight (`forms.Codes`): q [rows, width] to [rows, height]."""
    form, rows = weight.form, q.shape[0]
    height, codes = weight.scale.shape[-1], weight.codes[0]
    least = weight.scale if weight.minimum is None else weight.minimum
    scales = codes if weight.scales is None else weight.scales
    offsets = codes if weight.offsets is None else weight.offsets
    numbers = {
        "ROWS": rows,
        "PIECE": form.piece,
        "PIECES": form.pieces,
        "HEIGHT": height,
        "BLOCKS": weight.scale.shape[0],
        "SHIFT": form.shift,
        "SCALED": int(form.scaled),
        "LOW": int(form.low),
    }
    arrays = [q, codes, weight.scale, least, scales, offsets]
    (y,) = launched(MATVEC, arrays, numbers, rows * height, [((rows, height), mx.float32)])
    return y


def tiles(
    q: Any, keys: Any, values: Any, visible: mx.array, factor: float
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Compute contributions of tiles to queries: total, peak, output, top of `attention.Sums`.

    q : planes [groups, 2·queries, dim], exponents [groups, queries]. keys, values : planes
    [tiles, 64, groups, 2, dim], exponents [tiles, 64, groups].
    """
    groups, twice, dim = q.q.shape
    count, queries, width = keys.q.shape[0], twice // 2, values.q.shape[-1]
    numbers = {"GROUPS": groups, "QUERIES": queries, "DIM": dim, "WIDTH": width}
    flags = mx.broadcast_to(visible, (count, 1, queries, 64)).astype(mx.uint8)
    arrays = [q.q, q.e, keys.q, keys.e, values.q, values.e, flags, mx.array([factor])]
    shape = (count, groups, queries)
    types = [(shape, mx.float32), (shape, mx.int32), ((*shape, width), mx.float32)]
    found = launched(TILE, arrays, numbers, count * groups * queries, [*types, (shape, mx.int32)])
    total, peak, output, top = found
    return total, peak, output, top
