"""Programs whose rows choose an overlay: a change of some weights, one of several in a batch.

An overlay is a number that a row supplies, 0 for none. What overlays do to a matrix lies in
*banks*: stacks with a member for each number, so that a low-rank product is that of a chosen
expert, and rows of one overlay share it (docs/NUMERICS.md, section 16). Member 0 changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from cortiq.ir import ops
from cortiq.ir.decompose import primitives_of
from cortiq.ir.graph import Node, Program
from cortiq.ir.op import Op

OVERLAY, OVERLAY_INDEX, OVERLAY_ROW = "overlay", "overlay.index", "overlay.row"
"""Inputs of a graph with overlays: the number, the same as the index of an expert, and the row of a
bank of tables, number·vocabulary + token, which the executable supplies."""
BANK_LAYOUT = "w16"
"""Layout of the matrices in banks; vectors are float32."""
FACTORS = "a", "b"
"""Parts of overlays that are matrices of a low-rank product."""
VECTORS = "before", "shift", "gain", "after"
PARTS = ("whole", *FACTORS, *VECTORS)
"""Parts of overlays, each of which a weight may have a bank of."""

STACKS = ops.HeadMatMul, ops.ExpertMatMul
"""Products of stacks, of which overlays change every matrix."""


def matrices(op: Op) -> int:
    """Return how many matrices a product has."""
    return getattr(op, "heads", getattr(op, "experts", 1))


@dataclass(frozen=True)
class OverlayChange:
    """A weight's nodes of overlays.

    Attributes
    ----------
    rank : of their low-rank products; 0 for none.
    before, gain, after : whether vectors multiply the input, the product, and the output with its
        bias.
    table : it is the change of rows looked up, not of a product.
    shift : whether a vector is added to the input, after `before`.
    whole : whether an overlay may have a matrix of its own in the weight's place.
    """

    rank: int = 0
    before: bool = False
    gain: bool = False
    after: bool = False
    table: bool = False
    shift: bool = False
    whole: bool = False


def bank_name(weight: str, part: str, table: bool = False) -> str:
    """Return the name of a bank of a weight: of a part of `OverlayPart`."""
    return f"{weight}@{'table.' if table else ''}{part}"


@lru_cache(maxsize=4096)
def overlay_inputs(number: int) -> Mapping[str, Any]:
    """Return what a row of an overlay supplies; nobody may change it."""
    index = np.array([number], np.int32)
    index.flags.writeable = False
    return MappingProxyType({OVERLAY: np.int32(number), OVERLAY_INDEX: index})


def overlay_number(inputs: Mapping[str, Any]) -> int | None:
    """Return the number of an overlay whose `overlay_inputs` these are; None if they are not."""
    number = inputs.get(OVERLAY)
    if isinstance(number, np.int32) and overlay_inputs(int(number)) is inputs:
        return int(number)
    return None


def changeable(program: Program) -> dict[tuple[str, bool], Node]:
    """Return the nodes of the trunk whose weights overlays may change, by weight and `table`."""
    found = {}
    for node in primitives_of(program).trunk.nodes:
        looked_up = isinstance(node.op, ops.EmbedRows) and not node.op.missing
        table = looked_up and node.inputs[0] == "token"
        row = isinstance(node.op, ops.MatMul) and _is_row(node, program)
        if table or row or isinstance(node.op, STACKS):
            (name,) = node.weights.values()
            found[name, table] = node
    return found


def _is_row(node: Node, program: Program) -> bool:
    return len(primitives_of(program).trunk.values[node.inputs[0]].shape) == 1


def is_bank(weight: str) -> bool:
    """Return whether a weight is a bank of overlays."""
    return weight.rpartition("@")[2].removeprefix("table.") in PARTS and "@" in weight


def makes_outputs(node: Node) -> bool:
    """Return whether a node is a product with matrices of overlays whose rows are the weight's: B
    of B·(A·x), or one in the weight's place.
    """
    weight = node.weights["weight"]
    return is_bank(weight) and weight.endswith(("@b", "@table.b", "@whole"))
