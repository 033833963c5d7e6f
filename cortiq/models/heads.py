"""Join draft heads to a trunk: their tensors, and the entry graphs built from them.

    u = W·[norm(embed(token)) ; norm(hidden)]        the embedding's half first
    x = the block of a trunk layer, over rows of its own
    logits = the trunk's head of norm(x)

The block is a layer of the trunk again, with other tensors: the mixer of one whose tensors the
module has, and the feed-forward part of one (a plain MLP as wide as its tensors are). So a
module is written for every family at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from cortiq.errors import UnsupportedError
from cortiq.ir import Builder, Graph, Node, Op, Program, Value, ops
from cortiq.ir.heads import CASCADE, CHAIN, KEPT_ROWS, RECALLED, DraftHead
from cortiq.ir.layers import GatedMLP, Linear
from cortiq.models import head_streams
from cortiq.models.head_tensors import HeadTensors, Shape

LARGEST_PART = 128
"""Values of a kept row that share an exponent, at most."""
MOST_TOLD = 6
"""Tensors that an error names."""
WITHOUT = "load the model with heads='off'"
KEPT = "kept"
"""Name of the slot where a graph keeps the rows that a module recalls."""


@dataclass(frozen=True)
class HeadModule:
    """Canonical tensor names of one module.

    Attributes
    ----------
    layer : beginning of its block's names, as `model.layers.N` is of a trunk layer's.
    embedding_norm, hidden_norm, project, norm : without `.weight`.
    table, head : its own embedding and output matrix, likewise; empty for the trunk's.
    second : beginning of the names of its block's second half, where a layer is a half.
    embedding_project : of the embedding's half, where both are projected apart and added in every
        residual stream; the hidden row is that of all streams.
    """

    layer: str
    embedding_norm: str
    hidden_norm: str
    project: str
    norm: str
    table: str = ""
    head: str = ""
    second: str = ""
    embedding_project: str = ""


@dataclass(frozen=True)
class HeadPlan:
    """A draft head to be built: its style, the rows that the trunk keeps for it, its modules."""

    style: str
    source: str
    modules: tuple[HeadModule, ...]


def with_heads(program: Program, plan: HeadPlan, held: HeadTensors) -> Program:
    """Return the program with a draft head's modules as entries and a trunk that keeps rows.

    Raises
    ------
    UnsupportedError : a module's block is no layer of the trunk.
    """
    others = [name for name in program.graphs if name != "trunk"]
    if others:
        what = f"a draft head in addition to the program's own entry {others[0]}"
        raise UnsupportedError(what, where="heads", hint=WITHOUT)
    head_streams.check_source(program.trunk, plan.source, plan.modules[0].embedding_project != "")
    chained = plan.style == CHAIN
    entries = ("mtp",) if chained else tuple(f"mtp.{k}" for k in range(len(plan.modules)))
    head = DraftHead(plan.style, entries, plan.source)
    b = Builder(context=program.context, facts={**program.facts, "draft_head": head})
    b.weights.update(program.weights)
    b.slots.update(program.slots)
    resume(b, program.trunk)
    keep(b, Value(plan.source, b.values[plan.source]), KEPT_ROWS)
    b.graph("trunk", program.trunk.outputs)
    source = KEPT_ROWS
    for k, (entry, module) in enumerate(zip(entries, plan.modules, strict=True)):
        _add_module(b, program.trunk, entry, module, source, held)
        if plan.style == CASCADE and k + 1 < len(entries):
            source = f"{entry}.{KEPT}"
            keep(b, Value(head.output(k), b.values[head.output(k)]), source)
        b.graph(entry, (f"{entry}.out", f"{entry}.hidden", "logits"))
    return b.program()


def resume(b: Builder, graph: Graph) -> None:
    """Continue writing a finished graph."""
    b.inputs, b.nodes, b.values = list(graph.inputs), list(graph.nodes), dict(graph.values)


def part_shape(width: int) -> tuple[int, int]:
    """Return the shape in which a row of this width is kept: parts, and their width."""
    count = next(n for n in range(1, width + 1) if width % n == 0 and width // n <= LARGEST_PART)
    return count, width // count


def keep(b: Builder, x: Value, slot: str) -> None:
    """Keep a row, quantised, so that other entries can recall it."""
    shape = part_shape(prod(x.type.shape))
    parts = b.add(ops.Reshape(shape), x, name=f"{slot}.parts")
    codes = b.add(ops.Quantise(), parts, name=f"{slot}.codes")
    b.add_node(ops.StoreKV(*shape, 0), codes, name=slot, slots={"kv": slot})


def recall(b: Builder, position: Value, width: int, slot: str, entry: str) -> Value:
    """Recall the row that `keep` kept at this position."""
    shape = part_shape(width)
    parts = b.add(ops.Recall(*shape), position, name=RECALLED, slots={"kv": slot})
    return b.add(ops.Reshape((width,)), parts, name=f"{entry}.given")


def _add_module(
    b: Builder, trunk: Graph, entry: str, module: HeadModule, source: str, held: HeadTensors
) -> None:
    """Add one module, up to its logits."""
    token, position = b.input("token"), b.input("position")
    last = next(node for node in trunk.nodes if "hidden" in node.outputs)
    table = next(node for node in trunk.nodes if "embed" in node.outputs)
    (width,) = trunk.values["hidden"].shape

    def norm(x: Value, name: str, prefix: str) -> Value:
        weights = head_streams.weights_of_last(last, prefix)
        return b.add(last.op, x, name=f"{entry}.{name}", weights=weights)

    streams = head_streams.stream_count(trunk) if module.embedding_project else 1
    given = recall(b, position, streams * width, source, entry)
    rows = dict.fromkeys(table.weights, f"{module.table}.weight") if module.table else table.weights
    embedded = b.add(table.op, token, name=f"{entry}.embed", weights=rows)
    if module.embedding_project:
        norms = module.embedding_norm, module.hidden_norm
        matrices = module.embedding_project, module.project
        head_streams.add_streams(b, embedded, given, entry, norms, matrices, last)
    else:
        first = norm(embedded, "embed_norm", module.embedding_norm)
        second = norm(given, "given_norm", module.hidden_norm)
        x = b.add(ops.Concat(), first, second, name=f"{entry}.joined")
        project = {"weight": f"{module.project}.weight"}
        b.add(Linear(2 * width, width), x, name=f"{entry}.input", weights=project)
    for node in _block(trunk, entry, module, held):
        absent = next((name for name in node.inputs if name not in b.values), None)
        if absent is not None:
            what, joint = f"draft modules of layers that take {absent}", f"{module.project}.weight"
            raise UnsupportedError(what, where=held.called(joint), hint=WITHOUT)
        inputs = [Value(name, b.values[name]) for name in node.inputs]
        b.add_node(node.op, *inputs, name=node.name, weights=node.weights, slots=node.slots)
    x = norm(Value(f"{entry}.out", b.values[f"{entry}.out"]), "hidden", module.norm)
    trunk_logits(b, trunk, entry, x, module.head)


def trunk_logits(b: Builder, trunk: Graph, entry: str, x: Value, head: str = "") -> None:
    """Write the trunk's nodes from its last norm to its logits again; with another output matrix if
    one is named.
    """
    known = {"hidden": x}
    for node in trunk.nodes:
        keeps = node.name.startswith(KEPT_ROWS)
        if node.inputs and not keeps and all(name in known for name in node.inputs):
            (out,) = node.outputs
            name = out if out == "logits" else f"{entry}.{out}"
            inputs = [known[n] for n in node.inputs]
            own = head and isinstance(node.op, Linear)
            weights = {"weight": f"{head}.weight"} if own else node.weights
            known[out] = b.add(node.op, *inputs, name=name, weights=weights)


def _block(trunk: Graph, entry: str, module: HeadModule, held: HeadTensors) -> Iterator[Node]:
    """Yield the nodes of a module's block, from `ENTRY.input` to `ENTRY.out`."""
    halves = _halves(trunk)
    if not is_like(trunk, module):
        what, joint = (
            "draft modules of layers of one mixer each",
            held.called(f"{module.project}.weight"),
        )
        raise UnsupportedError(what, where=joint, hint=WITHOUT)
    before = f"{entry}.input"
    places = [("middle", entry, module.layer), ("out", entry, module.layer)]
    if module.second:
        places = [("out", f"{entry}.first", module.layer), ("out", entry, module.second)]
    for half, named, prefix in places:
        found = _matching(halves[half], named, prefix, module, held)
        first = next(iter(found[0].inputs))
        for node in found:
            inputs = tuple(before if name == first else name for name in node.inputs)
            yield replace(node, inputs=inputs)
        before = f"{named}.{half}"


def _halves(trunk: Graph) -> dict[str, list[tuple[int, list[Node]]]]:
    """Return, by `middle` and `out`, the layer and its nodes up to the sum of that name."""
    found: dict[str, list[tuple[int, list[Node]]]] = {"middle": [], "out": []}
    nodes: list[Node] = []
    for node in trunk.nodes:
        start, _, rest = node.name.partition(".")
        if start != "layers":
            nodes = []
            continue
        nodes.append(node)
        layer, _, part = rest.partition(".")
        if part in found:
            found[part].append((int(layer), nodes))
            nodes = []
    return found


def is_like(trunk: Graph, module: HeadModule) -> bool:
    """Return whether a module's block is split into layers as the trunk's blocks are."""
    return bool(_halves(trunk)["middle"]) != bool(module.second)


def layer_count(trunk: Graph) -> int:
    """Return the number of layers of a trunk."""
    return len(_halves(trunk)["out"])


def _matching(
    halves: list[tuple[int, list[Node]]],
    entry: str,
    prefix: str,
    module: HeadModule,
    held: HeadTensors,
) -> list[Node]:
    """Return the last half layer whose tensors the module has, renamed; unwindowed ones first.

    Of a trunk with residual streams a module's half layer has one row in place of them.

    Raises
    ------
    UnsupportedError : there is none; what the one lacks that comes nearest. A module with streams.
    """
    found = []
    for layer, nodes in reversed(halves):
        renamed = [_renamed(node, layer, entry, prefix, held) for node in nodes]
        for name in (
            name for node in head_streams.reads_streams(renamed) for name in node.weights.values()
        ):
            if held.rows(name) is not None:
                what, joint = "draft modules with residual streams", f"{module.project}.weight"
                raise UnsupportedError(what, where=held.called(joint), hint=WITHOUT)
        renamed = head_streams.over_one_row(renamed)
        windowed = any(getattr(node.op, "window", None) for node in nodes)
        found.append((held.problems(_shapes(renamed)), windowed, layer, renamed))
    problems, _, layer, nearest = min(found, key=lambda it: (len(it[0]), it[1]))
    if not problems:
        return nearest
    told = "; ".join([*problems[:MOST_TOLD], *["…"] * (len(problems) > MOST_TOLD)])
    raise UnsupportedError(
        "the draft module is like no layer of this model",
        where=held.called(f"{module.project}.weight"),
        hint=f"for one like layer {layer}: {told}; heads='off' loads the model without it",
    )


def _renamed(node: Node, layer: int, entry: str, prefix: str, held: HeadTensors) -> Node:
    """Return a layer's node with the module's names and an MLP of its width."""
    here, file = f"layers.{layer}.", f"model.layers.{layer}."

    def moved(name: str) -> str:
        return f"{entry}.{name.removeprefix(here)}" if name.startswith(here) else name

    weights = {
        role: f"{prefix}.{name.removeprefix(file)}" if name.startswith(file) else name
        for role, name in node.weights.items()
    }
    return Node(
        moved(node.name),
        _of_width(node.op, weights, held),
        tuple(map(moved, node.inputs)),
        tuple(map(moved, node.outputs)),
        weights,
        {role: moved(name) for role, name in node.slots.items()},
    )


def _of_width(op: Op, weights: Mapping[str, str], held: HeadTensors) -> Op:
    """Return a gated MLP with its gate's width; any other operator unchanged."""
    gate = held.rows(weights["gate"]) if isinstance(op, GatedMLP) else None
    return replace(op, inner=gate) if gate and isinstance(op, GatedMLP) else op


def _shapes(nodes: list[Node]) -> dict[str, Shape]:
    """Return the weights of some nodes."""
    return {
        node.weights[role]: shape
        for node in nodes
        for role, shape in node.op.weight_shapes().items()
    }
