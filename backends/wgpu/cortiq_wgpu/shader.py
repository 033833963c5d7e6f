"""A package's kernel for this backend: WGSL that computes one row of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RowShader:
    """WGSL for `cortiq.backend.Kernel` on the backend `wgpu`.

    Attributes
    ----------
    body : statements that 256 invocations, `lane` 0 … 255, execute together for each `row`. They
        find value i of input 0 in `x[$input0 + row * $input0_n + i]`, as bits, write output 0 to
        `x[$output0 + row * $output0_n + i]`, and read value i of the weight in the role `gain` in
        `w[$gain + i]`, of which there are `$gain_n` (0 where the node has none).
        The functions of shaders/prelude.wgsl, scalar.wgsl and rows.wgsl are there: `from_bits`,
        `add`, `multiply`, `divide`, `fold`, `canonical`, …; float operations go through them.
    constants : makes of the operator the numbers that the text names, as `$name`: floats arrive as
        bits, integers from 0 as they are.
    """

    body: str
    constants: Callable[[Any], Mapping[str, float | int]] = lambda op: {}
