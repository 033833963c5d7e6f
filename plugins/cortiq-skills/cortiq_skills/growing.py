"""Experts behind those that a model has: the function behind `--rewrite grow`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.safetensors import read_header
from cortiq.ir import Node, Program
from cortiq.models.added_tensors import read_tensors
from cortiq.models.rewrite_arguments import file_path, read_arguments
from cortiq.models.rewriting import Rewritten
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import weight_values
from cortiq_skills.overlay import in_layout
from cortiq_skills.resonance import ResonanceMoE
from cortiq_skills.rewriting import (
    Descriptors,
    Weights,
    described,
    expert_nodes,
    with_descriptors,
    with_nodes,
)

STACKS = ("gate", "up", "down")
PARTS = (*STACKS, "mu", "u", "bias", "shell")
"""Tensors of grown experts."""


def grow(program: Program, weights: Weights, argument: str) -> Rewritten:
    """Append experts with shells of their own to layers that choose by resonance."""
    values = read_arguments(argument, {"file": file_path}, {}, "grow")
    path = values["file"]
    there = read_header(path).tensors
    known = {node.name: node for node in expert_nodes(program, ResonanceMoE)}
    nodes = [node for name, node in known.items() if f"{name}.grown.mu" in there]
    own = {f"{name}.{part}" for name in known for part in PARTS}
    own |= {f"{node.name}.grown.{part}" for node in nodes for part in PARTS}
    strange = [name for name in there if name not in own]
    if not nodes or strange:
        what = f"holds {strange[0]}" if strange else "holds no experts"
        raise FormatError(f"{what}, of no layer that chooses by resonance", where=str(path),
                          hint="--rewrite resonance:… before it")  # fmt: skip
    made, given = dict[str, Node](), dict[str, Weight]()
    for node in nodes:
        made[node.name] = _grown(node, path, weights, given)
    return with_nodes(program, {**weights, **given}, made, values, given)


def _grown(node: Node, path: Path, weights: Weights, given: dict[str, Weight]) -> Node:
    """Return a node with the experts of a file behind its own; add their weights."""
    op: Any = node.op
    if op.masked or op.expert_scale or op.biased or op.interleaved or op.latent or not op.gated:
        what = "grows only experts of gate, up and down, without masks, scales and biases"
        raise UnsupportedError(what, where=node.name)
    if not op.shelled:
        raise UnsupportedError("grows only with shells", where=node.name, hint="shell=on")
    name, there, shapes = f"{node.name}.grown", read_header(path).tensors, op.weight_shapes()
    count = (there[f"{name}.mu"].shape or (0,))[0]
    if not count:
        raise FormatError(f"{name}.mu holds no experts", where=str(path))
    stacks = {f"{name}.{role}": (count, *shapes[role][1:]) for role in STACKS}
    read = read_tensors(path, {**{n: t.shape for n, t in there.items()}, **stacks}, stacks)
    before = _descriptors(node, op, weights)
    after = described(path, {name: (count, op.width)}, [name])[name]
    rank = max(before["u"].shape[1], after["u"].shape[1])
    both = {part: np.concatenate([_widened(before[part], rank), _widened(after[part], rank)])
            for part in before}  # fmt: skip
    grown = replace(op, experts=op.experts + count, directions=rank)
    roles = dict(node.weights)
    for role in STACKS:
        weight = weights[roles[role]]
        roles[role] = f"{name}.{role}.{op.experts}"
        given[roles[role]] = _appended(weight, read[f"{name}.{role}"], roles[role])
    return with_descriptors(replace(node, weights=roles), grown, both, given)


def _descriptors(node: Node, op: ResonanceMoE, weights: Weights) -> Descriptors:
    """Return the descriptors that a node has."""

    def held(role: str, *shape: int) -> Floats:
        name = node.weights[role]
        return weight_values(weights[name], name).reshape(shape)

    basis = (op.experts, op.directions, op.width)
    return {
        "mu": -held("minus_means", op.experts, op.width),
        "u": held("basis", *basis) if op.directions else np.zeros(basis, F32),
        "bias": held("offsets", op.experts),
        "shell": -held("minus_shells", op.experts),
    }


def _widened(values: Floats, rank: int) -> Floats:
    """Return directions with rows of zeros behind them, which find nothing; others as they are."""
    if values.ndim < 3:
        return values
    return np.pad(values, ((0, 0), (0, rank - values.shape[1]), (0, 0)))


def _appended(weight: Weight, added: Weight, name: str) -> Weight:
    """Return a stack with more rows, in its layout."""
    more = in_layout(weight_values(added, name), weight.layout.name.lower(), name)
    if weight.layout.kind == "float":
        weight = Weight.from_floats(weight_values(weight, name))
    parts = {key: np.concatenate([weight.parts[key], more.parts[key]]) for key in more.parts}
    return Weight(more.layout, (weight.shape[0] + more.shape[0], weight.shape[1]), parts)
