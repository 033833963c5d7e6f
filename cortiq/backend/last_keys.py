"""Last keys that rows supply: of their own entry's batch, or of what another entry has stored."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cortiq.backend.batch import Row
from cortiq.backend.row_runs import positions_of, supplied_numbers
from cortiq.ir import Graph, Program
from cortiq.ir.layers import Attention, Embedding
from cortiq.ir.ops import Attend, EmbedRows


def last_keys(program: Program) -> dict[str, tuple[str, ...]]:
    """List the inputs of each entry graph that give a row's last visible key, not its position."""
    return {entry: last_keys_of(graph) for entry, graph in program.graphs.items()}


def last_keys_of(graph: Graph) -> tuple[str, ...]:
    """List these inputs of one graph: of keys that it writes itself."""
    own = set(graph.written_slots())
    return tuple(dict.fromkeys(name for name, slot in _given_keys(graph) if slot in own))


def last_encoded_of(graph: Graph) -> tuple[str, ...]:
    """List the inputs of a graph that give the last key seen of a slot of another entry."""
    own = set(graph.written_slots())
    return tuple(dict.fromkeys(name for name, slot in _given_keys(graph) if slot not in own))


def _given_keys(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the inputs that give last keys, each with the slot that these keys are in."""
    for node in graph.nodes:
        if isinstance(node.op, Attend | Attention) and node.op.until:
            yield node.inputs[1 if isinstance(node.op, Attend) else 2], node.slots["kv"]


def encoded_keys(program: Program) -> dict[str, tuple[tuple[str, str], ...]]:
    """List the inputs of each entry graph that give the last key seen of a slot of another entry,
    with the entry that writes the slot.
    """
    graphs = program.graphs.items()
    writers = {slot: entry for entry, graph in graphs for slot in graph.written_slots()}
    return {
        entry: tuple(
            dict.fromkeys(
                (name, writers[slot])
                for name, slot in _given_keys(graph)
                if writers.get(slot, entry) != entry
            )
        )
        for entry, graph in graphs
    }


def unwritten_key(
    names: Sequence[tuple[str, str]], rows: Sequence[Row], length: Callable[[str], int]
) -> str | None:
    """Describe the last keys of other entries that these have not written, or that do not ascend;
    None if there are none.

    Parameters
    ----------
    names : see `encoded_keys`. length : rows that an entry graph has seen.
    """
    for name, writer in names:
        held, last = length(writer), supplied_numbers(rows, name)
        if last.max(initial=-1) >= held:
            at = int(np.argmax(last >= held))
            row = f"row {rows[at].position} sees keys up to {last[at]}"
            return f"{row}: {writer!r} has seen {held} rows"
        if (np.diff(last) < 0).any():
            at = int(np.argmin(np.diff(last))) + 1
            row = f"row {rows[at].position} sees keys up to {last[at]}"
            return f"{row}: the row before it up to {last[at - 1]}"
    return None


def highest_key(positions: Any, rows: Sequence[Row], names: Sequence[str]) -> int:
    """Return the highest position that rows have, or of a key of another entry that they see.

    Parameters
    ----------
    names : see `last_encoded_of`.
    """
    given = (int(supplied_numbers(rows, name).max(initial=0)) for name in names)
    return max([int(positions.max(initial=0)), *given])


def places_of(graph: Graph) -> int:
    """Return how many rows a table has that the graph looks positions up in; all, without one."""
    looked = (n.op for n in graph.nodes if n.inputs[:1] == ("position",))
    tables = [op.vocab for op in looked if isinstance(op, Embedding | EmbedRows)]
    return min(tables, default=sys.maxsize)


def chunks_of(rows: Sequence[Row], names: Sequence[str], size: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of chunks of at most `size` rows; none cuts a row off from one it sees.

    A chunk is longer where more rows than that see one another.

    Parameters
    ----------
    rows : of a batch, as `unseen_key` lets them pass. names : see `last_keys`.
    """
    number = np.arange(len(rows))
    seen = number.copy()  # the last row of the batch that each row sees
    for name in names:
        ahead = supplied_numbers(rows, name) - positions_of(rows)
        seen = np.maximum(seen, number + ahead)
    start, reach = 0, np.maximum.accumulate(seen)
    while start < len(rows):
        whole = start + 1 + np.flatnonzero(reach[start:] == number[start:])
        most = max(1, int(np.searchsorted(whole, start + size, side="right")))
        stop = int(whole[most - 1])
        yield start, stop
        start = stop


def unseen_key(names: Sequence[str], rows: Sequence[Row], stop: int) -> str | None:
    """Describe what is wrong with the last keys that rows supply; None if nothing is.

    They lie from a row's own position up to before `stop`, where the batch ends, and ascend.
    """
    for name in names:
        last = supplied_numbers(rows, name)
        positions = np.arange(stop - len(last), stop)
        least = np.maximum(positions, np.concatenate([[0], last[:-1]]))
        wrong = (last < least) | (last >= stop)
        if wrong.any():
            at = int(np.argmax(wrong))
            return f"row {positions[at]} sees keys up to {last[at]}: the batch ends before {stop}"
    return None


class SeenKeys:
    """Rules about keys that rows of each entry graph see, and about learned positions.

    Attributes
    ----------
    own : see `last_keys`. encoded : see `encoded_keys`. places : see `places_of`.
    """

    def __init__(self, program: Program) -> None:
        self.own, self.encoded = last_keys(program), encoded_keys(program)
        self.places = {entry: places_of(graph) for entry, graph in program.graphs.items()}

    def refusal(
        self, entry: str, rows: Sequence[Row], start: int, length: Callable[[str], int]
    ) -> str | None:
        """Return why rows cannot be computed; None where they can.

        Parameters
        ----------
        start : rows that the entry has seen. length : those that any entry has.
        """
        stop = start + len(rows)
        if stop > self.places[entry]:
            return f"there are {self.places[entry]} learned positions, rows go up to {stop}"
        found = unseen_key(self.own[entry], rows, stop) if self.own[entry] else None
        return found or (
            unwritten_key(self.encoded[entry], rows, length) if self.encoded[entry] else None
        )
