"""What rows asked for: computed on the device, brought to the host in one copy."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Named, Top, Want
from cortiq.backend.admission import value_of
from cortiq.backend.answers import drawing_want
from cortiq.backend.executable import Brought
from cortiq.backend.requests import penalises
from cortiq.backend.walk import Group, Walk
from cortiq.numerics.quantise import Quantised
from cortiq_triton import draw, tail, top
from cortiq_triton.draw_numbers import Drawing, Stored, arrays_of
from cortiq_triton.language import Tensor, kernel, launch, pow2
from cortiq_triton.rows import Rows
from cortiq_triton.rowset import RowBuffer


class Answers:
    """Launches what answers the wants of a run, then reads it.

    Attributes
    ----------
    found : by row, the wants with tensors on the device.
    whole : for the first want of each kind, the tensor of all rows that ask for it.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        self.found: list[dict[Want, Any]] = [{} for _ in run.rows]
        self.whole: dict[Want, Any] = {}
        groups: dict[tuple[str, type, Any], list[tuple[int, Want]]] = {}
        for at, row in enumerate(run.rows):
            for want in row.wants:
                extra = want.count if isinstance(want, Top) else None
                groups.setdefault((value_of(want), type(want), extra), []).append((at, want))
        for (name, kind, _), asking in sorted(groups.items(), key=lambda g: g[0][1] is DrawnLogit):
            self._answer(name, kind, asking)

    def _answer(self, name: str, kind: type, asking: list[tuple[int, Want]]) -> None:
        if kind is Draw:
            self._draw(name, asking)
            return
        rows = [at for at, _ in asking]
        value = self._rows_of(name, rows)
        if kind is Named:
            answers: Any = value
        elif kind is Digest:
            answers = tail.digests(value)
        elif kind is Argmax:
            answers = tail.argmax(value)
        else:
            faults = torch.zeros(len(rows), dtype=torch.int32, device=value.device)
            answers = self._logits(value, asking, faults)
            self._note(rows, faults)
        self.whole[asking[0][1]] = answers
        for place, (at, want) in enumerate(asking):
            self.found[at][want] = _row(answers, place)

    def _logits(
        self, value: torch.Tensor, asking: list[tuple[int, Want]], faults: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The most likely ids with their logits and logsumexp, or the drawn ones' logit and that.

        Draws are answered already.
        """
        first = asking[0][1]
        if isinstance(first, Top):
            found = top.ordered(value, first.count)
            return *top.most_likely(found, first.count), top.sums_of(found, faults)[1]
        scales, drawn = [], []
        for at, want in asking:
            assert isinstance(want, DrawnLogit)
            drawing = drawing_want(self.run.rows[at].wants)
            assert drawing is not None
            scales.append(float(want.scale))
            drawn.append(self.found[at][drawing])
        there = torch.tensor(scales, device=value.device) if set(scales) != {1.0} else None
        return top.sums_of(top.ordered(value), faults, torch.stack(drawn), there)

    def _draw(self, name: str, asking: list[tuple[int, Want]]) -> None:
        """Draw once for each row and draw of it, from the rows as they are."""
        run, (group, value) = self.run, self._value(name)
        drawings, tokens = [], []
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
        buffer = RowBuffer(str(value.device))
        buffer.fill(arrays)
        there = buffer.views(arrays)
        if tokens:
            there["histories"] += there["tokens"].data_ptr()
        longest = max(drawing.history.count for drawing in drawings)
        faults, counters = run.all.faults, run.shared.counters
        drawn = draw.draw(value, features, there, faults, counters, longest)
        for place, (at, want) in enumerate(asking):
            self.found[at][want] = drawn[place]

    def _note(self, rows: list[int], faults: torch.Tensor) -> None:
        self.run.all.faults[torch.tensor(rows, device=faults.device)] |= faults

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
        return run.pick(value, torch.tensor(rows, device=run.all.faults.device))

    def read(self) -> list[Sequence[Brought] | None]:
        """Bring to the host what each sequence brings; None for one with a fault."""
        flags = self.run.all.faults.cpu().numpy() != 0
        brought: list[Sequence[Brought] | None] = []
        for segment in self.run.segments:
            found = self.found[segment.cut]
            failed = flags[segment.cut].any()
            rows = [{w: _on_host(w, x) for w, x in row.items()} for row in found if not failed]
            brought.append(None if failed else rows)
        return brought


def _row(answers: Any, place: int) -> Any:
    if isinstance(answers, tuple) and not isinstance(answers, Rows):
        return tuple(part[place] for part in answers)
    return answers.take(slice(place, place + 1)) if isinstance(answers, Rows) else answers[place]


def _on_host(want: Want, value: Any) -> Any:
    """An answer in the form that `cortiq.backend` gives it."""
    if isinstance(want, Argmax | Draw):
        return int(value)
    if isinstance(want, Digest):
        return tuple(int(word) for word in value.cpu().numpy().view(np.uint32))
    if isinstance(want, DrawnLogit):
        return tuple(part.cpu().numpy()[()] for part in value)
    if isinstance(want, Top):
        ids, values, total = (part.cpu().numpy() for part in value)
        return ids, values, total.reshape(1)
    if isinstance(value, Rows):
        high, low, e = (part[0].cpu().numpy() for part in value[:3])
        q = (high.astype(np.int32) << 8) + low
        return Quantised(q[..., : value.width], e[()])
    array = value.cpu().numpy()
    return array.copy() if array.ndim else array[()]


@kernel
def choose_ids(
    given: Tensor, sources: Tensor, drawn: Tensor, out: Tensor, n: Tensor, BLOCK: tl.constexpr
) -> None:
    """The ids of rows: given, or drawn by the row of the step before that `sources` names."""
    i = tl.arange(0, BLOCK)
    source = tl.load(sources + i, mask=i < n, other=-1)
    known = tl.load(given + i, mask=i < n, other=0)
    before = tl.load(drawn + source, mask=source >= 0, other=0)
    tl.store(out + i, tl.where(source >= 0, before, known), mask=i < n)


def resolve(
    count: int, given: torch.Tensor, sources: torch.Tensor, drawn: torch.Tensor
) -> torch.Tensor:
    """The ids of `count` rows, those of the step before included."""
    out = torch.empty_like(given)
    launch(choose_ids, (1,), given, sources, drawn, out, count, BLOCK=pow2(count))
    return out
