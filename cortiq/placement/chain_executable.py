"""A program computed by a chain of executables: on several devices, or partly on a fallback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortiq.backend import (
    Batch,
    BatchResult,
    Executable,
    ExportedState,
    Finished,
    Named,
    OptionalCapabilities,
    Outcome,
    Row,
    Status,
    Want,
)
from cortiq.backend.admission import drawn_token, token_of
from cortiq.backend.error_attribution import attributed_to
from cortiq.backend.wants import value_of
from cortiq.errors import BackendError, RequestError
from cortiq.placement.chain_state import ChainState, open_all, split_exported
from cortiq.placement.partition import GraphSegment, Partition


class ChainExecutable(OptionalCapabilities):
    """Runs of a partition, computed in order; see `cortiq.backend.Executable`.

    Values that cross a cut pass through the host. `forward` returns when the batch is computed,
    also where a part is asynchronous: the next one waits for its values.

    Attributes
    ----------
    program : the program as it was placed: layers that no backend takes whole are decomposed.
    declined : nodes that a backend declined and the fallback computes, each with the reason.
    """

    def __init__(
        self,
        partition: Partition,
        executables: Sequence[Executable],
        names: Sequence[str],
        declined: Mapping[str, str],
    ) -> None:
        self.program, self.declined = partition.whole, dict(declined)
        self._partition, self._parts, self._names = partition, list(executables), list(names)
        self._drawn: list[int | None] = []

    @property
    def placement(self) -> Mapping[str, str]:
        """Backend of each node, by node name, as the parts themselves say."""
        return {node: name for part in self._parts for node, name in part.placement.items()}

    @property
    def parts(self) -> Sequence[tuple[str, Executable]]:
        """The executables of the chain, each with the name of its backend."""
        return list(zip(self._names, self._parts, strict=True))

    @property
    def batch_rows(self) -> int:
        """Rows of a batch that suit every part."""
        return min(part.batch_rows for part in self._parts)

    @property
    def windows(self) -> Mapping[str, int]:
        """Windows of the slots whose rows some part gives up behind them."""
        parts = [part.windows for part in self._parts]
        return {slot: window for found in parts for slot, window in found.items()}

    def segments_of(self, entry: str) -> Sequence[GraphSegment]:
        """Return the segments of an entry graph, in order."""
        if entry not in self._partition.segments:
            there = ", ".join(self._partition.segments)
            raise RequestError(f"no entry graph is named {entry!r}", hint=f"There are {there}")
        return self._partition.segments[entry]

    def open(self, limit: int) -> ChainState:
        """Open a new, empty sequence: one state in every part."""
        makers = [lambda part=part: part.open(limit) for part in self._parts]
        return ChainState(self, open_all(makers), limit)

    def import_(self, exported: ExportedState, limit: int) -> ChainState:
        """Import an exported sequence; every part takes its slots."""
        entries: list[dict[str, str]] = [{} for _ in self._parts]
        for graph, segments in self._partition.segments.items():
            for segment in segments:
                entries[segment.part][segment.graph.name] = graph
        slots = [set(program.slots) for program in self._partition.programs]
        mine = zip(self._parts, split_exported(exported, entries, slots), strict=True)
        makers = [lambda part=p, share=s: part.import_(share, limit) for p, s in mine]
        return ChainState(self, open_all(makers), limit)

    def state_bytes(self, rows: int) -> int:
        """Return the memory that a sequence of this many rows takes in all parts together."""
        return sum(part.state_bytes(rows) for part in self._parts)

    def free_bytes(self) -> int:
        """Return the memory left for sequences: what fits before the first part is full.

        A part with share s of a sequence's bytes and f bytes free allows f / s in all.
        """
        rows = self.program.context
        whole = self.state_bytes(rows)
        needs = [(part.state_bytes(rows), part.free_bytes()) for part in self._parts]
        allowed = [free * whole // need for need, free in needs if need]
        return min(allowed, default=min(free for _, free in needs))

    def warm(self, progress: Callable[[int, int], None] = lambda done, total: None) -> bool:
        """Let every part compile ahead; return whether some does."""
        done = [part.warm(progress) for part in self._parts]
        return any(done)

    def close(self) -> None:
        """Release weights and sequences of every part."""
        for part in self._parts:
            part.close()

    def forward(self, batch: Batch) -> Finished:
        """Compute a batch, segment by segment.

        A sequence that fails in one part is cleared in all of them and takes no part in what
        follows. One that a later part declines goes back to before the batch everywhere; where a
        slot cannot go back it has failed.
        """
        tokens = [token_of(row, self._drawn) for row in batch.rows]
        work = _ChainBatch(self, batch, tokens)
        try:
            for segment in self.segments_of(batch.entry):
                work.pass_through(segment, self._parts[segment.part], self._names[segment.part])
        except BaseException:
            work.abandon()
            raise
        result = work.result()
        self._drawn = [drawn_token(wants) for wants in result.rows]
        return Finished(result)


@dataclass
class _ChainSequence:
    """The rows of one sequence in a batch, and its outcome so far."""

    state: ChainState
    rows: list[int]
    start: int
    outcome: Outcome = field(default_factory=lambda: Outcome(Status.COMPLETED))

    @property
    def goes_on(self) -> bool:
        return self.outcome.status is Status.COMPLETED


class _ChainBatch:
    """One batch on its way through the segments of an entry graph."""

    def __init__(self, chain: ChainExecutable, batch: Batch, tokens: Sequence[int]) -> None:
        self.chain, self.batch, self.tokens = chain, batch, tokens
        self.segments = chain.segments_of(batch.entry)
        self.answers = [self._assign_wants(row) for row in batch.rows]
        self.values: list[dict[str, np.ndarray]] = [dict(row.inputs) for row in batch.rows]
        self.brought: list[dict[Want, Any]] = [{} for _ in batch.rows]
        self.sequences = self._group()
        for sequence in self.sequences:
            sequence.outcome = self._admit(sequence)

    def _assign_wants(self, row: Row) -> dict[Want, GraphSegment]:
        """Return the segment that answers each want of a row; leave out unknown values."""
        sources = {want: self._source(value_of(want)) for want in row.wants}
        return {want: segment for want, segment in sources.items() if segment is not None}

    def _source(self, value: str) -> GraphSegment | None:
        for segment in self.segments:
            if value in segment.graph.values and value not in segment.graph.inputs:
                return segment
        for segment in self.segments:
            if value in segment.graph.inputs:
                return segment
        return None

    def _group(self) -> list[_ChainSequence]:
        groups: dict[ChainState, _ChainSequence] = {}
        for index, row in enumerate(self.batch.rows):
            state: Any = row.state
            if not isinstance(state, ChainState) or state.chain is not self.chain:
                raise BackendError("a row belongs to a sequence of another executable")
            if not state.alive:
                raise BackendError("a row belongs to a sequence that was released")
            known = groups.get(state)
            if known is None:
                groups[state] = _ChainSequence(state, [index], state.length(self.batch.entry))
            elif known.rows[-1] != index - 1:
                raise BackendError("rows of one sequence must be neighbours in a batch")
            else:
                known.rows.append(index)
        return list(groups.values())

    def _admit(self, sequence: _ChainSequence) -> Outcome:
        """Decline what a part would, before anything moves in any of them."""
        start, count = sequence.start, len(sequence.rows)
        positions = [self.batch.rows[i].position for i in sequence.rows]
        if positions != list(range(start, start + count)):
            return _declined(f"positions must go on from {start} one by one")
        if any(self.tokens[i] < 0 for i in sequence.rows):
            return _declined("a row's token is no id, or the previous batch did not draw it")
        unknown = [name for i in sequence.rows for name in self._unknown(i)]
        if unknown:
            return _declined(f"the graph {self.batch.entry!r} has no value {unknown[0]!r}")
        wanted = set(self.chain.program.graphs[self.batch.entry].inputs) - {"token", "position"}
        missing = [wanted - set(self.batch.rows[i].inputs) for i in sequence.rows]
        if any(missing):
            return _declined(f"rows lack the inputs {sorted(set().union(*missing))}")
        fits = start + count <= sequence.state.limit
        if not fits or (self.batch.entry == "trunk" and not sequence.state.reserve(count)):
            return _declined(f"no room for {count} rows after {start}")
        return Outcome(Status.COMPLETED)

    def _unknown(self, index: int) -> list[str]:
        """Return values that a row wants or supplies and that the graph does not have."""
        row = self.batch.rows[index]
        wanted = [value_of(want) for want in row.wants if want not in self.answers[index]]
        return wanted + [name for name in row.inputs if self._source(name) is None]

    def pass_through(self, segment: GraphSegment, executable: Executable, name: str) -> None:
        """Feed the rows of all remaining sequences to one segment, and collect its values."""
        going = [s for s in self.sequences if s.goes_on]
        order = [index for sequence in going for index in sequence.rows]
        if not order:
            return
        rows = [self._row(self.batch.rows[i], i, segment) for i in order]
        with attributed_to(name):
            result = executable.forward(Batch(rows, segment.graph.name)).result()
        for sequence in going:
            self._settle(sequence, result.outcomes[sequence.state.parts[segment.part]], name)
        for index, brought in zip(order, result.rows, strict=True):
            for want, value in brought.items():
                if isinstance(want, Named) and want.name in segment.edges:
                    self.values[index][want.name] = value
                if self.answers[index].get(want) is segment:
                    self.brought[index][want] = value

    def _row(self, row: Row, index: int, segment: GraphSegment) -> Row:
        mine = [want for want, source in self.answers[index].items() if source is segment]
        wants = dict.fromkeys((*mine, *map(Named, segment.edges)))
        inputs = {n: v for n, v in self.values[index].items() if n in segment.graph.values}
        state: Any = row.state
        part = state.parts[segment.part]
        return Row(part, row.position, self.tokens[index], tuple(wants), inputs)

    def _settle(self, sequence: _ChainSequence, outcome: Outcome, name: str) -> None:
        if outcome.status is Status.COMPLETED:
            return
        reason = f"{name}: {outcome.reason}"
        if outcome.status is Status.FAILED:
            sequence.state.clear()
        elif not sequence.state.undo(sequence.start, self.batch.entry):
            outcome = Outcome(Status.FAILED)
            reason += " (after other parts had moved on, and one of them cannot go back)"
        sequence.outcome = Outcome(outcome.status, reason)

    def abandon(self) -> None:
        """Rewind every sequence to before the batch after an exception, or clear it."""
        for sequence in self.sequences:
            if sequence.goes_on:
                sequence.state.undo(sequence.start, self.batch.entry)

    def result(self) -> BatchResult:
        """Return the outcome of every sequence, and the requested values of completed ones."""
        rows: list[Mapping[Want, Any]] = [{} for _ in self.batch.rows]
        for index in (i for s in self.sequences if s.goes_on for i in s.rows):
            rows[index] = {want: self.brought[index][want] for want in self.batch.rows[index].wants}
        return BatchResult({s.state: s.outcome for s in self.sequences}, rows)


def _declined(reason: str) -> Outcome:
    return Outcome(Status.DECLINED, reason)
