"""Admission of a batch's sequences: what every backend refuses before anything moves.

What passes here has an answer: no want, given value or id of an accepted row can fail later, but
for values that leave the domain.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from cortiq.backend.batch import (
    Argmax,
    Batch,
    Draw,
    Drawn,
    Row,
    Want,
)
from cortiq.backend.held_rows import HeldRows
from cortiq.backend.known_wants import KnownWants
from cortiq.backend.row_runs import RowRun, RowRuns, stretches_of
from cortiq.backend.wants import LARGEST_VOCABULARY, unanswerable, undrawn
from cortiq.errors import BackendError
from cortiq.ir import Graph, Program
from cortiq.ir.encoded import LAST_ENCODED
from cortiq.ir.layers import Embedding
from cortiq.ir.ops import EmbedRows, ExpertMatMul, Recall
from cortiq.ir.overlays import OVERLAY, OVERLAY_INDEX

BY_ROW = ("token", "position")
"""Inputs that a row has fields for."""


def groups_of(batch: Batch, owns: Callable[[Any], bool]) -> dict[Any, range]:
    """Group rows by sequence.

    Parameters
    ----------
    owns : whether a state is a living sequence of the executable.

    Raises
    ------
    BackendError : a sequence is not the executable's, or its rows are no neighbours.
    """
    groups: dict[Any, range] = {}
    rows: Sequence[RowRun | Row] = batch.rows
    lengths: Iterable[int] = repeat(1)
    if isinstance(batch.rows, RowRuns):
        rows = batch.rows.runs
        lengths = (len(run.tokens) for run in batch.rows.runs)
    start, stop, last = 0, 0, len(rows) - 1
    for index, (row, length) in enumerate(zip(rows, lengths, strict=False)):
        state: Any = row.state
        stop += length
        if index < last and rows[index + 1].state is state:
            continue
        if state in groups:
            raise BackendError("rows of one sequence must be neighbours in a batch")
        if not owns(state):
            raise BackendError("a row belongs to a sequence that is released or not ours")
        groups[state] = range(start, stop)
        start = stop
    return groups


def token_of(row: Row, drawn: Sequence[int | None]) -> int:
    """Return the row's id; −1 if it has none: no integer, or nothing drawn in that row."""
    token: Any = row.token
    try:
        if not isinstance(token, Drawn):
            return operator.index(token)
        at = operator.index(token.row)
    except TypeError:
        return -1
    found = drawn[at] if 0 <= at < len(drawn) else None
    return -1 if found is None else found


def drawn_token(wants: Mapping[Want, Any]) -> int | None:
    """Return the token that a row drew, for rows of the next batch that continue it."""
    if not wants:
        return None
    return next((v for want, v in wants.items() if isinstance(want, Draw | Argmax)), None)


def vocabulary_of(program: Program) -> int:
    """Return the smallest vocabulary of the tables of tokens: ids from there on are refused."""
    nodes = [node for graph in program.graphs.values() for node in graph.nodes]
    nodes = [node for node in nodes if node.inputs[:1] == ("token",)]
    known = [node.op for node in nodes if isinstance(node.op, Embedding | EmbedRows)]
    tables = [op.vocab for op in known if not getattr(op, "missing", False)]
    return min([*tables, program.facts.get("vocab_size", LARGEST_VOCABULARY)])


def refusals(
    graph: Graph,
    rows: Sequence[Row],
    tokens: Sequence[int],
    start: int,
    vocabulary: int,
    context: int,
    known: KnownWants,
) -> Iterator[str]:
    """List reasons not to compute one sequence's rows, whose entry graph has seen `start` rows.

    Parameters
    ----------
    known : wants that the graph answers, and its tables; what is found out of the graph is added.
    """
    supplied = [name for name in graph.inputs if name not in BY_ROW]
    tables: Mapping[str, int] = {}
    if supplied:
        tables = known.tables if known.tables is not None else _sizes(graph)
        known.tables = tables
    if isinstance(rows, RowRuns):
        sizes = {**dict.fromkeys(graph.inputs, context), **tables}
        fit = all(_certainly_fits(graph, run, supplied, sizes) for run in rows.runs)
        if fit:
            yield from _refusals_of_runs(graph, rows, tokens, start, vocabulary, known)
            return
        yield from (reason for run in rows.runs for reason in _misshapen(graph, run))
    checked: Mapping[str, Any] | None = None
    for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        if row.position != start + place:
            yield f"positions must go on from {start} one by one"
        if not 0 <= token < vocabulary:
            yield f"token id {token} is out of range"
        if (supplied or row.inputs) and row.inputs is not checked:  # rows of an overlay share them
            checked = row.inputs
            lacking = [name for name in supplied if name not in checked]
            if lacking:
                yield f"rows lack the inputs {sorted(lacking)}"
            yield from (
                r
                for name, value in checked.items()
                if (r := _unfit(graph, name, value, tables.get(name, context)))
            )
        if row.wants not in known:
            yield from _refusals_of_wants(graph, row.wants, known)


def _sizes(graph: Graph) -> dict[str, int]:
    """Return how many rows or matrices there are to choose from with an index, by its name."""
    looked = [(n.inputs[0], n.op) for n in graph.nodes if isinstance(n.op, EmbedRows)]
    tables = {name: op.vocab for name, op in looked if not op.missing}
    tables |= {n.inputs[1]: n.op.experts for n in graph.nodes if isinstance(n.op, ExpertMatMul)}
    overlays = [tables[name] for name in (OVERLAY, OVERLAY_INDEX) if name in tables]
    if overlays:  # one number in two shapes, one of which may index nothing
        tables |= dict.fromkeys((OVERLAY, OVERLAY_INDEX), overlays[0])
    return tables


def _refusals_of_runs(
    graph: Graph, rows: RowRuns, tokens: Sequence[int], start: int, vocabulary: int,
    known: KnownWants,
) -> Iterator[str]:  # fmt: skip
    """List what `refusals` does of rows that supply what fits, without a look at each."""
    for first, run in zip(rows.starts, rows.runs, strict=True):
        if run.position != start + first:
            yield f"positions must go on from {start} one by one"
    least, most = min(tokens), max(tokens)
    if not 0 <= least <= most < vocabulary:
        yield f"token id {least if least < 0 else most} is out of range"
    for _, _, wants in stretches_of(rows):
        if wants not in known:
            yield from _refusals_of_wants(graph, wants, known)


def _refusals_of_wants(graph: Graph, wants: tuple[Want, ...], known: KnownWants) -> Iterator[str]:
    """List reasons why a row's wants have no answer; note those that have."""
    found = [r for want in wants if (r := unanswerable(graph, want))]
    found += [r for want in wants if (r := undrawn(want, wants))]
    yield from found
    if not found:
        known.add(wants)


@dataclass(frozen=True)
class Recalled:
    """A value that an entry graph recalls from a slot that another entry writes."""

    value: str
    slot: str
    writer: str


def recalled_values(program: Program) -> dict[str, tuple[Recalled, ...]]:
    """List what each entry graph recalls of others; no layer of the catalogue does so inside."""
    graphs = program.graphs.items()
    writers = {slot: entry for entry, graph in graphs for slot in graph.written_slots()}
    found = {
        entry: tuple(
            Recalled(node.outputs[0], slot, writers.get(slot, entry))
            for node in graph.nodes
            if isinstance(node.op, Recall)
            for slot in node.slots.values()
        )
        for entry, graph in graphs
    }
    return {n: tuple(r for r in known if r.writer != n) for n, known in found.items()}


def missing_row(
    recalled: Sequence[Recalled], rows: Sequence[Row], length: Callable[[str], int]
) -> str | None:
    """Name the rows that would be recalled of an entry that has not seen them, and not supplied.

    Parameters
    ----------
    length : rows that an entry graph has seen.
    """
    for known in recalled:
        held = length(known.writer)
        for row in rows:
            if row.position >= held and known.value not in row.inputs:
                return (
                    f"row {row.position} of {known.value!r} is not there: "
                    f"the entry {known.writer!r} has seen {held} rows"
                )
    return None


def _certainly_fits(
    graph: Graph, run: RowRun, supplied: Sequence[str], sizes: Mapping[str, int]
) -> bool:
    """Return whether a run supplies what its rows must and nothing unfit, from looking at arrays.

    Parameters
    ----------
    supplied : what each row must supply. sizes : by integers' name, numbers from there on are
        refused.
    """
    if not run.inputs:
        return not supplied
    if any(name not in run.inputs for name in supplied):
        return False
    count = len(run.tokens)
    for name, array in run.inputs.items():
        type_ = graph.values.get(name)
        if type_ is None or name in BY_ROW or not _is_plain(array):
            return False
        if array.shape != (count, *type_.shape):
            return False
        if type_.dtype == "f32" and array.dtype.kind in "fiu":
            continue
        if type_.dtype != "i32" or name not in graph.inputs or array.dtype.kind not in "iu":
            return False
        if array.min(initial=0) < least_of(name) or array.max(initial=0) >= sizes[name]:
            return False
    return True


def _is_plain(array: object) -> bool:
    """Return whether these are an array, of no class of its own, or values that a backend holds."""
    return type(array) is np.ndarray or isinstance(array, HeldRows)


def _misshapen(graph: Graph, run: RowRun) -> Iterator[str]:
    """List what a run supplies that is no array with a number or a row of numbers for each row."""
    for name, array in run.inputs.items():
        if name in graph.values and graph.values[name].dtype == "q16":
            yield f"a run supplies no quantised rows, as {name!r} is"
        lines = array.shape[:1] if isinstance(array, np.ndarray | HeldRows) else None
        if lines != (len(run.tokens),) or array.dtype.kind not in "fiu":
            kind = f"{array.dtype}{list(array.shape)}" if lines is not None else type(array)
            yield f"a run of {len(run.tokens)} rows supplies {kind} for {name!r}"


def least_of(name: str) -> int:
    """Return the least integer that a row may supply by this name."""
    return -1 if name == LAST_ENCODED else 0


def _unfit(graph: Graph, name: str, value: object, context: int) -> str | None:
    """Return why a row cannot supply this value. Integers are positions of a rotation's axes."""
    type_ = graph.values.get(name)
    if type_ is None or name in BY_ROW:
        return f"the graph has no value {name!r} that a row could supply"
    if type_.dtype != "f32" and name not in graph.inputs:
        return f"{name!r} is {type_}; only f32 values can be supplied"
    if type_.dtype == "q16":
        return None
    whole = type_.dtype == "i32"
    if whole and type_.shape == () and isinstance(value, np.int32) and 0 <= value < context:
        return None
    given = np.asarray(value)
    if given.shape != type_.shape or given.dtype.kind not in ("iu" if whole else "fiu"):
        return f"{name!r} is {type_}, a row supplies {given.dtype}{list(given.shape)}"
    if whole and given.min(initial=0) < least_of(name):
        return f"{name!r} counts from 0, a row supplies {given.min()}"
    if whole and given.max(initial=0) >= context:
        return f"a row supplies the position {given.max()}, {name!r} has {context}"
    return None
