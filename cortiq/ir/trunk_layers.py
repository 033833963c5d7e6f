"""Numbers of a trunk's layers, and the values behind them."""

from __future__ import annotations

import re

from cortiq.ir.graph import Node, Program

_LAYER = re.compile(r"layers\.(\d+)\.")


def layer_of(node: Node) -> int | None:
    """Return the number of the layer that a node of a trunk is in."""
    found = _LAYER.match(node.name)
    return None if found is None else int(found[1])


def layer_values(program: Program) -> dict[int, str]:
    """Return the value behind each layer of a trunk, by the layer's number."""
    found = {}
    for node in program.trunk.nodes:
        layer = layer_of(node)
        if layer is not None and node.outputs:
            found[layer] = node.outputs[-1]
    return found
