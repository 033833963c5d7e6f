"""The verifier: a table of rules that every graph of a program must keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cortiq.domains import MAX_COUNT, Integer, violations
from cortiq.errors import GraphError
from cortiq.ir.decompose import primitives_of
from cortiq.ir.graph import Graph, Node, Program
from cortiq.ir.op import TypeMismatchError, inferred, violations_of

Finding = tuple[str, str]
"""The place and the fault."""

DTYPES = ("f32", "i32", "q16")
AXIS = CONTEXT = Integer(1, MAX_COUNT)


def verify(program: Program) -> None:
    """Check every rule on every graph; raises `GraphError` that lists all findings."""
    # By their entries' names: one graph under two entries is two graphs.
    graphs = [replace(graph, name=entry) for entry, graph in program.graphs.items()]
    findings = [f for graph in graphs for rule in RULES for f in rule(graph, program)]
    findings += _declarations(program)
    findings = findings or list(_decomposition(program))
    if findings:
        lines = "\n  ".join(f"{where}: {what}" for where, what in findings)
        raise GraphError(f"the program breaks the rules of the IR:\n  {lines}")


def _declarations(program: Program) -> Iterator[Finding]:
    """Yield the faults of a program's declarations outside its graphs."""
    for name, slot in program.slots.items():
        for violation in violations(slot, type(slot).__name__):
            yield name, str(violation)
    for violation in CONTEXT.violations(program.context, "context"):
        yield "program", str(violation)


def _decomposition(program: Program) -> Iterator[Finding]:
    """Yield the builder's refusals of decompositions with these options."""
    try:
        primitives_of(program)
    except GraphError as error:
        yield error.where or "program", error.what


def _options_in_domain(graph: Graph, program: Program) -> Iterator[Finding]:
    for node in graph.nodes:
        for violation in violations_of(node.op):
            yield node.name, str(violation)


def _sound(graph: Graph) -> Iterator[Node]:
    """Yield the nodes whose operators can infer types, weights and slots."""
    return (node for node in graph.nodes if not violations_of(node.op))


def _types_exist(graph: Graph, program: Program) -> Iterator[Finding]:
    for name, (shape, dtype) in graph.values.items():
        if dtype not in DTYPES or not all(map(AXIS.admits, shape)):
            yield graph.name, f"the type of {name!r}, {dtype}{list(shape)}, is not a type of the IR"


def _defined_before_use(graph: Graph, program: Program) -> Iterator[Finding]:
    defined = set(graph.inputs)
    for node in graph.nodes:
        for name in node.inputs:
            if name not in defined:
                yield node.name, f"reads {name!r}, which no earlier node computes"
        for name in node.outputs:
            if name in defined:
                yield node.name, f"computes {name!r} a second time"
        defined |= set(node.outputs)
    for name in graph.outputs:
        if name not in defined:
            yield graph.name, f"output {name!r} is never computed"


def _types_agree(graph: Graph, program: Program) -> Iterator[Finding]:
    for node in _sound(graph):
        known = [graph.values.get(n) for n in (*node.inputs, *node.outputs)]
        if None in known:
            yield node.name, "an input or output has no type"
            continue
        inputs = [graph.values[n] for n in node.inputs]
        try:
            outputs = inferred(node.op, tuple(inputs))
        except TypeMismatchError as error:
            yield node.name, str(error)
            continue
        if outputs != tuple(graph.values[n] for n in node.outputs):
            yield node.name, f"the declared outputs differ from those of {node.op.kind}"


def _weights_exist(graph: Graph, program: Program) -> Iterator[Finding]:
    for node in _sound(graph):
        for role, shape in node.op.weight_shapes().items():
            spec = program.weights.get(node.weights.get(role, ""))
            if spec is None:
                yield node.name, f"has no weight in the role {role!r}"
            elif spec.shape != shape:
                yield node.name, f"weight {node.weights[role]!r} is {spec.shape}, needs {shape}"


def _slots_fit(graph: Graph, program: Program) -> Iterator[Finding]:
    for node in _sound(graph):
        for role, kind in node.op.slot_kinds().items():
            slot = program.slots.get(node.slots.get(role, ""))
            if slot != kind:
                yield node.name, f"slot {node.slots.get(role)!r} is {slot}, needs {kind}"


def _slots_are_written_once(graph: Graph, program: Program) -> Iterator[Finding]:
    writers: dict[str, str] = {}
    others = (g for entry, g in program.graphs.items() if entry != graph.name)
    elsewhere = {slot for other in others for slot in other.written_slots()}
    for node in graph.nodes:
        writes = node.op.writes_slots
        for slot in node.slots.values():
            if writes and slot in writers:
                yield node.name, f"writes slot {slot!r}, which {writers[slot]!r} already wrote"
            elif writes:
                writers[slot] = node.name
            elif slot not in writers and slot not in elsewhere:
                yield node.name, f"reads slot {slot!r}, which no earlier node writes"
    for slot in writers.keys() & elsewhere:
        yield graph.name, f"writes slot {slot!r}, which another graph writes too"


def _dtypes_meet_layouts(graph: Graph, program: Program) -> Iterator[Finding]:
    for node in graph.nodes:
        layout = _matrix_layout(node, program)
        if layout is None:
            continue
        dtype = graph.values[node.inputs[0]].dtype
        if (dtype == "f32") != (layout == "f32"):
            yield node.name, f"a {dtype} row meets a weight of layout {layout!r}"


def _matrix_layout(node: Node, program: Program) -> str | None:
    if not node.op.kind.endswith("MatMul"):
        return None
    spec = program.weights.get(node.weights.get("weight", ""))
    return spec.layout if spec else None


RULES: tuple[Callable[[Graph, Program], Iterator[Finding]], ...] = (
    _options_in_domain,
    _types_exist,
    _defined_before_use,
    _types_agree,
    _weights_exist,
    _slots_fit,
    _slots_are_written_once,
    _dtypes_meet_layouts,
)
