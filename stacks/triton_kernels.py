"""The kernels in Triton: on the first CUDA GPU, or in Triton's interpreter where there is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stacks.base import ELEMENTWISE, MATMULS, Array, NotHereError, Stack

try:
    import torch

    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    if DEVICE == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is decorated
    import triton
except ImportError as missing:
    raise NotHereError(str(missing)) from missing

from stacks import triton_attention as attend
from stacks import triton_matmul as matrix
from stacks import triton_rows as rows
from stacks import triton_scalar as scalar

BLOCK = 1024
EXACT: dict[str, Any] = {"enable_fp_fusion": False} if DEVICE == "cuda" else {}
"""Launch options that keep a·b+c two operations; the interpreter knows none."""


def upload(array: Array) -> torch.Tensor:
    """A NumPy array on the device; uint32 travels as the int32 of the same bits."""
    array = np.ascontiguousarray(array)
    array = array.view(np.int32) if array.dtype == np.uint32 else array
    return torch.from_numpy(array.copy()).to(DEVICE)


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Room for a result, poisoned, so that an element never written is found."""
    return torch.full(shape, 77, dtype=dtype, device=DEVICE)


def elementwise(function: Any, *arrays: Array) -> Array:
    """Map a scalar function of one, two or three arguments over flat arrays to float32."""
    out = empty(arrays[0].shape)
    kernel = (scalar.map1, scalar.map2, scalar.map3)[len(arrays) - 1]
    grid = (triton.cdiv(out.numel(), BLOCK),)
    kernel[grid](*map(upload, arrays), out, out.numel(), FUNCTION=function, BLOCK=BLOCK, **EXACT)
    return out.cpu().numpy()


def width(n: int) -> int:
    """The power of two that a block of n values is padded to."""
    return triton.next_power_of_2(n)


def snap(x: Array) -> tuple[Array, Array]:
    """Canonical rows and a fault flag each."""
    out, faults = empty(x.shape), empty(x.shape[:1], torch.int32)
    n = x.shape[1]
    rows.snap_rows[(len(x),)](upload(x), out, faults, n, WIDTH=width(n), **EXACT)
    return out.cpu().numpy(), faults.cpu().numpy().astype(bool)


def quantise_rows(x: Array) -> tuple[Array, Array, Array]:
    """Rows to two int8 planes and an exponent."""
    high, low = empty(x.shape, torch.int8), empty(x.shape, torch.int8)
    e, n = empty(x.shape[:1], torch.int32), x.shape[1]
    rows.quantise_rows[(len(x),)](upload(x), high, low, e, n, WIDTH=width(n), **EXACT)
    return high.cpu().numpy(), low.cpu().numpy(), e.cpu().numpy()


def canonical_sum(x: Array) -> Array:
    """The sum of each row."""
    out = empty(x.shape[:1])
    rows.canonical_sum[(len(x),)](upload(x), out, x.shape[1], **EXACT)
    return out.cpu().numpy()


def rms_norm(x: Array, weight: Array, eps: Array) -> Array:
    """RMSNorm of each row; 1/n comes from the host, rounded."""
    out, n = empty(x.shape), x.shape[1]
    inverse = float(np.float32(1) / np.float32(n))
    rows.rms_norm[(len(x),)](upload(x), upload(weight), out, n, inverse, float(eps[0]), **EXACT)
    return out.cpu().numpy()


def argmax(x: Array) -> Array:
    """The lowest index of each row's largest value."""
    out, n = empty(x.shape[:1], torch.int32), x.shape[1]
    rows.argmax[(len(x),)](upload(x), out, n, WIDTH=width(n), **EXACT)
    return out.cpu().numpy()


def rope(x: Array, cos: Array, sin: Array, *, half: bool) -> Array:
    """Rotary embedding of x [rows, heads, width] by cos and sin [rows, pairs]."""
    out, (count, heads, size) = empty(x.shape), x.shape
    rows.rope[(count * heads,)](
        upload(x), upload(cos), upload(sin), out, heads, size, cos.shape[1],
        HALF=half, WIDTH=width(size), **EXACT,
    )  # fmt: skip
    return out.cpu().numpy()


def philox(counters: Array, keys: Array) -> Array:
    """Four random words for each counter [n, 4] and key [n, 2]."""
    out, n = empty(counters.shape, torch.int32), len(counters)
    grid = (triton.cdiv(n, BLOCK),)
    rows.philox[grid](upload(counters), upload(keys), out, n, BLOCK=BLOCK, **EXACT)
    return out.cpu().numpy().view(np.uint32)


def digest(x: Array) -> Array:
    """The digest of x [n]: four words."""
    out, n = torch.zeros(4, dtype=torch.int32, device=DEVICE), x.size
    rows.digest[(triton.cdiv(n, BLOCK),)](upload(x.view(np.int32)), out, n, BLOCK=BLOCK, **EXACT)
    return out.cpu().numpy().view(np.uint32)


def matmul(
    high: Array, low: Array, e: Array, codes: Array, scale: Array, offsets: Array, minimum: Array,
    *, block: int, sub: int,
) -> Array:  # fmt: skip
    """Activation planes [M, K] times code planes [1 or 2, N, K]; offsets only if sub > 0."""
    (count, k), n = high.shape, codes.shape[1]
    out = empty((count, n))
    step = sub or min(max(triton.next_power_of_2(block), 32), 128)
    arguments = map(upload, (high, low, e, codes, scale, offsets, minimum))
    grid = (triton.cdiv(count, 16), triton.cdiv(n, 32))
    matrix.matmul[grid](
        *arguments, out, count, n, k,
        BLOCK=block, STEP=step, SUB=sub, PLANES=len(codes), BM=16, BN=32, **EXACT,
    )  # fmt: skip
    return out.cpu().numpy()


def attention(
    q_high: Array, q_low: Array, q_exponent: Array, k_high: Array, k_low: Array, k_exponent: Array,
    v_high: Array, v_low: Array, v_exponent: Array, positions: Array, sink: Array, factors: Array,
    *, window: int,
) -> Array:  # fmt: skip
    """Queries [T, H, Dk] over a cache [S, G, Dk], [S, G, Dv]; a sink of no elements means none."""
    (t, h, dk), (s, g, dv) = q_high.shape, v_high.shape
    out = empty((t, h, dv))
    planes = (q_high, q_low, q_exponent, k_high, k_low, k_exponent, v_high, v_low, v_exponent)
    others = (positions, sink, factors)
    attend.attention[(triton.cdiv(t, 16), h)](
        *map(upload, planes), *map(upload, others), out, t, s, window,
        H=h, G=g, DK=dk, DV=dv, BM=16, SINK=sink.size > 0, CAPPED=bool(factors[2]), **EXACT,
    )  # fmt: skip
    return out.cpu().numpy()


KERNELS: dict[str, Callable[..., Any]] = {
    **{name: partial(elementwise, scalar.function(name)) for name in ELEMENTWISE},
    "snap": snap,
    "quantise_rows": quantise_rows,
    "canonical_sum": canonical_sum,
    "rms_norm": rms_norm,
    "argmax": argmax,
    "rope": rope,
    "philox": philox,
    "digest": digest,
    **dict.fromkeys(MATMULS, matmul),
    "attention": attention,
}


def stacks() -> list[Stack]:
    """Triton on the one device it runs on here."""
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "interpreter"
    return [Stack("triton", device, KERNELS)]
