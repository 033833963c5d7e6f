"""Graphs as text that a person reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import groupby
from typing import NamedTuple

from cortiq.ir.decompose import primitives_of
from cortiq.ir.graph import Graph, Node, Program
from cortiq.ir.ops import Rope
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.rope_scaling import Default, FrequencyFactors, Learned, LongRope, NTKAlpha

_INDEX = re.compile(r"\.(\d+)(?=\.|$)")


def print_program(program: Program, *, full: bool = False) -> str:
    """Return the program as text: facts, slots, every graph; equal blocks folded unless `full`."""
    lines = [f"{name}: {value}" for name, value in program.facts.items()]
    lines.append(f"context: {program.context}")
    for graph in program.graphs.values():
        lines += ["", *print_graph(graph, full=full)]
    return "\n".join(lines)


def rope_tables(program: Program) -> list[RopeTable]:
    """Return the rotary tables that a program's graphs use, each once."""
    nodes = (node for graph in primitives_of(program).graphs.values() for node in graph.nodes)
    return list(dict.fromkeys(node.op.table for node in nodes if isinstance(node.op, Rope)))


def describe_rope(table: RopeTable) -> str:
    """Describe a rotary table in a sentence, with the choice its rule made by a length."""
    scaling = table.scaling
    text = f"base {table.base:g}, {table.dim} dimensions"
    match scaling:
        case Default():
            return text
        case LongRope():
            list_, sign = ("long", ">") if scaling.takes_long else ("short", "≤")
            compared = f"{scaling.declared_context} {sign} {scaling.original_context}"
            return f"{text}, longrope with its {list_} factors: context {compared}, fixed at load"
        case NTKAlpha(alpha):
            return f"{text}, base stretched by alpha {alpha:g} for every length, fixed at load"
        case FrequencyFactors():
            return f"{text}, each frequency divided by the file's own factor"
        case Learned(inner):
            known = describe_rope(replace(table, scaling=inner))
            return f"{known}, each frequency times the file's own factor"
    values = (f"{f.name} {getattr(scaling, f.name)}" for f in fields(scaling))
    return f"{text}, {type(scaling).__name__.lower()}: {', '.join(values)}"


def print_graph(graph: Graph, *, full: bool = False) -> list[str]:
    """Return one entry graph as text: a line a node, repeated blocks once with their count."""
    inputs = ", ".join(f"{n} {graph.values[n]}" for n in graph.inputs)
    lines = [f"graph {graph.name}({inputs}) -> {', '.join(graph.outputs)}"]
    if full:
        return lines + [f"  {_line(n, graph)}" for n in graph.nodes]
    return lines + [f"  {line}" for line in _folded(graph)]


def _line(node: Node, graph: Graph) -> str:
    outputs = ", ".join(f"{n} {graph.values[n]}" for n in node.outputs) or "()"
    slots = f" @ {', '.join(node.slots.values())}" if node.slots else ""
    return f"{outputs} = {node.op.describe()}({', '.join(node.inputs)}){slots}"


class FoldedBlocks(NamedTuple):
    """Consecutive blocks of equal nodes: those of the first, and how many there are.

    Attributes
    ----------
    first, last : names of the first and the last block. end : the nodes of the last.
    """

    nodes: list[Node]
    times: int
    first: str
    last: str
    end: list[Node]


def folded_blocks(graph: Graph) -> Iterator[FoldedBlocks]:
    """Yield a graph's nodes, equal blocks that follow each other once."""
    blocks = [list(nodes) for _, nodes in groupby(graph.nodes, key=_block)]
    start = 0
    while start < len(blocks):
        shape = _shape(blocks[start])
        count = 1
        while start + count < len(blocks) and _shape(blocks[start + count]) == shape:
            count += 1
        first, last = _block(blocks[start][0]), _block(blocks[start + count - 1][0])
        yield FoldedBlocks(blocks[start], count, first, last, blocks[start + count - 1])
        start += count


def _folded(graph: Graph) -> Iterator[str]:
    for block in folded_blocks(graph):
        if block.times > 1:
            yield f"{block.first} … {block.last}: {block.times} equal blocks"
        for node in block.nodes:
            yield f"{'  ' if block.times > 1 else ''}{_line(node, graph)}"


def _block(node: Node) -> str:
    match = _INDEX.search(node.name)
    return node.name[: match.end()] if match else node.name


def _shape(nodes: list[Node]) -> tuple:
    prefix = _block(nodes[0])
    return tuple((n.name.removeprefix(prefix) if n.name != prefix else n.name, n.op) for n in nodes)
