"""Errors of a format, product by product.

A model's logits may still move by much more: a recurrence that reads out nearly orthogonal states
passes an error on enlarged, whatever made it (docs/measurements.md, "w16 in recurrent models").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cortiq.ir import ops, primitives_of
from cortiq.numerics.quantise import dequantise, quantise_rows
from cortiq_reference.ideal import FORMULAS, IdealCall, evaluate
from cortiq_reference.ideal import dequantise as dequantised_weight

LARGEST_COST = 2.5e-4
"""Largest error of a product, over the size that independent rows and columns would give it."""
PRODUCTS = (ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul)


def rms(values: np.ndarray) -> np.ndarray:
    """Return the root mean square of each position."""
    return np.sqrt((values.reshape(len(values), -1) ** 2).mean(axis=-1))


def rounded_rows(x: np.ndarray) -> np.ndarray:
    """Return float32 rows as the contract's integers hold them."""
    return dequantise(quantise_rows(x))


def costs(
    exact: Any,
    rounded: Any,
    tokens: Sequence[int],
    rows: Callable[[np.ndarray], np.ndarray] = rounded_rows,
) -> dict[str, float]:
    """Return by node the largest error of its product of rounded rows and weights, inputs exact."""
    graph = primitives_of(exact.program).graphs["trunk"]
    nodes = [node for node in graph.nodes if isinstance(node.op, PRODUCTS)]
    wants = sorted({name for node in nodes for name in (*node.inputs, *node.outputs)})
    values, found = evaluate(exact.program, exact.weights, tokens, wants), {}
    for node in nodes:
        x, *index = (values[name] for name in node.inputs)
        name = node.weights["weight"]
        given = [rows(x.astype(np.float32)).astype(np.float64), *(i.astype(int) for i in index)]
        bound = {"weight": rounded.weights[name]}
        error = (
            FORMULAS[type(node.op)](IdealCall(node.op, bound, None), *given)
            - values[node.outputs[0]]
        )
        weight = dequantised_weight(exact.weights[name])
        size = rms(x) * np.sqrt((weight**2).mean() * weight.shape[1])
        found[node.name] = float((rms(error) / size).max())
    return found
