"""Experts of a task, and tubes of experts: their busiest neurons in a better format.

A mask of experts narrows which ones a router may choose. Tubes split each expert of a model in two:
the busiest neurons, and the others in a smaller format, where the busiest ones' rows are zeros. The
layer's output is then the sum of both, each of experts that the same router chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError, UnsupportedError
from cortiq.explain.observed import compiled_to_observe, value_rows
from cortiq.ir import Node, Program, WeightSpec
from cortiq.ir.layers import MoE, Residual
from cortiq.ir.trunk_layers import layer_of
from cortiq.model.source import ModelSource
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert
from cortiq_masks.statistics import WINDOW

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass
class ExpertStatistics:
    """Sums over the rows of a text, by layer.

    Attributes
    ----------
    counts : how often each expert was chosen, [experts].
    energy : Σ (w·a)² of each neuron of each expert, w the expert's weight, [experts, inner].
    """

    counts: dict[int, Doubles] = field(default_factory=dict)
    energy: dict[int, Doubles] = field(default_factory=dict)


def expert_nodes(program: Program) -> dict[int, Node]:
    """Return the mixture of experts of each layer that has exactly one."""
    found: dict[int, list[Node]] = {}
    for node in program.trunk.nodes:
        layer = layer_of(node)
        if layer is not None and isinstance(node.op, MoE):
            found.setdefault(layer, []).append(node)
    nodes = {layer: held[0] for layer, held in found.items() if len(held) == 1}
    if not nodes:
        raise RequestError("the model has no routed experts", where="experts")
    return nodes


def expert_statistics(
    source: ModelSource, ids: Sequence[int], *, window: int = WINDOW, backend: str | None = None
) -> ExpertStatistics:
    """Compute how often experts are chosen by a text's rows, and how busy their neurons are."""
    nodes, found = expert_nodes(source.program), ExpertStatistics()
    ends = ("route.0", "route.1", "product")
    names = {i: [f"{node.name}.{end}" for end in ends] for i, node in nodes.items()}
    executable = compiled_to_observe(source, backend)
    try:
        wanted = [name for held in names.values() for name in held]
        for held in value_rows(executable, ids, wanted, window):
            for layer, node in nodes.items():
                op: Any = node.op
                index, weight, rows = (held[name] for name in names[layer])
                chosen = np.asarray(index, np.int32)
                counts = found.counts.setdefault(layer, np.zeros(op.experts))
                energy = found.energy.setdefault(layer, np.zeros((op.experts, op.inner)))
                np.add.at(counts, chosen, weight != 0)
                np.add.at(energy, chosen, (weight[..., None].astype(np.float64) * rows) ** 2)
    finally:
        executable.close()
    return found


def experts_that_cover(counts: Doubles, cover: float) -> npt.NDArray[np.bool_]:
    """Return the fewest experts that were chosen for a share of all choices.

    Of equally frequent ones the first are taken.

    Raises
    ------
    RequestError : `cover` is not in (0, 1], or nothing was counted.
    """
    if not 0.0 < cover <= 1.0 or counts.sum() <= 0:
        raise RequestError("takes a share in (0, 1] of some choices", where="experts.cover")
    order = np.argsort(-counts, kind="stable")
    reached = np.cumsum(counts[order]) >= cover * counts.sum()
    kept = np.zeros(len(counts), np.bool_)
    kept[order[: int(np.argmax(reached)) + 1]] = True
    return kept


def with_admitted(
    source: ModelSource, admitted: Mapping[int, npt.NDArray[np.bool_]]
) -> tuple[Program, dict[str, Weight]]:
    """Return program and weights of a model whose routers choose admitted experts only.

    Raises
    ------
    UnsupportedError : fewer are admitted than a router chooses, or the layer lists its experts.
    """
    nodes, weights = expert_nodes(source.program), dict(source.weights)
    specs, masked = dict(source.program.weights), {}
    for layer, flags in admitted.items():
        node = nodes.get(layer)
        op: Any = None if node is None else node.op
        if op is None or len(flags) != op.experts or op.listed or op.masked:
            what = f"admits {len(flags)} experts of layer {layer}, which has others"
            raise UnsupportedError(what, where="experts")
        if int(flags.sum()) < op.router.top_k:
            what = f"admits {int(flags.sum())} experts of layer {layer}, the router takes "
            raise UnsupportedError(f"{what}{op.router.top_k}", where="experts")
        assert node is not None
        name = f"{node.name}.admitted"
        weights[name] = Weight.from_floats(flags.astype(F32)[None])
        specs[name] = WeightSpec((op.experts,), "f32")
        roles = {**node.weights, "mask": name}
        masked[node.name] = replace(node, op=replace(op, masked=True), weights=roles)
    return _replaced(source.program, lambda n: [masked.get(n.name, n)], specs), weights


def busiest(energy: Doubles, count: int) -> Indices:
    """Return the numbers of each expert's busiest neurons, ascending, [experts, count].

    Of equally busy ones the first are taken.
    """
    return np.sort(np.argsort(-energy, axis=1, kind="stable")[:, :count], axis=1)


def with_expert_tubes(
    source: ModelSource, tubes: Mapping[int, Indices], rest: str = "w8", better: str = "w16"
) -> tuple[Program, dict[str, Weight]]:
    """Return program and weights of a model whose experts are split.

    Parameters
    ----------
    source : opened in a format at least as good as both.
    tubes : numbers of each expert's neurons in the tube, [experts, count], by layer.
    rest, better : formats of the other neurons, and of those in tubes.

    Raises
    ------
    UnsupportedError : experts have biases, or rows of gate and up in turns.
    """
    nodes, weights = expert_nodes(source.program), dict(source.weights)
    specs, split = dict(source.program.weights), {}
    for layer, numbers in tubes.items():
        node = nodes.get(layer)
        op: Any = None if node is None else node.op
        if op is None or op.biased or op.interleaved or op.latent_biased:
            what = f"splits experts of layer {layer}, which has none, or with biases or in turns"
            raise UnsupportedError(what, where="experts")
        assert node is not None
        roles = [role for role in ("gate", "up", "down") if role in node.weights]
        renamed = {role: f"{node.weights[role]}.tube" for role in roles}
        for role in roles:
            name = node.weights[role]
            pair = _split(weights[name], role, numbers, rest, better, name)
            for at, made in zip((name, renamed[role]), pair, strict=True):
                weights[at] = made
                rows = made.shape[0] // op.experts
                specs[at] = WeightSpec((op.experts, rows, made.shape[1]), made.layout.name)
        split[node.name] = _with_tube(node, numbers.shape[1], renamed)
    return _replaced(source.program, lambda n: split.get(n.name, [n]), specs), weights


def _with_tube(node: Node, count: int, renamed: Mapping[str, str]) -> list[Node]:
    """Return a layer's node, that of its tubes, and their sum."""
    op: Any = node.op
    (out,) = node.outputs
    tube = replace(op, inner=count, shared_inner=0, shared_biased=False, shared_factor=False)
    own = {role: renamed.get(role, node.weights[role]) for role in tube.weight_shapes()}
    rest = replace(node, name=f"{node.name}.rest", outputs=(f"{out}.rest",))
    part = Node(f"{node.name}.tube", tube, node.inputs, (f"{out}.tube",), own)
    return [rest, part, Node(node.name, Residual(), (f"{out}.rest", f"{out}.tube"), (out,))]


def _replaced(program: Program, written: Any, specs: Mapping[str, WeightSpec]) -> Program:
    """Return the program with nodes written otherwise; new values have their sums' types."""
    values, nodes = dict(program.trunk.values), []
    for node in program.trunk.nodes:
        made = written(node)
        values |= {o: values[node.outputs[0]] for n in made for o in n.outputs if o not in values}
        nodes += made
    trunk = replace(program.trunk, nodes=tuple(nodes), values=values)
    return replace(program, graphs={**program.graphs, "trunk": trunk}, weights=dict(specs))


def _split(
    weight: Weight, role: str, numbers: Indices, rest: str, better: str, name: str
) -> tuple[Weight, Weight]:
    """Return a stack without the tubes' neurons, and one of these alone."""
    experts = len(numbers)
    values = embedding_rows(weight, np.arange(weight.shape[0]), name=name)
    stack: Floats = values.reshape(experts, -1, weight.shape[1])
    each = np.arange(experts)[:, None]
    if role == "down":
        tube = np.stack([stack[e][:, numbers[e]] for e in range(experts)])
        for e in range(experts):
            stack[e][:, numbers[e]] = 0
    else:
        tube = stack[each, numbers]
        stack[each, numbers] = 0
    return _converted(stack, rest, name), _converted(np.ascontiguousarray(tube), better, name)


def _converted(stack: Floats, target: str, name: str) -> Weight:
    return convert(Weight.from_floats(stack.reshape(-1, stack.shape[-1])), target, name)
