"""Which sequences of a batch are computed: everything that is refused is refused here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from cortiq.backend import (
    Argmax,
    Batch,
    Digest,
    Draw,
    Drawn,
    Named,
    Outcome,
    Row,
    Status,
    Top,
    Want,
)
from cortiq.errors import BackendError
from cortiq.ir import Graph
from cortiq_cpu.state import CpuState

ACCEPTED = Outcome(Status.COMPLETED)


@dataclass(frozen=True)
class Accepted:
    """A sequence to compute.

    Attributes
    ----------
    state : the sequence.
    indices : its rows in the batch.
    tokens : their ids.
    """

    state: CpuState
    indices: range
    tokens: list[int]


def value_of(want: Want) -> str:
    """Name of the value a want is computed from."""
    return want.name if isinstance(want, Named | Digest) else "logits"


def groups_of(batch: Batch) -> dict[Any, range]:
    """Rows of each sequence, which must be neighbours."""
    groups: dict[Any, range] = {}
    for index, row in enumerate(batch.rows):
        known = groups.get(row.state)
        if known is None:
            groups[row.state] = range(index, index + 1)
        elif known.stop == index:
            groups[row.state] = range(known.start, index + 1)
        else:
            raise BackendError("rows of one sequence must be neighbours in a batch")
    return groups


def token_of(row: Row, drawn: list[int | None]) -> int:
    """The row's token id, −1 for a draw that brought none."""
    if not isinstance(row.token, Drawn):
        return int(row.token)
    token = drawn[row.token.row] if row.token.row < len(drawn) else None
    return -1 if token is None else token


def drawn_token(wants: Mapping[Want, Any]) -> int | None:
    """What a row drew, for rows of the next batch that go on from it."""
    return next((v for want, v in wants.items() if isinstance(want, Draw | Argmax)), None)


def admit(
    graph: Graph, batch: Batch, indices: range, tokens: list[int], vocabulary: int | None
) -> Outcome:
    """Whether a sequence's rows can be computed; nothing has moved yet."""
    first = batch.rows[indices.start]
    state = first.state
    if not isinstance(state, CpuState) or not state.alive:
        raise BackendError("a row belongs to a sequence that is released or not ours")
    start = state.length(batch.entry)
    for place, index in enumerate(indices):
        if batch.rows[index].position != start + place:
            return _declined(f"positions must go on from {start} one by one")
    if not state.has_room(start + len(indices)):
        return _declined(f"no room for {len(indices)} rows after {start}")
    for index, token in zip(indices, tokens, strict=True):
        if token < 0 or (vocabulary is not None and token >= vocabulary):
            return _declined(f"token id {token} is out of range")
        reason = _refusal(graph, batch.rows[index])
        if reason:
            return _declined(reason)
    return ACCEPTED


def _refusal(graph: Graph, row: Row) -> str:
    """Why a row cannot be computed; empty if it can."""
    unknown = {value_of(want) for want in row.wants if value_of(want) not in graph.values}
    if unknown:
        return f"the graph has no values {sorted(unknown)}"
    refused = next((r for r in (_want_refusal(graph, w) for w in row.wants) if r), "")
    if refused:
        return refused
    lacking = [n for n in graph.inputs if n not in ("token", "position", *row.inputs)]
    return f"rows lack the inputs {sorted(lacking)}" if lacking else ""


def _want_refusal(graph: Graph, want: Want) -> str:
    """Why a want of a value that exists cannot be answered."""
    type_ = graph.values[value_of(want)]
    if isinstance(want, Digest) and type_.dtype != "f32":
        return f"{want.name} is {type_}, and digests are of f32 values"
    if isinstance(want, Top) and not 1 <= want.count <= prod(type_.shape):
        return f"the top {want.count} of a vocabulary of {prod(type_.shape)}"
    if isinstance(want, Draw):
        outside = [i for i in want.sampling.logit_bias if i >= prod(type_.shape)]
        if outside:
            return f"logit_bias names token {outside[0]} of a vocabulary of {prod(type_.shape)}"
    return ""


def _declined(reason: str) -> Outcome:
    return Outcome(Status.DECLINED, reason)
