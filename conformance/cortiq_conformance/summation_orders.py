"""Summation orders that the contract defines, and how many terms each adds in a program.

A sum of two terms has one order. From the last to the first it differs for three terms, and in
pairs for four: only cases with that many terms distinguish a wrong order from the right one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cortiq.backend import Top, Want
from cortiq.ir import Node, Program, primitives_of
from cortiq.numerics.attention import first_visible
from cortiq.numerics.contract import LANES, RUN_BLOCKS, RUN_TILES, TILE
from cortiq.numerics.layouts import LAYOUTS


class SumSite(NamedTuple):
    """A place that adds terms: an operator, its weight's layout, the positions of a case's rows."""

    op: Any
    layout: str
    positions: range


Count = Callable[[SumSite], Iterable[int]]
"""Number of terms of each of the sums, where they differ."""


def _lanes(terms: int) -> int:
    """Return the number of terms in the longest lane of a canonical sum."""
    return -(-terms // LANES)


def _blocks(found: SumSite) -> int:
    """Return the number of blocks of a product's row; 0 if it is not added by blocks."""
    layout = LAYOUTS.get(found.layout)
    return -(-found.op.in_width // layout.block) if layout and layout.block else 0


def _inside_runs(found: SumSite) -> Iterator[int]:
    blocks = _blocks(found)
    yield min(blocks, RUN_BLOCKS)
    yield blocks % RUN_BLOCKS


def _tiles(found: SumSite) -> Iterator[Counter[int]]:
    """Yield the visible tiles of each position, counted by run.

    Rows with a last key and a window see as many keys after themselves as before, as far as there
    are rows: those are the cases.
    """
    window = found.op.window or 0
    ahead = window - 1 if window and getattr(found.op, "until", False) else 0
    for position in found.positions:
        first, last = first_visible(position, window), min(position + ahead, found.positions[-1])
        yield Counter(i // RUN_TILES for i in range(first // TILE, last // TILE + 1))


def _sinks(found: SumSite) -> Iterator[int]:
    return (len(runs) + 1 for runs in _tiles(found) if found.op.sinks)


def _chosen(found: SumSite) -> tuple[int]:
    return (found.op.router.top_k,)


def _entries(found: SumSite) -> Iterator[int]:
    """Yield the rows of each entry that the positions close."""
    rate, parts = found.op.rate, found.op.parts
    closing = (p + 1 for p in found.positions if (p + 1) % rate == 0)
    return (rate * min(parts, rows // rate) for rows in closing)


WIDTH: Count = lambda found: (_lanes(found.op.width),)  # noqa: E731
RUNS: Count = lambda found: (-(-_blocks(found) // RUN_BLOCKS),)  # noqa: E731
PRODUCTS = ("MatMul", "HeadMatMul", "ExpertMatMul")

ORDERS: Mapping[str, Mapping[str, Count]] = {
    "lanes of a sum": {
        "RMSNorm": WIDTH,
        "LayerNorm": WIDTH,
        "L2Norm": WIDTH,
        "Softmax": WIDTH,
        "Route": lambda found: (_lanes(found.op.experts),),
        "DeltaRule": lambda found: (_lanes(found.op.key_dim),),
        "DiagonalDeltaRule": lambda found: (_lanes(found.op.key_dim),),
        "StateSpace": lambda found: (_lanes(found.op.state_dim),),
        "Top": lambda found: (_lanes(found.op),),
        **dict.fromkeys(
            PRODUCTS, lambda found: (_lanes(found.op.in_width) * (found.layout == "f32"),)
        ),
    },
    "blocks of a run": dict.fromkeys(PRODUCTS, _inside_runs),
    "runs of blocks": dict.fromkeys(PRODUCTS, RUNS),
    "tiles of a run": {"Attend": lambda found: (n for c in _tiles(found) for n in c.values())},
    "runs of tiles": {"Attend": lambda found: map(len, _tiles(found))},
    "runs of tiles and the sink": {"Attend": _sinks},
    "taps": {"CausalConv": lambda found: (found.op.kernel + found.op.biased,)},
    "outputs of experts": {"CombineExperts": lambda found: (found.op,)},
    "weights of experts": {
        "Route": lambda found: _chosen(found) if found.op.router.renormalise else ()
    },
    "weights of a prefix": {
        "Route": lambda found: _chosen(found) if found.op.router.tau is not None else ()
    },
    "rows of an entry": {"Compress": _entries},
    "lines of a matrix": {"Sinkhorn": lambda found: (found.op.streams,)},
}
"""By order and operator: how many terms meet. `Top` is no operator but what rows can ask for."""


def terms_meeting(
    order: str, program: Program, wants: Iterable[Want], positions: range
) -> dict[tuple[str, str], set[int]]:
    """Return the number of terms that meet in an order, by operator and weight layout."""
    found: dict[tuple[str, str], set[int]] = {}
    for kind, one in _sums(program, wants, positions):
        if kind in ORDERS[order]:
            found.setdefault((kind, one.layout), set()).update(ORDERS[order][kind](one))
    return found


def _sums(
    program: Program, wants: Iterable[Want], positions: range
) -> Iterator[tuple[str, SumSite]]:
    primitives = primitives_of(program)
    for graph in primitives.graphs.values():
        for node in graph.nodes:
            terms = graph.values[node.inputs[0]].shape
            op = terms[0] if node.op.kind == "CombineExperts" else node.op
            yield node.op.kind, SumSite(op, _layout(node, program), positions)
    for want in wants:
        if isinstance(want, Top):
            (width,) = primitives.trunk.values["logits"].shape
            yield "Top", SumSite(width, "", positions)


def _layout(node: Node, program: Program) -> str:
    name = node.weights.get("weight")
    return (program.weights[name].layout or "") if name else ""
