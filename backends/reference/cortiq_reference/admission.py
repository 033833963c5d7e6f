"""Whether a sequence's rows can be computed: everything that can be refused, before anything moves.

What passes here has an answer: no want, given value or id of an accepted row can fail later, but
for values that leave the domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cortiq.backend import Digest, Draw, Row, Top, Want
from cortiq.ir import Graph, Program
from cortiq.ir.layers import Embedding
from cortiq.ir.ops import EmbedRows
from cortiq_reference.wants import value_of

BY_ROW = frozenset({"token", "position"})
"""Inputs that a row has fields for."""
LARGEST_VOCABULARY = 2**31


def refusals(
    graph: Graph, rows: Sequence[Row], tokens: Sequence[int], start: int, vocabulary: int
) -> Iterator[str]:
    """Reasons not to compute the rows of one sequence, whose entry graph has seen `start` rows."""
    if [row.position for row in rows] != list(range(start, start + len(rows))):
        yield f"positions must go on from {start} one by one"
    for row, token in zip(rows, tokens, strict=True):
        if not 0 <= token < vocabulary:
            yield f"token id {token} is out of range"
        missing = set(graph.inputs) - BY_ROW - set(row.inputs)
        if missing:
            yield f"rows lack the inputs {sorted(missing)}"
        yield from (r for name in row.inputs if (r := _unfit(graph, name, row.inputs[name])))
        yield from (r for want in row.wants if (r := _unanswerable(graph, want)))


def vocabulary_of(program: Program) -> int:
    """Ids from here on are refused: some table lacks them."""
    nodes = [node for graph in program.graphs.values() for node in graph.nodes]
    tables = [node.op.vocab for node in nodes if isinstance(node.op, Embedding | EmbedRows)]
    return min([*tables, program.facts.get("vocab_size", LARGEST_VOCABULARY)])


def _unfit(graph: Graph, name: str, value: object) -> str | None:
    """Why a row cannot supply this value."""
    type_ = graph.values.get(name)
    if type_ is None or name in BY_ROW:
        return f"the graph has no value {name!r} that a row could supply"
    if type_.dtype != "f32" and name not in graph.inputs:
        return f"{name!r} is {type_}; only f32 values can be supplied"
    if type_.dtype == "q16":
        return None
    given = np.asarray(value)
    if given.shape != type_.shape or given.dtype.kind not in "fiu":
        return f"{name!r} is {type_}, a row supplies {given.dtype}{list(given.shape)}"
    return None


def _unanswerable(graph: Graph, want: Want) -> str | None:
    """Why a want has no answer."""
    if not isinstance(want, Want):
        return f"nothing answers the want {want!r}"
    name = value_of(want)
    type_ = graph.values.get(name)
    if type_ is None:
        return f"the graph has no value {name!r}"
    if isinstance(want, Digest) and type_.dtype != "f32":
        return f"{name!r} is {type_}; digests are of f32 values"
    width = type_.shape[-1] if type_.shape else 1
    if isinstance(want, Top) and not (type(want.count) is int and 1 <= want.count <= width):
        return f"the top {want.count} of {width} logits"
    if isinstance(want, Draw):
        unknown = [token for token in want.sampling.logit_bias if token >= width]
        return f"logit_bias names token {unknown[0]} of {width}" if unknown else None
    return None
