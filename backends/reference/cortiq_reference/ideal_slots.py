"""Formulas in float64 of primitives that read or write a slot of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import GraphError
from cortiq.numerics import ideal
from cortiq.numerics.ideal_mixers import weight_ideal
from cortiq.numerics.layouts import Weight, decode, floats

Doubles = npt.NDArray[np.float64]


@dataclass
class IdealCall:
    """A formula's context besides its inputs: the primitive, its weights, the slots so far."""

    op: Any
    weights: Mapping[str, Weight]
    slot: str | None
    slots: dict[str, tuple[Doubles, Doubles]] = field(default_factory=dict)

    def vector(self, role: str) -> Doubles | None:
        """Return a float weight with one row, or `None` if the primitive has no such role."""
        weight = self.weights.get(role)
        return None if weight is None else dequantise(weight)[0]


def dequantise(weight: Weight) -> Doubles:
    """Return every element in float64, whatever the layout."""
    if weight.layout.kind == "float":
        return floats(weight).astype(np.float64)
    return weight_ideal(decode(weight))


def store(node: IdealCall, keys: Doubles, values: Doubles | None = None) -> tuple:
    """Keep a slot's keys and values, [positions, heads, dim]."""
    assert node.slot is not None
    node.slots[node.slot] = (keys, keys[..., :0] if values is None else values)
    return ()


def read(node: IdealCall) -> tuple[Doubles, Doubles]:
    """Return what `store` kept; raise GraphError if nothing did."""
    if node.slot not in node.slots:
        raise GraphError("nothing of this entry writes the slot", where=str(node.slot))
    return node.slots[node.slot]


def choose_blocks(
    node: IdealCall, q: Doubles, position: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Choose for each position the last blocks and the best ones, then blocks beyond its own."""
    op, keys = node.op, read(node)[0][:, 0]
    out = np.zeros((len(q), op.heads, op.top), np.int64)
    for p, head in np.ndindex(len(q), op.heads):
        scores = keys[: p + 1] @ q[p, head]
        best = [scores[start : start + op.block].max() for start in range(0, p + 1, op.block)]
        ranked = [-np.inf] * (p // op.block + 1)
        for index, score in enumerate(best):
            ranked[index] = np.inf if index >= len(best) - op.local else score
        order = np.argsort(-np.array(ranked), kind="stable")[: op.top].tolist()
        out[p, head] = sorted([*order, *range(len(best), len(best) + op.top - len(order))])
    return out


def choose_keys(
    node: IdealCall, q: Doubles, position: npt.NDArray[np.int64], weights: Doubles
) -> npt.NDArray[np.int64]:
    """Choose for each position the best keys, then keys beyond its own."""
    top, every, keys = node.op.top, node.op.every, read(node)[0][:, 0]
    scores = np.einsum("qh,qhk->qk", weights, np.maximum(q @ keys.T, 0))
    at = np.arange(len(keys) + top * every)
    scores = np.pad(scores, ((0, 0), (0, top * every)), constant_values=-np.inf)
    scores = np.where((at <= position[:, None]) & ((at + 1) % every == 0), scores, -np.inf)
    chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :top]
    beyond = np.isneginf(np.take_along_axis(scores, chosen, axis=-1))
    chosen = np.where(beyond, position[:, None] + np.cumsum(beyond, axis=-1), chosen)
    return np.sort(chosen)[:, None]


def attend(
    node: IdealCall,
    q: Doubles,
    position: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64] | None = None,
) -> Any:
    """Attend to the slot's rows: the plain softmax, and with `mass` the logarithm of its sum."""
    op = node.op
    keys, values = (np.repeat(x, op.heads // op.kv_heads, 1) for x in read(node))
    scores = np.einsum("qhd,khd->hqk", q, keys) * op.scale
    if op.soft_cap:
        scores = ideal.soft_cap(scores, op.soft_cap)
    there = np.arange(keys.shape[0])
    past = np.arange(len(q))[:, None] - there
    if op.slopes:
        scores = scores - np.array(op.slopes)[:, None, None] * past
    visible = (there <= position[:, None]) & (past < (op.window or len(q)))
    if chosen is not None:
        blocks = there // op.block
        named = (chosen[:, :, None, :] == blocks[:, None]).any(axis=-1)
        visible = visible & np.repeat(named, op.heads // chosen.shape[1], 1).transpose(1, 0, 2)
    scores, sinks = np.where(visible, scores, -np.inf), node.vector("sinks")
    sink = np.full((op.heads, 1, 1), -np.inf) if sinks is None else sinks[:, None, None]
    top = np.maximum(np.maximum(scores.max(axis=-1, keepdims=True), sink), -(2.0**15))
    p = np.exp(scores - top)
    total = p.sum(axis=-1, keepdims=True) + np.exp(sink - top)
    y = np.einsum("hqk,khd->qhd", p / np.where(total == 0, 1, total), values)
    mass = top + np.log(np.where(total == 0, 1, total))
    return (y, mass.transpose(1, 0, 2)) if op.mass else y
