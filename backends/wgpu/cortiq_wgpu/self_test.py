"""Self test of a device's arithmetic before its first use: one wrong bit and it is refused.

The kernels' own functions run here on numbers that tell drivers apart: ties, exponents at the ends
of the domain, quotients and roots just beside a tie, sums of bytes at their bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cortiq.errors import BackendError
from cortiq.numerics import scalar
from cortiq.numerics.contract import round_to_f32
from cortiq.numerics.philox import philox
from cortiq.numerics.quantise import quantise_rows
from cortiq.numerics.sums import canonical_sum
from cortiq_wgpu.block_offsets import record_words, units_of
from cortiq_wgpu.device import GpuDevice
from cortiq_wgpu.shader_source import ShaderSource, stage, staged

F32 = np.float32
COUNT = 2048
A, B = "from_bits(x[i])", f"from_bits(x[{COUNT}u + i])"
INT_I, INT_J, INT_K = (f"bitcast<i32>(x[{n * COUNT}u + i])" for n in (2, 3, 4))
DOT = "products of bytes"
Array = np.ndarray


def _three(i: Array, j: Array, k: Array) -> Array:
    wide = i.astype(np.int64) * 65536 + j.astype(np.int64) * 256 + k
    return round_to_f32(wide)


def _two(i: Array, j: Array) -> Array:
    return round_to_f32(i.astype(np.int64) * 256 + j)


def _dot(i: Array, j: Array) -> Array:
    pairs = (word.view(np.int8).astype(np.int32).reshape(-1, 4) for word in (i, j))
    products = np.multiply(*pairs)
    return products.sum(axis=1, dtype=np.int32).view(F32)


Inputs = Mapping[str, Array]
EXPRESSIONS: Mapping[str, tuple[str, Callable[[Inputs], Array]]] = {
    "a + b": (f"add({A}, {B})", lambda v: v["a"] + v["b"]),
    "a * b": (f"multiply({A}, {B})", lambda v: v["a"] * v["b"]),
    "a * b + a": (f"add(multiply({A}, {B}), {A})", lambda v: v["a"] * v["b"] + v["a"]),
    "a / b": (f"divide({A}, {B})", lambda v: v["a"] / v["b"]),
    "sqrt |a|": (f"square_root(abs({A}))", lambda v: np.sqrt(np.abs(v["a"]))),
    "rint": (
        f"rint(multiply(f32({INT_K}), 0.5))",
        lambda v: np.rint(v["k"].astype(F32) * F32(0.5)),
    ),
    "integer to float": (f"round_int32({INT_I})", lambda v: round_to_f32(v["i"].astype(np.int64))),
    "exp": (f"exp_(-abs({A}))", lambda v: scalar.exp(-np.abs(v["a"]))),
    "2^f": (
        f"exp2g(multiply(f32({INT_K}), {2.0**-16}))",
        lambda v: scalar.exp2_fraction(v["k"].astype(F32) * F32(2.0**-16)),
    ),
    "RN of two planes": (f"round_two_planes({INT_J}, {INT_K})", lambda v: _two(v["j"], v["k"])),
    "RN of three planes": (
        f"round_three_planes({INT_J} >> 8u, {INT_K}, {INT_K})",
        lambda v: _three(v["j"] >> 8, v["k"], v["k"]),
    ),
    DOT: (
        f"bitcast<f32>(dot4(bitcast<u32>({INT_I}), bitcast<u32>({INT_J})))",
        lambda v: _dot(v["i"], v["j"]),
    ),
}
"""What the kernels are made of, in WGSL and by the contract's definition."""


def inputs() -> dict[str, Array]:
    """Return numbers a, b of both signs from 2⁻²⁰ to 2²⁰, any integers i, j, and small ones k."""
    count = np.arange(COUNT, dtype=np.uint32)
    words = [word.astype(np.uint32) for word in philox((count, 0, 0, 0), (1, 2))]
    exponents = (np.uint32(107) + count % np.uint32(40)) << np.uint32(23)
    a, b = ((word & np.uint32(0x807FFFFF)) + exponents for word in words[:2])
    a[:256] = (a[:256] & np.uint32(0xFF800000)) | count[:256]  # just above powers of two
    i, j = (word.view(np.int32).copy() for word in words[2:])
    i[:8], j[:8] = -(1 << 31) + 0, 0x7F7F7F7F
    i[8:16] = np.uint32(0x80808080).view(np.int32)
    j[8:16] = np.uint32(0x80808080).view(np.int32)
    k = (words[3] >> np.uint32(16)).astype(np.int32) - 32768
    return {"a": a.view(F32), "b": b.view(F32), "i": i, "j": j, "k": k}


def check_device(gpu: GpuDevice) -> None:
    """Compute everything once; `BackendError` if the device has another bit than the contract.

    A device whose dot product of bytes is wrong gets one of shifts and products instead.
    """
    wrong = differing(gpu)
    if wrong == [DOT]:
        gpu.use_portable_dot()
        wrong = differing(gpu)
    if wrong:
        raise BackendError(
            f"wgpu on {gpu.name} computes {', '.join(wrong)} with other bits than the contract",
            hint="Its driver's compiler is at fault: use another device, or report it.",
        )


def differing(gpu: GpuDevice) -> list[str]:
    """List the operations that the device computes with other bits."""
    given = inputs()
    wrong = []
    for name, (expression, defined) in EXPRESSIONS.items():
        got = _mapped(gpu, expression, given)
        if (got != np.ascontiguousarray(defined(given), F32).view(np.uint32)).any():
            wrong.append(name)
    row = given["a"][None]
    total = _run(gpu, staged((stage("sum"),), gpu.dot), row, {"x": 0, "out": COUNT, "n": COUNT}, 1)
    if (total != canonical_sum(row).view(np.uint32)).any():
        wrong.append("sums in order")
    return wrong + ([] if _quantises(gpu, row) else ["quantised rows"])


def _mapped(gpu: GpuDevice, expression: str, given: Inputs) -> Array:
    body = f"x[$out + i] = bitcast<u32>({expression});"
    kernel = staged((stage("map", BODY=body),), gpu.dot)
    whole = np.concatenate([value.view(np.uint32) for value in given.values()])
    return _run(gpu, kernel, whole, {"out": 5 * COUNT, "n": COUNT}, COUNT)


def _quantises(gpu: GpuDevice, row: Array) -> bool:
    units = units_of(COUNT)
    values = {
        "x": 0,
        "out": 0,
        "size": record_words(COUNT),
        "units": units,
        "heads": 1,
        "n": COUNT,
        "width": 256,
    }
    kernel = staged((stage("quantise"),), gpu.dot)
    record = _run(gpu, kernel, row, values, values["size"], of="q")
    planes = [record[plane * 4 * units :][: 4 * units].view(np.int8) for plane in range(2)]
    q = planes[0].astype(np.int32) * 256 + planes[1]
    expected = quantise_rows(row)
    return bool((q[:COUNT] == expected.q[0]).all() and record[-4] == expected.e.view(np.uint32)[0])


def _run(
    gpu: GpuDevice,
    kernel: ShaderSource,
    given: Array,
    values: Mapping[str, int],
    words: int,
    of: str = "x",
) -> Array:
    """Run one workgroup and return its words behind its input (or in q)."""
    flat = np.ascontiguousarray(given).reshape(-1).view(np.uint32)
    buffers = {name: gpu.buffer(4 * COUNT * 8) for name in ("q", "w", "pool", "scratch", "m")}
    buffers["x"] = gpu.uploaded(np.concatenate([flat, np.zeros(COUNT, np.uint32)]))
    buffers["faults"] = gpu.buffer(16)
    buffers["p"] = gpu.uploaded(np.array(kernel.words((0, 0, 0), [values]), np.uint32))
    gpu.run(kernel, buffers, (1, 1, 1))
    start = values["out"] if of == "x" else 0
    return gpu.download(buffers[of], 4 * start, 4 * words)
