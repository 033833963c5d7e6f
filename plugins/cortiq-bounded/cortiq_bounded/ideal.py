"""Formulas in float64 of this package's primitives: whole sequences, no order, no rounding."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import GraphError
from cortiq.ir import Op
from cortiq_bounded.landmarks import RIDGE
from cortiq_bounded.ops import NystromAttend, PhaseFeatures

Doubles = npt.NDArray[np.float64]


def means(rows: Doubles, count: int) -> Doubles:
    """Return the means of neighbouring parts of rows [n, dim]."""
    ends = [i * len(rows) // count for i in range(count + 1)]
    return np.stack([rows[a:b].mean(axis=0) for a, b in pairwise(ends)])


def nystrom(node: Any, q: Doubles, k: Doubles, v: Doubles, position: Any) -> Doubles:
    """Return attention in its matrix form: near weights, and far ones by three factors.

    far = e^(σ·Q·K̃ᵀ)·(AᵀA + λI)⁻¹Aᵀ·e^(σ·Q̃·Kᵀ), A = e^(σ·Q̃·K̃ᵀ); a row whose far weights have a
    negative sum has none.
    """
    op: NystromAttend = node.op
    if op.reseal or op.exact:
        what = "landmarks that are made anew, or rows chosen by mass, have no float64 formula"
        raise GraphError(what, where="NystromAttend")
    out = np.zeros((*q.shape[:2], v.shape[2]))
    for head in range(op.heads):
        group = head // (op.heads // op.kv_heads)
        out[:, head] = _head(op, q[:, head], k[:, group], v[:, group])
    return out


def _head(op: NystromAttend, q: Doubles, k: Doubles, v: Doubles) -> Doubles:
    scale, at = np.float64(np.float32(op.scale)), np.arange(len(q))
    past = at[:, None] - at
    near = (past >= 0) & ((at[:, None] < op.seal) | (at < op.sinks) | (past < op.window))
    own = scale * q @ k.T
    top = np.where(near, own, -np.inf).max(axis=1, keepdims=True)
    weights = np.where(near, np.exp(own - top), 0.0)
    if len(q) > op.seal:
        queries, keys = means(q[: op.seal : op.stride], op.used), means(k[: op.seal], op.used)
        a = np.exp(scale * queries @ keys.T)
        b = a.T @ a
        ridge = RIDGE * np.trace(b) / len(b)
        inverse = np.linalg.solve(b + ridge * np.eye(len(b)), a.T)
        factor = np.exp(scale * q @ keys.T - top) @ inverse
        if op.rectifier == "fm":
            factor = np.maximum(factor, 0)
        far = np.where((past >= 0) & ~near, factor @ np.exp(scale * queries @ k.T), 0.0)
        weights += np.where(far.sum(axis=1, keepdims=True) >= 0, far, 0.0)
    return weights @ v / weights.sum(axis=1, keepdims=True)


FORMULAS: Mapping[type[Op], Any] = {
    NystromAttend: nystrom,
    PhaseFeatures: lambda node, x: np.concatenate([np.cos(x), np.sin(x)], axis=-1),
}
"""For `cortiq_reference.ideal.evaluate`."""
