"""Looped models: every layer of the trunk runs twice, with the same weights and its own slots."""

from __future__ import annotations

from collections.abc import Mapping

from cortiq.ir import Builder, Node, Program

LOOPED = ("tiny-llama", "tiny-lfm2", "mini-qwen3_5_text")
"""Models whose layers are looped: key and value rows, rings, and recurrent states at two depths."""
AGAIN = "again."


def looped(program: Program) -> Program:
    """Return the program whose layers run twice; its trunk is its only entry graph.

    The second pass takes the first one's output and has its own slots: a backend that keys state or
    prepared weights by a weight's name must keep both passes apart.
    """
    trunk = program.trunk
    layers = [node for node in trunk.nodes if node.name.startswith("layers.")]
    names = {name for node in layers for name in node.outputs}
    first = trunk.nodes.index(layers[0])
    entered = {name for node in trunk.nodes[:first] for name in node.outputs}
    out = layers[-1].outputs[0]
    moved = {name: AGAIN + name for name in names} | dict.fromkeys(entered, out)
    slots = {slot: AGAIN + slot for node in layers for slot in node.slots.values()}
    b = Builder(context=program.context, facts=program.facts)
    b.weights.update(program.weights)
    b.inputs, b.values = list(trunk.inputs), dict(trunk.values)
    for slot, again in slots.items():
        b.slots |= {slot: program.slots[slot], again: program.slots[slot]}
    b.values |= {AGAIN + name: trunk.values[name] for name in names}
    second = [_renamed(node, moved, slots) for node in layers]
    rest = [_renamed(node, {out: AGAIN + out}, {}) for node in trunk.nodes[first + len(layers) :]]
    b.nodes = [*trunk.nodes[: first + len(layers)], *second, *rest]
    return b.program(outputs=trunk.outputs)


def _renamed(node: Node, values: Mapping[str, str], slots: Mapping[str, str]) -> Node:
    """Return a node that reads and writes other values and slots, with a matching name."""
    names = [values.get(name, name) for name in node.outputs]
    return Node(
        AGAIN + node.name if names != list(node.outputs) else node.name,
        node.op,
        tuple(values.get(name, name) for name in node.inputs),
        tuple(names),
        node.weights,
        {role: slots.get(name, name) for role, name in node.slots.items()},
    )
