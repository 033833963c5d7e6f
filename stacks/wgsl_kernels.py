"""The kernels in WGSL, on every WebGPU adapter wgpu finds (Vulkan, Metal, Direct3D)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stacks.base import MATMULS, Array, NotHereError, Stack

try:
    import wgpu

    from stacks import wgsl_products as products
    from stacks.wgsl_device import Device, narrow, source
except ImportError as missing:
    raise NotHereError(str(missing)) from missing

F32 = np.float32

ELEMENTWISE = {
    "add": "add(f(a[i]), f(b[i]))",
    "multiply": "multiply(f(a[i]), f(b[i]))",
    "divide": "divide(f(a[i]), f(b[i]))",
    "sqrt": "square_root(f(a[i]))",
    "rint": "rint(f(a[i]))",
    "to_float": "f32(i32(a[i]))",
    "exp": "exp_(f(a[i]))",
    "exp2g": "exp2g(f(a[i]))",
    "sigmoid": "sigmoid(f(a[i]))",
    "silu": "silu(f(a[i]))",
    "gelu_tanh": "gelu_tanh(f(a[i]))",
    "tanh": "tanh_(f(a[i]))",
    "log": "log_(f(a[i]))",
    "softplus": "softplus(f(a[i]))",
    "round_two_planes": "round_two_planes(i32(a[i]), i32(b[i]))",
    "round_three_planes": "round_three_planes(i32(a[i]), i32(b[i]), i32(c[i]))",
    "round_int32": "round_int32(i32(a[i]))",
}
"""Each elementwise kernel as an expression of its input words."""

MAP = """
fn f(b: u32) -> f32 {{ return bitcast<f32>(b); }}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {{
  let i = id.x + id.y * groups.x * 256u;
  if (i < p[1]) {{ out[i] = bitcast<u32>({expression}); }}
}}
"""


def elementwise(device: Device, expression: str, *arrays: Array) -> Array:
    """Map an expression over flat arrays to float32."""
    n = arrays[0].size
    inputs = dict(zip("abc", arrays, strict=False))
    body = MAP.format(expression=expression)
    (out,) = device.dispatch(body, (n,), inputs, {"out": (arrays[0].shape, F32)}, -(-n // 256))
    return out


def snap(device: Device, x: Array) -> tuple[Array, Array]:
    """Canonical rows and a fault flag each."""
    outputs = {"out": (x.shape, F32), "faults": (x.shape[:1], np.int32)}
    out, faults = device.dispatch(source("snap"), (x.shape[1],), {"x": x}, outputs, len(x))
    return out, faults.astype(bool)


def quantise_rows(device: Device, x: Array) -> tuple[Array, Array, Array]:
    """Rows to two int8 planes and an exponent."""
    outputs = dict.fromkeys(("high", "low"), (x.shape, np.int32))
    outputs["exponent"] = (x.shape[:1], np.int32)
    body = source("quantise_rows")
    high, low, e = device.dispatch(body, (x.shape[1],), {"x": x}, outputs, len(x))
    return narrow(high), narrow(low), e


def canonical_sum(device: Device, x: Array) -> Array:
    """The sum of each row."""
    body = source("fold") + source("canonical_sum")
    (out,) = device.dispatch(body, (x.shape[1],), {"x": x}, {"out": (x.shape[:1], F32)}, len(x))
    return out


def rms_norm(device: Device, x: Array, weight: Array, eps: Array) -> Array:
    """RMSNorm of each row; 1/n comes from the host, rounded."""
    body = source("fold") + source("rms_norm")
    parameters = (x.shape[1], F32(1) / F32(x.shape[1]), eps[0])
    inputs = {"x": x, "weight": weight}
    (out,) = device.dispatch(body, parameters, inputs, {"out": (x.shape, F32)}, len(x))
    return out


def argmax(device: Device, x: Array) -> Array:
    """The lowest index of each row's largest value."""
    outputs = {"out": (x.shape[:1], np.int32)}
    (out,) = device.dispatch(source("argmax"), (x.shape[1],), {"x": x}, outputs, len(x))
    return out


def rope(device: Device, x: Array, cos: Array, sin: Array, *, half: bool) -> Array:
    """Rotary embedding of x [rows, heads, width] by cos and sin [rows, pairs]."""
    parameters = (x.size, x.shape[1], x.shape[2], cos.shape[1], int(half))
    inputs = {"x": x, "cos_table": cos, "sin_table": sin}
    groups = -(-x.size // 256)
    (out,) = device.dispatch(source("rope"), parameters, inputs, {"out": (x.shape, F32)}, groups)
    return out


def philox(device: Device, counters: Array, keys: Array) -> Array:
    """Four random words for each counter [n, 4] and key [n, 2]."""
    inputs, outputs = {"counters": counters, "keys": keys}, {"out": (counters.shape, np.uint32)}
    groups = -(-len(keys) // 256)
    (out,) = device.dispatch(source("philox"), (len(keys),), inputs, outputs, groups)
    return out


def digest(device: Device, x: Array) -> Array:
    """The digest of x [n]: four words."""
    outputs = {"out": ((4,), np.uint32)}
    (out,) = device.dispatch(source("digest"), (x.size,), {"x": x}, outputs, 1)
    return out


def kernels(device: Device) -> dict[str, Callable[..., Any]]:
    """All kernels on one device."""
    table: dict[str, Callable[..., Any]] = {
        name: partial(elementwise, device, expression) for name, expression in ELEMENTWISE.items()
    }
    rows = (snap, quantise_rows, canonical_sum, rms_norm, argmax, rope, philox, digest)
    for kernel in (*rows, products.attention):
        table[kernel.__name__] = partial(kernel, device)
    return table | dict.fromkeys(MATMULS, partial(products.matmul, device))


def stacks() -> list[Stack]:
    """One stack a WebGPU adapter; OpenGL ones are passed over, their compute is incomplete."""
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] != "OpenGL"]
    if not adapters:
        raise NotHereError("wgpu finds no Vulkan, Metal or Direct3D adapter")
    return [
        Stack(
            "wgsl",
            f"{a.info['device']} ({a.info['backend_type']})",
            kernels(Device(a.request_device_sync())),
        )
        for a in adapters
    ]
