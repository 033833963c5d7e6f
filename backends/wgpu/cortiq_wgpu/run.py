"""A batch computed by a plan: chunks of rows, one command buffer each, requested outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortiq.backend import Batch, DrawnLogit, Named
from cortiq.backend.admission import BY_ROW
from cortiq.backend.columns import Brought
from cortiq.backend.executable import Accepted
from cortiq.backend.flat_rows import FlatBatch
from cortiq.backend.last_keys import chunks_of
from cortiq.backend.paged import PagedState
from cortiq.backend.requests import Ask, asked_by
from cortiq.backend.wants import value_of
from cortiq_wgpu.compiled_dispatches import CompiledDispatches
from cortiq_wgpu.dispatch import Dispatch
from cortiq_wgpu.pass_records import PassRecords
from cortiq_wgpu.plan import WgpuPlan
from cortiq_wgpu.quantised_rows import quantised_of, records_of
from cortiq_wgpu.wants import answer, with_drawn, words_of


@dataclass
class Readback:
    """Parts of the device's memory to read back: (buffer, first word, words)."""

    pieces: list[tuple[str, int, int]] = field(default_factory=list)
    words: int = 0

    def add(self, buffer: str, start: int, words: int) -> slice:
        """Add words to read, and return their place in what is read."""
        self.pieces.append((buffer, start, words))
        self.words += words
        return slice(self.words - words, self.words)


@dataclass
class CommandPass:
    """A command buffer, to be submitted or under way.

    Attributes
    ----------
    rows : of the trunk, and of the tail. compiled : whose dispatches these are. faults, answers,
    named : where these come back.
    """

    rows: tuple[np.ndarray, np.ndarray]
    compiled: CompiledDispatches
    copies: Readback = field(default_factory=Readback)
    commands: Any = None
    readable: Any = None
    faults: slice = field(default_factory=lambda: slice(0, 0))
    answers: dict[Ask, tuple[slice, bool]] = field(default_factory=dict)
    named: dict[tuple[str, int], slice] = field(default_factory=dict)


class WgpuRun(FlatBatch[WgpuPlan]):
    """One batch."""

    compiled: CompiledDispatches

    def __init__(
        self, plan: WgpuPlan, batch: Batch, accepted: Sequence[Accepted[PagedState]]
    ) -> None:
        super().__init__(plan, batch, accepted)
        self.gpu = plan.gpu
        self._temporary: list[Any] = []
        self.records: PassRecords

    def compute(self) -> list[Sequence[Brought] | None]:
        """Compute the batch; return each sequence's outputs, None for one with a fault."""
        under_way = [self._submitted(*chunk) for chunk in self._chunks()]
        if len(under_way) == 1 and len(self.rows) <= self.plan.few:
            self._encode_ahead(under_way[0])
        for one in under_way:
            self._collect(one)
        return self.outcome()

    def _chunks(self) -> Iterator[tuple[np.ndarray, bool, np.ndarray]]:
        """Yield (rows of the chunk, whether computed now, rows of the tail) for each pass."""
        chunks = list(chunks_of(self.given, self.plan.until, self.plan.rows))
        self.plan.hold(max(stop - start for start, stop in chunks))
        self.compiled = self.plan.compiled(self.request)
        tail = self.plan.tail_rows
        for start, stop in chunks:
            chunk = np.arange(start, stop)
            late = np.array(self.late_rows(chunk), np.int64)
            yield chunk, True, late[:tail]
            for first in range(tail, len(late), tail):
                yield chunk, False, late[first : first + tail]

    def _submitted(self, chunk: np.ndarray, fresh: bool, late: np.ndarray) -> CommandPass:
        """Upload the rows' records, encode unless that was done ahead, submit."""
        rows = (chunk if fresh else chunk[:0], late)
        self.records = records = PassRecords(self, chunk, late)
        device, memory = self.gpu.device, self.plan.memory
        version = memory.version
        words = records.words()
        held = memory.have("m", len(words))
        if memory.version != version:
            self.compiled = self.plan.compiled(self.request)
        device.queue.write_buffer(held, 0, words)
        ahead, memory.ahead = memory.ahead, {}
        one = ahead.get(self._key(rows)) or self._encoded(rows)
        one.rows = rows
        device.queue.submit([one.commands])
        return one

    def _key(self, rows: tuple[np.ndarray, np.ndarray]) -> tuple:
        """Return the key that decides a pass's commands."""
        r = self.records
        given = tuple(id(row) for row in self.rows if row.inputs)
        named = tuple(
            (place, value_of(want))
            for place, row in enumerate(self.rows)
            for want in row.wants
            if isinstance(want, Named)
        )
        shape = len(rows[0]), tuple(rows[1].tolist()), r.segments, r.parts, r.longest, r.runs
        return id(self.compiled), self.compiled.version, shape, named, given

    def _encode_ahead(self, one: CommandPass) -> None:
        """Encode the next batch, supposing it is like this one, while the device computes."""
        if not any(row.inputs for row in self.rows):
            self.plan.memory.ahead = {self._key(one.rows): self._encoded(one.rows)}

    def _encoded(self, rows: tuple[np.ndarray, np.ndarray]) -> CommandPass:
        """Encode the commands of a pass."""
        one = CommandPass(rows, self.compiled)
        encoder = self.gpu.device.create_command_encoder()
        encoder.clear_buffer(self.plan.memory.buffers["faults"])
        if len(rows[0]):
            self._take_inputs(encoder, rows[0])
        self._encode(encoder, (len(rows[0]), len(rows[1])), self.records, one)
        self._read_back(encoder, one)
        one.commands = encoder.finish()
        return one

    def _encode(
        self, encoder: Any, counts: tuple[int, int], records: PassRecords, one: CommandPass
    ) -> None:
        compute = encoder.begin_compute_pass()
        pipeline = None
        for versions in self.compiled.ready:
            rows = counts[versions[0].work.tail]
            ready = versions[(rows > 1) + (rows > self.plan.few)]
            work = ready.work
            if not (rows and work.grid.x) or (work.begin and work.begin >= records.reach(work)):
                continue
            if work.given is not None:
                compute.end()
                given = self._replace(encoder, work, one)
                compute, pipeline = encoder.begin_compute_pass(), None
                if not given:
                    continue
            if ready.pipeline is not pipeline:
                pipeline = ready.pipeline
                compute.set_pipeline(pipeline)
            compute.set_bind_group(0, ready.group)
            groups = work.grid.groups(rows, records.segments, records.parts)
            compute.dispatch_workgroups(*groups)
        compute.end()

    def _copied(self, encoder: Any, words: np.ndarray, name: str, place: int) -> None:
        """Write words into a value, in turn with the dispatches."""
        held = self.gpu.uploaded(words)
        self._temporary.append(held)
        type_ = self.plan.graph.values[name]
        buffer = self.plan.memory.buffers["q" if type_.dtype == "q16" else "x"]
        start = self.compiled.at(name) + place * self.plan.words_of(name)
        encoder.copy_buffer_to_buffer(held, 0, buffer, 4 * start, 4 * len(words))

    def _take_inputs(self, encoder: Any, chunk: np.ndarray) -> None:
        """Write what rows supply for the graph's inputs."""
        for name in self.plan.inputs:
            given = [self._words_of(name, self.rows[row].inputs[name]) for row in chunk.tolist()]
            if given[0].size:
                self._copied(encoder, np.concatenate(given), name, 0)

    def _words_of(self, name: str, value: Any) -> np.ndarray:
        type_ = self.plan.graph.values[name]
        if type_.dtype == "q16":
            return records_of(value, type_.shape)
        dtype = np.int32 if type_.dtype == "i32" else np.float32
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and so a fault
            return np.asarray(value).astype(dtype).reshape(-1).view(np.uint32)

    def _replace(self, encoder: Any, work: Dispatch, one: CommandPass) -> bool:
        """Replace computed values by those that rows supply."""
        name, given = work.given, False
        assert name is not None
        for place, row in enumerate(one.rows[work.tail].tolist()):
            if name in self.rows[row].inputs:
                words = self._words_of(name, self.rows[row].inputs[name])
                self._copied(encoder, words, name, place)
                given = True
        return given

    def _read_back(self, encoder: Any, one: CommandPass) -> None:
        """Copy faults, answers and named values to memory that the host reads."""
        buffers, copies = self.plan.memory.buffers, one.copies
        begin, tail, _ = self.compiled.regions[-1]
        last = begin + (self.plan.tail_rows if tail else self.plan.rows)
        one.faults = copies.add("faults", 0, last)
        late = self.compiled.late
        for ask, start in self.compiled.answers.items():
            rows = one.rows[ask.value in late]
            if len(rows):
                cut = copies.add("x", start, len(rows) * words_of(ask))
                one.answers[ask] = cut, ask.value in late
        for late_rows, rows in zip((False, True), one.rows, strict=True):
            for place, row in enumerate(rows.tolist()):
                for want in self.rows[row].wants:
                    name = value_of(want)
                    if isinstance(want, Named) and (name in late) == late_rows:
                        self._read_value(one, name, row, place)
        one.readable = self.gpu.readable(4 * copies.words)
        start = 0
        for name, first, words in copies.pieces:
            encoder.copy_buffer_to_buffer(
                buffers[name], 4 * first, one.readable, 4 * start, 4 * words
            )
            start += words

    def _read_value(self, one: CommandPass, name: str, row: int, place: int) -> None:
        if name in BY_ROW or not self.plan.words_of(name):
            return
        buffer = "q" if self.plan.graph.values[name].dtype == "q16" else "x"
        words = self.plan.words_of(name)
        start = self.compiled.at(name) + place * words
        one.named[name, row] = one.copies.add(buffer, start, words)

    def _collect(self, one: CommandPass) -> None:
        """Read back faults, answers and values."""
        words = self.gpu.read(one.readable, 4 * one.copies.words)
        one.readable.destroy()
        flags = words[one.faults]
        for begin, tail, nodes in self.compiled.regions:
            self.note_faults(flags[begin:], one.rows[tail], nodes)
        for ask, (cut, tail) in one.answers.items():
            values = words[cut].reshape(-1, words_of(ask))
            for place, row in enumerate(one.rows[tail].tolist()):
                for want, asked in with_drawn(asked_by(self.rows[row].wants)):
                    if asked == ask:
                        self.brought[row][want] = answer(ask, values[place])
        late = self.compiled.late
        for late_rows, rows in zip((False, True), one.rows, strict=True):
            for row in rows.tolist():
                for want in self.rows[row].wants:
                    name = value_of(want)
                    if isinstance(want, Named) and (name in late) == late_rows:
                        self.brought[row][want] = self._named(name, row, one, words)

    def _finish_logit(self, want: DrawnLogit, row: int) -> None:
        """Do nothing: a drawn logit is answered on the device."""

    def _named(self, name: str, row: int, one: CommandPass, words: np.ndarray) -> Any:
        """Return a row's value, in the shape of one row."""
        if name in BY_ROW:
            return self.by_row(name, row)
        type_ = self.plan.graph.values[name]
        cut = one.named.get((name, row), slice(0, 0))
        if type_.dtype == "q16":
            return quantised_of(words[cut], type_.shape)
        dtype = np.int32 if type_.dtype == "i32" else np.float32
        value = words[cut].view(dtype).reshape(type_.shape).copy()
        return value if type_.shape else value[()]
