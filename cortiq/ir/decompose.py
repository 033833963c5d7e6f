"""Decompose layers to primitives, one step at a time, until a backend takes every node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cortiq.errors import GraphError
from cortiq.ir.graph import Builder, Graph, Node, Program, Scope, Value


def decompose(node: Node, graph: Graph, layouts: Mapping[str, str | None]) -> list[Node]:
    """Decompose a layer by one step, into nodes whose last outputs carry its output names.

    Parameters
    ----------
    layouts : layout of each weight; a Linear over an `f32` weight decomposes differently from one
        over integer codes.
    """
    nodes, _ = _decompose(node, graph.values, layouts)
    return nodes


def _decompose(node: Node, values: Mapping, layouts: Mapping[str, str | None]) -> tuple[list, dict]:
    if node.op.primitive:
        raise GraphError(f"{node.op.kind} is a primitive and has no decomposition", where=node.name)
    builder = Builder(context=0)
    builder.values.update({name: values[name] for name in node.inputs})
    builder.values.setdefault("position", values["position"])
    inputs = [Value(name, values[name]) for name in node.inputs]
    result = node.op.decompose(Scope(builder, node, layouts), *inputs)
    results = result if isinstance(result, tuple) else (result,)
    rename = {v.name: out for v, out in zip(results, node.outputs, strict=True)}
    nodes = [_rename(n, rename) for n in builder.nodes]
    types = {rename.get(name, name): type_ for name, type_ in builder.values.items()}
    return nodes, types


def _rename(node: Node, names: Mapping[str, str]) -> Node:
    inputs = tuple(names.get(n, n) for n in node.inputs)
    outputs = tuple(names.get(n, n) for n in node.outputs)
    return replace(node, inputs=inputs, outputs=outputs)


def expand(graph: Graph, layouts: Mapping[str, str | None], keep: Callable[[Node], bool]) -> Graph:
    """Decompose every node that `keep` refuses, repeatedly; primitives always stay.

    Raises `GraphError` if a node or value has the name of one inside a layer.
    """
    values, done = dict(graph.values), []
    names = {node.name for node in graph.nodes}
    pending = list(reversed(graph.nodes))
    while pending:
        node = pending.pop()
        if node.op.primitive or keep(node):
            done.append(node)
            continue
        nodes, types = _decompose(node, values, layouts)
        _check_names(node, nodes, types, names - {node.name}, values)
        names.update(inner.name for inner in nodes)
        values.update(types)
        pending.extend(reversed(nodes))
    kept = tuple(_share(done, set(graph.outputs)))
    computed = {*graph.inputs, *(name for node in kept for name in node.outputs)}
    there = {name: type_ for name, type_ in values.items() if name in computed}
    return replace(graph, nodes=kept, values=there)


def _check_names(
    node: Node, nodes: list[Node], types: Mapping, names: set[str], values: Mapping
) -> None:
    """Refuse names that a layer's inner nodes and values share with others."""
    own = {*node.inputs, *node.outputs, "position"}
    taken = sorted({n.name for n in nodes} & names | (types.keys() - own) & values.keys())
    if taken:
        what = f"is named as a part of {node.name!r}, which is a layer"
        raise GraphError(what, where=taken[0], hint="Name it otherwise.")


def _share(nodes: list[Node], relied_on: set[str]) -> list[Node]:
    """Drop nodes that repeat an earlier one's computation (q, k and v quantise the same row).

    A node that computes an output of the graph stays: callers ask for it by name.
    """
    seen: dict[tuple, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    kept = []
    for node in nodes:
        node = _rename(node, {n: names.get(n, n) for n in node.inputs})
        key = (node.op, node.inputs, *sorted(node.weights.items()))
        first = None if node.slots else seen.setdefault(key, node.outputs)
        if first is None or first == node.outputs or relied_on.intersection(node.outputs):
            kept.append(node)
        else:
            names.update(zip(node.outputs, first, strict=True))
    return kept


def primitives_within(node: Node, graph: Graph, program: Program) -> Graph:
    """Return a graph of the primitives that a node stands for: of itself, if it is one."""
    alone = replace(graph, nodes=(node,), outputs=node.outputs)
    if node.op.primitive:
        return alone
    layouts = {name: program.weights[name].layout for name in node.weights.values()}
    inner = expand(alone, layouts, lambda _: False)
    return replace(inner, values={**graph.values, **inner.values})


def primitives_of(program: Program) -> Program:
    """Return the program with every layer decomposed to primitives."""
    layouts = {name: spec.layout for name, spec in program.weights.items()}
    return replace(program, graphs=dict(_primitive_graphs(program.graphs, layouts)))


def _primitive_graphs(
    graphs: Mapping[str, Graph], layouts: dict[str, str | None]
) -> Mapping[str, Graph]:
    """Return the graphs of primitives; those of the last program are kept.

    A program on its way to a backend is decomposed by the verifier, by the analysis of windows and
    by the backend, with the same graphs and layouts.
    """
    global _last
    key = list(graphs.items()), layouts
    if _last is not None and _same(_last[0], key):
        return _last[1]
    made = {n: expand(g, layouts, lambda _: False) for n, g in graphs.items()}
    _last = (key, made)
    return made


_Key = tuple[list[tuple[str, Graph]], dict[str, str | None]]
_last: tuple[_Key, Mapping[str, Graph]] | None = None


def _same(one: _Key, other: _Key) -> bool:
    """Return whether two programs have the very same graphs, by identity, and equal layouts."""
    pairs = zip(one[0], other[0], strict=False)
    same = all(name == called and graph is given for (name, graph), (called, given) in pairs)
    return same and len(one[0]) == len(other[0]) and one[1] == other[1]
