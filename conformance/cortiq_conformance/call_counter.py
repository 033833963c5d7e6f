"""Detect who computes: calls of the reference's kernels and the contract's functions."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any

from cortiq.numerics import (
    attention,
    column_order,
    compression,
    dequantise,
    matmul,
    norms,
    quantise,
    recurrent,
    rope,
    route,
    scalar,
    streams,
)

DEFINITIONS: dict[str, tuple[Any, ...]] = {
    "EmbedRows": (dequantise.embedding_rows,),
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
    "DeltaRule": (recurrent.delta_step,),
    "DiagonalDeltaRule": (recurrent.diagonal_delta_step,),
    "StateSpace": (recurrent.state_space_step,),
    "Route": (route.route,),
    "Sinkhorn": (streams.sinkhorn,),
    "Compress": (compression.compress,),
    "KeepListed": (route.keep_listed,),
    "IndexSelect": (route.index_select,),
    "StackIndex": (route.stack_index,),
    "CombineExperts": (route.combine_experts,),
    "Permute": (column_order.permute,),
}
"""The contract's functions that define an operator; a backend that calls one delegates it."""


def _definitions(op: str) -> set[CodeType]:
    """Return the code that defines an operator: the contract's functions, the reference's kernel.

    Of a `StepKernel` it is what makes the step. The reference's plans, runs and executables are
    machinery that a backend may build on.
    """
    kernels = getattr(sys.modules.get("cortiq_reference.kernels"), "KERNELS", {})
    named = [getattr(k, "step", k) for kind, k in kernels.items() if kind.__name__ == op]
    helpers = []
    if named and op.endswith("MatMul"):
        matrix = sys.modules["cortiq_reference.matrix"]
        helpers = [matrix.TiledMatrix.multiply, matrix.MatrixStack.multiply]
    if named and op == "Attend":
        helpers = [sys.modules["cortiq_reference.attention"].attend]
    return {function.__code__ for function in (*DEFINITIONS.get(op, ()), *named, *helpers)}


class CallCounter:
    """Counts calls in this thread and in threads started while it is active."""

    def __init__(self) -> None:
        self._codes: Counter[CodeType] = Counter()

    def __enter__(self) -> CallCounter:
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

    def calls(self, op: str) -> dict[str, int]:
        """Return the calls of each function that computes an operator for contract or reference."""
        defined = _definitions(op)
        return {c.co_qualname: n for c, n in self._codes.items() if c in defined}
