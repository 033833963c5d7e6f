"""A model as one static page: its graph drawn, its geometry, its bytes by format and layer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from cortiq.atomic import write_atomically
from cortiq.cli.render import byte_count
from cortiq.ir.printer import describe_rope, folded_blocks, rope_tables
from cortiq.numerics.layouts import Weight

if TYPE_CHECKING:
    import os

    from cortiq.ir import Graph
    from cortiq.model.source import ModelSource

LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.")
ROW, WIDTH, MARGIN = 34, 560, 70
"""Pixels from box to box, of a box, and to the left of the boxes, for edges."""
PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac")


@dataclass(frozen=True)
class DrawnNode:
    """A box of the drawing: where it lies, what it says, and the paths of the edges to it."""

    y: int
    name: str
    text: str
    weights: str
    edges: tuple[str, ...]
    folded: str


def draw(graph: Graph) -> list[DrawnNode]:
    """Return the boxes of a graph, equal blocks once; an edge leads past the boxes between."""
    places: dict[str, int] = {}
    found: list[DrawnNode] = []
    for block in folded_blocks(graph):
        folded = f"{block.first} … {block.last}: {block.times} times" if block.times > 1 else ""
        for node, last in zip(block.nodes, block.end, strict=True):
            at = len(found)
            sources = sorted({places[name] for name in node.inputs if name in places})
            edges = tuple(_edge(source, at) for source in sources)
            places |= dict.fromkeys((*node.outputs, *last.outputs), at)
            kinds = ", ".join(f"{n} {graph.values[n]}" for n in node.outputs)
            held = ", ".join(node.weights.values())
            found.append(DrawnNode(at * ROW, kinds, node.op.describe(), held, edges, folded))
            folded = ""
    return found


def _edge(source: int, to: int) -> str:
    """Return the path from one box to a later one."""
    start, end = source * ROW + ROW - 8, to * ROW
    if to - source == 1:
        return f"M{MARGIN + 20},{start}V{end}"
    start, end = start - 13, end + 13
    out = max(6, MARGIN - 12 * (to - source))
    return f"M{MARGIN},{start}C{out},{start} {out},{end} {MARGIN},{end}"


def _layer_of(name: str) -> str:
    match = LAYER.match(name)
    return match[1] if match else "outside"


def _by_layer(weights: Mapping[str, Weight]) -> dict[str, list[tuple[str, Weight]]]:
    layers: dict[str, list[tuple[str, Weight]]] = {}
    for name, weight in weights.items():
        layers.setdefault(_layer_of(name), []).append((name, weight))
    return layers


def stored_bytes(weight: Weight) -> int:
    """Return the bytes of a weight without making any: floats of the file count as they are."""
    rows, columns = weight.shape
    layout = weight.layout
    if layout.kind != "parts":
        return rows * layout.row_bytes(columns)
    blocks = -(-columns // (layout.block or columns))
    return rows * (columns * (2 if layout.name == "w16" else 1) + 4 * blocks)


def page(source: ModelSource, name: str) -> str:
    """Return the page of an opened model."""
    import jinja2

    program, weights = source.program, source.weights
    sizes: Counter[str] = Counter()
    for weight in weights.values():
        sizes[weight.layout.name] += stored_bytes(weight)
    colours = {
        layout: PALETTE[i % len(PALETTE)] for i, (layout, _) in enumerate(sizes.most_common())
    }
    total, layers = sum(sizes.values()), _by_layer(weights)
    largest = max(map(_size, layers.values()))
    row = sum(slot.bytes_per_row() for slot in program.slots.values())
    facts: dict[str, Any] = {
        **program.facts, "context": program.context, "bytes of weights": byte_count(total),
        "state": f"{byte_count(row)} a token, {byte_count(row * program.context)} in all",
        "rope": "; ".join(map(describe_rope, rope_tables(program))) or "none",
    }  # fmt: skip
    template = files("cortiq.cli").joinpath("model_page.html").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(
        name=name,
        facts=facts,
        formats=[
            (layout, byte_count(size), f"{size / total:.1%}", 100 * size / total, colours[layout])
            for layout, size in sizes.most_common()
        ],
        layers=[
            (layer, byte_count(_size(held)), _bars(held, largest, colours))
            for layer, held in layers.items()
        ],
        graphs=[(graph.name, draw(graph)) for graph in program.graphs.values()],
        row=ROW, width=WIDTH, margin=MARGIN,
    )  # fmt: skip


def _size(held: list[tuple[str, Weight]]) -> int:
    return sum(stored_bytes(weight) for _, weight in held)


def _bars(
    held: list[tuple[str, Weight]], largest: int, colours: Mapping[str, str]
) -> list[tuple[float, str, str]]:
    """Return the width, in percent, the colour and the text of each weight of a layer."""
    return [
        (
            100 * stored_bytes(w) / largest,
            colours[w.layout.name],
            f"{name} {list(w.shape)} {w.layout.name}, {byte_count(stored_bytes(w))}",
        )
        for name, w in held
    ]


def write_page(source: ModelSource, name: str, path: str | os.PathLike[str]) -> None:
    """Write the page to a file."""
    write_atomically(path, [page(source, name).encode()])
