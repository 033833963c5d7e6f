"""Changes that shader compilers make, each with the smallest shader that shows it and its
remedy.

`docs/wgpu.md` lists them. A plain shader may compute other bits here, or not: that is the
compiler's business, and where it is known to, the test says so. With the kernels' own functions the
bits are the defined ones everywhere.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import adapter
import numpy as np
import pytest

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())  # software Vulkan asks for one

from cortiq.numerics.contract import round_to_f32
from cortiq_wgpu import adapters
from cortiq_wgpu.device import GpuDevice
from cortiq_wgpu.shader_source import COMMON, ShaderSource, constants, source

F32 = np.float32
COUNT = 4096


pytestmark = adapter.needed

MAIN = """
@group(0) @binding(4) var<storage, read> a: array<f32>;
@group(0) @binding(5) var<storage, read> b: array<f32>;
@group(0) @binding(6) var<storage, read> c: array<f32>;
fn i(v: f32) -> i32 {{ return bitcast<i32>(v); }}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {{
  zero = m[0];
  let n = id.x + id.y * groups.x * 64u;
  if (n < arrayLength(&x)) {{ x[n] = bitcast<u32>({expression}); }}
}}
"""


@cache
def gpu():
    return GpuDevice(*adapters.chosen(None))


def prelude():
    text = source("prelude")
    for place, name in enumerate(COMMON):
        text = text.replace(f"${name}", f"p[{place}u]")
    return text + constants() + source("scalar")


def computed(expression, *arrays, text=None):
    """Bits of an expression of a, b and c, element by element."""
    device, size = gpu(), arrays[0].size
    kernel = ShaderSource((text or prelude()) + MAIN.format(expression=expression), ())
    given = [np.ascontiguousarray(array).view(np.uint32) for array in arrays]
    buffers = dict(zip("abc", map(device.uploaded, [*given, *given, *given]), strict=False))
    buffers |= {name: device.buffer(64) for name in ("p", "m", "faults")}
    buffers["x"] = device.buffer(4 * size)
    groups = -(-size // 64)
    device.run(kernel, buffers, (min(groups, 1024), -(-groups // 1024), 1))
    return device.download(buffers["x"], 0, 4 * size)


def differing(expression, expected, *arrays, text=None):
    got = computed(expression, *arrays, text=text)
    return int((got != np.ascontiguousarray(expected, F32).view(np.uint32)).sum())


@dataclass(frozen=True)
class Change:
    """A transformation.

    plain : the shader that shows it. kept : the same with the kernels' functions. by : compilers
    that are known to do it.
    """

    plain: str
    kept: str
    defined: Callable[..., np.ndarray]
    by: tuple[str, ...]


ONE, THREE, THIRD, MAGIC = F32(1), F32(3), F32(0.3333), F32(12582912)
CHANGES = {
    "a product and a sum become one operation": Change(
        "a[n] * b[n] + c[n]",
        "add(multiply(a[n], b[n]), c[n])",
        lambda a, b, c: a * b + c,
        ("NVIDIA",),
    ),
    "sums are put together in another order": Change(
        "(a[n] + b[n]) + 1.0",
        "add(add(a[n], b[n]), 1.0)",
        lambda a, b, c: (a + b) + ONE,
        ("llvmpipe",),
    ),
    "what is added and taken away again is left out": Change(
        "(a[n] + b[n]) - b[n]",
        "subtract(add(a[n], b[n]), b[n])",
        lambda a, b, c: (a + b) - b,
        ("llvmpipe",),
    ),
    "rounding by a large number is left out": Change(
        "(a[n] * 100.0 + 12582912.0) - 12582912.0",
        "rint(multiply(a[n], 100.0))",
        lambda a, b, c: (a * F32(100) + MAGIC) - MAGIC,
        ("llvmpipe",),
    ),
    "a common factor is taken out": Change(
        "a[n] * c[n] + b[n] * c[n]",
        "add(multiply(a[n], c[n]), multiply(b[n], c[n]))",
        lambda a, b, c: a * c + b * c,
        ("llvmpipe",),
    ),
    "constant factors become one": Change(
        "(a[n] * 3.0) * from_bits(0x3eaaa64cu)",
        "multiply(multiply(a[n], 3.0), from_bits(0x3eaaa64cu))",
        lambda a, b, c: (a * THREE) * THIRD,
        ("llvmpipe",),
    ),
    "constant summands become one": Change(
        "(a[n] + 0.1) + 0.2",
        "add(add(a[n], from_bits(0x3dcccccdu)), from_bits(0x3e4ccccdu))",
        lambda a, b, c: (a + F32(0.1)) + F32(0.2),
        ("llvmpipe",),
    ),
}


def numbers():
    rng = np.random.default_rng(5)
    return [rng.standard_normal(COUNT).astype(F32) for _ in range(3)]


@pytest.mark.parametrize("name", CHANGES)
def test_kept_operations_round_as_written(name):
    change, given = CHANGES[name], numbers()
    assert differing(change.kept, change.defined(*given), *given) == 0


@pytest.mark.parametrize("name", CHANGES)
def test_the_plain_shader_shows_it_where_it_is_known(name):
    change, given = CHANGES[name], numbers()
    wrong = differing(change.plain, change.defined(*given), *given)
    known = any(maker.lower() in gpu().info["device"].lower() for maker in change.by)
    assert wrong > 0 or not known, "this compiler does not do it any more: docs/wgpu.md says so"


def test_adding_zero_is_left_out_so_that_minus_zero_stays_and_snap_does_not_rely_on_it():
    minus = np.full(64, -0.0, F32)
    if "llvmpipe" in gpu().info["device"]:
        assert (computed("a[n] + 0.0", minus) == 0x80000000).all()
    assert (computed("from_bits(canonical(a[n], 0u))", minus) == 0).all()


def test_loops_end_after_65535_turns_on_llvmpipe():
    text = (
        prelude()
        + """
fn turns(count: u32) -> u32 {
  var k = 0u;
  for (var t = 0u; t < count + p[0]; t++) { k += 1u + p[0]; }
  return k;
}
"""
    )
    got = int(computed("from_bits(turns(70000u))", np.zeros(64, F32), text=text)[0])
    assert got == (65535 if "llvmpipe" in gpu().info["device"] else 70000)
    assert computed("from_bits(turns(32768u))", np.zeros(64, F32), text=text)[0] == 32768


def perturbed(by):
    """The prelude whose device division and square root are off by this many units."""
    text = prelude()
    for call in ("var q = i32(fa / fb", "var q = i32(sqrt("):
        assert call in text
        text = text.replace(call, call.replace("i32(", f"{by} + i32("))
    return text


def hard_quotients(count):
    """Quotients right beside the middle of two floats, by solving for their remainder."""
    rng = np.random.default_rng(3)
    a, b = [], []
    for divisor in (rng.integers(1 << 23, 1 << 24, count) | 1).tolist():
        for shift in (23, 24):
            inverse = pow(1 << shift, -1, divisor)
            for rest in ((divisor - 1) // 2, (divisor + 1) // 2, 1, divisor - 1):
                dividend = rest * inverse % divisor
                if dividend >= 1 << 23:
                    a.append(dividend)
                    b.append(divisor)
    return np.array(a, np.float64).astype(F32), np.array(b, np.float64).astype(F32)


@pytest.mark.parametrize("by", [-4, 0, 4])
def test_quotients_beside_a_tie_round_right_whatever_the_device_divides(by):
    a, b = hard_quotients(8000)
    assert a.size > 15000
    assert differing("divide(a[n], b[n])", a / b, a, b, text=perturbed(by)) == 0


def hard_squares(step):
    """Numbers beside the squares of the middles of two floats, of both parities."""
    q = np.arange(1 << 23, 1 << 24, step, dtype=np.int64)
    found = []
    for shift in (23, 24):
        middle = ((2 * q + 1) ** 2 >> 2) >> shift
        near = np.concatenate([middle, middle + 1])
        near = near[(near >= 1 << 23) & (near < 1 << 24)]
        found.append((near.astype(np.float64) * 2.0 ** (shift - 23)).astype(F32))
    return np.concatenate(found)


@pytest.mark.parametrize("by", [-4, 0, 4])
def test_roots_beside_a_tie_round_right_whatever_the_device_computes(by):
    a = hard_squares(7)
    assert differing("square_root(a[n])", np.sqrt(a), a, text=perturbed(by)) == 0


def test_every_root():
    for exponent in (127, 128):
        for start in range(0, 1 << 23, 1 << 21):
            bits = np.arange(start, start + (1 << 21), dtype=np.uint32)
            a = (bits | np.uint32(exponent << 23)).view(F32)
            assert differing("square_root(a[n])", np.sqrt(a), a) == 0


def wide_integers():
    """Integers on, just below and just above the middles of neighbouring floats."""
    rng = np.random.default_rng(9)
    heads = rng.integers(1 << 23, 1 << 24, 2000)
    found = [
        sign * ((heads << extra) + (1 << extra >> 1) + beside)
        for extra in range(1, 8)
        for beside in (-1, 0, 1)
        for sign in (-1, 1)
    ]
    whole = np.concatenate(found)
    return whole[(whole >= -(1 << 31)) & (whole < 1 << 31)]


def test_wide_integers_round_once():
    whole = wide_integers()
    given = whole.astype(np.int32).view(F32)
    assert differing("round_int32(i(a[n]))", round_to_f32(whole), given) == 0


def test_sums_of_two_and_three_planes_round_once():
    rng = np.random.default_rng(4)
    whole = wide_integers() * 256 + rng.integers(-128, 128, wide_integers().size)
    high, low = ((part.astype(np.int32)).view(F32) for part in (whole >> 8, whole & 255))
    assert differing("round_two_planes(i(a[n]), i(b[n]))", round_to_f32(whole), high, low) == 0
    wide = whole * 128 + 64
    parts = [wide >> 16, (wide >> 8) & 255, wide & 255]
    given = [part.astype(np.int32).view(F32) for part in parts]
    expression = "round_three_planes(i(a[n]), i(b[n]), i(c[n]))"
    assert differing(expression, round_to_f32(wide), *given) == 0
