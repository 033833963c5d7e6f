"""Attention layers of a program in another form: the functions behind `--rewrite`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cortiq.errors import RequestError, UnsupportedError
from cortiq.ir import Graph, Node, Op, Program, WeightSpec
from cortiq.ir.layers import Attention
from cortiq.ir.op import violations_of
from cortiq.models.added_tensors import read_tensors
from cortiq.models.rewrite_arguments import (
    as_facts,
    choice,
    chosen_layers,
    file_path,
    layers,
    number,
    read_arguments,
    whole,
)
from cortiq.models.rewriting import Rewritten
from cortiq.numerics.layouts import Weight
from cortiq_bounded.layers import BoundedAttention, NystromAttention, SinkWindowAttention, refusal
from cortiq_bounded.phase_layer import TENSORS, PhaseMixer

Weights = Mapping[str, Weight]
REPLACED = (BoundedAttention, PhaseMixer)
"""Layers that stand in an attention's place."""


def attention_nodes(program: Program, chosen: str) -> list[Node]:
    """Return the attention nodes of the chosen layers that can be replaced, in order.

    Layers are counted by the trunk's attention nodes, whatever they are, those included that a
    rewriting before this one replaced.

    Raises
    ------
    UnsupportedError : none of the chosen layers can be, with the reason of the first.
    """
    nodes = [node for node in program.trunk.nodes if isinstance(node.op, (Attention, *REPLACED))]
    picked = [nodes[index] for index in sorted(chosen_layers(chosen, len(nodes)))]
    read = _read_elsewhere(program)
    reasons = {node.name: _refused(node, read) for node in picked}
    found = [node for node in picked if not reasons[node.name]]
    if not found:
        reason = next(iter(reasons.values()), "there is no attention layer")
        name = next(iter(reasons), "trunk")
        hint = "layers of full attention with keys of their own can be"
        raise UnsupportedError(f"no layer can be bounded: {reason}", where=name, hint=hint)
    return found


def _refused(node: Node, read: set[str]) -> str:
    op = node.op
    if not isinstance(op, Attention):
        return "is replaced by another rewriting"
    return refusal(op) or ("has keys that others read" if read & set(node.slots.values()) else "")


def _read_elsewhere(program: Program) -> set[str]:
    """Name the slots that several nodes touch."""
    touched = [
        slot for g in program.graphs.values() for node in g.nodes for slot in node.slots.values()
    ]
    return {slot for slot in touched if touched.count(slot) > 1}


def with_layers(program: Program, made: Mapping[str, tuple[Op, Mapping[str, str]]]) -> Program:
    """Return the program with other operators in some nodes, and names of their added weights."""
    nodes, weights, slots = [], dict(program.weights), dict(program.slots)
    for node in program.trunk.nodes:
        if node.name not in made:
            nodes.append(node)
            continue
        op, added = made[node.name]
        names = {**node.weights, **added}
        names = {role: names[role] for role in op.weight_shapes()}
        kinds = op.slot_kinds()
        held = {role: f"{node.name}.{role}" for role in kinds}
        for slot in node.slots.values():
            slots.pop(slot)
        slots |= {held[role]: kind for role, kind in kinds.items()}
        weights |= {added[r]: WeightSpec(s) for r, s in op.weight_shapes().items() if r in added}
        nodes.append(replace(node, op=op, weights=names, slots=held))
    trunk: Graph = replace(program.trunk, nodes=tuple(nodes))
    graphs = {**program.graphs, "trunk": trunk}
    used = {n for g in graphs.values() for node in g.nodes for n in node.weights.values()}
    kept = {name: spec for name, spec in weights.items() if name in used}
    return replace(program, graphs=graphs, weights=kept, slots=slots)


def tensor_name(node: Node, op: Op, role: str) -> str:
    """Return the name of a tensor that a layer takes beside its family's."""
    prefix = layer_prefix(node)
    if isinstance(op, PhaseMixer):
        return f"{prefix.rpartition('.')[0]}.vmf_attn.{TENSORS[role]}"
    return f"{prefix}.{role}"


def layer_prefix(node: Node) -> str:
    """Return the beginning of the names of a layer's tensors: that of its query matrix."""
    name = node.weights.get("q") or node.weights["qkv"]
    return name.rpartition(".")[0].rpartition(".")[0]


def rewrite_with(
    program: Program,
    weights: Weights,
    values: Mapping[str, Any],
    layer: Callable[[Attention], Op],
    file: str = "file",
) -> Rewritten:
    """Replace the attention of the layers that `values` names.

    Parameters
    ----------
    layer : makes the layer that stands in an attention's place.
    file : key of the file of the weights that layers add, named by `tensor_name`.
    """
    made: dict[str, tuple[Op, Mapping[str, str]]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    nodes = attention_nodes(program, values["layers"])
    for node in nodes:
        assert isinstance(node.op, Attention)
        op, known = layer(node.op), node.weights
        added = {r: tensor_name(node, op, r) for r in op.weight_shapes() if r not in known}
        shapes |= {added[role]: op.weight_shapes()[role] for role in added}
        made[node.name] = op, added
    changed = with_layers(program, made)
    given = read_tensors(values[file], shapes, shapes) if shapes else {}
    files = [file] if values.get(file) else []
    note = f"{len(nodes)} attention layers replaced: {', '.join(n.name for n in nodes)}"
    return Rewritten(changed, {**weights, **given}, as_facts(values, files), (note,))


def sink_window(program: Program, weights: Weights, argument: str) -> Rewritten:
    """Replace attention by a window and trained sinks: `swa_sink_v1`."""
    readers = {"layers": layers, "window": whole(1), "sinks": whole(0), "file": file_path}
    defaults = {"layers": "all", "window": 128, "sinks": 4}
    if "sinks=0" in argument.split(","):
        readers.pop("file")
    values = read_arguments(argument, readers, defaults, "swa_sink_v1")

    def layer(op: Attention) -> Op:
        return SinkWindowAttention(op, values["window"], values["sinks"])

    return rewrite_with(program, weights, values, layer)


def nystrom(program: Program, weights: Weights, argument: str) -> Rewritten:
    """Replace attention by one whose far rows are seen through landmarks."""
    readers = {
        "layers": layers, "seal": whole(1), "landmarks": whole(4), "window": whole(1),
        "sinks": whole(0), "exact": whole(0), "stride": whole(1), "reseal": whole(0),
        "rectifier": choice("aggregate", "fm"),
    }  # fmt: skip
    defaults = {
        "layers": "all", "seal": 512, "landmarks": 32, "window": 128, "sinks": 4, "exact": 0,
        "stride": 1, "reseal": 0, "rectifier": "aggregate",
    }  # fmt: skip
    values = read_arguments(argument, readers, defaults, "nystrom")
    options = {key: value for key, value in values.items() if key != "layers"}

    def layer(op: Attention) -> Op:
        made = NystromAttention(op, **options)
        if outside := violations_of(made.attention):
            raise RequestError(str(outside[0]), where="rewrite", hint="a larger seal, say")
        return made

    return rewrite_with(program, weights, values, layer)


def vmf_phase(program: Program, weights: Weights, argument: str) -> Rewritten:
    """Replace attention by phase mixers, with `kappa=yes` of hybrid κ."""
    readers = {
        "layers": layers, "heads": whole(1), "phases": whole(1), "value_dim": whole(1),
        "kappa": choice("yes", "no"), "mass": number, "file": file_path,
    }  # fmt: skip
    defaults = {"layers": "all", "kappa": "no", "mass": 0.0}
    values = read_arguments(argument, readers, defaults, "vmf_phase")
    shape = values["heads"], values["phases"], values["value_dim"]

    def layer(op: Attention) -> Op:
        return PhaseMixer(op.width, *shape, values["kappa"] == "yes", values["mass"])

    return rewrite_with(program, weights, values, layer)
