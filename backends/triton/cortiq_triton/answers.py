"""Answers of rows, computed on the device and brought to the host in one copy."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Named, Top, Want
from cortiq.backend.answers import drawing_want
from cortiq.backend.requests import penalises
from cortiq.backend.walk import Group
from cortiq.backend.wants import value_of
from cortiq_triton import draw, tail, top_logprobs
from cortiq_triton.device_rows import DeviceRows
from cortiq_triton.draw_numbers import Drawing, Stored, arrays_of
from cortiq_triton.fetched import CopiedAnswers, Fetched, FetchedColumns, copied_to_host
from cortiq_triton.language import Tensor, ceil_div, kernel, launch
from cortiq_triton.rows import Rows
from cortiq_triton.rowset import RowBuffer, uploaded

IDS = 256
"""Rows of a program that chooses their ids."""


class Answers:
    """Launches what answers the wants of a run, then reads it.

    Attributes
    ----------
    groups : wants of one kind with their rows, and what answers them on the device.
    whole : for the first want of each kind, the tensor of all rows that ask for it.
    columns : for rows that all want the same named values, the tensors of these.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        self.groups: list[tuple[list[tuple[int, Want]], Any]] = []
        self.whole: dict[Want, Any] = {}
        self.columns = {want: run.values_of(value_of(want)) for want in run.alike}
        if self.columns:
            return
        groups: dict[tuple[str, type, Any], list[tuple[int, Want]]] = {}
        for at, row in enumerate(run.rows):
            for want in row.wants:
                extra = want.count if isinstance(want, Top) else None
                groups.setdefault((value_of(want), type(want), extra), []).append((at, want))
        for (name, kind, _), asking in sorted(groups.items(), key=lambda g: g[0][1] is DrawnLogit):
            self._answer(name, kind, asking)

    def _answer(self, name: str, kind: type, asking: list[tuple[int, Want]]) -> None:
        rows = [at for at, _ in asking]
        value: Any = self._rows_of(name, rows) if kind is not Draw else None
        if kind is Named:
            answers: Any = value
        elif kind is Digest:
            answers = tail.digests(value)
        elif kind is Argmax:
            answers = tail.argmax(value)
        elif kind is Draw:
            answers = self._draw(name, asking)
        else:
            faults = torch.zeros(len(rows), dtype=torch.int32, device=value.device)
            answers = self._logits(value, asking, faults)
            self._note(rows, faults)
        self.whole[asking[0][1]] = answers
        self.groups.append((asking, answers))

    def _logits(
        self, value: torch.Tensor, asking: list[tuple[int, Want]], faults: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The most likely ids with their logits and logsumexp, or the drawn ones' logit and that.

        Draws are answered already.
        """
        first = asking[0][1]
        if isinstance(first, Top):
            found = top_logprobs.ordered(value, first.count)
            return *top_logprobs.most_likely(found, first.count), top_logprobs.sums_of(
                found, faults
            )[1]
        scales, drawn = [], []
        for at, want in asking:
            assert isinstance(want, DrawnLogit)
            scales.append(float(want.scale))
            drawn.append(self._drawn_at(at))
        there = None
        if set(scales) != {1.0}:
            there = uploaded(np.array(scales, np.float32), value.device)
        return top_logprobs.sums_of(top_logprobs.ordered(value), faults, torch.stack(drawn), there)

    def _drawn_at(self, at: int) -> torch.Tensor:
        """The token that a row drew."""
        drawing = drawing_want(self.run.rows[at].wants)
        for asking, answers in self.groups:
            if type(asking[0][1]) is type(drawing) and (at, drawing) in asking:
                return answers[asking.index((at, drawing))]
        raise AssertionError("a row that draws nothing wants the drawn token's logit")

    def _draw(self, name: str, asking: list[tuple[int, Want]]) -> torch.Tensor:
        """Draw once for each row and draw of it, from the rows as they are."""
        run, (group, value) = self.run, self._value(name)
        drawings: list[Drawing] = []
        tokens: list[int] = []
        for at, want in asking:
            assert isinstance(want, Draw)
            place = at if group is run.all else bisect_left(group.places, at)
            seen: list[int] = []
            if penalises(want):
                seen = run.history(at) if want.history is None else list(want.history)
            known = Stored(4 * len(tokens), len(seen))
            tokens += seen
            position = run.rows[at].position + want.ahead
            drawings.append(Drawing(want, place, at, position, known))
        features, arrays = arrays_of(drawings, value.shape[1])
        if tokens:
            arrays["tokens"] = np.array(tokens, np.int32)
        buffer = RowBuffer(str(value.device), turns=1)
        buffer.fill(arrays)
        there = buffer.views(arrays)
        if tokens:
            there["histories"] += there["tokens"].data_ptr()
        longest = max(drawing.history.length for drawing in drawings)
        faults, counters = run.all.faults, run.shared.counters
        return draw.draw(value, features, there, faults, counters, longest)

    def _note(self, rows: list[int], faults: torch.Tensor) -> None:
        self.run.all.faults[self._index(rows)] |= faults

    def _index(self, rows: Sequence[int]) -> torch.Tensor:
        return uploaded(np.array(rows, np.int64), self.run.all.faults.device)

    def _value(self, name: str) -> tuple[Group, Any]:
        """A value, and the group whose rows it has."""
        group = self.run.all if name in self.run.all.values else self.run.tail
        return group, group.values[name]

    def _rows_of(self, name: str, rows: list[int]) -> Any:
        """A value's rows, in the order asked for."""
        run, (group, value) = self.run, self._value(name)
        if group is not run.all:
            rows = [bisect_left(group.places, at) for at in rows]
        if rows == list(range(len(value.e if isinstance(value, Rows) else value))):
            return value
        return run.pick(value, self._index(rows))

    def keep(self, places: Sequence[int], drawn: torch.Tensor) -> None:
        """Note on the device what rows draw, at their places, for rows of the next batch."""
        for asking, answers in self.groups:
            if isinstance(asking[0][1], Argmax | Draw):
                mine = [
                    i
                    for i, (at, want) in enumerate(asking)
                    if want is drawing_want(self.run.rows[at].wants)
                ]
                there = answers if len(mine) == len(asking) else answers[self._index(mine)]
                drawn[self._index([places[asking[i][0]] for i in mine])] = there

    def _brought(self, value: torch.Tensor) -> Any:
        """A value of a sequence's rows as it is brought: held on the device, or on the host."""
        holds = self.run.held and value.dtype == torch.float32
        return DeviceRows(value, brought=True) if holds else copied_to_host(value)

    def fetch(self, places: Sequence[int], faults: torch.Tensor) -> Fetched | FetchedColumns:
        """Start bringing to the host what rows asked for.

        Parameters
        ----------
        places : of the rows in the batch. faults : their flags.
        """
        cuts = [segment.cut for segment in self.run.segments]
        if self.columns:
            parts = [
                {want: self._brought(value[cut]) for want, value in self.columns.items()}
                for cut in cuts
            ]
            return FetchedColumns(self.run.shared, cuts, CopiedAnswers(faults), parts)
        rows = range(len(self.run.rows))
        drawing = frozenset(places[at] for at in rows if drawing_want(self.run.rows[at].wants))
        there = [(asking, CopiedAnswers(answers)) for asking, answers in self.groups]
        return Fetched(self.run.shared, len(rows), cuts, CopiedAnswers(faults), there, drawing)


@kernel
def choose_ids(
    given: Tensor, sources: Tensor, drawn: Tensor, out: Tensor, rows: Tensor, BLOCK: tl.constexpr
) -> None:
    """The ids of rows: given, or drawn by the row of the batch before that `sources` names."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + i, mask=i < rows, other=-1)
    known = tl.load(given + i, mask=i < rows, other=0)
    before = tl.load(drawn + source, mask=source >= 0, other=0)
    tl.store(out + i, tl.where(source >= 0, before, known), mask=i < rows)


def resolve(
    count: int, given: torch.Tensor, sources: torch.Tensor, drawn: torch.Tensor
) -> torch.Tensor:
    """The ids of `count` rows, those of the batch before included."""
    out = torch.empty_like(given)
    grid = (ceil_div(count, IDS),)
    launch(choose_ids, grid, given, sources, drawn, out, count, BLOCK=IDS)
    return out
