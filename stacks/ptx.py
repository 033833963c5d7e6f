"""`python -m stacks.ptx`: compile the Triton kernels for GPUs that need not be here, lint the PTX.

Triton's interpreter cannot show what a compiler does to floats. The PTX can: it must hold no fused
multiply-add, no approximate instruction, no flush to zero, no shortened mantissa, no float atomic,
and no float add or multiply without `.rn`, which ptxas would be free to contract.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"  # interpreted kernels cannot be compiled

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stacks import triton_attention, triton_matmul, triton_rows, triton_scalar
from stacks.base import ELEMENTWISE, OF_INTEGERS

FORBIDDEN = {
    "a fused multiply-add": r"\bfma\.",
    "an approximate instruction": r"\.approx|\bdiv\.full|\bex2\.|\blg2\.|\brsqrt\.|\bsin\.|\bcos\.",
    "flush to zero": r"\.ftz\b",
    "TF32": r"\.tf32\b",
    "a float atomic": r"\b(?:atom|red)\.\S*add\S*\.f\d+",
    "a float operation that ptxas may contract": r"\b(?:add|sub|mul|mad)\.f\d+\b",
}


def _stop_at_ptx(*given: Any) -> tuple[str, str]:
    """Triton's hook into its stages: no machine code, which takes ptxas as long as all the rest.

    Called without arguments it says what results are cached as.
    """
    if given:
        _, stages, *_ = given
        stages["cubin"] = lambda ptx, metadata: b""
    return "PTX only", "PTX only"


triton.knobs.runtime.add_stages_inspection_hook = _stop_at_ptx


@dataclass(frozen=True)
class Specimen:
    """A kernel with the types of its arguments ("x:*fp32 n:i32") and its compile-time values."""

    name: str
    kernel: Any
    arguments: str
    constants: dict[str, Any]

    def ptx(self, capability: int, fusion: bool = False) -> str:
        """Its PTX for sm_`capability`."""
        types = dict(argument.split(":") for argument in self.arguments.split())
        types |= dict.fromkeys(self.constants, "constexpr")
        signature = {name: types[name] for name in self.kernel.arg_names}
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=self.constants)
        target, options = GPUTarget("cuda", capability, 32), {"enable_fp_fusion": fusion}
        return triton.compile(source, target=target, options=options).asm["ptx"]


def elementwise() -> Iterator[Specimen]:
    """Every function of one, two or three arguments that the stack maps over arrays."""
    maps = {1: triton_scalar.map1, 2: triton_scalar.map2, 3: triton_scalar.map3}
    for name, count in ELEMENTWISE.items():
        kind = "i32" if name in OF_INTEGERS else "fp32"
        arguments = f"a:*{kind} b:*{kind} c:*{kind} out:*fp32 n:i32"
        constants = {"FUNCTION": triton_scalar.function(name), "BLOCK": 1024}
        yield Specimen(name, maps[count], arguments, constants)


def rows() -> Iterator[Specimen]:
    """The kernels over rows."""
    wide, block = {"WIDTH": 1024}, {"BLOCK": 1024}
    table = {
        "snap_rows": ("x:*fp32 out:*fp32 faults:*i32 n:i32", wide),
        "quantise_rows": ("x:*fp32 high:*i8 low:*i8 exponent:*i32 n:i32", wide),
        "canonical_sum": ("x:*fp32 out:*fp32 n:i32", {}),
        "rms_norm": ("x:*fp32 weight:*fp32 out:*fp32 n:i32 one_over_n:fp32 eps:fp32", {}),
        "argmax": ("x:*fp32 out:*i32 n:i32", wide),
        "rope": (
            "x:*fp32 cos:*fp32 sin:*fp32 out:*fp32 heads:i32 width:i32 pairs:i32",
            {"HALF": True, "WIDTH": 128},
        ),
        "philox": ("counters:*i32 keys:*i32 out:*i32 n:i32", block),
        "digest": ("x:*i32 out:*i32 n:i32", block),
    }
    for name, (arguments, constants) in table.items():
        yield Specimen(name, getattr(triton_rows, name), arguments, constants)


def products() -> Iterator[Specimen]:
    """The matmul by layout, and attention with everything on."""
    operands = "high:*i8 low:*i8 exponent:*i32 codes:*i8 scale:*fp32 offsets:*i32 minimum:*fp32"
    shapes = {"w8": (4096, 128, 0, 1), "w16": (4096, 128, 0, 2), "q4_1": (32, 32, 32, 1)}
    shapes["q4_k"] = (256, 32, 32, 2)
    for name, (block, step, sub, planes) in shapes.items():
        constants = {"BLOCK": block, "STEP": step, "SUB": sub, "PLANES": planes, "BM": 64, "BN": 64}
        arguments = operands + " out:*fp32 M:i32 N:i32 K:i32"
        yield Specimen(f"matmul_{name}", triton_matmul.matmul, arguments, constants)
    rows = " ".join(f"{x}h:*i8 {x}l:*i8 {x}e:*i32" for x in "qkv")
    others = "positions:*i32 sink:*fp32 factors:*fp32 out:*fp32 T:i32 S:i32 window:i32"
    constants = {"H": 32, "G": 8, "DK": 64, "DV": 64, "BM": 64, "SINK": True, "CAPPED": True}
    attention = triton_attention.attention
    yield Specimen("attention", attention, f"{rows} {others}", constants)


def specimens() -> list[Specimen]:
    """Every kernel of the Triton stack."""
    return [*elementwise(), *rows(), *products()]


def breaches(ptx: str) -> list[str]:
    """What a kernel's PTX must not hold and does, with the first line of each kind."""
    found = []
    for what, pattern in FORBIDDEN.items():
        lines = [line.strip() for line in ptx.splitlines() if re.search(pattern, line)]
        if lines:
            found.append(f"{what}: {len(lines)} times, first {lines[0]!r}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Compile and lint; exit 1 if a kernel holds what it must not, or if nothing was compiled."""
    parser = argparse.ArgumentParser(prog="python -m stacks.ptx", description=__doc__)
    parser.add_argument("--targets", default="80,90", help="compute capabilities")
    parser.add_argument("--only", help="kernels, separated by commas (all)")
    parser.add_argument("--fusion", action="store_true", help="let the compiler fuse: must fail")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else [s.name for s in specimens()]
    chosen = [specimen for specimen in specimens() if specimen.name in wanted]
    bad = 0
    for specimen in chosen:
        for capability in map(int, options.targets.split(",")):
            found = breaches(specimen.ptx(capability, options.fusion))
            print(f"sm_{capability} {specimen.name}: {'; '.join(found) or 'clean'}", flush=True)
            bad += bool(found)
    return int(bad > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main())
