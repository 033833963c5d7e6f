"""The draft shortlist: a draft head that scores only the first ids of the vocabulary.

Ids are ordered by how frequent they are in most vocabularies, and the head's matrix is the larger
part of what a draft costs. Rows past the shortlist are not computed, so their ids cannot be
drafted; the target verifies with all of its rows.
"""

from __future__ import annotations

from cortiq.ir import Builder, Node, Program, Value
from cortiq.ir.heads import SHORTLIST, DraftHead
from cortiq.ir.layers import Linear
from cortiq.models.heads import resume
from cortiq.models.weights import LazyParts
from cortiq.numerics.layouts import Weight


def with_shortlist(
    program: Program, weights: dict[str, Weight], count: int
) -> tuple[Program, dict[str, Weight]]:
    """Return program and weights whose draft entries also score the first `count` ids alone.

    The program is unchanged without a draft head, or if the vocabulary is not larger; 0 means none.
    Block drafters score one row per draft, and the whole vocabulary.
    """
    head = program.facts.get("draft_head")
    if not isinstance(head, DraftHead):
        return program, weights
    if not 0 < count < program.facts["vocab_size"]:
        return program, weights
    b = Builder(context=program.context, facts=program.facts)
    b.weights.update(program.weights)
    b.slots.update(program.slots)
    b.graphs.update(program.graphs)
    found = dict(weights)
    for entry in head.entries:
        graph = program.graphs[entry]
        scored = next((n for n in graph.nodes if _scores(n, f"{entry}.hidden")), None)
        if scored is None or scored.op.out_width != program.facts["vocab_size"]:  # type: ignore[attr-defined]
            return program, weights
        (width, name) = scored.op.in_width, scored.weights["weight"]  # type: ignore[attr-defined]
        first = f"{name}#{count}"
        resume(b, graph)
        hidden = Value(f"{entry}.hidden", graph.values[f"{entry}.hidden"])
        b.add(Linear(width, count), hidden, name=SHORTLIST, weights={"weight": first})
        b.graph(entry, (*graph.outputs, SHORTLIST))
        found[first] = first_rows(weights[name], count)
    return b.program(), found


def _scores(node: Node, hidden: str) -> bool:
    return isinstance(node.op, Linear) and not node.op.biased and node.inputs == (hidden,)


def first_rows(weight: Weight, count: int) -> Weight:
    """Return the first rows of a weight, as views made on first use."""
    parts = LazyParts(lambda: weight.rows(0, count).parts)
    return Weight(weight.layout, (count, weight.shape[1]), parts, weight.origin, weight)
