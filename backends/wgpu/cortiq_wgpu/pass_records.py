"""Metadata of a pass's rows as words: their records, sequences, pages and draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from cortiq.backend import Draw, DrawnLogit
from cortiq.backend.answers import drawing_want
from cortiq.backend.flat_rows import FlatBatch
from cortiq.backend.last_keys import highest_key
from cortiq.backend.requests import asked_by
from cortiq_wgpu.dispatch import SEGMENTS, Dispatch
from cortiq_wgpu.plan import WgpuPlan
from cortiq_wgpu.wants import draw_block, with_drawn

HEADER = 16
TOKEN, POSITION, PAGES, BLOCK, BEGIN, END, SOURCE, DRAWS, TOPS, DRAWN = range(10)


class PassRecords:
    """The words of a pass; see `about` in prelude.wgsl.

    Attributes
    ----------
    segments : stretches of neighbouring rows of one sequence. parts : of attention's keys.
    """

    def __init__(self, run: FlatBatch[WgpuPlan], chunk: np.ndarray, late: np.ndarray) -> None:
        self.run, self.chunk, self.late = run, chunk, late
        self.flat, self.plan = run.flat, run.plan
        positions = self.flat.positions[chunk]
        seen = [run.rows[row] for row in chunk.tolist()] if self.plan.encoded else ()
        last = highest_key(positions, seen, self.plan.encoded)
        self.parts = self.plan.parts_for(len(chunk), int(positions.min()), last)
        self.choices = self.plan.choices_for(int(positions.max()))
        owners = self.flat.owner[chunk]
        self.starts = np.flatnonzero(np.diff(owners, prepend=-1))
        self.segments = len(self.starts)
        self.longest = int(np.diff(self.starts, append=len(chunk)).max())
        self.runs = last // 1024 + 1

    def reach(self, work: Dispatch) -> int:
        """Return the bound of a dispatch's `begin`: rows of a sequence, or runs of keys."""
        if work.grid.over == SEGMENTS:
            return self.longest
        return self.runs if self.parts == 1 else 0

    def words(self) -> np.ndarray:
        """Return all words: header, records of both sets, segments, pages, draws."""
        width = self.plan.angles.words
        trunk = np.zeros((len(self.chunk), width), np.uint32)
        tail = np.zeros((len(self.late), width), np.uint32)
        segments = np.zeros((self.segments, 4), np.uint32)
        bases = np.cumsum([HEADER, trunk.size, tail.size, segments.size])
        extra = _Extra(int(bases[-1]))
        tables = self._tables(extra)
        for rows, records in ((self.chunk, trunk), (self.late, tail)):
            self._fill(rows, records, tables, extra)
        ends = np.append(self.starts[1:], len(self.chunk))
        segments[:, 0], segments[:, 1] = self.starts, ends - self.starts
        segments[:, 2] = self.flat.positions[self.chunk[self.starts]]
        segments[:, 3] = trunk[self.starts, BLOCK]
        for (first, count), base in zip(segments[:, :2].tolist(), segments[:, 2], strict=True):
            trunk[first : first + count, BEGIN] = base
            trunk[first : first + count, END] = base + count
        header = np.zeros(HEADER, np.uint32)
        header[1:4] = len(self.chunk), len(self.late), self.segments
        header[4:7] = bases[:3]
        header[8:10] = self.parts, self.choices
        parts = (header, trunk.reshape(-1), tail.reshape(-1), segments.reshape(-1))
        return np.concatenate([*parts, *extra.pieces])

    def _tables(self, extra: _Extra) -> dict[int, int]:
        """Append the page tables of the sequences; return the places of the lists of them."""
        found = {}
        for owner in np.unique(self.flat.owner[self.chunk]).tolist():
            tables = self.flat.states[owner].tables
            pages = [np.array([page.data for page in t.pages], np.uint32) for t in tables]
            starts = [extra.add(listed) - t.first for listed, t in zip(pages, tables, strict=True)]
            found[owner] = extra.add(np.array(starts, np.int64).astype(np.uint32))
        return found

    def _fill(
        self, rows: np.ndarray, records: np.ndarray, tables: dict[int, int], extra: _Extra
    ) -> None:
        flat = self.flat
        if not len(rows):
            return
        owners = flat.owner[rows]
        blocks = [0 if state.block is None else state.block.data for state in flat.states]
        records[:, TOKEN], records[:, POSITION] = flat.tokens[rows], flat.positions[rows]
        records[:, PAGES] = [tables[owner] for owner in owners.tolist()]
        records[:, BLOCK] = [blocks[owner] for owner in owners.tolist()]
        records[:, SOURCE] = rows - self.chunk[0]
        self.plan.angles.fill(records, flat.positions[rows], self.run.supplied_positions(rows))
        for place, row in enumerate(rows.tolist()):
            if self.run.rows[row].wants:
                self._ask(records[place], row, extra)

    def _ask(self, record: np.ndarray, row: int, extra: _Extra) -> None:
        """Write a row's `top` and draws."""
        places: dict[int, int] = {}
        drawn: list[int] = []
        for want, ask in with_drawn(asked_by(self.run.rows[row].wants)):
            if ask is not None and ask in self.run.compiled.tops:
                record[TOPS] |= self.run.compiled.tops[ask]
            if isinstance(want, Draw) and ask is not None:
                history = self.run.history(want, row)
                position = int(self.flat.positions[row]) + want.ahead
                places[ask.number] = extra.add(draw_block(want, history, position, extra.end))
            if isinstance(want, DrawnLogit):
                scale = int(want.scale.view(np.uint32))
                drawn.append(extra.add(np.array([scale, self._token_at(row)], np.uint32)))
        if drawn:
            asks = self.run.compiled.answers
            drawn += [0] * (sum(ask.kind == "drawn" for ask in asks) - len(drawn))
            record[DRAWN] = extra.add(np.array(drawn, np.uint32))
        if places:
            count = 1 + max(ask.number for ask in self.run.compiled.answers if ask.kind == "draw")
            record[DRAWS] = extra.add(np.array([places.get(n, 0) for n in range(count)], np.uint32))

    def _token_at(self, row: int) -> int:
        """Return the place in x of the token that a row draws."""
        asked = dict(asked_by(self.run.rows[row].wants))
        ask = asked[drawing_want(self.run.rows[row].wants)]  # type: ignore[index]
        late = ask is not None and ask.value in self.run.compiled.late
        place = int(np.searchsorted(self.late, row)) if late else row - int(self.chunk[0])
        return self.run.compiled.answers[ask] + place


class _Extra:
    """Words behind the records."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.pieces: list[np.ndarray] = []

    def add(self, words: Any) -> int:
        """Append words and return their place."""
        self.pieces.append(words)
        self.end += len(words)
        return self.end - len(words)
