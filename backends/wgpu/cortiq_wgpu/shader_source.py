"""Kernels from their parts: WGSL files, constants of the contract, parameters by name.

A kernel's text says `$name` for a parameter of the op, a word of the buffer `p`, and `{{NAME}}` for
what is written in when the kernel is made; lines between `//each` and `//end` are repeated. Stages
(`stage_*.wgsl`) are functions of a row; several of them, one after the other, make one kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import SupportsFloat

import numpy as np

from cortiq.numerics import scalar
from cortiq.numerics.digest import INDEX_KEY, LANE_KEYS, MIX_MULTIPLIERS
from cortiq.numerics.philox import KEY_INCREMENTS, MULTIPLIERS
from cortiq.numerics.route import LOWEST
from cortiq.numerics.sampling import GUMBEL_STREAM

COMMON = ("faults", "set", "record")
"""Parameters of every kernel: where its fault flags begin, which rows, words of a row's record."""
BINDING = re.compile(r"@group\(0\) @binding\((\d+)\) var<storage, (\w+)> (\w+):")
DEFINED = re.compile(r"^(?:fn|struct|const|var<\w+>) (\w+)", re.MULTILINE)
PARAMETER = re.compile(r"\$(\w+)")
NATIVE_DOT = "fn dot4(a: u32, b: u32) -> i32 { return dot4I8Packed(a, b); }\n"
PORTABLE_DOT = """
fn dot4(a: u32, b: u32) -> i32 {
  let va = bitcast<vec4i>(vec4u(a << 24u, a << 16u, a << 8u, a)) >> vec4u(24u);
  let vb = bitcast<vec4i>(vec4u(b << 24u, b << 16u, b << 8u, b)) >> vec4u(24u);
  let products = va * vb;
  return products.x + products.y + products.z + products.w;
}
"""
"""Where the device's own is slow or wrong: four products of sign-extended bytes."""


@cache
def source(name: str) -> str:
    """Return the text of shaders/NAME.wgsl."""
    return (files("cortiq_wgpu") / "shaders" / f"{name}.wgsl").read_text("utf-8")


def bits(value: SupportsFloat) -> int:
    """Return the bits of the float32 nearest to a number."""
    return int(np.float32(float(value)).view(np.uint32))


def literal(value: SupportsFloat) -> str:
    """Write a float32 constant as its bit pattern, so that no decimal parser rounds it."""
    return f"from_bits({bits(value):#010x}u)"


def _polynomial(name: str, coefficients: Sequence[np.float32]) -> str:
    first, *others = map(literal, coefficients)
    steps = "\n".join(f"  y = add(multiply(y, x), {c});" for c in others)
    return f"fn {name}(x: f32) -> f32 {{\n  var y = {first};\n{steps}\n  return y;\n}}"


@cache
def constants() -> str:
    """Write the contract's constants and polynomials as WGSL."""
    names = (
        "LOG2_E",
        "LN2_HIGH",
        "LN2_LOW",
        "GELU_SCALE",
        "GELU_CUBIC",
        "TAIL_SCALE",
        "ROOT_FLOOR",
    )
    lines = [f"fn {n}() -> f32 {{ return {literal(getattr(scalar, n))}; }}" for n in names]
    lines.append(f"fn LOWEST() -> f32 {{ return {literal(float(LOWEST))}; }}")
    for name in ("exp", "exp2", "tanh", "log", "tail"):
        table = getattr(scalar, f"{name.upper()}_POLYNOMIAL")
        lines.append(_polynomial(f"{name}_polynomial", table))
    words = {f"LANE{i}": key for i, key in enumerate(LANE_KEYS)}
    words |= zip(("MIX0", "MIX1", "M0", "M1"), (*MIX_MULTIPLIERS, *MULTIPLIERS), strict=True)
    words |= zip(("K0", "K1"), KEY_INCREMENTS, strict=True)
    words |= {"INDEX_KEY": INDEX_KEY, "STREAM": GUMBEL_STREAM}
    lines += [f"const {name} = {int(value):#x}u;" for name, value in words.items()]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class ShaderSource:
    """A kernel's text, and the names of its parameters in their order.

    Attributes
    ----------
    parameters : behind `COMMON`, for each stage (one for kernels without stages).
    """

    text: str
    parameters: tuple[tuple[str, ...], ...]

    @cached_property
    def bindings(self) -> tuple[tuple[int, str, bool], ...]:
        """List number and name of each buffer, and whether it is written."""
        found = BINDING.findall(self.text)
        return tuple((int(n), name, access == "read_write") for n, access, name in found)

    def words(self, common: Sequence[int], values: Sequence[Mapping[str, int]]) -> list[int]:
        """Return the buffer `p` for these values of each stage's parameters."""
        words = list(common)
        for names, given in zip(self.parameters, values, strict=True):
            words += [given[name] for name in names]
        return words


def _filled(text: str, parts: Mapping[str, str]) -> str:
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return "\n".join(_repeated(text.split("\n")))


def _repeated(lines: Sequence[str]) -> list[str]:
    """Repeat lines between `//each NAME COUNT` and `//end` so many times, `#NAME` being the number.

    Values in registers have names of their own then: an array may be put elsewhere.
    """
    done: list[str] = []
    start = depth = 0
    for place, line in enumerate(lines):
        words = line.split()
        if words[:1] == ["//each"]:
            start, depth = (start, depth + 1) if depth else (place, 1)
        elif words == ["//end"]:
            depth -= 1
            if not depth:
                _, name, count = lines[start].split()
                for number in range(int(count)):
                    inner = (
                        text.replace(f"#{name}", str(number)) for text in lines[start + 1 : place]
                    )
                    done += _repeated(list(inner))
        elif not depth:
            done.append(line)
    return done


def _numbered(text: str, start: int) -> tuple[str, tuple[str, ...]]:
    """Replace parameters by words of p from `start` on; return the text and their names."""
    names = [n for n in dict.fromkeys(PARAMETER.findall(text)) if n not in COMMON]
    places = {name: start + place for place, name in enumerate(names)}
    places |= {name: place for place, name in enumerate(COMMON)}
    return PARAMETER.sub(lambda found: f"p[{places[found[1]]}u]", text), tuple(names)


def _prelude(dot: str) -> str:
    return _numbered(source("prelude"), 0)[0] + dot + constants() + source("scalar")


@cache
def _kernel(
    name: str, parts: tuple[tuple[str, str], ...], uses: tuple[str, ...], dot: str
) -> ShaderSource:
    body = "".join(source(part) for part in uses) + source(name)
    text, names = _numbered(_filled(body, dict(parts)), len(COMMON))
    return ShaderSource(_prelude(dot) + text, (names,))


def kernel(
    name: str, dot: str, parts: Mapping[str, str] | None = None, uses: tuple[str, ...] = ()
) -> ShaderSource:
    """Make a kernel of one file, others before it, and the parts that it is filled with."""
    return _kernel(name, tuple(sorted((parts or {}).items())), uses, dot)


Stage = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a stage's file and what is written into it."""


def stage(name: str, **parts: str) -> Stage:
    """Make a stage, which `staged` takes."""
    return f"stage_{name}", tuple(sorted(parts.items()))


@cache
def staged(stages: tuple[Stage, ...], dot: str) -> ShaderSource:
    """Make one kernel of several stages."""
    texts, parameters = [], []
    start = len(COMMON)
    for number, (name, parts) in enumerate(stages):
        text = _filled(source(name), dict(parts))
        for defined in DEFINED.findall(text):
            text = re.sub(rf"\b{defined}\b", f"{defined}_{number}", text)
        text, names = _numbered(text, start)
        start += len(names)
        texts.append(text)
        parameters.append(names)
    calls = "\n  storageBarrier();\n  workgroupBarrier();\n".join(
        f"  stage_{number}(group.y, local.x);" for number in range(len(stages))
    )
    library = source("rows") + source("argmax")
    main = (
        "\n@compute @workgroup_size(256)\nfn main(@builtin(workgroup_id) group: vec3u, "
        "@builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_id) local: vec3u) {\n"
        "  zero = m[0];\n  start = 256u * group.x;\n  span = 256u * groups.x;\n" + calls + "\n}\n"
    )
    text = _prelude(dot) + _numbered(library, 0)[0] + "".join(texts) + main
    return ShaderSource(text, tuple(parameters))
