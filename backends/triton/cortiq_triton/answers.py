"""What rows asked for: computed on the device, brought to the host in one copy."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl

from cortiq.backend import Argmax, Digest, Draw, Named, Top, Want
from cortiq.backend.admission import value_of
from cortiq.backend.executable import Brought
from cortiq.backend.walk import Walk
from cortiq.numerics.quantise import Quantised
from cortiq_triton import draw, tail
from cortiq_triton.language import Tensor, kernel, launch, pow2
from cortiq_triton.rows import Rows


class Answers:
    """Launches what answers the wants of a run, then reads it.

    Attributes
    ----------
    found : by row, the wants with tensors on the device.
    whole : for the first want of each kind, the tensor of all rows that ask for it.
    """

    def __init__(self, run: Walk[Any]) -> None:
        self.run = run
        self.found: list[dict[Want, Any]] = [{} for _ in run.rows]
        self.whole: dict[Want, Any] = {}
        groups: dict[tuple[str, type, Any], list[tuple[int, Want]]] = {}
        for at, row in enumerate(run.rows):
            for want in row.wants:
                extra = want.count if isinstance(want, Top) else None
                groups.setdefault((value_of(want), type(want), extra), []).append((at, want))
        for (name, kind, _), asking in groups.items():
            self._answer(name, kind, asking)

    def _answer(self, name: str, kind: type, asking: list[tuple[int, Want]]) -> None:
        rows = [at for at, _ in asking]
        value = self._rows_of(name, rows)
        if kind is Named:
            answers: Any = value
        elif kind is Digest:
            answers = tail.digests(value)
        elif kind is Argmax:
            answers = tail.argmax(value)
        elif kind is Top:
            faults = torch.zeros(len(rows), dtype=torch.int32, device=value.device)
            first = asking[0][1]
            assert isinstance(first, Top)
            answers = tail.top(value, first.count, faults)
            self._note(rows, faults)
        else:
            self._draw(value, asking)
            return
        self.whole[asking[0][1]] = answers
        for place, (at, want) in enumerate(asking):
            self.found[at][want] = _row(answers, place)

    def _draw(self, value: torch.Tensor, asking: list[tuple[int, Want]]) -> None:
        run = self.run
        for place, (at, want) in enumerate(asking):
            assert isinstance(want, Draw)
            seen = run.history(at) if want.history is None else list(want.history)
            given = draw.draw_inputs(want, seen, value.shape[1], str(value.device))
            fault = torch.zeros(1, dtype=torch.int32, device=value.device)
            position = run.rows[at].position + want.ahead
            self.found[at][want] = draw.draw(value[place], want, position, given, fault)[0]
            self._note([at], fault)

    def _note(self, rows: list[int], faults: torch.Tensor) -> None:
        self.run.all.faults[torch.tensor(rows, device=faults.device)] |= faults

    def _rows_of(self, name: str, rows: list[int]) -> Any:
        """A value's rows, in the order asked for."""
        run = self.run
        group = run.all if name in run.all.values else run.tail
        value = group.values[name]
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


def packed(run: Walk[Any], answers: Answers) -> torch.Tensor:
    """Fault flag, argmax and digest of each row: int32 [rows, 6]; −1 and 0 where nobody asks."""
    out = torch.zeros((len(run.rows), 6), dtype=torch.int32, device=run.all.faults.device)
    out[:, 1] = -1
    wants = run.rows[0].wants
    for want, columns in ((Argmax(), slice(1, 2)), (Digest("logits"), slice(2, 6))):
        if want in wants:
            out[:, columns] = answers.whole[want].view(len(run.rows), -1)
    out[:, 0] = run.all.faults
    return out
