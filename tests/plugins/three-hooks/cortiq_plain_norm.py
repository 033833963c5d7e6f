"""A kernel for somebody else's backend: the reference's RMSNorm, lane by lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from cortiq.backend import Kernel


def rms_norm(call: Any, x: Any) -> Any:
    """x/√(mean(x²) + eps)·w, called as the reference calls its own kernels."""
    import numpy as np

    from cortiq.numerics.contract import F32, snap
    from cortiq.numerics.sums import canonical_sum

    mean = canonical_sum(x * x) * (F32(1) / F32(x.shape[-1]))
    y = x * (F32(1) / np.sqrt(mean + F32(call.op.eps)))[..., None]
    weight = call.weights.get("weight")
    return snap(y if weight is None else y * weight, call.faults)


@hookimpl
def cortiq_kernels() -> Sequence[Kernel]:
    """The kernel of this package."""
    from cortiq.backend import Kernel
    from cortiq.ir import ops

    return [Kernel("reference", ops.RMSNorm, rms_norm, "plain-norm")]
