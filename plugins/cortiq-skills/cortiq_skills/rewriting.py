"""Programs whose experts are chosen by resonance: the function behind `--rewrite resonance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.errors import RequestError, UnsupportedError
from cortiq.formats.safetensors import read_header
from cortiq.ir import Node, Program, WeightSpec
from cortiq.ir.layers import MoE
from cortiq.models.added_tensors import read_tensors
from cortiq.models.rewrite_arguments import (
    as_facts,
    choice,
    chosen_layers,
    file_path,
    layers,
    read_arguments,
    whole,
)
from cortiq.models.rewriting import Rewritten
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import weight_values
from cortiq_skills.notice import NOTICE
from cortiq_skills.resonance import UNBOUNDED, ResonanceMoE

Weights = Mapping[str, Weight]
Descriptors = dict[str, Floats]


def expert_nodes(program: Program, kind: type[MoE]) -> list[Node]:
    """Return the nodes of this very class of experts, in order."""
    return [node for node in program.trunk.nodes if type(node.op) is kind]


def resonance(program: Program, weights: Weights, argument: str) -> Rewritten:
    """Choose experts by the subspace a row is nearest to, in place of a product with a matrix."""
    readers = {"layers": layers, "top_k": whole(1), "shell": choice("on", "off"), "file": file_path}
    values = read_arguments(argument, readers, {"layers": "all", "top_k": 1, "shell": "on"},
                            "resonance")  # fmt: skip
    nodes = expert_nodes(program, MoE)
    picked = [nodes[at] for at in sorted(chosen_layers(values["layers"], len(nodes)))]
    if not picked:
        raise UnsupportedError("has no layer of routed experts", where="rewrite")
    room = {node.name: (_experts(node), _width(node)) for node in nodes}
    held = described(values["file"], room, [node.name for node in picked])
    made, given = dict[str, Node](), dict[str, Weight]()
    for node in picked:
        made[node.name] = _routed(node, held[node.name], values, given)
    return with_nodes(program, {**weights, **given}, made, values, given)


def _experts(node: Node) -> int:
    op: Any = node.op
    return int(op.experts)


def _width(node: Node) -> int:
    op: Any = node.op
    return int(op.width)


def _routed(node: Node, found: Descriptors, values: Any, given: dict[str, Weight]) -> Node:
    """Return a node of experts with descriptors in place of its router; add their weights."""
    op: Any = node.op
    plain = not (op.selection_bias or op.router_biased or op.router_cap or op.router_norm)
    if not plain or op.listed or op.router.groups > 1:
        what = "routes by more than a matrix: a bias, a cap, a norm, groups or a list"
        raise UnsupportedError(what, where=node.name)
    if values["top_k"] > op.experts:
        hint = f"{node.name} has {op.experts} experts"
        raise RequestError(f"top_k is {values['top_k']}", where="rewrite", hint=hint)
    router = replace(op.router, top_k=values["top_k"])
    if values["top_k"] == 1:  # the weight of the only expert is 1, whatever the scores are
        router = replace(router, kind="softmax_topk", renormalise=False)
    kept = {f.name: getattr(op, f.name) for f in fields(MoE)} | {"router": router}
    directions = found["u"].shape[1]
    made = ResonanceMoE(**kept, directions=directions, shelled=values["shell"] == "on")
    return with_descriptors(node, made, found, given)


def with_descriptors(
    node: Node, op: ResonanceMoE, found: Descriptors, given: dict[str, Weight]
) -> Node:
    """Return the node with this operator; add the weights that its scores are computed with."""
    arrays = {
        "minus_means": -found["mu"].reshape(1, -1),
        "offsets": found["bias"][None],
        "minus_shells": -found["shell"][None],
        "ones": np.ones((1, op.width), F32),
        "basis": found["u"].reshape(-1, op.width),
        "basis_ones": np.ones((1, op.directions), F32),
    }
    names = {role: f"{node.name}.{role}" for role in op.score_shapes()}
    given |= {name: Weight.from_floats(arrays[role]) for role, name in names.items()}
    roles = {**node.weights, **names}
    return replace(node, op=op, weights={role: roles[role] for role in op.weight_shapes()})


def described(
    path: Path, room: Mapping[str, tuple[int, int]], names: Sequence[str]
) -> dict[str, Descriptors]:
    """Return the descriptors of some layers' experts, by the names of their nodes.

    Those without a bias have 0, those without a shell the largest number there is, and those
    without directions none.

    Parameters
    ----------
    room : experts and width of all layers that the file may describe.

    Raises
    ------
    FormatError : some are missing, of another shape, or not finite.
    """
    there = read_header(path).tensors
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (count, width) in room.items():
        shapes[f"{name}.mu"] = (count, width)
        if f"{name}.u" in there:
            shapes[f"{name}.u"] = (count, *there[f"{name}.u"].shape[1:2], width)
        optional = (f"{name}.bias", f"{name}.shell")
        shapes |= {full: (count,) for full in optional if full in there}
    grown = {name: tensor.shape for name, tensor in there.items() if ".grown." in name}
    wanted = [full for full in shapes if full.rpartition(".")[0] in names]
    read = read_tensors(path, {**grown, **shapes}, wanted)
    found = {}
    for name in names:
        count, width = room[name]
        held = {
            "u": np.zeros((count, 0, width), F32), "bias": np.zeros(count, F32),
            "shell": np.full(count, UNBOUNDED, F32),
        }  # fmt: skip
        mine = [full for full in wanted if full.rpartition(".")[0] == name]
        held |= {f.rpartition(".")[2]: weight_values(read[f], f).reshape(shapes[f]) for f in mine}
        found[name] = held
    return found


def with_nodes(
    program: Program, weights: Weights, made: Mapping[str, Node], values: Any, given: Weights
) -> Rewritten:
    """Return the program with other nodes, and without the weights that none reads any more."""
    nodes = tuple(made.get(node.name, node) for node in program.trunk.nodes)
    graphs = {**program.graphs, "trunk": replace(program.trunk, nodes=nodes)}
    used = {n for g in graphs.values() for node in g.nodes for n in node.weights.values()}
    shapes = {node.weights[role]: shape for node in made.values()
              for role, shape in node.op.weight_shapes().items()}  # fmt: skip
    specs = {**program.weights, **{name: WeightSpec(shapes[name]) for name in given}}
    specs = {name: spec for name, spec in specs.items() if name in used}
    note = f"{len(made)} layers choose experts by resonance: {', '.join(made)}"
    changed = replace(program, graphs=graphs, weights=specs)
    return Rewritten(changed, weights, as_facts(values, ["file"]), (note, NOTICE))
