"""Seeing who really computes: calls into the reference and the contract's own functions."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any

from cortiq.numerics import (
    attention,
    layouts,
    matmul,
    norms,
    quantise,
    recurrent,
    rope,
    route,
    scalar,
)

DEFINITIONS: dict[str, tuple[Any, ...]] = {
    "EmbedRows": (layouts.embedding_rows,),
    "Quantise": (quantise.quantise_rows,),
    "MatMul": (matmul.matmul, matmul.matmul_f32),
    "HeadMatMul": (matmul.matmul, matmul.matmul_f32),
    "ExpertMatMul": (matmul.matmul, matmul.matmul_f32),
    "Add": (scalar.add,),
    "Multiply": (scalar.multiply,),
    "Scale": (scalar.scale,),
    "Bias": (scalar.add,),
    "Activation": (scalar.activation,),
    "SoftCap": (scalar.soft_cap,),
    "RMSNorm": (norms.rms_norm,),
    "LayerNorm": (norms.layer_norm,),
    "Rope": (rope.apply_rope,),
    "Attend": (attention.attend, attention.attend_keys, attention.tile),
    "CausalConv": (recurrent.causal_conv,),
    "Route": (route.route,),
    "CombineExperts": (route.combine_experts,),
}
"""The contract's functions that define an operator; a backend that calls one delegates it."""
REFERENCE = "cortiq_reference"


class Guard:
    """Counts calls in this thread and in threads started while it is entered."""

    def __init__(self) -> None:
        self._codes: Counter[CodeType] = Counter()
        self._reference = 0

    def __enter__(self) -> Guard:
        self._before = sys.getprofile()
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _seen(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self._codes[frame.f_code] += 1
            if frame.f_code.co_name == "forward" and frame.f_globals.get("__name__", "").startswith(
                REFERENCE
            ):
                self._reference += 1

    def calls(self, op: str) -> int:
        """Calls of the reference's `forward`, or of the functions that define an operator."""
        defined = DEFINITIONS.get(op, ())
        return self._reference + sum(self._codes[function.__code__] for function in defined)
