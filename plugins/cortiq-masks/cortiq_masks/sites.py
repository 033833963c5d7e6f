"""Places of a program that masks act on: the matrices behind neurons, heads and layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import UnsupportedError
from cortiq.ir import Node, Program, ops
from cortiq.ir.decompose import primitives_of
from cortiq.ir.layers import MLP, GatedMLP, XieluMLP
from cortiq.ir.layers.basic import Layer
from cortiq.ir.overlays import changeable
from cortiq.ir.trunk_layers import layer_of

FEED_FORWARD = (GatedMLP, MLP, XieluMLP)
_ENDS = ("o", "out", "down")
"""Roles of the matrices that write what a layer adds to the residual row."""


@dataclass(frozen=True)
class LayerPlaces:
    """The matrices of one layer of a model.

    Attributes
    ----------
    down : the weight that multiplies activations of neurons; empty where there is none, or several.
    width : neurons.
    o : the weight that multiplies the rows of heads. heads : how many rows there are.
    ends : weights of all that the layer adds. whole : whether there is nothing else that adds.
    """

    down: str = ""
    width: int = 0
    o: str = ""
    heads: int = 0
    ends: tuple[str, ...] = ()
    whole: bool = True


def feed_forward_nodes(program: Program) -> dict[int, Node]:
    """Return the feed-forward node of each layer that has exactly one."""
    found: dict[int, list[Node]] = {}
    for node in program.trunk.nodes:
        layer = layer_of(node)
        if layer is not None and isinstance(node.op, FEED_FORWARD):
            found.setdefault(layer, []).append(node)
    return {layer: nodes[0] for layer, nodes in found.items() if len(nodes) == 1}


def layer_places(program: Program) -> dict[int, LayerPlaces]:
    """Return the matrices of each layer of a program that is not decomposed yet."""
    known, nodes = changeable(program), feed_forward_nodes(program)
    by_layer: dict[int, list[Node]] = {}
    for node in program.trunk.nodes:
        if (layer := layer_of(node)) is not None:
            by_layer.setdefault(layer, []).append(node)
    found = {}
    for layer, held in by_layer.items():
        down = nodes.get(layer)
        attention = [n for n in held if isinstance(n.op, Layer) and n.op.head_rows]
        o = attention[0] if len(attention) == 1 else None
        ends = [n.weights[role] for n in held for role in _ENDS if role in n.weights]
        found[layer] = LayerPlaces(
            "" if down is None else down.weights["down"],
            0 if down is None else down.op.inner,  # type: ignore[attr-defined]
            "" if o is None else o.weights["o"],
            0 if o is None else o.op.head_rows,  # type: ignore[attr-defined]
            tuple(ends),
            all(_is_whole(n) for n in held) and all((end, False) in known for end in ends),
        )
    return found


def _is_whole(node: Node) -> bool:
    """Return whether what a node adds to the residual row is that of a matrix of `_ENDS`, if
    anything: norms and sums have none.
    """
    if not isinstance(node.op, Layer) or not node.weights:
        return True
    return sum(role in node.weights for role in _ENDS) == 1


def activation_values(program: Program) -> Mapping[int, str]:
    """Return the value, by name, that each layer's `down` multiplies, as floats."""
    trunk = primitives_of(program).trunk
    makers = {out: node for node in trunk.nodes for out in node.outputs}
    users = {n.weights["weight"]: n for n in trunk.nodes if isinstance(n.op, ops.MatMul)}
    found = {}
    for layer, node in feed_forward_nodes(program).items():
        value = users[node.weights["down"]].inputs[0]
        quantised = isinstance(makers[value].op, ops.Quantise)
        found[layer] = makers[value].inputs[0] if quantised else value
    return found


def place_of(places: Mapping[int, LayerPlaces], layer: int, where: str) -> LayerPlaces:
    """Return a layer's matrices; UnsupportedError if the model has no such layer."""
    if layer not in places:
        what = f"masks layer {layer}, and the model has {len(places)}"
        raise UnsupportedError(what, where=where, hint="the mask was made for another model")
    return places[layer]
